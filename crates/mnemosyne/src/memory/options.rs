//! What the user of a directory of regions chooses.

use super::Layout;
use medium::MapOptions;
use std::path::PathBuf;

/// How to open a directory.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// The address of the first byte, a multiple of 2 MiB; `None`: wherever there is room.
    pub base: Option<u64>,
    /// Bytes of addresses, which all regions must fit in.
    pub bytes: u64,
    /// What a system region is to be like, if there is none yet.
    pub layout: Layout,
    /// Fails if there is nothing at the path, rather than make it.
    pub must_exist: bool,
    /// How to map the files.
    pub map: MapOptions,
    /// What moves pages between the files and persistent memory. `None`: what the directory
    /// was made with, which may be nothing.
    pub pool: Option<PoolOptions>,
    /// Open the directory, too, if the machine went down while it was in use with durability
    /// `process`: what was stored last may be missing, or there in part.
    pub accept_loss: bool,
}

/// Where a pool is, and what it is to be like.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// A directory on persistent memory.
    pub path: PathBuf,
    /// Bytes of the pool, if there is none yet: 16 pages at least.
    pub bytes: u64,
    /// Bytes of a page, if there is none yet; `None`: 64 KiB, or more in a large pool.
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
