//! The locks of `src/sync.rs`, over those of the scheduler. They have no poison.

pub(crate) use shuttle::sync::MutexGuard;
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use shuttle::thread;

use shuttle::sync;
use std::sync::PoisonError;

pub(crate) fn thread_number() -> usize {
    shuttle::current::me().into()
}

pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let guard = self.0.wait(guard);
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
