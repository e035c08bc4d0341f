//! Seeded bugs of ext2 and of the crates below it. Each takes effect, is found within a minute of
//! CPU time, and replays by its id. Nothing is found without it.

mod budget;
mod classes;
#[path = "../ext2/full.rs"]
mod full;
#[path = "../ext2/wrap.rs"]
mod wrap;

use budget::{BUDGET, used};
use crash::Options;
use crash::block::{explore, explore_script, replay};
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
    let again = replay(system, &id).expect("the id is of this system");
    let again = again.unwrap_or_else(|| panic!("{name}: {id} does not replay"));
    assert_eq!(again.what, failure.what, "{name}: another finding");
    arm(false);
    let without = replay(system, &id);
    assert!(
        !matches!(without, Ok(Some(_))),
        "{name}: {id} without the bug"
    );
}

#[test]
fn bugs_of_blockfs() {
    use blockfs::seeded::{Bug, arm, fired};
    let elsewhere = |bug: &&Bug| !classes::BLOCKFS.contains(*bug);
    for &bug in Bug::ALL.iter().filter(elsewhere) {
        let system = match bug {
            Bug::ReuseBeforeNullify => Ext2System::cramped(Mode::SoftUpdates),
            Bug::ForgetClearedTail => Ext2System::with_cut_file(Mode::JournalMetadata),
            Bug::GrowBeforeClear => Ext2System::with_cut_file(Mode::SoftUpdates),
            _ => Ext2System::new(Mode::SoftUpdates),
        };
        let reuse = reuse();
        let names = match bug {
            Bug::SecondNameBeforeInode => SECOND_NAME,
            Bug::NamesAtOnce => FRESH_DIRECTORY,
            Bug::UnlinkBeforePath => FRESH_PARENT,
            Bug::RemoveBeforeOldName => REMOVE_MOVED,
            Bug::DirectoryBeforeContents => REMOVE_OLD,
            Bug::RingOfNames => MOVE_BELOW,
            _ => "",
        };
        let names = (!names.is_empty()).then(|| of_names(names));
        let system = match names {
            Some(_) => system.optimised(Optimised::None),
            None => system,
        };
        let script = match bug {
            Bug::ReuseBeforeNullify => Some(&*reuse),
            Bug::PointBeforeFill => Some(REFILL),
            Bug::EmptyBeforeUnlink => Some(CLOSE),
            Bug::UnlinkBeforeLink => Some(DELIVER),
            Bug::ForgetClearedTail | Bug::GrowBeforeClear => Some(REGROW),
            _ => names.as_deref(),
        };
        let put = |on: bool| arm(on.then_some(bug));
        let work = (script, &options());
        is_found(&format!("{bug:?}"), &system, work, &put, &fired);
    }
}

#[test]
fn bugs_of_the_graph_and_the_journal() {
    use patch::seeded::{Bug, arm, fired};
    for (bug, mode) in [
        (Bug::LoseRollback, Mode::SoftUpdates),
        (Bug::HardInCycle, Mode::SoftUpdates),
        (Bug::CommitWithoutBody, Mode::Journal),
        (Bug::ReplayUncommitted, Mode::Journal),
        (Bug::DataAfterCommit, Mode::JournalOrdered),
    ] {
        let put = |on: bool| arm(on.then_some(bug));
        let system = Ext2System::new(mode);
        let work = (None, &options());
        is_found(&format!("{bug:?}"), &system, work, &put, &fired);
    }
}
