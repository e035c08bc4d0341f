//! Seeded bugs of SoupFS. Each takes effect, and each is found within a minute of CPU time under each
//! model of memory in which it matters. There is one test, since a bug is armed for the whole process.

#[path = "../soupfs/aged.rs"]
mod aged;
#[path = "../seeded_blocks/budget.rs"]
mod budget;
#[path = "../soupfs/full_chain.rs"]
mod full_chain;
#[path = "../soupfs/image.rs"]
mod image;
mod open_file;
mod shared_round;

use budget::{BUDGET, used};
use crash::program::{explore_all, replay_id};
use crash::{FailureId, FailureReport, Options, PersistModel, Schedule, explore, revisit};
use rustix::time::ClockId;
use soupfs::SoupSystem;
use soupfs::seeded::{Bug, arm, fired};

fn options(model: PersistModel) -> Options {
    Options {
        ops: 1,
        model,
        schedules: vec![Schedule::Sync, Schedule::Each, Schedule::Any(1)],
        scripts: SCRIPTS.map(str::to_owned).to_vec(),
        states_per_point: 256,
        samples: 16,
        max_failures: 1,
        shrunk: 0,
        ..Options::default()
    }
}

/// The explorations, the quick ones first: scripts for single bugs without crashes in recovery, pairs of
/// calls on a full chain, those scripts in full, all calls, and calls after the end of a life.
fn explorations(model: PersistModel) -> [Options; 5] {
    let options = options(model);
    let scripts = Options {
        ops: 0,
        schedules: Schedule::ALL.to_vec(),
        ..options.clone()
    };
    let quick = Options {
        schedules: vec![Schedule::Sync, Schedule::Each],
        states_per_point: 32,
        samples: 8,
        recovery_depth: 0,
        ..scripts.clone()
    };
    let on_a_full_chain = Options {
        ops: 0,
        schedules: vec![Schedule::Sync],
        scripts: full_chain::scripts(),
        moments: 8,
        recovery_depth: 0,
        ..options.clone()
    };
    let lives = Options {
        lives: 2,
        ..options.clone()
    };
    [quick, on_a_full_chain, scripts, options, lives]
}

/// Calls that depend on each other, most of them on several directories.
const SCRIPTS: [&str; 11] = [
    "create f 644\ncreate x 644\nmkdir A 755\nsync\nchmod x 600\nmkdir A/n 755\n\
     rename f A/n/f replace\n",
    "create f 644\nsync\nmkdir n 755\nlink f n/f\nunlink f\n",
    "create f 644\nmkdir A 755\nmkdir n 755\nsync\nrename n A/n replace\nmkdir n 755\n\
     link f n/f\nunlink f\n",
    "mkdir A 755\nmkdir C 755\nmkdir C/D 755\nsync\nrename C/D A/D replace\nrmdir C\n",
    "mkdir A 755\nmkdir C 755\nmkdir C/D 755\nsync\nrename C/D A/D replace\n\
     rename C A/D/C replace\n",
    "mkdir A 755\nsync\nmkdir n 755\ncreate n/m 644\nrename n A/k replace\n",
    "create a-name-that-is-too-long-for-its-dentry-and-needs-lines 644\n",
    "create f 644\nwrite f 0 9000 1\nsync\ntruncate f 100\ncreate g 644\nwrite g 0 9000 2\n",
    "mkdir d 755\ncreate d/f 644\nwrite d/f 0 100 1\nfsync d/f\n",
    "create f 644\nsync\nunlink f\nsync\nmkdir d 755\ncreate d/g 644\nwrite d/g 0 100 1\n",
    "create f 644\nopen 0 f\nwrite @0 0 100 1\nsync\nunlink f\nwrite @0 5 5 3\n",
];

/// Bugs without effect under one model: dentries and inodes are lines, which keep the order of their
/// stores.
const HARMLESS: [(Bug, PersistModel); 0] = [];

/// Bugs that the explorer cannot find, since it records all threads as one.
const OF_PARTS: [Bug; 4] = [
    Bug::InitPartWithoutFence,
    Bug::PublishPartWithoutFence,
    Bug::FinishPartWithoutFence,
    Bug::GrowPartWithoutFence,
];

/// Bugs of the bound. The explorer has no time, so that it cannot find the first.
const OF_BOUND: [Bug; 2] = [Bug::OneRoundPerBound, Bug::NodeLeftOut];

