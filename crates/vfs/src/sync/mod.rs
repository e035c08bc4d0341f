//! Locks that also work in a child after `fork`.
//!
//! They are those of the standard library, which on Linux are words of their own memory. A [`BigReaderLock`] is not for a
//! child, unless no other thread of the parent used it at the fork. Locks of `parking_lot`
//! are not for code that may run in such a child: their waiting threads are in one table of the process, and
//! the copy in the child has threads that do not exist there.
//!
//! A panic while a lock is held leaves it usable.

mod big_reader;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

pub use big_reader::{BigReaderLock, ReadGuard, WriteGuard};
pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

fn guard<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// A mutex without poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A free mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        guard(self.0.lock())
    }
}

/// Attempts to get a lock before the thread sleeps, and steps of the processor between two of them: some 20 us.
const ATTEMPTS: usize = 64;
const STEPS: usize = 24;

/// Gets a lock, which others mostly hold for a few microseconds: less than it takes to sleep and to be woken.
fn patiently<G>(attempt: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
    for _ in 0..ATTEMPTS {
        if let Some(guard) = attempt() {
            return guard;
        }
        pause();
    }
    wait()
}

fn pause() {
    (0..STEPS).for_each(|_| std::hint::spin_loop());
}

/// The number of this thread, which no other one has. Threads that run at the same time mostly differ in its last bits.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// The guard, if the lock was free.
fn attempted<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A readers-writer lock without poison.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until no thread writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        patiently(|| attempted(self.0.try_read()), || guard(self.0.read()))
    }

    /// Waits until no other thread has the lock.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        patiently(|| attempted(self.0.try_write()), || guard(self.0.write()))
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One without waiting threads.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Releases the mutex, waits for a notification, and takes the mutex again.
    pub fn wait<'a, T>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard(self.0.wait(held))
    }

    /// As [`wait`](Self::wait), for at most a time.
    pub fn wait_for<'a, T>(&self, held: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
        guard(self.0.wait_timeout(held, time)).0
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
