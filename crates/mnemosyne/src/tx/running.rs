//! Who is reading what is about to change hands.
//!
//! Guarantee: when [`Running::wait`] returns, every transaction that was under way has ended,
//! or has seen that all commits up to the stamp are over, and nothing that these replaced is
//! read any more.
//!
//! A transaction says of which time its reads are before it reads; a commit gives its locks
//! back before it looks. One of the two sees the other, since both fence in between.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Nothing is under way.
const NONE: u64 = u64::MAX;

/// The transactions of one session: the time of the one that is under way.
#[derive(Debug)]
#[repr(align(64))] // A cache line, so that threads do not slow each other down.
pub(super) struct Under(AtomicU64);

impl Under {
    /// One begins, or finds that all it read is of this time too.
    #[inline]
    pub fn set(&self, time: u64) {
        self.0.store(time, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// It is over.
    #[inline]
    pub fn end(&self) {
        self.0.store(NONE, Ordering::Release);
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Running {
    sessions: RwLock<Vec<Arc<Under>>>,
}

impl Running {
    pub fn join(&self) -> Arc<Under> {
        let under = Arc::new(Under(AtomicU64::new(NONE)));
        self.sessions.write().push(under.clone());
        under
    }

    pub fn leave(&self, under: &Arc<Under>) {
        let mut sessions = self.sessions.write();
        sessions.retain(|other| !Arc::ptr_eq(other, under));
    }

    /// Waits for all transactions whose reads are of a time before `stamp`.
    pub fn wait(&self, stamp: u64) {
        fence(Ordering::SeqCst);
        let mut spins = 0_u32;
        // A copy of the list would cost more than those who join meanwhile have to wait.
        for under in self.sessions.read().iter() {
            while under.0.load(Ordering::Acquire) < stamp {
                spins += 1;
                match spins % 64 {
                    0 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        }
    }
}
