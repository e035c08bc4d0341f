//! Programs that are killed.

use crate::workshop::{Link, Recipe, Workshop};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

const POWER_CUT: (&str, &str) = ("SELVEDGE_SIMULATE_POWER_CUT", "1");
const SHORT_LOGS: (&str, &str) = ("SELVEDGE_LOG_BYTES", "65536");

#[test]
fn a_table_survives_kills() {
    kill_again_and_again("stress.c", &[], 12, 100);
}

#[test]
fn structures_survive_kills() {
    kill_again_and_again("steps.c", &[], 6, 100);
}

#[test]
fn a_table_survives_power_cuts() {
    kill_again_and_again("stress.c", &[POWER_CUT], 8, 100);
}

#[test]
fn structures_survive_power_cuts() {
    kill_again_and_again("steps.c", &[POWER_CUT], 6, 100);
}

/// Each block takes room from the heap for the part of its record that its log cannot hold.
#[test]
fn long_blocks_of_several_threads_survive() {
    kill_again_and_again("long-threads.c", &[SHORT_LOGS], 8, 1);
}

#[test]
fn long_blocks_of_several_threads_survive_a_power_cut() {
    kill_again_and_again("long-threads.c", &[SHORT_LOGS, POWER_CUT], 8, 1);
}

/// After a power cut, persistent variables have the stores of blocks. Plain stores without a flush
/// are lost in some runs and kept in others.
#[test]
fn a_power_cut_loses_plain_stores_to_persistent_variables() {
    let workshop = Workshop::new();
    let program = workshop.compile("cut", &Recipe::new("cut.c"));
    let (mut seen, mut lost, mut kept) = (0, 0, 0);
    for _ in 0..12 {
        let mut command = workshop.command(&program);
        command.env("SELVEDGE_SIMULATE_POWER_CUT", "1");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.next().expect("the check").unwrap();
        let (done, plain) = found.split_once(' ').unwrap();
        let (done, plain): (u64, u64) = (done.parse().unwrap(), plain.parse().unwrap());
        assert!(done >= seen, "{done} of {seen}");
        lost += u64::from(plain < done);
        kept += u64::from(plain > 0);
        seen = lines.nth(4).unwrap().unwrap().parse().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(lost > 0 && kept > 0, "{lost} times lost, {kept} kept");
}

/// Kills the program after some of its steps. Each run checks the data of the earlier runs. The
/// program prints a line after each `line_steps` steps.
fn kill_again_and_again(source: &str, settings: &[(&str, &str)], rounds: u64, line_steps: u64) {
    let workshop = Workshop::new();
    let start = |program: &Path| {
        let mut command = workshop.command(program);
        command.envs(settings.iter().copied());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let program = workshop.compile("stress", &Recipe::new(source));
    let mut seen = 0;
    for round in 0..rounds {
        let mut child = start(&program);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let steps = lines.next().unwrap().unwrap();
        let steps: u64 = steps.parse().expect("the check of the table");
        assert!(steps >= seen, "{steps} of {seen}");
        let reported = (0..round * 7 % 10 + 1).map(|_| lines.next().unwrap().unwrap());
        let reported = reported.count() as u64;
        child.kill().unwrap();
        child.wait().unwrap();
        seen = steps + (reported - 1) * line_steps;
    }
    let steps: u64 = workshop.run(&program, &["check"]).trim().parse().unwrap();
    assert!(steps >= seen, "{steps} of {seen}");
}

/// Neither the logs nor the end of the process undo stores outside of transactions.
#[test]
fn plain_stores_are_not_undone() {
    for link in [Link::Static, Link::Shared] {
        let workshop = Workshop::new();
        let recipe = Recipe {
            link,
            ..Recipe::new("plain.c")
        };
        let program = workshop.compile("plain", &recipe);
        let mut killed = workshop.start(&program, &["kill"]);
        assert_eq!(killed.wait().unwrap().signal(), Some(9));
        workshop.run(&program, &["check"]);
        workshop.run(&program, &["exit"]);
        workshop.run(&program, &["kept"]);
    }
}

/// A missing page is an error, also on the thread that truncates the logs.
#[test]
fn a_truncated_file_is_reported() {
    let workshop = Workshop::new();
    let program = workshop.compile("fault", &Recipe::new("fault.c"));
    let error = workshop.fail(&program, &[]);
    assert!(error.contains("no more transactions"), "{error}");
}

/// A block longer than a log is complete after a kill, and after a power failure.
#[test]
fn a_block_longer_than_a_log_survives() {
    for (megabytes, power_cut) in [("3", "0"), ("3", "1"), ("64", "0")] {
        let workshop = Workshop::new();
        let program = workshop.compile("long", &Recipe::new("long.c"));
        for value in ["5", "70"] {
            let mut command = workshop.command(&program);
            command.env("SELVEDGE_SIMULATE_POWER_CUT", power_cut);
            let output = command.args(["write", megabytes, value]).output().unwrap();
            let signal = output.status.signal();
            assert_eq!(
                signal,
                Some(9),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            workshop.run(&program, &["check", megabytes, value]);
        }
    }
}

/// The cancel of an inner transaction restores blocks that the outer one has allocated. The restored
/// bytes survive a power failure.
#[test]
fn bytes_that_an_inner_cancel_restores_survive() {
    let workshop = Workshop::new();
    let program = workshop.compile("undone", &Recipe::new("undone.c"));
    for power_cut in ["0", "1"] {
        for value in ["1", "2"] {
            let mut command = workshop.command(&program);
            command.env("SELVEDGE_SIMULATE_POWER_CUT", power_cut);
            let output = command.args(["write", value]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(9), "{error}");
            workshop.run(&program, &["check", value]);
        }
    }
}
