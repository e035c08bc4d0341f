//! Media and options of file systems that a benchmark makes in its own process.

use medium::{MappedPmem, Pmem};
use std::sync::Arc;
use vfs::{Atime, Clock, SystemClock, Timestamp};

/// The medium that an engine takes in a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScratchKind {
    /// Ordinary memory of the engine's own: nothing is durable.
    Own,
    /// Persistent memory.
    Memory,
}

/// A scratch medium.
pub enum Scratch {
    /// None: the engine takes ordinary memory.
    Own,
    /// A mapped file that is flushed as persistent memory is.
    Mapped(Box<MappedPmem>),
    /// A mapped file that the caller mounts again later.
    Shared(Arc<MappedPmem>),
    /// Any persistent memory: one that counts stores, for example. Each call of it goes through
    /// a pointer.
    Any(Arc<dyn Pmem>),
}

/// The options of a file system on a scratch medium.
#[derive(Clone)]
pub struct ScratchOptions<'a> {
    /// The name of the mode. `None`: the engine's default, or that of the image.
    pub mode: Option<&'a str>,
    /// The source of time stamps.
    pub clock: Arc<dyn Clock>,
    /// The condition for a read to update the access time.
    pub atime: Atime,
    /// Time stamp of a new root directory.
    pub made: Timestamp,
    /// A number of the boot of the machine: another one than that of the last mount says that the
    /// power has failed since. `None`: not known.
    pub boot: Option<u128>,
    /// Whether changes are also written back between syncs, by threads of the file system.
    pub writes_back_alone: bool,
}

impl Default for ScratchOptions<'_> {
    fn default() -> Self {
        Self {
            mode: None,
            clock: Arc::new(SystemClock),
            atime: Atime::default(),
            made: Timestamp(0),
            boot: None,
            writes_back_alone: true,
        }
    }
}
