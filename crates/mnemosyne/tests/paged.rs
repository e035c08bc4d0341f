//! Durable memory that is larger than its pool: what a store promises, and what is refused.

use fastrand::Rng;
use medium::{Arena, MapOptions, Pmem, Reserve};
use mnemosyne::store::{
    Backing, Directory, DirectoryOptions, Inspection, Layout, Options, PoolOptions, RegionKind,
    Session, Store, StoreError, check,
};
use mnemosyne::tx::{Stop, Transaction, TxError};
use paging::Pool;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

const POOL_BYTES: u64 = 4 << 20;
const THREADS: u64 = 4;
/// Blocks of each thread, and their bytes: together 64 MiB.
const BLOCKS: u64 = 2048;
const BLOCK_BYTES: u64 = 8192;

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        // In memory, if there is room: nothing here can tell what survives a power failure.
        let shm = Path::new("/dev/shm");
        let dir = match shm.is_dir() {
            true => tempfile::tempdir_in(shm),
            false => tempfile::tempdir(),
        };
        Self(dir.unwrap())
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn pool(&self) -> PathBuf {
        self.0.path().join("memory")
    }

    fn open(&self) -> Store<Directory> {
        open(&self.disk(), Some(&self.pool())).unwrap()
    }
}

fn open(disk: &Path, pool: Option<&Path>) -> Result<Store<Directory>, StoreError> {
    let pool = pool.map(|path| PoolOptions {
        path: path.to_owned(),
        bytes: POOL_BYTES,
        page_bytes: None,
    });
    let options = DirectoryOptions {
        layout: Layout {
            logs: 4,
            log_bytes: 256 << 10,
            ..Layout::default()
        },
        pool,
        ..DirectoryOptions::default()
    };
    Store::open_directory(disk, &options, Options::default())
}

type Failed = TxError<()>;

/// A thread's table of blocks, which is a root: a word for each.
fn table(session: &mut Session<Directory>, thread: u64) -> Result<u64, Failed> {
    let name = format!("table {thread}");
    session.run(|tx| {
        if let Some((_, table)) = tx.root(&name)? {
            return Ok(table);
        }
        let table = tx.alloc(BLOCKS * 8)?;
        for n in 0..BLOCKS {
            tx.store(table + n * 8, 0)?;
        }
        assert!(tx.set_root(&name, 0, table)?);
        Ok(table)
    })
}

/// Makes or changes a block: its first and last words, and two between.
fn write(session: &mut Session<Directory>, at: u64, value: u64) -> Result<(), Failed> {
    session.run(|tx| {
        let mut block = tx.load(at)?;
        if block == 0 {
            block = tx.alloc(BLOCK_BYTES)?;
            tx.store(at, block)?;
        }
        Ok(words(block).try_for_each(|word| tx.store(word, value))?)
    })
}

fn words(block: u64) -> impl Iterator<Item = u64> {
    [0, 2048, 4096 + 8, BLOCK_BYTES - 8]
        .into_iter()
        .map(move |off| block + off)
}

/// What all words of a block hold, which is the same.
fn value(pm: &impl Pmem, at: u64) -> u64 {
    let block = pm.load(at).unwrap();
    if block == 0 {
        return 0;
    }
    let mut values = words(block).map(|word| pm.load(word).unwrap());
    let first = values.next().unwrap();
    assert!(
        values.all(|value| value == first),
        "block {block:#x} is torn"
    );
    first
}

