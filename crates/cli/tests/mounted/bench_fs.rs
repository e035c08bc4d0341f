//! The benchmark that mounts kernel file systems: that it measures all it should, and
//! leaves nothing behind.

use crate::fixture::{Server, selvedge, stderr, wait_for};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Whether the machine has what it takes; records what is missing.
fn can_run() -> bool {
    let there = |program: &str| Path::new("/usr/sbin").join(program).exists();
    let missing = match () {
        () if !Path::new("/dev/loop-control").exists() => "loop devices",
        () if !there("mkfs.ext4") || !there("losetup") || !there("blockdev") => {
            "mkfs.ext4, losetup or blockdev"
        }
        () if !Path::new("/usr/bin/python3").exists() => "python3",
        () => return true,
    };
    skip::test(&format!("no {missing} here"));
    false
}

/// A run on little work, with its file below `dir`.
fn tiny(dir: &TempDir, repeats: &str) -> Command {
    let mut command = selvedge();
    command.args(["bench", "fs", "--json", "--files", "45", "--sources", "1"]);
    command.args([
        "--mails",
        "20",
        "--max-bytes",
        "600",
        "--repeats",
        repeats,
        "--large-mib",
        "1",
        "--syncs",
        "5",
        "--dir",
    ]);
    command.arg(dir.path());
    command
}

/// Nothing may be left of the run with this process id.
fn assert_nothing_is_left(dir: &TempDir, pid: u32) {
    let scratch = format!("/dev/shm/selvedge-fs-{pid}-");
    wait_for("the end of mounts and loop devices", || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        !mounts.contains(&scratch) && !loop_devices().contains(dir.path().to_str().unwrap())
    });
    let mut left = fs::read_dir("/dev/shm").unwrap().flatten();
    assert!(!left.any(|e| e.path().to_str().unwrap().starts_with(&scratch)));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The files that loop devices are over.
fn loop_devices() -> String {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let file = |e: fs::DirEntry| fs::read_to_string(e.path().join("loop/backing_file")).ok();
    devices.filter_map(file).collect()
}

fn rows(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_target_is_measured_and_nothing_is_left() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let child = tiny(&dir, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let rows = rows(&child.wait_with_output().unwrap());
    // Seven workloads on ten targets on two devices, and on the floor, which has none.
    assert_eq!(rows.len(), 7 * (10 * 2 + 1));
    for row in &rows {
        let number = |name: &str| row[name].as_f64();
        assert!(number("seconds") > Some(0.0), "{row}");
        let target = row["target"].as_str().unwrap();
        if target == "FUSE floor" {
            assert_eq!((number("writes"), &row["backing"]), (None, &"none".into()));
            continue;
        }
        // All 45 files are in blocks of their own, somewhere.
        let least = if row["workload"] == "untar" {
            45.0
        } else {
            1.0
        };
        assert!(number("writes") >= Some(least), "{row}");
        assert!(number("flushes") >= Some(1.0), "{row}");
        let ours = target.starts_with("selvedge");
        assert_eq!(number("double_writes").is_some(), ours, "{row}");
        assert!(!ours || number("server_cpu_seconds").is_some(), "{row}");
    }
    assert_nothing_is_left(&dir, pid);
}

#[test]
fn an_interrupt_leaves_nothing() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for signal in ["INT", "KILL"] {
        let mut command = tiny(&dir, "1000");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = Server::from(command.spawn().unwrap());
        let mount = format!("/dev/shm/selvedge-fs-{}-", run.pid());
        wait_for("a mount", || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            mounts.contains(&mount)
        });
        run.signal(signal);
        let code = run.wait();
        if signal == "INT" {
            assert_eq!(code, Some(1));
            assert_nothing_is_left(&dir, run.pid());
        } else {
            // Its small directory in memory stays, as it must.
            wait_for("the end of mounts and loop devices", || {
                let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
                !mounts.contains(&mount) && !loop_devices().contains(dir.path().to_str().unwrap())
            });
            remove(&mount);
        }
    }
}

/// Removes all files with this prefix.
fn remove(prefix: &str) {
    let all = fs::read_dir("/dev/shm").unwrap().flatten();
    for entry in all.filter(|e| e.path().to_str().unwrap().starts_with(prefix)) {
        fs::remove_dir_all(entry.path()).unwrap();
    }
}
