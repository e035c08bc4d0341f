//! What a session waits for: the turn, locks of others, and those who read what it changed.

use super::Session;
use crate::error::Interrupted;
use crate::tx::Space;
use crate::tx::locks::{LockIndex, State};
use std::time::{Duration, Instant};

/// Attempts after which a transaction asks for the turn.
const FEW_ATTEMPTS: u32 = 10;
/// Time that one with the turn waits for a lock at first.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(20);
/// At most.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

impl<S: Space> Session<S> {
    /// To be called before [`roll_back`](Self::roll_back) if the transaction met a conflict and is
    /// to be run again: after many attempts it has the turn, and would give it back.
    pub fn keep_turn(&mut self) {
        self.keeps_turn = true;
    }

    /// Waits for others after that many attempts, longer and longer, and each session
    /// differently. After a few it waits for the turn: then the others wait.
    pub fn pause(&mut self, attempts: u32) {
        if attempts >= FEW_ATTEMPTS {
            if std::mem::take(&mut self.gave_up) {
                // Somebody may need a commit first, to give back what is needed here.
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

    /// Waits for a lock of another one, which gives it back since this one has the turn. Not
    /// for ever: it may belong to a transaction that waits for another of its thread.
    #[cold]
    pub(super) fn wait_for(&mut self, lock: LockIndex) -> Result<State, Interrupted> {
        let begun = Instant::now();
        while self.has_turn && begun.elapsed() < self.patience {
            let seen = self.core.locks.state(lock);
            if seen.version().is_some() {
                return Ok(seen);
            }
            if seen == State::BLOCKED {
                // A reader may keep the owner for long, and all others meanwhile.
                self.give_turn_back();
                self.gave_up = true;
                return Err(Interrupted::Conflict);
            }
            // The owner may be waiting for the end of this one, which has read what it changed.
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

    /// It has committed.
    #[inline]
    pub(super) fn had_turn(&mut self) {
        self.give_turn_back();
        (self.patience, self.gave_up) = (FIRST_PATIENCE, false);
    }

    /// Waits until nobody uses what the commit replaced, before anybody sees that it did.
    #[inline]
    pub(super) fn wait_for_readers(&self, stamp: u64) {
        if let Some(under) = &self.under {
            let taken = || self.taken.iter().map(|(lock, _)| lock as LockIndex);
            let block = || taken().for_each(|lock| self.core.locks.block(lock));
            self.core.running.wait(stamp, under, taken, block);
        }
    }
}
