//! A readers-writer lock for threads that mostly read, known as a big-reader lock.
//!
//! A reader changes a word that other threads seldom use, so that readers on several processors do not wait for each
//! other's caches. A writer looks at the words of all.
//!
//! Guarantee: while there is a write guard there is no other guard. A reader counts itself, and then looks for a writer.
//! A writer shows itself, and then looks for readers. These steps have one order for all threads, so that one of the two
//! sees the other.
//!
//! `tests/big_reader` also compiles this file, over the atomics and locks of a scheduler. That is why they are
//! imported from the parent module.

use super::{
    ATTEMPTS, AtomicBool, AtomicU32, Condvar, Mutex, Ordering::SeqCst, pause, thread_number,
};
use crossbeam_utils::CachePadded;

/// Words for readers. Threads share them if there are more.
const WORDS: usize = 16;

/// The lock. It has no data, and no poison. A thread that has a guard must not wait for another one.
#[derive(Debug, Default)]
pub struct BigReaderLock {
    /// Read guards, by the threads that took them.
    readers: [CachePadded<AtomicU32>; WORDS],
    side: CachePadded<Side>,
    asleep: Mutex<()>,
    changed: Condvar,
}

/// State that readers only look at while nobody writes.
#[derive(Debug, Default)]
struct Side {
    has_writer: AtomicBool,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
}

/// Keeps writers away.
#[must_use = "the lock is free at once"]
#[derive(Debug)]
pub struct ReadGuard<'a> {
    lock: &'a BigReaderLock,
    word: usize,
}

/// Keeps all others away.
#[must_use = "the lock is free at once"]
#[derive(Debug)]
pub struct WriteGuard<'a>(&'a BigReaderLock);

impl BigReaderLock {
    /// Waits until no thread writes.
    pub fn read(&self) -> ReadGuard<'_> {
        let word = thread_number() % WORDS;
        loop {
            self.readers[word].fetch_add(1, SeqCst);
            if !self.has_writer() {
                return ReadGuard { lock: self, word };
            }
            self.leave(word);
            self.wait_while(|| self.has_writer());
        }
    }

    /// Waits until no other thread has a guard.
    pub fn write(&self) -> WriteGuard<'_> {
        while self.side.has_writer.swap(true, SeqCst) {
            self.wait_while(|| self.has_writer());
        }
        self.wait_while(|| self.readers.iter().any(|word| word.load(SeqCst) > 0));
        WriteGuard(self)
    }

    fn has_writer(&self) -> bool {
        self.side.has_writer.load(SeqCst)
    }

    fn leave(&self, word: usize) {
        self.readers[word].fetch_sub(1, SeqCst);
        self.wake();
    }

    /// Waits. Others mostly have a guard for a few microseconds: less than it takes to sleep and to be woken.
    fn wait_while(&self, condition: impl Fn() -> bool) {
        for _ in 0..ATTEMPTS {
            if !condition() {
                return;
            }
            pause();
        }
        let mut asleep = self.asleep.lock();
        self.side.sleepers.fetch_add(1, SeqCst);
        while condition() {
            asleep = self.changed.wait(asleep);
        }
        self.side.sleepers.fetch_sub(1, SeqCst);
    }

    /// Wakes the threads that sleep. One that is about to has the mutex, or finds what has changed.
    fn wake(&self) {
        if self.side.sleepers.load(SeqCst) > 0 {
            drop(self.asleep.lock());
            self.changed.notify_all();
        }
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.lock.leave(self.word);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.side.has_writer.store(false, SeqCst);
        self.0.wake();
    }
}