fn churn(store: &Store<Directory>, model: &mut [u64], thread: u64, rng: &mut Rng) {
    let mut session = store.session();
    let table = table(&mut session, thread).unwrap();
    let pm = store.backing().pmem();
    for step in 0..3000 {
        // All of them once, then any.
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
fn a_heap_of_sixteen_times_the_pool() {
    let place = Place::new();
    let mut models = vec![vec![0; BLOCKS as usize]; THREADS as usize];
    for round in 0..2 {
        let store = place.open();
        std::thread::scope(|scope| {
            for (thread, model) in (0..).zip(&mut models) {
                let store = &store;
                let mut rng = Rng::with_seed(round * THREADS + thread);
                scope.spawn(move || churn(store, model, thread, &mut rng));
            }
        });
        let counts = store.backing().pool().unwrap().counts();
        assert!(counts.loaded > 1000 && counts.written > 1000, "{counts:?}");
    }
    // As who only looks finds it, by the place that the directory knows.
    let seen = Inspection::open(place.disk()).unwrap();
    let heap = seen.regions().unwrap();
    let bytes: u64 = heap.iter().map(|region| region.len).sum();
    assert!(bytes >= 16 * POOL_BYTES);
    let report = check(place.disk()).unwrap();
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
fn regions_come_and_go_with_their_pages() {
    let place = Place::new();
    let store = place.open();
    let pm = store.backing().pmem().clone();
    for round in 1..6 {
        let link = |_: &mut Transaction<'_, _>, _| Ok(());
        let region = store
            .map(RegionKind::Program, 8 << 20, round, link)
            .unwrap();
        for at in (region.start..region.start + region.len).step_by(4096) {
            assert_eq!(pm.load(at), Ok(0), "a page of the one before");
            pm.store_word(at, round);
        }
        // Not paged, and beside the pool.
        let fixed = store.map(RegionKind::Static, 4096, round, link).unwrap();
        let file = store.backing().file(&fixed);
        assert_eq!(file.parent(), Some(place.pool().as_path()));
        store.unmap(fixed.start, |_| Ok(())).unwrap();
        store.unmap(region.start, |_| Ok(())).unwrap();
        assert!(!file.exists());
        store
            .backing()
            .no_others(&store.regions().unwrap())
            .unwrap();
    }
}

/// What the process does that is killed; nothing unless it is asked to.
#[test]
fn count_until_killed() {
    let Some(place) = std::env::var_os("PAGED_TEST_PLACE").map(PathBuf::from) else {
        return;
    };
    let store = open(&place.join("disk"), Some(&place.join("memory"))).unwrap();
    let mut session = store.session();
    let table = table(&mut session, 0).unwrap();
    let pm = store.backing().pmem();
    // Step n puts n in block n * 7 of them all: those of the last steps are known.
    let values = || (0..BLOCKS).map(|n| (value(pm, table + n * 8), n));
    let (last, _) = values().max().unwrap();
    for (found, n) in values() {
        assert!(
            found == 0 || found * 7 % BLOCKS == n,
            "{found} in block {n}"
        );
        let expected = (0..=last)
            .rev()
            .take(BLOCKS as usize)
            .find(|step| step * 7 % BLOCKS == n);
        assert_eq!(found, expected.unwrap_or(0));
    }
    println!("\nstep {last}");
    for step in last + 1.. {
        write(&mut session, table + step * 7 % BLOCKS * 8, step).unwrap();
        println!("step {step}");
    }
}

#[test]
fn what_a_killed_process_committed_is_there() {
    let place = Place::new();
    let mut seen = 0;
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "count_until_killed", "--nocapture"])
            .env("PAGED_TEST_PLACE", place.0.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut steps = lines.filter_map(|line| {
            let step = line.unwrap();
            step.strip_prefix("step ")?.parse::<u64>().ok()
        });
        let found = steps.next().expect("what is there is right");
        assert!(found >= seen, "{found} of {seen}");
        let target = found + 100 + round * 97;
        seen = steps.find(|step| *step >= target).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(seen > 2500, "all of them came and went");
}

fn refusal(opened: Result<Store<Directory>, StoreError>) -> String {
    opened.err().expect("it is refused").to_string()
}

#[test]
fn a_directory_is_used_with_its_pool_or_not_at_all() {
    let place = Place::new();
    let (disk, pool) = (place.disk(), place.pool());
    let store = place.open();
    let mut session = store.session();
    let table = table(&mut session, 0).unwrap();
    write(&mut session, table, 77).unwrap();
    let in_use = refusal(open(&disk, None));
    assert!(in_use.contains("frames is in use by process"), "{in_use}");
    drop((session, store));
    let holds = |store: &Store<Directory>| value(store.backing().pmem(), table);
    // It knows where the pool is.
    assert_eq!(holds(&open(&disk, None).unwrap()), 77);
    let moved = place.0.path().join("moved");
    std::fs::rename(&pool, &moved).unwrap();
    let missing = refusal(open(&disk, None));
    assert!(missing.contains("memory/frames is missing"), "{missing}");
    let missing = refusal(open(&disk, Some(&pool)));
    assert!(missing.contains("memory/frames is missing"), "{missing}");
    assert_eq!(holds(&open(&disk, Some(&moved)).unwrap()), 77);
    assert_eq!(holds(&open(&disk, None).unwrap()), 77);
    // Another directory's, and another pool.
    let other = place.0.path().join("other");
    let taken = refusal(open(&other, Some(&moved)));
    assert!(
        taken.contains("the pool of another directory than"),
        "{taken}"
    );
    let foreign = place.0.path().join("foreign");
    drop(open(&other, Some(&foreign)).unwrap());
    let refused = refusal(open(&disk, Some(&foreign)));
    assert!(refused.contains("foreign is the pool"), "{refused}");
    // A directory without, or that has lost the name of its pool.
    let plain = place.0.path().join("plain");
    drop(open(&plain, None).unwrap());
    let unpooled = refusal(open(&plain, Some(&place.0.path().join("new"))));
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
    // An entry that is damaged.
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
    assert_eq!(holds(&open(&disk, None).unwrap()), 77);
}

/// A page of a region that there is not: who opens the directory is refused, who looks is, and
/// a check finds it; it stays as it is.
#[test]
fn a_page_without_a_region_is_told() {
    let place = Place::new();
    drop(place.open());
    let frames = place.pool().join("frames");
    let map = MapOptions::default();
    let lost = place.0.path().join("lost");
    medium::create_file(&lost, 1 << 20, Reserve::Sparse).unwrap();
    let pool = Arc::new(Pool::open(&frames, &map).unwrap());
    let arena = Arena::reserve(None, 1 << 30).unwrap();
    arena.map_paged(0, &lost, (&pool, 500), &map).unwrap();
    arena.store_word(0, 1);
    drop((arena, pool));
    let before = std::fs::read(&frames).unwrap();
    let what = "page 0 of region 500, which there is not";
    let refused = refusal(open(&place.disk(), None));
    assert!(refused.contains(what), "{refused}");
    let unseen = Inspection::open(place.disk()).err().unwrap().to_string();
    assert!(unseen.contains(what), "{unseen}");
    let report = check(place.disk()).unwrap();
    let [finding] = &report.findings[..] else {
        panic!("{report:#?}");
    };
    assert_eq!((finding.invariant, &*finding.file), ("P5", "frames"));
    let entry = &before[finding.offset as usize..][..8];
    assert!(entry != [0; 8] && finding.what.contains(what));
    assert!(std::fs::read(&frames).unwrap() == before);
    Pool::open(&frames, &map).unwrap().forget(500).unwrap();
    assert!(check(place.disk()).unwrap().is_clean());
    drop(place.open());
}

/// The pages of the one who does are in the pool that the directory knows of.
#[test]
fn of_those_who_make_a_pool_at_once_one_does() {
    for round in 0..20 {
        let place = Place::new();
        let (disk, pool) = (place.disk(), place.pool());
        // The other one may want none.
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
        let store = users.pop().expect("one does");
        assert!(users.is_empty(), "only one does");
        let mut session = store.session();
        let table = table(&mut session, 0).unwrap();
        write(&mut session, table, 77).unwrap();
        store.memory().truncate().unwrap();
        drop((session, store));
        let again = open(&disk, None).unwrap();
        assert_eq!(value(again.backing().pmem(), table), 77);
    }
}

/// What a crash may leave while a pool is made can be opened, with a pool or without.
#[test]
fn a_pool_that_was_never_whole_is_made_again() {
    for left in ["frames", "regions", "pool"] {
        let place = Place::new();
        let (disk, pool) = (place.disk(), place.pool());
        drop(place.open());
        // Not claimed.
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
            let store = place.open();
            let mut session = store.session();
            let done = session.run(|tx| Ok::<_, Stop<()>>(tx.alloc(100)?));
            assert!(done.is_ok(), "{left}");
        }
    }
}