/// Bugs of open files without a name.
const OF_OPEN_FILES: [Bug; 1] = [Bug::GoneEarly];

/// Bugs that need calls or other rounds in the middle of a round. The test `interleaved` of SoupFS finds them.
const OF_THREADS: [Bug; 10] = [
    Bug::NothingClaimed,
    Bug::ChainsUnclaimed,
    Bug::PathUnchecked,
    Bug::ParentUnclaimed,
    Bug::RightsUnchecked,
    Bug::TakenForgotten,
    Bug::MarkUnlocked,
    Bug::NoLastRound,
    Bug::ListedLate,
    Bug::StagedForgotten,
];

/// Lives that show each bug of the bound.
const LIVES: u64 = 20;

fn find(bug: Bug, model: PersistModel) -> Option<FailureReport> {
    arm(Some(bug));
    let of_image = Options {
        recovery_depth: 0,
        ..options(model)
    };
    let of_image = explore_all(&image::programs(), &of_image, &|_| {});
    let of_image = of_image.expect("the programs run").failures.pop();
    let failure = of_image.or_else(|| {
        explorations(model).iter().find_map(|options| {
            let outcome = explore(&SoupSystem::default(), options, &|_| {});
            outcome.expect("SoupFS can be set up").failures.pop()
        })
    });
    assert!(fired() > 0, "{bug:?} never took effect");
    failure
}

/// Visits the state of a failure again.
fn visit_again(id: &FailureId) -> Result<Option<FailureReport>, String> {
    let of_image = replay_id(&image::programs(), id);
    of_image.unwrap_or_else(|| revisit(&SoupSystem::default(), id))
}

/// Power cuts lose something with each bug, and nothing without.
fn power_cuts_find(bugs: &[Bug], model: PersistModel, loss: impl Fn() -> Option<String>) {
    for bug in bugs {
        arm(Some(*bug));
        let found = loss();
        assert!(fired() > 0, "{bug:?} never took effect");
        println!("{bug:?} under {model}: {found:?}");
        assert!(found.is_some(), "{bug:?} under {model}");
    }
    arm(None);
    assert_eq!(loss(), None, "without any seeded bug");
}

#[test]
fn every_seeded_bug_is_found() {
    let others = [&OF_PARTS[..], &OF_BOUND[..1], &OF_OPEN_FILES, &OF_THREADS].concat();
    let pairs = Bug::ALL.iter().filter(|bug| !others.contains(bug));
    let pairs = pairs.flat_map(|bug| PersistModel::ALL.map(|model| (*bug, model)));
    let mut missed = Vec::new();
    for (bug, model) in pairs.filter(|pair| !HARMLESS.contains(pair)) {
        let begin = used(ClockId::ProcessCPUTime);
        let Some(failure) = find(bug, model) else {
            missed.push((bug, model));
            continue;
        };
        let took = used(ClockId::ProcessCPUTime) - begin;
        println!(
            "{bug:?} under {model}: {failure} ({:.1} s)",
            took.as_secs_f64()
        );
        assert!(took < BUDGET, "{bug:?} under {model} took {took:?}");
        let id = failure
            .id
            .parse()
            .expect("ids are read as they are written");
        let again = visit_again(&id).expect("the id is of this system");
        assert!(again.is_some(), "{bug:?}: {id} does not replay");
        arm(None);
        let without = visit_again(&id);
        assert!(
            !matches!(without, Ok(Some(_))),
            "{bug:?}: {id} without the bug"
        );
    }
    arm(None);
    assert_eq!(missed, [], "not found");
    for model in PersistModel::ALL {
        power_cuts_find(&OF_PARTS, model, || shared_round::loss(model));
        power_cuts_find(&OF_BOUND, model, || aged::loss(model, LIVES));
        power_cuts_find(&OF_OPEN_FILES, model, || open_file::loss(model));
    }
    for model in PersistModel::ALL {
        let [_, _, options, ..] = explorations(model); // the test `soupfs` has the others
        let outcome = explore(&SoupSystem::default(), &options, &|_| {});
        let outcome = outcome.expect("SoupFS can be set up");
        assert_eq!(outcome.failures, [], "without any seeded bug");
        assert!(outcome.complete);
    }
}
