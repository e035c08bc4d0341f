//! SoupFS under the explorer: short scripts with rounds of the persister at many moments, long random
//! ones, crashes in a row.

mod aged;
#[path = "../scripts/bounds.rs"]
mod bounds;
mod full_chain;
mod image;
#[allow(dead_code)] // its groups are for file systems that order changes on request
#[path = "../scripts/mod.rs"]
mod scripts;
#[path = "../scripts/triples.rs"]
mod triples;

use bounds::bound;
use crash::program::explore_all;
use crash::{Options, Outcome, PersistModel, Schedule, explore};
use oracle::script::{Script, generate};
use soupfs::{Mode, SoupSystem};

/// In place, and copied on write.
const MODES: [SoupSystem; 2] = [
    SoupSystem {
        mode: Mode::InPlace,
        sync: false,
        persisters: 1,
        has_threads: false,
        in_portions: false,
        more_pages: 0,
    },
    SoupSystem {
        mode: Mode::Atomic,
        sync: false,
        persisters: 1,
        has_threads: false,
        in_portions: false,
        more_pages: 0,
    },
];

/// Rounds of the persister at the end, and of drawn inodes at any time.
const SCHEDULES: [Schedule; 2] = [Schedule::Sync, Schedule::Any(1)];

/// A round between calls as well.
const MORE_SCHEDULES: [Schedule; 3] = [Schedule::Sync, Schedule::Each, Schedule::Any(1)];

fn options(model: PersistModel) -> Options {
    Options {
        model,
        states_per_point: bound(16, 256),
        samples: bound(4, 16),
        schedules: bound(SCHEDULES.to_vec(), Schedule::ALL.to_vec()),
        ..Options::default()
    }
}

fn holds(system: SoupSystem, options: &Options) -> Outcome {
    let outcome = explore(&system, options, &|_| {}).expect("SoupFS can be set up");
    for failure in &outcome.failures {
        eprintln!("{failure}\nshrunk:\n{}", failure.shrunk);
    }
    println!(
        "{}: {} scripts, {} states, {} distinct, {} points, {} capped, {:.1} s",
        outcome.system,
        outcome.workloads,
        outcome.states_explored,
        outcome.states_distinct,
        outcome.points,
        outcome.capped_points,
        outcome.seconds
    );
    assert_eq!(outcome.violations, 0, "{}", outcome.system);
    assert!(outcome.complete);
    assert!(outcome.states_distinct > outcome.workloads);
    outcome
}

/// Runs in both modes under both models.
fn holds_everywhere(change: impl Fn(Options) -> Options) {
    holds_in(&MODES, change);
}

/// Runs under both models.
fn holds_in(modes: &[SoupSystem], change: impl Fn(Options) -> Options) {
    for (system, model) in modes
        .iter()
        .flat_map(|system| PersistModel::ALL.map(|model| (*system, model)))
    {
        holds(system, &change(options(model)));
    }
}

/// All single operations, and some pairs. `tools/test-full` has the explorer run all pairs, within a
/// limit of time.
#[test]
fn single_operations_and_sampled_pairs() {
    holds_everywhere(|options| Options {
        sample: Some(bound(20, 300)),
        ..options
    });
}

/// In `make test` with rounds between calls, and without crashes in recovery.
#[test]
fn triples_of_operations() {
    holds_everywhere(|options| Options {
        ops: 0,
        scripts: triples::triples(bound(8, 50)),
        schedules: bound(vec![Schedule::Each], MORE_SCHEDULES.to_vec()),
        recovery_depth: bound(0, 1),
        ..options
    });
}

/// In `make test` without crashes in recovery, which the other tests have.
#[test]
fn shared_scripts() {
    holds_in(bound(&MODES[..1], &MODES), |options| Options {
        ops: 0,
        scripts: scripts::all(),
        states_per_point: bound(64, 256),
        samples: bound(8, 16),
        schedules: bound(MORE_SCHEDULES.to_vec(), Schedule::ALL.to_vec()),
        recovery_depth: bound(0, 1),
        ..options
    });
}

#[test]
fn pairs_of_calls_on_a_full_chain() {
    holds_in(bound(&MODES[..1], &MODES), |options| Options {
        ops: 0,
        scripts: full_chain::scripts(),
        schedules: bound(vec![Schedule::Sync], MORE_SCHEDULES.to_vec()),
        moments: bound(8, 16),
        recovery_depth: bound(0, 1),
        ..options
    });
}

