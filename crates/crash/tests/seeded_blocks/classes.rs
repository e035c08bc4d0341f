//! Bugs that show only in one kind of script, of image, of write-back or of crash.

use super::full::on_full;
use super::wrap::wrapping;
use super::{is_found, of_names, options};
use crash::{Options, Schedule};
use ext2::Ext2System;
use oracle::script::LOG_MAGIC;
use oracle::script::generate::Tree;
use patch::Optimised;
use patch::stack::Mode;

/// Bugs of `blockfs` that are found here.
pub const BLOCKFS: [blockfs::seeded::Bug; 7] = [
    blockfs::seeded::Bug::ClearedCountsAsSynced,
    blockfs::seeded::Bug::GrowOverLeft,
    blockfs::seeded::Bug::FsyncWithoutName,
    blockfs::seeded::Bug::FsyncWithoutPath,
    blockfs::seeded::Bug::FdatasyncWithoutSize,
    blockfs::seeded::Bug::FdatasyncWithoutData,
    blockfs::seeded::Bug::MountUnsettled,
];

/// A script on a full image, where a freed block is reused at once.
fn cramped(mode: Mode, setup: &str, rest: &str) -> (Ext2System, String) {
    let system = Ext2System::cramped(mode);
    (system, on_full(&system, setup, rest))
}

fn is_found_in_ext2(bug: ext2::seeded::Bug, system: Ext2System, work: (Option<&str>, &Options)) {
    use ext2::seeded::{arm, fired};
    let put = |on: bool| arm(on.then_some(bug));
    is_found(&format!("{bug:?}"), &system, work, &put, &fired);
}

fn is_found_in_patch(bug: patch::seeded::Bug, system: Ext2System, work: (Option<&str>, &Options)) {
    use patch::seeded::{arm, fired};
    let put = |on: bool| arm(on.then_some(bug));
    is_found(&format!("{bug:?}"), &system, work, &put, &fired);
}

fn is_found_in_blockfs(bug: blockfs::seeded::Bug, work: (Option<&str>, &Options)) {
    is_found_in_blockfs_on(bug, Mode::SoftUpdates, work);
}

fn is_found_in_blockfs_on(bug: blockfs::seeded::Bug, mode: Mode, work: (Option<&str>, &Options)) {
    use blockfs::seeded::{arm, fired};
    let put = |on: bool| arm(on.then_some(bug));
    let system = Ext2System::new(mode);
    is_found(&format!("{bug:?}"), &system, work, &put, &fired);
}

#[test]
fn free_blocks_that_are_not_zero() {
    let system = Ext2System::new(Mode::SoftUpdates);
    let bug = ext2::seeded::Bug::IndirectNotCleared;
    is_found_in_ext2(bug, system, (None, &options()));
}

#[test]
fn free_inodes_that_are_not_zero() {
    let system = Ext2System::new(Mode::SoftUpdates);
    let bug = ext2::seeded::Bug::InodeNotCleared;
    is_found_in_ext2(bug, system, (Some("create n 644\n"), &options()));
}

/// Every other schedule writes the bitmap before the inode, even where patches do not demand it.
#[test]
fn blocks_that_leave_in_any_order() {
    let any = Options {
        schedules: vec![Schedule::Any(1)],
        ..options()
    };
    let system = Ext2System::new(Mode::SoftUpdates);
    let bug = ext2::seeded::Bug::PointBeforeBit;
    is_found_in_ext2(bug, system, (None, &any));
}

#[test]
fn freed_blocks_that_become_indirect_or_directory_blocks_at_once() {
    use ext2::seeded::Bug;
    let setup = "create f 644\nwrite f 0 3000 1\ncreate g 644\n";
    for (bug, rest) in [
        (
            Bug::IndirectBeforeReuse,
            "truncate f 0\nwrite g 13000 100 2\n",
        ),
        (
            Bug::DirectoryBeforeReuse,
            "truncate f 0\nmkdir A 755\ncreate A/n 644\n",
        ),
    ] {
        let (system, script) = cramped(Mode::SoftUpdates, setup, rest);
        let any = Options {
            schedules: [1, 2, 3].map(Schedule::Any).to_vec(),
            ..options()
        };
        is_found_in_ext2(bug, system, (Some(&script), &any));
    }
}

