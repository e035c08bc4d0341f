//! A partition as a device of its own.

use super::{Partition, PartitionError, find};
use medium::block::layer::DeviceLayer;
use medium::block::{BlockDevice, BlockError, Completion, Geometry, Lba, Write};
use parking_lot::Mutex;
use std::sync::Arc;

/// A partition of a device. Its blocks are numbered from 0, and no access leaves it.
pub struct PartitionDevice<D> {
    below: D,
    name: Arc<str>,
    first: u64,
    blocks: u64,
    /// Completions of writes outside the partition.
    refused: Mutex<Vec<Completion>>,
}

impl<D: BlockDevice> PartitionDevice<D> {
    /// Opens the partition with this number. `sector` is the size of the device's logical
    /// sectors in bytes. An incomplete block at the partition's end is not used.
    ///
    /// # Errors
    /// [`PartitionError`].
    pub fn open(below: D, sector: u32, number: u32) -> Result<Self, PartitionError> {
        let Partition {
            start, len_bytes, ..
        } = find(&below, sector, number)?;
        let block_bytes = below.geometry().block_bytes;
        let bytes = u64::from(block_bytes);
        if !start.is_multiple_of(bytes) {
            return Err(PartitionError::Misaligned {
                device: below.name().into(),
                number,
                start,
                block_bytes,
            });
        }
        Ok(Self {
            name: format!("{}, partition {number}", below.name()).into(),
            below,
            first: start / bytes,
            blocks: len_bytes / bytes,
            refused: Mutex::default(),
        })
    }

    /// The place of blocks on the device below.
    fn place(&self, lba: Lba, blocks: u64) -> Result<Lba, BlockError> {
        match lba.0.checked_add(blocks) {
            Some(end) if end <= self.blocks => Ok(Lba(self.first + lba.0)),
            _ => Err(BlockError::OutOfRange {
                device: self.name.clone(),
                lba,
                blocks: self.blocks,
            }),
        }
    }
}

impl<D: BlockDevice> DeviceLayer for PartitionDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.below
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            ..self.below.geometry()
        }
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let blocks = (buf.len() as u64).div_ceil(u64::from(self.below.geometry().block_bytes));
        self.below.read(self.place(lba, blocks)?, buf)
    }

    fn submit(&self, writes: Vec<Write>) {
        let mut inside = Vec::with_capacity(writes.len());
        for write in writes {
            match self.place(write.lba, 1) {
                Ok(lba) => inside.push(Write { lba, ..write }),
                Err(error) => self.refused.lock().push(Completion {
                    tag: write.tag,
                    result: Err(error),
                }),
            }
        }
        self.below.submit(inside);
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = std::mem::take(&mut *self.refused.lock());
        done.extend(self.below.reap(min.saturating_sub(done.len())));
        done
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        self.below.discard(self.place(lba, blocks)?, blocks)
    }
}
