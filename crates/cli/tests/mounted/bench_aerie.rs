//! The benchmark of PXFS with its mount: figures for all targets, and nothing is left.

use crate::fixture::{selvedge, stderr};
use serde_json::Value;
use std::fs;
use std::process::Stdio;

const TARGETS: [&str; 7] = ["pxfs", "bpfs", "soupfs", "tmpfs", "ext4", "fuse", "run"];
/// Loop devices need root. The library of `selvedge run` is a package of its own.
const OPTIONAL: [&str; 2] = ["ext4", "run"];

#[test]
fn single_calls_have_figures_on_each_target() {
    let mut command = selvedge();
    command.args(["bench", "aerie", "--quick", "--json", "--part", "calls"]);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().unwrap();
    let scratch = format!("selvedge-workloads-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));

    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    for target in TARGETS {
        let mut some = rows.iter().filter(|row| row["target"] == target);
        let has_figures =
            some.any(|row| row["op"] == "open" && row["ns_median"].as_f64() > Some(0.0));
        let missing = rows
            .iter()
            .any(|row| row["target"] == target && row["unavailable"].is_string());
        assert!(
            has_figures != missing && (has_figures || OPTIONAL.contains(&target)),
            "{target}"
        );
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&scratch), "{mounts}");
    let mut left = fs::read_dir("/dev/shm").unwrap().flatten();
    assert!(!left.any(|entry| entry.file_name().to_string_lossy().starts_with(&scratch)));
}
