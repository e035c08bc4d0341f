//! Memory runs out: a call fails then.

use medium::MemoryPmem;
use soupfs::{Atime, MkfsOptions, Mode, MountOptions, SoupFs, mkfs};
use std::sync::Arc;
use vfs::{Ctx, Errno, Fallocate, FileSystem, Ino, SetAttr};

const PAGE: u64 = 4096;

type Fs = SoupFs<Arc<MemoryPmem>>;

/// A file system whose persister works in `fsync` and `sync` only.
fn open(pm: &Arc<MemoryPmem>, mode: Mode) -> Fs {
    let options = MountOptions {
        atime: Atime::Never,
        bound_s: None,
        mode,
        ..MountOptions::default()
    };
    SoupFs::open(Arc::clone(pm), options).unwrap()
}

fn made(bytes: u64, mode: Mode) -> (Arc<MemoryPmem>, Fs) {
    let pm = Arc::new(MemoryPmem::new(bytes));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = open(&pm, mode);
    (pm, fs)
}

fn create(fs: &dyn FileSystem, name: &str) -> Ino {
    let made = fs.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o644);
    made.unwrap().ino
}

fn resize(fs: &dyn FileSystem, file: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Ctx::root(), file, &set).unwrap();
}

#[test]
fn a_call_that_fails_leaves_nothing_past_the_end() {
    let (_, fs) = made(1 << 20, Mode::default());
    let (cx, file) = (Ctx::root(), create(&fs, "f"));
    fs.write(&cx, file, 0, &[1; 100]).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    let full = Err(Errno::NOSPC);
    assert_eq!(fs.write(&cx, file, 100, &vec![2; 2 << 20]), full);
    let grow = Fallocate::Allocate { keep_size: false };
    let most = (free + 2) * PAGE;
    assert_eq!(fs.fallocate(&cx, file, grow, 0, most), Err(Errno::NOSPC));
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    resize(&fs, file, 1 << 20);
    let mut bytes = vec![0; 1 << 20];
    fs.read(&cx, file, 0, &mut bytes).unwrap();
    assert_eq!(bytes[..100], [1; 100]);
    assert!(bytes[100..].iter().all(|byte| *byte == 0));
}
