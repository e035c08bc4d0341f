//! The example in Rust keeps its data from run to run.

use std::process::Command;

/// Runs the program with one command. Its standard output.
fn office(directory: &std::path::Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_office"));
    let output = command.arg(directory).args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn names_leave_the_queue_in_order() {
    let place = tempfile::tempdir().unwrap();
    let memory = place.path().join("memory");
    office(&memory, &["add", "7", "Arachne"]);
    office(&memory, &["add", "3", "Penelope"]);
    assert_eq!(office(&memory, &["next"]), "7: Arachne\n");
    assert_eq!(office(&memory, &["next"]), "3: Penelope\n");
    assert_eq!(office(&memory, &["next"]), "nobody waits\n");
}
