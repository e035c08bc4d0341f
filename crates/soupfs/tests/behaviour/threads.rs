//! Several threads make calls while rounds of the persister run. Afterwards the checker finds nothing,
//! and a mount sees what the last one saw.

use medium::{Counting, CutAfter, MemoryPmem, PersistModel, Pmem, PowerCut};
use oracle::snapshot::Snapshot;
use soupfs::{Atime, MkfsOptions, MountOptions, check, mkfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use vfs::check::Severity;
use vfs::{Ctx, Errno, FileSystem, Ino, Name, RenameFlags, Result};

fn options(read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    }
}

/// Options with that many persisters.
fn shared(persisters: usize) -> MountOptions {
    MountOptions {
        persisters: persisters.try_into().unwrap(),
        ..options(false)
    }
}

/// A directory of the first level by its number, with a reference.
fn dir(fs: &dyn FileSystem, n: usize) -> Result<Ino> {
    let cx = Ctx::root();
    let name = format!("d{n}");
    Ok(fs.lookup(&cx, Ino::ROOT, name.as_bytes())?.ino)
}

/// One random call; failures are part of it.
fn call(fs: &dyn FileSystem, rng: &mut fastrand::Rng) -> Result<()> {
    let cx = Ctx::root();
    let (a, b) = (dir(fs, rng.usize(..3))?, dir(fs, rng.usize(..3))?);
    let name = format!("f{}", rng.usize(..8)).into_bytes();
    let other = format!("f{}", rng.usize(..8)).into_bytes();
    let done = match rng.usize(..11) {
        0 => fs
            .create(&cx, a, &name, 0o644)
            .map(|made| fs.forget(made.ino, 1)),
        1 => fs
            .mkdir(&cx, a, &name, 0o755)
            .map(|made| fs.forget(made.ino, 1)),
        2 => fs.unlink(&cx, a, &name),
        3 => fs.rmdir(&cx, a, &name),
        4 => fs.rename(
            &cx,
            Name::new(a, &name),
            Name::new(b, &other),
            RenameFlags::empty(),
        ),
        5 => fs.lookup(&cx, a, &name).and_then(|found| {
            let linked = fs.link(&cx, found.ino, b, &other);
            fs.forget(found.ino, 1 + u64::from(linked.is_ok()));
            linked.map(drop)
        }),
        6 => fs.lookup(&cx, a, &name).and_then(|found| {
            let data = vec![7; rng.usize(1..20_000)];
            let written = fs.write(&cx, found.ino, rng.u64(..20_000), &data);
            fs.forget(found.ino, 1);
            written.map(drop)
        }),
        7 => fs.lookup(&cx, a, &name).and_then(|found| {
            let cut = fs.truncate(&cx, found.ino, rng.u64(..30_000));
            fs.forget(found.ino, 1);
            cut
        }),
        8 => fs.lookup(&cx, a, &name).and_then(|found| {
            let synced = fs.fsync(&cx, found.ino, false);
            fs.forget(found.ino, 1);
            synced
        }),
        9 => fs.fsyncdir(&cx, a, false),
        _ => fs.readdir(&cx, a, vfs::Cookie(0), &mut |_| true),
    };
    for dir in [a, b] {
        fs.forget(dir, 1);
    }
    done
}

/// Does work in several threads, by their numbers, while another one syncs all the time.
fn beside_syncs(fs: &dyn FileSystem, workers: u64, work: impl Fn(u64) + Sync) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                fs.sync().unwrap();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, SeqCst);
        assert!(ended.iter().all(|end| end.is_ok()));
    });
    fs.sync().unwrap();
}

