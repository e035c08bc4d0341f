//! Images that share equal parts, and a device that starts with one.

use super::device::{block_range, byte_range, write_range};
use super::{BlockDevice, BlockError, Buffer, Completion, Geometry, Lba, Persistence, Write};
use crate::Rule;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Contents of a device: constant bytes, and blocks that replace some of them. A clone is
/// cheap; the first change after it copies the table of such blocks.
#[derive(Debug, Clone)]
pub struct Image {
    geometry: Geometry,
    bytes: Arc<Vec<u8>>,
    replaced: Arc<HashMap<Lba, Arc<Buffer>>>,
}

impl Image {
    /// An image of `bytes`. A part at their end that does not fill a block is omitted.
    pub fn new(block_bytes: u32, bytes: Arc<Vec<u8>>) -> Self {
        let blocks = bytes.len() as u64 / u64::from(block_bytes);
        Self {
            geometry: Geometry {
                block_bytes,
                blocks,
            },
            bytes,
            replaced: Arc::default(),
        }
    }

    /// Size and number of blocks.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The bytes of a block; `None` after the end.
    pub fn block(&self, lba: Lba) -> Option<&[u8]> {
        if let Some(block) = self.replaced.get(&lba) {
            return Some(block);
        }
        let range = block_range("image", self.geometry, lba, 1).ok()?;
        self.bytes.get(range.start as usize..range.end as usize)
    }

    /// Replaces a block. No effect after the end, or if `data` is not one block.
    pub fn set(&mut self, lba: Lba, data: Arc<Buffer>) {
        if lba.0 < self.geometry.blocks && data.len() == self.geometry.block_bytes as usize {
            Arc::make_mut(&mut self.replaced).insert(lba, data);
        }
    }

    /// A copy of all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes[..self.geometry.bytes() as usize].to_vec();
        let len = self.geometry.block_bytes as usize;
        for (lba, block) in &*self.replaced {
            let start = lba.0 as usize * len;
            bytes[start..start + len].copy_from_slice(block);
        }
        bytes
    }
}

/// A device in memory that starts with an [`Image`] and can return one at any time.
pub struct ImageDevice {
    persistence: Persistence,
    state: Mutex<(Image, Vec<Completion>)>,
}

impl ImageDevice {
    /// A device that holds `image` and reports `persistence`. Its contents are in fact lost
    /// with the process.
    pub fn new(image: Image, persistence: Persistence) -> Self {
        Self {
            persistence,
            state: Mutex::new((image, Vec::new())),
        }
    }

    /// The present contents.
    pub fn image(&self) -> Image {
        self.state.lock().0.clone()
    }
}

impl BlockDevice for ImageDevice {
    fn name(&self) -> &str {
        "image"
    }

    fn geometry(&self) -> Geometry {
        self.state.lock().0.geometry
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let image = &self.state.lock().0;
        byte_range(self.name(), image.geometry, lba, buf.len())?;
        let blocks = buf.chunks_mut(image.geometry.block_bytes as usize);
        for (lba, to) in (lba.0..).zip(blocks) {
            if let Some(block) = image.block(Lba(lba)) {
                to.copy_from_slice(block);
            }
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) {
        let mut state = self.state.lock();
        let (image, done) = &mut *state;
        for write in writes {
            let range = write_range("image", image.geometry, &write);
            let result = range.map(|_| image.set(write.lba, write.data));
            let tag = write.tag;
            done.push(Completion { tag, result });
        }
    }

    fn reap(&self, _min: usize) -> Vec<Completion> {
        std::mem::take(&mut self.state.lock().1)
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        block_range(self.name(), self.geometry(), lba, blocks).map(drop)
    }
}
