//! Attempts: work under a lock that stops where it would wait for a device, and is repeated
//! after the block was read without the lock.
//!
//! # Guarantees
//! - **A1** During an attempt no store waits for a device on this thread. A call that needs an
//!   absent block fails with [`StoreError::Absent`], and has changed nothing.
//! - **A2** The first change of a store commits the thread to the attempt. From then on the
//!   thread waits for devices, so that the work is completed.
//! - **A3** Attempts at one piece of work end. All but eight of them stop at a block at which
//!   no earlier one has stopped. Then, or when a block cannot be read, the work is run without
//!   this limit: it waits under the lock, and returns the error of the device.
//!
//! Before its first change of a store, the work must have no effects that prevent a second
//! run. Work that changes memory first calls [`commit`].
//!
//! The state belongs to the thread. Stores that stand on each other call each other on one
//! thread, so the layers between them need no argument for it.

use crate::{Store, StoreError};
use medium::block::Lba;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// Whether a thread waits for devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It waits for devices.
    Waits,
    Attempts,
    /// In [`waiting`], during an attempt.
    Suspended,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::Waits) };
    /// The blocks that the attempt under way lacks, and others to read with them.
    static WANTED: RefCell<Vec<Lba>> = const { RefCell::new(Vec::new()) };
    static WORK: Cell<u64> = const { Cell::new(0) };
}

/// Blocks that may be absent again after they were read, before the work waits under its
/// lock.
const AGAIN: usize = 8;

/// Most blocks that are read for one attempt.
const MOST_WANTED: usize = 1024;

/// Most neighbouring blocks in one read.
const RUN: u64 = 256;

/// Whether an attempt is under way on this thread, and not committed.
pub fn is_attempt() -> bool {
    STATE.get() == State::Attempts
}

/// Commits the thread to the attempt under way: stores wait for devices from here on.
pub fn commit() {
    STATE.set(State::Waits);
}

/// Runs something that waits for devices also during an attempt.
pub fn waiting<T>(f: impl FnOnce() -> T) -> T {
    struct Resume;
    impl Drop for Resume {
        fn drop(&mut self) {
            if STATE.get() == State::Suspended {
                STATE.set(State::Attempts);
            }
        }
    }
    if !is_attempt() {
        return f();
    }
    STATE.set(State::Suspended);
    let _resume = Resume;
    f()
}

/// Adds blocks to be read together with the absent block at which an attempt stops. They may be in
/// memory. Outside of an attempt this does nothing.
pub fn want(blocks: impl IntoIterator<Item = Lba>) {
    if is_attempt() {
        WANTED.with_borrow_mut(|wanted| {
            let room = MOST_WANTED.saturating_sub(wanted.len());
            wanted.extend(blocks.into_iter().take(room));
        });
    }
}

/// The error of a store that would have to wait for these blocks.
pub fn absent(blocks: impl IntoIterator<Item = Lba>) -> StoreError {
    want(blocks);
    StoreError::Absent
}

/// The number of this thread's piece of work: each [`Attempts`] has its own.
pub(crate) fn work() -> u64 {
    WORK.get()
}

/// Ends an attempt when it is dropped, also by a panic.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        commit();
    }
}

/// The attempts at one piece of work.
pub struct Attempts<'a> {
    store: &'a dyn Store,
    /// The blocks at which attempts have stopped.
    missed: SmallVec<[Lba; 8]>,
    again: usize,
    /// The next run waits.
    waits: bool,
}

impl<'a> Attempts<'a> {
    /// Attempts at work that reads `store`; none has run yet.
    pub fn new(store: &'a dyn Store) -> Self {
        WORK.set(WORK.get().wrapping_add(1));
        Self {
            store,
            missed: SmallVec::new(),
            again: 0,
            waits: false,
        }
    }

    /// Runs the work. `None`: it stopped at an absent block, and has no effects. Release
    /// the lock, call [`fetch`](Self::fetch), then run it again.
    pub fn run<T, E>(&mut self, work: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
        WANTED.with_borrow_mut(Vec::clear);
        let ended = Ended;
        if !self.waits {
            STATE.set(State::Attempts);
        }
        let result = work();
        let stopped = is_attempt() && WANTED.with_borrow(|wanted| !wanted.is_empty());
        drop(ended);
        // The work may have turned the error `Absent` into another one.
        (result.is_ok() || !stopped).then_some(result)
    }

    /// Reads the block at which the last run stopped, and others that it named.
    pub fn fetch(&mut self) {
        let mut wanted = WANTED.take();
        let Some(&needed) = wanted.first() else {
            return;
        };
        if self.missed.contains(&needed) {
            self.again += 1;
        } else {
            self.missed.push(needed);
        }
        wanted.sort_unstable();
        wanted.dedup();
        for run in wanted.chunk_by(|a, b| a.0 + 1 == b.0) {
            for part in run.chunks(RUN as usize) {
                self.store.prefetch(part[0], part.len() as u64);
            }
        }
        let read = self.store.read(needed);
        self.waits = read.is_err() || self.again > AGAIN;
    }
}

#[cfg(test)]
mod tests;
