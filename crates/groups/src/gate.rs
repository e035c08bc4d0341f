//! The calls that are under way in a group, and its seal.

use parking_lot::{Condvar, Mutex};

/// Counts the calls inside a group until it is sealed.
///
/// A call never waits here, so calls that are inside several groups cannot wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_sealed: bool,
    calls: usize,
}

impl Gate {
    /// Counts a call until the result is dropped. `None` if the group is sealed.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let mut state = self.state.lock();
        if state.is_sealed {
            return None;
        }
        state.calls += 1;
        Some(Inside(self))
    }

    /// Lets no further call in, and waits for those inside.
    pub(crate) fn seal(&self) {
        let mut state = self.state.lock();
        state.is_sealed = true;
        while state.calls > 0 {
            self.left.wait(&mut state);
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.state.lock().is_sealed
    }
}

/// A call inside a group.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.calls -= 1;
        if state.calls == 0 {
            self.0.left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn a_seal_waits_for_the_calls_inside() {
        let (gate, left) = (Gate::default(), AtomicBool::new(false));
        let inside = gate.enter().unwrap();
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| {
                gate.seal();
                assert!(left.load(SeqCst), "a call is still inside");
            });
            while !gate.is_sealed() {
                std::thread::yield_now();
            }
            assert!(gate.enter().is_none());
            left.store(true, SeqCst);
            drop(inside);
            sealing.join().unwrap();
        });
    }
}
