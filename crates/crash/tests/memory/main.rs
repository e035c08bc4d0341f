//! Every crash state of programs on durable memory: logs, transactions, heap and regions, and
//! pages that move.

mod paging;
mod programs;

use crash::program::{Program, explore};
use crash::{Model, Options};
use mnemosyne::log::Kind;
use mnemosyne::tx::Truncation;
use paging::Paging;
use programs::{Logs, Step, Transactions, Whole};

const KINDS: [Kind; 2] = [Kind::TornBit, Kind::Base];

/// Explores under both models, once for the crash and once for a crash in recovery too, and
/// demands that nothing is wrong.
fn holds(what: &str, program: &impl Program, recovery_depth: usize) {
    for model in Model::ALL {
        // States of recoveries multiply with those before.
        for (recovery_depth, states_per_point) in [(0, 1024), (recovery_depth, 16)] {
            let options = Options {
                model,
                recovery_depth,
                states_per_point,
                samples: 8,
                ..Options::default()
            };
            let explored = explore(program, &options).expect("it runs without a crash");
            println!(
                "{what}, {model}, {recovery_depth} crashes in recovery: {} states at {} points, \
                 {} of them sampled",
                explored.states, explored.points, explored.capped_points
            );
            let failure = &explored.failure;
            assert!(failure.is_none(), "{what}, {model}: {failure:?}");
            assert!(
                explored.states > explored.points,
                "{what}: nothing was in flight"
            );
        }
    }
}

#[test]
fn logs() {
    for kind in KINDS {
        for (lines, lengths) in [
            (4, &[1_usize, 3, 0, 6] as &[_]),
            (5, &[7, 2]),
            (6, &[1, 12, 5]),
        ] {
            let program = Logs {
                kind,
                lines,
                lengths,
                count: 24,
            };
            holds(&format!("{kind:?}, {lines} lines"), &program, 2);
        }
    }
}

#[test]
fn transactions() {
    for kind in KINDS {
        for truncation in [Truncation::Lazy, Truncation::Eager] {
            for sessions in [1, 2] {
                let program = Transactions {
                    kind,
                    truncation,
                    sessions,
                    lines: 6,
                    writes: &[&[0, 1, 9], &[0], &[1, 17], &[9, 0], &[2]],
                    count: 14,
                };
                let what = format!("{kind:?}, {truncation:?}, {sessions} sessions");
                holds(&what, &program, 1);
            }
        }
    }
}

/// Blocks and regions come, change and go, in places that others had before.
const STEPS: &[Step] = &[
    Step::Alloc {
        slot: 0,
        bytes: 100,
    },
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
        bytes: 100,
    },
    Step::Map { slot: 3 },
    Step::Write { slot: 3 },
    Step::Unmap { slot: 3 },
    Step::Map { slot: 3 },
    Step::Free { slot: 2 },
];

#[test]
fn heap_and_regions() {
    for kind in KINDS {
        for truncation in [Truncation::Lazy, Truncation::Eager] {
            let program = Whole {
                kind,
                truncation,
                log_lines: 30,
                steps: STEPS,
            };
            holds(&format!("{kind:?}, {truncation:?}"), &program, 1);
        }
    }
}

#[test]
fn pages() {
    for seed in 0..12 {
        let program = Paging {
            frames: 3,
            pages: 5,
            seed,
            steps: 24,
        };
        holds(&format!("paging, seed {seed}"), &program, 1);
    }
}