#[test]
fn calls_and_rounds_side_by_side() {
    let pm = Arc::new(MemoryPmem::new(32 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    make_dirs(&fs);
    beside_syncs(&fs, 4, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let done = (0..20_000).filter(|_| call(&fs, &mut rng).is_ok()).count();
        assert!(done > 1000, "{done} calls succeeded");
    });
    is_persistent(&fs, &pm);
}

/// The image is that of the mount, and the checker finds nothing.
fn is_persistent(fs: &crate::Fs, pm: &Arc<impl Pmem + 'static>) {
    let report = check(&**pm);
    assert!(
        report.is_clean(),
        "{:#?}",
        report.findings.iter().take(10).collect::<Vec<_>>()
    );
    let again = crate::open(Arc::clone(pm), options(true)).unwrap();
    let (here, there) = (Snapshot::take(fs).unwrap(), Snapshot::take(&again).unwrap());
    assert!(
        here.is_same_except_times(&there),
        "{:#?}",
        here.diff(&there)
    );
}

/// Makes three directories.
fn make_dirs(fs: &dyn FileSystem) {
    let cx = Ctx::root();
    for n in 0..3 {
        let name = format!("d{n}");
        let made = fs.mkdir(&cx, Ino::ROOT, name.as_bytes(), 0o755).unwrap();
        fs.forget(made.ino, 1);
    }
}

/// Makes many files, moves some of them to other directories, writes to some and removes some.
fn many_calls(fs: &dyn FileSystem, prefix: &str, count: usize) -> Result<()> {
    let cx = Ctx::root();
    let dirs = [dir(fs, 0)?, dir(fs, 1)?, dir(fs, 2)?];
    let name = |n: usize| format!("{prefix}-{n}").into_bytes();
    for n in 0..count {
        let made = fs.create(&cx, dirs[n % 3], &name(n), 0o644)?;
        if n % 25 == 0 {
            fs.write(&cx, made.ino, 0, &[n as u8; 100])?;
        }
        fs.forget(made.ino, 1);
    }
    for n in (0..count).step_by(2) {
        let name = name(n);
        let from = Name::new(dirs[n % 3], &name);
        let to = Name::new(dirs[(n + 1) % 3], &name);
        fs.rename(&cx, from, to, RenameFlags::empty())?;
    }
    for n in (1..count).step_by(2) {
        fs.unlink(&cx, dirs[n % 3], &name(n))?;
    }
    dirs.into_iter().for_each(|dir| fs.forget(dir, 1));
    Ok(())
}

#[test]
fn calls_and_shared_rounds_side_by_side() {
    let pm = Arc::new(MemoryPmem::new(64 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), shared(3)).unwrap();
    make_dirs(&fs);
    beside_syncs(&fs, 2, |worker| {
        for batch in 0..8 {
            many_calls(&fs, &format!("{worker}-{batch}"), 6000).unwrap();
        }
    });
    is_persistent(&fs, &pm);
}

/// The fences of a round with many changes.
fn fences(persisters: usize) -> u64 {
    let pm = Arc::new(Counting::new(MemoryPmem::new(8 << 20)));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), shared(persisters)).unwrap();
    make_dirs(&fs);
    many_calls(&fs, "f", 4000).unwrap();
    let before = pm.snapshot().fences;
    fs.sync().unwrap();
    is_persistent(&fs, &pm);
    pm.snapshot().fences - before
}

/// Each part of a step ends with a fence of its own.
#[test]
fn several_persisters_share_a_round_with_many_changes() {
    let (one, several) = (fences(1), fences(4));
    assert!(several > 2 * one, "{several} fences instead of {one}");
}

/// Cuts the power in a round that several persisters share.
#[test]
fn a_power_cut_in_a_shared_round_leaves_a_usable_image() {
    for seed in 0..12 {
        let pm = Arc::new(PowerCut::new(MemoryPmem::new(16 << 20)));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = crate::open(Arc::clone(&pm), shared(4)).unwrap();
        make_dirs(&fs);
        many_calls(&fs, "old", 3000).unwrap();
        fs.sync().unwrap();
        many_calls(&fs, "new", 3000).unwrap();
        let model = PersistModel::ALL[seed as usize % 2];
        pm.cut_after(CutAfter::Stores(1 + seed * seed * 300), seed, model);
        let _ = fs.sync();
        pm.cut(seed, model).unwrap();
        let report = check(pm.inner());
        assert!(
            report.worst().is_none_or(|worst| worst == Severity::Leak),
            "seed {seed}: {:#?}",
            report.findings
        );
    }
}

#[test]
fn a_sync_returns_while_another_thread_writes() {
    let pm = Arc::new(MemoryPmem::new(8 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let cx = Ctx::root();
    let file = fs.create(&cx, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..u64::MAX {
                if is_over.load(SeqCst) {
                    break;
                }
                fs.write(&cx, file, n % 64 * 4096, &[n as u8; 4096])
                    .unwrap();
                let made = fs.create(&cx, Ino::ROOT, b"other", 0o644).unwrap();
                fs.forget(made.ino, 1);
                fs.unlink(&cx, Ino::ROOT, b"other").unwrap();
                calls.fetch_add(1, SeqCst);
            }
        });
        // Calls between and during the syncs.
        for _ in 0..20 {
            let before = calls.load(SeqCst);
            while calls.load(SeqCst) == before {
                thread::yield_now();
            }
            fs.sync().unwrap();
        }
        is_over.store(true, SeqCst);
    });
}

#[test]
fn every_sync_fails_after_a_round_has_failed() {
    let pm = Arc::new(PowerCut::new(MemoryPmem::new(8 << 20)));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(false)).unwrap();
    let cx = Ctx::root();
    let file = fs.create(&cx, Ino::ROOT, b"file", 0o644).unwrap().ino;
    pm.cut_after(CutAfter::Fences(1), 1, PersistModel::Words);
    for _ in 0..3 {
        assert_eq!(fs.fsync(&cx, file, false), Err(Errno::IO));
        assert_eq!(fs.sync(), Err(Errno::IO));
    }
    assert_eq!(fs.close(), Err(Errno::IO));
}
