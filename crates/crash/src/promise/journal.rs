//! A journal of metadata. The metadata after a crash is that after some call, no older than the
//! durable metadata. An fsync covers the last change of its file's metadata. By order it covers
//! every metadata change before that.
//!
//! - J1. Metadata, times and generations are those of one state.
//! - J2. A file that no call has changed since it was synced holds the synced data.
//! - J3. Where data are written before the metadata that points to them, they are no older than
//!   the metadata, and belong to the same file.

use super::soft::bytes_fit;
use super::{Data, Window};
use crate::past::{handles_of, same_but_contents};
use crate::world::{Inode, Pieces, World};
use oracle::snapshot::Snapshot;
use vfs::FileSystem;

pub(super) fn judge(
    window: &Window<'_>,
    fs: &dyn FileSystem,
    data: Data,
) -> Result<Snapshot, String> {
    let seen = Snapshot::take(fs).map_err(|e| format!("cannot be read: {e}"))?;
    let (world, handles) = (World::read(fs)?, handles_of(fs, &seen)?);
    let mut wrong = None;
    for state in (window.floors.all..=window.newest).rev() {
        let then = &window.past[state].expected;
        let same = same_but_contents(&seen, &then.snapshot) && seen.has_same_times(&then.snapshot);
        if !same || handles != then.handles {
            continue;
        }
        match data_fits(window, &world, state, data) {
            Ok(()) => return Ok(seen),
            Err(e) => wrong = Some(e),
        }
    }
    Err(wrong.unwrap_or_else(|| differs(window, &seen)))
}

/// Demands that data are those of `state`, or newer.
fn data_fits(window: &Window<'_>, world: &World, state: usize, data: Data) -> Result<(), String> {
    if data == Data::Nothing {
        return synced_data_fits(window, world);
    }
    for (ino, inode) in &world.nodes {
        let file = window.past[state].known.files.get(ino);
        // An fdatasync waits for data, and not for the metadata of an overwrite.
        let synced = file.and_then(|file| window.floors.files.get(file));
        let oldest = synced.map_or(state, |own| state.max(*own));
        let since = window.past[oldest..=window.newest]
            .iter()
            .map(|past| &past.known);
        let same = since.filter(|known| known.files.get(ino) == file);
        let then: Vec<&Pieces> = same.map(|known| &known.world.nodes[ino].data).collect();
        bytes_fit(&inode.data, &then, false).map_err(|e| format!("inode {ino}: {e}"))?;
    }
    Ok(())
}

/// J2.
fn synced_data_fits(window: &Window<'_>, world: &World) -> Result<(), String> {
    for (ino, inode) in &world.nodes {
        let file = window.past[window.newest].known.files.get(ino);
        let synced = file.and_then(|file| window.floors.files.get(file));
        let floor = synced.map_or(window.floors.data, |own| window.floors.data.max(*own));
        let since = window.past[floor..=window.newest].iter();
        let mut then = since.map(|past| {
            let known = &past.known;
            let same = known.files.get(ino) == file;
            known.world.nodes.get(ino).filter(|_| same)
        });
        let Some(Some(first)) = then.next() else {
            continue;
        };
        // A call may store zeros over zeros: the time changes, and the data do not.
        let same = |now: &Inode| now.data == first.data && now.attr.ctime == first.attr.ctime;
        let is_first = |now: Option<&Inode>| now.is_some_and(same);
        if then.all(is_first) {
            bytes_fit(&inode.data, &[&first.data], false)
                .map_err(|e| format!("inode {ino}, which was synced: {e}"))?;
        }
    }
    Ok(())
}

fn differs(window: &Window<'_>, seen: &Snapshot) -> String {
    let from = |state: usize| {
        let then = &window.past[state].expected.snapshot;
        let lines = then.diff(seen);
        let lines = match lines.is_empty() {
            true => then.diff_times(seen),
            false => lines,
        };
        lines.join("; ")
    };
    format!(
        "the metadata after no operation since the last sync: from that: {}; from the newest: {}",
        from(window.floors.all),
        from(window.newest)
    )
}
