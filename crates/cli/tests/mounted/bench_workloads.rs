//! The benchmark of workloads with mounts and ext4: rows for all targets, and nothing is left.

use crate::fixture::{selvedge, stderr};
use serde_json::Value;
use std::fs;
use std::process::Stdio;

const WORKLOADS: [&str; 5] = [
    "fileserver",
    "fileserver-1k",
    "webproxy",
    "varmail",
    "postmark",
];
const TARGETS: [&str; 4] = ["soupfs", "/dev/shm", "ext4", "soupfs, mounted"];

/// Figures, or the reason why there are none.
fn check_row(row: &Value, op: &str, target: &str) {
    assert_eq!((&row["op"], &row["target"]), (&op.into(), &target.into()));
    assert_eq!((&row["threads"], &row["flush_ns"]), (&1.into(), &0.into()));
    let figures = ["ns_median", "ns_p99", "ops_per_second"].map(|name| row[name].as_f64());
    match row["unavailable"].as_str() {
        None => assert!(figures.iter().all(|figure| *figure > Some(0.0)), "{row}"),
        // Loop devices need root. These tests need mounts anyway.
        Some(_) => assert!(target == "ext4" && figures == [None; 3], "{row}"),
    }
}

#[test]
fn workloads_have_figures_on_each_target() {
    let mut command = selvedge();
    command.args(["bench", "workloads", "--quick", "--json", "--mounts"]);
    command.args(["--type", "soupfs", "--threads", "1"]);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().unwrap();
    let scratch = format!("selvedge-workloads-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));

    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.len(), WORKLOADS.len() * TARGETS.len());
    let places = WORKLOADS
        .iter()
        .flat_map(|op| TARGETS.map(|target| (*op, target)));
    for (row, (op, target)) in rows.iter().zip(places) {
        check_row(row, op, target);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&scratch), "{mounts}");
    let mut left = fs::read_dir("/dev/shm").unwrap().flatten();
    assert!(!left.any(|entry| entry.file_name().to_string_lossy().starts_with(&scratch)));
}
