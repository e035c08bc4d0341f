//! SoupFS with its threads in many orders.
//!
//! The modules of the crate are compiled here over the locks and atomics of a scheduler (`sync`). It
//! draws the thread that continues at each of them, and at each store and fence of the medium. So
//! rounds of the persister run between the steps of calls, and calls between the steps of a round.
//!
//! Each run demands that the results of the calls, and the file system at the end, are those of some
//! order of the calls on the model. After a sync the image is sound, and a mount sees the same.

#![allow(dead_code)] // the modules serve more than these tests

#[path = "../../src/alloc.rs"]
mod alloc;
#[path = "../../src/attrs.rs"]
mod attrs;
#[path = "../../src/by_hash.rs"]
mod by_hash;
#[path = "../../src/change.rs"]
mod change;
#[path = "../../src/check.rs"]
mod check;
#[path = "../../src/copies.rs"]
mod copies;
#[path = "../../src/data.rs"]
mod data;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/format.rs"]
mod format;
#[path = "../../src/fs.rs"]
mod fs;
#[path = "../../src/mkfs.rs"]
mod mkfs;
#[path = "../../src/mode.rs"]
mod mode;
#[path = "../../src/mount.rs"]
mod mount;
#[path = "../../src/names.rs"]
mod names;
#[path = "../../src/node.rs"]
mod node;
#[path = "../../src/numa.rs"]
mod numa;
#[path = "../../src/persist/mod.rs"]
mod persist;
#[path = "../../src/persister.rs"]
mod persister;
#[path = "../../src/pressure.rs"]
mod pressure;
#[path = "../../src/rename.rs"]
mod rename;
#[path = "../../src/seeded.rs"]
mod seeded;
#[path = "../../src/shards.rs"]
mod shards;
#[path = "../../src/sharing.rs"]
mod sharing;
#[path = "../../src/space.rs"]
mod space;
#[path = "../../src/staged.rs"]
mod staged;
#[path = "../../src/view.rs"]
mod view;
#[path = "../../src/volume.rs"]
mod volume;

#[path = "../../../crash/tests/scripts/bounds.rs"]
mod bounds;
mod calls;
mod memory;
mod sync;

use bounds::bound;
use calls::{Call, Places};
use check::check;
use fastrand::Rng;
use format::{MIN_PAGES, PAGE};
use fs::SoupFs;
use medium::layer::PmemLayer;
use medium::{MediumError, MemoryPmem, Pmem, Rule};
use mkfs::{MkfsOptions, mkfs};
use mode::Mode;
use mount::MountOptions;
use oracle::ModelFs;
use oracle::snapshot::Snapshot;
use seeded::{Bug, arm, fired};
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, FailurePersistence, Runner, thread};
use std::panic::catch_unwind;
use std::sync::Arc;
use vfs::{Atime, Ctx, FileSystem, Ino};

/// A memory at whose stores and fences threads change.
struct Shared(MemoryPmem);

impl PmemLayer for Shared {
    type Below = MemoryPmem;

    fn below(&self) -> &MemoryPmem {
        &self.0
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        thread::yield_now();
        Pmem::store(&self.0, off, bytes);
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        thread::yield_now();
        Pmem::fence(&self.0, rule)
    }
}

fn options(read_only: bool, mode: Mode) -> MountOptions {
    MountOptions {
        read_only,
        mode,
        atime: Atime::Never,
        bound_s: None,
        persisters: std::num::NonZeroUsize::MIN,
        ..MountOptions::default()
    }
}

/// Calls of a thread, and what it saw.
type Calls = Vec<(Call, String)>;

/// Whether some order of the calls that keeps the order of each thread has these results, and leads
/// to `end`.
fn is_in_some_order(
    model: &ModelFs,
    places: &Places,
    left: [&[(Call, String)]; 2],
    end: &Snapshot,
) -> bool {
    if left.iter().all(|calls| calls.is_empty()) {
        let there = Snapshot::take(model).expect("the model can be read");
        return there.is_same_except_times(end);
    }
    (0..2).any(|n| {
        let Some(((call, seen), rest)) = left[n].split_first() else {
            return false;
        };
        let model = model.fork();
        let mut next = left;
        next[n] = rest;
        call.run(&model, places) == *seen && is_in_some_order(&model, places, next, end)
    })
}

/// Two threads make calls, and a third one runs rounds.
fn calls_beside_rounds() {
    run_calls(false);
}

/// The same, with an fsync after each call.
fn calls_with_fsyncs() {
    run_calls(true);
}

