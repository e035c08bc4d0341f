//! Attempts: work under a lock that stops where it would wait for a device, and is repeated
//! when the device has been waited for without the lock.
//!
//! # Guarantees
//! - **A1** During an attempt no store waits for a device on this thread: what needs a block
//!   that is not in memory fails with [`StoreError::Absent`], and has changed nothing.
//! - **A2** The first change of a store commits the thread to the attempt: from there on it
//!   waits for devices as ever, so that what has begun is ended.
//! - **A3** Attempts at one piece of work end. All but eight of them stop at a block that none
//!   before has stopped at. Then, or when a block cannot be read, the work is run without
//!   this limit: it waits under the lock, and returns the error of the device.
//!
//! What is repeated must have no effects before its first change of a store, other than that
//! it can be repeated. Where memory is changed first, [`commit`] says so.
//!
//! The state belongs to the thread, since stores that stand on each other call each other on
//! it, and what is in between need not know.

use crate::{Store, StoreError};
use medium::block::Lba;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// What a thread is at.
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
    /// What the attempt under way lacks, and what else may be of use with it.
    static WANTED: RefCell<Vec<Lba>> = const { RefCell::new(Vec::new()) };
    static WORK: Cell<u64> = const { Cell::new(0) };
}

/// Blocks that are missed again after they were read, before the work waits under its lock.
const AGAIN: usize = 8;

/// Most blocks that are read for one attempt.
const MOST_WANTED: usize = 1024;

/// Neighbouring blocks that the device is asked for at once.
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

/// During an attempt: names blocks that will be needed soon after one that is absent. Call it
/// only when that is so; blocks that are named may be in memory.
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

/// The number of the work that this thread is at: another one for each [`Attempts`].
pub(crate) fn work() -> u64 {
    WORK.get()
}

/// Ends an attempt, however it ends.
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
    /// None so far. The work reads `store`.
    pub fn new(store: &'a dyn Store) -> Self {
        WORK.set(WORK.get().wrapping_add(1));
        Self {
            store,
            missed: SmallVec::new(),
            again: 0,
            waits: false,
        }
    }

    /// Runs the work. `None`: it stopped at a block that is absent, and has no effects. Leave
    /// the lock, then [`fetch`](Self::fetch), then run it again.
    pub fn run<T, E>(&mut self, work: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
        WANTED.with_borrow_mut(Vec::clear);
        let ended = Ended;
        if !self.waits {
            STATE.set(State::Attempts);
        }
        let result = work();
        let stopped = is_attempt() && WANTED.with_borrow(|wanted| !wanted.is_empty());
        drop(ended);
        // The error may have been made of one that says so.
        (result.is_ok() || !stopped).then_some(result)
    }

    /// Waits for the block at which the last run stopped, and for others that it named.
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
