//! Bugs that show only in one kind of script, of image, of write-back or of crash.

use super::full::on_full;
use super::images::{SHARED, past_end};
use super::wrap::wrapping;
use super::{is_found_in_blockfs, is_found_in_ext2, is_found_in_patch, of_names, options};
use crash::{Options, Schedule};
use ext2::Ext2System;
use oracle::script::LOG_MAGIC;
use oracle::script::generate::Tree;
use patch::Optimised;
use patch::stack::Mode;

/// A script on a full image, where a freed block is reused at once.
fn cramped(mode: Mode, setup: &str, rest: &str) -> (Ext2System, String) {
    let system = Ext2System::cramped(mode);
    (system, on_full(&system, setup, rest))
}

/// Writes in any order that patches do not forbid.
fn any() -> Options {
    Options {
        schedules: (1..=8).map(Schedule::Any).collect(),
        ..options()
    }
}

pub fn free_blocks_that_are_not_zero(bug: ext2::seeded::Bug) {
    let system = Ext2System::new(Mode::SoftUpdates);
    is_found_in_ext2(bug, system, (None, &options()));
}

pub fn free_inodes_that_are_not_zero(bug: ext2::seeded::Bug) {
    let system = Ext2System::new(Mode::SoftUpdates);
    is_found_in_ext2(bug, system, (Some("create n 644\n"), &options()));
}

/// Every other schedule writes the bitmap before the inode, even where patches do not demand it.
pub fn blocks_that_leave_in_any_order(bug: ext2::seeded::Bug) {
    let system = Ext2System::new(Mode::SoftUpdates);
    is_found_in_ext2(bug, system, (None, &any()));
}

/// A freed block becomes an indirect or directory block in `rest`.
pub fn freed_blocks_that_point_at_once(bug: ext2::seeded::Bug, rest: &str) {
    let setup = "create f 644\nwrite f 0 3000 1\ncreate g 644\n";
    let (system, script) = cramped(Mode::SoftUpdates, setup, rest);
    let any = Options {
        schedules: [1, 2, 3].map(Schedule::Any).to_vec(),
        ..options()
    };
    is_found_in_ext2(bug, system, (Some(&script), &any));
}

/// One call makes a directory grow on this tree only. On the others the bug takes no effect.
pub fn directories_of_several_blocks(bug: ext2::seeded::Bug) {
    use ext2::seeded::{arm, fired};
    let others = Options {
        trees: vec![Tree::Small, Tree::Names, Tree::File],
        schedules: vec![Schedule::Sync],
        // Most states are of recoveries, and show nothing of the calls.
        states_per_point: 1,
        samples: 1,
        recovery_depth: 0,
        ..options()
    };
    arm(Some(bug));
    let system = Ext2System::new(Mode::SoftUpdates);
    let none = crash::block::explore(&system, &others, &|_| {}).expect("ext2 can be set up");
    assert!(none.failures.is_empty() && none.complete);
    assert_eq!(fired(), 0, "{bug:?} took effect on small directories");
    arm(None);
    let large = Options {
        trees: vec![Tree::Large],
        ..options()
    };
    is_found_in_ext2(bug, system, (None, &large));
}

/// The new name takes the room of the first one, so that the other block is written later.
pub fn a_name_that_is_made_again(bug: ext2::seeded::Bug) {
    let script = "create A/x 644\ncreate A/y 644\ncreate A/z 644\nsync\n\
                  unlink A/x\nrename A/z B/z replace\ncreate A/z 644\n";
    let system = Ext2System::new(Mode::SoftUpdates).optimised(Optimised::None);
    is_found_in_ext2(bug, system, (Some(&of_names(script)), &options()));
}

pub fn generations_of_inodes(bug: ext2::seeded::Bug) {
    let system = Ext2System::new(Mode::SoftUpdates);
    let script = "create n 644\nunlink n\ncreate n 644\n";
    is_found_in_ext2(bug, system, (Some(script), &options()));
}

/// The time of change waits for the removal of the old name.
pub fn times_that_wait(bug: ext2::seeded::Bug) {
    let script =
        "mkdir B 755\ncreate f 644\nsync\nrename f B/f replace\nutimens B/f - 5625869645\n";
    let system = Ext2System::new(Mode::SoftUpdates);
    is_found_in_ext2(bug, system, (Some(script), &options()));
}

/// After a crash nothing records the generation of a lost inode.
pub fn generations_across_a_crash(bug: ext2::seeded::Bug) {
    let system = Ext2System::new(Mode::SoftUpdates);
    is_found_in_ext2(bug, system, (Some("create n 644\n"), &options()));
}

/// The removal of one file that shares attributes is durable after that of the other one. The explorer writes the inodes
/// in any order.
pub fn attributes_that_two_inodes_share(bug: ext2::seeded::Bug) {
    let system = Ext2System::with_shared_attributes(Mode::SoftUpdates).optimised(Optimised::None);
    is_found_in_ext2(bug, system, (Some(SHARED[2]), &any()));
}

/// A directory grows into a block to which it points already, and which has a name of its own.
pub fn a_block_past_the_end_of_a_directory(bug: ext2::seeded::Bug) {
    let system = Ext2System::with_block_past_end(Mode::SoftUpdates);
    is_found_in_ext2(bug, system, (Some(&past_end()), &any()));
}

