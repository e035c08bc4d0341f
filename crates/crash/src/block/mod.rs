//! The explorer on block devices.
//!
//! Scripts, threads, ids, shrinking and the walk over crash states are those of memory;
//! new are the medium (`device`), what may be found on it (`judge`, with the rules of
//! journals and, in `soft`, of soft updates), and when blocks leave the cache
//! ([`Schedule`]).
//!
//! What is demanded follows from the declared [`Guarantees`](vfs::Guarantees): whoever says
//! that metadata is atomic and ordered must be clean and equal to the state after some
//! operation; all others must keep the rules of soft updates. (Those who promise nothing do
//! not: the control that shows that the explorer sees anything.)

mod device;
mod judge;
mod life;
mod schedule;
#[cfg(test)]
mod selftest;
mod soft;
#[cfg(test)]
mod toy;
mod trial;

pub use schedule::Schedule;

use crate::explore::{explore_all, explore_text, replay_on};
use crate::{BlockSystem, FailureId, FailureReport, Options, Outcome, Progress};

/// As [`crate::explore`].
///
/// # Errors
/// As [`crate::explore`].
pub fn explore(
    system: &BlockSystem,
    options: &Options,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Outcome, String> {
    explore_all(system, options, progress)
}

/// As [`crate::explore_script`]; the first schedule in which the script fails counts.
///
/// # Errors
/// As [`crate::explore_script`].
pub fn explore_script(
    system: &BlockSystem,
    script: &str,
    options: &Options,
) -> Result<Option<FailureReport>, String> {
    explore_text(system, script, options)
}

/// As [`crate::replay`].
///
/// # Errors
/// As [`crate::replay`].
pub fn replay(system: &BlockSystem, id: &FailureId) -> Result<Option<FailureReport>, String> {
    replay_on(system, id)
}
