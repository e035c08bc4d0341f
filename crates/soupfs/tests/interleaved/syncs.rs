//! A sync in the smallest portions, beside calls that move what it has not reached yet: what was there
//! before the sync is there after a power failure when it has returned.

use crate::check::check;
use crate::format::{MIN_PAGES, PAGE};
use crate::fs::SoupFs;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::mode::Mode;
use crate::options;
use crate::pressure::Portion;
use crate::shared::Shared;
use crate::sharing::Sharing;
use oracle::snapshot::Snapshot;
use shuttle::thread;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, FileType, Ino, Name, RenameFlags};

/// Files of a directory.
const FILES: usize = 3;

struct Mounted {
    pm: Arc<Shared>,
    fs: SoupFs<Arc<Shared>>,
    /// A directory that no round has stored.
    dir: Ino,
}

impl Mounted {
    fn new() -> Arc<Self> {
        let pm = Arc::new(Shared::new(MIN_PAGES * PAGE));
        mkfs(&*pm, &MkfsOptions::default()).expect("it is large enough");
        let (options, sharing) = (options(false, Mode::default()), Sharing::among(1));
        let fs = SoupFs::open_with(Arc::clone(&pm), options, sharing, Portion::LEAST);
        let fs = fs.expect("a mount");
        let dir = fs.mkdir(&Ctx::root(), Ino::ROOT, b"A", 0o755);
        let dir = dir.expect("there is room").ino;
        Arc::new(Self { pm, fs, dir })
    }

    /// Makes files whose names begin like this.
    fn make(&self, dir: Ino, name: &str) {
        for n in 0..FILES {
            let name = format!("{name}{n}");
            let made = self.fs.create(&Ctx::root(), dir, name.as_bytes(), 0o644);
            let made = made.expect("there is room");
            self.fs.forget(made.ino, 1);
        }
    }

    fn sync(&self) {
        self.fs.sync().expect("memory does not fail");
    }

    fn beside(self: &Arc<Self>, call: impl Fn(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let mounted = Arc::clone(self);
        thread::spawn(move || call(&mounted))
    }

    /// Whether each of these files of a directory has one of two names after a power failure now.
    fn check(&self, dir: Ino, names: [&str; 2]) {
        let left = Arc::new(self.pm.durable());
        let there = SoupFs::open(left, options(true, Mode::default())).expect("a mount");
        for n in 0..FILES {
            let is_there = names.iter().any(|name| {
                let name = format!("{name}{n}");
                there.lookup(&Ctx::root(), dir, name.as_bytes()).is_ok()
            });
            assert!(is_there, "{names:?}, {n}: the sync has left it out");
        }
    }
}

/// A rename takes the place of a creation that the sync has not reached, and is later than the sync.
pub(crate) fn beside_renames() {
    let mounted = Mounted::new();
    mounted.make(mounted.dir, "old");
    let other = mounted.beside(|mounted| {
        for n in 0..FILES {
            let (from, to) = (format!("old{n}"), format!("new{n}"));
            let [from, to] = [&from, &to].map(|name| Name::new(mounted.dir, name.as_bytes()));
            let flags = RenameFlags::default();
            let moved = mounted.fs.rename(&Ctx::root(), from, to, flags);
            moved.expect("there is room");
        }
    });
    mounted.sync();
    mounted.check(mounted.dir, ["old", "new"]);
    other.join().expect("no call panics");
}

/// An fsync stores a directory that the sync has not reached, and leaves the other names in it.
pub(crate) fn beside_an_fsync() {
    let mounted = Mounted::new();
    let inner = mounted.fs.mkdir(&Ctx::root(), mounted.dir, b"inner", 0o755);
    let inner = inner.expect("there is room").ino;
    mounted.make(mounted.dir, "outer");
    mounted.make(inner, "inner");
    let other = mounted.beside(move |mounted| {
        let last = format!("inner{}", FILES - 1);
        let file = mounted.fs.lookup(&Ctx::root(), inner, last.as_bytes());
        let file = file.expect("it is there").ino;
        let synced = mounted.fs.fsync(&Ctx::root(), file, false);
        synced.expect("memory does not fail");
    });
    mounted.sync();
    mounted.check(inner, ["inner", "inner"]);
    other.join().expect("no call panics");
}

/// Names that came during a sync are those of the next one.
pub(crate) fn before_another_one() {
    let mounted = Mounted::new();
    mounted.make(mounted.dir, "first");
    let other = mounted.beside(|mounted| mounted.make(mounted.dir, "later"));
    mounted.sync();
    other.join().expect("no call panics");
    mounted.sync();
    let latest = Snapshot::take(&mounted.fs).expect("it can be read");
    let left = Arc::new(mounted.pm.durable());
    let there = SoupFs::open(left, options(true, Mode::default())).expect("a mount");
    let there = Snapshot::take(&there).expect("it can be read");
    let is_same = there.is_same_except_times(&latest);
    assert!(is_same, "{:#?}", latest.diff(&there));
}

/// A lookup finds a file under its name, or none. Some files are stored, and their memory is used again
/// for directories.
pub(crate) fn lookups_beside_removals() {
    let mounted = Mounted::new();
    mounted.make(mounted.dir, "old");
    mounted.sync();
    mounted.make(mounted.dir, "new");
    let other = mounted.beside(|mounted| {
        let (cx, dir) = (Ctx::root(), mounted.dir);
        for (n, name) in (0..FILES).flat_map(|n| [(n, "old"), (n, "new")]) {
            let removed = mounted.fs.unlink(&cx, dir, format!("{name}{n}").as_bytes());
            removed.expect("it is there");
            let made = mounted
                .fs
                .mkdir(&cx, dir, format!("dir of {name}{n}").as_bytes(), 0o755);
            mounted.fs.forget(made.expect("there is room").ino, 1);
        }
    });
    let rounds = mounted.beside(|mounted| (0..FILES).for_each(|_| mounted.sync()));
    for (n, name) in (0..FILES).flat_map(|n| [(n, "old"), (n, "new")]) {
        let name = format!("{name}{n}");
        match mounted
            .fs
            .lookup(&Ctx::root(), mounted.dir, name.as_bytes())
        {
            Ok(found) => {
                assert_eq!((found.kind, found.nlink), (FileType::Regular, 1), "{name}");
                mounted.fs.forget(found.ino, 1);
            }
            Err(e) => assert_eq!(e, Errno::NOENT, "{name}"),
        }
    }
    other.join().expect("no call panics");
    rounds.join().expect("no round panics");
    mounted.sync();
    assert_eq!(check(&*mounted.pm).findings, []);
}

/// Files are removed in the middle of rounds that take the removals. In the end their memory is free.
pub(crate) fn beside_removals() {
    let mounted = Mounted::new();
    mounted.make(mounted.dir, "old");
    mounted.sync();
    let other = mounted.beside(|mounted| {
        for n in 0..FILES {
            let name = format!("old{n}");
            let removed = mounted
                .fs
                .unlink(&Ctx::root(), mounted.dir, name.as_bytes());
            removed.expect("it is there");
        }
    });
    (0..FILES).for_each(|_| mounted.sync());
    other.join().expect("no call panics");
    mounted.sync();
    assert_eq!(check(&*mounted.pm).findings, []);
}
