//! Reads wait for the device without stopping other calls.

use crate::fixture::mke2fs;
use crate::fsync::{BLOCK, mount_on};
use medium::block::{
    BlockDevice, BlockError, Completion, Geometry, Lba, MemoryDevice, Persistence, Write,
};
use parking_lot::{Condvar, Mutex};
use patch::stack::Mode;
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino};

/// A device on which reads wait while its gate is closed.
struct Gated {
    memory: MemoryDevice,
    /// Whether it is closed, and how many reads wait.
    gate: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gated {
    fn close(&self) {
        self.gate.lock().0 = true;
    }

    fn open(&self) {
        self.gate.lock().0 = false;
        self.changed.notify_all();
    }

    fn wait_for_readers(&self, readers: usize) {
        let mut gate = self.gate.lock();
        while gate.1 < readers {
            self.changed.wait(&mut gate);
        }
    }
}

impl BlockDevice for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let mut gate = self.gate.lock();
        gate.1 += 1;
        self.changed.notify_all();
        while gate.0 {
            self.changed.wait(&mut gate);
        }
        gate.1 -= 1;
        drop(gate);
        self.memory.read(lba, buf)
    }
    fn submit(&self, writes: Vec<Write>) {
        self.memory.submit(writes);
    }
    fn reap(&self, min: usize) -> Vec<Completion> {
        self.memory.reap(min)
    }
    fn flush(&self) -> Result<(), BlockError> {
        self.memory.flush()
    }
    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        self.memory.discard(lba, blocks)
    }
}

#[test]
fn a_read_of_the_device_stops_no_other_call() {
    let device = Arc::new(Gated {
        memory: MemoryDevice::from_bytes(BLOCK as u32, mke2fs(&["-b", "4096"], "32M")),
        gate: Mutex::default(),
        changed: Condvar::new(),
    });
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
    // What all calls need is in memory: names, inodes, bitmaps.
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
        // Part of a block, which must be read first.
        let part = scope.spawn(|| fs.write(&Ctx::root(), inos[2], 100, b"part").unwrap());
        device.wait_for_readers(3);
        // With the tree's lock held by any of them, these would wait for ever.
        fs.create(&cx, Ino::ROOT, b"new", 0o644).unwrap();
        fs.write(&cx, inos[2], 8 * BLOCK, &[2; BLOCK as usize])
            .unwrap();
        fs.unlink(&cx, Ino::ROOT, b"warm").unwrap();
        assert!(!part.is_finished());
        device.open();
    });
}
