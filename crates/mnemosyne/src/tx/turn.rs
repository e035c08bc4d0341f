//! Progress: the turn of a transaction that has failed too often.
//!
//! Guarantee: while a thread has the turn, transactions of other threads take no locks and
//! commit nothing new. Those that were committing already finish, and the others give their
//! locks back as soon as they take another one or commit. So a transaction that is run again
//! with the turn gets through, unless it needs what another one keeps for ever.
//!
//! Threads get the turn in the order in which they asked for it. A thread that has given it
//! back and asks again comes after all that asked before. So several long transactions do not
//! starve each other: between asking and having it, each waits for at most one turn of every
//! other thread.
//!
//! A thread that has not asked waits for the end of one turn between two of its attempts. If the
//! next turn has begun by then, its next attempt may fail, too. After a few attempts it asks
//! itself. So it gets through even if the queue is never empty.
//!
//! A commit may keep locks until a long reader ends (see `running`). A transaction that needs
//! such a lock gives the turn back at once, so that unrelated commits proceed meanwhile. It
//! asks again later, and is then the last in the queue.
//!
//! The turn is a lock, and the other threads wait for it between their attempts. A body that
//! waits for something that another thread holds while it runs a transaction can deadlock.
//!
//! It is the thread that has the turn: another session of it may be used inside the transaction.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Nobody has it.
const NONE: u64 = 0;
/// The time from one look to the next, of a thread that has not asked for it. It is not woken:
/// long transactions run better while the short ones of other threads still sleep.
const PAUSE: Duration = Duration::from_micros(50);

/// The thread that has the turn, and those that asked for it. `thread` and `ended` change under
/// the lock of `queue`, and are read without.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Whose turn it is.
    thread: AtomicU64,
    /// Turns that have ended.
    ended: AtomicU64,
    /// The threads that wait in [`take`](Self::take), first come first. Empty if nobody has the turn.
    queue: Mutex<VecDeque<u64>>,
    /// Notified when the turn is passed on.
    passed_on: Condvar,
}

/// A number that no other thread of the process has.
fn this_thread() -> u64 {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr() as u64)
}

impl Turn {
    /// Whether another thread has it.
    #[inline]
    pub fn is_others(&self) -> bool {
        let of = self.thread.load(Relaxed);
        of != NONE && of != this_thread()
    }

    /// Waits for it. `false`: another session of this thread has it.
    pub fn take(&self) -> bool {
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

    /// Ends the turn, and passes it on to the first thread of the queue. If the turn were free
    /// until that thread wakes up, any other could take it before.
    pub fn give_back(&self) {
        let mut queue = self.queue.lock();
        let next = queue.pop_front().unwrap_or(NONE);
        self.thread.store(next, Relaxed);
        self.ended.fetch_add(1, Relaxed);
        self.passed_on.notify_all();
    }

    /// Waits until the turn ends that another thread has, if one has it.
    #[inline]
    pub fn wait(&self) {
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

    /// Long after this a step has failed to return.
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
            // The last to ask, and faster than threads that have to wake up.
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
    fn a_wait_ends_although_the_turn_is_never_free() {
        let turn = Turn::default();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        assert!(turn.take());
        let has_ended = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        assert!(turn.take());
                        // Each gives it back to the other one.
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
