//! ext2 under the explorer in every mode: all scripts of one call and some of two, with every
//! schedule. e2fsck judges a part of the states as well.

mod barriers;
#[path = "../scripts/bounds.rs"]
mod bounds;
mod classes;
mod full;
mod groups;
mod images;
mod large;
mod long;
mod names;
#[path = "../scripts/mod.rs"]
mod scripts;
mod second_judge;
mod wrap;

use bounds::bound;
use crash::block::{explore, explore_script};
use crash::{BlockSystem, Options, Outcome, Schedule};
use ext2::Ext2System;
use images::{SHARED, past_end};
use patch::Optimised;
use patch::stack::Mode;
use std::time::Duration;

/// All modes with an order.
const MODES: [Mode; 4] = [
    Mode::SoftUpdates,
    Mode::JournalMetadata,
    Mode::JournalOrdered,
    Mode::Journal,
];

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
    holds_on(Ext2System::new(mode), options);
}

fn holds_on(system: Ext2System, options: &Options) {
    let outcome = run(&system, options);
    assert_eq!(outcome.failures.first(), None, "{}", outcome.system);
    assert!(outcome.complete);
    assert!(outcome.states_distinct > 0);
}

/// Everything is written at the end, and a drawn part at any time.
const SCHEDULES: [Schedule; 2] = [Schedule::Sync, Schedule::Any(1)];

/// Everything is written after each call as well.
const MORE_SCHEDULES: [Schedule; 3] = [Schedule::Sync, Schedule::Each, Schedule::Any(1)];

/// Few states of each moment: a transaction of ten blocks has a thousand.
fn quick() -> Options {
    Options {
        max_failures: 20,
        states_per_point: bound(16, 64),
        samples: bound(4, 16),
        schedules: bound(SCHEDULES.to_vec(), Schedule::ALL.to_vec()),
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
        sample: Some(bound(20, 40)),
        ..quick()
    }
}

/// Each call is repeated at each block that it needs, up to its first change.
#[test]
fn repeated_calls_change_nothing_twice() {
    let options = Options {
        schedules: bound(vec![Schedule::Sync], vec![Schedule::Sync, Schedule::Each]),
        ..singles()
    };
    for mode in [Mode::SoftUpdates, Mode::Journal] {
        holds_on(Ext2System::new(mode).forgetful(), &options);
    }
}

#[test]
fn soft_updates_keep_their_promise() {
    holds(Mode::SoftUpdates, &pairs());
}

#[test]
fn a_journal_of_metadata_keeps_its_promise() {
    holds(Mode::JournalMetadata, &pairs());
}

#[test]
fn a_journal_with_ordered_data_keeps_its_promise() {
    holds(Mode::JournalOrdered, &pairs());
}

#[test]
fn a_journal_of_data_keeps_its_promise() {
    holds(Mode::Journal, &pairs());
}

/// The scripts that every engine runs, with few states of each moment: a transaction of a journal
/// has a thousand.
#[test]
fn shared_scripts() {
    for mode in MODES {
        let options = Options {
            ops: 0,
            scripts: scripts::all(),
            states_per_point: 8,
            samples: 2,
            moments: 8,
            schedules: vec![Schedule::Sync],
            ..quick()
        };
        holds(mode, &options);
    }
}

/// Those that change few blocks, with more states and schedules.
#[test]
fn shared_scripts_of_files() {
    for mode in [Mode::SoftUpdates, Mode::JournalMetadata, Mode::Journal] {
        let options = Options {
            ops: 0,
            scripts: scripts::of_files(),
            schedules: bound(MORE_SCHEDULES.to_vec(), Schedule::ALL.to_vec()),
            ..quick()
        };
        holds(mode, &options);
    }
}

