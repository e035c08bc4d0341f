//! The locks and atomics of the latest view. The test `interleaved` compiles the modules over those of
//! a scheduler instead.

pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
pub(crate) use std::sync::atomic;
pub(crate) use std::thread_local;

/// Releases a lock so that threads that wait get it before this one.
pub(crate) fn release_fairly<T>(guard: RwLockWriteGuard<'_, T>) {
    RwLockWriteGuard::unlock_fair(guard);
}
