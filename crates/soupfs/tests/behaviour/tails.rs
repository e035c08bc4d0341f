//! The bytes of a block after the end of its file: a round does not flush them, and nobody sees them.

use medium::{Counting, MemoryPmem, PersistModel, Pmem, PowerCut};
use soupfs::{Atime, MkfsOptions, MountOptions, mkfs};
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino, SetAttr};

const PAGE: usize = 4096;
const TEXT: [u8; 100] = [b'a'; 100];

/// A file system whose persister works in `fsync` and `sync` only.
fn open(pm: &Arc<impl Pmem + 'static>) -> crate::Fs {
    let options = MountOptions {
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    };
    crate::open(Arc::clone(pm), options).unwrap()
}

fn create(fs: &dyn FileSystem, name: &str) -> Ino {
    let made = fs.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o644);
    made.unwrap().ino
}

/// Fills nearly all memory with a file, and removes it. Its tree needs the rest.
fn leave_bytes_everywhere(fs: &dyn FileSystem) {
    let file = create(fs, "full");
    let free = fs.statfs().unwrap().blocks_free;
    for n in 0..free - 4 {
        let off = n * PAGE as u64;
        fs.write(&Ctx::root(), file, off, &[0xff; PAGE]).unwrap();
    }
    fs.sync().unwrap();
    fs.forget(file, 1);
    fs.unlink(&Ctx::root(), Ino::ROOT, b"full").unwrap();
    fs.sync().unwrap();
    // Memory that was never used is taken first.
    let spacer = create(fs, "spacer");
    fs.write(&Ctx::root(), spacer, 0, &[0xff; 8 * PAGE])
        .unwrap();
}

#[test]
fn a_small_file_flushes_its_bytes_only() {
    let pm = Arc::new(Counting::new(MemoryPmem::new(2 << 20)));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = open(&pm);
    let ino = create(&fs, "small");
    fs.sync().unwrap();
    fs.write(&Ctx::root(), ino, 0, &TEXT).unwrap();
    let before = pm.snapshot();
    fs.fsync(&Ctx::root(), ino, false).unwrap();
    let lines = (pm.snapshot() - before).flushed_lines;
    // Two of them have the bytes. The others have the inode and the bitmap.
    assert!((3..16).contains(&lines), "{lines} lines");
}

#[test]
fn growth_after_a_crash_shows_zeros() {
    for seed in 0..16 {
        for (size, off) in [(PAGE as u64, None), (300, None), (2000, Some(1900))] {
            let pm = Arc::new(PowerCut::new(MemoryPmem::new(2 << 20)));
            mkfs(&*pm, &MkfsOptions::default()).unwrap();
            let fs = open(&pm);
            leave_bytes_everywhere(&fs);
            let ino = create(&fs, "small");
            fs.write(&Ctx::root(), ino, 0, &TEXT).unwrap();
            fs.fsync(&Ctx::root(), ino, false).unwrap();
            pm.cut(seed, PersistModel::Words).unwrap();
            drop(fs);
            grows(
                &Arc::new(PowerCut::new(MemoryPmem::copy_of(pm.inner()).unwrap())),
                seed,
                size,
                off,
            );
        }
    }
}

/// The file grows, by a truncate or by a write; then the power is cut again.
fn grows(pm: &Arc<PowerCut<MemoryPmem>>, seed: u64, size: u64, off: Option<u64>) {
    let fs = open(pm);
    let cx = Ctx::root();
    let ino = fs.lookup(&cx, Ino::ROOT, b"small").unwrap().ino;
    assert_eq!(fs.getattr(&cx, ino).unwrap().size, TEXT.len() as u64);
    let mut wanted = vec![0; size as usize];
    wanted[..TEXT.len()].copy_from_slice(&TEXT);
    match off {
        Some(off) => {
            let len = (size - off) as usize;
            wanted[off as usize..].fill(b'b');
            assert_eq!(fs.write(&cx, ino, off, &vec![b'b'; len]).unwrap(), len);
        }
        None => {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(&cx, ino, &set).unwrap();
        }
    }
    let read = |fs: &dyn FileSystem, ino| {
        let mut bytes = vec![1; PAGE];
        let len = fs.read(&cx, ino, 0, &mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    };
    assert!(read(&fs, ino) == wanted, "before a crash, seed {seed}");
    fs.fsync(&cx, ino, false).unwrap();
    pm.cut(seed, PersistModel::Words).unwrap();
    let image = Arc::new(MemoryPmem::copy_of(pm.inner()).unwrap());
    let fs = open(&image);
    let ino = fs.lookup(&cx, Ino::ROOT, b"small").unwrap().ino;
    assert!(read(&fs, ino) == wanted, "after a crash, seed {seed}");
}
