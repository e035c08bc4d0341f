//! Programs of users under the crash explorer: record, explore, show, mount.

use crate::fixture::{Fixture, finish, run, selvedge, stderr, stdout};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of `examples/crash`.
fn example(name: &str, file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/crash");
    root.join(name).join(file).display().to_string()
}

/// A recording of an example, and its checker.
struct Recorded {
    place: Fixture,
    check: String,
}

impl Recorded {
    fn new(name: &str, program: &str, options: &[&str]) -> Self {
        let place = Fixture::new();
        let out = place.path("run").display().to_string();
        let begin = ["crash", "record", "--out", &out];
        let program = example(name, program);
        let command = ["--", program.as_str(), "{dir}"];
        run(0, &[&begin[..], options, &command].concat());
        Self {
            place,
            check: format!("{} {{dir}}", example(name, "check.sh")),
        }
    }

    fn run(&self) -> PathBuf {
        self.place.path("run")
    }

    /// Explores, and returns the report.
    fn explore(&self, code: i32, options: &[&str]) -> Value {
        let mut command = selvedge();
        command.args(["crash", "explore", "--json", "--limit", "200", "--check"]);
        command.arg(&self.check).args(options).arg(self.run());
        serde_json::from_str(&stdout(&finish(code, &mut command))).unwrap()
    }
}

/// The models under which a report has failures.
fn failed(report: &Value) -> Vec<&str> {
    let models = report["models"].as_array().unwrap().iter();
    let failed = models.filter(|model| model["failed"].as_u64() > Some(0));
    failed
        .map(|model| model["model"].as_str().unwrap())
        .collect()
}

#[test]
fn a_replacement_that_is_not_synced_fails_where_data_follow_names() {
    let recorded = Recorded::new("replace-by-rename", "workload", &[]);
    let report = recorded.explore(1, &[]);
    let expected = [
        "posix",
        "ext4-ordered",
        "xfs",
        "btrfs",
        "soupfs-in-place",
        "soupfs-atomic",
        "ext2-async",
    ];
    assert_eq!(failed(&report), expected);
    let models = report["models"].as_array().unwrap();
    assert!(
        models.iter().all(|model| model["refused"].is_null()),
        "{models:?}"
    );
    // The blocks that an engine lost have calls as their explanation.
    let failures = report["failures"].as_array().unwrap().iter();
    let of_engine = failures.filter(|failure| failure["model"] == "ext2-async");
    let of_contents = of_engine.filter(|f| f["message"].as_str().unwrap().contains("neither"));
    for failure in of_contents {
        let mut lost = failure["lost"].as_array().unwrap().iter();
        let is_write = |call: &Value| call["text"].as_str().unwrap().starts_with("write(");
        assert!(lost.any(is_write), "{failure}");
    }
    let fixed = Recorded::new("replace-by-rename", "fixed", &[]);
    assert_eq!(failed(&fixed.explore(1, &[])), ["ext2-async"]);
}

#[test]
fn a_state_can_be_mounted_and_changed() {
    const MODELS: [&str; 3] = ["xfs", "soupfs-in-place", "ext2-async"];
    let recorded = Recorded::new("replace-by-rename", "workload", &[]);
    let report = recorded.explore(1, &MODELS.map(|model| ["--model", model]).concat());
    let run_dir = recorded.run().display().to_string();
    for model in MODELS {
        let failures = report["failures"].as_array().unwrap();
        let of_model = failures.iter().filter(|failure| failure["model"] == model);
        let readable = of_model.filter(|f| !f["differences"].as_array().unwrap().is_empty());
        for failure in readable.take(1) {
            let id = failure["id"].as_str().unwrap();
            let dir = recorded.place.dir_str();
            run(0, &["crash", "mount", &run_dir, "--state", id, dir]);
            assert!(recorded.place.is_mounted());
            let path = recorded.place.dir().join("written");
            fs::write(path, "by the user").unwrap();
            let output = recorded.place.path("output");
            fs::write(&output, "installed\n").unwrap();
            let mut judge = std::process::Command::new("sh");
            judge.args(["-c", &recorded.check.replace("{dir}", dir)]);
            let judged = finish(1, judge.env("SELVEDGE_OUTPUT", output));
            assert_eq!(stdout(&judged).trim(), failure["message"].as_str().unwrap());
            run(0, &["umount", dir]);
        }
    }
    let missing = ["crash", "mount", "-f", &run_dir, "--state", "xfs/0/9999"];
    let refused = run(32, &[&missing[..], &[recorded.place.dir_str()]].concat());
    assert!(stderr(&refused).contains("xfs"), "{}", stderr(&refused));
}

