//! What the explorer needs of a file system.

use medium::Pmem;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Clock, FileSystem};

/// A kind of file system, in one mode, as the explorer makes, opens and checks it.
///
/// All of it must be deterministic: the same bytes and the same clock give the same
/// reads and stores in the same order.
pub trait System: Send + Sync {
    /// A short name for ids: letters, digits and `-` only, such as `bpfs-other`.
    fn id(&self) -> String;

    /// Size of the test image in bytes; small, so that images are quick to walk.
    fn image_bytes(&self) -> u64;

    /// Makes an empty file system whose root directory belongs to the super-user, mode
    /// 0755, made at time 0. The region is zeroed.
    ///
    /// # Errors
    /// What went wrong, in one line.
    fn format(&self, pm: &dyn Pmem) -> Result<(), String>;

    /// Opens the file system, recovery included. Reads must not change access times.
    ///
    /// # Errors
    /// What is wrong with the image, in one line.
    fn open(&self, pm: Arc<dyn Pmem>, clock: Arc<dyn Clock>)
    -> Result<Box<dyn FileSystem>, String>;

    /// Runs the format's checker.
    fn check(&self, pm: &dyn Pmem) -> Report;
}
