//! Seeded bugs of durable memory. Each takes effect and is found, its failure replays, and nothing
//! is found without it.

use crash::program::{Program, explore, replay};
use crash::{Options, PersistModel};
use mnemosyne::memory::seeded as file_bugs;
use mnemosyne::seeded::{Bug, arm, fired};
use mnemosyne::tx::Truncation;
use paging::seeded as paging_bugs;
use parking_lot::Mutex;
use programs::files::{self, InFiles};
use programs::logs::Logs;
use programs::neighbours::Neighbours;
use programs::overflows::Overflows;
use programs::pages::Paging;
use programs::plain::Plain;
use programs::repairs::Repairs;
use programs::structures::Change::{Add, Take};
use programs::structures::Kind::{Log, Queue, Table, Tree, Vector};
use programs::structures::Structures;
use programs::threads::Threads;
use programs::transactions::Transactions;
use programs::whole::{OVERFLOWS, Step, UNDONE, Whole};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use wordlog::{Kind, seeded as log_bugs};

/// Bounds: first without crashes in recovery, then with.
fn all_options() -> impl Iterator<Item = Options> {
    let bounds = [(0, 256), (1, 16)];
    bounds
        .into_iter()
        .flat_map(|(recovery_depth, states_per_point)| {
            PersistModel::ALL.into_iter().map(move |model| Options {
                model,
                recovery_depth,
                states_per_point,
                samples: 8,
                ..Options::default()
            })
        })
}

/// A bug of a crate, and how the crate arms it.
#[derive(Clone, Copy)]
struct Planted<B> {
    bug: B,
    arm: fn(Option<B>),
    fired: fn() -> u64,
}

impl<B: Copy + Debug> Planted<B> {
    /// The first failure of a program, or the error if it does not run. Demands that the failure
    /// replays, and that there is none without the bug.
    fn failure(&self, program: &impl Program) -> Option<String> {
        self.failure_within(program, all_options())
    }

    /// [`failure`](Self::failure) within bounds.
    fn failure_within(
        &self,
        program: &impl Program,
        bounds: impl Iterator<Item = Options>,
    ) -> Option<String> {
        let Self { bug, arm, fired } = *self;
        for options in bounds {
            arm(Some(bug));
            let explored = explore(program, &options);
            let took_effect = fired() > 0;
            let failure = match explored {
                Ok(explored) => explored.failure,
                Err(why) => {
                    assert!(took_effect, "{bug:?}: {why} without the bug");
                    return Some(format!("without a crash: {why}"));
                }
            };
            let Some(failure) = failure else {
                continue;
            };
            assert!(took_effect, "{bug:?}: {failure:?} without the bug");
            let again = replay(program, &options, &failure).expect("the place is there");
            assert!(again.is_some(), "{bug:?}: {failure:?} does not replay");
            arm(None);
            let without = explore(program, &options).expect("it runs without a crash");
            assert!(without.failure.is_none(), "{bug:?}: found without it, too");
            return Some(format!("{failure:?}"));
        }
        None
    }
}

/// A bug of the logs.
fn of_logs(bug: log_bugs::Bug) -> Planted<log_bugs::Bug> {
    let (arm, fired) = (log_bugs::arm, log_bugs::fired);
    Planted { bug, arm, fired }
}

/// A bug of the layers above the logs.
fn of_memory(bug: Bug) -> Planted<Bug> {
    Planted { bug, arm, fired }
}

/// [`of_memory`], armed for the threads of a program as well.
fn of_threads(bug: Bug) -> Planted<Bug> {
    let (arm, fired) = (arm_threads, fired_in_threads);
    Planted { bug, arm, fired }
}

fn logs(kind: Kind) -> Logs {
    Logs {
        kind,
        lines: 5,
        lengths: &[7, 2, 12],
        count: 26,
        before: 2,
        empties: false,
    }
}

/// A record at the end of the ring is in flight with one at its start.
fn wrapping_logs(kind: Kind) -> Logs {
    Logs {
        kind,
        lines: 7,
        lengths: &[1, 1, 12, 5],
        count: 14,
        before: 0,
        empties: false,
    }
}

fn emptied_logs(kind: Kind) -> Logs {
    let empties = true;
    Logs {
        empties,
        ..logs(kind)
    }
}

fn transactions(kind: Kind, sessions: usize, by_hand: bool) -> Transactions {
    Transactions {
        kind,
        truncation: Truncation::Lazy,
        sessions,
        lines: 6,
        writes: &[&[0, 1, 9], &[0], &[1, 17], &[9, 0], &[2]],
        by_hand,
        count: 18,
        before: 4,
    }
}

