//! The trait by which harnesses make, open and check an engine.

use crate::check::Report;
use crate::{Clock, FileSystem, Timestamp};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A kind of file system, in one configuration, on a medium of type `M` (such as `dyn Pmem`).
///
/// All methods must be deterministic: the same bytes and the same clock give the same reads and
/// stores in the same order.
pub trait System<M: ?Sized>: Send + Sync {
    /// A short name for ids: letters, digits and `-` only, such as `bpfs-other`.
    fn id(&self) -> String;

    /// Size of a test image in bytes; small, so that images are quick to walk.
    fn image_bytes(&self) -> u64;

    /// The times that inodes can have. Other times become the nearest of these.
    fn times(&self) -> RangeInclusive<Timestamp> {
        Timestamp::MIN..=Timestamp::MAX
    }

    /// Makes an empty file system on a zeroed medium. The root directory belongs to the
    /// super-user, has mode 0755 and was made at time 0.
    ///
    /// # Errors
    /// The cause, in one line.
    fn format(&self, medium: &M) -> Result<(), String>;

    /// Opens the file system, recovery included. Reads must not change access times.
    ///
    /// # Errors
    /// The damage of the image, in one line.
    fn open(&self, medium: Arc<M>, clock: Arc<dyn Clock>) -> Result<Arc<dyn FileSystem>, String>;

    /// Whether changes stay in memory until a sync or a write-back. On block devices the
    /// explorer assumes so.
    fn has_cache(&self) -> bool {
        false
    }

    /// Opens as [`open`](Self::open) does. Changes leave memory only by a sync or by
    /// [`Still::write_some`], which writes at most `wave` blocks at a time.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn open_still(
        &self,
        medium: Arc<M>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        let _ = wave;
        self.open(medium, clock).map(Still::without_cache)
    }

    /// Opens as [`open_still`](Self::open_still) does, in the boot of the machine with this number.
    /// A power cut ends a boot. The end of a server does not, and leaves its stores in the caches of
    /// the processor. An engine that does not distinguish the two ignores the number.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn open_in_boot(
        &self,
        medium: Arc<M>,
        clock: Arc<dyn Clock>,
        wave: usize,
        boot: u128,
    ) -> Result<Still, String> {
        let _ = boot;
        self.open_still(medium, clock, wave)
    }

    /// Runs the format's checker.
    fn check(&self, medium: &M) -> Report;
}

/// A [`System`] on a medium of blocks.
pub trait BlockSystem<M: ?Sized>: System<M> {
    /// Bytes in a block of a test medium.
    fn block_bytes(&self) -> u32;

    /// The largest aligned unit, in bytes, that the medium must not tear: a power of two from
    /// 512 to a block.
    fn atomic_bytes(&self) -> u32;

    /// Blocks of a new file system whose content has no effect while it is open: those of a log
    /// after its superblock.
    ///
    /// # Errors
    /// The damage of the image, in one line.
    fn scratch(&self, medium: Arc<M>) -> Result<Vec<u64>, String>;
}

/// An open file system that writes back only on request.
pub struct Still {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Writes back some of the blocks that can be written, and returns how many; 0 if all
    /// others must wait. The error is the cause, in one line.
    pub write_some: Box<dyn Fn() -> Result<usize, String> + Send + Sync>,
    /// Writes back a few blocks, which the function draws from all that can be written: it
    /// returns a number below its argument.
    pub write_drawn: Box<DrawnWrite>,
}

impl Still {
    /// A file system that keeps no changes in memory: there is nothing to write back.
    pub fn without_cache(fs: Arc<dyn FileSystem>) -> Self {
        Self {
            fs,
            write_some: Box::new(|| Ok(0)),
            write_drawn: Box::new(|_| Ok(0)),
        }
    }
}

/// Writes back blocks that the function draws.
pub type DrawnWrite = dyn Fn(&mut dyn FnMut(usize) -> usize) -> Result<usize, String> + Send + Sync;
