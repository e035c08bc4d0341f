//! Directories of many names: chains that are split in one view and not yet, or not any more, in the
//! other.

use medium::MemoryPmem;
use soupfs::{Atime, MkfsOptions, MountOptions, check, mkfs};
use std::collections::BTreeSet;
use std::sync::Arc;
use vfs::{Cookie, Ctx, Errno, FileSystem, Ino};

fn options(read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    }
}

fn names(fs: &dyn FileSystem, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut last = Cookie(0);
    fs.readdir(&Ctx::root(), dir, last, &mut |entry| {
        assert!(entry.cookie > last, "cookies are in order");
        last = entry.cookie;
        names.insert(entry.name.to_vec())
    })
    .unwrap();
    names.remove(&b"."[..]);
    names.remove(&b".."[..]);
    names
}

/// Makes and removes names of a pool of `pool`, with a sync after `period` calls on average. At the
/// end the directory is removed, and no page is lost.
fn churn(seed: u64, pool: usize, period: u32) {
    let pm = Arc::new(MemoryPmem::new(64 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let cx = Ctx::root();
    let dir = fs.mkdir(&cx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut wanted = BTreeSet::new();
    for round in 0..6 {
        // More names at first, fewer later.
        let makes = if round % 2 == 0 { 8 } else { 3 };
        for _ in 0..pool {
            let name = format!("name {}", rng.usize(..pool)).into_bytes();
            if rng.u32(..10) < makes {
                if let Ok(made) = fs.create(&cx, dir, &name, 0o644) {
                    fs.forget(made.ino, 1);
                }
                wanted.insert(name);
            } else {
                assert_eq!(fs.unlink(&cx, dir, &name).is_ok(), wanted.remove(&name));
            }
            if rng.u32(..period) == 0 {
                fs.sync().unwrap();
            }
        }
        assert_eq!(names(&fs, dir), wanted, "seed {seed}, round {round}");
        fs.sync().unwrap();
        assert_eq!(
            names(&fs, dir),
            wanted,
            "seed {seed}, round {round}, synced"
        );
        for name in &wanted {
            let found = fs.lookup(&cx, dir, name).unwrap();
            fs.forget(found.ino, 1);
        }
        let report = check(&*pm);
        assert!(report.is_clean(), "{report:?}");
        let again = crate::open(Arc::clone(&pm), options(true)).unwrap();
        assert_eq!(
            names(&again, dir),
            wanted,
            "seed {seed}, round {round}, mounted again"
        );
    }
    for name in &wanted {
        fs.unlink(&cx, dir, name).unwrap();
    }
    fs.rmdir(&cx, Ino::ROOT, b"dir").unwrap();
    fs.forget(dir, 1);
    fs.close().unwrap();
    assert_eq!(check(&*pm).findings, [], "seed {seed}, removed");
}

#[test]
fn names_come_and_go() {
    for seed in 0..20 {
        churn(seed, 40, 20);
        churn(seed, 40, 10_000);
        churn(seed, 600, 50);
    }
    churn(1, 20_000, 3000);
}

/// An fsync of one name may split the chain of others on the medium, whose changes are not persistent.
#[test]
fn a_chain_that_an_fsync_splits_keeps_the_other_changes() {
    for seed in 0..50 {
        let pm = Arc::new(MemoryPmem::new(1 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        let name = |n: u32| format!("{seed} {n}").into_bytes();
        let make = |n| {
            let made = fs.create(&cx, root, &name(n), 0o644).unwrap();
            fs.forget(made.ino, 1);
            made.ino
        };
        // As many names as a chain has before it is split.
        (0..12).map(make).for_each(drop);
        fs.sync().unwrap();
        fs.unlink(&cx, root, &name(0)).unwrap();
        make(12);
        fs.fsync(&cx, make(13), false).unwrap();
        let wanted: BTreeSet<_> = (1..14).map(name).collect();
        assert_eq!(names(&fs, root), wanted, "seed {seed}");
        fs.sync().unwrap();
        assert_eq!(names(&fs, root), wanted, "seed {seed}, synced");
        assert!(check(&*pm).is_clean());
    }
}

/// Each name of a directory is found, while no call has a reference to the directory.
fn assert_found(fs: &dyn FileSystem, dir: &[u8], wanted: &[String]) {
    let cx = Ctx::root();
    for name in wanted {
        let dir = fs.lookup(&cx, Ino::ROOT, dir).unwrap().ino;
        let found = fs.lookup(&cx, dir, name.as_bytes());
        let found = found.unwrap_or_else(|e| panic!("{name}: {e}"));
        fs.forget(found.ino, 1);
        fs.forget(dir, 1);
    }
}

#[test]
fn a_directory_that_callers_forget_keeps_its_names() {
    let pm = Arc::new(MemoryPmem::new(64 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let cx = Ctx::root();
    let fill = |dir: Ino, from: usize, to: usize| -> Vec<String> {
        let make = |n| {
            let name = format!("name {n}");
            let made = fs.create(&cx, dir, name.as_bytes(), 0o644).unwrap();
            fs.forget(made.ino, 1);
            name
        };
        (from..to).map(make).collect()
    };
    // Chains that a round splits only once, and the latest view twice.
    let large = fs.mkdir(&cx, Ino::ROOT, b"large", 0o755).unwrap().ino;
    let in_large = fill(large, 0, 5000);
    // A chain that is split in the latest view, by names that no round persists.
    let small = fs.mkdir(&cx, Ino::ROOT, b"small", 0o755).unwrap().ino;
    let in_small = fill(small, 0, 8);
    fs.sync().unwrap();
    for name in fill(small, 8, 100) {
        fs.unlink(&cx, small, name.as_bytes()).unwrap();
    }
    fs.forget(large, 1);
    fs.forget(small, 1);
    for _ in 0..2 {
        assert_found(&fs, b"large", &in_large);
        assert_found(&fs, b"small", &in_small);
        fs.sync().unwrap();
    }
}

/// A directory on the medium counts itself. Without its name that is all that is left, until it is freed.
#[test]
fn a_removed_directory_is_not_found_by_its_number() {
    let pm = Arc::new(MemoryPmem::new(4 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let (cx, root) = (Ctx::root(), Ino::ROOT);
    let dir = fs.mkdir(&cx, root, b"dir", 0o755).unwrap().ino;
    fs.sync().unwrap();
    fs.rmdir(&cx, root, b"dir").unwrap();
    fs.sync().unwrap();
    fs.forget(dir, 1);
    // It waits for the next round.
    assert_eq!(fs.by_number(dir).unwrap_err(), Errno::STALE);
    assert_eq!(fs.getattr(&cx, dir).unwrap_err(), Errno::STALE);
    fs.sync().unwrap();
    assert_eq!(check(&*pm).findings, []);
}

/// A caller takes a part of a listing: what it refuses is not in use.
#[test]
fn an_entry_that_a_caller_refuses_is_freed_with_its_name() {
    let pm = Arc::new(MemoryPmem::new(4 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let (cx, root) = (Ctx::root(), Ino::ROOT);
    let names = ["a", "b", "c", "d"];
    for name in names {
        let made = fs.create(&cx, root, name.as_bytes(), 0o644).unwrap();
        fs.forget(made.ino, 1);
    }
    fs.sync().unwrap();
    for most in 0..5 {
        let mut taken = Vec::new();
        fs.readdirplus(&cx, root, Cookie(0), &mut |entry, _| {
            let is_dot = entry.name.starts_with(b".");
            let accepted = is_dot || taken.len() < most;
            if accepted && !is_dot {
                taken.push(entry.ino);
            }
            accepted
        })
        .unwrap();
        assert_eq!(taken.len(), most.min(names.len()));
        taken.into_iter().for_each(|ino| fs.forget(ino, 1));
    }
    for name in names {
        fs.unlink(&cx, root, name.as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    fs.sync().unwrap();
    assert_eq!(check(&*pm).findings, []);
}

/// The medium has links of the latest view of each server that was killed.
#[test]
fn removals_that_a_kill_has_lost_can_be_made_again() {
    for seed in 0..10 {
        let pm = Arc::new(MemoryPmem::new(1 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        let mut rng = fastrand::Rng::with_seed(seed);
        let name = |n: u32| format!("{seed} {n}").into_bytes();
        let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
        for n in 0..20 {
            fs.mkdir(&cx, root, &name(n), 0o755).unwrap();
        }
        fs.sync().unwrap();
        drop(fs);
        for life in 0..6 {
            let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
            let mut wanted: BTreeSet<_> = (0..20).map(name).collect();
            assert_eq!(names(&fs, root), wanted, "seed {seed}, life {life}");
            let mut order: Vec<u32> = (0..20).collect();
            rng.shuffle(&mut order);
            for n in order.into_iter().skip(life) {
                fs.rmdir(&cx, root, &name(n)).unwrap();
                wanted.remove(&name(n));
                assert_eq!(names(&fs, root), wanted, "seed {seed}, life {life}");
            }
            // As after a kill: no round has run.
        }
    }
}
