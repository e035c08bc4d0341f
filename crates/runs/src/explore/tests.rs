use super::*;
use crate::checker::CheckerKind;
use crate::model::tests::run;
use std::time::Duration;

fn options(check: &str) -> Options {
    Options {
        checker: Checker {
            kind: CheckerKind::Command(check.to_owned()),
            timeout: Duration::from_secs(10),
            memory_bytes: 1 << 30,
        },
        limit: 1000,
        jobs: 2,
        seed: 1,
        max_failures: 10,
        order: false,
        scratch: std::env::temp_dir(),
    }
}

fn explored(script: &str, check: &str, models: &[Model]) -> Result<Report, String> {
    let run = run(script);
    let options = options(check);
    let subjects: Vec<Subject<'_>> = models.iter().map(|m| Subject::Model(*m)).collect();
    Explorer::new(&run, &options).explore(&subjects, &|_, _| {})
}

/// A file is replaced without a synchronisation of the new contents.
const REPLACE: &str = "create f\nwrite f old\n=\ncreate t\nwrite t new\nrename t f\n";
const OLD_OR_NEW: &str = "grep -qE '^(old|new)$' {dir}/f || { echo f is damaged; exit 1; }";

#[test]
fn a_failure_names_the_lost_call_and_the_one_that_is_there() {
    let report = explored(REPLACE, OLD_OR_NEW, &Model::ALL).unwrap();
    let failed: Vec<&str> = report
        .models
        .iter()
        .filter(|model| model.failed > 0)
        .map(|model| &*model.model)
        .collect();
    assert_eq!(failed, ["posix", "ext4-ordered", "xfs", "btrfs"]);
    let failure = report.failures.iter().find(|f| f.model == "xfs").unwrap();
    assert_eq!(failure.message, "f is damaged");
    let lost: Vec<&str> = failure.lost.iter().map(|call| &*call.text).collect();
    assert_eq!(lost, ["write t new"]);
    assert_eq!(failure.after.as_ref().unwrap().text, "rename t f");
    assert_eq!(failure.differences[0].to_string(), "f has 0 bytes, not 3");
    assert!(report.models.iter().all(|model| model.complete));

    let run = run(REPLACE);
    let options = options(OLD_OR_NEW);
    let explorer = Explorer::new(&run, &options);
    let state = explorer
        .state(&failure.id, &[Subject::Model(Model::Xfs)])
        .unwrap();
    let tree = state.tree.unwrap();
    let file = tree.get(tree.resolve(b"f").unwrap()).unwrap();
    assert_eq!(file.contents.size(), 0);
    assert!(
        explorer
            .state("xfs/99/none", &[Subject::Model(Model::Xfs)])
            .is_err()
    );
}

#[test]
fn a_synchronised_replacement_is_safe_everywhere() {
    let script = REPLACE.replace("rename", "fsync t\nrename");
    let report = explored(&script, OLD_OR_NEW, &Model::ALL).unwrap();
    assert!(report.failures.is_empty(), "{:?}", report.failures);
}

#[test]
fn promises_to_the_outside_are_checked() {
    let script = "create f\nwrite f a\nfsync f\nsay stored\n";
    let check =
        "if grep -q stored $SELVEDGE_OUTPUT; then test -e {dir}/f || { echo lost; exit 1; }; fi";
    let report = explored(script, check, &Model::ALL).unwrap();
    let failed: Vec<&str> = report.failures.iter().map(|f| &*f.model).collect();
    assert_eq!(failed, ["posix"]);
    let early = "create f\nwrite f a\nsay stored\nfsync f\n";
    let report = explored(early, check, &[Model::Ext4Ordered, Model::AtReturn]).unwrap();
    let failed: Vec<&str> = report.failures.iter().map(|f| &*f.model).collect();
    assert_eq!(failed, ["ext4-ordered"]);
}

#[test]
fn a_failure_is_shrunk_to_one_with_the_same_message() {
    // A state without the rename fails as well, in another way.
    let script = format!("{REPLACE}say stored\n");
    let check = "test -s {dir}/f || { echo empty; exit 1; }; \
                 grep -q stored $SELVEDGE_OUTPUT && grep -q old {dir}/f && { echo lost; exit 1; }; \
                 true";
    let report = explored(&script, check, &[Model::Xfs]).unwrap();
    let mut messages: Vec<&str> = report.failures.iter().map(|f| &*f.message).collect();
    messages.sort_unstable();
    assert_eq!(messages, ["empty", "lost"]);
}

#[test]
fn a_checker_that_refuses_the_end_is_an_error() {
    let error = explored(REPLACE, "echo never; exit 1 #", &[Model::Posix]).unwrap_err();
    assert!(error.ends_with("without a crash: never"), "{error}");
}

#[test]
fn a_limit_is_reported_as_incomplete() {
    let mut script = String::new();
    for n in 0..30 {
        script.push_str(&format!("create f{n}\nwrite f{n} text\n"));
    }
    let run = run(&script);
    let options = Options {
        limit: 20,
        ..options("true")
    };
    let subjects = [Subject::Model(Model::Posix)];
    let report = Explorer::new(&run, &options)
        .explore(&subjects, &|_, _| {})
        .unwrap();
    assert_eq!(
        (report.models[0].judged, report.models[0].complete),
        (20, false)
    );
}

#[test]
fn a_limit_leaves_reordered_states_in_the_sample() {
    let mut script = REPLACE.to_owned();
    for n in 0..400 {
        script.push_str(&format!("create f{n}\nwrite f{n} text\n"));
    }
    let run = run(&script);
    let options = Options {
        limit: 100,
        ..options(OLD_OR_NEW)
    };
    let subjects = [Subject::Model(Model::Xfs)];
    let report = Explorer::new(&run, &options)
        .explore(&subjects, &|_, _| {})
        .unwrap();
    assert!(report.models[0].failed > 0);
}
