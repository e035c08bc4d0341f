//! Every crash state of programs on durable memory: logs, transactions, heap and regions, and
//! pages that move.

#[path = "../scripts/bounds.rs"]
mod bounds;

use bounds::bound;
use crash::program::{Program, explore};
use crash::{Options, PersistModel};
use mnemosyne::tx::Truncation;
use programs::files::{self, InFiles};
use programs::logs::Logs;
use programs::neighbours::Neighbours;
use programs::overflows::Overflows;
use programs::pages::Paging;
use programs::plain::Plain;
use programs::repairs::Repairs;
use programs::structures::Change::{Add, Take};
use programs::structures::{self, Change, Structures};
use programs::threads::Threads;
use programs::transactions::Transactions;
use programs::whole::{OVERFLOWS, STEPS, Step, UNDONE, Whole};
use std::sync::atomic::{AtomicBool, Ordering};
use wordlog::Kind;

const KINDS: [Kind; 2] = [Kind::TornBit, Kind::Base];

/// Explores under both models, once without and once with crashes in recovery. Demands that
/// there is no failure.
fn holds(what: &str, program: &impl Program, recovery_depth: usize) {
    // Each state before has states of its recovery.
    holds_within(what, program, [(0, 1024, 8), (recovery_depth, 16, 8)]);
}

