//! Calls between the moments at which a round frees its pages: the memory is used again, and calls
//! must not walk it as what it was.

use medium::{MemoryPmem, Pmem};
use soupfs::{Atime, MkfsOptions, MountOptions, mkfs};
use std::sync::{Arc, Mutex, OnceLock};
use vfs::{Ctx, Errno, FileSystem, Ino, SeekKind};

const PAGE: u64 = 4096;
/// The bitmap begins after the page of the superblock (format.md).
const BITMAP: u64 = PAGE;

type Call = Box<dyn FnMut() + Send>;

/// Memory that makes a call after each flush of the first page of the bitmap.
struct Between {
    inner: MemoryPmem,
    call: Mutex<Option<Call>>,
}

impl medium::layer::PmemLayer for Between {
    type Below = MemoryPmem;

    fn below(&self) -> &MemoryPmem {
        &self.inner
    }

    fn flush(&self, off: u64, len: u64) {
        self.inner.flush(off, len);
        // Not for a flush within the call.
        if (BITMAP..BITMAP + PAGE).contains(&off)
            && let Ok(mut call) = self.call.try_lock()
            && let Some(call) = &mut *call
        {
            call();
        }
    }
}

/// Writes blocks to a file until there is no memory; returns their number.
fn fill(fs: &dyn FileSystem, file: Ino) -> u64 {
    (0..)
        .find(|n| {
            fs.write(&Ctx::root(), file, n * PAGE, &[0xff; PAGE as usize])
                .is_err()
        })
        .expect("memory has an end")
}

#[test]
fn a_tree_is_not_walked_after_its_pages_are_free() {
    let pm = Arc::new(Between {
        inner: MemoryPmem::new(2 << 20),
        call: Mutex::default(),
    });
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let options = MountOptions {
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    };
    let fs = Arc::new(crate::open(Arc::clone(&pm), options).unwrap());
    let cx = Ctx::root();
    let make = |name: &str| {
        fs.create(&cx, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap()
            .ino
    };
    let (cut, other, room) = (make("cut"), make("other"), make("room"));
    for n in 0..128 {
        fs.write(&cx, cut, n * PAGE, &[1; PAGE as usize]).unwrap();
    }
    fs.write(&cx, room, 0, &[1; 16 * PAGE as usize]).unwrap();
    assert!(fill(&*fs, other) > 100);
    fs.truncate(&cx, room, 0).unwrap();
    fs.sync().unwrap();
    fs.truncate(&cx, cut, 0).unwrap();
    fs.truncate(&cx, cut, 128 * PAGE).unwrap();
    let seen = Arc::new(OnceLock::new());
    let (again, wrong) = (Arc::clone(&fs), Arc::clone(&seen));
    let mut calls = 0;
    *pm.call.lock().unwrap() = Some(Box::new(move || {
        let at = (1000 + calls) * PAGE;
        calls += 1;
        let written = again.write(&Ctx::root(), other, at, &[0xff; PAGE as usize]);
        let found = again.seek(&Ctx::root(), cut, 0, SeekKind::Data);
        if found != Err(Errno::NXIO) {
            let _ = wrong.set((calls, written, found));
        }
    }));
    fs.sync().unwrap();
    *pm.call.lock().unwrap() = None;
    assert_eq!(seen.get(), None, "a file without data has some");
    let size = fs.getattr(&cx, other).unwrap().size;
    assert!(size > 1100 * PAGE, "calls were made: {size}");
}
