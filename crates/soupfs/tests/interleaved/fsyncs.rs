//! Threads that make and remove files in one directory, each with an fsync: what was made durable is
//! there after a power failure at any later moment.

use crate::check::check;
use crate::format::{Hash, MIN_PAGES, PAGE};
use crate::fs::SoupFs;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::mode::Mode;
use crate::mount::seed;
use crate::options;
use crate::shared::Shared;
use crate::view::CHAIN_MAX;
use medium::MemoryPmem;
use oracle::snapshot::Snapshot;
use shuttle::thread;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, Ino, SetAttr};

/// Files that each thread makes.
const FILES: usize = 3;

/// A directory with some names, whose chains are on the medium.
struct Dir {
    pm: Arc<Shared>,
    fs: Arc<SoupFs<Arc<Shared>>>,
    ino: Ino,
    names: usize,
}

/// A creation or a removal, and the memory that a power failure would have left then.
struct Done {
    name: String,
    is_made: bool,
    left: Arc<MemoryPmem>,
}

pub(crate) fn in_one_chain() {
    Dir::with(0).made_by_both([0, 0]);
}

/// The first file makes the chain too long, so that its round splits it.
pub(crate) fn beside_a_split() {
    Dir::with(CHAIN_MAX).made_by_both([0, 0]);
}

/// The second thread also removes what the first one makes.
pub(crate) fn beside_removals() {
    let dir = Arc::new(Dir::with(CHAIN_MAX + 1));
    let firsts: Vec<_> = new_names(0).take(FILES).collect();
    let maker = dir.start(firsts.clone(), Vec::new());
    let remover = dir.start(new_names(1).take(FILES).collect(), firsts);
    dir.check([maker, remover].map(|thread| thread.join().expect("no call panics")));
}

/// A thread makes a directory in one whose rights another one changes, and changes them back before.
pub(crate) fn beside_a_change_of_rights() {
    let dir = Arc::new(Dir::with(CHAIN_MAX + 1));
    let changer = {
        let dir = Arc::clone(&dir);
        thread::spawn(move || {
            dir.set_rights(0o700);
            let synced = dir.fs.fsyncdir(&Ctx::root(), dir.ino, false);
            synced.expect("memory does not fail");
        })
    };
    dir.set_rights(0o755);
    let made = dir.fs.mkdir(&Ctx::root(), dir.ino, b"directory", 0o755);
    let made = made.expect("there is room").ino;
    let synced = dir.fs.fsyncdir(&Ctx::root(), made, false);
    synced.expect("memory does not fail");
    changer.join().expect("no call panics");
    // The links of the directory are those of its names.
    assert_eq!(check(&*dir.pm).findings, []);
}

/// A file is made durable after the rights of its directory were changed, while another thread makes those durable.
pub(crate) fn after_a_change_of_rights() {
    let dir = Arc::new(Dir::with(CHAIN_MAX + 1));
    dir.set_rights(0o700);
    let other = {
        let dir = Arc::clone(&dir);
        thread::spawn(move || {
            let synced = dir.fs.fsyncdir(&Ctx::root(), dir.ino, false);
            synced.expect("memory does not fail");
        })
    };
    let made = dir.made("secret".into());
    other.join().expect("no call panics");
    let there = SoupFs::open(made.left, options(true, Mode::default())).expect("a mount");
    let attr = there.getattr(&Ctx::root(), dir.ino).expect("it is there");
    assert_eq!(
        attr.perm, 0o700,
        "a power failure undid the change of rights"
    );
}

/// Names that are in the part with this number when the first chain is split.
fn new_names(part: u64) -> impl Iterator<Item = String> {
    let seed = seed(&MkfsOptions::default().uuid);
    let part_of = move |name: &String| Hash::of(name.as_bytes(), seed).index(0);
    let names = (0..).map(|n| format!("new{n}"));
    names.filter(move |name| part_of(name) == part)
}

