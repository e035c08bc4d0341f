//! Calls that others get ahead of.

use super::fixture::{Mounted, clock, device, e2fsck, mke2fs, options};
use blockfs::{BlockFs, BlockFsOptions};
use ext2::{Ext2, Options};
use medium::block::{BlockError, Buffer, Lba};
use parking_lot::Mutex;
use patch::{Before, Cache, Change, Content, Op, PatchId, Patched, Store, StoreError, Volume};
use std::sync::Arc;
use vfs::{Ctx, Errno, Fallocate, FileSystem, Guarantees, Ino};

type Hook = Box<dyn FnOnce() + Send>;

/// A store that runs a hook, once, before the next operation begins.
struct Hooked {
    inner: Volume,
    before_begin: Arc<Mutex<Option<Hook>>>,
}

impl Store for Hooked {
    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        self.inner.read(lba)
    }
    fn cached(&self, lba: Lba) -> Option<Arc<Buffer>> {
        self.inner.cached(lba)
    }
    fn prefetch(&self, lba: Lba, blocks: u64) {
        self.inner.prefetch(lba, blocks);
    }
    fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError> {
        self.inner.ready(blocks)
    }
    fn max_op_blocks(&self) -> u32 {
        self.inner.max_op_blocks()
    }
    fn begin(&self, blocks: u32) -> Result<Op, StoreError> {
        let hook = self.before_begin.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.begin(blocks)
    }
    fn end(&self, op: Op) {
        self.inner.end(op);
    }
    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        self.inner.change(op, lba, content, change, befores)
    }
    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        self.inner.freed(op, lba, befores, unreachable)
    }
    fn is_pending(&self, patch: PatchId) -> bool {
        self.inner.is_pending(patch)
    }
    fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        self.inner.sync(patches)
    }
    fn sync_all(&self) -> Result<(), StoreError> {
        self.inner.sync_all()
    }
    fn failure(&self) -> Option<Arc<BlockError>> {
        self.inner.failure()
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
    let options = Options {
        clock: clock(),
        ..Options::default()
    };
    let format = Ext2::open(store, options).unwrap();
    let options = BlockFsOptions::new(Guarantees::none("test"));
    let fs = BlockFs::open(format, options).unwrap();
    let fs = Arc::new(fs);
    let make = |name: &[u8]| fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
    let (first, second) = (make(b"first"), make(b"second"));
    let free = fs.statfs().unwrap().blocks_free;
    // Another call takes half of what is free when this one has looked around.
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