fn neighbours(kind: Kind) -> Neighbours {
    Neighbours {
        kind,
        lines: 6,
        count: 6,
    }
}

/// A block is freed and allocated again in the same place.
const BLOCKS: &[Step] = &[
    Step::Alloc { slot: 0, bytes: 40 },
    Step::Shadow {
        slot: 1,
        bytes: 5000,
    },
    Step::Write { slot: 1 },
    Step::Free { slot: 1 },
    Step::Shadow {
        slot: 1,
        bytes: 5000,
    },
    Step::Replace {
        slot: 0,
        other: 2,
        bytes: 40,
    },
];

/// A free is rolled back, and others allocate blocks.
const CANCELLED: &[Step] = &[
    Step::Alloc { slot: 0, bytes: 40 },
    Step::Alloc {
        slot: 1,
        bytes: 5000,
    },
    Step::Cancel {
        slot: 1,
        bytes: 5000,
    },
    Step::Cancel { slot: 0, bytes: 40 },
    Step::Alloc {
        slot: 2,
        bytes: 5000,
    },
    Step::Alloc { slot: 3, bytes: 40 },
];

/// A region is removed and made again in the same place.
const REGIONS: &[Step] = &[
    Step::FailMap,
    Step::Map { slot: 3 },
    Step::Write { slot: 3 },
    Step::Unmap { slot: 3 },
    Step::Map { slot: 3 },
];

fn whole(kind: Kind, steps: &'static [Step]) -> Whole {
    Whole {
        kind,
        truncation: Truncation::Lazy,
        log_lines: 80,
        steps,
    }
}

fn overflows(kind: Kind) -> Whole {
    Whole {
        log_lines: 4,
        ..whole(kind, OVERFLOWS)
    }
}

/// The bug that threads arm.
static OF_THREADS: Mutex<Option<Bug>> = Mutex::new(None);
/// Number of times it took effect in ended threads.
static FIRED_IN_THREADS: AtomicU64 = AtomicU64::new(0);
/// Held by the test that uses [`OF_THREADS`].
static TURN: Mutex<()> = Mutex::new(());

/// Adds a thread's count to [`FIRED_IN_THREADS`] when the thread ends.
struct AddFired;

impl Drop for AddFired {
    fn drop(&mut self) {
        FIRED_IN_THREADS.fetch_add(fired(), Relaxed);
    }
}

thread_local! {
    static ADD_FIRED: AddFired = const { AddFired };
}

/// Runs first in each thread.
fn prepare_thread() {
    arm(*OF_THREADS.lock());
    // A thread-local value is dropped only in threads that used it.
    ADD_FIRED.with(|_| ());
}

/// Arms a bug for this thread and for the threads that it starts.
fn arm_threads(bug: Option<Bug>) {
    *OF_THREADS.lock() = bug;
    FIRED_IN_THREADS.store(0, Relaxed);
    arm(bug);
}

fn fired_in_threads() -> u64 {
    fired() + FIRED_IN_THREADS.load(Relaxed)
}

/// The failure of a program of threads, one of which is stopped.
fn failure_of_threads(bug: Bug) -> Option<String> {
    let _turn = TURN.lock();
    (0..5).find_map(|stop_after| {
        let program = Threads {
            kind: Kind::TornBit,
            lines: 6,
            commits: 2,
            stop_after,
            prepare: prepare_thread,
            was_stopped: AtomicBool::new(false),
        };
        let failure = of_threads(bug).failure(&program)?;
        Some(format!("stopped after {stop_after} steps: {failure}"))
    })
}

/// The finder of a bug: a program, or another test.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Finder {
    Logs,
    WrappingLogs,
    EmptiedLogs,
    Transactions,
    TwoSessions,
    ByHand,
    Neighbours,
    Blocks,
    Overflows,
    /// With more states of two crashes.
    OverflowsTwice,
    Undone,
    Cancelled,
    Regions,
    Threads,
    Elsewhere,
}

