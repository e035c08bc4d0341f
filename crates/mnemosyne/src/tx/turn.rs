//! Progress: the turn of a transaction that has failed too often.
//!
//! Guarantee: while a thread has the turn, transactions of other threads take no locks and
//! commit nothing new. Those that were committing already finish, and the others give their
//! locks back as soon as they take another one or commit. So a transaction that is run again
//! with the turn gets through, unless it needs what another one keeps for ever.
//!
//! A commit may keep locks until a long reader ends (see `running`). A transaction that needs
//! such a lock gives the turn back at once, so that unrelated commits proceed meanwhile.
//!
//! The turn is a lock, and the other threads wait for it between their attempts. A body that
//! waits for something that another thread holds while it runs a transaction can deadlock.
//!
//! It is the thread that has the turn: another session of it may be used inside the transaction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Nobody has it.
const NONE: u64 = 0;
/// The time from one look to the next, while it is somebody else's.
const PAUSE: Duration = Duration::from_micros(50);

/// The thread that has the turn.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicU64);

/// A number that no other thread of the process has.
fn this_thread() -> u64 {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr() as u64)
}

impl Turn {
    /// Whether another thread has it.
    #[inline]
    pub fn is_others(&self) -> bool {
        let of = self.0.load(Relaxed);
        of != NONE && of != this_thread()
    }

    /// Waits for it. `false`: another session of this thread has it.
    pub fn take(&self) -> bool {
        loop {
            let taken = self
                .0
                .compare_exchange(NONE, this_thread(), Relaxed, Relaxed);
            match taken {
                Ok(_) => return true,
                Err(of) if of == this_thread() => return false,
                Err(_) => self.wait(),
            }
        }
    }

    pub fn give_back(&self) {
        self.0.store(NONE, Relaxed);
    }

    /// Waits until no other thread has it.
    #[inline]
    pub fn wait(&self) {
        while self.is_others() {
            std::thread::sleep(PAUSE);
        }
    }
}
