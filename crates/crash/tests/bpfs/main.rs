//! BPFS under the explorer: every short script in every mode, long random ones, and kinds of bugs
//! that crash tests found in other file systems.

#[path = "../scripts/bounds.rs"]
mod bounds;
mod crowded;
#[path = "../scripts/mod.rs"]
mod scripts;
#[path = "../scripts/triples.rs"]
mod triples;

use bounds::bound;
use bpfs::{BpfsSystem, Mode};
use crash::{Options, Outcome, PersistModel, explore};

fn run(mode: Mode, options: &Options) -> Outcome {
    let outcome = explore(&BpfsSystem(mode), options, &|_| {}).expect("BPFS can be set up");
    for failure in &outcome.failures {
        eprintln!("{failure}\nshrunk:\n{}", failure.shrunk);
    }
    assert_eq!(outcome.violations, 0, "{}", outcome.system);
    assert!(outcome.complete);
    assert!(outcome.states_distinct > outcome.workloads);
    outcome
}

/// Every mode under both models. In `make test`, the modes other than the redo log take turns under
/// one of them.
fn everywhere() -> impl Iterator<Item = (Mode, PersistModel)> {
    let all = Mode::ALL.iter().enumerate().flat_map(|(n, mode)| {
        let models = PersistModel::ALL.into_iter().enumerate();
        models.map(move |(m, model)| ((n + m).is_multiple_of(2), *mode, model))
    });
    let taken = all.filter(|(turn, mode, _)| *turn || bound(*mode == Mode::Log, true));
    taken.map(|(_, mode, model)| (mode, model))
}

#[test]
fn single_operations_in_every_mode() {
    for (mode, model) in everywhere() {
        let options = Options {
            ops: 1,
            model,
            ..Options::default()
        };
        let outcome = run(mode, &options);
        assert!(outcome.stores_checked > outcome.workloads);
    }
}

#[test]
fn shared_scripts_in_every_mode() {
    for (mode, model) in everywhere() {
        let options = Options {
            ops: 0,
            scripts: scripts::all(),
            model,
            ..Options::default()
        };
        run(mode, &options);
    }
}

#[test]
fn three_crashes_in_a_row_with_the_redo_log() {
    let options = |recovery_depth| Options {
        ops: 1,
        recovery_depth,
        ..Options::default()
    };
    let once = run(Mode::Log, &options(0));
    let thrice = run(Mode::Log, &options(2));
    // The states themselves need not be new: replay makes the stores of the call again.
    assert!(thrice.states_explored > once.states_explored);
}

#[test]
fn the_same_seed_explores_the_same() {
    let options = |threads| Options {
        ops: 1,
        random_scripts: 2,
        random_len: 20,
        threads,
        ..Options::default()
    };
    let counts = |threads| {
        let o = run(Mode::Other, &options(threads));
        let states = (o.states_explored, o.states_distinct, o.stores_checked);
        (states, o.points, o.audited, o.workloads)
    };
    assert_eq!(counts(1), counts(2));
}

/// A power cut or the end of the server, more calls, and a power cut.
#[test]
fn calls_after_the_end_of_a_life() {
    for (mode, model) in everywhere() {
        let options = Options {
            ops: 1,
            lives: bound(1, 2),
            model,
            ..Options::default()
        };
        let outcome = run(mode, &options);
        assert_eq!(outcome.lives, options.lives as u64 * outcome.workloads);
    }
}

#[test]
fn pairs_of_operations() {
    for (mode, model) in [
        (Mode::Other, PersistModel::Words),
        (Mode::Log, PersistModel::Words),
        (Mode::Log, PersistModel::Lines),
    ] {
        let options = Options {
            sample: bound(Some(500), None),
            model,
            ..Options::default()
        };
        let outcome = run(mode, &options);
        assert!(outcome.audited > 0);
    }
}

#[test]
fn sampled_pairs_in_every_mode() {
    for mode in Mode::ALL {
        let options = Options {
            sample: Some(100),
            model: PersistModel::Lines,
            ..Options::default()
        };
        run(mode, &options);
    }
}

/// With `ops: 3` all pairs run besides the triples. So `make test` has some triples as text.
#[test]
fn sampled_triples_with_the_redo_log() {
    let options = Options {
        ops: bound(0, 3),
        sample: Some(300),
        scripts: bound(triples::triples(40), Vec::new()),
        model: PersistModel::Words,
        ..Options::default()
    };
    run(Mode::Log, &options);
}

#[test]
fn long_random_scripts_in_every_mode() {
    for mode in Mode::ALL {
        let options = Options {
            ops: 0,
            random_scripts: 4,
            random_len: 60,
            samples: 8,
            states_per_point: 256,
            ..Options::default()
        };
        run(mode, &options);
    }
}

/// Thousands of calls, of which some are crashed.
#[test]
fn long_random_scripts_of_calls() {
    for (mode, model) in [
        (Mode::Log, PersistModel::Words),
        (Mode::Other, PersistModel::Lines),
    ] {
        let options = Options {
            ops: 0,
            random_scripts: 2,
            random_len: 2000,
            moments: 100,
            model,
            ..Options::default()
        };
        run(mode, &options);
    }
}

/// Groups and barriers do nothing, since each call is durable, in order, when it returns.
#[test]
fn groups_in_every_mode() {
    for (mode, model) in everywhere() {
        let options = Options {
            ops: 0,
            scripts: scripts::groups::GROUPS.map(String::from).to_vec(),
            model,
            ..Options::default()
        };
        run(mode, &options);
    }
}

#[test]
fn every_order_of_groups_with_the_redo_log() {
    let all = [scripts::groups::pairs(), scripts::groups::triples()].concat();
    let options = Options {
        ops: 0,
        scripts: all.into_iter().step_by(bound(3, 1)).collect(),
        states_per_point: 16,
        samples: 4,
        ..Options::default()
    };
    run(Mode::Log, &options);
}
