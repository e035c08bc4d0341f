//! Directories that a crash in a rename has left with two names.

use medium::MemoryPmem;
use soupfs::{Atime, MkfsOptions, MountOptions, check, mkfs, probe, repair};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{Ctx, Errno, FileSystem, Ino, Name, RenameFlags};

fn cx() -> Ctx {
    Ctx::root()
}

struct Place {
    pm: Arc<MemoryPmem>,
    fs: crate::Fs,
}

fn mount(pm: &Arc<MemoryPmem>) -> crate::Fs {
    let options = MountOptions {
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    };
    crate::open(Arc::clone(pm), options).unwrap()
}

impl Place {
    /// A mount after a kill in a rename of `a/D` to `b/D`, which has made the new name durable. A third
    /// directory, `c`, has an empty directory `E`.
    fn with_a_twin() -> Self {
        let pm = Arc::new(MemoryPmem::new(2 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = mount(&pm);
        let [a, b, c] = ["a", "b", "c"].map(|name| make(&fs, Ino::ROOT, name));
        make(&fs, a, "D");
        make(&fs, c, "E");
        fs.sync().unwrap();
        rename(&fs, (a, "D"), (b, "D")).unwrap();
        fs.fsyncdir(&cx(), b, false).unwrap();
        // Without a persister nothing is stored at its end.
        drop(fs);
        let fs = mount(&pm);
        let place = Self { pm, fs };
        let [old, new] = ["a/D", "b/D"].map(|path| place.find(path).unwrap());
        assert_eq!(old, new);
        place
    }

    fn find(&self, path: &str) -> Result<Ino, Errno> {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.fs.lookup(&cx(), at, name.as_bytes())?.ino;
            self.fs.forget(at, 1);
        }
        Ok(at)
    }

    fn rmdir(&self, dir: &str, name: &str) -> Result<(), Errno> {
        let dir = self.find(dir).unwrap();
        self.fs.rmdir(&cx(), dir, name.as_bytes())
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str)) -> Result<(), Errno> {
        let [from, to] = [from, to].map(|(dir, name)| (self.find(dir).unwrap(), name));
        rename(&self.fs, from, to)
    }

    /// Checks the links and the parent of a directory, and what a crash would leave now.
    fn is_sound(&self, path: &str, nlink: u32, parent: &str) {
        self.fs.sync().unwrap();
        let ino = self.find(path).unwrap();
        assert_eq!(self.fs.getattr(&cx(), ino).unwrap().nlink, nlink, "{path}");
        let mut above = None;
        let mut take = |entry: &vfs::DirEntry<'_>| {
            above = above.or((entry.name == b"..").then_some(entry.ino));
            true
        };
        self.fs
            .readdir(&cx(), ino, vfs::Cookie(0), &mut take)
            .unwrap();
        assert_eq!(above, Some(self.find(parent).unwrap()), "{path}/..");
        let report = check(&*self.pm);
        assert_ne!(report.worst(), Some(Severity::Corrupt), "{report:?}");
    }
}

fn make(fs: &crate::Fs, dir: Ino, name: &str) -> Ino {
    fs.mkdir(&cx(), dir, name.as_bytes(), 0o755).unwrap().ino
}

fn rename(fs: &crate::Fs, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Errno> {
    let from = Name::new(from.0, from.1.as_bytes());
    let to = Name::new(to.0, to.1.as_bytes());
    fs.rename(&cx(), from, to, RenameFlags::empty())
}

#[test]
fn a_directory_stays_until_its_last_name_is_removed() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let place = Place::with_a_twin();
        place.rmdir(first, "D").unwrap();
        let left = format!("{second}/D");
        place.is_sound(&left, 2, second);
        // Its memory is not used for others.
        let ino = place.find(&left).unwrap();
        for n in 0..100 {
            make(&place.fs, ino, &n.to_string());
        }
        place.is_sound(&left, 102, second);
        for n in 0..100 {
            place.rmdir(&left, &n.to_string()).unwrap();
        }
        place.rmdir(second, "D").unwrap();
        place.fs.sync().unwrap();
        assert_eq!(place.find(&left), Err(Errno::NOENT));
        assert_ne!(check(&*place.pm).worst(), Some(Severity::Corrupt));
    }
}

#[test]
fn a_directory_whose_one_name_is_replaced_keeps_the_other() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let place = Place::with_a_twin();
        place.rename(("c", "E"), (first, "D")).unwrap();
        place.is_sound(&format!("{second}/D"), 2, second);
        place.is_sound(&format!("{first}/D"), 2, first);
        assert_ne!(place.find("a/D"), place.find("b/D"));
    }
}

#[test]
fn a_removal_after_moves_of_the_names_leaves_the_last_one() {
    // The directory whose name moves to `c`, and the one that is removed first.
    for (moved, first) in [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c")] {
        for is_synced in [false, true] {
            let place = Place::with_a_twin();
            place.rename((moved, "D"), ("c", "D")).unwrap();
            if is_synced {
                place.is_sound("c/D", 3, "c");
            }
            place.rmdir(first, "D").unwrap();
            let is_left = |dir: &&str| ![moved, first].contains(dir);
            let last = ["a", "b", "c"].into_iter().find(is_left).unwrap();
            place.is_sound(&format!("{last}/D"), 2, last);
            place.rmdir(last, "D").unwrap();
            place.fs.sync().unwrap();
            assert_ne!(check(&*place.pm).worst(), Some(Severity::Corrupt));
        }
    }
}

#[test]
fn a_move_after_the_removal_of_one_name_leaves_the_directory_in_one_place() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let place = Place::with_a_twin();
        place.rmdir(first, "D").unwrap();
        place.rename((second, "D"), ("c", "D")).unwrap();
        place.is_sound("c/D", 2, "c");
    }
}

#[test]
fn no_directory_moves_below_itself_through_either_name() {
    for above in ["a", "b"] {
        let place = Place::with_a_twin();
        let below = format!("{above}/D");
        let moved = place.rename(("/", above), (&below, "ring"));
        assert_eq!(moved, Err(Errno::INVAL), "{above}");
        place.rename(("c", "E"), (&below, "E")).unwrap();
        let moved = place.rename(("/", above), ("a/D/E", "ring"));
        assert_eq!(moved, Err(Errno::INVAL), "{above}");
    }
}

#[test]
fn a_repair_leaves_one_name_and_no_leak() {
    let Place { pm, fs } = Place::with_a_twin();
    drop(fs);
    let (left, has_changed) = repair(&*pm, None).unwrap();
    assert!(has_changed);
    assert_eq!(left.findings, []);
    assert!(probe(&*pm).unwrap().is_clean);
    let place = Place { fs: mount(&pm), pm };
    let names = ["a/D", "b/D"].map(|path| place.find(path).is_ok());
    assert_eq!(names.iter().filter(|is_there| **is_there).count(), 1);
}
