//! Bugs put back into what ext2 stands on: each takes effect, each is found within a minute,
//! its failure replays by its id, and nothing is found without it.

use crash::block::{explore, replay};
use crash::{Options, Outcome};
use ext2::Ext2System;
use patch::stack::Mode;
use std::time::Duration;

/// Time in which a bug must be found.
const BUDGET: Duration = Duration::from_secs(60);

/// Bugs are put back for one thread.
fn options(time_limit: Option<Duration>, ops: u32, sample: Option<u64>) -> Options {
    Options {
        ops,
        sample,
        max_failures: 1,
        threads: 1,
        time_limit,
        states_per_point: 64,
        samples: 16,
        ..Options::default()
    }
}

fn run(mode: Mode, options: &Options) -> Outcome {
    explore(&Ext2System { mode }, options, &|_| {}).expect("ext2 can be set up")
}

/// Runs with a bug put back by `arm`.
fn is_found(name: &str, mode: Mode, ops: u32, arm: &dyn Fn(bool), fired: &dyn Fn() -> u64) {
    arm(true);
    let outcome = run(mode, &options(Some(BUDGET), ops, (ops > 1).then_some(200)));
    assert!(fired() > 0, "{name} never took effect");
    let failure = outcome.failures.first();
    let failure = failure.unwrap_or_else(|| panic!("{name} was not found"));
    println!("{name}: {failure} ({:.1} s)", outcome.seconds);
    let id = failure
        .id
        .parse()
        .expect("ids are read as they are written");
    let system = Ext2System { mode };
    let again = replay(&system, &id).expect("the id is of this system");
    assert!(again.is_some(), "{name}: {id} does not replay");
    arm(false);
    let without = replay(&system, &id);
    assert!(
        !matches!(without, Ok(Some(_))),
        "{name}: {id} without the bug"
    );
}

#[test]
fn bugs_of_the_universal_file_system() {
    use lfs::seeded::{Bug, arm, fired};
    for bug in Bug::ALL {
        // A block is freed by one call and used again by another.
        let ops = if bug == Bug::ReuseBeforeNullify { 2 } else { 1 };
        let put = |on: bool| arm(on.then_some(bug));
        is_found(&format!("{bug:?}"), Mode::SoftUpdates, ops, &put, &fired);
    }
}

#[test]
fn bugs_of_the_graph_and_the_journal() {
    use patch::seeded::{Bug, arm, fired};
    for (bug, mode) in [
        (Bug::LoseRollback, Mode::SoftUpdates),
        (Bug::CommitWithoutBody, Mode::Journal),
        (Bug::ReplayUncommitted, Mode::Journal),
    ] {
        let put = |on: bool| arm(on.then_some(bug));
        is_found(&format!("{bug:?}"), mode, 2, &put, &fired);
    }
}
