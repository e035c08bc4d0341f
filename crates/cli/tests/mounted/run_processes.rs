//! Programs under `selvedge run` that start children, get signals or change their user: the calls return
//! what they return on tmpfs, with a mount and without one.

use crate::fixture::{finish, selvedge, stderr, stdout};
use crate::run::library;
use crate::serve::{end, served, socket};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The parts of `processes.c`.
const PARTS: [&str; 12] = [
    "first_in_child",
    "beside_threads",
    "signals_at_exec",
    "signals_at_fork",
    "users",
    "on_other_stack",
    "locks",
    "locks_at_exec",
    "crossed_locks",
    "buffers",
    "limits",
    "sizes",
];

/// Runs parts of `processes.c` on tmpfs and below the mount point.
fn compare(options: &[&str], parts: &[&str]) {
    let (place, server) = served(&[]);
    let program = place.path("processes");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../run/tests/programs/processes.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    finish(0, gcc.arg(source).arg("-o").arg(&program));
    let plain = place.path("plain");
    fs::create_dir(&plain).unwrap();
    for part in parts {
        let expected = Command::new(&program).arg(&plain).arg(part).output();
        let expected = expected.unwrap();
        let mut command = selvedge();
        command.args(["run", "--store", socket(&place), "--at", place.dir_str()]);
        command.arg("--library").arg(library()).args(options);
        command
            .arg("--")
            .arg(&program)
            .args([place.dir_str(), part]);
        let found = command.output().unwrap();
        assert_eq!(stderr(&found), "", "{part}");
        assert_eq!(stdout(&found), stdout(&expected), "{part}");
        assert!(
            expected.status.success() && found.status.success(),
            "{part}"
        );
    }
    end(&place, server);
}

#[test]
fn processes_of_a_run_see_what_they_see_on_tmpfs() {
    compare(&[], &PARTS);
}

#[test]
fn processes_of_a_run_without_a_mount_see_what_they_see_on_tmpfs() {
    compare(&["--no-mount"], &PARTS);
}

/// The kernel has the pipe, and the file of a descriptor in a message, on the mount.
#[test]
fn named_pipes_wait_and_messages_pass_descriptors() {
    compare(&[], &["pipes_with_names", "messages", "scripts"]);
}
