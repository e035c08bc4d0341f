//! PXFS under the explorer: short scripts, long random ones, kinds of bugs that crash tests found in
//! other file systems, batches of clients, and seeded bugs of its store.

mod batches;
#[path = "../scripts/bounds.rs"]
mod bounds;
#[path = "../scripts/mod.rs"]
mod scripts;
mod values;

use aerie_objects::seeded::{Bug, arm, fired};
use bounds::bound;
use crash::{Options, Outcome, PersistModel, explore};
use pxfs::PxfsSystem;

fn run(options: &Options) -> Outcome {
    let outcome = explore(&PxfsSystem, options, &|_| {}).expect("PXFS can be set up");
    for failure in &outcome.failures {
        eprintln!("{failure}\nshrunk:\n{}", failure.shrunk);
    }
    assert_eq!(outcome.violations, 0);
    assert!(outcome.complete);
    assert!(outcome.states_distinct > outcome.workloads);
    outcome
}

/// Bounds: a page that a call takes is 512 stores, most of which are the same.
fn options(model: PersistModel) -> Options {
    Options {
        model,
        states_per_point: bound(16, 256),
        samples: bound(4, 32),
        moments: bound(24, usize::MAX),
        recovery_depth: bound(0, 1),
        ..Options::default()
    }
}

#[test]
fn single_operations() {
    for model in PersistModel::ALL {
        let options = Options {
            ops: 1,
            ..options(model)
        };
        run(&options);
    }
}

#[test]
fn sampled_pairs_of_operations() {
    let options = Options {
        sample: bound(Some(60), None),
        ..options(PersistModel::Words)
    };
    run(&options);
}

#[test]
fn shared_scripts() {
    let options = Options {
        ops: 0,
        scripts: scripts::all(),
        ..options(PersistModel::Lines)
    };
    run(&options);
}

/// Calls are durable in their order, so that the order of groups holds by itself.
#[test]
fn groups() {
    let options = Options {
        ops: 0,
        scripts: [
            scripts::groups::GROUPS.map(String::from).to_vec(),
            scripts::groups::pairs()
                .into_iter()
                .step_by(bound(8, 1))
                .collect(),
            scripts::groups::triples()
                .into_iter()
                .step_by(bound(64, 1))
                .collect(),
        ]
        .concat(),
        ..options(PersistModel::Words)
    };
    run(&options);
}

/// A power cut or the end of the server, more calls, and a power cut.
#[test]
fn calls_after_the_end_of_a_life() {
    let options = Options {
        ops: 0,
        random_scripts: bound(2, 20),
        random_len: 40,
        lives: 2,
        ..options(PersistModel::Words)
    };
    let outcome = run(&options);
    assert_eq!(outcome.lives, 2 * outcome.workloads);
}

/// A killed service leaves its log in the caches, and the power fails during the next recovery.
#[test]
fn a_replay_of_a_log_that_is_not_durable_is_found() {
    let options = Options {
        ops: 0,
        random_scripts: 16,
        random_len: 40,
        lives: 2,
        threads: 1,
        max_failures: 1,
        shrunk: 0,
        ..options(PersistModel::Words)
    };
    is_found(Bug::ReplayBeforeLog, &options);
}

/// The explorer finds a violation while the bug is armed.
fn is_found(bug: Bug, options: &Options) {
    arm(Some(bug));
    let found = explore(&PxfsSystem, options, &|_| {});
    assert!(fired() > 0, "{bug:?} did not take effect");
    arm(None);
    assert!(
        found.is_ok_and(|outcome| outcome.violations > 0),
        "{bug:?} is not found"
    );
}

#[test]
fn seeded_bugs_are_found() {
    for bug in [
        Bug::NoInitFence,
        Bug::HomeBeforeLog,
        Bug::ReclaimBeforeHome,
        Bug::ReuseAtOnce,
    ] {
        let options = Options {
            ops: 1,
            threads: 1,
            max_failures: 1,
            shrunk: 0,
            ..options(PersistModel::Words)
        };
        is_found(bug, &options);
    }
}
