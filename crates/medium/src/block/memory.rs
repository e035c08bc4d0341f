//! A block device in plain memory.

use super::device::{block_range, byte_range, write_range};
use super::{BlockDevice, BlockError, Completion, Geometry, Lba, Persistence, Write};
use crate::Rule;
use parking_lot::Mutex;

/// Memory as a block device: completed writes survive until the process ends.
pub struct MemoryDevice {
    geometry: Geometry,
    state: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    done: Vec<Completion>,
}

impl MemoryDevice {
    /// A device of zeros.
    pub fn new(geometry: Geometry) -> Self {
        let len = usize::try_from(geometry.bytes()).expect("a device that fits the memory");
        Self::from_bytes(geometry.block_bytes, vec![0; len])
    }

    /// A device with `bytes`. A part at their end that does not fill a block is omitted.
    pub fn from_bytes(block_bytes: u32, mut bytes: Vec<u8>) -> Self {
        let blocks = bytes.len() as u64 / u64::from(block_bytes);
        let geometry = Geometry {
            block_bytes,
            blocks,
        };
        bytes.truncate(geometry.bytes() as usize);
        let done = Vec::new();
        Self {
            geometry,
            state: Mutex::new(State { bytes, done }),
        }
    }

    /// A copy of all its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &str {
        "memory"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn persistence(&self) -> Persistence {
        Persistence {
            atomic_bytes: self.geometry.block_bytes,
            volatile_cache: false,
            durable_writes: true,
        }
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let range = byte_range(self.name(), self.geometry, lba, buf.len())?;
        let range = range.start as usize..range.end as usize;
        buf.copy_from_slice(&self.state.lock().bytes[range]);
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) {
        let mut state = self.state.lock();
        for write in writes {
            let range = write_range(self.name(), self.geometry, &write);
            let result = range.map(|range| {
                let range = range.start as usize..range.end as usize;
                state.bytes[range].copy_from_slice(&write.data);
            });
            state.done.push(Completion {
                tag: write.tag,
                result,
            });
        }
    }

    fn reap(&self, _min: usize) -> Vec<Completion> {
        std::mem::take(&mut self.state.lock().done)
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        block_range(self.name(), self.geometry, lba, blocks).map(drop)
    }
}
