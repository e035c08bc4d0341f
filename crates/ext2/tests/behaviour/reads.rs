//! Reads wait for the device without stopping other calls.

use super::fixture::mke2fs;
use super::fsync::{BLOCK, mount_on};
use medium::block::{BlockDevice, BlockError, Lba, MemoryDevice};
use parking_lot::{Condvar, Mutex, MutexGuard};
use patch::stack::Mode;
use std::sync::Arc;
use std::time::Duration;
use vfs::{Ctx, FileSystem, Ino};

/// Longest wait of a call for another one before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A device on which reads wait while its gate is closed.
struct Gated {
    memory: MemoryDevice,
    gate: Mutex<Gate>,
    changed: Condvar,
}

/// Reads are counted since the gate was closed.
#[derive(Default)]
struct Gate {
    closed: bool,
    arrived: usize,
    /// Number of reads that may pass although it is closed.
    allowed: usize,
    passed: usize,
    /// Whether a thread waited for too long. The gate is then open for good.
    broken: bool,
}

impl Gated {
    fn new(image: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryDevice::from_bytes(BLOCK as u32, image),
            gate: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn close(&self) {
        *self.gate.lock() = Gate {
            closed: true,
            ..Gate::default()
        };
    }

    /// Lets all reads pass.
    fn open(&self) {
        let mut gate = self.gate.lock();
        assert!(!gate.broken, "a call waits for a read that waits for it");
        gate.closed = false;
        self.changed.notify_all();
    }

    /// Reads since it was closed.
    fn reads(&self) -> usize {
        self.gate.lock().arrived
    }

    fn let_one_through(&self) {
        self.gate.lock().allowed += 1;
        self.changed.notify_all();
    }

    fn wait_for_reads(&self, reads: usize) {
        let mut gate = self.gate.lock();
        self.wait_until(&mut gate, |gate| gate.arrived >= reads);
    }

    fn wait_until(&self, gate: &mut MutexGuard<'_, Gate>, done: impl Fn(&Gate) -> bool) {
        while !gate.broken && !done(gate) {
            if self.changed.wait_for(gate, PATIENCE).timed_out() && !done(gate) {
                gate.broken = true;
                self.changed.notify_all();
            }
        }
    }
}

impl medium::block::layer::DeviceLayer for Gated {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.memory
    }

    fn name(&self) -> &str {
        "gated"
    }
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let mut gate = self.gate.lock();
        gate.arrived += 1;
        self.changed.notify_all();
        self.wait_until(&mut gate, |gate| !gate.closed || gate.passed < gate.allowed);
        gate.passed += 1;
        drop(gate);
        self.memory.read(lba, buf)
    }
}

#[test]
fn a_read_of_the_device_stops_no_other_call() {
    let device = Gated::new(mke2fs(&["-b", "4096"], "32M"));
    let cx = Ctx::root();
    let names = [b"a", b"b", b"c"];
    {
        let mounted = mount_on(device.clone(), Mode::SoftUpdates);
        let fs = mounted.file_system();
        for name in names {
            let ino = fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
            fs.write(&cx, ino, 0, &[name[0]; 8 * BLOCK as usize])
                .unwrap();
        }
        mounted.close().unwrap();
    }
    let mounted = mount_on(device.clone(), Mode::SoftUpdates);
    let fs = mounted.file_system();
    // The blocks that all calls need are in memory: names, inodes, bitmaps.
    let inos = names.map(|name| fs.lookup(&cx, Ino::ROOT, name).unwrap().ino);
    fs.create(&cx, Ino::ROOT, b"warm", 0o644).unwrap();
    fs.write(&cx, inos[2], 8 * BLOCK, &[1; BLOCK as usize])
        .unwrap();
    device.close();
    std::thread::scope(|scope| {
        let read = |ino, byte| {
            move || {
                let mut buf = [0; 2 * BLOCK as usize];
                assert_eq!(fs.read(&Ctx::root(), ino, 0, &mut buf), Ok(buf.len()));
                assert!(buf.iter().all(|b| *b == byte));
            }
        };
        scope.spawn(read(inos[0], b'a'));
        scope.spawn(read(inos[1], b'b'));
        // A part of a block, which must be read first.
        let part = scope.spawn(|| fs.write(&Ctx::root(), inos[2], 100, b"part").unwrap());
        device.wait_for_reads(3);
        // If any of them held the tree's lock, these calls would wait for ever.
        fs.create(&cx, Ino::ROOT, b"new", 0o644).unwrap();
        fs.write(&cx, inos[2], 8 * BLOCK, &[2; BLOCK as usize])
            .unwrap();
        fs.unlink(&cx, Ino::ROOT, b"warm").unwrap();
        assert!(!part.is_finished());
        device.open();
    });
}

