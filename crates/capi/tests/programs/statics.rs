//! Persistent variables, over rebuilds.

use crate::workshop::{Link, Recipe, Workshop};

fn built(workshop: &Workshop, flags: &[&str]) -> std::path::PathBuf {
    let recipe = Recipe {
        flags,
        ..Recipe::new("statics.c")
    };
    workshop.compile("statics", &recipe)
}

#[test]
fn variables_survive_rebuilds() {
    let workshop = Workshop::new();
    let run = |flags: &[&str]| workshop.run(&built(&workshop, flags), &[]);
    assert_eq!(run(&["-O2"]), "2 Initial 8 1 11 b 3\n");
    assert_eq!(run(&["-O2"]), "3 Initial 9 2 12 b 4\n");
    // Other code, other flags, another kind of executable.
    assert_eq!(run(&["-O0", "-DNOISE"]), "4 Initial 10 3 13 b 5\n");
    assert_eq!(
        run(&["-O3", "-no-pie", "-fno-pie"]),
        "5 Initial 11 4 14 b 6\n"
    );
    // Other variables in front of them are added, removed and added again.
    assert_eq!(
        run(&["-O1", "-DADDED"]),
        "6 Initial 12 5 15 b 7 added 1.5 Text\n"
    );
    assert_eq!(
        run(&["-O1", "-DADDED"]),
        "7 Initial 13 6 16 b 8 added 2.5 Text\n"
    );
    assert_eq!(run(&["-O2", "-DREMOVED"]), "8 Initial 14 7 17\n");
    assert_eq!(run(&["-O2", "-DREMOVED", "-DNOISE"]), "9 Initial 15 8 18\n");
    assert_eq!(
        run(&["-O2", "-DADDED"]),
        "10 Initial 16 9 19 b 9 added 3.5 Text\n"
    );
    assert_eq!(run(&["-O2"]), "11 Initial 17 10 20 b 10\n");
    // Without debugging information, but with symbols.
    let program = built(&workshop, &["-O2"]);
    strip(&program, &["--strip-debug", "--keep-file-symbols"]);
    assert_eq!(workshop.run(&program, &[]), "12 Initial 18 11 21 b 11\n");
}

#[test]
fn changed_sizes_and_missing_symbols_are_refused() {
    let workshop = Workshop::new();
    let program = built(&workshop, &["-O2"]);
    assert_eq!(workshop.run(&program, &[]), "2 Initial 8 1 11 b 3\n");
    let larger = built(&workshop, &["-O2", "-DLARGER"]);
    let error = workshop.fail(&larger, &[]);
    assert!(
        error.contains("variable b of statics has 16 bytes, and had 8"),
        "{error}"
    );
    // The variables are unchanged.
    let program = built(&workshop, &["-O2"]);
    assert_eq!(workshop.run(&program, &[]), "3 Initial 9 2 12 b 4\n");
    for how in ["--strip-debug", "--strip-all"] {
        strip(&program, &[how]);
        let error = workshop.fail(&program, &[]);
        assert!(error.contains("--keep-file-symbols only"), "{error}");
    }
    let address = built(&workshop, &["-O2", "-DADDRESS"]);
    let error = workshop.fail(&address, &[]);
    assert!(error.contains("begins with an address"), "{error}");
    // With SELVEDGE_STATICS=discard they begin anew, with another size too.
    let larger = built(&workshop, &["-O2", "-DLARGER"]);
    let mut command = workshop.command(&larger);
    let output = command.env("SELVEDGE_STATICS", "discard").output().unwrap();
    assert_eq!(
        crate::workshop::said(&output, &larger),
        "2 Initial 8 1 11\n"
    );
    assert_eq!(workshop.run(&larger, &[]), "3 Initial 9 2 12\n");
}

#[test]
fn variables_need_pages_of_their_own() {
    let workshop = Workshop::new();
    for link in [Link::Static, Link::Shared] {
        let recipe = Recipe {
            link,
            script: false,
            ..Recipe::new("statics.c")
        };
        let program = workshop.compile("statics", &recipe);
        let error = workshop.fail(&program, &[]);
        assert!(error.contains("-Wl,-T,selvedge.ld"), "{error}");
    }
}

#[test]
fn programs_have_variables_of_their_own() {
    let workshop = Workshop::new();
    let one = workshop.compile("one", &Recipe::new("statics.c"));
    let other = workshop.compile("other", &Recipe::new("statics.c"));
    assert_eq!(workshop.run(&one, &[]), "2 Initial 8 1 11 b 3\n");
    assert_eq!(workshop.run(&other, &[]), "2 Initial 8 1 11 b 3\n");
    assert_eq!(workshop.run(&one, &[]), "3 Initial 9 2 12 b 4\n");
}

