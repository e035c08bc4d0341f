//! Durable memory that is larger than its pool: guarantees, and directories that are rejected.

mod setup;

use crate::setup::{BLOCKS, POOL_BYTES, Setup, open, table, value, write};
use fastrand::Rng;
use medium::{Arena, MapOptions, Pmem, Reserve};
use mnemosyne::memory::{
    Backing, Directory, DurableMemory, Inspection, MemoryError, RegionKind, check,
};
use mnemosyne::tx::{Stop, Transaction};
use paging::Pool;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const THREADS: u64 = 4;

fn churn(memory: &DurableMemory<Directory>, model: &mut [u64], thread: u64, rng: &mut Rng) {
    let mut session = memory.session();
    let table = table(&mut session, thread).unwrap();
    let pm = memory.backing().pmem();
    for step in 0..3000 {
        // All blocks once, then random ones.
        let n = match step < BLOCKS && model[step as usize] == 0 {
            true => step,
            false => rng.u64(..BLOCKS),
        };
        let at = table + n * 8;
        assert_eq!(value(pm, at), model[n as usize]);
        model[n as usize] = rng.u64(1..);
        write(&mut session, at, model[n as usize]).unwrap();
    }
}

#[test]
fn a_heap_of_sixteen_times_the_pool_keeps_its_blocks() {
    let setup = Setup::new();
    let mut models = vec![vec![0; BLOCKS as usize]; THREADS as usize];
    for round in 0..2 {
        let memory = setup.open();
        std::thread::scope(|scope| {
            for (thread, model) in (0..).zip(&mut models) {
                let memory = &memory;
                let mut rng = Rng::with_seed(round * THREADS + thread);
                scope.spawn(move || churn(memory, model, thread, &mut rng));
            }
        });
        let counts = memory.backing().pool().unwrap().counts();
        assert!(counts.loaded > 1000 && counts.written > 1000, "{counts:?}");
    }
    // An inspection finds the pool by the path in the directory.
    let seen = Inspection::open(setup.disk()).unwrap();
    let heap = seen.regions().unwrap();
    let bytes: u64 = heap.iter().map(|region| region.len).sum();
    assert!(bytes >= 16 * POOL_BYTES);
    let report = check(setup.disk()).unwrap();
    assert!(report.is_clean() && !report.is_partial, "{report:#?}");
    let roots = seen.roots().unwrap();
    for (thread, model) in models.iter().enumerate() {
        let name = format!("table {thread}");
        let table = roots.iter().find(|root| root.name == name).unwrap().off;
        for (n, expected) in (0..).zip(model) {
            assert_eq!(value(seen.memory(), table + n * 8), *expected);
        }
    }
}

#[test]
fn pages_are_removed_with_their_region() {
    let setup = Setup::new();
    let memory = setup.open();
    let pm = memory.backing().pmem().clone();
    for round in 1..6 {
        let link = |_: &mut Transaction<'_, _>, _| Ok(());
        let region = memory
            .map(RegionKind::Program, 8 << 20, round, link)
            .unwrap();
        for at in (region.start..region.start + region.len).step_by(4096) {
            assert_eq!(pm.load(at), Ok(0), "a page of the previous region");
            pm.store_word(at, round);
        }
        // This region is not paged; its file is beside the pool.
        let fixed = memory.map(RegionKind::Static, 4096, round, link).unwrap();
        let file = memory.backing().file(&fixed);
        assert_eq!(file.parent(), Some(setup.pool().as_path()));
        memory.unmap(fixed.start, |_| Ok(())).unwrap();
        memory.unmap(region.start, |_| Ok(())).unwrap();
        assert!(!file.exists());
        memory
            .backing()
            .no_others(&memory.regions().unwrap())
            .unwrap();
    }
}

fn refusal(opened: Result<DurableMemory<Directory>, MemoryError>) -> String {
    opened.err().expect("it is refused").to_string()
}

