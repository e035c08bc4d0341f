//! Counts the accesses to a block device.

use super::{BlockDevice, BlockError, Lba, Write};
use crate::Rule;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of accesses to a device, up to some moment. The difference of two counts the accesses
/// in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// Calls of `read`.
    pub reads: u64,
    /// Blocks of these reads.
    pub read_blocks: u64,
    /// Blocks that were submitted to be written.
    pub written_blocks: u64,
    /// Runs of adjacent blocks, equally durable or not, within each submit: the writes of a
    /// device that merges as many as it can.
    pub merged_writes: u64,
    /// Of the written blocks, those with force unit access.
    pub durable_blocks: u64,
    /// Flushes, including those that failed.
    pub flushes: u64,
    /// Blocks that were discarded.
    pub discarded_blocks: u64,
}

impl Sub for BlockCounts {
    type Output = Self;

    /// The counts since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        let since = u64::wrapping_sub;
        Self {
            reads: since(self.reads, earlier.reads),
            read_blocks: since(self.read_blocks, earlier.read_blocks),
            written_blocks: since(self.written_blocks, earlier.written_blocks),
            merged_writes: since(self.merged_writes, earlier.merged_writes),
            durable_blocks: since(self.durable_blocks, earlier.durable_blocks),
            flushes: since(self.flushes, earlier.flushes),
            discarded_blocks: since(self.discarded_blocks, earlier.discarded_blocks),
        }
    }
}

/// Forwards everything to `D` and counts it. The counters of a call are not read together: a
/// snapshot taken while other threads work is only approximate.
pub struct CountingDevice<D> {
    inner: D,
    reads: AtomicU64,
    read_blocks: AtomicU64,
    written_blocks: AtomicU64,
    merged_writes: AtomicU64,
    durable_blocks: AtomicU64,
    flushes: AtomicU64,
    discarded_blocks: AtomicU64,
}

impl<D: BlockDevice> CountingDevice<D> {
    /// All counts start at 0.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            reads: AtomicU64::new(0),
            read_blocks: AtomicU64::new(0),
            written_blocks: AtomicU64::new(0),
            merged_writes: AtomicU64::new(0),
            durable_blocks: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            discarded_blocks: AtomicU64::new(0),
        }
    }

    /// The device below. Accesses to it directly are not counted.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The counts now.
    pub fn snapshot(&self) -> BlockCounts {
        BlockCounts {
            reads: self.reads.load(Relaxed),
            read_blocks: self.read_blocks.load(Relaxed),
            written_blocks: self.written_blocks.load(Relaxed),
            merged_writes: self.merged_writes.load(Relaxed),
            durable_blocks: self.durable_blocks.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discarded_blocks: self.discarded_blocks.load(Relaxed),
        }
    }
}

/// The number of requests that these writes make when neighbours are merged.
fn merged(writes: &[Write]) -> u64 {
    let mut places: Vec<_> = writes.iter().map(|w| (w.lba.0, w.is_durable())).collect();
    places.sort_unstable();
    let follows = |pair: &&[(u64, bool)]| {
        pair[0].0.checked_add(1) == Some(pair[1].0) && pair[0].1 == pair[1].1
    };
    (places.len() - places.windows(2).filter(follows).count()) as u64
}

impl<D: BlockDevice> crate::block::layer::DeviceLayer for CountingDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let blocks = buf.len() as u64 / u64::from(self.inner.geometry().block_bytes);
        self.reads.fetch_add(1, Relaxed);
        self.read_blocks.fetch_add(blocks, Relaxed);
        self.inner.read(lba, buf)
    }

    fn submit(&self, writes: Vec<Write>) {
        let durable = writes.iter().filter(|write| write.is_durable()).count();
        self.written_blocks.fetch_add(writes.len() as u64, Relaxed);
        self.merged_writes.fetch_add(merged(&writes), Relaxed);
        self.durable_blocks.fetch_add(durable as u64, Relaxed);
        self.inner.submit(writes);
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        self.flushes.fetch_add(1, Relaxed);
        self.inner.flush(rule)
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        self.discarded_blocks.fetch_add(blocks, Relaxed);
        self.inner.discard(lba, blocks)
    }
}