/// A renamed program prints that its variables begin anew, and how to keep them.
#[test]
fn a_renamed_program_prints_a_note() {
    let workshop = Workshop::new();
    let program = built(&workshop, &["-O2"]);
    assert_eq!(workshop.run(&program, &[]), "2 Initial 8 1 11 b 3\n");
    let renamed = workshop.path("renamed");
    std::fs::copy(&program, &renamed).unwrap();
    let run = |name: Option<&str>| {
        let mut command = workshop.command(&renamed);
        command.envs(name.map(|name| ("SELVEDGE_STATICS_NAME", name)));
        let output = command.output().unwrap();
        let said = crate::workshop::said(&output, &renamed);
        (said, String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(
        run(Some("statics")),
        ("3 Initial 9 2 12 b 4\n".to_owned(), String::new())
    );
    let (said, note) = run(None);
    assert_eq!(said, "2 Initial 8 1 11 b 3\n");
    assert!(note.contains("set SELVEDGE_STATICS_NAME=statics"), "{note}");
    // Only at the first run.
    assert_eq!(run(None).1, "");
    // A program that sets its name in its code keeps it.
    let named = Recipe {
        flags: &["-O2", "-DNAMED", "-fvisibility=hidden"],
        ..Recipe::new("statics.c")
    };
    for link in [Link::Static, Link::Shared] {
        let recipe = Recipe {
            link,
            ..named.clone()
        };
        let named = workshop.compile("another", &recipe);
        assert!(workshop.run(&named, &[]).ends_with('\n'));
    }
    assert_eq!(workshop.run(&program, &[]), "6 Initial 12 5 15 b 7\n");
}

/// The address changes in the next run, unless the program is linked with -no-pie.
#[test]
fn addresses_of_variables_are_refused_in_durable_memory() {
    let workshop = Workshop::new();
    for (flags, is_refused) in [
        (&["-O2"][..], true),
        (&["-O2", "-no-pie", "-fno-pie"], false),
    ] {
        let recipe = Recipe {
            flags,
            ..Recipe::new("stale.c")
        };
        let program = workshop.compile("stale", &recipe);
        workshop.run(&program, &["neither"]);
        for how in ["stored", "copied"] {
            if !is_refused {
                workshop.run(&program, &[how]);
                continue;
            }
            let error = workshop.fail(&program, &[how]);
            assert!(
                error.contains("address of a persistent variable"),
                "{error}"
            );
        }
    }
}

/// The executable of such a process is the loader, not the program.
#[test]
fn a_start_through_the_dynamic_loader_is_refused() {
    let workshop = Workshop::new();
    let program = built(&workshop, &["-O2"]);
    let loader = std::path::Path::new("/lib64/ld-linux-x86-64.so.2");
    let output = workshop.command(loader).arg(&program).output().unwrap();
    let error = crate::workshop::error_of(&output);
    assert!(
        error.contains("start the program itself") && error.contains("ld-linux"),
        "{error}"
    );
    // A program without persistent variables may be started so.
    let plain = workshop.compile("plain", &Recipe::new("strings.c"));
    let output = workshop.command(loader).arg(&plain).output().unwrap();
    crate::workshop::said(&output, &plain);
}

#[test]
fn a_library_with_variables_is_refused() {
    let workshop = Workshop::new();
    let library = Recipe {
        flags: &["-fPIC", "-shared"],
        ..Recipe::new("statics.c")
    };
    let library = workshop.compile("library.so", &library);
    let recipe = Recipe {
        libraries: &["-Wl,--no-as-needed", library.to_str().unwrap()],
        ..Recipe::new("counter.c")
    };
    let program = workshop.compile("counter", &recipe);
    let error = workshop.fail(&program, &[]);
    assert!(
        error.contains("library.so has persistent variables"),
        "{error}"
    );
}

/// Two builds of a program run in turn, and are killed before, during and after the takeover of the
/// variables.
#[test]
fn variables_survive_a_crash_while_they_move() {
    let workshop = Workshop::new();
    let ways = [
        ("here", &["-O2"][..]),
        ("there", &["-O2", "-DADDED", "-DREMOVED"]),
    ];
    let ways = ways.map(|(name, flags)| {
        let program = built(&workshop, flags);
        let kept = workshop.path(name);
        std::fs::rename(program, &kept).unwrap();
        kept
    });
    let program = workshop.path("statics");
    let run = |way: usize| {
        std::fs::rename(&ways[way], &program).unwrap();
        workshop.start(&program, &[])
    };
    let put_back = |way: usize| std::fs::rename(&program, &ways[way]).unwrap();
    let mut least = 1;
    for round in 0..24_u64 {
        let way = round as usize % 2;
        let mut child = run(way);
        // The variables must be right after a kill at any time.
        std::thread::sleep(std::time::Duration::from_micros(round * 7919 % 24 * 15_000));
        child.kill().unwrap();
        child.wait().unwrap();
        put_back(way);
        if round % 4 == 3 {
            let said = run(way).wait_with_output().unwrap();
            put_back(way);
            let said = crate::workshop::said(&said, &program);
            let words: Vec<_> = said.split_ascii_whitespace().collect();
            let number = |n: usize| words[n].parse::<u64>().unwrap();
            // All variables are from the same transactions.
            let a = number(0);
            assert!(a > least && a <= least + 5, "{said}");
            assert_eq!(
                [number(2), number(3), number(4)],
                [a + 6, a - 1, a + 9],
                "{said}"
            );
            least = a;
        }
    }
}

fn strip(program: &std::path::Path, how: &[&str]) {
    let stripped = std::process::Command::new("strip")
        .args(how)
        .arg(program)
        .status();
    assert!(stripped.unwrap().success());
}
