//! Formats with other needs than ext2's, in variants of a toy: fragments, blocks that move, both,
//! and shadow paging.
//!
//! The conformance suite passes on each variant, and finds each planted mistake. Scripts of calls
//! have the results of the model.

mod calls;
mod explored;
mod shadow;
mod toy;

use blockfs::conformance::{Subject, check};
use medium::block::MemoryDevice;
use patch::Store;
use shadow::Shadowed;
use std::sync::Arc;
use toy::{Fault, Kind, Toy};

impl Subject for Kind {
    type Format = Toy;

    fn image(&self) -> Arc<MemoryDevice> {
        toy::mkfs()
    }

    fn open(&self, store: Arc<dyn Store>) -> Result<Toy, String> {
        Toy::open(store, *self).map_err(|e| e.to_string())
    }
}

const SOFT_UPDATES: &str = "uhfs > toy > cache > disk";

const JOURNAL: &str = "uhfs > toy > journal(full, log=1) > cache > [disk, disk(/log)]";

/// A stack for each way to keep the order, and one without.
const STACKS: [&str; 5] = [
    SOFT_UPDATES,
    "uhfs > toy > async > cache > disk",
    "uhfs > toy > journal(metadata, log=1) > cache > [disk, disk(/log)]",
    "uhfs > toy > journal(ordered, log=1) > cache > [disk, disk(/log)]",
    JOURNAL,
];

fn conforms(kind: Kind) {
    for stack in STACKS {
        let failures = check(&kind, stack);
        assert!(failures.is_empty(), "{stack}: {failures:#?}");
    }
}

#[test]
fn blocks_in_place_conform() {
    conforms(Kind::PLAIN);
}

#[test]
fn fragments_conform() {
    conforms(Kind::FRAGMENTS);
}

#[test]
fn blocks_that_move_conform() {
    conforms(Kind::MOVES);
}

#[test]
fn fragments_that_move_conform() {
    conforms(Kind::BOTH);
}

#[test]
fn shadow_paging_conforms() {
    let failures = check(&Shadowed, SOFT_UPDATES);
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Runs the suite on a toy with each of these mistakes. Each must fail the check that is meant for
/// it.
fn finds(faults: impl Iterator<Item = Fault>, stack: &str) {
    let mut unnoticed = Vec::new();
    for fault in faults {
        let kind = match fault {
            Fault::LeaksOldRun => Kind::MOVES,
            _ => Kind::FRAGMENTS,
        };
        let faulty = Kind {
            fault: Some(fault),
            ..kind
        };
        let failures = check(&faulty, stack);
        for failure in &failures {
            println!("{fault:?}: {failure}");
        }
        let check = fault.noticed_by();
        if !failures.iter().any(|failure| failure.check == check) {
            unnoticed.push(fault);
        }
    }
    assert_eq!(unnoticed, [], "{stack}");
}

#[test]
fn the_suite_finds_each_mistake() {
    finds(Fault::ALL.into_iter(), SOFT_UPDATES);
}

#[test]
fn the_suite_finds_mistakes_on_a_journal() {
    let shown = |fault: &Fault| !fault.is_hidden_by_journal();
    finds(Fault::ALL.into_iter().filter(shown), JOURNAL);
}
