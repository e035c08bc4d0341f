//! Why an image could not be mounted or unmounted.

use crate::FormatError;
use medium::OpenError;
use medium::block::BlockError;
use patch::journal::JournalError;
use patch::partition::PartitionError;
use patch::stack::BuildError;

/// Why an image could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The image, or the log's file or device, cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stack names a partition that is not there.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A defect of the image, in the format's words.
    #[error(transparent)]
    Image(Box<dyn std::error::Error + Send + Sync>),
    /// A failure of the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The stack names another format.
    #[error("the format '{found}' is not one of {expected}")]
    Format {
        /// The name in the stack.
        found: String,
        /// The format that mounts it.
        expected: &'static str,
    },
    /// The image needs a log that the stack does not name.
    #[error(
        "its log is on another device; name the log: mount with journal(..., external=PATH), fsck with -j PATH"
    )]
    LogElsewhere,
    /// The stack has a device that neither the file system nor the log is on.
    #[error("nothing uses device {0} below the cache; journal(..., log={0}) puts the log there")]
    Unused(usize),
    /// An image with a log inside, and a stack with one outside.
    #[error("it has an internal journal; use journal(..., internal)")]
    LogInside,
    /// A journal does not fit into what is free.
    #[error(
        "a journal of {blocks} blocks does not fit into {free} free ones; make the image larger, or put the log elsewhere with journal(..., external=PATH)"
    )]
    NoRoom {
        /// Blocks of the journal.
        blocks: u64,
        /// Free blocks.
        free: u64,
    },
    /// The external log cannot be used.
    #[error("{device} {what}")]
    ExternalLog {
        /// Its file or device.
        device: String,
        /// The defect.
        what: &'static str,
    },
}

impl MountError {
    /// Wraps a defect of an image.
    pub fn image(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Image(error.into())
    }
}

impl From<BuildError> for MountError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Open(error) => Self::Open(error),
            BuildError::Journal(error) => Self::Journal(error),
            BuildError::Partition(error) => Self::Partition(error),
        }
    }
}

impl From<BlockError> for MountError {
    fn from(error: BlockError) -> Self {
        Self::image(error)
    }
}

impl From<FormatError> for MountError {
    fn from(error: FormatError) -> Self {
        Self::image(error)
    }
}
