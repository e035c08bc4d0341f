//! The programs in `examples/crash`, recorded by strace and explored on all models and on SoupFS.
//!
//! The table in `examples/crash/README.md` states the models on which each program fails. A
//! program that is right fails on none. Those with SQLite run on the models only: they have many more
//! states, and each takes an interpreter of its own.

use crash::observe::Observed;
use runs::checker::{Checker, CheckerKind};
use runs::explore::{Explorer, Options, Report, Subject};
use runs::model::Model;
use runs::{Call, Run, strace};
use soupfs::{Mode, SoupSystem};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/crash")
}

/// Whether this machine traces and has the languages of the examples.
#[track_caller]
fn can_run() -> bool {
    let runs = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
    let dir = tempfile::tempdir().unwrap();
    if !runs(&mut strace::strace(
        &["true".into()],
        &dir.path().join("trace"),
    )) {
        skip::test("strace is missing, or ptrace is not allowed");
        return false;
    }
    if !runs(Command::new("python3").args(["-c", "import sqlite3"])) {
        skip::test("python3 with sqlite3 is missing");
        return false;
    }
    true
}

/// The path with the system's own programs first: a version manager would start many more.
fn path() -> String {
    format!(
        "/usr/bin:/bin:{}",
        std::env::var("PATH").unwrap_or_default()
    )
}

fn record(program: &Path) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let command = [program.into(), root.clone().into()];
    let prepare = &mut |strace: &mut Command| {
        strace
            .env("PATH", path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
    };
    let recorded = strace::record_with(&command, &root, &dir.path().join("run"), prepare);
    let (run, status) = recorded.unwrap();
    assert!(status.success(), "{}: {status}", program.display());
    let unseen = &run.header.unseen;
    assert!(unseen.is_empty(), "{}: {unseen:?}", program.display());
    run
}

/// SoupFS, with room for a run.
fn soupfs(run: &Run) -> SoupSystem {
    let is_new = |call: &Call| matches!(call, Call::Make { .. });
    let inodes = run.entries.iter().filter(|entry| is_new(&entry.call));
    SoupSystem::with_room(Mode::InPlace, run.data.len() as u64, inodes.count() as u64)
}

const SOUPFS: &str = "soupfs-in-place";

/// Whether an example is explored on SoupFS too.
fn is_on_soupfs(example: &str) -> bool {
    !example.starts_with("sqlite")
}

fn explore(run: &Run, check: &Path, scratch: &Path, on_soupfs: bool) -> Report {
    let check = check.canonicalize().unwrap();
    let options = Options {
        checker: Checker {
            kind: CheckerKind::Command(format!("PATH='{}' '{}'", path(), check.display())),
            timeout: Duration::from_secs(30),
            memory_bytes: 1 << 30,
        },
        limit: 100,
        jobs: 2,
        seed: 1,
        max_failures: 1,
        order: false,
        scratch: scratch.to_owned(),
    };
    let system = soupfs(run);
    let engine = Subject::Engine(SOUPFS, Observed::Memory(&system));
    let models = Model::ALL.into_iter().map(Subject::Model);
    let subjects: Vec<_> = models.chain(on_soupfs.then_some(engine)).collect();
    Explorer::new(run, &options)
        .explore(&subjects, &|_, _| {})
        .unwrap()
}

/// The models on which a program fails.
fn failing(example: &str, program: &str) -> BTreeSet<String> {
    let dir = examples().join(example);
    let scratch = tempfile::tempdir().unwrap();
    let run = record(&dir.join(program));
    let report = explore(
        &run,
        &dir.join("check.sh"),
        scratch.path(),
        is_on_soupfs(example),
    );
    for failure in &report.failures {
        eprintln!(
            "{example}/{program}: {}",
            serde_json::to_string(failure).unwrap()
        );
    }
    for model in &report.models {
        assert_eq!(model.refused, None, "{example}/{program}");
        eprintln!(
            "{example}/{program}: {}",
            serde_json::to_string(model).unwrap()
        );
    }
    let failed = report.models.iter().filter(|model| model.failed > 0);
    failed.map(|model| model.model.clone()).collect()
}

/// The rows of the table: the example, and the models on which `workload` fails.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(examples().join("README.md")).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| [")?.split_once(']'));
    rows.map(|(example, rest)| {
        let last = rest
            .trim_end_matches([' ', '|'])
            .rsplit('|')
            .next()
            .unwrap();
        let models = last.split('`').skip(1).step_by(2).map(str::to_owned);
        (example.to_owned(), models.collect())
    })
    .collect()
}

#[test]
fn the_table_lists_every_example() {
    let listed: BTreeSet<String> = table().into_iter().map(|(example, _)| example).collect();
    let there = fs::read_dir(examples())
        .unwrap()
        .map(|entry| entry.unwrap());
    let there = there.filter(|entry| entry.path().is_dir());
    let there: BTreeSet<String> = there
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn known_vulnerabilities_fail_on_the_models_in_the_table() {
    if !can_run() {
        return;
    }
    for (example, mut expected) in table() {
        if !is_on_soupfs(&example) {
            expected.remove(SOUPFS);
        }
        assert_eq!(failing(&example, "workload"), expected, "{example}");
    }
}

#[test]
fn programs_without_the_fault_fail_on_no_model() {
    if !can_run() {
        return;
    }
    for (example, _) in table() {
        if examples().join(&example).join("fixed").exists() {
            assert_eq!(failing(&example, "fixed"), BTreeSet::new(), "{example}");
        }
    }
}