#[test]
fn long_random_scripts() {
    holds_everywhere(|options| Options {
        ops: 0,
        random_scripts: bound(1, 4),
        random_len: bound(60, 200),
        schedules: bound(MORE_SCHEDULES.to_vec(), Schedule::ALL.to_vec()),
        moments: bound(40, 200),
        ..options
    });
}

/// A power cut or the end of the server, more calls, and a power cut.
#[test]
fn calls_after_the_end_of_a_life() {
    holds_in(bound(&MODES[..1], &MODES), |options| Options {
        ops: 1,
        lives: bound(1, 2),
        ..options
    });
}

#[test]
fn three_crashes_in_a_row() {
    holds_in(bound(&MODES[..1], &MODES), |options| Options {
        ops: 1,
        schedules: bound(vec![Schedule::Any(1)], Schedule::ALL.to_vec()),
        states_per_point: bound(8, 64),
        samples: bound(2, 8),
        recovery_depth: 2,
        ..options
    });
}

/// No order depends on tables of hashes, which are seeded anew each time, so that an id of a failure finds it again.
#[test]
fn the_same_seed_visits_the_same_states() {
    for system in MODES {
        let visited = || {
            let options = Options {
                ops: 0,
                random_scripts: 2,
                random_len: 60,
                moments: 20,
                recovery_depth: 0,
                schedules: MORE_SCHEDULES.to_vec(),
                ..options(PersistModel::Lines)
            };
            let outcome = holds(system, &options);
            let states = (outcome.states_explored, outcome.states_distinct);
            (states, outcome.points, outcome.capped_points)
        };
        assert_eq!(visited(), visited());
    }
}

/// mkfs, the unmount, and the repair after a kill.
#[test]
fn changes_of_the_image_as_a_whole() {
    for model in PersistModel::ALL {
        let options = Options {
            samples: bound(16, 256),
            // A mount removes the mark that is looked for.
            recovery_depth: 0,
            ..options(model)
        };
        let outcome = explore_all(&image::programs(), &options, &|_| {}).expect("they run");
        println!(
            "{} states, {} points",
            outcome.states_explored, outcome.points
        );
        assert_eq!(outcome.failures, [], "{model}");
        assert!(outcome.states_explored > outcome.points);
    }
}

/// Each step of a round is shared, down to its smallest part. A recording has the stores of all
/// threads as those of one: power cuts test the fences of each
/// (`crates/soupfs/tests/behaviour/threads.rs`).
#[test]
fn several_persisters_share_each_round() {
    let system = SoupSystem {
        persisters: 3,
        ..MODES[0]
    };
    holds_in(&[system], |options| Options {
        ops: 0,
        scripts: bound(Vec::new(), scripts::all()),
        schedules: bound(vec![Schedule::Sync], Schedule::ALL.to_vec()),
        random_scripts: bound(1, 2),
        random_len: bound(20, 200),
        moments: bound(20, 200),
        ..options
    });
}

/// A script as text with long names and large device numbers.
fn stretched(script: &str) -> String {
    let script: Script = script.parse().expect("it is a script");
    generate::stretched(&script).to_string()
}

/// A sync is several rounds, each with one inode or one name. Names have several lines here.
#[test]
fn rounds_in_portions() {
    let system = SoupSystem {
        in_portions: true,
        ..MODES[0]
    };
    holds_in(&[system], |options| Options {
        ops: 0,
        scripts: scripts::all().iter().map(|s| stretched(s)).collect(),
        schedules: bound(vec![Schedule::Sync], MORE_SCHEDULES.to_vec()),
        random_scripts: bound(1, 4),
        random_len: bound(40, 200),
        moments: bound(20, 200),
        recovery_depth: bound(0, 1),
        ..options
    });
}

/// With the mount option `sync`, no call that has returned is lost.
#[test]
fn each_call_is_durable_with_the_option_sync() {
    let system = SoupSystem {
        sync: true,
        ..MODES[0]
    };
    holds_in(&[system], |options| Options {
        sample: Some(bound(1, 300)),
        schedules: vec![Schedule::Sync],
        ..options
    });
}

/// With the mount option `bound`, no change that is older is lost.
#[test]
fn no_change_older_than_the_bound_is_lost() {
    for model in PersistModel::ALL {
        assert_eq!(aged::loss(model, bound(60, 5000)), None, "{model}");
    }
}
