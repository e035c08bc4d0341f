//! The programs in `examples/c`, compiled and run as the documents say.

use crate::workshop::{Recipe, Workshop, example};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn visits_are_kept_from_run_to_run() {
    let workshop = Workshop::new();
    let visits = workshop.compile("visits", &Recipe::new(&example("visits.c")));
    for shown in ["1 \n", "2 1 \n", "3 2 1 \n"] {
        assert_eq!(workshop.run(&visits, &[]), shown);
    }
}

#[test]
fn names_and_queue_agree() {
    let workshop = Workshop::new();
    let names = workshop.compile("names", &Recipe::new(&example("names.c")));
    workshop.run(&names, &["add", "17", "Arachne"]);
    workshop.run(&names, &["add", "4", "Penelope"]);
    assert_eq!(workshop.run(&names, &["next"]), "17: Arachne\n");
    assert_eq!(workshop.run(&names, &["next"]), "4: Penelope\n");
    assert_eq!(workshop.run(&names, &["next"]), "nobody waits\n");
}

#[test]
fn the_oldest_message_leaves_the_mail_queue_first() {
    let place = tempfile::tempdir().unwrap();
    let (program, queue) = (place.path().join("mail_queue"), place.path().join("queue"));
    std::fs::create_dir(&queue).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]);
    let compiled = gcc.arg(&program).arg(example("mail_queue.c")).status();
    assert!(compiled.unwrap().success());
    let run = |words: &[&str], message: &str| {
        let mut command = Command::new(&program);
        command.arg(&queue).args(words);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(message.as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    // A crash may leave half a message under its temporary name.
    std::fs::write(queue.join(".b"), "half a mess").unwrap();
    run(&["deliver", "a"], "first\n");
    run(&["deliver", "b"], "second\n");
    assert_eq!(run(&["take"], ""), "first\n");
    assert_eq!(run(&["take"], ""), "second\n");
    assert_eq!(run(&["take"], ""), "the queue is empty\n");
}
