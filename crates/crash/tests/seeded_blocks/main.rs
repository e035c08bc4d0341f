//! Seeded bugs of ext2 and of the crates below it. Each takes effect, is found within a minute of
//! CPU time, and replays by its id. Nothing is found without it.

mod budget;
mod classes;
#[path = "../ext2/full.rs"]
mod full;
#[path = "../ext2/images.rs"]
mod images;
#[path = "../ext2/wrap.rs"]
mod wrap;

use budget::{BUDGET, used};
use crash::Options;
use crash::block::{explore, explore_script, revisit};
use ext2::Ext2System;
use full::on_full;
use oracle::script::generate::{LONG_TARGET, Tree};
use patch::Optimised;
use patch::stack::Mode;
use rustix::time::ClockId;

/// Options with one thread, since a bug is armed for one thread.
fn options() -> Options {
    Options {
        ops: 1,
        max_failures: 1,
        shrunk: 0,
        threads: 1,
        states_per_point: 64,
        samples: 16,
        ..Options::default()
    }
}

/// A block is freed by one call, and filled for another file by the next before the first is
/// stored.
fn reuse() -> String {
    let setup = "create f 644\nwrite f 0 3000 1\ncreate g 644\n";
    on_full(
        &Ext2System::cramped(Mode::SoftUpdates),
        setup,
        "truncate f 0\nwrite g 0 3000 2\n",
    )
}

/// A block with data of an earlier file. In a block of zeros, a pointer that is stored too early
/// shows nothing.
const REFILL: &str =
    "create f 644\nwrite f 0 3000 1\nsync\nunlink f\nsync\ncreate g 644\nwrite g 0 3000 2\n";

/// An open file is freed only when it is closed. A new name of an inode in the same block of
/// inodes keeps the changes of that block from merging. The first inode is in another block.
const CLOSE: &str = "create e 644\ncreate f 644\nwrite f 0 3000 1\nsync\nopen 0 f\n\
                     create n 644\nunlink f\nclose 0\n";

/// Delivery in a mail store: the new name is made, then the old one is removed.
const DELIVER: &str = "mkdir A 755\ncreate f 644\nsync\nlink f A/g\nunlink f\n";

/// A file grows over bytes that a crash left past its end.
const REGROW: &str = "truncate cut 5000\nfsync cut\n";

/// A second name of a symbolic link. The fsync of another file stores the link's inode without its
/// block, since both inodes are in one block of inodes.
const SECOND_NAME: &str = "symlink TARGET A/n\nrename A/n B/n replace\ncreate m 644\nfsync m\n";

/// A directory whose first name is not stored yet.
const FRESH_DIRECTORY: &str = "mkdir A/n 755\nrename A/n B/n replace\n";

/// The last name of a file, in a directory whose name is not stored yet.
const FRESH_PARENT: &str = "mkdir A/n 755\nrename f A/n/f replace\n";

/// A directory is removed where it has just been moved to.
const REMOVE_MOVED: &str = "rename C/D B/D replace\nrmdir B/D\n";

/// A directory is removed when its last file has been moved out.
const REMOVE_OLD: &str = "rename A/g B/g replace\nrmdir A\n";

/// A directory is moved below one that has just been moved out of it. Neither is the parent of
/// the other: otherwise changes of a link count would order the two moves.
const MOVE_BELOW: &str = "mkdir C/D/E 755\nmkdir C/D/E/F 755\nsync\n\
                          rename C/D/E A/E replace\nrename C A/E/F/C replace\n";

/// A script on [`Tree::Names`], which is made durable first.
fn of_names(script: &str) -> String {
    let script = script.replace("TARGET", &"t".repeat(LONG_TARGET));
    format!("{}sync\n{script}", Tree::Names.setup())
}

