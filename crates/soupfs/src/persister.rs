//! The thread of the persister, and the times of its rounds.
//!
//! A change that misses a round waits for the next one, and then for its end. So rounds begin twice in
//! the time of the bound: no change that is older is lost, if a round takes at most half of that time.

use crate::pressure::Pressure;
use crate::seeded::{Bug, hit};
use crate::volume::Volume;
use medium::Pmem;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The time in which a persister lives. A harness has its own.
pub trait Timer {
    /// The present time.
    fn now(&self) -> Instant;
    /// Waits until a round is due, at the latest at `until`. Returns false if there is to be none.
    fn wait(&self, until: Instant) -> bool;
}

impl Timer for Pressure {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wait(&self, until: Instant) -> bool {
        Pressure::wait(self, until)
    }
}

impl<P: Pmem> Volume<P> {
    /// Runs rounds that keep the bound, until the timer ends them.
    pub(crate) fn run_rounds(&self, bound: Duration, timer: &dyn Timer) {
        let period = match hit(Bug::OneRoundPerBound) {
            true => bound,
            false => bound / 2,
        };
        let mut next = timer.now() + period;
        while timer.wait(next) {
            next = timer.now() + period;
            if let Err(e) = self.persist() {
                e.errno(); // logged; the next fsync fails
            }
        }
    }
}

/// The thread that persists.
pub(crate) struct Persister<P: Pmem> {
    thread: Option<JoinHandle<()>>,
    core: Arc<Volume<P>>,
}

impl<P: Pmem + 'static> Persister<P> {
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(core: &Arc<Volume<P>>, bound: Duration) -> std::io::Result<Self> {
        let shared = Arc::clone(core);
        let run = move || shared.run_rounds(bound, &shared.pressure);
        let thread = Builder::new().name("persister".into()).spawn(run)?;
        Ok(Self {
            thread: Some(thread),
            core: Arc::clone(core),
        })
    }
}

impl<P: Pmem> Drop for Persister<P> {
    fn drop(&mut self) {
        self.core.pressure.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
