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
#[path = "../../src/nodes.rs"]
mod nodes;
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
#[path = "../../src/twins.rs"]
mod twins;
#[path = "../../src/view.rs"]
mod view;
#[path = "../../src/volume.rs"]
mod volume;

#[path = "../../../crash/tests/scripts/bounds.rs"]
mod bounds;
mod calls;
mod fsyncs;
mod memory;
mod shared;
mod sync;
mod syncs;

use bounds::bound;
use calls::{Call, Places};
use check::check;
use fastrand::Rng;
use format::{MIN_PAGES, PAGE};
use fs::SoupFs;
use mkfs::{MkfsOptions, mkfs};
use mode::Mode;
use mount::MountOptions;
use oracle::ModelFs;
use oracle::snapshot::Snapshot;
use pressure::Portion;
use seeded::{Bug, arm, fired};
use shared::Shared;
use sharing::Sharing;
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};
use std::panic::catch_unwind;
use std::sync::Arc;
use vfs::{Atime, FileSystem};

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
    let pm = Arc::new(Shared::new(MIN_PAGES * PAGE));
    mkfs(&*pm, &MkfsOptions::default()).expect("it is large enough");
    let portion = [Portion::LEAST, Portion::OF_MOUNT][rng.usize(..2)];
    let sharing = Sharing::among(1);
    let fs = SoupFs::open_with(Arc::clone(&pm), options(false, mode), sharing, portion);
    let fs = fs.expect("a mount");
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

fn check_all(test: fn(), schedules: usize) {
    // The seed is fixed: a failure occurs again.
    run_all(test, RandomScheduler::new_from_seed(1, schedules));
}

/// As [`check_all`], with few changes of threads: one may do much while another one waits.
fn check_few_changes(test: fn(), schedules: usize) {
    run_all(test, PctScheduler::new_from_seed(1, 3, schedules));
}

fn run_all(test: fn(), scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    config.failure_persistence = FailurePersistence::None;
    Runner::new(scheduler, config).run(test);
}

/// Each bug that needs such an order, with the test that finds it.
const BUGS: [(Bug, fn()); 11] = [
    (Bug::NothingClaimed, fsyncs::in_one_chain),
    (Bug::ChainsUnclaimed, fsyncs::in_one_chain),
    (Bug::PathUnchecked, fsyncs::beside_a_split),
    (Bug::ParentUnclaimed, fsyncs::beside_a_change_of_rights),
    (Bug::RightsUnchecked, fsyncs::after_a_change_of_rights),
    (Bug::TakenForgotten, fsyncs::beside_removals),
    (Bug::ListedLate, calls_beside_rounds),
    (Bug::StagedForgotten, calls_beside_rounds),
    (Bug::MarkUnlocked, memory::memory_is_handed_out_once),
    (Bug::NoLastRound, syncs::beside_renames),
    (Bug::NoLastRound, syncs::beside_an_fsync),
];

/// One test, since a bug is armed for the whole process.
#[test]
fn threads_in_many_orders() {
    for test in [
        calls_beside_rounds,
        calls_with_fsyncs,
        fsyncs::in_one_chain,
        fsyncs::beside_a_split,
        fsyncs::beside_removals,
        fsyncs::beside_a_change_of_rights,
        fsyncs::after_a_change_of_rights,
        memory::memory_is_handed_out_once,
        syncs::beside_renames,
        syncs::beside_an_fsync,
        syncs::beside_removals,
        syncs::lookups_beside_removals,
        syncs::before_another_one,
    ] {
        check_all(test, bound(300, 100_000));
        check_few_changes(test, bound(100, 100_000));
    }
    for (bug, test) in BUGS {
        arm(Some(bug));
        let find = || {
            check_all(test, 300);
            check_few_changes(test, 3000);
        };
        let is_found = catch_unwind(find).is_err();
        assert!(fired() > 0, "{bug:?} never took effect");
        arm(None);
        assert!(is_found, "{bug:?}");
    }
}
