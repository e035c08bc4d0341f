//! Directories of several blocks. They grow, and names move between their blocks. In a directory
//! of more than four blocks the file system caches the places of names.

use super::bounds::bound;
use super::{quick, run};
use crash::{Options, Schedule};
use ext2::Ext2System;
use medium::block::{BlockDevice, MemoryDevice};
use oracle::script::generate::Tree;
use oracle::script::{Op, State, run_op};
use patch::Optimised;
use patch::stack::Mode;
use std::sync::Arc;
use vfs::{BlockSystem, Ctx, Ino, ManualClock, System, Timestamp};

/// Number of blocks of the tree's directories, after one of its operations.
fn blocks_after(op: Option<&Op>) -> [u64; 4] {
    let system = Ext2System::new(Mode::SoftUpdates);
    let device =
        MemoryDevice::from_bytes(system.block_bytes(), vec![0; system.image_bytes() as usize]);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    system.format(&*device).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
    let fs = system.open(device, clock).unwrap();
    let mut state = State::default();
    for op in Tree::Large.setup().ops.iter().chain(op) {
        assert_eq!(run_op(&*fs, &mut state, op), Ok(()), "{op}");
    }
    let lookup = |name: &str| fs.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes());
    let bytes = u64::from(system.block_bytes());
    ["A", "B", "C", "D"].map(|name| lookup(name).unwrap().size / bytes)
}

/// The first operation that begins with `start` and whose text has `letter`.
fn op(start: &str, letter: char) -> &'static Op {
    let is_it = |op: &&Op| {
        let text = op.to_string();
        text.starts_with(start) && text.contains(letter)
    };
    Tree::Large.ops().iter().find(is_it).unwrap()
}

#[test]
fn directories_have_the_described_sizes() {
    assert_eq!(blocks_after(None), [4, 6, 3, 2]);
    let grown = |start, letter| blocks_after(Some(op(start, letter)));
    assert_eq!(grown("create A/", 'n'), [5, 6, 3, 2]);
    assert_eq!(grown("create B/", 'n'), [4, 7, 3, 2]);
    assert_eq!(grown("create C/", 'n'), [4, 6, 3, 2], "in a hole");
    assert_eq!(grown("create D/", 'n'), [4, 6, 3, 2]);
    for dir in ["create A/", "create B/"] {
        assert_eq!(grown(dir, 'm'), [4, 6, 3, 2], "in the first block");
    }
}

fn holds(system: Ext2System, ops: u32, sample: Option<u64>, schedules: &[Schedule]) {
    let options = Options {
        trees: vec![Tree::Large],
        ops,
        sample,
        states_per_point: 16,
        samples: 4,
        schedules: schedules.to_vec(),
        ..quick()
    };
    let outcome = run(&system, &options);
    assert_eq!(outcome.failures.first(), None, "{}", outcome.system);
    assert!(outcome.complete);
    assert_eq!(outcome.no_space, 0);
}

#[test]
fn one_call_on_large_directories() {
    let few = [Schedule::Sync, Schedule::Any(1)];
    let soft = Ext2System::new(Mode::SoftUpdates);
    let journal = Ext2System::new(Mode::JournalMetadata);
    holds(
        soft.optimised(Optimised::None),
        1,
        None,
        bound(&few[..], &Schedule::ALL),
    );
    holds(
        journal.optimised(Optimised::None),
        1,
        None,
        bound(&few[1..], &few),
    );
    holds(soft, 1, None, bound(&few[1..], &few));
    holds(journal, 1, None, bound(&few[..1], &few));
}

#[test]
fn two_calls_on_large_directories() {
    let soft = Ext2System::new(Mode::SoftUpdates).optimised(Optimised::None);
    let journals = [Mode::JournalOrdered, Mode::Journal].map(Ext2System::new);
    // The journals do the same with directories.
    let journals = &journals[bound(1, 0)..];
    for system in [soft].iter().chain(journals) {
        holds(*system, 2, Some(bound(20, 60)), &[Schedule::Any(1)]);
    }
}