fn run_calls(with_fsyncs: bool) {
    let mut rng = Rng::with_seed(thread_rng().gen_range(0..u64::MAX));
    let mode = Mode::ALL[rng.usize(..Mode::ALL.len())];
    let pm = Arc::new(Shared(MemoryPmem::new(MIN_PAGES * PAGE)));
    mkfs(&*pm, &MkfsOptions::default()).expect("it is large enough");
    let fs = SoupFs::open(Arc::clone(&pm), options(false, mode)).expect("a mount");
    let (fs, model) = (Arc::new(fs), ModelFs::default());
    let places = Arc::new(Places::make(&*fs).expect("there is room"));
    let of_model = Places::make(&model).expect("there is room");
    if rng.bool() {
        fs.sync().expect("memory does not fail");
    }
    let callers = [0, 1].map(|_| {
        let (fs, places) = (Arc::clone(&fs), Arc::clone(&places));
        let calls: Vec<Call> = (0..4).map(|_| Call::drawn(&mut rng)).collect();
        thread::spawn(move || -> Calls {
            let run = |call: Call| {
                let seen = call.run(&*fs, &places);
                if with_fsyncs {
                    places.fsync(&*fs, call).expect("memory does not fail");
                }
                (call, seen)
            };
            calls.into_iter().map(run).collect()
        })
    });
    let rounds = {
        let fs = Arc::clone(&fs);
        thread::spawn(move || (0..2).for_each(|_| fs.sync().expect("memory does not fail")))
    };
    let made = callers.map(|caller| caller.join().expect("no call panics"));
    rounds.join().expect("no round panics");
    fs.sync().expect("memory does not fail");
    let end = Snapshot::take(&*fs).expect("it can be read");
    let in_order = is_in_some_order(&model, &of_model, [&made[0], &made[1]], &end);
    assert!(in_order, "{made:#?} is in no order; {end:#?}");
    let places = Arc::into_inner(places).expect("the threads are gone");
    places.forget(&*fs);
    fs.sync().expect("memory does not fail");
    assert_eq!(check(&*pm).findings, []);
    let there = SoupFs::open(Arc::clone(&pm), options(true, mode)).expect("a mount");
    let there = Snapshot::take(&there).expect("it can be read");
    assert!(there.is_same_except_times(&end), "{:#?}", end.diff(&there));
}

/// Two threads make files in one directory, each with an fsync. All of them are persistent then.
fn fsyncs_in_one_directory() {
    let pm = Arc::new(Shared(MemoryPmem::new(MIN_PAGES * PAGE)));
    mkfs(&*pm, &MkfsOptions::default()).expect("it is large enough");
    let fs = SoupFs::open(Arc::clone(&pm), options(false, Mode::default())).expect("a mount");
    let (fs, cx) = (Arc::new(fs), Ctx::root());
    let dir = fs.mkdir(&cx, Ino::ROOT, b"A", 0o755);
    let dir = dir.expect("there is room").ino;
    let makers = ["f", "g"].map(|name| {
        let fs = Arc::clone(&fs);
        thread::spawn(move || {
            for n in 0..3 {
                let (name, cx) = (format!("{name}{n}"), Ctx::root());
                let made = fs.create(&cx, dir, name.as_bytes(), 0o644);
                let made = made.expect("there is room");
                let synced = fs.fsync(&cx, made.ino, false);
                synced.expect("memory does not fail");
            }
        })
    });
    let ended = makers.into_iter().map(|maker| maker.join());
    ended.for_each(|end| end.expect("no call panics"));
    let there = SoupFs::open(Arc::clone(&pm), options(true, Mode::default())).expect("a mount");
    let there = Snapshot::take(&there).expect("it can be read");
    // With the root and the directory.
    assert_eq!(there.iter().count(), 2 + 6);
}

fn check_all(test: fn(), schedules: usize) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    // The seed is fixed: a failure occurs again.
    config.failure_persistence = FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(1, schedules);
    Runner::new(scheduler, config).run(test);
}

/// Each bug that needs such an order, with the test that finds it.
const BUGS: [(Bug, fn()); 4] = [
    (Bug::NothingClaimed, fsyncs_in_one_directory),
    (Bug::ListedLate, calls_beside_rounds),
    (Bug::StagedForgotten, calls_beside_rounds),
    (Bug::MarkUnlocked, memory::memory_is_handed_out_once),
];

/// One test, since a bug is armed for the whole process.
#[test]
fn threads_in_many_orders() {
    check_all(calls_beside_rounds, bound(300, 100_000));
    check_all(calls_with_fsyncs, bound(300, 100_000));
    check_all(fsyncs_in_one_directory, bound(300, 100_000));
    check_all(memory::memory_is_handed_out_once, bound(300, 100_000));
    for (bug, test) in BUGS {
        arm(Some(bug));
        let is_found = catch_unwind(|| check_all(test, 300)).is_err();
        assert!(fired() > 0, "{bug:?} never took effect");
        arm(None);
        assert!(is_found, "{bug:?}");
    }
}