#[test]
fn a_run_shows_its_calls_and_output() {
    let place = Fixture::new();
    let out = place.path("run").display().to_string();
    let script = "mkdir d; echo one >d/f; mv d/f g; sync g; echo said; exit 7";
    let command = [
        "--type", "ext2", "--mode", "journal", "--", "sh", "-c", script,
    ];
    let output = run(
        7,
        &[&["crash", "record", "--out", &out], &command[..]].concat(),
    );
    assert_eq!(stdout(&output), "said\n");
    let shown = stdout(&run(0, &["crash", "show", &out]));
    for text in ["mkdir('d')", "rename('d/f', 'g')", "fsync('g')", "said"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let again = run(1, &["crash", "record", "--out", &out, "--", "true"]);
    assert!(stderr(&again).contains("not empty"), "{}", stderr(&again));
}

/// Children that go on after the program have their output in the run, too.
#[test]
fn output_is_in_the_run_where_it_was_written() {
    for _ in 0..5 {
        let place = Fixture::new();
        let out = place.path("run").display().to_string();
        let script = "echo one >f; (cd /; sleep 0.2; echo child) & echo early; sync f; echo late";
        let output = run(
            0,
            &["crash", "record", "--out", &out, "--", "sh", "-c", script],
        );
        assert_eq!(stdout(&output), "early\nlate\nchild\n");
        let shown = stdout(&run(0, &["crash", "show", &out]));
        let at = |text: &str| {
            shown
                .find(text)
                .unwrap_or_else(|| panic!("{text}: {shown}"))
        };
        let order = [
            "output 'early",
            "fsync('f')",
            "output 'late",
            "output 'child",
        ]
        .map(at);
        assert!(order.is_sorted(), "{shown}");
    }
}

#[test]
fn a_page_reports_failures_beside_the_timeline() {
    let recorded = Recorded::new("two-file-commit", "workload", &[]);
    let page = recorded.place.path("report.html");
    let report = recorded.explore(1, &["--html", page.to_str().unwrap(), "--model", "xfs"]);
    let page = fs::read_to_string(page).unwrap();
    let id = report["failures"][0]["id"].as_str().unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains(id));
}

#[test]
fn barriers_of_order_keep_an_earlier_file_whole() {
    let place = Fixture::new();
    let out = place.path("run").display().to_string();
    let script = "echo one >a; sync a; echo two >b";
    let command = ["--", "sh", "-c", script];
    run(
        0,
        &[&["crash", "record", "--out", &out], &command[..]].concat(),
    );
    let recorded = Recorded {
        place,
        check: "test ! -e {dir}/b || grep -q one {dir}/a || { echo lost; exit 1; }".into(),
    };
    let modes = [
        "softupdates",
        "journal-metadata",
        "journal-ordered",
        "journal",
    ];
    let modes = modes.map(|mode| format!("--model=ext2-{mode}"));
    let modes: Vec<&str> = modes.iter().map(String::as_str).collect();
    let report = recorded.explore(0, &[&["--order"], &modes[..]].concat());
    assert_eq!(failed(&report), [""; 0]);
    assert_eq!(report["models"].as_array().unwrap().len(), 4);
}

#[test]
fn faults_of_the_command_line_are_named() {
    let recorded = Recorded::new("replace-by-rename", "workload", &[]);
    let run_dir = recorded.run().display().to_string();
    let explore = |code, options: &[&str]| {
        let output = run(code, &[&["crash", "explore", &run_dir], options].concat());
        stderr(&output)
    };
    let error = explore(2, &["--check", "true", "--model", "reiser"]);
    assert!(error.contains("posix"), "{error}");
    let error = explore(1, &["--check", "echo bad; false #"]);
    assert!(error.contains("without a crash: bad"), "{error}");
    let error = stderr(&run(1, &["crash", "show", "/nonexistent"]));
    assert!(error.contains("/nonexistent/run.json"), "{error}");
}

#[test]
fn a_program_is_recorded_by_strace_on_any_file_system() {
    let has_strace = std::process::Command::new("strace")
        .arg("-V")
        .output()
        .is_ok();
    if !has_strace {
        return skip::test("strace is not installed");
    }
    let recorded = Recorded::new("replace-by-rename", "workload", &["--strace"]);
    let report = recorded.explore(1, &["--model", "xfs", "--model", "ext4-journal"]);
    assert_eq!(failed(&report), ["xfs"]);
    assert_eq!(report["unseen"], serde_json::json!([]));
}
