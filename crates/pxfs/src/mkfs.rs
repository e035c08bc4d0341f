//! Makes an empty file system.

use crate::inode::halves;
use aerie_objects::Result;
use medium::Pmem;
use vfs::{FileType, Timestamp};

/// Options of [`mkfs`].
#[derive(Debug, Clone, Default)]
pub struct MkfsOptions {
    /// UUID. The hash of names depends on it, so it should be random.
    pub uuid: [u8; 16],
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Time of all stamps.
    pub now: Timestamp,
    /// Number of redo logs: as many batches of clients are applied at a time. By default, it depends on the size.
    pub logs: Option<u64>,
}

/// Makes an empty file system that takes the whole memory. The mode of the root directory is 0755. A
/// crash on the way leaves none.
///
/// # Errors
/// The memory is too small or fails.
pub fn mkfs<P: Pmem>(memory: &P, options: &MkfsOptions) -> Result<()> {
    let uuid = u128::from_le_bytes(options.uuid);
    let now = options.now.0 as u64;
    let mode = FileType::Directory.mode_bits() | 0o755;
    let (owner, links) = (halves(options.uid, options.gid), halves(2, 0));
    let root_words = [mode.into(), owner, links, now, now, now];
    match options.logs {
        Some(logs) => aerie_objects::format_logs(memory, uuid, &root_words, logs),
        None => aerie_objects::format_with(memory, uuid, &root_words),
    }
}
