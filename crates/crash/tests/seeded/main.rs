//! Bugs put back into BPFS: each takes effect, each is found within a minute, and the
//! same exploration finds nothing without it. One test, since a bug is put back for the
//! whole process.

mod remnants;
#[path = "../bpfs/system.rs"]
mod system;

use bpfs::Mode;
use bpfs::seeded::{Bug, arm, disarm, fired};
use crash::{FailureReport, Model, Options, explore, replay};
use std::time::Duration;
use system::BpfsSystem;

fn options() -> Options {
    Options {
        ops: 1,
        model: Model::Words,
        max_failures: 1,
        time_limit: Some(Duration::from_secs(60)),
        ..Options::default()
    }
}

/// The first failure in any mode that the bug concerns.
fn find(bug: Bug) -> Option<(Mode, FailureReport)> {
    arm(bug);
    let found = [Mode::Other, Mode::Log, Mode::Sc]
        .into_iter()
        .find_map(|mode| {
            let outcome = explore(&BpfsSystem(mode), &options(), &|_| {});
            let failure = outcome.expect("BPFS can be set up").failures.pop();
            failure.map(|failure| (mode, failure))
        });
    assert!(fired() > 0, "{bug:?} never took effect");
    found
}

/// What the explorer does not come to.
const REMNANTS: [(Bug, fn() -> bool); 2] = [
    (Bug::AbortUnflushed, remnants::a_repeated_call_is_lost),
    (Bug::MountUnsettled, remnants::what_a_mount_saw_is_lost),
];

#[test]
fn every_seeded_bug_is_found() {
    for (bug, is_lost) in REMNANTS {
        arm(bug);
        assert!(is_lost(), "{bug:?} was not found");
        assert!(fired() > 0, "{bug:?} never took effect");
        disarm();
        assert!(!is_lost(), "{bug:?} was found without the bug");
    }
    let explored = |bug: &Bug| REMNANTS.iter().all(|(other, _)| other != bug);
    for bug in Bug::ALL.into_iter().filter(explored) {
        let (mode, failure) = find(bug).unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: {failure}");
        let id = failure
            .id
            .parse()
            .expect("ids are read as they are written");
        let system = BpfsSystem(mode);
        let again = replay(&system, &id).expect("the id is of this system");
        assert!(again.is_some(), "{bug:?}: {id} does not replay");
        disarm();
        let without = replay(&system, &id);
        assert!(
            !matches!(without, Ok(Some(_))),
            "{bug:?}: {id} without the bug"
        );
    }
    for mode in [Mode::Other, Mode::Log, Mode::Sc] {
        let outcome = explore(&BpfsSystem(mode), &options(), &|_| {});
        let outcome = outcome.expect("BPFS can be set up");
        assert_eq!(outcome.failures, [], "{mode} without any seeded bug");
    }
}
