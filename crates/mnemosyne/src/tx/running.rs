//! Transactions under way, for commits that take data away from them.
//!
//! Guarantee: when [`Running::wait`] returns, which a commit calls before it gives its locks
//! back, no transaction is under way that has read what the commit replaces and is of an earlier
//! time. Later ones read the new words. So data that the commit made its thread's own are read
//! and written by nobody else: a transaction has to read, before it uses them, that they are
//! everybody's, and that is a word which the commit changed. The locks are kept meanwhile, so
//! that a third thread cannot act on the change before that either.
//!
//! A commit does not wait for other transactions, however long they take. Nor does it wait for
//! other commits that wait: a commit that has stored its words reads nothing more, so it counts as
//! over before it waits. Without a barrier (see below) it waits for every earlier transaction, and
//! two commits that counted each other would never return.
//!
//! # How
//!
//! Each session has a bit for each lock, which says that its transaction has read there. A
//! transaction sets the bit, and then looks once more at the lock; a commit takes the lock, and
//! then looks at the bits. With a barrier between its two steps on each side, the transaction
//! finds the lock taken or the commit finds the bit set. Reads are many, and have none: the commit has it executed in all threads, by
//! `membarrier(2)`, if a transaction of an earlier time is under way at all. For the times
//! themselves both sides have barriers.

use super::locks::LockIndex;
use parking_lot::RwLock;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence, fence,
};

/// Nothing is under way.
const NONE: u64 = u64::MAX;

/// Looks at others before a barrier in all threads, which costs as much.
const LOOKS: u32 = 16;

/// The transactions of one session: the one that is under way.
#[derive(Debug)]
#[repr(align(64))] // A cache line, so that threads do not slow each other down.
pub(super) struct Under {
    /// Its time.
    time: AtomicU64,
    /// Bits of the locks that it has read; stored to by its thread only.
    reads: Box<[AtomicU64]>,
}

impl Under {
    fn new(locks: usize) -> Self {
        Self {
            time: AtomicU64::new(NONE),
            reads: (0..locks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// A transaction begins, all it read is of this later time too, or ([`NONE`]) it is over.
    #[inline]
    pub fn set(&self, time: u64) {
        self.time.store(time, Release);
        fence(SeqCst);
    }

    /// Notes that it reads what a lock guards, before it looks whether the lock is still free.
    /// `false`: that was noted before.
    #[inline]
    pub fn note_read(&self, lock: LockIndex) -> bool {
        let (word, bit) = (&self.reads[lock as usize / 64], 1 << (lock % 64));
        let old = word.load(Relaxed);
        let is_new = old & bit == 0;
        if is_new {
            word.store(old | bit, Relaxed);
            // Stands for the barrier that the commit executes in this thread.
            compiler_fence(SeqCst);
        }
        is_new
    }

    fn has_read(&self, lock: LockIndex) -> bool {
        self.reads[lock as usize / 64].load(Relaxed) & 1 << (lock % 64) != 0
    }

    /// It is over, and has read what these locks guard.
    #[inline]
    pub fn end(&self, reads: impl Iterator<Item = LockIndex>) {
        self.time.store(NONE, Release);
        for lock in reads {
            self.reads[lock as usize / 64].store(0, Relaxed);
        }
    }
}

/// All sessions.
#[derive(Debug)]
pub(super) struct Running {
    /// A list that is replaced when it changes: it may be looked at for long.
    sessions: RwLock<Arc<Vec<Arc<Under>>>>,
    /// Whether the system can execute a barrier in all threads.
    pub(super) has_barrier: bool,
}

impl Running {
    /// Nothing is under way. `is_needed`: somebody will wait.
    pub fn new(is_needed: bool) -> Self {
        let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited);
        Self {
            sessions: RwLock::default(),
            has_barrier: is_needed && register().is_ok(),
        }
    }

    /// A session, in memory with that many locks.
    pub fn join(&self, locks: usize) -> Arc<Under> {
        let under = Arc::new(Under::new(locks));
        Arc::make_mut(&mut self.sessions.write()).push(under.clone());
        under
    }

    pub fn leave(&self, under: &Arc<Under>) {
        let mut sessions = self.sessions.write();
        Arc::make_mut(&mut sessions).retain(|other| !Arc::ptr_eq(other, under));
    }

    /// Waits for all transactions whose time is before `stamp` and that have read what the locks
    /// in `taken` guard. `own` is the caller's: it has stored its words, and is over for others.
    /// `is_blocked` is called before the caller sleeps.
    pub fn wait<L: Iterator<Item = LockIndex>>(
        &self,
        stamp: u64,
        own: &Under,
        taken: impl Fn() -> L,
        is_blocked: impl Fn(),
    ) {
        own.set(NONE);
        let is_earlier = |under: &&Arc<Under>| under.time.load(Acquire) < stamp;
        // Most are over soon.
        for _ in 0..LOOKS {
            if !self.sessions.read().iter().any(|under| is_earlier(&under)) {
                return;
            }
            std::hint::spin_loop();
        }
        // Without a barrier nobody can tell what they have read.
        let can_tell = self.has_barrier && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        let sessions = self.sessions.read().clone();
        for under in sessions.iter().filter(is_earlier) {
            if !can_tell || taken().any(|lock| under.has_read(lock)) {
                is_blocked();
                wait_while(|| is_earlier(&under));
            }
        }
    }
}

fn wait_while(is_so: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while is_so() {
        spins += 1;
        match spins % 64 {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}
