//! Errors: wrong uses that the library refuses, with their messages.

use crate::workshop::{Link, Recipe, Workshop, error_of, said};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A program with wrong uses, selected by its argument.
pub fn wrong(workshop: &Workshop, link: Link) -> std::path::PathBuf {
    let recipe = Recipe {
        // gcc warns of two of the wrong uses.
        flags: &["-O1", "-Wno-free-nonheap-object", "-Wno-cast-function-type"],
        link,
        ..Recipe::new("wrong.c")
    };
    workshop.compile("wrong", &recipe)
}

#[test]
fn wrong_uses_end_the_process_with_a_message() {
    let workshop = Workshop::new();
    let program = wrong(&workshop, Link::Static);
    for (what, message) in [
        ("irrevocable", "would have to become irrevocable"),
        ("relaxed", "build with -fgnu-tm"),
        ("pointer", "no transactional clone"),
        ("system", "not in a region of the program"),
        ("nowhere", "not in a region of the program"),
        ("free", "use selvedge_pfree"),
        ("structure", "sound B+ tree"),
        ("wild", "not in a region of the program"),
    ] {
        let error = workshop.fail(&program, &[what]);
        assert!(error.contains(message), "{what}: {error}");
    }
    // The memory is intact.
    workshop.run(&program, &["nothing"]);
}

#[test]
fn selvedge_try_returns_the_error_of_a_failed_block() {
    crate::workshop::try_both_libraries("tries.c");
}

#[test]
fn exceptions_pass_through_selvedge_try() {
    crate::workshop::try_both_libraries("thrown.cc");
}

/// The compiler refuses a direct jump, and the next block a hidden one.
#[test]
fn a_jump_out_of_a_block_is_refused() {
    let workshop = Workshop::new();
    for level in ["-O0", "-O2"] {
        let flags = [level, "-DDIRECT"];
        let direct = Recipe {
            flags: &flags,
            ..Recipe::new("jumps.c")
        };
        let error = workshop.try_object("direct", &direct).unwrap_err();
        assert!(error.contains("unsafe function call"), "{error}");
        let flags = [level];
        let recipe = Recipe {
            flags: &flags,
            ..Recipe::new("jumps.c")
        };
        let program = workshop.compile("jumps", &recipe);
        for what in ["block", "again", "try"] {
            let error = workshop.fail(&program, &[what]);
            assert!(error.contains("left without its end"), "{what}: {error}");
            workshop.run(&program, &["check"]);
        }
    }
}

#[test]
fn a_new_directory_has_logs_of_the_requested_length() {
    let workshop = Workshop::new();
    let program = wrong(&workshop, Link::Shared);
    let mut command = workshop.command(&program);
    let output = command
        .env("SELVEDGE_LOG_BYTES", "9437184")
        .arg("long")
        .output()
        .unwrap();
    said(&output, &program);
    let system = workshop.memory().join("regions").metadata().unwrap();
    assert!(system.len() > 8 * 9_437_184, "{}", system.len());
    // The directory records their length.
    workshop.run(&program, &["long"]);
}

#[test]
fn a_child_made_by_fork_is_refused() {
    let workshop = Workshop::new();
    let program = wrong(&workshop, Link::Shared);
    let output = workshop.command(&program).arg("fork").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("not for a child made by fork"), "{error}");
}

#[test]
fn a_child_leaves_its_parent_s_memory_alone() {
    // With a pool too: a child has no pager for its pages.
    for (link, has_pool) in [(Link::Static, false), (Link::Shared, true)] {
        let workshop = Workshop::new();
        let recipe = Recipe {
            link,
            ..Recipe::new("fork.c")
        };
        let program = workshop.compile("fork", &recipe);
        let mut command = workshop.command(&program);
        if has_pool {
            command.env("SELVEDGE_POOL_PATH", workshop.path("pool"));
        }
        let output = command.output().unwrap();
        assert_eq!(workshop.path("pool").exists(), has_pool);
        said(&output, &program);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.matches("let the child run").count(), 4, "{error}");
        // The child has no locks either. It runs until its input ends, which `wait` would close.
        let mut parent = workshop.start(&program, &["orphan"]);
        let input = parent.stdin.take();
        assert!(parent.wait().unwrap().success());
        workshop.run(&program, &[]);
        drop(input);
    }
}

