//! Calls that other calls overtake.

use super::fixture::{Mounted, clock, device, e2fsck, mke2fs, options};
use blockfs::mount::OpenOptions;
use blockfs::{BlockFs, BlockFsOptions};
use ext2::Ext2;
use medium::block::{Buffer, Lba, MemoryDevice};
use parking_lot::Mutex;
use patch::{
    Before, Cache, CacheOptions, Caller, Change, Content, DeviceStore, Op, Patched, Store,
    StoreError, StoreLayer,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use vfs::{Ctx, Errno, Fallocate, FileSystem, Guarantees, Ino};

const BLOCK: u64 = 1024;

type Hook = Box<dyn FnOnce() + Send>;

/// A moment at which a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Before the next operation begins.
    BeforeBegin,
    /// Before the next read or the begin of the next operation.
    BeforeCall,
    /// Before the next change.
    BeforeChange,
    /// After the next operation ended.
    AfterEnd,
}

/// A hook that runs once.
type Armed = Arc<Mutex<Option<(When, Hook)>>>;

/// A store that runs a hook.
struct Hooked {
    inner: DeviceStore,
    hook: Armed,
}

impl Hooked {
    fn reach(&self, moments: &[When]) {
        let hook = self.hook.lock().take_if(|(when, _)| moments.contains(when));
        if let Some((_, hook)) = hook {
            hook();
        }
    }
}

impl StoreLayer for Hooked {
    type Below = DeviceStore;

    fn below(&self) -> &DeviceStore {
        &self.inner
    }

    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        self.reach(&[When::BeforeCall]);
        self.inner.read(lba)
    }

    fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError> {
        self.reach(&[When::BeforeBegin, When::BeforeCall]);
        self.inner.begin(blocks, caller)
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        self.reach(&[When::BeforeChange]);
        self.inner.change(op, lba, content, change, befores)
    }

    fn end(&self, op: Op) {
        self.inner.end(op);
        self.reach(&[When::AfterEnd]);
    }
}

type Fs = Arc<BlockFs<Ext2>>;

/// A file system on a store with a hook.
struct Bench {
    fs: Fs,
    hook: Armed,
    cache: Arc<Cache>,
    device: Arc<MemoryDevice>,
}

impl Bench {
    fn new(cache: CacheOptions) -> Self {
        let device = device(mke2fs(&["-b", "1024"], "4M"));
        let cache = Arc::new(Cache::new(vec![Box::new(device.clone())], cache));
        let hook = Armed::default();
        let store = Arc::new(Hooked {
            inner: cache.store(0),
            hook: hook.clone(),
        });
        let options = OpenOptions {
            clock: clock(),
            ..OpenOptions::default()
        };
        let format = Ext2::open(store, options).unwrap();
        let options = BlockFsOptions::new(Guarantees::none("test"));
        let fs = Arc::new(BlockFs::open(format, options).unwrap());
        Self {
            fs,
            hook,
            cache,
            device,
        }
    }

    fn make(&self, name: &[u8]) -> Ino {
        let made = self.fs.create(&Ctx::root(), Ino::ROOT, name, 0o644);
        made.unwrap().ino
    }

    /// Unmounts. e2fsck must find no problem.
    fn close(self) {
        let Self {
            fs, cache, device, ..
        } = self;
        let fs = Arc::into_inner(fs).unwrap();
        let image = Mounted { fs, cache, device }.close();
        assert_eq!(e2fsck(&image), None);
    }
}

#[test]
fn a_fallocate_that_finds_no_room_takes_none() {
    let bench = Bench::new(options(4096));
    let (cx, fs) = (Ctx::root(), &bench.fs);
    let (first, second) = (bench.make(b"first"), bench.make(b"second"));
    let free = fs.statfs().unwrap().blocks_free;
    // Another call takes half of the free blocks after this one has checked for room.
    let other = fs.clone();
    let half = vec![1; (free / 2 * BLOCK) as usize];
    let hook: Hook = Box::new(move || {
        assert_eq!(other.write(&Ctx::root(), second, 0, &half), Ok(half.len()));
    });
    *bench.hook.lock() = Some((When::BeforeBegin, hook));
    let whole = Fallocate::Allocate { keep_size: false };
    let done = fs.fallocate(&cx, first, whole, 0, (free - 20) * BLOCK);
    assert_eq!(done, Err(Errno::NOSPC));
    assert_eq!(fs.getattr(&cx, first).unwrap().blocks, 0);
    bench.close();
}

