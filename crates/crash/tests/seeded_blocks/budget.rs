//! CPU time in which a seeded bug must be found, which does not depend on the load of the machine.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time in which a bug must be found.
pub const BUDGET: Duration = Duration::from_secs(60);

/// CPU time of this thread or process so far.
pub fn used(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
