//! Devices for tests of mkfs: large ones, and one that loses writes.

use medium::Rule;
use medium::block::{
    BlockDevice, BlockError, Completion, Geometry, Lba, MemoryDevice, Persistence, Write,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

/// A device that keeps the written blocks in memory. The others are zero.
pub struct SparseDevice {
    geometry: Geometry,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
    done: Mutex<Vec<Completion>>,
}

impl SparseDevice {
    pub fn new(block_bytes: u32, blocks: u64) -> Self {
        Self {
            geometry: Geometry {
                block_bytes,
                blocks,
            },
            blocks: Mutex::default(),
            done: Mutex::default(),
        }
    }

    pub fn import(block_bytes: u32, path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let device = Self::new(block_bytes, bytes.len() as u64 / u64::from(block_bytes));
        for (n, block) in bytes.chunks_exact(block_bytes as usize).enumerate() {
            if block.iter().any(|b| *b != 0) {
                device
                    .blocks
                    .lock()
                    .unwrap()
                    .insert(n as u64, block.to_vec());
            }
        }
        device
    }

    pub fn export(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.geometry.bytes()).unwrap();
        for (lba, block) in &*self.blocks.lock().unwrap() {
            let at = lba * u64::from(self.geometry.block_bytes);
            file.write_all_at(block, at).unwrap();
        }
    }

    /// Number of blocks that were written.
    pub fn stored(&self) -> usize {
        self.blocks.lock().unwrap().len()
    }
}

impl BlockDevice for SparseDevice {
    fn name(&self) -> &str {
        "sparse"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn persistence(&self) -> Persistence {
        Persistence {
            atomic_bytes: 512,
            volatile_cache: false,
            durable_writes: false,
        }
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        buf.fill(0);
        let size = self.geometry.block_bytes as usize;
        let end = lba.0 + (buf.len() / size) as u64;
        assert!(end <= self.geometry.blocks && buf.len().is_multiple_of(size));
        for (n, block) in self.blocks.lock().unwrap().range(lba.0..end) {
            let at = (n - lba.0) as usize * size;
            buf[at..at + size].copy_from_slice(block);
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) {
        for Write { tag, lba, data, .. } in writes {
            assert!(lba.0 < self.geometry.blocks);
            assert_eq!(data.len(), self.geometry.block_bytes as usize);
            self.blocks.lock().unwrap().insert(lba.0, data.to_vec());
            self.done.lock().unwrap().push(Completion {
                tag,
                result: Ok(()),
            });
        }
    }

    fn reap(&self, _min: usize) -> Vec<Completion> {
        std::mem::take(&mut self.done.lock().unwrap())
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&self, _lba: Lba, _blocks: u64) -> Result<(), BlockError> {
        Ok(())
    }
}

/// A device whose power fails before the third flush, so that the last write of mkfs is lost.
pub struct LastWriteLost<'d> {
    device: &'d MemoryDevice,
    flushes: Mutex<u32>,
    done: Mutex<Vec<Completion>>,
}

impl<'d> LastWriteLost<'d> {
    pub fn new(device: &'d MemoryDevice) -> Self {
        Self {
            device,
            flushes: Mutex::default(),
            done: Mutex::default(),
        }
    }
}

impl medium::block::layer::DeviceLayer for LastWriteLost<'_> {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        self.device
    }

    fn name(&self) -> &str {
        "last write lost"
    }

    fn submit(&self, writes: Vec<Write>) {
        if *self.flushes.lock().unwrap() < 2 {
            return self.device.submit(writes);
        }
        for Write { tag, .. } in writes {
            self.done.lock().unwrap().push(Completion {
                tag,
                result: Ok(()),
            });
        }
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = std::mem::take(&mut *self.done.lock().unwrap());
        done.extend(self.device.reap(min));
        done
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        *self.flushes.lock().unwrap() += 1;
        Ok(())
    }
}
