//! Programs that the command line explores.

use crate::files::{self, InFiles};
use crate::logs::Logs;
use crate::neighbours::Neighbours;
use crate::overflows::Overflows;
use crate::pages::Paging;
use crate::plain::Plain;
use crate::repairs::Repairs;
use crate::structures::Change::{self, Add, Take};
use crate::structures::Kind::{Log, Queue, Table, Tree, Vector};
use crate::structures::Structures;
use crate::threads::Threads;
use crate::transactions::Transactions;
use crate::whole::{OVERFLOWS, STEPS, UNDONE, Whole};
use crash::program::Named;
use mnemosyne::tx::Truncation;
use std::sync::atomic::AtomicBool;
use wordlog::Kind;

/// Programs for all of durable memory, each named after the parts that it uses.
pub fn all() -> Vec<Named> {
    let mut all = Vec::new();
    for (kind, name) in [(Kind::TornBit, "torn-bit"), (Kind::Base, "base")] {
        all.extend(of_log(kind, name));
    }
    all.extend(structures());
    all.extend(pages_and_files());
    all
}

/// Programs on a log of one kind.
fn of_log(kind: Kind, name: &str) -> Vec<Named> {
    let named = |what: &str| format!("{what}-{name}");
    let whole = |log_lines, steps| Whole {
        kind,
        truncation: Truncation::Lazy,
        log_lines,
        steps,
    };
    let logs = Logs {
        kind,
        lines: 6,
        lengths: &[1, 12, 5],
        count: 24,
        before: 2,
        empties: false,
    };
    let transactions = Transactions {
        kind,
        truncation: Truncation::Lazy,
        sessions: 2,
        lines: 6,
        writes: &[&[0, 1, 9], &[0], &[1, 17], &[9, 0], &[2]],
        by_hand: false,
        count: 14,
        before: 4,
    };
    let neighbours = Neighbours {
        kind,
        lines: 6,
        count: 9,
    };
    let overflows = Overflows {
        kind,
        stop_after: 0,
        prepare: || (),
        was_stopped: AtomicBool::new(false),
    };
    let threads = Threads {
        kind,
        lines: 6,
        commits: 2,
        stop_after: 3,
        prepare: || (),
        was_stopped: AtomicBool::new(false),
    };
    vec![
        Named::new(named("logs"), logs),
        Named::new(named("transactions"), transactions),
        Named::new(named("neighbours"), neighbours),
        Named::new(named("heap-and-regions"), whole(30, STEPS)),
        Named::new(named("long-transactions"), whole(4, OVERFLOWS)),
        Named::new(named("inner-cancels"), whole(30, UNDONE)),
        Named::new(named("overflows"), overflows),
        Named::new(named("threads"), threads),
        Named::new(named("repairs"), Repairs::new(kind)),
    ]
}

fn structures() -> Vec<Named> {
    let program = |from: usize, steps: &[&[Change]]| {
        let steps = steps.iter().map(|step| step.to_vec()).collect();
        Structures::new(Truncation::Lazy, from, steps)
    };
    let grows: &[&[Change]] = &[
        &[Add(Table, 0), Add(Table, 1), Add(Table, 2), Add(Table, 3)],
        &[Add(Table, 4), Add(Table, 5), Add(Table, 6), Add(Table, 7)],
        &[Add(Table, 8)],
        &[Take(Table, 0), Add(Table, 0)],
    ];
    let splits: &[&[Change]] = &[
        &[Add(Tree, 10), Add(Tree, 20), Add(Tree, 30)],
        &[Add(Tree, 40), Add(Tree, 50), Add(Tree, 60), Add(Tree, 70)],
        &[Add(Tree, 25)],
        &[Take(Tree, 10), Take(Tree, 20)],
    ];
    let moves: &[&[Change]] = &[
        &[Add(Queue, 1), Add(Queue, 2), Add(Vector, 3)],
        &[Take(Queue, 0), Add(Table, 1), Add(Log, 2)],
        &[Take(Table, 1), Add(Tree, 1), Add(Vector, 4)],
        &[Take(Vector, 0), Take(Tree, 1), Add(Queue, 5)],
    ];
    vec![
        Named::new("hash-table", program(2, grows)),
        Named::new("b-tree", program(2, splits)),
        Named::new("several-structures", program(1, moves)),
    ]
}

fn pages_and_files() -> Vec<Named> {
    let pages = |seed| Paging {
        frames: 3,
        pages: 5,
        seed,
        steps: 24,
    };
    vec![
        Named::new("pages-0", pages(0)),
        Named::new("pages-1", pages(1)),
        Named::new("files", InFiles::new(files::DURABLE, usize::MAX)),
        Named::new("files-noted", InFiles::new(files::NOTED, usize::MAX)),
        Named::new("plain-stores", Plain { processes: 2 }),
    ]
}
