//! The locks of the clerk. The test `clerks` compiles the clerk over those of a scheduler instead.

pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::thread;

/// A condition variable.
#[derive(Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
