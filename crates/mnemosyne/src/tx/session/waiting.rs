//! Waits of a session: for the turn, for locks, and for readers of words that it changed.

use super::TxSession;
use crate::error::Interrupted;
use crate::tx::Space;
use crate::tx::locks::{LockIndex, State};
use std::time::{Duration, Instant};

/// Attempts after which a transaction asks for the turn.
const FEW_ATTEMPTS: u32 = 10;
/// The first time that a session with the turn waits for a lock.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(20);
/// The longest time that a session with the turn waits for a lock.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

impl<S: Space> TxSession<S> {
    /// Keeps the turn during the next [`roll_back`](Self::roll_back). Call it before, if the
    /// transaction had a conflict and is run again: after many attempts the session has the turn.
    pub fn keep_turn(&mut self) {
        self.keeps_turn = true;
    }

    /// Waits after that many failed attempts, longer each time, and differently in each session.
    /// After a few attempts it waits for the turn: then the others wait.
    pub fn pause(&mut self, attempts: u32) {
        if attempts >= FEW_ATTEMPTS {
            if std::mem::take(&mut self.gave_up) {
                // Another thread may need a commit first, to release the lock that is needed here.
                std::thread::sleep(self.patience);
            }
            self.has_turn = self.has_turn || self.core.turn.take();
            return;
        }
        let longest = 1_u64 << attempts.min(10);
        let spins = (self.owner + u64::from(attempts)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        for _ in 0..spins % (longest * 16) {
            std::hint::spin_loop();
        }
        if attempts > 2 {
            std::thread::yield_now();
        }
        self.core.turn.wait();
    }

    pub(super) fn give_turn_back(&mut self) {
        if std::mem::take(&mut self.has_turn) {
            self.core.turn.give_back();
        }
    }

    /// Waits for a lock of another session, which releases it since this one has the turn. The wait
    /// is bounded: the lock may belong to a transaction that waits for another of its thread.
    #[cold]
    pub(super) fn wait_for(&mut self, lock: LockIndex) -> Result<State, Interrupted> {
        let begun = Instant::now();
        while self.has_turn && begun.elapsed() < self.patience {
            let seen = self.core.locks.state(lock);
            if seen.version().is_some() {
                return Ok(seen);
            }
            if seen == State::BLOCKED {
                // A reader may keep the owner waiting for long, and all other threads meanwhile.
                self.give_turn_back();
                self.gave_up = true;
                return Err(Interrupted::Conflict);
            }
            // The owner may wait for the end of this transaction, which has read a word that it
            // changed.
            if !self.is_valid() {
                return Err(Interrupted::Conflict);
            }
            std::thread::yield_now();
        }
        if self.has_turn {
            self.give_turn_back();
            self.gave_up = true;
            self.patience = LAST_PATIENCE.min(2 * self.patience);
        }
        Err(Interrupted::Conflict)
    }

    /// Gives the turn back after a commit.
    #[inline]
    pub(super) fn had_turn(&mut self) {
        self.give_turn_back();
        (self.patience, self.gave_up) = (FIRST_PATIENCE, false);
    }

    /// Waits until no transaction uses the words that the commit replaced, before its locks are
    /// released.
    #[inline]
    pub(super) fn wait_for_readers(&self, stamp: u64) {
        if let Some(under) = &self.under {
            let taken = || self.taken.iter().map(|(lock, _)| lock as LockIndex);
            let block = || taken().for_each(|lock| self.core.locks.block(lock));
            self.core.running.wait(stamp, under, taken, block);
        }
    }
}
