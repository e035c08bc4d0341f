//! Calls are atomic and ordered. Callers see the state after some call, no older than the
//! durable state. Where calls since a checkpoint are one unit, that call is the last one before
//! a checkpoint.
//!
//! With durability at return two states are allowed during a call, and one after it. Durability
//! at fsync is that of a full journal: an fsync covers the last change of its file, and by order
//! every call before that. An `fdatasync` covers the last change of more than times.

use super::{Kind, Window};
use crate::past::{Expected, handles_of, same_content};
use oracle::snapshot::{Snapshot, Times};
use vfs::FileSystem;

/// Demands that callers see an allowed state, times and inode numbers included.
pub(super) fn judge(window: &Window<'_>, fs: &dyn FileSystem) -> Result<Snapshot, String> {
    let seen = Snapshot::take(fs).map_err(|e| format!("cannot be read: {e}"))?;
    let allowed = allows(window, &seen)?;
    let handles = handles_of(fs, &seen)?;
    if allowed.iter().any(|e| e.handles == handles) {
        return Ok(seen);
    }
    Err("an inode has another number or generation than it had".to_string())
}

/// The allowed states that equal `seen`.
///
/// # Errors
/// `seen` equals no allowed state.
pub(super) fn allows<'a>(
    window: &Window<'a>,
    seen: &Snapshot,
) -> Result<Vec<&'a Expected>, String> {
    let states = states(window);
    let same = |e: &&&Expected| same_content(seen, &e.snapshot);
    let matching: Vec<&Expected> = states.iter().filter(same).copied().collect();
    let Some(first) = matching.first() else {
        return Err(describe(window, &states, seen));
    };
    let lines = || first.snapshot.diff_times(seen).join("; ");
    let is_timed = |e: &&Expected| times_allowed(window, &states, seen, e);
    let timed: Vec<&Expected> = matching.iter().copied().filter(is_timed).collect();
    if timed.is_empty() {
        return Err(format!("times are neither old nor new: {}", lines()));
    }
    Ok(timed)
}

fn states<'a>(window: &Window<'a>) -> Vec<&'a Expected> {
    let oldest = window.floors.all;
    let is_checkpoint =
        |state: &usize| *state == 0 || *state == oldest || window.written.contains(state);
    let is_allowed =
        |state: &usize| window.promise.kind != Kind::Checkpoint || is_checkpoint(state);
    let states = (oldest..=window.newest).filter(is_allowed);
    states.map(|state| &window.past[state].expected).collect()
}

/// Whether the times in `seen` are allowed. Where times are not atomic, each is that of some
/// allowed state.
fn times_allowed(
    window: &Window<'_>,
    states: &[&Expected],
    seen: &Snapshot,
    matched: &Expected,
) -> bool {
    if seen.has_same_times(&matched.snapshot) {
        return true;
    }
    // Calls that returned have their own times.
    if window.promise.times_atomic || states.len() == 1 {
        return false;
    }
    let paths = seen.iter().zip(matched.snapshot.iter());
    paths.zip(&matched.inos).all(|(((_, _, seen), own), ino)| {
        let mut all = vec![*own.2];
        for state in states {
            // An open inode without a name may have the time of the call.
            let unseen = Times {
                mtime: window.now,
                ctime: window.now,
                ..*own.2
            };
            all.push(state.times_of(*ino).copied().unwrap_or(unseen));
        }
        all.iter().any(|t| t.atime == seen.atime)
            && all.iter().any(|t| t.mtime == seen.mtime)
            && all.iter().any(|t| t.ctime == seen.ctime)
    })
}

fn describe(window: &Window<'_>, states: &[&Expected], seen: &Snapshot) -> String {
    let against = |e: &Expected| e.snapshot.diff(seen).join("; ");
    let (old, new) = match states {
        [] => return "no state is allowed".to_string(),
        [only] if window.promise.at_return => {
            return format!("what returned is not there: {}", against(only));
        }
        [only] => (against(only), against(only)),
        [old, .., new] => (against(old), against(new)),
    };
    let what = match window.promise.kind {
        _ if window.promise.at_return => "neither old nor new",
        Kind::Checkpoint => "the state of no checkpoint since the last sync",
        Kind::Soft | Kind::Journal(_) | Kind::Prefix => {
            "the state after no operation since the last sync"
        }
    };
    format!("{what}: from old: {old}; from new: {new}")
}
