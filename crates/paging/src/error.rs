//! Why a pool cannot be had.

use crate::frames::FramesError;
use medium::OpenError;
use std::io;
use std::path::{Path, PathBuf};

/// A pool could not be made, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Its file cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What is in it is wrong.
    #[error("{}: {why}", path.display())]
    Frames {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: FramesError,
    },
    /// It has more frames than this system maps.
    #[error(
        "{} has {frames} frames, and this system maps {most}: set vm.max_map_count to {needed} \
         (sysctl)", path.display()
    )]
    TooManyFrames {
        /// The file.
        path: PathBuf,
        /// How many it has.
        frames: u32,
        /// How many there can be.
        most: u64,
        /// The limit of mappings that it needs.
        needed: u64,
    },
    /// The system tells this user no page faults.
    #[error(
        "{}: pages cannot be moved without userfaultfd ({source}): it needs root, access to \
         /dev/userfaultfd, or vm.unprivileged_userfaultfd=1", path.display()
    )]
    NoFaults {
        /// The pool's file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refused.
    #[error("cannot {doing} the pool {}: {source}", path.display())]
    System {
        /// What was being done.
        doing: &'static str,
        /// With which pool.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl PoolError {
    pub(crate) fn of(path: &Path, why: FramesError) -> Self {
        let path = path.to_owned();
        Self::Frames { path, why }
    }
}
