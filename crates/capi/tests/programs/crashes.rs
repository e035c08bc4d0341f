//! Programs that are killed.

use crate::workshop::{Recipe, Workshop};
use std::io::{BufRead, BufReader};

/// Kills the program after some of its steps, again and again; each run checks what the ones
/// before have left.
fn what_was_done_is_there(source: &str) {
    let workshop = Workshop::new();
    let program = workshop.compile("stress", &Recipe::new(source));
    let mut seen = 0;
    for round in 0..12 {
        let mut child = workshop.start(&program, &[]);
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

#[test]
fn what_a_killed_program_has_done_is_there() {
    what_was_done_is_there("stress.c");
}

#[test]
fn so_are_its_structures() {
    what_was_done_is_there("steps.c");
}
