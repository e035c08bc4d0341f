//! Checkers that stay, in Python and in C, judge the states of a run.

use runs::checker::{Checker, CheckerKind};
use runs::explore::{Explorer, Options, Report, Subject};
use runs::model::Model;
use runs::{Call, Entry, Header, Kind, Node, Place, Run, Source};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A file of the project.
fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name).canonicalize().unwrap()
}

/// A file is replaced by a new one that is not synchronised, and the program reports this.
fn run() -> Run {
    let mut run = Run::new(Header::new(Source::Mount, "a test"));
    let at = |name: &str| Place::new(Node::ROOT, name.as_bytes());
    let make = |node, name| Call::Make {
        node: Node(node),
        at: Some(at(name)),
        kind: Kind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
    };
    let write = |run: &mut Run, node, text: &[u8]| Call::Write {
        node: Node(node),
        off: 0,
        data: run.keep(text),
    };
    let old = write(&mut run, 2, b"old");
    let new = write(&mut run, 3, b"new");
    let output = run.keep(b"stored");
    let rename = Call::Rename {
        from: at("t"),
        to: at("f"),
        exchange: false,
    };
    let calls = [
        (make(2, "f"), "create f"),
        (old, "write f"),
        (make(3, "t"), "create t"),
        (new, "write t"),
        (rename, "rename t f"),
        (Call::Output { data: output }, "output"),
    ];
    let entries = calls.into_iter().map(|(call, text)| Entry::new(call, text));
    run.entries = entries.collect();
    run.header.setup = 2;
    run
}

fn explored(server: String) -> Report {
    let run = run();
    let options = Options {
        checker: Checker {
            kind: CheckerKind::Server(server),
            timeout: Duration::from_secs(60),
            memory_bytes: 4 << 30,
        },
        limit: 1000,
        jobs: 2,
        seed: 1,
        max_failures: 10,
        order: false,
        scratch: std::env::temp_dir(),
    };
    let subjects = [Model::Ext4Journal, Model::Xfs, Model::AtReturn].map(Subject::Model);
    let report = Explorer::new(&run, &options).explore(&subjects, &|_, _| {});
    report.unwrap()
}

/// The models that failed, each with the message.
fn failures(report: &Report) -> Vec<(&str, &str)> {
    let failures = report.failures.iter();
    let mut failures: Vec<_> = failures.map(|f| (&*f.model, &*f.message)).collect();
    failures.sort_unstable();
    failures
}

/// Both checkers print on their standard output, which must not disturb the answers.
const EXPECTED: [(&str, &str); 3] = [
    ("ext4-journal", "f is not the stored one"),
    ("xfs", "f has no text"),
    ("xfs", "f is not the stored one"),
];

#[test]
fn a_server_in_python_judges() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip::test("python3 is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("check.py");
    let text = "import selvedge.checker\n\
        def check(directory, output):\n    \
            text = (directory / 'f').read_text()\n    \
            print('ok')\n    \
            (directory / 'left').write_text('more')\n    \
            if output == b'stored' and text == 'old':\n        \
                return 'f is not the stored one'\n    \
            assert text in ('old', 'new'), 'f has no text'\n\
        selvedge.checker.serve(check)\n";
    std::fs::write(&program, text).unwrap();
    let python = file("python");
    let (python, program) = (python.display(), program.display());
    let report = explored(format!("PYTHONPATH='{python}' exec python3 -B '{program}'"));
    assert_eq!(failures(&report), EXPECTED);
}

/// The header is taken from where `make install-pg` puts it.
#[test]
fn a_server_in_c_judges() {
    if Command::new("gcc").arg("--version").output().is_err() {
        return skip::test("gcc is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut make = Command::new("make");
    make.args(["--silent", "install-pg", "PREFIX=/usr", "-C"]);
    make.arg(file(""));
    for (name, path) in [("TARGET", "built"), ("DESTDIR", "root")] {
        make.arg(format!("{name}={}", dir.path().join(path).display()));
    }
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CFLAGS", "LDFLAGS"] {
        make.env_remove(name);
    }
    assert!(make.status().unwrap().success());
    let include = dir.path().join("root/usr/include");
    for (compiler, standard) in [("gcc", "-std=c99"), ("g++", "-std=c++11")] {
        let program = dir.path().join(compiler);
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", standard]);
        command.arg("-I").arg(&include).arg("-o").arg(&program);
        let source = file("crates/runs/tests/c/check.c");
        let language = if compiler == "g++" { "c++" } else { "c" };
        match command.args(["-x", language]).arg(source).status() {
            Ok(status) => assert!(status.success(), "{compiler}"),
            Err(e) => {
                skip::test(&format!("{compiler}: {e}"));
                continue;
            }
        }
        let report = explored(format!("exec '{}'", program.display()));
        assert_eq!(failures(&report), EXPECTED, "{compiler}");
    }
}
