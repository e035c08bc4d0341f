//! Bytes of a device by their offset, for any block size.

use medium::Rule;
use medium::block::{BlockDevice, BlockError, Buffer, Lba, Write};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads from any byte on.
pub(crate) fn read<D: BlockDevice + ?Sized>(
    device: &D,
    at: u64,
    buf: &mut [u8],
) -> Result<(), BlockError> {
    let block = u64::from(device.geometry().block_bytes);
    if at.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) && !buf.is_empty() {
        return device.read(Lba(at / block), buf);
    }
    let (first, skip) = (at / block, (at % block) as usize);
    let blocks = (skip + buf.len()).div_ceil(block as usize).max(1);
    let mut whole = vec![0; blocks * block as usize];
    device.read(Lba(first), &mut whole)?;
    buf.copy_from_slice(&whole[skip..skip + buf.len()]);
    Ok(())
}

/// A writer of bytes in blocks of the device, many at a time. Writes begin at
/// [`finish`](Self::finish), or when too many blocks are kept.
pub(crate) struct Writer<'d, D: ?Sized> {
    device: &'d D,
    block: usize,
    pending: BTreeMap<u64, Buffer>,
}

/// Blocks kept before they are written.
const PENDING: usize = 1024;

impl<'d, D: BlockDevice + ?Sized> Writer<'d, D> {
    pub(crate) fn new(device: &'d D) -> Self {
        let block = device.geometry().block_bytes as usize;
        let pending = BTreeMap::new();
        Self {
            device,
            block,
            pending,
        }
    }

    /// Writes `bytes` from byte `at` on. Other bytes of their blocks do not change.
    pub(crate) fn put(&mut self, mut at: u64, mut bytes: &[u8]) -> Result<(), BlockError> {
        while !bytes.is_empty() {
            let (lba, skip) = (at / self.block as u64, (at % self.block as u64) as usize);
            let len = bytes.len().min(self.block - skip);
            let (now, later) = bytes.split_at(len);
            self.block_at(lba, len == self.block)?[skip..skip + len].copy_from_slice(now);
            (at, bytes) = (at + len as u64, later);
            if self.pending.len() >= PENDING {
                self.write_pending()?;
            }
        }
        Ok(())
    }

    /// Returns a block to change. `whole`: all of it will be overwritten.
    fn block_at(&mut self, lba: u64, whole: bool) -> Result<&mut Buffer, BlockError> {
        use std::collections::btree_map::Entry;
        match self.pending.entry(lba) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let mut buffer = Buffer::zeroed(self.block);
                if !whole {
                    self.device.read(Lba(lba), &mut buffer)?;
                }
                Ok(entry.insert(buffer))
            }
        }
    }

    fn write_pending(&mut self) -> Result<(), BlockError> {
        let pending = std::mem::take(&mut self.pending);
        let mut under_way = pending.len();
        let writes = pending.into_iter().map(|(lba, data)| Write {
            tag: lba,
            lba: Lba(lba),
            data: Arc::new(data),
            durable: None,
        });
        self.device.submit(writes.collect());
        let mut failed = None;
        while under_way > 0 {
            for completion in self.device.reap(1) {
                under_way -= 1;
                failed = failed.or(completion.result.err());
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes the remaining blocks, and makes everything durable.
    pub(crate) fn finish(&mut self) -> Result<(), BlockError> {
        self.write_pending()?;
        self.device.flush(Rule::DurableBeforeReturn)
    }
}
