//! Directories, links and renames.

use crate::fixture::{on_each_engine, on_engines};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::thread;
use std::time::Duration;

fn rename(dir: &Path, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn renames_move_replace_or_fail_as_on_linux() {
    on_each_engine(|dir| {
        let plain = |from, to| rename(dir, from, to, RenameFlags::empty());
        let read = |name| fs::read_to_string(dir.join(name)).unwrap();
        fs::write(dir.join("a"), "a").unwrap();
        fs::write(dir.join("b"), "b").unwrap();
        fs::create_dir_all(dir.join("d/e/f")).unwrap();
        fs::create_dir(dir.join("empty")).unwrap();

        let no_replace = rename(dir, "a", "b", RenameFlags::NOREPLACE);
        assert_eq!(no_replace, Err(Errno::EXIST));
        assert_eq!(plain("a", "d"), Err(Errno::ISDIR));
        assert_eq!(plain("d", "a"), Err(Errno::NOTDIR));
        assert_eq!(plain("empty", "d"), Err(Errno::NOTEMPTY));
        assert_eq!(plain("d", "d/e/x"), Err(Errno::INVAL));
        assert_eq!(plain("none", "x"), Err(Errno::NOENT));
        assert_eq!(names(dir), ["a", "b", "d", "empty"]);

        assert_eq!(plain("d", "tmp"), Ok(()));
        assert_eq!(plain("a", "d"), Ok(()));
        assert_eq!(plain("tmp", "a"), Ok(()));
        assert_eq!(read("d"), "a");
        assert_eq!(names(&dir.join("a")), ["e"]);
        assert_eq!(plain("d", "b"), Ok(()));
        assert_eq!(read("b"), "a");
        assert_eq!(plain("a/e", "empty"), Ok(()));
        assert_eq!(names(&dir.join("empty")), ["f"]);
        assert_eq!(rename(dir, "b", "a/b", RenameFlags::NOREPLACE), Ok(()));
        assert_eq!(names(dir), ["a", "empty"]);
        assert_eq!(read("a/b"), "a");
    });
}

/// No order of writes keeps both names at every moment, so soft updates refuse it: SoupFS, and ext2
/// (as Linux's own always does).
#[test]
fn an_exchange_swaps_both_names_or_is_refused() {
    let exchange = |dir: &Path| {
        fs::write(dir.join("a"), "a").unwrap();
        fs::create_dir_all(dir.join("d/e")).unwrap();
        rename(dir, "a", "d", RenameFlags::EXCHANGE)
    };
    on_engines(&["bpfs", "model"], |dir| {
        assert_eq!(exchange(dir), Ok(()));
        assert_eq!(fs::read_to_string(dir.join("d")).unwrap(), "a");
        assert_eq!(names(&dir.join("a")), ["e"]);
    });
    on_engines(&["soupfs", "ext2"], |dir| {
        assert_eq!(exchange(dir), Err(Errno::INVAL))
    });
}

#[test]
fn link_counts_are_always_fresh() {
    on_each_engine(|dir| {
        let at = |name: &str| dir.join(name);
        let count = |name: &str| fs::symlink_metadata(at(name)).unwrap().nlink();
        fs::write(at("a"), "").unwrap();
        let open = File::open(at("a")).unwrap();
        fs::hard_link(at("a"), at("b")).unwrap();
        fs::hard_link(at("a"), at("c")).unwrap();
        assert_eq!((count("a"), count("b"), count("c")), (3, 3, 3));
        fs::remove_file(at("b")).unwrap();
        assert_eq!((count("a"), open.metadata().unwrap().nlink()), (2, 2));
        // A link that is replaced by a rename is gone too.
        fs::write(at("x"), "").unwrap();
        fs::rename(at("x"), at("c")).unwrap();
        assert_eq!((count("a"), count("c")), (1, 1));
        // Renaming one link over the other changes nothing.
        fs::hard_link(at("a"), at("b")).unwrap();
        fs::rename(at("a"), at("b")).unwrap();
        assert_eq!((count("a"), count("b")), (2, 2));

        fs::create_dir_all(at("d/one")).unwrap();
        fs::create_dir(at("d/two")).unwrap();
        fs::create_dir(at("e")).unwrap();
        assert_eq!((count("d"), count("e")), (4, 2));
        fs::rename(at("d/one"), at("e/one")).unwrap();
        assert_eq!((count("d"), count("e")), (3, 3));
        fs::remove_dir(at("e/one")).unwrap();
        assert_eq!(count("e"), 2);
    });
}

#[test]
fn times_of_directories_move_with_their_names() {
    on_each_engine(|dir| {
        let at = |name: &str| dir.join(name);
        let changed = |name: &str| fs::metadata(at(name)).unwrap().modified().unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::create_dir(at("e")).unwrap();
        let mut seen = changed("d");
        // Clocks tick, some of them only every 10 ms: each step must fall into a new tick.
        let tick = || thread::sleep(Duration::from_millis(20));
        tick();
        let mut moved = |what: &str| {
            let now = changed("d");
            assert!(now > seen, "{what}");
            seen = now;
            tick();
        };
        fs::write(at("d/a"), "").unwrap();
        moved("create");
        fs::hard_link(at("d/a"), at("d/b")).unwrap();
        moved("link");
        fs::remove_file(at("d/b")).unwrap();
        moved("unlink");
        symlink("a", at("d/s")).unwrap();
        moved("symlink");
        fs::rename(at("d/a"), at("e/a")).unwrap();
        moved("rename out");
        fs::rename(at("e/a"), at("d/a")).unwrap();
        moved("rename in");
    });
}

#[test]
fn absent_names_appear_however_they_are_made() {
    on_each_engine(|dir| {
        let at = |name: &str| dir.join(name);
        for name in ["create", "mkdir", "link", "symlink", "rename", "exchange"] {
            assert!(!at(name).exists());
        }
        fs::write(at("create"), "x").unwrap();
        fs::create_dir(at("mkdir")).unwrap();
        fs::hard_link(at("create"), at("link")).unwrap();
        symlink("create", at("symlink")).unwrap();
        fs::rename(at("create"), at("rename")).unwrap();
        assert!(!at("create").exists() && !at("symlink").exists());
        assert!(at("rename").exists() && at("link").exists() && at("mkdir").exists());
        fs::remove_file(at("link")).unwrap();
        assert!(!at("link").exists());
    });
}

#[test]
fn ten_thousand_entries_are_each_listed_once() {
    on_each_engine(|dir| {
        let expected: BTreeSet<_> = (0..10_000).map(|i| format!("entry-{i}")).collect();
        for name in &expected {
            File::create(dir.join(name)).unwrap();
        }
        for _ in 0..2 {
            let listed = names(dir);
            assert_eq!(listed.len(), expected.len());
            assert!(listed.iter().eq(&expected));
        }
        // Removing while listing: every entry comes up all the same.
        let removed = fs::read_dir(dir)
            .unwrap()
            .map(|e| fs::remove_file(e.unwrap().path()).unwrap())
            .count();
        assert_eq!(removed, expected.len());
        assert!(names(dir).is_empty());
    });
}

#[test]
fn listings_give_types_and_inode_numbers() {
    on_each_engine(|dir| {
        let at = |name: &str| dir.join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("dir")).unwrap();
        symlink("file", at("link")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
        mknodat(CWD, at("socket"), FileType::Socket, mode, 0).unwrap();
        let null = makedev(1, 3);
        mknodat(CWD, at("null"), FileType::CharacterDevice, mode, null).unwrap();
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            assert_eq!(entry.ino(), meta.ino());
            assert_eq!(entry.file_type().unwrap(), meta.file_type());
        }
        assert!(fs::metadata(at("fifo")).unwrap().file_type().is_fifo());
        assert_eq!(fs::metadata(at("null")).unwrap().rdev(), null);
        fs::write(at("null"), "is dropped").unwrap();
        assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("file"));
    });
}
