//! The ships of a client: one at a time. A thread that finds one under way waits for its end, and mostly need not
//! ship itself, unless that ship runs beside calls. So the fsyncs of many threads take few ships.
//!
//! They wait without a processor, which the service needs.

use vfs::sync::{Condvar, Mutex};
use vfs::{Errno, Result};

/// The ships so far.
#[derive(Default)]
pub(super) struct Ships {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    is_under_way: bool,
    /// Threads that wait for its end.
    waiting: usize,
    /// Ships that have ended.
    ended: u64,
    /// The number of the last one that failed, and why.
    failed: Option<(u64, Errno)>,
}

/// The work of a thread that ships.
pub(super) enum Turn {
    /// It ships, and ends its turn by [`Ships::end`].
    Ship,
    /// A ship that ended after the thread came, with this result.
    Shipped(Result<()>),
}

impl Ships {
    /// Waits for the end of a ship under way. `is_enough`: it counts for this thread.
    pub(super) fn begin(&self, is_enough: bool) -> Turn {
        let mut state = self.state.lock();
        let before = state.ended;
        while state.is_under_way {
            state.waiting += 1;
            state = self.ended.wait(state);
            state.waiting -= 1;
            if is_enough && state.ended > before {
                let lost = state.failed.filter(|(number, _)| *number > before);
                return Turn::Shipped(lost.map_or(Ok(()), |(_, errno)| Err(errno)));
            }
        }
        state.is_under_way = true;
        Turn::Ship
    }

    /// Begins a ship beside calls, unless one is under way or threads wait to begin one. It counts for no thread that
    /// waits for its end, unless it fails.
    pub(super) fn begin_beside(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting == 0 && !std::mem::replace(&mut state.is_under_way, true)
    }

    /// Ends it.
    pub(super) fn end_beside(&self, result: Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        state.is_under_way = false;
        if let Err(errno) = result {
            // The changes for which threads wait are lost, too.
            state.ended += 1;
            state.failed = Some((state.ended, errno));
        }
        drop(state);
        self.ended.notify_all();
        result
    }

    /// Whether a thread waits for the end of a ship.
    pub(super) fn are_awaited(&self) -> bool {
        self.state.lock().waiting > 0
    }

    pub(super) fn are_under_way(&self) -> bool {
        self.state.lock().is_under_way
    }

    /// Ends the turn of a thread.
    pub(super) fn end(&self, result: Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        state.is_under_way = false;
        state.ended += 1;
        if let Err(errno) = result {
            state.failed = Some((state.ended, errno));
        }
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.ended.notify_all();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread::scope;

    /// Begins a ship, lets another thread come, and ends the ship with a result. Returns what the other one found.
    fn beside(result: Result<()>, is_enough: bool) -> Turn {
        let ships = Ships::default();
        assert!(matches!(ships.begin(true), Turn::Ship));
        scope(|scope| {
            let other = scope.spawn(|| ships.begin(is_enough));
            while ships.state.lock().waiting == 0 {
                std::thread::yield_now();
            }
            let _ = ships.end(result);
            other.join().expect("no panic")
        })
    }

    #[test]
    fn a_thread_that_waits_need_not_ship() {
        assert!(matches!(beside(Ok(()), true), Turn::Shipped(Ok(()))));
    }

    #[test]
    fn a_failure_reaches_the_threads_that_wait() {
        let found = beside(Err(Errno::NODEV), true);
        assert!(matches!(found, Turn::Shipped(Err(Errno::NODEV))));
    }

    #[test]
    fn a_thread_that_has_more_to_ship_does_so_afterwards() {
        assert!(matches!(beside(Ok(()), false), Turn::Ship));
    }

    /// Lets threads wait for a ship beside calls, and ends it with a result. Returns what they have found.
    fn after_beside(result: Result<()>) -> [Turn; 2] {
        let ships = Ships::default();
        assert!(ships.begin_beside() && !ships.begin_beside());
        scope(|scope| {
            let wait = || {
                let turn = ships.begin(true);
                if let Turn::Ship = turn {
                    ships.end(Ok(())).expect("the result is that of the ship");
                }
                turn
            };
            let others = [(); 2].map(|()| scope.spawn(wait));
            while ships.state.lock().waiting < 2 {
                std::thread::yield_now();
            }
            assert!(ships.are_awaited());
            let _ = ships.end_beside(result);
            others.map(|other| other.join().expect("no panic"))
        })
    }

    #[test]
    fn a_ship_beside_calls_counts_for_threads_that_wait_if_it_fails() {
        for turn in after_beside(Err(Errno::NODEV)) {
            assert!(matches!(turn, Turn::Shipped(Err(Errno::NODEV))));
        }
        let [one, other] = after_beside(Ok(()));
        assert!(matches!(one, Turn::Ship) || matches!(other, Turn::Ship));
    }

    #[test]
    fn one_thread_ships_at_a_time() {
        let (ships, under_way) = (Ships::default(), AtomicUsize::new(0));
        scope(|scope| {
            for is_enough in [true, false, true, false] {
                let (ships, under_way) = (&ships, &under_way);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        if let Turn::Ship = ships.begin(is_enough) {
                            assert_eq!(under_way.fetch_add(1, SeqCst), 0);
                            under_way.fetch_sub(1, SeqCst);
                            ships.end(Ok(())).expect("the result is that of the ship");
                        }
                    }
                });
            }
        });
    }
}
