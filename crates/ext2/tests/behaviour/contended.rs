//! Calls that other calls overtake.

use super::fixture::{Mounted, clock, device, e2fsck, mke2fs, options};
use blockfs::mount::OpenOptions;
use blockfs::{BlockFs, BlockFsOptions};
use ext2::Ext2;
use parking_lot::Mutex;
use patch::{Cache, Caller, Op, Store, StoreError, StoreLayer, Volume};
use std::sync::Arc;
use vfs::{Ctx, Errno, Fallocate, FileSystem, Guarantees, Ino};

type Hook = Box<dyn FnOnce() + Send>;

/// A store that runs a hook, once, before the next operation begins.
struct Hooked {
    inner: Volume,
    before_begin: Arc<Mutex<Option<Hook>>>,
}

impl StoreLayer for Hooked {
    type Below = Volume;

    fn below(&self) -> &Volume {
        &self.inner
    }

    fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError> {
        let hook = self.before_begin.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.begin(blocks, caller)
    }
}

#[test]
fn a_fallocate_that_finds_no_room_takes_none() {
    const BLOCK: u64 = 1024;
    let cx = Ctx::root();
    let device = device(mke2fs(&["-b", "1024"], "4M"));
    let cache = Arc::new(Cache::new(vec![Box::new(device.clone())], options(4096)));
    let before_begin = Arc::new(Mutex::new(None));
    let store = Arc::new(Hooked {
        inner: cache.volume(0),
        before_begin: before_begin.clone(),
    });
    let options = OpenOptions {
        clock: clock(),
        ..OpenOptions::default()
    };
    let format = Ext2::open(store, options).unwrap();
    let options = BlockFsOptions::new(Guarantees::none("test"));
    let fs = BlockFs::open(format, options).unwrap();
    let fs = Arc::new(fs);
    let make = |name: &[u8]| fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
    let (first, second) = (make(b"first"), make(b"second"));
    let free = fs.statfs().unwrap().blocks_free;
    // Another call takes half of the free blocks after this one has checked for room.
    let other = fs.clone();
    let half = vec![1; (free / 2 * BLOCK) as usize];
    *before_begin.lock() = Some(Box::new(move || {
        assert_eq!(other.write(&Ctx::root(), second, 0, &half), Ok(half.len()));
    }) as Hook);
    let whole = Fallocate::Allocate { keep_size: false };
    let done = fs.fallocate(&cx, first, whole, 0, (free - 20) * BLOCK);
    assert_eq!(done, Err(Errno::NOSPC));
    assert_eq!(fs.getattr(&cx, first).unwrap().blocks, 0);
    drop(before_begin);
    let fs = Arc::into_inner(fs).unwrap();
    let image = Mounted { fs, cache, device }.close();
    assert_eq!(e2fsck(&image), None);
}