/// Three directories are removed in one transaction, so that the journal revokes several blocks.
/// The second exploration runs in another second of the system's clock.
#[test]
fn two_explorations_of_one_script_visit_the_same_states() {
    let script = "mkdir A 755\nmkdir B 755\nmkdir C 755\ncreate C/f 644\nfsync C/f\nunlink C/f\n\
                  rmdir A\nrmdir B\nrmdir C\ncreate f 644\nwrite f 0 9000 1\nfsync f\n\
                  mkdir D 755\nrename f D/f replace\n";
    let options = Options {
        ops: 0,
        scripts: vec![script.to_string()],
        states_per_point: 16,
        ..quick()
    };
    let visited = || {
        MODES.map(|mode| {
            let outcome = run(&Ext2System::new(mode), &options);
            assert!(outcome.capped_points > 0, "the seed decides nothing");
            let states = (outcome.states_explored, outcome.states_distinct);
            (states, outcome.points, outcome.capped_points)
        })
    };
    let first = visited();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(first, visited());
}

/// The control: without any order, the explorer finds states that soft updates never leave.
#[test]
fn without_order_the_checker_finds_damage() {
    let options = Options {
        shrunk: 0,
        ..singles()
    };
    let outcome = run(&Ext2System::new(Mode::Async), &options);
    assert!(outcome.violations > 0);
    let by_checker = |f: &crash::FailureReport| f.what.starts_with("checker before recovery");
    assert!(outcome.failures.iter().any(by_checker));
}

/// Blocks of data, of a directory and of attributes move from one file to another.
#[test]
fn freed_blocks_are_reused_only_after_nothing_points_to_them() {
    let three = "create f 644\nwrite f 0 3000 1\ncreate g 644\n";
    let directory = "mkdir A 755\ncreate g 644\n";
    let attribute = "create f 644\nsetxattr f user.x 500 3 set\ncreate g 644\n";
    for (setup, rest) in [
        (three, "truncate f 0\nwrite g 0 3000 2\n"),
        (three, "unlink f\nwrite g 0 3000 2\n"),
        (three, "unlink f\nmkdir A 755\ncreate A/n 644\n"),
        (three, "open 0 f\nunlink f\nclose 0\nwrite g 0 3000 2\n"),
        (directory, "rmdir A\nwrite g 0 1000 2\n"),
        (three, "truncate f 0\nwrite g 13000 100 2\n"),
        (three, "unlink f\nfallocate g allocate 12288 1024\n"),
        (directory, "rmdir A\nwrite g 12288 10 2\n"),
        (attribute, "removexattr f user.x\nwrite g 0 1000 2\n"),
    ] {
        // Without a journal all depends on the order of single blocks.
        for mode in [Mode::SoftUpdates, Mode::JournalMetadata] {
            let system = Ext2System::cramped(mode);
            let script = full::on_full(&system, setup, rest);
            let failure = explore_script(&system, &script, &quick());
            assert_eq!(failure.expect("a script"), None, "{mode}: {rest}");
        }
    }
}

/// The kernel lets inodes share a block of attributes.
#[test]
fn a_shared_block_of_attributes_is_free_after_all_its_inodes() {
    for mode in MODES {
        let system = Ext2System::with_shared_attributes(mode).optimised(Optimised::None);
        for script in SHARED {
            let failure = explore_script(&system, script, &quick());
            assert_eq!(failure.expect("a script"), None, "{mode}: {script}");
        }
    }
}

/// A crash came between the pointer to a block of a directory and the size.
#[test]
fn a_directory_grows_into_a_block_past_its_end() {
    // A crash with a journal leaves no such block.
    let system = Ext2System::with_block_past_end(Mode::SoftUpdates);
    let failure = explore_script(&system, &past_end(), &quick());
    assert_eq!(failure.expect("a script"), None);
}

/// A crash came between a cut and the zeroing of the rest of the block.
#[test]
fn bytes_that_a_crash_left_past_the_end_of_a_file_never_become_visible() {
    for growth in [
        "truncate cut 5000",
        "append cut 11 3",
        "write cut 4000 8 4",
        "fallocate cut allocate 0 5000",
        "fallocate cut zero 500 3000",
    ] {
        for mode in [
            Mode::SoftUpdates,
            Mode::JournalMetadata,
            Mode::JournalOrdered,
        ] {
            let system = Ext2System::with_cut_file(mode);
            let script = format!("{growth}\nfsync cut\n");
            let failure = explore_script(&system, &script, &quick());
            assert_eq!(failure.expect("a script"), None, "{mode}: {growth}");
        }
    }
}