impl Dir {
    fn with(names: usize) -> Self {
        let pm = Arc::new(Shared::new(MIN_PAGES * PAGE));
        mkfs(&*pm, &MkfsOptions::default()).expect("it is large enough");
        let fs = SoupFs::open(Arc::clone(&pm), options(false, Mode::default()));
        let fs = Arc::new(fs.expect("a mount"));
        let ino = fs.mkdir(&Ctx::root(), Ino::ROOT, b"A", 0o755);
        let ino = ino.expect("there is room").ino;
        let dir = Self { pm, fs, ino, names };
        for n in 0..names {
            let made = dir.make(&format!("old{n}"));
            dir.fs.forget(made, 1);
        }
        if names > 0 {
            dir.fs.sync().expect("memory does not fail");
        }
        dir
    }

    fn make(&self, name: &str) -> Ino {
        let made = self
            .fs
            .create(&Ctx::root(), self.ino, name.as_bytes(), 0o644);
        made.expect("there is room").ino
    }

    fn set_rights(&self, perm: u32) {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        let set = self.fs.setattr(&Ctx::root(), self.ino, &set);
        set.expect("root may");
    }

    /// Each thread makes files with names in these parts.
    fn made_by_both(self, parts: [u64; 2]) {
        let dir = Arc::new(self);
        let mut skipped = 0;
        let threads = parts.map(|part| {
            let own = new_names(part).skip(skipped).take(FILES).collect();
            skipped += FILES;
            dir.start(own, Vec::new())
        });
        dir.check(threads.map(|thread| thread.join().expect("no call panics")));
    }

    /// Starts a thread that makes files, and removes others, if they are there, in turn.
    fn start(
        self: &Arc<Self>,
        made: Vec<String>,
        removed: Vec<String>,
    ) -> thread::JoinHandle<Vec<Done>> {
        let dir = Arc::clone(self);
        thread::spawn(move || {
            let mut removed = removed.into_iter();
            let mut done = Vec::new();
            for name in made {
                done.push(dir.made(name));
                done.extend(removed.next().and_then(|name| dir.removed(name)));
            }
            done
        })
    }

    fn made(&self, name: String) -> Done {
        let ino = self.make(&name);
        let synced = self.fs.fsync(&Ctx::root(), ino, false);
        synced.expect("memory does not fail");
        self.fs.forget(ino, 1);
        Done {
            name,
            is_made: true,
            left: Arc::new(self.pm.durable()),
        }
    }

    fn removed(&self, name: String) -> Option<Done> {
        match self.fs.unlink(&Ctx::root(), self.ino, name.as_bytes()) {
            Err(Errno::NOENT) => return None,
            other => other.expect("memory does not fail"),
        }
        let synced = self.fs.fsyncdir(&Ctx::root(), self.ino, false);
        synced.expect("memory does not fail");
        Some(Done {
            name,
            is_made: false,
            left: Arc::new(self.pm.durable()),
        })
    }

    fn check(&self, done: [Vec<Done>; 2]) {
        let done: Vec<_> = done.into_iter().flatten().collect();
        let is_removed = |name: &str| done.iter().any(|d| !d.is_made && d.name == name);
        let removals = done.iter().filter(|d| !d.is_made).count();
        let made = done.len() - removals;
        let latest = Snapshot::take(&*self.fs).expect("it can be read");
        // With the root and the directory.
        assert_eq!(latest.iter().count(), 2 + self.names + made - removals);
        self.fs.sync().expect("memory does not fail");
        let there = SoupFs::open(Arc::clone(&self.pm), options(true, Mode::default()));
        let there = Snapshot::take(&there.expect("a mount")).expect("it can be read");
        assert!(
            there.is_same_except_times(&latest),
            "{:#?}",
            latest.diff(&there)
        );
        assert_eq!(check(&*self.pm).findings, []);
        for Done {
            name,
            is_made,
            left,
        } in &done
        {
            let there =
                SoupFs::open(Arc::clone(left), options(true, Mode::default())).expect("a mount");
            let found = there.lookup(&Ctx::root(), self.ino, name.as_bytes());
            let may_be_gone = is_removed(name);
            assert!(
                found.is_ok() || may_be_gone,
                "a power failure undid the creation of {name}"
            );
            assert!(
                found.is_err() || *is_made,
                "a power failure undid the removal of {name}"
            );
        }
    }
}
