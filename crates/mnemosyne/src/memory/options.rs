//! Options of a directory of regions.

use super::Layout;
use medium::MapOptions;
use std::path::PathBuf;

/// Options for opening a directory.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// The address of the first byte, a multiple of 2 MiB, or `None` for any free range.
    pub base: Option<u64>,
    /// The number of bytes of addresses to reserve. All regions must fit in it.
    pub bytes: u64,
    /// The layout of a new system region.
    pub layout: Layout,
    /// Whether to fail if the path does not exist, instead of making a directory.
    pub must_exist: bool,
    /// Options for mapping the files.
    pub map: MapOptions,
    /// The pool that moves pages between the files and persistent memory. `None`: the pool that the
    /// directory was made with, if any.
    pub pool: Option<PoolOptions>,
    /// Whether to open the directory even if the machine went down while it was in use with
    /// durability `process`. The last stores may be missing or incomplete.
    pub accept_loss: bool,
}

/// The location and the size of a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// A directory on persistent memory.
    pub path: PathBuf,
    /// The bytes of a new pool, at least 16 pages.
    pub bytes: u64,
    /// The bytes of a page of a new pool. `None`: 64 KiB, or more in a large pool.
    pub page_bytes: Option<u64>,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self {
            base: None,
            bytes: 1 << 40,
            layout: Layout::default(),
            must_exist: false,
            map: MapOptions::default(),
            pool: None,
            accept_loss: false,
        }
    }
}
