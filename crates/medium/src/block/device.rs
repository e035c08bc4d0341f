//! The `BlockDevice` trait and its vocabulary.

use super::Buffer;
use crate::Rule;
use std::sync::Arc;

/// The number of a block of a device, from 0; its size is [`Geometry::block_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);

impl std::fmt::Display for Lba {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Size and number of a device's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block: a power of two from 512 to 65,536.
    pub block_bytes: u32,
    /// Number of whole blocks.
    pub blocks: u64,
}

impl Geometry {
    /// Capacity in bytes.
    pub fn bytes(self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }
}

/// The guarantees of a device about writes and crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Persistence {
    /// Aligned units of this many bytes are old or new after a crash, never torn: a power
    /// of two, at least 512. Soft updates need it to be at least the block size.
    pub atomic_bytes: u32,
    /// Whether a completed write can be lost until a flush.
    pub volatile_cache: bool,
    /// Whether [`Write::durable`] is supported. If not, it must be `None`.
    pub durable_writes: bool,
}

/// One block on its way to the device.
#[derive(Debug, Clone)]
pub struct Write {
    /// Comes back in the [`Completion`]; the caller's to choose.
    pub tag: u64,
    /// The block that is written.
    pub lba: Lba,
    /// Exactly one block. Shared, not copied: the device only reads it.
    pub data: Arc<Buffer>,
    /// Force unit access: the write is durable when it has completed. The rule is the reason:
    /// the device ignores it, traces record it.
    pub durable: Option<Rule>,
}

impl Write {
    /// Whether the write is durable when it has completed (force unit access).
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }
}

/// The end of one write.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the [`Write`].
    pub tag: u64,
    /// Whether the block was written.
    pub result: Result<(), BlockError>,
}

/// An error of a device. Printed, it is one line that names the device.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BlockError {
    /// The device reported an error.
    #[error("{device}: {what} of block {lba}: {error}")]
    Io {
        /// The device.
        device: Arc<str>,
        /// `reading`, `writing`, `discarding`.
        what: &'static str,
        /// The (first) block.
        lba: Lba,
        /// The operating system's error.
        error: rustix::io::Errno,
    },
    /// A flush failed: writes since the last successful one may be lost.
    #[error("{device}: flushing: {error}")]
    Flush {
        /// The device.
        device: Arc<str>,
        /// The operating system's error.
        error: rustix::io::Errno,
    },
    /// The power was cut (simulated, see [`PowerSupply`](super::PowerSupply)).
    #[error("{device}: the power was cut")]
    PowerCut {
        /// The device.
        device: Arc<str>,
    },
    /// The device does not have the block.
    #[error("{device}: block {lba} is beyond the end ({blocks} blocks)")]
    OutOfRange {
        /// The device.
        device: Arc<str>,
        /// The block.
        lba: Lba,
        /// The number of blocks of the device.
        blocks: u64,
    },
    /// The data is not a whole number of blocks or, in a write, not one block.
    #[error("{device}: {len} bytes where blocks of {block_bytes} are needed")]
    Length {
        /// The device.
        device: Arc<str>,
        /// Length of the buffer in bytes.
        len: usize,
        /// Bytes in a block.
        block_bytes: u32,
    },
}

/// A block device. Callable from any number of threads.
#[allow(clippy::missing_errors_doc)] // BlockError documents them once
pub trait BlockDevice: Send + Sync {
    /// A name for messages, such as the path.
    fn name(&self) -> &str;
    /// Size and number of blocks.
    fn geometry(&self) -> Geometry;
    /// The guarantees about crashes.
    fn persistence(&self) -> Persistence;
    /// Reads whole blocks from `lba` on, with the results of all completed writes.
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError>;
    /// Starts writes. Each ends in exactly one completion, with or without an error. May block
    /// while too many are under way.
    fn submit(&self, writes: Vec<Write>);
    /// Takes finished writes. Waits until there are at least `min`, or none is under way. Each
    /// completion is returned to one thread, which is not defined.
    fn reap(&self, min: usize) -> Vec<Completion>;
    /// Makes every completed write durable. `rule` is the reason: the device ignores it, traces
    /// record it.
    fn flush(&self, rule: Rule) -> Result<(), BlockError>;
    /// Hints that the contents of these blocks are unused; a read afterwards returns undefined
    /// bytes. A device may do nothing.
    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError>;
}

/// The byte range of `len` bytes from block `lba` on, checked against the device.
pub(super) fn byte_range(
    device: &str,
    geometry: Geometry,
    lba: Lba,
    len: usize,
) -> Result<std::ops::Range<u64>, BlockError> {
    let block_bytes = geometry.block_bytes;
    if len == 0 || !len.is_multiple_of(block_bytes as usize) {
        let device = device.into();
        return Err(BlockError::Length {
            device,
            len,
            block_bytes,
        });
    }
    block_range(device, geometry, lba, (len / block_bytes as usize) as u64)
}

/// The byte range of a write, checked to be one block of the device.
pub(super) fn write_range(
    device: &str,
    geometry: Geometry,
    write: &Write,
) -> Result<std::ops::Range<u64>, BlockError> {
    let (len, block_bytes) = (write.data.len(), geometry.block_bytes);
    if len == block_bytes as usize {
        return block_range(device, geometry, write.lba, 1);
    }
    Err(BlockError::Length {
        device: device.into(),
        len,
        block_bytes,
    })
}

/// The byte range of `blocks` blocks from `lba` on, checked against the device.
pub(super) fn block_range(
    device: &str,
    geometry: Geometry,
    lba: Lba,
    blocks: u64,
) -> Result<std::ops::Range<u64>, BlockError> {
    match lba.0.checked_add(blocks) {
        Some(end) if end <= geometry.blocks => {
            let block_bytes = u64::from(geometry.block_bytes);
            Ok(lba.0 * block_bytes..end * block_bytes)
        }
        _ => Err(BlockError::OutOfRange {
            device: device.into(),
            lba,
            blocks: geometry.blocks,
        }),
    }
}