#[test]
fn a_directory_is_used_with_its_pool_or_not_at_all() {
    let setup = Setup::new();
    let (disk, pool) = (setup.disk(), setup.pool());
    let memory = setup.open();
    let mut session = memory.session();
    let table = table(&mut session, 0).unwrap();
    write(&mut session, table, 77).unwrap();
    let in_use = refusal(open(&disk, None));
    assert!(in_use.contains("frames is in use by process"), "{in_use}");
    drop((session, memory));
    let found = |memory: &DurableMemory<Directory>| value(memory.backing().pmem(), table);
    // The directory has the path of the pool.
    assert_eq!(found(&open(&disk, None).unwrap()), 77);
    let moved = setup.0.path().join("moved");
    std::fs::rename(&pool, &moved).unwrap();
    let missing = refusal(open(&disk, None));
    assert!(missing.contains("memory/frames is missing"), "{missing}");
    let missing = refusal(open(&disk, Some(&pool)));
    assert!(missing.contains("memory/frames is missing"), "{missing}");
    assert_eq!(found(&open(&disk, Some(&moved)).unwrap()), 77);
    assert_eq!(found(&open(&disk, None).unwrap()), 77);
    // A pool of another directory, and another pool.
    let other = setup.0.path().join("other");
    let taken = refusal(open(&other, Some(&moved)));
    assert!(
        taken.contains("the pool of another directory than"),
        "{taken}"
    );
    let foreign = setup.0.path().join("foreign");
    drop(open(&other, Some(&foreign)).unwrap());
    let refused = refusal(open(&disk, Some(&foreign)));
    assert!(refused.contains("foreign is the pool"), "{refused}");
    // A directory without a pool, and one that has lost the file that names it.
    let plain = setup.0.path().join("plain");
    drop(open(&plain, None).unwrap());
    let unpooled = refusal(open(&plain, Some(&setup.0.path().join("new"))));
    assert!(unpooled.contains("no file 'pool'"), "{unpooled}");
    let note = std::fs::read(disk.join("pool")).unwrap();
    std::fs::remove_file(disk.join("pool")).unwrap();
    let unpooled = refusal(open(&disk, Some(&moved)));
    assert!(unpooled.contains("no file 'pool'"), "{unpooled}");
    std::fs::write(disk.join("pool"), "selvedge pool 12").unwrap();
    let damaged = refusal(open(&disk, Some(&moved)));
    assert!(
        damaged.contains("disk/pool does not name a pool"),
        "{damaged}"
    );
    std::fs::write(disk.join("pool"), note).unwrap();
    // A damaged entry.
    let frames = moved.join("frames");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&frames);
    let file = file.unwrap();
    let mut entry = [0; 8];
    file.read_exact_at(&mut entry, 4096).unwrap();
    file.write_all_at(&[0xff], 4096 + 4).unwrap();
    let damaged = refusal(open(&disk, None));
    assert!(
        damaged.contains("frames: the entry of frame 0"),
        "{damaged}"
    );
    file.write_all_at(&entry, 4096).unwrap();
    assert_eq!(found(&open(&disk, None).unwrap()), 77);
}

/// A page of a region that does not exist. Opening and inspection of the directory fail, and a
/// check reports it; the page stays.
#[test]
fn a_page_without_a_region_is_rejected_and_reported() {
    let setup = Setup::new();
    drop(setup.open());
    let frames = setup.pool().join("frames");
    let map = MapOptions::default();
    let lost = setup.0.path().join("lost");
    medium::create_file(&lost, 1 << 20, Reserve::Sparse).unwrap();
    let pool = Arc::new(Pool::open(&frames, &map).unwrap());
    let arena = Arena::reserve(None, 1 << 30).unwrap();
    arena.map_paged(0, &lost, (&pool, 500), &map).unwrap();
    arena.store_word(0, 1);
    drop((arena, pool));
    let before = std::fs::read(&frames).unwrap();
    let what = "page 0 of region 500, which does not exist";
    let refused = refusal(open(&setup.disk(), None));
    assert!(refused.contains(what), "{refused}");
    let unseen = Inspection::open(setup.disk()).err().unwrap().to_string();
    assert!(unseen.contains(what), "{unseen}");
    let report = check(setup.disk()).unwrap();
    let [finding] = &report.findings[..] else {
        panic!("{report:#?}");
    };
    assert_eq!((finding.invariant, &*finding.file), ("P5", "frames"));
    let entry = &before[finding.offset as usize..][..8];
    assert!(entry != [0; 8] && finding.what.contains(what));
    assert!(std::fs::read(&frames).unwrap() == before);
    Pool::open(&frames, &map).unwrap().forget(500).unwrap();
    assert!(check(setup.disk()).unwrap().is_clean());
    drop(setup.open());
}

/// The pages are in the pool that the directory names.
#[test]
fn one_of_several_threads_that_make_a_pool_succeeds() {
    for round in 0..20 {
        let setup = Setup::new();
        let (disk, pool) = (setup.disk(), setup.pool());
        // The other thread may use no pool.
        let other = Some(&*pool).filter(|_| round % 2 == 0);
        let opened = std::thread::scope(|scope| {
            let threads: Vec<_> = [Some(&*pool), other]
                .map(|pool| {
                    scope.spawn({
                        let disk = &disk;
                        move || open(disk, pool)
                    })
                })
                .into();
            let opened = threads.into_iter().map(|thread| thread.join().unwrap());
            opened.collect::<Vec<_>>()
        });
        let mut users: Vec<_> = opened.into_iter().flatten().collect();
        let memory = users.pop().expect("one thread has opened it");
        assert!(users.is_empty(), "only one thread has opened it");
        let mut session = memory.session();
        let table = table(&mut session, 0).unwrap();
        write(&mut session, table, 77).unwrap();
        memory.memory().truncate().unwrap();
        drop((session, memory));
        let again = open(&disk, None).unwrap();
        assert_eq!(value(again.backing().pmem(), table), 77);
    }
}

/// A directory that a crash left while its pool was made can be opened.
#[test]
fn an_unfinished_pool_is_made_again() {
    for left in ["frames", "regions", "pool"] {
        let setup = Setup::new();
        let (disk, pool) = (setup.disk(), setup.pool());
        drop(setup.open());
        // The pool is not claimed.
        let frames = std::fs::File::options()
            .write(true)
            .open(pool.join("frames"));
        frames.unwrap().write_all_at(&[0], 64).unwrap();
        if left != "pool" {
            std::fs::remove_file(disk.join("pool")).unwrap();
        }
        if left == "frames" {
            std::fs::remove_file(pool.join("regions")).unwrap();
        }
        for _ in 0..2 {
            let memory = setup.open();
            let mut session = memory.session();
            let done = session.run(|tx| Ok::<_, Stop<()>>(tx.alloc(100)?));
            assert!(done.is_ok(), "{left}");
        }
    }
}
