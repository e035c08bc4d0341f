//! Writes that stay in memory, over a device that must not change.
//!
//! Guarantees: the device below is only read. A read returns the blocks that were written here,
//! and elsewhere those below. Memory is taken for the blocks that were written.

use super::device::{block_range, byte_range, write_range};
use super::{BlockDevice, BlockError, Buffer, Completion, Lba, Write};
use crate::Rule;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// Keeps writes to `D` in memory. A device that must not change can be read as it would be
/// after a change, such as the replay of its journal.
pub struct OverlayDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    written: HashMap<Lba, Arc<Buffer>>,
    done: Vec<Completion>,
}

impl<D: BlockDevice> OverlayDevice<D> {
    /// An overlay without writes.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            state: Mutex::default(),
        }
    }
}

impl<D: BlockDevice> crate::block::layer::DeviceLayer for OverlayDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        byte_range(self.inner.name(), self.inner.geometry(), lba, buf.len())?;
        self.inner.read(lba, buf)?;
        let block_bytes = self.inner.geometry().block_bytes as usize;
        let state = self.state.lock();
        for (lba, to) in (lba.0..).zip(buf.chunks_mut(block_bytes)) {
            if let Some(written) = state.written.get(&Lba(lba)) {
                to.copy_from_slice(written);
            }
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) {
        let mut state = self.state.lock();
        for write in writes {
            let range = write_range(self.inner.name(), self.inner.geometry(), &write);
            let result = range.map(|_| {
                state.written.insert(write.lba, write.data);
            });
            let tag = write.tag;
            state.done.push(Completion { tag, result });
        }
    }

    fn reap(&self, _min: usize) -> Vec<Completion> {
        std::mem::take(&mut self.state.lock().done)
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        block_range(self.inner.name(), self.inner.geometry(), lba, blocks).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn the_device_below_is_not_written() {
        let under = MemoryDevice::from_bytes(512, vec![1; 4 * 512]);
        let overlay = OverlayDevice::new(&under);
        let write = |lba, byte| Write {
            tag: lba,
            lba: Lba(lba),
            data: Arc::new(Buffer::from_slice(&[byte; 512])),
            durable: None,
        };
        overlay.submit(vec![write(1, 2), write(4, 3)]);
        let failed = |done: &Completion| done.result.is_err();
        assert_eq!(
            overlay.reap(2).iter().map(failed).collect::<Vec<_>>(),
            [false, true]
        );
        let mut seen = vec![0; 3 * 512];
        overlay.read(Lba(0), &mut seen).unwrap();
        assert_eq!([seen[511], seen[512], seen[1023], seen[1024]], [1, 2, 2, 1]);
        assert!(overlay.read(Lba(3), &mut seen).is_err());
        assert_eq!(under.bytes(), vec![1; 4 * 512]);
    }
}
