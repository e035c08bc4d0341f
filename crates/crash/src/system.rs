//! Systems under test, and their failures.

use crate::id::Spot;
use medium::Pmem;
use medium::block::BlockDevice;

/// A file system on persistent memory, in one configuration; the engines implement it.
pub type PmemSystem = dyn vfs::System<dyn Pmem>;

/// A file system on a block device, in one configuration; the engines implement it.
pub type BlockSystem = dyn vfs::BlockSystem<dyn BlockDevice>;

/// A failure within a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub op: usize,
    pub spot: Spot,
    pub what: String,
}
