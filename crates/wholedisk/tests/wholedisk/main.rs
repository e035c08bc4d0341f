//! The device as a file: contents, refusals, order after a power cut, and mounting.

mod contents;
mod fixed;
mod mounting;
mod order;

use blockfs::mount::{Devices, MountOptions, Mountable, Mounted, mount};
use medium::block::{BlockDevice, Geometry, MemoryDevice};
use patch::stack::{Mode, Stack};
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino};
use wholedisk::{NAME, WholeDisk};

/// The modes that have no journal.
const MODES: [Mode; 2] = [Mode::Async, Mode::SoftUpdates];

/// A stack whose cache writes only at a sync.
fn stack(mode: Mode) -> Stack {
    let mut stack = Stack::new(WholeDisk::NAME, mode);
    stack.set_cache(|cache| cache.interval = None);
    stack
}

/// A device of 16 blocks, each filled with its number and one.
fn numbered(block_bytes: u32) -> Arc<MemoryDevice> {
    let bytes = (1..=16_u8).flat_map(|n| vec![n; block_bytes as usize]);
    Arc::new(MemoryDevice::from_bytes(block_bytes, bytes.collect()))
}

/// A mounted device.
struct Bench {
    mounted: Mounted<WholeDisk>,
    fs: Arc<dyn FileSystem>,
    disk: Ino,
    cx: Ctx,
}

impl Bench {
    fn new(device: Arc<dyn BlockDevice>, mode: Mode) -> Self {
        Self::with(device, mode, &MountOptions::default())
    }

    fn with(device: Arc<dyn BlockDevice>, mode: Mode, options: &MountOptions) -> Self {
        let devices = Devices {
            disk: device,
            log: None,
        };
        let mounted = mount::<WholeDisk>(&stack(mode), devices, options).unwrap();
        let fs = WholeDisk::served(mounted.file_system().clone());
        let cx = Ctx::root();
        let disk = fs.lookup(&cx, Ino::ROOT, NAME).unwrap().ino;
        Self {
            mounted,
            fs,
            disk,
            cx,
        }
    }

    fn read(&self, off: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        let len = self.fs.read(&self.cx, self.disk, off, &mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    fn write(&self, off: u64, bytes: &[u8]) -> vfs::Result<usize> {
        self.fs.write(&self.cx, self.disk, off, bytes)
    }

    fn fsync(&self) {
        self.fs.fsync(&self.cx, self.disk, false).unwrap();
    }
}

fn geometry(block_bytes: u32, blocks: u64) -> Geometry {
    Geometry {
        block_bytes,
        blocks,
    }
}
