//! The explorer of crash states from the command line.

use crate::fixture::{Fixture, run, stderr, stdout};
use oracle::script::generate::Tree;
use std::fs;

#[test]
fn a_stopped_crash_test_reports_its_work() {
    let args = ["crash", "test", "--ops", "2", "--time-limit", "0", "--json"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&run(0, &args))).unwrap();
    assert_eq!(json["complete"], false);
    let parts = json["enumerated"].as_array().unwrap();
    let taken: Option<u64> = parts.iter().map(|part| part["taken"].as_u64()).sum();
    assert_eq!(taken, json["workloads"].as_u64());
}

#[test]
fn crash_test_reports_in_json() {
    let json = run(
        0,
        &["crash", "test", "--ops", "1", "--json", "--model", "lines"],
    );
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    for key in ["workloads", "states_explored", "states_distinct"] {
        assert!(json[key].as_u64().is_some_and(|n| n > 0), "{key}");
    }
    assert_eq!(json["violations"], 0);
    let singles = [Tree::Small, Tree::Crowded].map(|tree| tree.count(1));
    assert_eq!(json["workloads"], singles.iter().sum::<u64>());
    assert_eq!(json["complete"], true);
    assert!(json["seconds"].is_f64());
    let unknown = run(1, &["crash", "replay", "other:words:e1.0:0:live"]);
    assert!(
        stderr(&unknown).contains("system other"),
        "{}",
        stderr(&unknown)
    );
    run(2, &["crash", "replay", "nonsense"]);
    let unknown = stderr(&run(2, &["crash", "test", "--type", "model"]));
    assert!(
        unknown.contains("'model'") && unknown.contains("use bpfs, soupfs, pxfs, ext2, memory"),
        "{unknown}"
    );
}

#[test]
fn crash_test_explores_a_script_of_the_users() {
    let place = Fixture::new();
    let script = place.path("script");
    fs::write(&script, "mkdir d 755\ncreate d/f 644 # a file\nfsync d/f\n").unwrap();
    let script = script.to_str().unwrap();
    for file_system in ["bpfs", "soupfs", "ext2"] {
        let args = [
            "crash",
            "test",
            "-t",
            file_system,
            "--json",
            "--script",
            script,
        ];
        let json: serde_json::Value = serde_json::from_str(&stdout(&run(0, &args))).unwrap();
        assert_eq!(json["ops"], 0, "{file_system}");
        assert_eq!(json["violations"], 0, "{file_system}");
        assert!(json["states_explored"].as_u64() > Some(0), "{file_system}");
    }
    fs::write(script, "mkdir d 755\n\ncreate f\n").unwrap();
    let wrong = stderr(&run(1, &["crash", "test", "--script", script]));
    let expected = "line 3: a word is missing; the form is: create PATH MODE";
    assert!(
        wrong.contains(script) && wrong.contains(expected),
        "{wrong}"
    );
    let help = stdout(&run(0, &["crash", "test", "--help"]));
    assert!(help.contains("write PATH OFFSET LENGTH PATTERN"), "{help}");
}

#[test]
fn crash_test_explores_durable_memory() {
    let args = [
        "crash",
        "test",
        "-t",
        "memory",
        "--program",
        "logs-torn-bit",
        "--json",
    ];
    let json: serde_json::Value = serde_json::from_str(&stdout(&run(0, &args))).unwrap();
    assert_eq!(json["system"], "memory");
    assert_eq!(
        (&json["workloads"], &json["violations"]),
        (&1.into(), &0.into())
    );
    assert!(json["states_explored"].as_u64() > json["points"].as_u64());
    let replay = |status, id: &str| run(status, &["crash", "replay", id]);
    let fine = replay(0, "memory-logs-torn-bit:words:=:0:in:1");
    assert!(stdout(&fine).contains("nothing is wrong there any more"));
    // Three marks are not set by the first event.
    replay(1, "memory-logs-torn-bit:words:=:3:in:1");
    run(
        2,
        &[
            "crash",
            "test",
            "-t",
            "memory",
            "--program",
            "no-such-program",
        ],
    );
}

#[test]
fn a_drawing_labels_blocks_by_the_paths_of_their_files() {
    let place = Fixture::new();
    let script = place.path("script");
    let calls = "mkdir d 755\ncreate d/f 644\nwrite d/f 0 5000 1\n";
    fs::write(&script, calls).unwrap();
    let script = script.to_str().unwrap();
    let dot = stdout(&run(0, &["graph", "--format", "dot", "--script", script]));
    for label in [
        "directory /",
        "directory /d",
        "file /d/f block 0",
        "file /d/f block 1",
    ] {
        assert!(dot.contains(&format!(": {label}\"")), "{label}: {dot}");
    }
}