/// One call makes a directory grow on this tree only. On the others the bug takes no effect.
#[test]
fn directories_of_several_blocks() {
    use ext2::seeded::{Bug, arm, fired};
    let bug = Bug::GrowBeforeFill;
    let others = Options {
        trees: vec![Tree::Small, Tree::Names, Tree::File],
        schedules: vec![Schedule::Sync],
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
#[test]
fn a_name_that_is_made_again() {
    let script = "create A/x 644\ncreate A/y 644\ncreate A/z 644\nsync\n\
                  unlink A/x\nrename A/z B/z replace\ncreate A/z 644\n";
    let system = Ext2System::new(Mode::SoftUpdates).optimised(Optimised::None);
    let bug = ext2::seeded::Bug::NameTwice;
    is_found_in_ext2(bug, system, (Some(&of_names(script)), &options()));
}

#[test]
fn generations_of_inodes() {
    let system = Ext2System::new(Mode::SoftUpdates);
    let script = "create n 644\nunlink n\ncreate n 644\n";
    let bug = ext2::seeded::Bug::SameGeneration;
    is_found_in_ext2(bug, system, (Some(script), &options()));
}

/// After a crash nothing records the generation of a lost inode.
#[test]
fn generations_across_a_crash() {
    let system = Ext2System::new(Mode::SoftUpdates);
    let bug = ext2::seeded::Bug::GenerationsRestart;
    is_found_in_ext2(bug, system, (Some("create n 644\n"), &options()));
}

/// A mount builds on writes of a killed server that were not flushed.
#[test]
fn a_kill_and_then_a_power_cut() {
    let lives = Options {
        lives: 4,
        ..options()
    };
    let bug = blockfs::seeded::Bug::MountUnsettled;
    for mode in [Mode::SoftUpdates, Mode::Journal] {
        is_found_in_blockfs_on(bug, mode, (None, &lives));
    }
}

#[test]
fn data_that_begin_as_a_block_of_the_log() {
    let system = Ext2System::new(Mode::Journal);
    let script = format!("create f 644\nwrite f 0 3000 {LOG_MAGIC}\n");
    let bug = patch::seeded::Bug::LoseEscape;
    is_found_in_patch(bug, system, (Some(&script), &options()));
}

#[test]
fn a_log_that_wraps_around() {
    let system = Ext2System::new(Mode::JournalOrdered);
    let bug = patch::seeded::Bug::TailBeforeHome;
    is_found_in_patch(bug, system, (Some(&wrapping()), &options()));
}

/// A logged block of a directory becomes data, which are not logged.
#[test]
fn blocks_that_must_be_revoked() {
    let setup = "create g 644\nmkdir A 755\n";
    let rest = "create A/n 644\nfsync A/n\nunlink A/n\nrmdir A\nwrite g 0 1000 2\nfsync g\n";
    let (system, script) = cramped(Mode::JournalOrdered, setup, rest);
    let bug = patch::seeded::Bug::NoRevoke;
    is_found_in_patch(bug, system, (Some(&script), &options()));
}

/// A block leaves one file and is filled for another before a commit. The file system's order of
/// the two is left out by a second bug, since it would put the data into the log as well.
#[test]
fn blocks_whose_freeing_is_not_committed() {
    use blockfs::seeded::{Bug, arm};
    let setup = "create f 644\nwrite f 0 3000 1\ncreate g 644\n";
    let rest = "truncate f 0\nwrite g 0 3000 2\n";
    let (system, script) = cramped(Mode::JournalOrdered, setup, rest);
    let bug = patch::seeded::Bug::ForgetEmptied;
    arm(Some(Bug::ReuseBeforeNullify));
    is_found_in_patch(bug, system, (Some(&script), &options()));
    arm(None);
}

#[test]
fn fsync_of_a_new_file() {
    use blockfs::seeded::Bug;
    for (bug, script) in [
        (Bug::FsyncWithoutName, "create n 644\nfsync n\n"),
        (
            Bug::FsyncWithoutPath,
            "mkdir n 755\ncreate n/m 644\nfsync n/m\n",
        ),
    ] {
        is_found_in_blockfs(bug, (Some(script), &options()));
    }
}

/// The modes are soft updates and the journals that log no data. In a journal that logs data, the
/// sync waits for the transaction, which includes the inode.
#[test]
fn fdatasync_of_a_write() {
    use blockfs::seeded::Bug;
    let setup = "create f 644\nwrite f 0 3000 1\ntruncate f 30000\nsync\n";
    for (bug, change) in [
        (Bug::FdatasyncWithoutSize, "truncate f 30001"),
        (Bug::FdatasyncWithoutData, "write f 0 8 2"),
        (Bug::FdatasyncWithoutData, "write f 5000 8 2"),
        (Bug::FdatasyncWithoutData, "write f 20000 8 2"),
    ] {
        let script = format!("{setup}{change}\nfdatasync f\n");
        for mode in [
            Mode::SoftUpdates,
            Mode::JournalMetadata,
            Mode::JournalOrdered,
        ] {
            is_found_in_blockfs_on(bug, mode, (Some(&script), &options()));
        }
    }
}

/// A cut that a crash has interrupted leaves blocks, over which the file grows later.
#[test]
fn calls_after_a_recovery() {
    let lives = Options {
        trees: vec![Tree::File],
        lives: 4,
        ..options()
    };
    is_found_in_blockfs(blockfs::seeded::Bug::GrowOverLeft, (None, &lives));
}

/// A range is zeroed, and the file is cut in the middle of it, which adds to the same patch. An
/// fsync does not wait for that patch. No two calls show it.
#[test]
fn three_calls_on_one_file() {
    use blockfs::seeded::{Bug, arm, fired};
    let scripts_of = |ops| Options {
        trees: vec![Tree::File],
        ops,
        states_per_point: 4,
        samples: 2,
        schedules: vec![Schedule::Any(1)],
        ..options()
    };
    let bug = Bug::ClearedCountsAsSynced;
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
    is_found_in_blockfs(bug, (None, &scripts_of(3)));
}
