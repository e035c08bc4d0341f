//! The errors of a pool.

use crate::frames::FramesError;
use medium::OpenError;
use std::io;
use std::path::{Path, PathBuf};

/// An error of making, opening or using a pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The pool's file cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The contents are damaged, or not those of a pool.
    #[error("{}: {why}", path.display())]
    Frames {
        /// The file.
        path: PathBuf,
        /// The damage.
        why: FramesError,
    },
    /// The pool has more frames than this system can map.
    #[error(
        "{} has {frames} frames, and this system maps {most}: set vm.max_map_count to {needed} \
         (sysctl)", path.display()
    )]
    TooManyFrames {
        /// The file.
        path: PathBuf,
        /// The number of its frames.
        frames: u32,
        /// The largest possible number.
        most: u64,
        /// The limit of mappings that the pool needs.
        needed: u64,
    },
    /// The system does not report page faults to this user.
    #[error(
        "{}: pages cannot be moved without userfaultfd ({source}): it needs root, access to \
         /dev/userfaultfd, or vm.unprivileged_userfaultfd=1", path.display()
    )]
    NoFaults {
        /// The pool's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {doing} the pool {}: {source}", path.display())]
    System {
        /// The failed action.
        doing: &'static str,
        /// The pool's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl PoolError {
    pub(crate) fn of(path: &Path, why: FramesError) -> Self {
        let path = path.to_owned();
        Self::Frames { path, why }
    }
}