/// A mount builds on writes of a killed server that were not flushed.
pub fn a_kill_and_then_a_power_cut(bug: blockfs::seeded::Bug) {
    let lives = Options {
        lives: 4,
        ..options()
    };
    for mode in [Mode::SoftUpdates, Mode::Journal] {
        is_found_in_blockfs(bug, Ext2System::new(mode), (None, &lives));
    }
}

/// The second of two changes before a barrier is not waited for.
pub fn barriers(bug: patch::seeded::Bug) {
    let script = "create f 644\nwrite f 0 2000 1\ncreate g 644\nwrite g 0 2000 2\nsync\n\
                  write f 0 2000 3\nbarrier\nwrite g 0 2000 4\n";
    for mode in [
        Mode::SoftUpdates,
        Mode::JournalMetadata,
        Mode::JournalOrdered,
    ] {
        is_found_in_patch(bug, Ext2System::new(mode), (Some(script), &options()));
    }
}

/// A script that shows that the order of groups is lost, and the modes in which it does.
pub fn groups(bug: patch::seeded::Bug, script: &str, modes: &[Mode]) {
    for mode in modes {
        is_found_in_patch(bug, Ext2System::new(*mode), (Some(script), &options()));
    }
}

/// The script of a group `b` after a group `a`, on two files.
pub fn two_groups(first: &str, second: &str) -> String {
    format!(
        "create f 644\nwrite f 0 2000 1\ncreate g 644\nwrite g 0 2000 2\nsync\ngroup a\ngroup b\n\
         engage a\n{first}disengage a\ndepend b a\nengage b\n{second}"
    )
}

pub fn data_that_begin_as_a_block_of_the_log(bug: patch::seeded::Bug) {
    let system = Ext2System::new(Mode::Journal);
    let script = format!("create f 644\nwrite f 0 3000 {LOG_MAGIC}\n");
    is_found_in_patch(bug, system, (Some(&script), &options()));
}

pub fn a_log_that_wraps_around(bug: patch::seeded::Bug) {
    let system = Ext2System::new(Mode::JournalOrdered);
    is_found_in_patch(bug, system, (Some(&wrapping()), &options()));
}

/// A logged block of a directory becomes data, which are not logged.
pub fn blocks_that_must_be_revoked(bug: patch::seeded::Bug) {
    let setup = "create g 644\nmkdir A 755\n";
    let rest = "create A/n 644\nfsync A/n\nunlink A/n\nrmdir A\nwrite g 0 1000 2\nfsync g\n";
    let (system, script) = cramped(Mode::JournalOrdered, setup, rest);
    is_found_in_patch(bug, system, (Some(&script), &options()));
}

/// A block leaves one file and is filled for another before a commit. The file system's order of
/// the two is left out by a second bug, since it would put the data into the log as well.
pub fn blocks_whose_freeing_is_not_committed(bug: patch::seeded::Bug) {
    use blockfs::seeded::{Bug, arm};
    let setup = "create f 644\nwrite f 0 3000 1\ncreate g 644\n";
    let rest = "truncate f 0\nwrite g 0 3000 2\n";
    let (system, script) = cramped(Mode::JournalOrdered, setup, rest);
    arm(Some(Bug::ReuseBeforeNullify));
    is_found_in_patch(bug, system, (Some(&script), &options()));
    arm(None);
}

/// The modes are soft updates and the journals that log no data. In a journal that logs data, the
/// sync waits for the transaction, which includes the inode.
pub fn fdatasync_of_a_write(bug: blockfs::seeded::Bug, changes: &[&str]) {
    let setup = "create f 644\nwrite f 0 3000 1\ntruncate f 30000\nsync\n";
    for change in changes {
        let script = format!("{setup}{change}\nfdatasync f\n");
        for mode in [
            Mode::SoftUpdates,
            Mode::JournalMetadata,
            Mode::JournalOrdered,
        ] {
            is_found_in_blockfs(bug, Ext2System::new(mode), (Some(&script), &options()));
        }
    }
}

/// A cut that a crash has interrupted leaves blocks, over which the file grows later.
pub fn calls_after_a_recovery(bug: blockfs::seeded::Bug) {
    let lives = Options {
        trees: vec![Tree::File],
        lives: 4,
        ..options()
    };
    is_found_in_blockfs(bug, Ext2System::new(Mode::SoftUpdates), (None, &lives));
}

/// A range is zeroed, and the file is cut in the middle of it, which adds to the same patch. An
/// fsync does not wait for that patch. No two calls show it.
pub fn three_calls_on_one_file(bug: blockfs::seeded::Bug) {
    use blockfs::seeded::{arm, fired};
    let scripts_of = |ops| Options {
        trees: vec![Tree::File],
        ops,
        states_per_point: 4,
        samples: 2,
        schedules: vec![Schedule::Any(1)],
        ..options()
    };
    arm(Some(bug));
    let system = Ext2System::new(Mode::SoftUpdates);
    let two = crash::block::explore(&system, &scripts_of(2), &|_| {}).expect("ext2 can be set up");
    assert!(fired() > 0, "{bug:?} never took effect in two calls");
    assert!(
        two.failures.is_empty() && two.complete,
        "{:?}",
        two.failures
    );
    arm(None);
    is_found_in_blockfs(bug, system, (None, &scripts_of(3)));
}
