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

/// What a device promises about writes and crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Persistence {
    /// Aligned units of this many bytes are old or new after a crash, never torn: a power
    /// of two, at least 512. Soft updates need it to be at least the block size.
    pub atomic_bytes: u32,
    /// Whether a completed write can be lost until a flush.
    pub volatile_cache: bool,
    /// Whether [`Write::durable`] is honoured. If not, it must not be set.
    pub durable_writes: bool,
}

/// One block on its way to the device.
#[derive(Debug, Clone)]
pub struct Write {
    /// Comes back in the [`Completion`]; the caller's to choose.
    pub tag: u64,
    /// Where it goes.
    pub lba: Lba,
    /// Exactly one block. Shared, not copied: the device only reads it.
    pub data: Arc<Buffer>,
    /// Force unit access: when completed, it is durable.
    pub durable: bool,
}

/// The end of one write.
#[derive(Debug)]
pub struct Completion {
    /// That of the [`Write`].
    pub tag: u64,
    /// Whether the block was written.
    pub result: Result<(), BlockError>,
}

/// Why a device did not do as asked. Printed, it is one line that names the device.
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
    /// A flush failed: what was written since the last one may be lost.
    #[error("{device}: flushing: {error}")]
    Flush {
        /// The device.
        device: Arc<str>,
        /// The operating system's error.
        error: rustix::io::Errno,
    },
    /// A simulated power cut (see [`PowerSupply`](super::PowerSupply)).
    #[error("{device}: the power was cut")]
    PowerCut {
        /// The device.
        device: Arc<str>,
    },
    /// A block that the device does not have.
    #[error("{device}: block {lba} is beyond the end ({blocks} blocks)")]
    OutOfRange {
        /// The device.
        device: Arc<str>,
        /// The block.
        lba: Lba,
        /// How many there are.
        blocks: u64,
    },
    /// Data that is not a whole number of blocks; or, to be written, not one block.
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
    /// What crashes may do.
    fn persistence(&self) -> Persistence;
    /// Reads whole blocks from `lba` on. Sees every completed write.
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError>;
    /// Starts writes. Each ends in exactly one completion, errors included. May block
    /// while too many are under way.
    fn submit(&self, writes: Vec<Write>);
    /// Takes finished writes, after waiting until there are at least `min` (or none is
    /// under way). Which thread gets which completion is not defined: one at a time.
    fn reap(&self, min: usize) -> Vec<Completion>;
    /// Makes every write that has completed durable. `rule` says what breaks without it; the
    /// device ignores it, traces record it.
    fn flush(&self, rule: Rule) -> Result<(), BlockError>;
    /// The contents of these blocks are of no more use; what a read returns afterwards
    /// is undefined. A hint: doing nothing is right.
    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError>;
}

/// The bytes that `len` bytes from block `lba` on take, checked against the device.
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

/// The bytes that a write takes, checked to be one block of the device.
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

/// The bytes that `blocks` blocks from `lba` on take, checked against the device.
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
