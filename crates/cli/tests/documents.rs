//! The documents are true: their generated parts are those of today's program, their links lead
//! somewhere, and their sessions (blocks of `console`) print what they show.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().unwrap()
}

/// Runs a program of `tools/` that must succeed.
fn succeeds(tool: &str, arguments: &[&str]) {
    let mut command = Command::new(root().join("tools").join(tool));
    command.env("SELVEDGE", env!("CARGO_BIN_EXE_selvedge"));
    let output = command.args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{error}");
}

#[test]
fn generated_parts_are_those_of_the_program() {
    succeeds("generate-docs", &["--check"]);
}

#[test]
fn links_lead_to_files_and_headings() {
    succeeds("check-links", &[]);
}

/// A command of a session, and the lines that it prints.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    command: String,
    lines: Vec<String>,
}

/// The sessions of a document, each with the number of its first line.
fn sessions(text: &str) -> Vec<(usize, Vec<Step>)> {
    let mut sessions: Vec<(usize, Vec<Step>)> = Vec::new();
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        match (is_inside, line) {
            (false, "```console") => {
                sessions.push((number + 1, Vec::new()));
                is_inside = true;
            }
            (true, "```") => is_inside = false,
            (true, line) => {
                let (_, steps) = sessions.last_mut().unwrap();
                match line.strip_prefix("$ ") {
                    Some(command) => steps.push(Step {
                        command: command.to_owned(),
                        lines: Vec::new(),
                    }),
                    None => steps.last_mut().unwrap().lines.push(line.to_owned()),
                }
            }
            (false, _) => {}
        }
    }
    sessions
}

/// Whether a line is the shown one, in which `...` stands for any text.
fn is_line(shown: &str, line: &str) -> bool {
    let Some((start, rest)) = shown.split_once("...") else {
        return shown == line;
    };
    let Some(tail) = line.strip_prefix(start) else {
        return false;
    };
    let mut ends = (0..=tail.len()).filter(|&at| tail.is_char_boundary(at));
    ends.any(|at| is_line(rest, &tail[at..]))
}

/// Whether the lines are the shown ones. A shown line of `...` stands for any lines, or none.
fn are_lines(shown: &[String], lines: &[&str]) -> bool {
    match (shown, lines) {
        ([], []) => true,
        ([first, rest @ ..], _) if first == "..." => {
            (0..=lines.len()).any(|skipped| are_lines(rest, &lines[skipped..]))
        }
        ([first, rest @ ..], [line, others @ ..]) => {
            is_line(first, line) && are_lines(rest, others)
        }
        _ => false,
    }
}

/// Separates the outputs of commands.
const SEPARATOR: &str = "\u{1e}";

/// Runs a session in a directory of its own. The output of each command.
fn run(steps: &[Step]) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let mut script = String::from("exec 2>&1\n");
    for step in steps {
        script.push_str(&format!("printf '{SEPARATOR}'\n{}\n", step.command));
    }
    script.push_str("! mountpoint -q mnt 2>/dev/null || umount -l mnt\n");
    let program = Path::new(env!("CARGO_BIN_EXE_selvedge"));
    let path = std::env::var("PATH").unwrap();
    let path = format!(
        "{}:{path}:/usr/sbin:/sbin",
        program.parent().unwrap().display()
    );
    let mut shell = Command::new("bash");
    shell.env("PATH", path).current_dir(place.path());
    let output = shell.args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(SEPARATOR).skip(1).map(str::to_owned).collect()
}

#[track_caller]
fn sessions_are_true(document: &str) {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let sessions = sessions(&text);
    assert!(!sessions.is_empty(), "{document} has no session");
    for (number, steps) in sessions {
        let outputs = run(&steps);
        assert_eq!(outputs.len(), steps.len(), "{document}:{number}");
        for (step, output) in steps.iter().zip(&outputs) {
            let lines: Vec<&str> = output.lines().collect();
            assert!(
                are_lines(&step.lines, &lines),
                "{document}:{number}: $ {}\n{output}\nis shown as\n{}",
                step.command,
                step.lines.join("\n")
            );
        }
    }
}

#[test]
fn sessions_of_the_readme_are_true() {
    sessions_are_true("README.md");
}

#[test]
fn sessions_about_mounting_are_true() {
    sessions_are_true("docs/mounting.md");
}

#[test]
fn sessions_about_files_in_programs_are_true() {
    sessions_are_true("docs/files.md");
}

#[test]
fn sessions_about_stacks_are_true() {
    sessions_are_true("docs/stacks.md");
}

#[test]
fn sessions_about_patchgroups_are_true() {
    sessions_are_true("docs/patchgroups.md");
}

#[test]
fn sessions_about_the_model_are_true() {
    sessions_are_true("docs/engines/model.md");
}

#[test]
fn sessions_about_soupfs_are_true() {
    sessions_are_true("docs/engines/soupfs.md");
}

#[test]
fn sessions_about_crash_testing_are_true() {
    sessions_are_true("docs/crash-testing.md");
}

#[test]
fn a_session_with_another_output_is_noticed() {
    let shown = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(are_lines(&shown("a ... c\n..."), &["a b c", "d"]));
    assert!(are_lines(&shown("...\nlast"), &["last"]));
    assert!(!are_lines(&shown("a ... c"), &["a b d"]));
    assert!(!are_lines(&shown("one"), &["one", "two"]));
    assert!(!are_lines(&shown("one\ntwo"), &["one"]));
    let steps = sessions("```console\n$ echo a\na\n$ true\n```\n");
    assert_eq!(steps[0].1.len(), 2);
    assert_eq!(run(&steps[0].1), ["a\n", ""]);
}