/// Demands that a bug, armed by `arm`, is found on one script or on those of the options.
fn is_found(
    name: &str,
    system: &Ext2System,
    (script, options): (Option<&str>, &Options),
    arm: &dyn Fn(bool),
    fired: &dyn Fn() -> u64,
) {
    arm(true);
    let begin = used(ClockId::ThreadCPUTime);
    let failure = match script {
        Some(script) => explore_script(system, script, options).expect("it is a script"),
        None => {
            let outcome = explore(system, options, &|_| {}).expect("ext2 can be set up");
            outcome.failures.into_iter().next()
        }
    };
    assert!(fired() > 0, "{name} never took effect");
    let failure = failure.unwrap_or_else(|| panic!("{name} was not found"));
    let used = used(ClockId::ThreadCPUTime) - begin;
    println!("{name}: {failure} ({:.1} s)", used.as_secs_f64());
    assert!(used < BUDGET, "{name} took {used:?}");
    let id = failure
        .id
        .parse()
        .expect("ids are read as they are written");
    let again = revisit(system, &id).expect("the id is of this system");
    let again = again.unwrap_or_else(|| panic!("{name}: {id} does not replay"));
    assert_eq!(again.what, failure.what, "{name}: another finding");
    arm(false);
    let without = revisit(system, &id);
    assert!(
        !matches!(without, Ok(Some(_))),
        "{name}: {id} without the bug"
    );
}

type Work<'a> = (Option<&'a str>, &'a Options);

fn is_found_in_ext2(bug: ext2::seeded::Bug, system: Ext2System, work: Work<'_>) {
    use ext2::seeded::{arm, fired};
    let put = |on: bool| arm(on.then_some(bug));
    is_found(&format!("{bug:?}"), &system, work, &put, &fired);
}

fn is_found_in_patch(bug: patch::seeded::Bug, system: Ext2System, work: Work<'_>) {
    use patch::seeded::{arm, fired};
    let put = |on: bool| arm(on.then_some(bug));
    is_found(&format!("{bug:?}"), &system, work, &put, &fired);
}

fn is_found_in_blockfs(bug: blockfs::seeded::Bug, system: Ext2System, work: Work<'_>) {
    use blockfs::seeded::{arm, fired};
    let put = |on: bool| arm(on.then_some(bug));
    is_found(&format!("{bug:?}"), &system, work, &put, &fired);
}

/// Finds a bug of `blockfs`. A bug without a line does not compile.
fn find_in_blockfs(bug: blockfs::seeded::Bug) {
    use blockfs::seeded::Bug;
    let soft = Ext2System::new(Mode::SoftUpdates);
    let with_cut_file = Ext2System::with_cut_file;
    let on_names = |script: &str| (soft.optimised(Optimised::None), Some(of_names(script)));
    let (system, script) = match bug {
        Bug::NameBeforeInode | Bug::OldNameFirst => (soft, None),
        Bug::ReuseBeforeNullify => (Ext2System::cramped(Mode::SoftUpdates), Some(reuse())),
        Bug::PointBeforeFill => (soft, Some(REFILL.into())),
        Bug::EmptyBeforeUnlink => (soft, Some(CLOSE.into())),
        Bug::UnlinkBeforeLink => (soft, Some(DELIVER.into())),
        Bug::ForgetClearedTail => (with_cut_file(Mode::JournalMetadata), Some(REGROW.into())),
        Bug::GrowBeforeClear => (with_cut_file(Mode::SoftUpdates), Some(REGROW.into())),
        Bug::SecondNameBeforeInode => on_names(SECOND_NAME),
        Bug::NamesAtOnce => on_names(FRESH_DIRECTORY),
        Bug::UnlinkBeforePath => on_names(FRESH_PARENT),
        Bug::RemoveBeforeOldName => on_names(REMOVE_MOVED),
        Bug::DirectoryBeforeContents => on_names(REMOVE_OLD),
        Bug::RingOfNames => on_names(MOVE_BELOW),
        Bug::FsyncWithoutName => (soft, Some("create n 644\nfsync n\n".into())),
        Bug::FsyncWithoutPath => (
            soft,
            Some("mkdir n 755\ncreate n/m 644\nfsync n/m\n".into()),
        ),
        Bug::FdatasyncWithoutSize => {
            return classes::fdatasync_of_a_write(bug, &["truncate f 30001"]);
        }
        Bug::FdatasyncWithoutData => {
            let changes = ["write f 0 8 2", "write f 5000 8 2", "write f 20000 8 2"];
            return classes::fdatasync_of_a_write(bug, &changes);
        }
        Bug::ClearedCountsAsSynced => return classes::three_calls_on_one_file(bug),
        Bug::GrowOverLeft => return classes::calls_after_a_recovery(bug),
        Bug::MountUnflushed => return classes::a_kill_and_then_a_power_cut(bug),
    };
    is_found_in_blockfs(bug, system, (script.as_deref(), &options()));
}

