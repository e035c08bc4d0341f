//! The provider of the regions' bytes.

use super::Region;
use super::names::POOL_NOTE;
use crate::seeded::{Bug, hit};
use medium::{ArenaError, LINE_BYTES, MediumError, OpenError, Pmem, Rule};
use paging::PoolError;
use std::path::PathBuf;

/// The reason why a region's bytes are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// A file cannot be made, opened or removed.
    #[error(transparent)]
    File(#[from] OpenError),
    /// The addresses of the region are unavailable.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The pool of pages cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The pool does not belong to these regions.
    #[error(transparent)]
    Mismatch(#[from] MismatchError),
    /// The machine went down while the directory was open with durability `process`.
    #[error(
        "{} was in use with durability 'process' when the machine went down: the last stores \
         may be missing or incomplete; run 'selvedge heap check', and accept the loss or \
         restore the directory from a copy", directory.display()
    )]
    Crashed {
        /// The directory.
        directory: PathBuf,
    },
    /// A file of another program has the name of a file that is needed.
    #[error(
        "{} is in the way: it is not a file of durable memory; move it away, or use a directory of \
         its own", file.display()
    )]
    InTheWay {
        /// The other file.
        file: PathBuf,
    },
    /// The memory failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// A directory and a pool do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum MismatchError {
    /// The pool is missing.
    #[error(
        "pages of {} are in a pool, and {} is missing: bring it back, or say where the pool is; \
         without it they are lost", directory.display(), file.display()
    )]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// The missing file of the pool.
        file: PathBuf,
    },
    /// Another pool is at the path.
    #[error(
        "pages of {} are in the pool {wanted:016x}, and {} is the pool {found:016x}: give the path \
         of the right one", directory.display(), pool.display()
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// The other pool.
        pool: PathBuf,
        /// The id of the directory's pool.
        wanted: u64,
        /// The id of the other pool.
        found: u64,
    },
    /// The pool belongs to another directory.
    #[error(
        "{} is the pool of another directory than {}: choose another path for a new one",
        pool.display(), directory.display()
    )]
    Taken {
        /// The directory.
        directory: PathBuf,
        /// The pool.
        pool: PathBuf,
    },
    /// The directory was made without a pool, or the file that names it was lost.
    #[error(
        "{} has durable memory, and no file '{POOL_NOTE}' that names a pool: open it without one, or \
         bring the file back", directory.display()
    )]
    Unpooled {
        /// The directory.
        directory: PathBuf,
    },
    /// The file that names the pool is damaged.
    #[error(
        "{} does not name a pool: it is damaged, or of another program; restore it, or \
         use another directory", file.display()
    )]
    Note {
        /// The file.
        file: PathBuf,
    },
}

/// Provides the bytes of regions, at offsets of one persistent memory.
///
/// A region's bytes are made or removed durably when a call returns. The region table decides which
/// of them belong to a region.
pub trait Backing: Send + Sync {
    /// The memory that has all regions.
    type Pmem: Pmem + Clone;

    /// The memory.
    fn pmem(&self) -> &Self::Pmem;

    /// Whether a region can have this slot: no file of another program uses its name.
    ///
    /// # Errors
    /// [`BackingError`].
    fn is_free(&self, _slot: u64) -> Result<bool, BackingError> {
        Ok(true)
    }

    /// Makes the bytes of a region, all zeros. They are durable when this returns.
    ///
    /// # Errors
    /// [`BackingError`]; then the caller [removes](Self::remove) the bytes, unless it is
    /// [`InTheWay`](BackingError::InTheWay).
    fn create(&self, region: &Region) -> Result<(), BackingError>;

    /// Maps the region's bytes. Returns false if they are missing or too few.
    ///
    /// # Errors
    /// [`BackingError`].
    fn open(&self, region: &Region) -> Result<bool, BackingError>;

    /// The location of the region's bytes, for error messages.
    fn describe(&self, region: &Region) -> String {
        format!("region {}", region.slot)
    }

    /// Removes the region's bytes if they exist. This is durable when it returns.
    ///
    /// # Errors
    /// [`BackingError`].
    fn remove(&self, region: &Region) -> Result<(), BackingError>;

    /// Checks that a shared resource, such as a pool of pages, has only bytes of these regions.
    ///
    /// # Errors
    /// [`BackingError`].
    fn no_others(&self, _regions: &[Region]) -> Result<(), BackingError> {
        Ok(())
    }
}

/// Regions in one memory of fixed size.
#[derive(Debug, Clone)]
pub struct Flat<P>(pub P);

impl<P: Pmem + Clone> Backing for Flat<P> {
    type Pmem = P;

    fn pmem(&self) -> &P {
        &self.0
    }

    fn create(&self, region: &Region) -> Result<(), BackingError> {
        for line in (region.start..region.start + region.len).step_by(LINE_BYTES as usize) {
            self.0.store_nt(line, &[0; LINE_BYTES as usize]);
        }
        // The region table names the region next.
        if !hit(Bug::UnfencedRegion) {
            self.0.fence(Rule::InitialiseBeforePoint)?;
        }
        Ok(())
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        Ok(region
            .start
            .checked_add(region.len)
            .is_some_and(|end| end <= self.0.len()))
    }

    fn remove(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }
}
