//! Changes of who may read files, on a protected store beside an image. On a protected store the pages of a file
//! move to those of other readers, and so do all pages below a directory.
//!
//! Each change is a call and the sync that ships it, since the service moves the pages.

use super::Row;
use crate::error::Result;
use crate::singles::timed;
use crate::tree::Tree;
use std::ffi::{CStr, CString};

/// Files in the directory, and bytes of each.
const FILES: usize = 1000;
const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
/// Bytes of a write.
const WRITE: usize = 1 << 20;
/// Changes of a kind in a round.
const CHANGES: u32 = 4;

/// Bytes of an image for the files.
pub(super) const IMAGE_BYTES: u64 = 64 << 20;

/// The rows: the name of each, and of its file; the mode without rights of others, and that with them.
const KINDS: [(&str, &CStr, [u32; 2]); 3] = [
    ("chmod and sync, 4 KiB", c"small", [0o600, 0o644]),
    ("chmod and sync, 1 MiB", c"large", [0o600, 0o644]),
    (
        "chmod and sync, directory of 1,000 files",
        c"dir",
        [0o700, 0o755],
    ),
];

/// Makes the files.
fn prepare(tree: &dyn Tree) -> Result<()> {
    for (name, bytes) in [(c"small", SMALL), (c"large", LARGE)] {
        tree.create(name)?.write_bytes(0, bytes, WRITE)?;
    }
    tree.mkdir(c"dir")?;
    for n in 0..FILES {
        let name = CString::new(format!("dir/{n}")).unwrap_or_default();
        tree.create(&name)?.write_bytes(0, SMALL, WRITE)?;
    }
    tree.sync()
}

/// Times of changes of mode, each of which takes or gives back the right of others.
pub(super) fn measure(target: &str, tree: &dyn Tree, rounds: u32) -> Result<Vec<Row>> {
    prepare(tree)?;
    let mut rows = Vec::new();
    for (op, name, modes) in KINDS {
        let mut times = Vec::new();
        let changes = (0..CHANGES * rounds).map(|n| modes[n as usize % 2]);
        timed(changes, &mut times, |mode| {
            tree.chmod(name, mode)?;
            tree.sync()
        })?;
        let rate = times.len() as f64 / (times.iter().sum::<f64>() / 1e9).max(1e-9);
        rows.push(Row::of(target, op, [1, 1], times, rate));
    }
    Ok(rows)
}

/// Number of rows for each target.
#[cfg(test)]
pub(super) const COUNT: usize = KINDS.len();