/// A file system with a file `f` of `blocks` blocks. Only the inode and every second block are
/// cached.
fn with_every_second_block(device: &Arc<Gated>, blocks: u64) -> (ext2::Mounted, Ino) {
    let cx = Ctx::root();
    {
        let mounted = mount_on(device.clone(), Mode::SoftUpdates);
        let fs = mounted.file_system();
        let ino = fs.create(&cx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.write(&cx, ino, 0, &vec![1; (blocks * BLOCK) as usize])
            .unwrap();
        mounted.close().unwrap();
    }
    let mounted = mount_on(device.clone(), Mode::SoftUpdates);
    let fs = mounted.file_system();
    let ino = fs.lookup(&cx, Ino::ROOT, b"f").unwrap().ino;
    for index in (1..blocks).step_by(2) {
        fs.write(&cx, ino, index * BLOCK, &[2; BLOCK as usize])
            .unwrap();
    }
    (mounted, ino)
}

#[test]
fn cached_blocks_in_between_do_not_keep_the_tree_locked() {
    // Direct blocks only.
    const BLOCKS: u64 = 8;
    let device = Gated::new(mke2fs(&["-b", "4096"], "32M"));
    let (mounted, ino) = with_every_second_block(&device, BLOCKS);
    let fs = mounted.file_system();
    device.close();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut buf = vec![0; (BLOCKS * BLOCK) as usize];
            assert_eq!(fs.read(&Ctx::root(), ino, 0, &mut buf), Ok(buf.len()));
            buf
        });
        for reads in 1..=BLOCKS as usize / 2 {
            device.wait_for_reads(reads);
            // If the read held the tree's lock, this call would wait for ever.
            fs.write(&Ctx::root(), ino, BLOCK, &[2; BLOCK as usize])
                .unwrap();
            device.let_one_through();
        }
        device.open();
        let newest = |block: &[u8]| block.iter().all(|b| *b == block[0]).then_some(block[0]);
        let bytes = read.join().unwrap();
        let blocks: Vec<_> = bytes.chunks(BLOCK as usize).map(newest).collect();
        assert_eq!(blocks, [Some(1), Some(2)].repeat(BLOCKS as usize / 2));
    });
}

#[test]
fn reads_of_one_block_share_a_read_of_the_device() {
    let device = Gated::new(mke2fs(&["-b", "4096"], "32M"));
    let (mounted, ino) = with_every_second_block(&device, 2);
    let fs = mounted.file_system();
    device.close();
    std::thread::scope(|scope| {
        let read = || {
            let mut buf = [0; BLOCK as usize];
            assert_eq!(fs.read(&Ctx::root(), ino, 0, &mut buf), Ok(buf.len()));
            assert_eq!(buf, [1; BLOCK as usize]);
        };
        let lookups = || mounted.cache().stats().lookups;
        let start = lookups();
        let first = scope.spawn(read);
        device.wait_for_reads(1);
        let one = lookups() - start;
        let second = scope.spawn(read);
        // The second looks up the same blocks before it requests the absent one.
        while lookups() < start + 2 * one && !second.is_finished() {}
        assert!(!first.is_finished() && !second.is_finished());
        // Neither holds the tree's lock.
        fs.write(&Ctx::root(), ino, BLOCK, &[3; BLOCK as usize])
            .unwrap();
        device.open();
    });
    assert_eq!(device.reads(), 1);
}
