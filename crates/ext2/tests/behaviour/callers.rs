//! Layers receive the process that asked for each change.

use super::fixture::{clock, device, mke2fs, options};
use blockfs::mount::OpenOptions;
use blockfs::{BlockFs, BlockFsOptions};
use ext2::Ext2;
use medium::block::Lba;
use parking_lot::Mutex;
use patch::{
    Before, Cache, Caller, Change, Content, DeviceStore, Op, Patched, Store, StoreError,
    StoreLayer, Trace,
};
use std::collections::HashSet;
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Guarantees, Ino, SetAttr};

type Callers = Arc<Mutex<HashSet<Caller>>>;

/// A store that collects the callers of changes.
struct Collecting {
    below: DeviceStore,
    callers: Callers,
}

impl StoreLayer for Collecting {
    type Below = DeviceStore;

    fn below(&self) -> &DeviceStore {
        &self.below
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        self.callers.lock().insert(op.caller().clone());
        self.below.change(op, lba, content, change, befores)
    }
}

#[test]
fn changes_carry_their_caller_through_the_layers() {
    let device = device(mke2fs(&["-b", "1024"], "4M"));
    let cache = Arc::new(Cache::new(vec![Box::new(device)], options(4096)));
    let callers = Callers::default();
    let collecting = Collecting {
        below: cache.store(0),
        callers: callers.clone(),
    };
    let store: Arc<dyn Store> = Arc::new(Trace(collecting));
    let low = OpenOptions {
        clock: clock(),
        ..OpenOptions::default()
    };
    let options = BlockFsOptions::new(Guarantees::none("test"));
    let fs = BlockFs::open(Ext2::open(store, low).unwrap(), options).unwrap();
    let seen = |what: &str, run: &dyn Fn(&Ctx)| {
        callers.lock().clear();
        let cx = Ctx {
            pid: 77,
            gid: 100,
            ..Ctx::root()
        };
        run(&cx);
        let (uid, gid, pid) = (cx.uid, cx.gid, cx.pid);
        let expected = HashSet::from([Caller {
            uid,
            gid,
            pid,
            sets: patch::Sets::NONE,
        }]);
        assert_eq!(*callers.lock(), expected, "{what}");
    };
    seen("create", &|cx| {
        fs.create(cx, Ino::ROOT, b"file", 0o644).unwrap();
    });
    let ino = fs.lookup(&Ctx::root(), Ino::ROOT, b"file").unwrap().ino;
    seen("write", &|cx| {
        fs.write(cx, ino, 0, &[1; 9000]).unwrap();
    });
    seen("chmod", &|cx| {
        let set = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).unwrap();
    });
    fs.forget(ino, 2);
    seen("unlink", &|cx| fs.unlink(cx, Ino::ROOT, b"file").unwrap());
}
