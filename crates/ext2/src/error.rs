//! Errors of making, opening and examining a file system.

use blockfs::FormatError;
use medium::block::BlockError;

/// The reason why an image could not be made, opened or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// The device does not hold an ext2 file system.
    #[error("not an ext2 file system (no ext2 signature in the superblock)")]
    NotExt2,
    /// The image has incompatible features that this program does not support. The text is their
    /// names, separated by commas.
    #[error("unknown features: {0}")]
    Features(String),
    /// A structure breaks the format.
    #[error("{0}; run fsck for a full report")]
    Corrupt(String),
    /// The image has read-only compatible features that this program does not support. The text is
    /// their names, separated by commas.
    #[error("the image can only be read, because of unknown features: {0}; mount it with -o ro")]
    OnlyReadable(String),
    /// The journal has changes that are not in place yet.
    #[error("the image's journal must be replayed first: run e2fsck on it")]
    NeedsReplay,
    /// The store of the image has blocks of another size.
    #[error("the image has blocks of {image} bytes, its store of {store}")]
    BlockSize {
        /// Bytes in a block of the image.
        image: u32,
        /// Bytes in a block of the store.
        store: u32,
    },
    /// Storage failed, or a structure is damaged.
    #[error(transparent)]
    Step(#[from] FormatError),
    /// The device is too small, or too large for the block size.
    #[error("{what} needs {need} bytes; the device has {have}")]
    Size {
        /// The structure or option that needs the space.
        what: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes of the device.
        have: u64,
    },
    /// A journal is a feature, and revision 0 has no features.
    #[error("revision 0 of ext2 has no place for an internal journal")]
    Revision0,
    /// The journal is not in inode 8. The number is that of its inode, or 0 if it is on another device.
    #[error(
        "the journal of this file system is {}; only one in inode 8 can be used. e2fsck(8) replays it, and \
         `tune2fs -O ^has_journal` removes it then", place_of_journal(*.0)
    )]
    JournalElsewhere(u32),
    /// The format does not support an option, or a combination of options.
    #[error("{0}")]
    Option(String),
}

fn place_of_journal(inode: u32) -> String {
    match inode {
        0 => "on another device".to_owned(),
        inode => format!("in inode {inode}"),
    }
}

impl From<patch::StoreError> for Error {
    fn from(error: patch::StoreError) -> Self {
        Self::Step(error.into())
    }
}
