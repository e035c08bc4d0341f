//! The errors of a medium.

/// An error of the medium itself, as opposed to one of its contents.
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
    /// The line cannot be read: a media error, an injected fault, or a truncated file under the
    /// mapping.
    #[error(
        "the medium cannot read the line at byte {off}: a media error, or its file was cut short \
         or found no room on its disk"
    )]
    Unreadable {
        /// First byte of the line.
        off: u64,
    },
    /// The process may not read the page. Another process may do so for it.
    #[error("this process may not read byte {off} of the medium")]
    Denied {
        /// A byte of the page.
        off: u64,
    },
    /// Stores could not be made durable.
    #[error("the medium could not make stores durable (errno {errno})")]
    NotDurable {
        /// The system's error number.
        errno: i32,
    },
    /// The power was cut (simulated); every call fails from now on.
    #[error("the power of the simulated medium was cut")]
    PowerCut,
}
