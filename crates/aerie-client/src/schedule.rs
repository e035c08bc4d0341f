//! When the thread of a client ships.

use std::time::Duration;
use vfs::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    ships: bool,
    stops: bool,
}

/// The next ship of the thread, and its end.
#[derive(Default)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

impl Schedule {
    /// Waits for a time, or until there is something to ship. Returns whether the thread goes on.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.ships && !state.stops {
            state = self.changed.wait_for(state, time);
        }
        state.ships = false;
        !state.stops
    }

    /// Has the thread ship.
    pub(crate) fn ship_soon(&self) {
        self.state.lock().ships = true;
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stops = true;
        self.changed.notify_all();
    }
}
