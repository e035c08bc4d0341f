//! Every promise on every medium, under each model of memory. A toy that keeps the promise is
//! clean, and each way to break it is found.

use super::slots::{Bug, Kind, SlotToy};
use crate::{FailureReport, Options, PersistModel, block, explore_script, revisit};

/// Renames and removals of a file with two names, data that grow, and syncs in between.
const SCRIPT: &str = "
    mkdir d 755
    create f 644
    write f 0 300 1
    fsync f
    link f d/g
    unlink f
    append d/g 200 2
    create e 644
    write e 0 100 3
    fsync e
    rename d/g h replace
    truncate h 17
    unlink e
";

/// The medium of the toy.
#[derive(Debug, Clone, Copy)]
enum On {
    Memory(PersistModel),
    Blocks,
}

const ALL: [On; 3] = [
    On::Memory(PersistModel::Words),
    On::Memory(PersistModel::Lines),
    On::Blocks,
];

fn explored(kind: Kind, bug: Bug, on: On) -> Option<FailureReport> {
    let toy = SlotToy(kind, bug);
    let options = Options {
        states_per_point: 32,
        samples: 48,
        shrunk: 0,
        ..Options::default()
    };
    let found = match on {
        On::Memory(model) => explore_script(&toy, SCRIPT, &Options { model, ..options }),
        On::Blocks => block::explore_script(&toy, SCRIPT, &options),
    };
    found.expect("the toy can be set up")
}

#[test]
fn each_promise_can_be_kept_on_each_medium() {
    for (kind, on) in Kind::ALL.iter().flat_map(|kind| ALL.map(|on| (*kind, on))) {
        let failure = explored(kind, Bug::Nothing, on);
        assert!(
            failure.is_none(),
            "{kind:?} on {on:?}: {}",
            failure.unwrap()
        );
    }
}

/// Demands that each way to break a promise is found, and replays by its id.
fn each_bug_is_found(on: On) {
    for kind in Kind::ALL {
        for bug in kind.bugs() {
            let what = format!("{kind:?}, {bug:?} on {on:?}");
            let report = explored(*kind, *bug, on).unwrap_or_else(|| panic!("{what} is not found"));
            println!("{what}: {report}");
            let toy = SlotToy(*kind, *bug);
            let id = report.id.parse().unwrap();
            let again = match on {
                On::Memory(_) => revisit(&toy, &id).unwrap(),
                On::Blocks => block::revisit(&toy, &id).unwrap(),
            };
            let again = again.unwrap_or_else(|| panic!("{} does not replay", report.id));
            assert_eq!(again.id, report.id, "{what}");
        }
    }
}

#[test]
fn each_way_to_break_a_promise_is_found_in_words() {
    each_bug_is_found(On::Memory(PersistModel::Words));
}

#[test]
fn each_way_to_break_a_promise_is_found_in_lines() {
    each_bug_is_found(On::Memory(PersistModel::Lines));
}

#[test]
fn each_way_to_break_a_promise_is_found_on_blocks() {
    each_bug_is_found(On::Blocks);
}

#[test]
fn each_way_to_break_a_promise_breaks_one_of_them() {
    for bug in Bug::ALL.iter().filter(|bug| **bug != Bug::Nothing) {
        let is_listed = Kind::ALL.iter().any(|kind| kind.bugs().contains(bug));
        assert!(is_listed, "{bug:?}");
    }
}