/// The program that finds a bug of the layers above the logs. A bug without a line does not compile.
fn finder(bug: Bug) -> Finder {
    match bug {
        Bug::HomeBeforeLog
        | Bug::ReclaimBeforeHome
        | Bug::WrittenBackBefore
        | Bug::UnflushedRecovery
        | Bug::LowWaterBeforeReplay
        | Bug::WordInLog
        | Bug::UnfencedWord => Finder::Transactions,
        Bug::NoLowWater | Bug::ReplayUnordered | Bug::ReplayAll => Finder::TwoSessions,
        Bug::PlainStoreInLog => Finder::ByHand,
        Bug::WholeWords | Bug::ReplayWhole => Finder::Neighbours,
        Bug::FillAfterLog
        | Bug::FillUnflushed
        | Bug::BlockWithoutBit
        | Bug::FreshBlockInLog
        | Bug::RegionBeforeBytes
        | Bug::UnfencedSegment => Finder::Blocks,
        Bug::ReuseBeforeTruncated | Bug::OverflowAfterLog => Finder::Overflows,
        Bug::UndoneUnflushed => Finder::Undone,
        Bug::FreedByAbort => Finder::Cancelled,
        Bug::UnfencedRegion | Bug::RegionInLog => Finder::Regions,
        Bug::UnfencedWriteBack => Finder::Threads,
        FOUND_IN_REPAIRS | FOUND_BESIDE_A_COMMIT => Finder::Elsewhere,
    }
}

/// [`finder`] of a bug of the logs.
fn finder_in_logs(bug: log_bugs::Bug) -> Finder {
    use log_bugs::Bug;
    match bug {
        Bug::UnfencedLog | Bug::TailBeforeRecords | Bug::NoFlip | Bug::ReuseBeforeTruncated => {
            Finder::Logs
        }
        Bug::Unscrubbed | Bug::ScrubbedToEnd => Finder::WrappingLogs,
        Bug::ScrubbedToOldHead => Finder::OverflowsTwice,
        Bug::UnfencedScrub | Bug::UnflushedHead => Finder::EmptiedLogs,
        FOUND_WHERE_LOGS_ARE_MADE => Finder::Elsewhere,
    }
}

/// Whether a program that runs in one thread finds a bug of a crate, with one of the kinds of logs.
fn is_found_in_one_thread<B: Copy + Debug>(planted: Planted<B>, finder: Finder) -> bool {
    let of_kind = |kind| match finder {
        Finder::Logs => planted.failure(&logs(kind)),
        Finder::WrappingLogs => planted.failure(&wrapping_logs(kind)),
        Finder::EmptiedLogs => planted.failure(&emptied_logs(kind)),
        Finder::Transactions => planted.failure(&transactions(kind, 1, false)),
        Finder::TwoSessions => planted.failure(&transactions(kind, 2, false)),
        Finder::ByHand => planted.failure(&transactions(kind, 2, true)),
        Finder::Neighbours => planted.failure(&neighbours(kind)),
        Finder::Blocks => planted.failure(&whole(kind, BLOCKS)),
        Finder::Overflows => planted.failure(&overflows(kind)),
        Finder::OverflowsTwice => {
            let many = Options {
                states_per_point: 64,
                samples: 64,
                ..Options::default()
            };
            planted.failure_within(&overflows(kind), std::iter::once(many))
        }
        Finder::Undone => planted.failure(&whole(kind, UNDONE)),
        Finder::Cancelled => planted.failure(&whole(kind, CANCELLED)),
        Finder::Regions => planted.failure(&whole(kind, REGIONS)),
        Finder::Threads | Finder::Elsewhere => None,
    };
    let failure = [Kind::TornBit, Kind::Base].into_iter().find_map(of_kind);
    println!("{:?}, {finder:?}: {failure:?}", planted.bug);
    failure.is_some()
}

fn is_found(bug: Bug) -> bool {
    match finder(bug) {
        Finder::Threads => {
            let failure = failure_of_threads(bug);
            println!("{bug:?}, threads: {failure:?}");
            failure.is_some()
        }
        Finder::Elsewhere => true,
        finder => is_found_in_one_thread(of_memory(bug), finder),
    }
}

/// A bug that no program finds, since programs begin with finished memory. The crate's own tests
/// find it: they cut the power while a log is made.
const FOUND_WHERE_LOGS_ARE_MADE: log_bugs::Bug = log_bugs::Bug::UnfencedFormat;

/// A bug of repairs, which no other program makes.
const FOUND_IN_REPAIRS: Bug = Bug::UnloggedRepair;

/// A bug that does not show in the other programs: they truncate a log before its pages are
/// allocated.
const FOUND_BESIDE_A_COMMIT: Bug = Bug::OverflowInLog;

