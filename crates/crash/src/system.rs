//! What the explorer explores.

use medium::Pmem;

/// A file system on persistent memory, in one configuration; the engines implement it.
pub type PmemSystem = dyn vfs::System<dyn Pmem>;
