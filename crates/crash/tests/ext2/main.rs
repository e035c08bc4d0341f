//! ext2 under the explorer, in every mode: all scripts of one call, some of two, with every
//! schedule of write-back; and e2fsck as a second judge of a part of the states.

mod second_judge;

use crash::block::explore;
use crash::{BlockSystem, Options, Outcome};
use ext2::Ext2System;
use patch::stack::Mode;

fn run(system: &BlockSystem, options: &Options) -> Outcome {
    let outcome = explore(system, options, &|_| {}).expect("ext2 can be set up");
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
    outcome
}

fn holds(mode: Mode, options: &Options) {
    let outcome = run(&Ext2System::new(mode), options);
    assert_eq!(outcome.failures.first(), None, "{mode}");
    assert!(outcome.complete);
    assert!(outcome.states_distinct > 0);
}

/// What `make test` has time for: a transaction of ten blocks has a thousand states.
fn quick() -> Options {
    Options {
        max_failures: 20,
        states_per_point: 64,
        samples: 16,
        ..Options::default()
    }
}

fn singles() -> Options {
    Options { ops: 1, ..quick() }
}

/// All scripts of one call, and some of two.
fn pairs() -> Options {
    Options {
        ops: 2,
        sample: Some(40),
        ..quick()
    }
}

#[test]
fn soft_updates() {
    holds(Mode::SoftUpdates, &pairs());
}

#[test]
fn journal_metadata() {
    holds(Mode::JournalMetadata, &pairs());
}

#[test]
fn journal_ordered() {
    holds(Mode::JournalOrdered, &pairs());
}

#[test]
fn journal() {
    holds(Mode::Journal, &pairs());
}

/// The control: without any order, states are found that soft updates would never leave.
#[test]
fn without_order_the_checker_finds_damage() {
    let outcome = run(&Ext2System::new(Mode::Async), &singles());
    assert!(outcome.violations > 0);
    let by_checker = |f: &crash::FailureReport| f.what.starts_with("checker before recovery");
    assert!(outcome.failures.iter().any(by_checker));
}