#[test]
fn a_bug_of_long_transactions() {
    let _turn = TURN.lock();
    for kind in [Kind::TornBit, Kind::Base] {
        let program = Overflows {
            kind,
            stop_after: 0,
            prepare: prepare_thread,
            was_stopped: AtomicBool::new(false),
        };
        let bug = FOUND_BESIDE_A_COMMIT;
        let failure = of_threads(bug).failure(&program);
        println!("{kind:?}: {failure:?}");
        assert!(failure.is_some(), "{kind:?}");
    }
}

#[test]
fn a_bug_of_repairs() {
    for kind in [Kind::TornBit, Kind::Base] {
        let failure = of_memory(FOUND_IN_REPAIRS).failure(&Repairs::new(kind));
        println!("{kind:?}: {failure:?}");
        assert!(failure.is_some(), "{kind:?}");
    }
}

#[test]
fn bugs_of_logs() {
    let is_missed = |bug: &log_bugs::Bug| match finder_in_logs(*bug) {
        Finder::Elsewhere => false,
        finder => !is_found_in_one_thread(of_logs(*bug), finder),
    };
    let missed: Vec<_> = log_bugs::Bug::ALL
        .iter()
        .filter(|bug| is_missed(bug))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn bugs_of_durable_memory() {
    // Each bug is armed for one thread.
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let look = || {
        while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Relaxed)) {
            if !is_found(*bug) {
                missed.lock().push(*bug);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(look);
        look();
    });
    assert_eq!(missed.into_inner(), []);
}

/// Structures depend on the order of the layers below. Each of these bugs shows in their contents.
#[test]
fn bugs_show_in_structures() {
    let steps = vec![
        vec![Add(Table, 1), Add(Tree, 1)],
        // An element of 600 bytes, which are filled.
        vec![Add(Vector, 3), Add(Queue, 1)],
        vec![Take(Vector, 0), Add(Log, 1)],
        vec![Add(Vector, 7), Take(Table, 1)],
    ];
    let program = Structures::new(Truncation::Lazy, 1, steps);
    for bug in [
        Bug::HomeBeforeLog,
        Bug::UnflushedRecovery,
        Bug::FillAfterLog,
        Bug::FillUnflushed,
    ] {
        let failure = of_memory(bug).failure(&program);
        println!("{bug:?}: {failure:?}");
        assert!(failure.is_some(), "{bug:?} does not show");
    }
    let bug = log_bugs::Bug::UnfencedLog;
    let failure = of_logs(bug).failure(&program);
    println!("{bug:?}: {failure:?}");
    assert!(failure.is_some(), "{bug:?} does not show");
}

#[test]
fn bugs_of_pages_that_move() {
    use paging_bugs::{Bug, arm, fired};
    let is_found = |bug: Bug| {
        (0..12).any(|seed| {
            let program = Paging {
                frames: 3,
                pages: 5,
                seed,
                steps: 24,
            };
            let failure = Planted { bug, arm, fired }.failure(&program);
            if let Some(failure) = &failure {
                println!("{bug:?}, seed {seed}: {failure}");
            }
            failure.is_some()
        })
    };
    let missed: Vec<_> = Bug::ALL.iter().filter(|bug| !is_found(**bug)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// The failure of the first of these programs in which a bug of files shows, without crashes in
/// recovery.
fn failure_in_files<P: Program>(
    bug: file_bugs::Bug,
    mut programs: impl Iterator<Item = P>,
) -> Option<String> {
    let (arm, fired) = (file_bugs::arm, file_bugs::fired);
    let planted = Planted { bug, arm, fired };
    programs.find_map(|program| {
        let bounds = PersistModel::ALL.map(|model| Options {
            model,
            recovery_depth: 0,
            states_per_point: 64,
            samples: 8,
            ..Options::default()
        });
        planted.failure_within(&program, bounds.into_iter())
    })
}

#[test]
fn bugs_of_files() {
    use file_bugs::Bug;
    let is_found = |bug: &Bug| {
        let failure = match bug {
            // Kills the process at several steps.
            Bug::FoundNotSynced => failure_in_files(
                *bug,
                (10..25).map(|steps| InFiles::new(files::SUCCESSORS[0], steps)),
            ),
            Bug::OnlyNotedSynced => failure_in_files(*bug, std::iter::once(Plain { processes: 2 })),
            _ => failure_in_files(
                *bug,
                [files::DURABLE, files::NOTED]
                    .into_iter()
                    .map(|lives| InFiles::new(lives, usize::MAX)),
            ),
        };
        println!("{bug:?}: {failure:?}");
        failure.is_some()
    };
    let missed: Vec<_> = Bug::ALL.iter().filter(|bug| !is_found(bug)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
