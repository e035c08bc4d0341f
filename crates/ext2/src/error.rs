//! What making, opening and examining a file system can fail with.

use blockfs::FormatError;
use medium::block::BlockError;

/// Why an image could not be made, opened or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// There is no ext2 here.
    #[error("not an ext2 file system (no ext2 signature in the superblock)")]
    NotExt2,
    /// Who does not know these must not touch the image. Names, separated by commas.
    #[error("features that this program does not know: {0}")]
    Features(String),
    /// A structure breaks the format.
    #[error("{0}; run fsck for a full report")]
    Corrupt(String),
    /// Who does not know these must not write to the image. Names, separated by commas.
    #[error(
        "the image can only be read, because of features that this program does not know: {0}; mount it with -o ro"
    )]
    OnlyReadable(String),
    /// There is a journal with changes that are not in place yet.
    #[error("the image's journal must be replayed first: run e2fsck on it")]
    NeedsReplay,
    /// The store that the image is in has blocks of another size.
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
        /// What needs the space.
        what: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// Journals are a feature, and revision 0 has none.
    #[error("revision 0 of ext2 has no place for an internal journal")]
    Revision0,
    /// An option, or a combination of them, that the format does not take.
    #[error("{0}")]
    Option(String),
}

impl From<patch::StoreError> for Error {
    fn from(error: patch::StoreError) -> Self {
        Self::Step(error.into())
    }
}
