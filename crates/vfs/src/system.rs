//! An engine as harnesses meet it: made, opened and checked by one trait.

use crate::check::Report;
use crate::{Clock, FileSystem, Timestamp};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A kind of file system, in one configuration, on a medium that is reached through `M`
/// (such as `dyn Pmem`).
///
/// All of it must be deterministic: the same bytes and the same clock give the same
/// reads and stores in the same order.
pub trait System<M: ?Sized>: Send + Sync {
    /// A short name for ids: letters, digits and `-` only, such as `bpfs-other`.
    fn id(&self) -> String;

    /// Size of a test image in bytes; small, so that images are quick to walk.
    fn image_bytes(&self) -> u64;

    /// The times that inodes can have; others become the nearest of these.
    fn times(&self) -> RangeInclusive<Timestamp> {
        Timestamp::MIN..=Timestamp::MAX
    }

    /// Makes an empty file system whose root directory belongs to the super-user, mode
    /// 0755, made at time 0. The medium is zeroed.
    ///
    /// # Errors
    /// What went wrong, in one line.
    fn format(&self, medium: &M) -> Result<(), String>;

    /// Opens the file system, recovery included. Reads must not change access times.
    ///
    /// # Errors
    /// What is wrong with the image, in one line.
    fn open(&self, medium: Arc<M>, clock: Arc<dyn Clock>) -> Result<Arc<dyn FileSystem>, String>;

    /// Whether it keeps changes in memory until a sync or a write-back. On block devices
    /// the explorer takes this for granted.
    fn has_cache(&self) -> bool {
        false
    }

    /// Opens as [`open`](Self::open) does. Nothing leaves memory except by a sync or by
    /// [`Still::write_some`], and at most `wave` blocks at a time.
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

    /// Runs the format's checker.
    fn check(&self, medium: &M) -> Report;
}

/// A [`System`] on a medium of blocks.
pub trait BlockSystem<M: ?Sized>: System<M> {
    /// Bytes in a block of a test medium.
    fn block_bytes(&self) -> u32;

    /// The largest aligned unit, in bytes, that it needs a medium not to tear: a power of
    /// two from 512 to a block.
    fn atomic_bytes(&self) -> u32;

    /// Blocks of a new file system whose content has no effect while it is open: those of a
    /// log behind its superblock.
    ///
    /// # Errors
    /// What is wrong with the image, in one line.
    fn scratch(&self, medium: Arc<M>) -> Result<Vec<u64>, String>;
}

/// An open file system that writes back only when told.
pub struct Still {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Writes back some of what can be, and returns how many blocks left: 0 if all that is
    /// left waits for something. The error is what went wrong, in one line.
    pub write_some: Box<dyn Fn() -> Result<usize, String> + Send + Sync>,
    /// As `write_some`, a few blocks that the function draws from all that can be written:
    /// it returns a number below the one that it is given.
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
