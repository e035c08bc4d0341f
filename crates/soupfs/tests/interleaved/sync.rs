//! The locks and atomics of `src/sync.rs`, over those of the scheduler. They have no poison.

pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use shuttle::thread_local;

use shuttle::sync;
use std::sync::PoisonError;

#[derive(Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases a lock; the scheduler draws the thread that gets it.
pub(crate) fn release_fairly<T>(guard: RwLockWriteGuard<'_, T>) {
    drop(guard);
}

pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
