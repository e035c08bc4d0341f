//! Sources of time stamps.

use crate::Timestamp;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A source of time stamps. File systems get one when they are opened, so that crash tests and
/// byte counts repeat exactly.
pub trait Clock: Send + Sync {
    /// The present time.
    fn now(&self) -> Timestamp;
}

/// The real-time clock of the system, read to the last tick (a few milliseconds), as the kernel
/// stamps inodes. Reads are cheap, and changes within a tick share a stamp.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Timestamp::from_parts(now.tv_sec, now.tv_nsec as u32)
    }
}

/// A clock that moves by a fixed step at each reading, or when it is set.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    step: i64,
}

impl ManualClock {
    /// Starts at `start`; each reading returns the time and then advances it by
    /// `step_ns` nanoseconds.
    pub fn new(start: Timestamp, step_ns: i64) -> Self {
        Self {
            now: AtomicI64::new(start.0),
            step: step_ns,
        }
    }

    /// Moves the clock to `at`.
    pub fn set(&self, at: Timestamp) {
        self.now.store(at.0, Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.fetch_add(self.step, Relaxed))
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}
