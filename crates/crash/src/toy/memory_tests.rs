//! The explorer on a small file system with known bugs. Each bug is found in both models, nothing
//! is found without bugs, and the tests fail if the explorer itself is broken.

use super::ToyBug;
use super::memory::Toy;
use crate::sabotage::{Toys, each_is_noticed};
use crate::{FailureReport, Options, PersistModel, explore_script, replay, revisit};

const SCRIPT: &str = "
    mkdir d 755
    create f 644
    write f 0 100 1
    link f d/g
    append f 30 2
    rename f d/h replace
    truncate d/h 17
    unlink d/g
";

fn explore(bug: ToyBug, model: PersistModel) -> Option<FailureReport> {
    explore_script_of(bug, model, SCRIPT)
}

fn explore_script_of(bug: ToyBug, model: PersistModel, script: &str) -> Option<FailureReport> {
    let options = Options {
        model,
        states_per_point: 512,
        shrunk: 0,
        ..Options::default()
    };
    explore_script(&Toy(bug), script, &options).expect("the toy can be set up")
}

/// A text that the report of a bug must contain; `None` without a bug.
fn report_of(bug: ToyBug) -> Option<&'static str> {
    match bug {
        ToyBug::Nothing => None,
        ToyBug::MissingFence | ToyBug::MissingFlush => Some("does not open"),
        ToyBug::WideStore => Some("end and count differ"),
        ToyBug::NotDurable => Some("what returned is not there"),
        ToyBug::ReplayDrift => Some("times"),
        ToyBug::LinksForgotten => Some("links"),
        ToyBug::TornWrite => Some("in program order"),
        ToyBug::RecoveryUnordered => Some("neither old nor new"),
        ToyBug::Leaks => Some("T1"),
    }
}

/// Bugs, with a text that the report must contain.
fn bugs() -> impl Iterator<Item = (ToyBug, &'static str)> {
    let bugs = ToyBug::ALL.iter();
    bugs.filter_map(|bug| Some((*bug, report_of(*bug)?)))
}

#[test]
fn sound_toy_is_clean() {
    for model in PersistModel::ALL {
        let failure = explore(ToyBug::Nothing, model);
        assert!(failure.is_none(), "{model}: {}", failure.unwrap());
    }
}

#[test]
fn every_bug_is_found_and_replays_by_its_id() {
    for model in PersistModel::ALL {
        for (bug, says) in bugs() {
            let report = explore(bug, model).unwrap_or_else(|| panic!("{model}: {bug:?}"));
            assert!(report.what.contains(says), "{bug:?}: {report}");
            assert_eq!(report.to_string().lines().count(), 1);
            let id = report.id.parse().unwrap();
            let again = revisit(&Toy(bug), &id).unwrap();
            let again = again.unwrap_or_else(|| panic!("{} does not replay", report.id));
            assert_eq!((again.id, again.what), (report.id, report.what), "{bug:?}");
            assert!(
                revisit(&Toy(ToyBug::Nothing), &id).is_err(),
                "another system"
            );
        }
    }
}

#[test]
fn a_report_names_the_rules_of_the_fences_around_the_crash() {
    let report = explore(ToyBug::MissingFlush, PersistModel::Words).expect("found");
    let between = "crashed between fence(data-before-commit) and fence(durable-before-return)";
    assert!(report.what.ends_with(between), "{report}");
}

#[test]
fn torn_write_breaks_the_single_switch() {
    let report = explore(ToyBug::TornWrite, PersistModel::Words).expect("found");
    assert!(report.what.contains("in program order"), "{report}");
    let id = report.id.parse().unwrap();
    assert!(replay(&Toy(ToyBug::TornWrite), &id).unwrap().is_some());
}

#[test]
fn scripts_of_failures_are_shrunk() {
    let found = explore_script(&Toy(ToyBug::LinksForgotten), SCRIPT, &Options::default());
    let report = found.unwrap().unwrap();
    let ops: Vec<&str> = report.shrunk.lines().collect();
    assert_eq!(ops.len(), 3, "{}", report.shrunk);
    assert!(ops[2].starts_with("link"), "{}", report.shrunk);
}

/// Whether the explorer passes the tests above, on this thread.
fn explorer_works() -> bool {
    let finds = |bug, script| explore_script_of(bug, PersistModel::Words, script).is_some();
    // After a single operation, no later one shows that a change was not durable.
    !finds(ToyBug::Nothing, SCRIPT)
        && bugs().all(|(bug, _)| finds(bug, SCRIPT))
        && finds(ToyBug::NotDurable, "create f 644")
}

#[test]
fn a_broken_explorer_is_noticed() {
    each_is_noticed(Toys::OnMemory, explorer_works);
}
