//! SQLite with the VFS whose syncs are barriers (`libselvedge-sqlite`).

use crate::fixture::{Fixture, finish, run, stdout, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HEADER: &str = "/usr/include/sqlite3ext.h";

/// The journal modes whose power cuts are tested.
const MODES: [&str; 3] = ["delete", "persist", "wal"];

/// The stacks whose power cuts are tested. Short transactions leave a part of the commits.
const STACKS: [&str; 2] = [
    "uhfs > ext2 > journal(full, commit=10ms) > cache(interval=10ms) > disk",
    "uhfs > ext2 > cache > disk",
];

/// A file of the project.
fn project(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name)
}

/// A Python whose SQLite loads extensions. That of a user may be built without them.
fn interpreter() -> Option<&'static str> {
    let loads = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
    let can_load = |python: &&str| {
        let output = Command::new(python).args(["-c", loads]).output();
        output.is_ok_and(|output| output.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(can_load)
}

/// The reason for which this machine cannot run these tests.
fn lacks() -> Option<&'static str> {
    if interpreter().is_none() {
        return Some("there is no python3 whose SQLite loads extensions");
    }
    (!Path::new(HEADER).exists()).then_some("the header sqlite3ext.h is not installed")
}

/// An image of ext2, and the extension beside it.
fn place() -> Fixture {
    place_of_blocks("1024")
}

fn place_of_blocks(size: &str) -> Fixture {
    let place = Fixture::new();
    let ext2 = [
        "--type=ext2",
        "--size=64M",
        "--journal",
        "--block-size",
        size,
    ];
    run(0, &[&["mkfs"], &ext2[..], &[place.image_str()]].concat());
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-O2",
    ]);
    gcc.args(["-fPIC", "-shared", "-pthread", "-I"]);
    gcc.arg(project("crates/pg/include"));
    for source in ["sqlite_order.c", "patchgroup.c"] {
        gcc.arg(project("crates/pg/c").join(source));
    }
    finish(0, gcc.arg("-o").arg(place.path("libselvedge-sqlite.so")));
    place
}

/// Runs a part of the script.
fn python(place: &Fixture, words: &[&str]) -> Output {
    let mut python = Command::new(interpreter().expect("a test asks lacks() first"));
    python.arg("-B");
    python.arg(project("crates/pg/tests/sqlite/order.py"));
    python.arg(place.path("libselvedge-sqlite.so"));
    finish(0, python.args(words))
}

/// A counter of the mount's cache.
fn counter(place: &Fixture, name: &str) -> u64 {
    let stats = stdout(&run(0, &["stats", place.dir_str()]));
    let mut lines = stats.lines();
    let line = lines.find(|line| line.starts_with(&format!("selvedge_cache_{name}{{")));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value
        .and_then(|value| value.parse().ok())
        .expect("a counter")
}

#[test]
fn commits_of_sqlite_do_not_wait_for_flushes() {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    let place = place();
    place.mount(&["-o", "mode=journal"]);
    let before = counter(&place, "flushes");
    python(&place, &["modes", place.dir_str()]);
    // 200 commits, each of one to four syncs. Each open and `selvedge_sync` flushes.
    let flushes = counter(&place, "flushes") - before;
    assert!(flushes < 100, "{flushes} flushes");
    place.umount();
    place.fsck();
}

/// Runs a part of the script in a mount.
fn in_a_mount(part: &str, blocks: &str) {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    let place = place_of_blocks(blocks);
    place.mount(&["-o", "mode=journal"]);
    python(&place, &[part, place.dir_str()]);
    place.umount();
    place.fsck();
}

#[test]
fn a_frame_of_a_wal_is_one_write() {
    in_a_mount("frames", "1024");
}

#[test]
fn writes_of_a_rollback_journal_are_joined() {
    in_a_mount("journal", "1024");
}

#[test]
fn commits_without_syncs_survive_a_killed_process() {
    in_a_mount("killed", "1024");
}

#[test]
fn a_sync_pragma_without_a_group_makes_commits_durable() {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    // SoupFS refuses groups, and without a sync it writes nothing for a minute.
    let place = place();
    run(0, &["mkfs", "-f", "--type=soupfs", place.image_str()]);
    let bound = ["-o", "bound=60"];
    let mut server = place.serve(&[&["--simulate-power-cut=seed=1"], &bound[..]].concat());
    python(&place, &["unsynced", place.dir_str()]);
    server.signal("USR1");
    wait_for("the power cut", || {
        place.path("image.power-cut.json").exists()
    });
    place.umount();
    server.wait();
    place.mount(&bound);
    python(&place, &["kept", place.dir_str()]);
    place.umount();
}

#[test]
fn a_full_disk_fails_one_commit_of_sqlite() {
    // SQLite allocates one byte in each 4 KiB of a WAL's shared memory, which is mapped. With smaller
    // blocks the rest of it has no space, and the unmount would report what was lost.
    in_a_mount("full", "4096");
}

#[test]
fn one_process_has_a_database_in_order() {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    let place = place();
    place.mount(&["-o", "mode=journal"]);
    python(&place, &["two", place.dir_str()]);
    place.umount();
}

#[test]
fn a_transaction_spans_databases() {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    let (place, plain) = (place(), tempfile::tempdir().unwrap());
    place.mount(&["-o", "mode=journal"]);
    let [one, other] = ["one", "other"].map(|name| place.dir().join(name));
    for dir in [&one, &other] {
        fs::create_dir(dir).unwrap();
    }
    let [one, other] = [&one, &other].map(|dir| dir.to_str().unwrap());
    python(&place, &["spanning", one, other]);
    // The second database is on a file system without groups.
    fs::remove_file(place.dir().join("one/part.db")).unwrap();
    python(&place, &["spanning", one, plain.path().to_str().unwrap()]);
    place.umount();
}

#[test]
fn syncs_outside_of_a_mount_stay_syncs() {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    let (place, plain) = (place(), tempfile::tempdir().unwrap());
    python(&place, &["elsewhere", plain.path().to_str().unwrap()]);
}

#[test]
fn a_power_cut_leaves_a_sound_database_without_gaps() {
    if let Some(reason) = lacks() {
        return skip::test(reason);
    }
    for stack in STACKS {
        for (number, journal) in MODES.into_iter().enumerate() {
            let place = place();
            let name = place.dir().join("numbers.db");
            let database = name.to_str().unwrap();
            let calls = 2000 + 97 * number;
            let cut = format!("--simulate-power-cut=after-calls={calls},seed={number}");
            place.mount(&[&cut, "--stack", stack]);
            python(&place, &["fill", database, journal]);
            place.umount();
            place.mount(&["--stack", stack]);
            python(&place, &["check", database, journal]);
            place.umount();
            // Soft updates leave blocks that are marked used and belong to no file.
            if stack.contains("journal") {
                place.fsck();
            }
        }
    }
}
