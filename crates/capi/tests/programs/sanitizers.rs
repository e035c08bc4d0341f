//! Programs under valgrind, and with AddressSanitizer.

use crate::workshop::{Recipe, Workshop, said};

/// Valgrind reports no error, and durable memory is at the same addresses as without it.
#[test]
fn a_program_runs_under_valgrind() {
    let workshop = Workshop::new();
    for (source, first, second) in [("counter.c", "1 1 1\n", "2 2 2\n"), ("strings.c", "", "")] {
        let program = workshop.compile("program", &Recipe::new(source));
        assert_eq!(workshop.run(&program, &[]), first);
        let mut command = workshop.command("valgrind".as_ref());
        // Valgrind is slow with more addresses.
        command.env("SELVEDGE_BYTES", "1073741824");
        command.args(["-q", "--error-exitcode=9"]).arg(&program);
        let output = command.output().unwrap();
        assert_eq!(said(&output, &program), second);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// gcc cannot compile transactions with AddressSanitizer; it checks the rest of a program.
#[test]
fn a_program_runs_with_address_sanitizer() {
    let workshop = Workshop::new();
    let blocks = workshop.try_object("blocks", &Recipe::new("watched-blocks.c"));
    let blocks = blocks.unwrap();
    let recipe = Recipe {
        flags: &["-O1", "-fsanitize=address", "-fno-gnu-tm"],
        libraries: &[blocks.to_str().unwrap()],
        ..Recipe::new("watched.c")
    };
    let program = workshop.compile("watched", &recipe);
    assert_eq!(workshop.run(&program, &[]), "1\n");
    assert_eq!(workshop.run(&program, &[]), "2\n");
    let output = workshop.command(&program).arg("wrong").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("heap-buffer-overflow"), "{error}");
    assert_eq!(workshop.run(&program, &[]), "4\n");
}
