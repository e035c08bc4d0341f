//! The explorer on a small file system on blocks with known bugs. Each bug is found, nothing is
//! found without bugs, and the tests fail if the explorer itself is broken.

use super::blocks::{BlockBug, BlockToy};
use crate::block::{explore_script, revisit};
use crate::sabotage::{Toys, each_is_noticed};
use crate::{FailureReport, Options};

const SCRIPT: &str = "
    mkdir d 755
    create f 644
    write f 0 3000 1
    fsync f
    append f 30 2
    rename f d/h replace
    unlink d/h
";

fn find(bug: BlockBug, script: &str) -> Option<FailureReport> {
    let options = Options {
        shrunk: 0,
        ..Options::default()
    };
    let found = explore_script(&BlockToy(bug), script, &options);
    found.expect("the toy can be set up")
}

/// A text that the report of a bug must contain; `None` without a bug.
fn report_of(bug: BlockBug) -> Option<&'static str> {
    match bug {
        BlockBug::Nothing => None,
        BlockBug::CommitWithLog | BlockBug::FlushTooEarly | BlockBug::FuaForAll => {
            Some("does not open")
        }
        BlockBug::NotDurable | BlockBug::RecoveryUnordered => {
            Some("the state after no operation since")
        }
        BlockBug::TornCommit => Some("the ends differ"),
    }
}

/// Bugs, with a text that the report must contain.
fn bugs() -> impl Iterator<Item = (BlockBug, &'static str)> {
    let bugs = BlockBug::ALL.iter();
    bugs.filter_map(|bug| Some((*bug, report_of(*bug)?)))
}

#[test]
fn sound_toy_is_clean() {
    let failure = find(BlockBug::Nothing, SCRIPT);
    assert!(failure.is_none(), "{}", failure.unwrap());
}

#[test]
fn every_bug_is_found_and_replays_by_its_id() {
    for (bug, says) in bugs() {
        let report = find(bug, SCRIPT).unwrap_or_else(|| panic!("{bug:?}"));
        assert!(report.what.contains(says), "{bug:?}: {report}");
        let id = report.id.parse().unwrap();
        let again = revisit(&BlockToy(bug), &id).unwrap();
        let again = again.unwrap_or_else(|| panic!("{} does not replay", report.id));
        assert_eq!((again.id, again.what), (report.id, report.what), "{bug:?}");
        assert!(
            revisit(&BlockToy(BlockBug::Nothing), &id).is_err(),
            "another system"
        );
    }
}

#[test]
fn a_report_names_the_rule_of_a_durable_write() {
    let report = find(BlockBug::FlushTooEarly, SCRIPT).expect("found");
    let between = "durable write(durable-before-return)";
    assert!(report.what.contains(between), "{report}");
}

/// Whether the explorer passes the tests above, on this thread.
fn explorer_works() -> bool {
    find(BlockBug::Nothing, SCRIPT).is_none()
        && bugs().all(|(bug, _)| find(bug, SCRIPT).is_some())
        // After a single operation, no later one shows that a change was not durable.
        && find(BlockBug::NotDurable, "create f 644").is_some()
}

#[test]
fn a_broken_explorer_is_noticed() {
    each_is_noticed(Toys::OnBlocks, explorer_works);
}
