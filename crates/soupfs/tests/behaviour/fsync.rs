//! `fsync` makes one inode persistent, with its names and those above it, and nothing else.

use medium::{Counting, MemoryPmem};
use soupfs::{Atime, MkfsOptions, MountOptions, check, mkfs, probe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use vfs::check::Severity;
use vfs::{Attr, Ctx, Errno, FileSystem, Ino, Name, NewNode, RenameFlags, SetAttr};

/// A file system whose persister works at `fsync` and `sync` only.
struct Place {
    pm: Arc<MemoryPmem>,
    fs: crate::Fs,
    cx: Ctx,
}

impl Place {
    fn new() -> Self {
        Self::with(options(false))
    }

    fn with(options: MountOptions) -> Self {
        let pm = Arc::new(MemoryPmem::new(4 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = crate::open(Arc::clone(&pm), options).unwrap();
        let cx = Ctx::root();
        Self { pm, fs, cx }
    }

    fn dir(&self, dir: Ino, name: &str) -> Ino {
        let new = NewNode::directory(0o755);
        let at = Name::new(dir, name.as_bytes());
        self.fs.make(&self.cx, at, &new).unwrap().ino
    }

    fn file(&self, dir: Ino, name: &str, text: &str) -> Ino {
        let made = self.fs.create(&self.cx, dir, name.as_bytes(), 0o644);
        let ino = made.unwrap().ino;
        self.fs.write(&self.cx, ino, 0, text.as_bytes()).unwrap();
        ino
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) {
        let (from, to) = (
            Name::new(from.0, from.1.as_bytes()),
            Name::new(to.0, to.1.as_bytes()),
        );
        let flags = RenameFlags::empty();
        self.fs.rename(&self.cx, from, to, flags).unwrap();
    }

    fn fsync(&self, ino: Ino) {
        self.fs.fsync(&self.cx, ino, false).unwrap();
    }

    /// Compares what a crash would leave now: contents by path, `None` if there is no such path.
    fn leaves(&self, wanted: &[(&str, Option<&str>)]) {
        let fs = crate::open(Arc::clone(&self.pm), options(true)).unwrap();
        for (path, text) in wanted {
            let found = find(&fs, path).map(|attr| {
                let mut bytes = vec![0; attr.size as usize];
                fs.read(&self.cx, attr.ino, 0, &mut bytes).unwrap();
                String::from_utf8(bytes).unwrap()
            });
            assert_eq!(found.ok().as_deref(), *text, "{path}");
        }
        let report = check(&*self.pm);
        assert_ne!(report.worst(), Some(Severity::Corrupt), "{report:?}");
    }
}

fn options(read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    }
}

fn find(fs: &dyn FileSystem, path: &str) -> Result<Attr, Errno> {
    let mut found = fs.getattr(&Ctx::root(), Ino::ROOT)?;
    for name in path.split('/') {
        found = fs.lookup(&Ctx::root(), found.ino, name.as_bytes())?;
    }
    Ok(found)
}

#[test]
fn other_files_stay_in_memory() {
    let place = Place::new();
    let file = place.file(Ino::ROOT, "wanted", "one");
    let other = place.file(Ino::ROOT, "other", "two");
    place.fsync(file);
    place.leaves(&[("wanted", Some("one")), ("other", None)]);
    place.fs.write(&place.cx, file, 3, b"more").unwrap();
    place.fsync(other);
    place.leaves(&[("wanted", Some("one")), ("other", Some("two"))]);
}

#[test]
fn new_directories_above_come_along() {
    let place = Place::new();
    let (a, b) = (place.dir(Ino::ROOT, "a"), place.dir(Ino::ROOT, "b"));
    let below = place.dir(a, "below");
    let file = place.file(below, "file", "text");
    place.file(below, "beside", "");
    // The path changes, and the file has a further name.
    place.rename((Ino::ROOT, "a"), (b, "c"));
    place.fs.link(&place.cx, file, b, b"link").unwrap();
    place.fsync(file);
    place.leaves(&[
        ("b/c/below/file", Some("text")),
        ("b/link", Some("text")),
        ("b/c/below/beside", None),
        ("a", None),
    ]);
}

#[test]
fn a_moved_directory_above_an_old_file_comes_along() {
    let place = Place::new();
    let (a, b) = (place.dir(Ino::ROOT, "a"), place.dir(Ino::ROOT, "b"));
    let file = place.file(a, "file", "old");
    place.fs.sync().unwrap();
    place.rename((Ino::ROOT, "a"), (b, "a"));
    place.fs.write(&place.cx, file, 0, b"new").unwrap();
    place.fsync(file);
    place.leaves(&[("b/a/file", Some("new")), ("a", None)]);
}

/// The directories between them have no changes, and had none in this mount.
#[test]
fn a_directory_that_moved_far_above_an_old_file_comes_along() {
    let mut place = Place::new();
    let a = place.dir(Ino::ROOT, "a");
    let below = place.dir(place.dir(a, "below"), "deep");
    place.file(below, "file", "old");
    place.fs.close().unwrap();
    place.fs = crate::open(Arc::clone(&place.pm), options(false)).unwrap();
    let file = find(&place.fs, "a/below/deep/file").unwrap().ino;
    place.rename((Ino::ROOT, "a"), (Ino::ROOT, "b"));
    place.fs.write(&place.cx, file, 0, b"new").unwrap();
    place.fsync(file);
    place.leaves(&[("b/below/deep/file", Some("new")), ("a", None)]);
}

/// Otherwise the new name would be open to those that had access before.
#[test]
fn the_rights_of_a_directory_come_along_with_a_new_name() {
    let unset = SetAttr::default();
    let changes = [
        SetAttr {
            perm: Some(0o700),
            ..unset
        },
        SetAttr {
            uid: Some(7),
            ..unset
        },
        SetAttr {
            gid: Some(8),
            ..unset
        },
    ];
    for set in changes {
        let place = Place::new();
        let dir = place.dir(Ino::ROOT, "dir");
        place.fs.sync().unwrap();
        place.fs.setattr(&place.cx, dir, &set).unwrap();
        let file = place.file(dir, "file", "secret");
        place.fsync(file);
        let fs = crate::open(Arc::clone(&place.pm), options(true)).unwrap();
        let rights = |attr: Attr| (attr.perm, attr.uid, attr.gid);
        let wanted = place.fs.getattr(&place.cx, dir).unwrap();
        assert_eq!(find(&fs, "dir").map(rights), Ok(rights(wanted)));
        assert!(find(&fs, "dir/file").is_ok());
    }
}

#[test]
fn a_renamed_file_loses_its_old_name() {
    let place = Place::new();
    let dir = place.dir(Ino::ROOT, "dir");
    let file = place.file(dir, "old", "text");
    place.fs.sync().unwrap();
    place.rename((dir, "old"), (Ino::ROOT, "new"));
    place.fsync(file);
    place.leaves(&[("new", Some("text")), ("dir/old", None)]);
}

#[test]
fn a_directory_makes_its_names_persistent() {
    let place = Place::new();
    let (dir, other) = (place.dir(Ino::ROOT, "dir"), place.dir(Ino::ROOT, "other"));
    place.file(dir, "one", "1");
    place.file(dir, "two", "2");
    place.file(other, "three", "3");
    place.fs.fsyncdir(&place.cx, dir, false).unwrap();
    place.leaves(&[
        ("dir/one", Some("1")),
        ("dir/two", Some("2")),
        ("other", None),
    ]);
    let (fs, cx) = (&place.fs, &place.cx);
    fs.unlink(cx, dir, b"one").unwrap();
    place.rename((dir, "two"), (dir, "moved"));
    fs.fsyncdir(cx, dir, false).unwrap();
    place.leaves(&[
        ("dir/one", None),
        ("dir/two", None),
        ("dir/moved", Some("2")),
    ]);
}

#[test]
fn with_the_option_sync_each_call_is_persistent() {
    let place = Place::with(MountOptions {
        sync: true,
        ..options(false)
    });
    let dir = place.dir(Ino::ROOT, "dir");
    let file = place.file(dir, "file", "text");
    place.leaves(&[("dir/file", Some("text"))]);
    place.fs.write(&place.cx, file, 4, b" more").unwrap();
    place.leaves(&[("dir/file", Some("text more"))]);
    place.rename((dir, "file"), (Ino::ROOT, "file"));
    place.leaves(&[("file", Some("text more")), ("dir/file", None)]);
    place.fs.unlink(&place.cx, Ino::ROOT, b"file").unwrap();
    place.leaves(&[("file", None)]);
}

/// A round before the end of the call frees memory for it. The pages of a file without a name are
/// free only after a round that follows its last use.
#[test]
fn with_the_option_sync_a_call_that_needs_freed_memory_is_persistent() {
    let place = Place::with(MountOptions {
        sync: true,
        ..options(false)
    });
    let (fs, cx) = (&place.fs, &place.cx);
    let file = place.file(Ino::ROOT, "file", "old");
    let large = place.file(Ino::ROOT, "large", "");
    let pages = fs.statfs().unwrap().blocks_free - 20;
    fs.write(cx, large, 0, &vec![1; pages as usize * 4096])
        .unwrap();
    fs.unlink(cx, Ino::ROOT, b"large").unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    assert!(free < 20);
    fs.forget(large, 1);
    let text = "x".repeat(30 * 4096);
    fs.write(cx, file, 0, text.as_bytes()).unwrap();
    place.leaves(&[("file", Some(&text)), ("large", None)]);
}

/// The fences of a sync after a file had that many names and lost all of them.
fn fences_without_names(names: &[&str]) -> u64 {
    let pm = Arc::new(Counting::new(MemoryPmem::new(2 << 20)));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let cx = Ctx::root();
    let file = fs.create(&cx, Ino::ROOT, b"first", 0o644).unwrap().ino;
    for name in names {
        fs.link(&cx, file, Ino::ROOT, name.as_bytes()).unwrap();
    }
    for name in names {
        fs.unlink(&cx, Ino::ROOT, name.as_bytes()).unwrap();
    }
    fs.unlink(&cx, Ino::ROOT, b"first").unwrap();
    let before = pm.snapshot().fences;
    fs.sync().unwrap();
    pm.snapshot().fences - before
}

#[test]
fn names_that_were_made_and_removed_take_no_wave() {
    let of_one = fences_without_names(&[]);
    assert_eq!(fences_without_names(&["second", "third"]), of_one);
}

#[test]
fn an_unmount_frees_what_has_no_name_and_is_still_open() {
    let place = Place::new();
    let (fs, cx) = (&place.fs, &place.cx);
    let [stored, new] = ["stored", "new"].map(|name| {
        fs.sync().unwrap();
        place.file(Ino::ROOT, name, &"x".repeat(100_000))
    });
    let dir = place.dir(Ino::ROOT, "dir");
    let nameless = fs.tmpfile(cx, dir, 0o600).unwrap().ino;
    fs.write(cx, nameless, 0, &[1; 10_000]).unwrap();
    fs.unlink(cx, Ino::ROOT, b"stored").unwrap();
    fs.unlink(cx, Ino::ROOT, b"new").unwrap();
    fs.rmdir(cx, Ino::ROOT, b"dir").unwrap();
    for open in [stored, new, nameless, dir] {
        assert_eq!(fs.getattr(cx, open).unwrap().nlink, 0);
    }
    fs.close().unwrap();
    assert!(probe(&*place.pm).unwrap().is_clean);
    assert_eq!(check(&*place.pm).findings, []);
}

/// The line of the directory is that of another inode or text by then.
#[test]
fn a_file_that_was_found_in_a_removed_directory_is_synced() {
    let place = Place::new();
    let (a, x) = (place.dir(Ino::ROOT, "a"), place.dir(Ino::ROOT, "x"));
    let file = place.file(a, "file", "old");
    place.fs.sync().unwrap();
    place.fs.link(&place.cx, file, x, b"link").unwrap();
    place.fs.unlink(&place.cx, x, b"link").unwrap();
    place.fs.rmdir(&place.cx, Ino::ROOT, b"x").unwrap();
    place.fs.forget(x, 1);
    place.fs.sync().unwrap();
    // Free lines are used again.
    for n in 0..200 {
        let name = format!("{n:0>100}");
        let cx = &place.cx;
        let target = "y".repeat(500);
        let made = place.fs.symlink(cx, a, name.as_bytes(), target.as_bytes());
        place.fs.forget(made.unwrap().ino, 1);
    }
    place.fs.sync().unwrap();
    place.rename((Ino::ROOT, "a"), (Ino::ROOT, "b"));
    place.fs.write(&place.cx, file, 0, b"new").unwrap();
    place.fsync(file);
    place.leaves(&[("b/file", Some("new")), ("a", None)]);
    place.fs.write(&place.cx, file, 0, b"end").unwrap();
    place.fsync(file);
    place.leaves(&[("b/file", Some("end"))]);
}

#[test]
fn a_file_without_a_name_is_not_an_error() {
    let place = Place::new();
    let nameless = place.fs.tmpfile(&place.cx, Ino::ROOT, 0o600).unwrap().ino;
    place.fsync(nameless);
    let file = place.file(Ino::ROOT, "file", "text");
    place.fsync(file);
    place.fs.unlink(&place.cx, Ino::ROOT, b"file").unwrap();
    place.fs.write(&place.cx, file, 0, b"more").unwrap();
    place.fsync(file);
    place.fs.forget(file, 1);
    place.fs.forget(nameless, 1);
    place.fs.sync().unwrap();
    assert!(check(&*place.pm).is_clean());
}

/// A sync takes the changes in portions, between which others get the lock.
#[test]
fn an_fsync_does_not_wait_for_all_of_a_sync() {
    let pm = Arc::new(MemoryPmem::new(256 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(pm, options(false)).unwrap();
    let cx = Ctx::root();
    let small = fs.create(&cx, Ino::ROOT, b"small", 0o644).unwrap().ino;
    // The scheduler of the machine may hold up one of the threads.
    let are_beside = (0..20).any(|batch| {
        for n in 0..20_000 {
            let name = format!("{batch}-{n}");
            let made = fs.create(&cx, Ino::ROOT, name.as_bytes(), 0o644);
            fs.forget(made.unwrap().ino, 1);
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fs.sync().unwrap();
                is_over.store(true, SeqCst);
            });
            let mut count = 0;
            while !is_over.load(SeqCst) {
                fs.write(&cx, small, 0, b"x").unwrap();
                fs.fsync(&cx, small, false).unwrap();
                count += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
            // One may come before the sync, and one may return after it.
            count > 3
        })
    });
    assert!(are_beside);
}

#[test]
fn many_changes_become_persistent_before_the_bound() {
    let place = Place::with(MountOptions {
        bound_s: Some(3600),
        ..options(false)
    });
    let text = "x".repeat(1 << 20);
    let file = place.file(Ino::ROOT, "file", "");
    for _ in 0..300 {
        place.fs.write(&place.cx, file, 0, text.as_bytes()).unwrap();
    }
    // The persister has begun by now, or else a caller has. The time bounds a failure only.
    let late = Instant::now() + Duration::from_secs(60);
    let is_there = || {
        let fs = crate::open(Arc::clone(&place.pm), options(true)).unwrap();
        find(&fs, "file").is_ok()
    };
    while !is_there() {
        assert!(Instant::now() < late, "nothing became persistent");
        std::thread::yield_now();
    }
}