/// [`holds`] with other bounds: crashes in recovery, states at a point, and samples.
fn holds_within<const N: usize>(
    what: &str,
    program: &impl Program,
    bounds: [(usize, usize, usize); N],
) {
    for model in PersistModel::ALL {
        for (recovery_depth, states_per_point, samples) in bounds {
            let options = Options {
                model,
                recovery_depth,
                states_per_point,
                samples,
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
fn logs_recover_the_records_that_were_flushed() {
    for kind in KINDS {
        for (lines, lengths) in [
            (4, &[1_usize, 3, 0, 6] as &[_]),
            (5, &[7, 2]),
            (6, &[1, 12, 5]),
            // A longer record at the end of the ring is in flight with one at its start.
            (7, &[1, 1, 12, 5]),
        ] {
            for (before, empties) in [(0, false), (2, false), (2, true)] {
                let program = Logs {
                    kind,
                    lines,
                    lengths,
                    count: before + 24,
                    before,
                    empties,
                };
                let what = format!(
                    "{kind:?}, {lines} lines, {before} records before, given up: {empties}"
                );
                // Two crashes in recovery in one case of three.
                let depth = bound(1 + usize::from(before == 2 && !empties), 2);
                holds(&what, &program, depth);
            }
        }
    }
}

#[test]
fn transactions_are_atomic_and_durable() {
    for kind in KINDS {
        for truncation in [Truncation::Lazy, Truncation::Eager] {
            for (sessions, by_hand, before) in
                [(1, false, 0), (1, false, 3), (2, false, 4), (2, true, 0)]
            {
                let program = Transactions {
                    kind,
                    truncation,
                    sessions,
                    lines: 6,
                    writes: &[&[0, 1, 9], &[0], &[1, 17], &[9, 0], &[2]],
                    by_hand,
                    count: before + 14,
                    before,
                };
                let what = format!(
                    "{kind:?}, {truncation:?}, {sessions} sessions, by hand: {by_hand}, {before} \
                     transactions before"
                );
                holds(&what, &program, 1);
            }
        }
    }
}

#[test]
fn neighbours_of_what_is_written_are_left_alone() {
    for kind in KINDS {
        let program = Neighbours {
            kind,
            lines: 6,
            count: 9,
        };
        holds(&format!("neighbours, {kind:?}"), &program, 1);
    }
}

#[test]
fn transactions_longer_than_a_log() {
    for kind in KINDS {
        let program = Whole {
            kind,
            truncation: Truncation::Lazy,
            log_lines: 4,
            steps: OVERFLOWS,
        };
        // Enough that the second crash loses the word that the first one has lost.
        let bounds = [(0, 64, 8), (1, 64, 64)];
        holds_within(&format!("overflows, {kind:?}"), &program, bounds);
    }
}

#[test]
fn a_state_restored_by_an_inner_cancel_is_durable() {
    for kind in KINDS {
        let program = Whole {
            kind,
            truncation: Truncation::Lazy,
            log_lines: 30,
            steps: UNDONE,
        };
        let bounds = [(0, 64, 8), (1, 4, 2)];
        holds_within(&format!("undone, {kind:?}"), &program, bounds);
    }
}

#[test]
fn heap_and_regions_agree_after_any_crash() {
    for kind in KINDS {
        for truncation in [Truncation::Lazy, Truncation::Eager] {
            let program = Whole {
                kind,
                truncation,
                log_lines: 30,
                steps: STEPS,
            };
            let bounds = bound([(0, 128, 8), (1, 8, 2)], [(0, 1024, 8), (1, 16, 8)]);
            holds_within(&format!("{kind:?}, {truncation:?}"), &program, bounds);
        }
    }
}

/// A transaction that frees a block is cancelled, and so is the making of a region. Others then
/// take their places.
#[test]
fn cancelled_frees_and_regions() {
    let program = Whole {
        kind: Kind::TornBit,
        truncation: Truncation::Lazy,
        log_lines: 80,
        steps: &[
            Step::FailMap,
            Step::Alloc { slot: 0, bytes: 40 },
            Step::Cancel { slot: 0, bytes: 40 },
            Step::Map { slot: 1 },
            Step::Alloc { slot: 2, bytes: 40 },
        ],
    };
    holds_within("cancelled", &program, [(0, 64, 4), (1, 4, 2)]);
}

#[test]
fn a_long_transaction_beside_a_commit() {
    for kind in KINDS {
        for stop_after in 0..4 {
            let program = Overflows {
                kind,
                stop_after,
                prepare: || (),
                was_stopped: AtomicBool::new(false),
            };
            let what = format!("{kind:?}, stopped after {stop_after} steps");
            holds_within(&what, &program, [(0, 32, 8), (1, 4, 2)]);
            assert!(program.was_stopped.load(Ordering::Relaxed), "{what}");
        }
    }
}

#[test]
fn a_commit_that_another_thread_interrupts_is_atomic() {
    for kind in KINDS {
        let mut stops = 0;
        loop {
            let program = Threads {
                kind,
                lines: 6,
                commits: 2,
                stop_after: stops,
                prepare: || (),
                was_stopped: AtomicBool::new(false),
            };
            holds(
                &format!("{kind:?}, stopped after {stops} steps"),
                &program,
                1,
            );
            if !program.was_stopped.load(Ordering::Relaxed) {
                break;
            }
            stops += 1;
        }
        assert!(stops >= 5, "{stops}: a commit has more steps");
    }
}

/// Explores a program of some transactions, whose first `from` are over. Demands that the
/// structure has more or fewer parts after some of the others, besides `own` blocks for each
/// element.
fn structure(kind: structures::Kind, own: usize, from: usize, steps: &[&[Change]]) {
    for truncation in [Truncation::Lazy, Truncation::Eager] {
        let steps = steps.iter().map(|step| step.to_vec()).collect();
        let program = Structures::new(truncation, from, steps);
        let states = program.states[from..].iter();
        let holds = states.map(|state| &state[kind as usize]);
        let parts = holds.map(|holds| holds.blocks.len() - own * (holds.contents.len() - 1));
        let parts: Vec<_> = parts.collect();
        assert!(parts.windows(2).any(|two| two[0] != two[1]), "{parts:?}");
        let what = format!("{kind:?}, {truncation:?}");
        holds_within(&what, &program, [(0, 64, 8), (1, 4, 2)]);
    }
}

/// Buckets are added, and others split.
#[test]
fn hash_table_grows() {
    const T: structures::Kind = structures::Kind::Table;
    structure(
        T,
        2,
        2,
        &[
            &[Add(T, 0), Add(T, 1), Add(T, 2), Add(T, 3)],
            &[Add(T, 4), Add(T, 5), Add(T, 6), Add(T, 7)],
            &[Add(T, 8)],
            &[Add(T, 3), Take(T, 8)],
            &[Take(T, 0), Add(T, 0)],
        ],
    );
}

/// Buckets are merged, and freed with their segment, which was kept for a while.
#[test]
fn hash_table_shrinks() {
    const T: structures::Kind = structures::Kind::Table;
    let come = (0..33).map(|n| [Add(T, n)]);
    let go = (4..33).map(|n| [Take(T, n)]);
    let before: Vec<_> = come.chain(go).collect();
    let mut steps: Vec<&[Change]> = before.iter().map(|step| &step[..]).collect();
    steps.extend([&[Take(T, 1)] as &[_], &[Take(T, 0), Add(T, 2)]]);
    structure(T, 2, before.len(), &steps);
}

/// Leaves and inner nodes are split, merged and evened out, and the root moves up and down.
#[test]
fn b_tree_splits_and_merges_nodes() {
    const T: structures::Kind = structures::Kind::Tree;
    structure(
        T,
        1,
        2,
        &[
            &[Add(T, 10), Add(T, 20), Add(T, 30)],
            &[Add(T, 40), Add(T, 50), Add(T, 60), Add(T, 70)],
            &[Add(T, 25)],
            &[Add(T, 80), Add(T, 90), Add(T, 23)],
            &[Add(T, 25)],
            &[Take(T, 10), Take(T, 20)],
            &[Take(T, 30)],
            &[Take(T, 90), Take(T, 80), Take(T, 70)],
            &[Take(T, 23), Take(T, 25), Take(T, 40), Take(T, 50)],
            &[Take(T, 60)],
        ],
    );
}

/// Segments are allocated and freed.
#[test]
fn vector_grows_and_shrinks() {
    const V: structures::Kind = structures::Kind::Vector;
    structure(
        V,
        1,
        0,
        &[
            &[Add(V, 1)],
            &[Add(V, 2)],
            &[Add(V, 3), Add(V, 4)],
            &[Take(V, 0), Take(V, 0), Take(V, 0)],
            &[Add(V, 7)],
        ],
    );
}

/// Blocks are added at one end, and freed at the other.
#[test]
fn queue_adds_and_frees_blocks() {
    const Q: structures::Kind = structures::Kind::Queue;
    structure(
        Q,
        0,
        0,
        &[
            &[Add(Q, 1), Add(Q, 2)],
            &[Add(Q, 3)],
            &[Take(Q, 0), Add(Q, 4), Add(Q, 5)],
            &[Take(Q, 0)],
            &[Take(Q, 0), Take(Q, 0), Take(Q, 0)],
            &[Add(Q, 6)],
        ],
    );
}

/// Records continue in another block, and truncations free the blocks in front.
#[test]
fn log_continues_in_another_block() {
    const L: structures::Kind = structures::Kind::Log;
    structure(
        L,
        0,
        0,
        &[
            &[Add(L, 1)],
            &[Add(L, 3), Add(L, 7)],
            &[Take(L, 1)],
            &[Take(L, 3)],
            &[Add(L, 2)],
            &[Add(L, 5), Take(L, 4)],
        ],
    );
}

/// An element moves from one structure to another in one transaction.
#[test]
fn an_element_is_in_one_structure_while_it_moves() {
    use structures::Kind::{Log, Queue, Table, Tree};
    structure(
        Queue,
        0,
        1,
        &[
            &[Add(Queue, 1), Add(Queue, 2), Add(Queue, 3)],
            &[Take(Queue, 0), Add(Table, 1)],
            &[Take(Queue, 0), Add(Table, 2), Add(Log, 2)],
            &[Take(Table, 1), Add(Tree, 1), Add(Queue, 4)],
            &[Take(Table, 2), Take(Tree, 1), Add(Queue, 5)],
        ],
    );
}

/// A crash in a repair, and in the repair after it, loses no more than the first repair named.
#[test]
fn an_interrupted_repair_loses_no_more_than_it_named() {
    for kind in KINDS {
        let program = Repairs::new(kind);
        holds_within(
            &format!("repair, {kind:?}"),
            &program,
            [(0, 256, 8), (1, 8, 4)],
        );
    }
}

#[test]
fn pages_that_move_keep_their_contents() {
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

/// A crash leaves names, lengths and contents of the files of a directory in part.
#[test]
fn files_of_a_directory() {
    for (what, lives) in [("durable", files::DURABLE), ("noted", files::NOTED)] {
        let program = InFiles::new(lives, usize::MAX);
        let bounds = bound([(0, 32, 4), (1, 2, 1)], [(0, 128, 8), (1, 4, 1)]);
        holds_within(what, &program, bounds);
    }
}

/// Stores that nothing has flushed are durable after an orderly end.
#[test]
fn plain_stores_before_an_orderly_end() {
    holds_within("plain stores", &Plain { processes: 2 }, [(0, 32, 4)]);
}

/// A process is killed at each of its steps, and another one relies on what it finds. `make test`
/// takes one step of five, another one for each successor.
#[test]
fn files_of_killed_processes() {
    for (n, lives) in files::SUCCESSORS.into_iter().enumerate() {
        let stride = bound(5, 1);
        let mut steps = 1 + n % stride;
        loop {
            let program = InFiles::new(lives, steps);
            let what = format!("successor {n} after {steps} steps");
            holds_within(&what, &program, [(0, 32, 4)]);
            if !program.was_killed.load(Ordering::Relaxed) {
                break;
            }
            steps += stride;
        }
        assert!(steps > 15, "{steps}: to make a directory has more steps");
    }
}
