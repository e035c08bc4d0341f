//! Scripts with long names and large numbers.

use super::super::{Op, Script};
use vfs::FileType;

/// Bytes that each name gets. A name then fills several cache lines.
const MORE: usize = 120;

/// Number of each device. All of its bytes differ, and none is zero.
const DEVICE: u32 = 0xfedc_ba98;

/// The same script with long names, and with character devices in place of FIFOs.
pub fn stretched(script: &Script) -> Script {
    let mut ops = script.ops.clone();
    for op in &mut ops {
        if let Op::Mknod { kind, rdev, .. } = op
            && *kind == FileType::Fifo
        {
            (*kind, *rdev) = (FileType::CharDevice, DEVICE);
        }
        for path in paths(op).into_iter().flatten() {
            *path = long(path);
        }
    }
    ops.into()
}

/// The same path with long names. The root and handles stay.
fn long(path: &str) -> String {
    let long = |name: &str| match name.is_empty() || name.starts_with('@') {
        true => name.to_string(),
        false => format!("{name}{}", "-".repeat(MORE)),
    };
    path.split('/').map(long).collect::<Vec<_>>().join("/")
}

/// The paths that an operation resolves.
fn paths(op: &mut Op) -> [Option<&mut String>; 2] {
    match op {
        Op::Link { from, to } | Op::Rename { from, to, .. } => [Some(from), Some(to)],
        Op::Tmpfile { dir, .. } => [Some(dir), None],
        Op::Create { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Mknod { path, .. }
        | Op::Symlink { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Fallocate { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::Chmod { path, .. }
        | Op::Chown { path, .. }
        | Op::Utimens { path, .. }
        | Op::Fsync { path, .. }
        | Op::Fsyncdir { path }
        | Op::Open { path, .. } => [Some(path), None],
        Op::Sync
        | Op::Barrier
        | Op::Group { .. }
        | Op::Depend { .. }
        | Op::Engage { .. }
        | Op::Disengage { .. }
        | Op::SyncGroup { .. }
        | Op::CloseGroup { .. }
        | Op::Close { .. } => [None, None],
    }
}