#[test]
fn a_second_process_is_refused() {
    let workshop = Workshop::new();
    let program = wrong(&workshop, Link::Static);
    let mut first = workshop.start(&program, &["wait"]);
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    // `selvedge_start` returns the error; without that call the process ends.
    let who = format!("in use by process {} (wrong)", first.id());
    let error = workshop.run(&program, &["start"]);
    assert!(error.contains(&who), "{error}");
    let counter = workshop.compile("counter", &Recipe::new("counter.c"));
    let error = workshop.fail(&counter, &[]);
    assert!(
        error.contains(&who) && error.contains("SELVEDGE_REGION_PATH"),
        "{error}"
    );
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    workshop.run(&counter, &[]);
}

/// The durability `process` refuses a start after a crash of the machine.
#[test]
fn a_crash_of_the_machine_is_noticed() {
    let workshop = Workshop::new();
    let program = workshop.compile("counter", &Recipe::new("counter.c"));
    let killed = workshop.compile("neighbours", &Recipe::new("neighbours.c"));
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let is_in_memory = medium::is_in_memory(disk.path()).unwrap();
    let note = disk.path().join("boot");
    let run = |program: &Path, accept: &str| {
        let mut command = workshop.command(program);
        command.env("SELVEDGE_REGION_PATH", disk.path());
        command.env("SELVEDGE_DURABILITY", "process");
        command.env("SELVEDGE_ACCEPT_LOSS", accept);
        command.output().unwrap()
    };
    // An orderly end of the program makes all data durable; a kill does not.
    assert_eq!(said(&run(&program, ""), &program), "1 1 1\n");
    assert!(!note.exists());
    said(&run(&killed, ""), &killed);
    assert_eq!(note.exists(), !is_in_memory);
    assert_eq!(said(&run(&program, ""), &program), "2 2 2\n");
    assert!(!note.exists());
    // The note of an earlier boot.
    std::fs::write(
        &note,
        "selvedge boot 00000000-0000-0000-0000-000000000000\n",
    )
    .unwrap();
    let error = error_of(&run(&program, "0"));
    assert!(
        error.contains("when the machine went down") && error.contains("SELVEDGE_ACCEPT_LOSS=1"),
        "{error}"
    );
    assert_eq!(said(&run(&program, "1"), &program), "3 3 3\n");
    assert!(!note.exists());
}

#[test]
fn settings_are_checked() {
    let workshop = Workshop::new();
    let program = workshop.compile("counter", &Recipe::new("counter.c"));
    let with = |name: &str, value: &str| {
        let mut command = workshop.command(&program);
        command.env(name, value).output().unwrap()
    };
    for (name, value) in [
        ("SELVEDGE_BASE", "0x1234"),
        ("SELVEDGE_BASE", "1048576"),
        ("SELVEDGE_BYTES", "4096"),
        ("SELVEDGE_BYTES", "1G"),
        ("SELVEDGE_LOG_BYTES", "100000"),
        ("SELVEDGE_DURABILITY", "much"),
        ("SELVEDGE_DURABILITY", "dax"),
        ("SELVEDGE_FORCE_FLUSH", "often"),
        ("SELVEDGE_ACCEPT_LOSS", "often"),
        ("SELVEDGE_SIMULATE_POWER_CUT", "often"),
        ("SELVEDGE_REGION_PATH", "/proc/nowhere"),
    ] {
        let error = error_of(&with(name, value));
        assert!(error.contains(value), "{name}={value}: {error}");
    }
    // A directory keeps its base address, also if that is not the default.
    let moved = "0x100000000000";
    assert_eq!(said(&with("SELVEDGE_BASE", moved), &program), "1 1 1\n");
    let error = error_of(&with("SELVEDGE_BASE", "0x300000000000"));
    assert!(
        error.contains("are for SELVEDGE_BASE=0x100000000000"),
        "{error}"
    );
    assert_eq!(said(&with("SELVEDGE_BASE", moved), &program), "2 2 2\n");
    assert_eq!(workshop.run(&program, &[]), "3 3 3\n");
    // The address of the program itself.
    let fixed = Recipe {
        flags: &["-O2", "-no-pie", "-fno-pie"],
        ..Recipe::new("counter.c")
    };
    let fixed = workshop.compile("fixed", &fixed);
    let mut command = workshop.command(&fixed);
    let output = command.env("SELVEDGE_BASE", "0x400000").output().unwrap();
    let error = error_of(&output);
    assert!(
        error.contains("is in the way") && error.contains("SELVEDGE_BASE"),
        "{error}"
    );
}

