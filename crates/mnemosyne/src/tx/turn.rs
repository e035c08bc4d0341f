//! Progress: the turn of a transaction that has failed too often.
//!
//! Guarantee: while a thread has the turn, transactions of other threads take no locks and start no
//! commit. Commits under way finish. The other transactions release their locks as soon as they try
//! to take another lock or to commit. So a transaction that runs again with the turn commits,
//! unless it needs a lock that another one keeps forever.
//!
//! Threads get the turn in the order in which they asked for it. A thread that has given it back
//! and asks again comes last. So several long transactions do not starve each other. After asking,
//! each waits for at most one turn of every other thread.
//!
//! A thread that has not asked waits for the end of one turn between two of its attempts. If the
//! next turn has begun by then, its next attempt may fail, too. After a few attempts it asks
//! itself. So it commits even if the queue is never empty.
//!
//! A commit may keep locks until a long reader ends (see `running`). A transaction that needs such
//! a lock gives the turn back at once, so that unrelated commits proceed meanwhile. It asks again
//! later, and is then the last in the queue.
//!
//! The turn is a lock, and the other threads wait for it between their attempts. A body can
//! deadlock if it waits for something that another thread holds while that runs a transaction.
//!
//! The turn belongs to a thread: another session of the thread may be used inside the transaction.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// No thread has the turn.
const NONE: u64 = 0;
/// The interval in which a thread that has not asked checks for the end of the turn. It is not
/// woken: long transactions run better while the short ones of other threads still sleep.
const PAUSE: Duration = Duration::from_micros(50);

/// The thread that has the turn, and those that asked for it. `thread` and `ended` change under the
/// lock of `queue`, and are read without it.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The thread that has the turn, or [`NONE`].
    thread: AtomicU64,
    /// The number of turns that have ended.
    ended: AtomicU64,
    /// The threads that wait in [`take`](Self::take), in order. Empty if no thread has the turn.
    queue: Mutex<VecDeque<u64>>,
    /// Notified when the turn is passed on.
    passed_on: Condvar,
}

/// A number that no other thread of the process has.
fn this_thread() -> u64 {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr() as u64)
}

impl Turn {
    /// Whether another thread has the turn.
    #[inline]
    pub(super) fn is_others(&self) -> bool {
        let of = self.thread.load(Relaxed);
        of != NONE && of != this_thread()
    }

    /// Waits for the turn. Returns false if another session of this thread has it.
    pub(super) fn take(&self) -> bool {
        let this = this_thread();
        let mut queue = self.queue.lock();
        match self.thread.load(Relaxed) {
            NONE => self.thread.store(this, Relaxed),
            of if of == this => return false,
            _ => {
                queue.push_back(this);
                while self.thread.load(Relaxed) != this {
                    self.passed_on.wait(&mut queue);
                }
            }
        }
        true
    }

    /// Ends the turn, and passes it on to the first thread of the queue. A free turn could be taken
    /// by any other thread until that thread wakes up.
    pub(super) fn give_back(&self) {
        let mut queue = self.queue.lock();
        let next = queue.pop_front().unwrap_or(NONE);
        self.thread.store(next, Relaxed);
        self.ended.fetch_add(1, Relaxed);
        self.passed_on.notify_all();
    }

    /// Waits until the turn of another thread ends, if one has it.
    #[inline]
    pub(super) fn wait(&self) {
        let ended = self.ended.load(Relaxed);
        while self.is_others() && self.ended.load(Relaxed) == ended {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The time after which a step counts as hung.
    const WATCHDOG: Duration = Duration::from_secs(60);
    const THREADS: usize = 6;

    /// Waits until that many threads are in the queue.
    fn until_asked(turn: &Turn, threads: usize) {
        while turn.queue.lock().len() < threads {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_get_the_turn_in_the_order_of_asking() {
        let (turn, order) = (Turn::default(), Mutex::new(Vec::new()));
        assert!(turn.take());
        std::thread::scope(|scope| {
            for n in 0..THREADS {
                let (turn, order) = (&turn, &order);
                scope.spawn(move || {
                    assert!(turn.take());
                    assert!(!turn.take(), "the thread has it");
                    order.lock().push(n);
                    turn.give_back();
                });
                until_asked(turn, n + 1);
            }
            // This thread asks last, and is faster than threads that have to wake up.
            turn.give_back();
            assert!(turn.take());
            order.lock().push(THREADS);
            turn.give_back();
        });
        let as_asked: Vec<usize> = (0..=THREADS).collect();
        assert_eq!(*order.lock(), as_asked);
        assert_eq!(turn.thread.load(Relaxed), NONE);
    }

    #[test]
    fn a_wait_ends_even_if_the_turn_is_never_free() {
        let turn = Turn::default();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        assert!(turn.take());
        let has_ended = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        assert!(turn.take());
                        // Each gives the turn back to the other thread.
                        while turn.queue.lock().is_empty() && !is_over.load(Relaxed) {
                            std::thread::yield_now();
                        }
                        turn.give_back();
                    }
                });
            }
            until_asked(&turn, 2);
            turn.give_back();
            let (send, ended) = channel();
            let turn = &turn;
            scope.spawn(move || {
                turn.wait();
                send.send(()).unwrap();
            });
            let has_ended = ended.recv_timeout(WATCHDOG);
            is_over.store(true, Relaxed);
            has_ended
        });
        assert_eq!(has_ended, Ok(()));
    }
}
