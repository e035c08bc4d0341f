//! Seeded bugs of BPFS. Each takes effect. Each is found within a minute of CPU time under each
//! model of memory in which it matters. The same exploration finds nothing without it. A bug that
//! the explorer does not reach has a test of its own in `remnants`. There is one test, since a
//! bug is armed for the whole process.

#[path = "../seeded_blocks/budget.rs"]
mod budget;
mod remnants;

use bpfs::seeded::{Bug, arm, fired};
use bpfs::{BpfsSystem, Mode};
use budget::{BUDGET, used};
use crash::{FailureReport, Options, PersistModel, explore, explore_script, revisit};
use oracle::script::generate::Tree;
use rustix::time::ClockId;

/// Modes that together run all code with a bug in it.
const MODES: [Mode; 3] = [Mode::Other, Mode::Log, Mode::Sc];

fn options(model: PersistModel) -> Options {
    Options {
        ops: 1,
        singles: vec![Tree::Crowded],
        model,
        max_failures: 1,
        shrunk: 0,
        ..Options::default()
    }
}

/// Bugs of tall trees, which the enumerated scripts do not make.
const TALL: [Bug; 3] = [
    Bug::DroppedTreeLeaks,
    Bug::LoweredAtOnce,
    Bug::IndirectNotCleared,
];
const TALL_SCRIPT: &str = "create f 644
    write f 0 5000 1
    write f 4194304 5000 2
    write f 4198400 5000 3
    truncate f 5000
    write f 2097152 9000 4
    fallocate f punch 2097152 2097152";

/// Bugs that show after the end of one life, calls in the next, and the end of that.
const LATER: [Bug; 3] = [
    Bug::MountUnflushed,
    Bug::ReplayUnflushed,
    Bug::ReplayKeepsRecord,
];

/// The first failure in any mode.
fn find(bug: Bug, model: PersistModel) -> Option<(Mode, FailureReport)> {
    arm(Some(bug));
    let modes: &[Mode] = match bug {
        Bug::ReplayUnflushed | Bug::ReplayKeepsRecord => &[Mode::Log],
        _ => &MODES,
    };
    let found = modes.iter().find_map(|&mode| {
        let (system, options) = (BpfsSystem(mode), options(model));
        if TALL.contains(&bug) {
            let found = explore_script(&system, TALL_SCRIPT, &options);
            return Some((mode, found.expect("the script is one")?));
        }
        let options = Options {
            lives: if LATER.contains(&bug) { 4 } else { 0 },
            ..options
        };
        let outcome = explore(&system, &options, &|_| {});
        let failure = outcome.expect("BPFS can be set up").failures.pop();
        failure.map(|failure| (mode, failure))
    });
    assert!(fired() > 0, "{bug:?} never took effect");
    found
}

fn found_and_replayed(bug: Bug, model: PersistModel) {
    let begin = used(ClockId::ProcessCPUTime);
    let (mode, failure) =
        find(bug, model).unwrap_or_else(|| panic!("{bug:?} was not found under {model}"));
    let used = used(ClockId::ProcessCPUTime) - begin;
    println!(
        "{bug:?} under {model}: {failure} ({:.1} s)",
        used.as_secs_f64()
    );
    assert!(used < BUDGET, "{bug:?} under {model} took {used:?}");
    let system = BpfsSystem(mode);
    let id = failure.id.parse();
    let id = id.expect("ids are read as they are written");
    let again = revisit(&system, &id).expect("the id is of this system");
    let again = again.unwrap_or_else(|| panic!("{bug:?}: {id} does not replay"));
    assert_eq!(again.what, failure.what, "{bug:?}: another finding");
    arm(None);
    let without = revisit(&system, &id);
    assert!(
        !matches!(without, Ok(Some(_))),
        "{bug:?}: {id} without the bug"
    );
}

/// Bugs that the explorer does not reach.
const REMNANTS: [(Bug, fn() -> bool); 1] =
    [(Bug::AbortUnflushed, remnants::a_repeated_call_is_lost)];

/// Bugs without effect under one model. The times of an inode lie in one line, which keeps the
/// order of its stores. So do its size and its root.
const HARMLESS: [(Bug, PersistModel); 2] = [
    (Bug::TimesAtOnce, PersistModel::Lines),
    (Bug::LoweredAtOnce, PersistModel::Lines),
];

#[test]
fn every_seeded_bug_is_found() {
    for (bug, is_lost) in REMNANTS {
        arm(Some(bug));
        assert!(is_lost(), "{bug:?} was not found");
        assert!(fired() > 0, "{bug:?} never took effect");
        arm(None);
        assert!(!is_lost(), "{bug:?} was found without the bug");
    }
    let explored = |bug: &&Bug| REMNANTS.iter().all(|(other, _)| other != *bug);
    let bugs = Bug::ALL.iter().filter(explored);
    let in_both = bugs.flat_map(|bug| PersistModel::ALL.map(|model| (*bug, model)));
    for (bug, model) in in_both.filter(|pair| !HARMLESS.contains(pair)) {
        found_and_replayed(bug, model);
    }
    for (mode, model) in MODES
        .iter()
        .flat_map(|m| PersistModel::ALL.map(|p| (*m, p)))
    {
        let outcome = explore(&BpfsSystem(mode), &options(model), &|_| {});
        let outcome = outcome.expect("BPFS can be set up");
        assert_eq!(outcome.failures, [], "{mode} without any seeded bug");
        assert!(outcome.complete);
    }
}