/// With a limit on addresses, the message names the setting, which reserves fewer.
#[test]
fn a_limit_of_addresses_is_reported() {
    let workshop = Workshop::new();
    let program = workshop.compile("counter", &Recipe::new("counter.c"));
    let limited = |bytes: Option<&str>| {
        let mut command = workshop.command("sh".as_ref());
        command.args(["-c", "ulimit -v 4000000; exec \"$0\""]);
        command.arg(&program);
        command.envs(bytes.map(|bytes| ("SELVEDGE_BYTES", bytes)));
        command.output().unwrap()
    };
    let error = error_of(&limited(None));
    assert!(error.contains("set SELVEDGE_BYTES to fewer"), "{error}");
    let enough = Some("1073741824");
    assert_eq!(said(&limited(enough), &program), "1 1 1\n");
    let error = error_of(&limited(Some("20971520")));
    assert!(error.contains("set SELVEDGE_BYTES to more"), "{error}");
    assert_eq!(said(&limited(enough), &program), "2 2 2\n");
}

#[test]
fn libitm_before_the_library_is_refused() {
    let workshop = Workshop::new();
    let recipe = Recipe {
        link: Link::Shared,
        libraries: &["-Wl,--no-as-needed", "-litm"],
        ..Recipe::new("counter.c")
    };
    let program = workshop.compile("counter", &recipe);
    let error = workshop.fail(&program, &[]);
    assert!(
        error.contains("libitm") && error.contains("-litm"),
        "{error}"
    );
    // After it, or with the static library, libitm is harmless.
    for link in [Link::Static, Link::Shared] {
        let flags = match link {
            Link::Static => &["-O2", "-Wl,--no-as-needed", "-litm"][..],
            Link::Shared => &["-O2", "-fgnu-tm"],
        };
        let recipe = Recipe {
            flags,
            link,
            ..Recipe::new("counter.c")
        };
        let program = workshop.compile("counter", &recipe);
        workshop.run(&program, &[]);
    }
}

#[test]
fn a_program_needs_transactions_of_its_compiler() {
    let workshop = Workshop::new();
    let recipe = Recipe {
        flags: &["-fno-gnu-tm"],
        ..Recipe::new("counter.c")
    };
    let error = workshop.try_compile("counter", &recipe).unwrap_err();
    assert!(
        error.contains("without transactional memory support"),
        "{error}"
    );
}

#[test]
fn a_power_cut_with_a_pool_is_refused() {
    let workshop = Workshop::new();
    let program = workshop.compile("counter", &Recipe::new("counter.c"));
    for (value, pool, message) in [
        ("yes", None, "neither 0 nor 1"),
        ("1", Some("pool"), "one of them only"),
    ] {
        let mut command = workshop.command(&program);
        command.env("SELVEDGE_SIMULATE_POWER_CUT", value);
        command.envs(pool.map(|pool| ("SELVEDGE_POOL_PATH", pool)));
        let error = error_of(&command.output().unwrap());
        assert!(error.contains(message), "{error}");
    }
}
