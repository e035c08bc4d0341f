//! The explorer's entries for block devices.

use crate::explore::{explore_all, explore_text, replay_on};
use crate::media::blocks::StateDevice;
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
    explore_all::<StateDevice>(system, options, progress)
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
    explore_text::<StateDevice>(system, script, options)
}

/// As [`crate::replay`].
///
/// # Errors
/// As [`crate::replay`].
pub fn replay(system: &BlockSystem, id: &FailureId) -> Result<Option<FailureReport>, String> {
    replay_on::<StateDevice>(system, id, true)
}

/// As [`crate::revisit`].
///
/// # Errors
/// As [`crate::revisit`].
pub fn revisit(system: &BlockSystem, id: &FailureId) -> Result<Option<FailureReport>, String> {
    replay_on::<StateDevice>(system, id, false)
}
