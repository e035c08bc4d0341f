//! The policy by which reads update access times.

use crate::{Attr, Timestamp};

/// The policy by which reads update the access time of a file or a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Atime {
    /// Never (`noatime`).
    Never,
    /// When it is not later than the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// At every read (`strictatime`).
    Strict,
}

impl Atime {
    /// Whether a read at `now` of the inode with these attributes updates its access time.
    pub fn is_due(self, attr: &Attr, now: Timestamp) -> bool {
        const DAY_NS: i64 = 24 * 60 * 60 * 1_000_000_000;
        match self {
            Self::Never => false,
            Self::Relative => {
                attr.atime <= attr.mtime
                    || attr.atime <= attr.ctime
                    || now.0.saturating_sub(attr.atime.0) >= DAY_NS
            }
            Self::Strict => attr.atime != now,
        }
    }
}