/// Finds a bug of ext2. A bug without a line does not compile.
fn find_in_ext2(bug: ext2::seeded::Bug) {
    use ext2::seeded::Bug;
    match bug {
        Bug::IndirectNotCleared => classes::free_blocks_that_are_not_zero(bug),
        Bug::InodeNotCleared => classes::free_inodes_that_are_not_zero(bug),
        Bug::IndirectBeforeReuse => {
            classes::freed_blocks_that_point_at_once(bug, "truncate f 0\nwrite g 13000 100 2\n");
        }
        Bug::DirectoryBeforeReuse => {
            let rest = "truncate f 0\nmkdir A 755\ncreate A/n 644\n";
            classes::freed_blocks_that_point_at_once(bug, rest);
        }
        Bug::GrowBeforeFill => {
            classes::directories_of_several_blocks(bug);
            classes::a_block_past_the_end_of_a_directory(bug);
        }
        Bug::SharerForgotten => classes::attributes_that_two_inodes_share(bug),
        Bug::PointBeforeBit => classes::blocks_that_leave_in_any_order(bug),
        Bug::SameGeneration => classes::generations_of_inodes(bug),
        Bug::NameTwice => classes::a_name_that_is_made_again(bug),
        Bug::HalfTime => classes::times_that_wait(bug),
        Bug::GenerationsRestart => classes::generations_across_a_crash(bug),
    }
}

/// Finds a bug of the patch graph or the journal. A bug without a line does not compile.
fn find_in_patch(bug: patch::seeded::Bug) {
    use patch::seeded::Bug;
    let mode = match bug {
        Bug::LoseRollback | Bug::HardInCycle => Mode::SoftUpdates,
        Bug::CommitWithoutBody | Bug::ReplayUncommitted => Mode::Journal,
        Bug::DataAfterCommit => Mode::JournalOrdered,
        Bug::NoRevoke => return classes::blocks_that_must_be_revoked(bug),
        Bug::ForgetEmptied => return classes::blocks_whose_freeing_is_not_committed(bug),
        Bug::TailBeforeHome => return classes::a_log_that_wraps_around(bug),
        Bug::LoseEscape => return classes::data_that_begin_as_a_block_of_the_log(bug),
        Bug::GroupReleasedEarly => {
            classes::barriers(bug);
            let script = classes::two_groups("write f 0 2000 3\n", "write g 0 2000 4\n");
            let modes = [Mode::Async, Mode::SoftUpdates, Mode::JournalOrdered];
            return classes::groups(bug, &script, &modes);
        }
        Bug::GroupPartlyDurable => {
            let first = "write g 0 1000 3\nfsync g\nwrite f 0 2000 3\n";
            let script = classes::two_groups(first, "write g 1000 1000 4\n");
            let modes = [Mode::Async, Mode::SoftUpdates, Mode::JournalMetadata];
            return classes::groups(bug, &script, &modes);
        }
        Bug::GroupSyncedAlone => {
            let script = classes::two_groups("create n 644\n", "pgsync b\ncreate m 644\n");
            let modes = [
                Mode::Async,
                Mode::SoftUpdates,
                Mode::JournalOrdered,
                Mode::Journal,
            ];
            return classes::groups(bug, &script, &modes);
        }
        Bug::GroupLostByData => {
            let script = classes::two_groups("write f 0 2000 3\n", "write g 0 2000 4\n");
            let modes = [Mode::JournalMetadata, Mode::JournalOrdered];
            return classes::groups(bug, &script, &modes);
        }
        Bug::GroupBeforeData => {
            // The fsync commits the transaction and writes no data of `f`.
            let script = classes::two_groups("write f 0 2000 3\n", "create n 644\nfsync n\n");
            return classes::groups(bug, &script, &[Mode::JournalMetadata]);
        }
        Bug::GroupLostByAsync => {
            let script = classes::two_groups("create n 644\nwrite n 0 2000 3\n", "unlink f\n");
            return classes::groups(bug, &script, &[Mode::Async]);
        }
    };
    is_found_in_patch(bug, Ext2System::new(mode), (None, &options()));
}

#[test]
fn every_bug_of_blockfs_is_found() {
    blockfs::seeded::Bug::ALL
        .iter()
        .copied()
        .for_each(find_in_blockfs);
}

#[test]
fn every_bug_of_ext2_is_found() {
    ext2::seeded::Bug::ALL
        .iter()
        .copied()
        .for_each(find_in_ext2);
}

#[test]
fn every_bug_of_the_graph_and_the_journal_is_found() {
    patch::seeded::Bug::ALL
        .iter()
        .copied()
        .for_each(find_in_patch);
}
