//! Programs that are killed.

use crate::workshop::{Recipe, Workshop};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

#[test]
fn what_a_killed_program_has_done_is_there() {
    kill_again_and_again("stress.c", "0", 12);
}

#[test]
fn so_are_its_structures() {
    kill_again_and_again("steps.c", "0", 6);
}

#[test]
fn what_a_program_has_done_is_there_after_a_power_cut() {
    kill_again_and_again("stress.c", "1", 8);
}

#[test]
fn so_are_its_structures_then() {
    kill_again_and_again("steps.c", "1", 6);
}

/// Kills the program after some of its steps; each run checks what the ones before have left.
fn kill_again_and_again(source: &str, simulate_power_cut: &str, rounds: u64) {
    let workshop = Workshop::new();
    let start = |program: &Path| {
        let mut command = workshop.command(program);
        command.env("SELVEDGE_SIMULATE_POWER_CUT", simulate_power_cut);
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
        // Each line stands for some steps.
        let reported = (0..round * 7 % 10 + 1).map(|_| lines.next().unwrap().unwrap());
        let reported = reported.count() as u64;
        child.kill().unwrap();
        child.wait().unwrap();
        seen = steps + (reported - 1) * 100;
    }
    let steps: u64 = workshop.run(&program, &["check"]).trim().parse().unwrap();
    assert!(steps >= seen, "{steps} of {seen}");
}
