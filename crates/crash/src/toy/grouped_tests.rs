//! The order of groups on every medium. The toy that keeps it is clean, and each way to break it
//! is found.

use super::grouped::{Bug, GroupToy};
use crate::{FailureReport, Options, PersistModel, block, explore_script, revisit};

/// Two files, a group `a` with several changes, and what follows it.
fn script(rest: &str) -> String {
    format!(
        "mkdir d 755\ncreate f 644\nwrite f 0 300 1\ncreate g 644\nsync\ngroup a\ngroup b\ngroup c\n\
         engage a\nwrite f 0 100 2\ncreate n 644\nwrite n 0 200 3\ndisengage a\n{rest}"
    )
}

/// A script that shows the bug.
fn script_of(bug: Bug) -> String {
    script(match bug {
        Bug::Nothing => {
            "depend b a\nengage b\nrename f d/f replace\ndisengage b\ndepend c b\nengage c\n\
             unlink g\n"
        }
        // Other schedules write all of `a` before they need a flush.
        Bug::WaitsForFirst => {
            "depend b a\nengage b\nunlink g\ndisengage b\ncreate z 644\npgsync b\n"
        }
        Bug::WrittenIsDurable => "depend b a\nengage b\nunlink g\n",
        Bug::NotTransitive => "depend b a\ndepend c b\nengage c\nunlink g\n",
        Bug::PartlyDurable => {
            "sync\ngroup e\ngroup k\nengage e\nwrite g 0 50 5\nsync\nwrite g 50 50 6\n\
             disengage e\ndepend k e\nengage k\ncreate d/m 644\n"
        }
        Bug::EndsWhenClosed => {
            "depend b a\npgclose a\nengage b\nunlink g\npgclose b\ncreate z 644\n"
        }
        Bug::NoBarrier => "engage b\nwrite g 0 100 4\nbarrier\ncreate d/m 644\n",
        Bug::SyncsAlone => "depend b a\npgsync b\ncreate z 644\n",
        Bug::SyncReturnsEarly => {
            "engage b\nwrite g 0 100 4\ndisengage b\npgsync b\nengage c\ncreate d/m 644\n"
        }
    })
}

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

fn explored(bug: Bug, script: &str, on: On) -> Option<FailureReport> {
    let toy = GroupToy(bug);
    let options = Options {
        states_per_point: 16,
        samples: 16,
        shrunk: 0,
        ..Options::default()
    };
    let found = match on {
        On::Memory(model) => explore_script(&toy, script, &Options { model, ..options }),
        On::Blocks => block::explore_script(&toy, script, &options),
    };
    found.expect("the toy can be set up")
}

#[test]
fn the_order_of_groups_can_be_kept_on_each_medium() {
    for (bug, on) in Bug::ALL.iter().flat_map(|bug| ALL.map(|on| (*bug, on))) {
        let failure = explored(Bug::Nothing, &script_of(bug), on);
        assert!(failure.is_none(), "on {on:?}: {}", failure.unwrap());
    }
}

#[test]
fn each_way_to_break_the_order_of_groups_is_found() {
    let bugs = Bug::ALL.iter().filter(|bug| **bug != Bug::Nothing);
    for (bug, on) in bugs.flat_map(|bug| ALL.map(|on| (*bug, on))) {
        let what = format!("{bug:?} on {on:?}");
        let report =
            explored(bug, &script_of(bug), on).unwrap_or_else(|| panic!("{what} is not found"));
        let is_of_groups = ["which precedes it", "after a sync of its group"];
        assert!(
            is_of_groups.iter().any(|text| report.what.contains(text)),
            "{what}: {report}"
        );
        let toy = GroupToy(bug);
        let id = report.id.parse().unwrap();
        let again = match on {
            On::Memory(_) => revisit(&toy, &id).unwrap(),
            On::Blocks => block::revisit(&toy, &id).unwrap(),
        };
        let again = again.unwrap_or_else(|| panic!("{} does not replay", report.id));
        assert_eq!(again.id, report.id, "{what}");
    }
}
