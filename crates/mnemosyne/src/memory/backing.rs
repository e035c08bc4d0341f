//! Where the bytes of regions come from.

use super::Region;
use super::names::POOL_NOTE;
use crate::seeded::{Bug, hit};
use medium::{ArenaError, LINE_BYTES, MediumError, OpenError, Pmem, Rule};
use paging::PoolError;
use std::path::PathBuf;

/// Why a region's bytes are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// A file cannot be made, opened or removed.
    #[error(transparent)]
    File(#[from] OpenError),
    /// There are no addresses for it.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The pool of pages cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// It is not the pool of these regions.
    #[error(transparent)]
    Mismatch(#[from] MismatchError),
    /// The machine went down while the directory was open with durability `process`.
    #[error(
        "{} was in use with durability 'process' when the machine went down: what was stored last \
         may be missing, or there in part; run 'selvedge heap check', and accept the loss or \
         restore the directory from a copy", directory.display()
    )]
    Crashed {
        /// The directory.
        directory: PathBuf,
    },
    /// Something that is not ours has the name of a file that is needed.
    #[error(
        "{} is in the way: it is no file of durable memory; move it away, or use a directory of \
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
    /// The pool is not there.
    #[error(
        "pages of {} are in a pool, and {} is missing: bring it back, or say where the pool is; \
         without it they are lost", directory.display(), file.display()
    )]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// What is missing of its pool.
        file: PathBuf,
    },
    /// There is another one in its place.
    #[error(
        "pages of {} are in the pool {wanted:016x}, and {} is the pool {found:016x}: say where \
         the right one is", directory.display(), pool.display()
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// The other pool.
        pool: PathBuf,
        /// The id of its own.
        wanted: u64,
        /// The id of the other.
        found: u64,
    },
    /// The pool is another directory's.
    #[error(
        "{} is the pool of another directory than {}: say another place for a new one",
        pool.display(), directory.display()
    )]
    Taken {
        /// The directory.
        directory: PathBuf,
        /// The pool.
        pool: PathBuf,
    },
    /// The directory was made without a pool, or does not know any more of which.
    #[error(
        "{} has durable memory, and no file '{POOL_NOTE}' that names a pool: open it without one, or \
         bring the file back", directory.display()
    )]
    Unpooled {
        /// The directory.
        directory: PathBuf,
    },
    /// What names the pool is damaged.
    #[error(
        "{} does not name a pool: it is damaged, or somebody else's; bring the right one back, or \
         use another directory", file.display()
    )]
    Note {
        /// The file.
        file: PathBuf,
    },
}

/// Gives regions their bytes, at places of one persistent memory that others pick.
///
/// Whether a region's bytes are there is as durable as this says at return; which of them
/// are meant to be there, the region table knows.
pub trait Backing: Send + Sync {
    /// The memory in which all of them are.
    type Pmem: Pmem + Clone;

    /// The memory.
    fn pmem(&self) -> &Self::Pmem;

    /// Whether a region can have this slot, as far as this knows: nothing of somebody else's is
    /// in its place.
    ///
    /// # Errors
    /// [`BackingError`].
    fn is_free(&self, _slot: u64) -> Result<bool, BackingError> {
        Ok(true)
    }

    /// Makes the bytes of a region: zeros. Durable at return.
    ///
    /// # Errors
    /// [`BackingError`]; what was made is to be [removed](Self::remove), unless it is
    /// [`InTheWay`](BackingError::InTheWay).
    fn create(&self, region: &Region) -> Result<(), BackingError>;

    /// Brings the region's bytes in place. `false`: there are none, or not so many.
    ///
    /// # Errors
    /// [`BackingError`].
    fn open(&self, region: &Region) -> Result<bool, BackingError>;

    /// What errors call the place of the region's bytes.
    fn describe(&self, region: &Region) -> String {
        format!("region {}", region.slot)
    }

    /// Takes the region's bytes away, if they are there. Durable at return.
    ///
    /// # Errors
    /// [`BackingError`].
    fn remove(&self, region: &Region) -> Result<(), BackingError>;

    /// Checks that what regions share, such as a pool of pages, has nothing of others than these.
    ///
    /// # Errors
    /// [`BackingError`].
    fn no_others(&self, _regions: &[Region]) -> Result<(), BackingError> {
        Ok(())
    }
}

/// Regions in one piece of memory, as large as it is.
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
        // The table says next that it is there.
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