/// A subscriber that reports the event of a call that waits for room.
struct Waits(Sender<()>);

impl Subscriber for Waits {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("blockfs")
    }
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == "blockfs::fs::dying" {
            event.record(&mut &*self);
        }
    }
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

impl Visit for &Waits {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        const WAITS: &str = "a call without room waits for inodes that are being freed";
        if field.name() == "message" && format!("{value:?}") == WAITS {
            let _ = self.0.send(());
        }
    }
}

/// Runs `free`, which removes the last name or reference of a file that fills the disk. At the
/// moment `when`, `statfs` counts the file's blocks as free, and another thread takes them.
fn written_while_freed(when: When, free: impl Fn(&Bench, Ino)) {
    // Larger writes than an operation check for room before they begin one.
    let bench = Bench::new(CacheOptions {
        blocks: 16_384,
        ..options(1024)
    });
    let (old, new) = (bench.make(b"old"), bench.make(b"new"));
    let blocks = bench.fs.statfs().unwrap().blocks_free - 40;
    let data = vec![1; (blocks * BLOCK) as usize];
    let written = Ok(data.len());
    assert_eq!(bench.fs.write(&Ctx::root(), old, 0, &data), written);
    let (result, results) = channel();
    let fs = bench.fs.clone();
    let hook: Hook = Box::new(move || {
        assert!(fs.statfs().unwrap().blocks_free >= blocks);
        let (waits, ended) = channel();
        std::thread::spawn(move || {
            let subscriber = Waits(waits.clone());
            let done = tracing::subscriber::with_default(subscriber, || {
                fs.write(&Ctx::root(), new, 0, &data)
            });
            drop(fs);
            let _ = (result.send(done), waits.send(()));
        });
        let limit = std::time::Duration::from_secs(60);
        ended.recv_timeout(limit).expect("the write waits or ends");
    });
    // The hook stops `free` until the write waits or has ended.
    *bench.hook.lock() = Some((when, hook));
    free(&bench, old);
    assert_eq!(results.recv().unwrap(), written);
    bench.close();
}

#[test]
fn a_write_waits_for_the_blocks_of_a_file_after_its_last_reference() {
    let unlink = |bench: &Bench| bench.fs.unlink(&Ctx::root(), Ino::ROOT, b"old");
    written_while_freed(When::BeforeCall, |bench, old| {
        let hook = bench.hook.lock().take();
        unlink(bench).unwrap();
        *bench.hook.lock() = hook;
        bench.fs.forget(old, 1);
    });
}

#[test]
fn a_write_waits_for_the_blocks_of_a_file_after_its_last_name() {
    written_while_freed(When::AfterEnd, |bench, old| {
        let hook = bench.hook.lock().take();
        bench.fs.forget(old, 1);
        *bench.hook.lock() = hook;
        bench.fs.unlink(&Ctx::root(), Ino::ROOT, b"old").unwrap();
    });
}

#[test]
fn a_file_that_loses_its_last_reference_during_its_unlink_is_freed() {
    let bench = Bench::new(options(4096));
    let (cx, fs) = (Ctx::root(), &bench.fs);
    fs.forget(bench.make(b"first"), 1);
    let free = fs.statfs().unwrap();
    let file = bench.make(b"file");
    fs.write(&cx, file, 0, &[1; 20 * BLOCK as usize]).unwrap();
    let other = fs.clone();
    let hook: Hook = Box::new(move || other.forget(file, 1));
    *bench.hook.lock() = Some((When::BeforeChange, hook));
    fs.unlink(&cx, Ino::ROOT, b"file").unwrap();
    assert!(
        bench.hook.lock().is_none(),
        "the unlink has changed something"
    );
    assert_eq!(fs.statfs().unwrap(), free);
    bench.close();
}
