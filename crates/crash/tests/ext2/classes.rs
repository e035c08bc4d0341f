//! Kinds of scripts and of crashes. Each has a seeded bug of its own in `tests/seeded_blocks`.

use super::bounds::bound;
use super::wrap::wrapping;
use super::{holds, quick};
use crash::block::explore_script;
use crash::{Options, Schedule};
use ext2::Ext2System;
use oracle::script::LOG_MAGIC;
use oracle::script::generate::Tree;
use patch::stack::Mode;

const JOURNALS: [Mode; 3] = [Mode::JournalMetadata, Mode::JournalOrdered, Mode::Journal];

fn bounded() -> Options {
    Options {
        states_per_point: 16,
        samples: 4,
        ..quick()
    }
}

/// Scripts of three calls: cuts, holes and writes of one file, and syncs in between. `make test`
/// draws an eighth of them.
#[test]
fn three_calls_on_one_file() {
    let options = Options {
        trees: vec![Tree::File],
        ops: 3,
        sample: bound(Some(Tree::File.count(3) / 8), None),
        schedules: vec![Schedule::Any(1)],
        ..bounded()
    };
    holds(Mode::SoftUpdates, &options);
}

#[test]
fn two_calls_on_one_file_with_journals() {
    for mode in JOURNALS {
        let options = Options {
            trees: vec![Tree::File],
            ops: 2,
            sample: bound(Some(Tree::File.count(2) / 4), None),
            schedules: vec![Schedule::Any(2)],
            ..bounded()
        };
        holds(mode, &options);
    }
}

#[test]
fn calls_after_a_recovery_and_a_second_crash() {
    for mode in [Mode::SoftUpdates, Mode::JournalMetadata, Mode::Journal] {
        for (tree, lives) in [(Tree::Small, 1), (Tree::File, bound(1, 3))] {
            let options = Options {
                trees: vec![tree],
                ops: 1,
                lives,
                schedules: bound(
                    vec![Schedule::Any(1)],
                    vec![Schedule::Sync, Schedule::Any(1)],
                ),
                ..bounded()
            };
            holds(mode, &options);
        }
    }
}

#[test]
fn a_log_that_wraps_around() {
    for mode in JOURNALS {
        let options = Options {
            moments: 40,
            schedules: vec![Schedule::Sync, Schedule::Each, Schedule::Any(1)],
            ..bounded()
        };
        let failure = explore_script(&Ext2System::new(mode), &wrapping(), &options);
        assert_eq!(failure.expect("a script"), None, "{mode}");
    }
}

#[test]
fn data_that_begin_as_a_block_of_the_log() {
    let script = format!(
        "create f 644\nwrite f 0 3000 {LOG_MAGIC}\nfsync f\nwrite f 1024 1024 5\n\
         create g 644\nwrite g 0 2048 {LOG_MAGIC}\ntruncate f 0\n"
    );
    for mode in JOURNALS {
        let failure = explore_script(&Ext2System::new(mode), &script, &quick());
        assert_eq!(failure.expect("a script"), None, "{mode}");
    }
}

/// The block of a directory becomes data, and a block of data a directory.
#[test]
fn blocks_that_change_between_log_and_data() {
    let setup = "create g 644\nmkdir A 755\n";
    for rest in [
        "create A/n 644\nfsync A/n\nunlink A/n\nrmdir A\nwrite g 0 1000 2\nfsync g\n",
        "create A/n 644\nfsync A/n\nunlink A/n\nrmdir A\nmkdir B 755\nfsyncdir B\n\
         rmdir B\nwrite g 0 1000 2\nfsync g\n",
    ] {
        for mode in JOURNALS {
            let system = Ext2System::cramped(mode);
            let script = super::full::on_full(&system, setup, rest);
            let options = bound(bounded(), quick());
            let failure = explore_script(&system, &script, &options);
            assert_eq!(failure.expect("a script"), None, "{mode}: {rest}");
        }
    }
}

/// The model and the tested file system number their inodes differently.
#[test]
fn a_sync_demands_nothing_of_files_with_other_numbers() {
    let script = "mkdir A 755\nmkdir B 755\ncreate f 644\ncreate A/g 644\nsymlink f s\n\
         mkdir B/A 755\nunlink f\nmknod n fifo 640 0\nrename n A/g replace\n\
         create A/B 644\nmkdir n 755\ncreate A/n 644\nrename A/n A/g replace\n\
         mkdir B/n 755\nmkdir f 755\nrename f A/n replace\nrename B n replace\n\
         fallocate A/g allocate-keep 0 6\nchmod n 2755\nfdatasync A/n\n";
    for mode in JOURNALS {
        let failure = explore_script(&Ext2System::new(mode), script, &quick());
        assert_eq!(failure.expect("a script"), None, "{mode}");
    }
}

/// The engines change the mode of a symbolic link, which chmod(2) never does.
#[test]
fn symbolic_links_with_a_mode_are_known_after_a_recovery() {
    let options = Options {
        lives: 20,
        ..quick()
    };
    let script = "create f 644\nsymlink f s\nchmod s 2755\nsync\ncreate g 644\n";
    for mode in JOURNALS {
        let failure = explore_script(&Ext2System::new(mode), script, &options);
        assert_eq!(failure.expect("a script"), None, "{mode}");
    }
}
