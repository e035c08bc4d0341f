//! An ext2 image in memory, mounted in this process with given optimisations.

use super::Optimisations;
use crate::error::{Context, Result};
use blockfs::mount::OpenOptions;
use blockfs::{BlockFs, BlockFsOptions};
use ext2::{Ext2, Inodes, MkfsOptions};
use medium::block::{Geometry, MemoryDevice};
use patch::{Async, Cache, CacheOptions, CacheStats, Optimise, Optimised, Store};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Display;
use std::sync::Arc;
use vfs::{Atime, FileSystem, Guarantees, ManualClock, Timestamp};

pub(super) const BLOCK_BYTES: u32 = 4096;

/// A device of memory with an empty ext2 file system.
///
/// # Errors
/// If the file system cannot be made.
pub(super) fn image(bytes: u64, inodes: u32) -> Result<Arc<MemoryDevice>> {
    let device = Arc::new(MemoryDevice::new(Geometry {
        block_bytes: BLOCK_BYTES,
        blocks: bytes.div_ceil(u64::from(BLOCK_BYTES)),
    }));
    let options = MkfsOptions {
        block_bytes: BLOCK_BYTES,
        inodes: Inodes::Count(inodes),
        ..MkfsOptions::for_size(bytes)
    };
    let made = ext2::mkfs(&*device, &options);
    made.map_err(failure).what(|| "making an image".into())?;
    Ok(device)
}

/// A mounted image, with what the cache had done before the workload.
pub(super) struct Mounted {
    pub fs: BlockFs<Ext2>,
    cache: Arc<Cache>,
    before: CacheStats,
}

/// The cost of a workload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub cpu_seconds: f64,
    pub patches: u64,
    pub undo_bytes: u64,
    pub patch_memory_bytes: u64,
    pub data_bytes: u64,
    pub double_writes: u64,
}

impl Mounted {
    /// The cache writes back when it is full and on request, in the thread that
    /// runs the workload: its CPU time is all there is.
    ///
    /// # Errors
    /// If the image cannot be mounted.
    pub(super) fn open(device: &Arc<MemoryDevice>, how: Optimisations) -> Result<Self> {
        let which = match how {
            Optimisations::Soft(which) => which,
            Optimisations::Async => Optimised::Both,
        };
        let options = CacheOptions {
            interval: None,
            optimise: Optimise::from(which),
            ..CacheOptions::default()
        };
        let cache = Arc::new(Cache::new(vec![Box::new(device.clone())], options));
        let store: Arc<dyn Store> = match how {
            Optimisations::Soft(_) => Arc::new(cache.store(0)),
            Optimisations::Async => Arc::new(Async::new(cache.store(0))),
        };
        // Every call at another time, and all runs at the same times.
        let clock = Arc::new(ManualClock::new(
            Timestamp(1_000_000_000_000_000_000),
            1_000,
        ));
        let options = OpenOptions {
            clock: clock.clone(),
            ..OpenOptions::default()
        };
        let format = Ext2::open(store, options);
        let format = format.map_err(failure).what(|| "mounting".into())?;
        let options = BlockFsOptions {
            atime: Atime::Never,
            clock,
            ..BlockFsOptions::new(Guarantees::none("bench"))
        };
        let fs = BlockFs::open(format, options);
        let fs = fs.map_err(failure).what(|| "mounting".into())?;
        let before = cache.stats();
        Ok(Self { fs, cache, before })
    }

    /// Runs a workload and a sync.
    ///
    /// # Errors
    /// If the workload fails.
    pub(super) fn measure(
        &self,
        work: impl FnOnce(&dyn FileSystem) -> Result<()>,
    ) -> Result<Taken> {
        let start = cpu_seconds();
        work(&self.fs)?;
        self.fs.sync().what(|| "sync".into())?;
        let cpu_seconds = cpu_seconds() - start;
        let (now, was) = (self.cache.stats(), self.before);
        let made = |s: &CacheStats| s.graph.patches + s.graph.empties;
        Ok(Taken {
            cpu_seconds,
            patches: made(&now) - made(&was),
            undo_bytes: now.graph.undo_bytes - was.graph.undo_bytes,
            patch_memory_bytes: now.graph.memory_total - was.graph.memory_total,
            data_bytes: (now.writes - was.writes) * u64::from(BLOCK_BYTES),
            double_writes: now.graph.blocks_partial - was.graph.blocks_partial,
        })
    }

    /// Unmounts, and forgets what was cached.
    ///
    /// # Errors
    /// If something could not be stored.
    pub(super) fn close(self) -> Result<()> {
        self.fs
            .close()
            .map_err(failure)
            .what(|| "unmounting".into())
    }
}

/// CPU time of this thread.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn failure(error: impl Display) -> std::io::Error {
    std::io::Error::other(error.to_string())
}
