//! What a medium can fail with.

/// An error of the medium itself, as opposed to one of what is stored on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    /// An access outside the region or at an offset that is not a multiple of 8.
    #[error("access to {len} bytes at byte {off} is outside the medium or misaligned")]
    OutOfRange {
        /// First byte of the access.
        off: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The line cannot be read (a media error, an injected fault, or the file under
    /// the mapping was truncated).
    #[error(
        "the medium cannot read the line at byte {off}: a media error, or its file was cut short \
         or found no room on its disk"
    )]
    Unreadable {
        /// First byte of the line.
        off: u64,
    },
    /// What was stored could not be made durable (`errno` from the system).
    #[error("the medium could not make stores durable (errno {errno})")]
    NotDurable {
        /// The system's error number.
        errno: i32,
    },
    /// The power was cut (simulated); nothing is accepted any more.
    #[error("the power of the simulated medium was cut")]
    PowerCut,
}
