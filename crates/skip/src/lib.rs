//! Records the tests that this machine cannot run.
//!
//! The test harness of Rust has two outcomes: a test that returns has passed. A test that
//! lacks a device, a program or a privilege therefore ends with
//! `return skip::test("needs root")`. The same call marks a part of a test that did not run.
//!
//! Guarantees:
//!
//! - Every skip is one line of the file that [`RECORD`] names, also if tests run in several
//!   threads and processes. `tools/skips` lists that file after `make test`.
//! - A skip that cannot be recorded fails the test.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

use std::backtrace::Backtrace;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::{env, thread};

/// The environment variable with the path of the file that lists the skipped tests.
pub const RECORD: &str = "SELVEDGE_SKIPS";

/// Records that the current test, or a part of it, cannot run for `reason`.
///
/// # Panics
/// If the file that [`RECORD`] names cannot be written.
#[track_caller]
pub fn test(reason: &str) {
    let record = env::var_os(RECORD);
    skipped(reason, record.as_ref().map(Path::new));
}

#[track_caller]
fn skipped(reason: &str, record: Option<&Path>) {
    let file = Location::caller().file();
    let thread = thread::current();
    // The harness gives the thread of a test the test's name. A harness with one thread does not.
    let name = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => called_test(&Backtrace::force_capture().to_string()),
    };
    eprintln!("skipped: {name} ({file}): {reason}");
    if let Some(record) = record
        && let Err(e) = append(record, &line(file, &name, reason))
    {
        panic!("cannot record a skipped test in {}: {e}", record.display());
    }
}

/// The function, without its crate, that the harness called: the outermost one in a backtrace that
/// belongs neither to the harness nor to the standard library.
fn called_test(backtrace: &str) -> String {
    let functions = backtrace.lines().filter_map(|line| {
        let (number, name) = line.trim().split_once(": ")?;
        number.parse::<u32>().ok().map(|_| name)
    });
    let is_of = |name: &str, crates: &[&str]| {
        let first = name.trim_start_matches('<').split("::").next();
        first.is_some_and(|first| crates.contains(&first))
    };
    let test = functions
        .take_while(|name| !is_of(name, &["test", "libtest_mimic"]))
        .filter(|name| !is_of(name, &["std", "core", "alloc"]))
        .last();
    let name = test.and_then(|name| name.split_once("::"));
    let name = name.map_or("main", |(_crate, name)| name);
    name.replace("::{{closure}}", "")
}

/// File, test and reason, separated by tabs.
fn line(file: &str, name: &str, reason: &str) -> String {
    let reason = reason.replace(['\n', '\t'], " ");
    format!("{file}\t{name}\t{reason}\n")
}

/// One write in append mode, so that concurrent lines do not mix.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn lines_of_several_threads_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("skips");
        thread::scope(|scope| {
            for n in 0..8 {
                let path = &path;
                let text = line("tests/a.rs", &format!("test_{n}"), "no\ndevice");
                scope.spawn(move || (0..50).for_each(|_| append(path, &text).unwrap()));
            }
        });
        let recorded = fs::read_to_string(&path).unwrap();
        for n in 0..8 {
            let expected = format!("tests/a.rs\ttest_{n}\tno device");
            let found = recorded.lines().filter(|line| **line == *expected);
            assert_eq!(found.count(), 50);
        }
        assert_eq!(recorded.lines().count(), 400);
    }

    /// Runs `tools/skips` on the tests that `recorded` names, with or without the rule that
    /// skips fail. Returns whether it succeeded, and its output.
    fn report(recorded: &str, allowed: &str, strict: bool) -> (bool, String) {
        let dir = tempfile::tempdir().unwrap();
        let [record, list] = ["skips", "allowed"].map(|name| dir.path().join(name));
        fs::write(&record, recorded).unwrap();
        fs::write(&list, allowed).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut command = Command::new(root.join("tools/skips"));
        command.args([&record, &list]).env_remove("SELVEDGE_CI");
        if strict {
            command.env("SELVEDGE_CI", "1");
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    #[test]
    fn skipped_tests_are_counted_and_named() {
        let twice = line("a.rs", "one", "no root").repeat(2) + &line("b.rs", "two", "no disk");
        let (passed, said) = report(&twice, "", false);
        assert!(passed, "{said}");
        assert!(said.contains("2 tests were skipped"), "{said}");
        assert!(said.contains("one (a.rs): no root"), "{said}");
        assert!(said.contains("two (b.rs): no disk"), "{said}");
        let (passed, said) = report("", "", false);
        assert!(passed && said.contains("no test was skipped"), "{said}");
    }

    #[test]
    fn a_skip_fails_where_the_machine_must_run_every_test() {
        let both = line("a.rs", "one", "no root") + &line("b.rs", "two", "no disk");
        let allowed = "# Tests that the build machines cannot run.\nb.rs two  they have none\n";
        let (passed, said) = report(&both, allowed, true);
        assert!(!passed, "{said}");
        assert!(said.contains("not allowed: one (a.rs): no root"), "{said}");
        assert!(!said.contains("not allowed: two"), "{said}");
        let (passed, said) = report(&line("b.rs", "two", "no disk"), allowed, true);
        assert!(passed, "{said}");
        // The file is part of the entry.
        let (passed, _) = report(&line("c.rs", "two", "no disk"), allowed, true);
        assert!(!passed);
    }

    /// Skips in a thread of this name, as the harness would run a test.
    fn skip_in(record: &Path) -> thread::Result<()> {
        thread::scope(|scope| {
            let test = thread::Builder::new().name("module::a_test".into());
            let skip = || skipped("no device", Some(record));
            test.spawn_scoped(scope, skip).unwrap().join()
        })
    }

    #[test]
    fn a_skip_is_recorded_with_the_file_and_the_name_of_its_test() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("skips");
        skip_in(&record).unwrap();
        let expected = line(file!(), "module::a_test", "no device");
        assert_eq!(fs::read_to_string(&record).unwrap(), expected);
    }

    /// Starts itself in a harness with one thread. There, the variable has the test skip.
    #[test]
    fn a_skip_on_the_harness_thread_has_the_name_of_its_test() {
        const IN_ONE_THREAD: &str = "SELVEDGE_SKIP_IN_ONE_THREAD";
        const NAME: &str = "tests::a_skip_on_the_harness_thread_has_the_name_of_its_test";
        if env::var_os(IN_ONE_THREAD).is_some() {
            return super::test("no device");
        }
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("skips");
        let mut harness = Command::new(env::current_exe().unwrap());
        harness.args(["--exact", "--test-threads=1", NAME]);
        harness.env(IN_ONE_THREAD, "1").env(RECORD, &record);
        assert!(harness.output().unwrap().status.success());
        let expected = line(file!(), NAME, "no device");
        assert_eq!(fs::read_to_string(&record).unwrap(), expected);
    }

    #[test]
    fn a_skip_that_cannot_be_recorded_fails_the_test() {
        let dir = tempfile::tempdir().unwrap();
        assert!(skip_in(&dir.path().join("no directory/skips")).is_err());
    }
}
