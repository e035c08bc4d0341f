//! Where the bytes of regions come from.

use medium::{ArenaError, LINE_BYTES, MediumError, OpenError, Pmem};

/// Why a region's bytes are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// A file cannot be made, opened or removed.
    #[error(transparent)]
    File(#[from] OpenError),
    /// There are no addresses for it.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The memory failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
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

    /// Makes the bytes of the region in `slot` of the table: zeros. Durable at return.
    ///
    /// # Errors
    /// [`BackingError`]; what was made is to be [removed](Self::remove).
    fn create(&self, slot: u64, start: u64, len: u64) -> Result<(), BackingError>;

    /// Brings the region's bytes in place. `false`: there are none, or not so many.
    ///
    /// # Errors
    /// [`BackingError`].
    fn open(&self, slot: u64, start: u64, len: u64) -> Result<bool, BackingError>;

    /// What errors call the place of the region's bytes.
    fn describe(&self, slot: u64) -> String {
        format!("region {slot}")
    }

    /// Takes the region's bytes away, if they are there. Durable at return.
    ///
    /// # Errors
    /// [`BackingError`].
    fn remove(&self, slot: u64, start: u64) -> Result<(), BackingError>;
}

/// Regions in one piece of memory, as large as it is.
#[derive(Debug, Clone)]
pub struct Flat<P>(pub P);

impl<P: Pmem + Clone> Backing for Flat<P> {
    type Pmem = P;

    fn pmem(&self) -> &P {
        &self.0
    }

    fn create(&self, _slot: u64, start: u64, len: u64) -> Result<(), BackingError> {
        for line in (start..start + len).step_by(LINE_BYTES as usize) {
            self.0.store_nt(line, &[0; LINE_BYTES as usize]);
        }
        Ok(self.0.fence()?)
    }

    fn open(&self, _slot: u64, start: u64, len: u64) -> Result<bool, BackingError> {
        Ok(start
            .checked_add(len)
            .is_some_and(|end| end <= self.0.len()))
    }

    fn remove(&self, _slot: u64, _start: u64) -> Result<(), BackingError> {
        Ok(())
    }
}
