//! Bugs put back into durable memory: each takes effect, each is found, its failure is there
//! again when visited again, and nothing is wrong without it.

#[path = "../memory/programs.rs"]
mod programs;

use crash::program::{Program, explore, replay};
use crash::{Model, Options};
use mnemosyne::log::Kind;
use mnemosyne::seeded::{Bug, arm, fired};
use mnemosyne::tx::Truncation;
use programs::{Logs, Step, Transactions, Whole};

/// Bounds: first without crashes in recovery, then with.
fn all_options() -> impl Iterator<Item = Options> {
    let bounds = [(0, 256), (1, 16)];
    bounds
        .into_iter()
        .flat_map(|(recovery_depth, states_per_point)| {
            Model::ALL.into_iter().map(move |model| Options {
                model,
                recovery_depth,
                states_per_point,
                samples: 8,
                ..Options::default()
            })
        })
}

/// What is wrong with a program: the first failure, seen twice, and not without the bug; or
/// that it does not even run.
fn failure(bug: Bug, program: &impl Program) -> Option<String> {
    for options in all_options() {
        arm(Some(bug));
        let explored = explore(program, &options);
        let took_effect = fired() > 0;
        let failure = match explored {
            Ok(explored) => explored.failure,
            Err(why) => return Some(format!("without a crash: {why}")),
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

fn logs(kind: Kind) -> Logs {
    Logs {
        kind,
        lines: 5,
        lengths: &[7, 2, 12],
        count: 24,
    }
}

fn transactions(kind: Kind, sessions: usize) -> Transactions {
    Transactions {
        kind,
        truncation: Truncation::Lazy,
        sessions,
        lines: 6,
        writes: &[&[0, 1, 9], &[0], &[1, 17], &[9, 0], &[2]],
        count: 14,
    }
}

/// A block goes and comes again in the same place.
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

/// A region does.
const REGIONS: &[Step] = &[
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

fn is_found(bug: Bug) -> bool {
    let kinds = [Kind::TornBit, Kind::Base];
    let found = |text: &str, failure: Option<String>| {
        if let Some(failure) = &failure {
            println!("{bug:?}, {text}: {failure}");
        }
        failure.is_some()
    };
    kinds.into_iter().any(|kind| {
        found("logs", failure(bug, &logs(kind)))
            || found("transactions", failure(bug, &transactions(kind, 1)))
            || found("two sessions", failure(bug, &transactions(kind, 2)))
            || found("blocks", failure(bug, &whole(kind, BLOCKS)))
            || found("regions", failure(bug, &whole(kind, REGIONS)))
    })
}

#[test]
fn bugs_of_durable_memory() {
    let missed: Vec<_> = Bug::ALL.iter().filter(|bug| !is_found(**bug)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
