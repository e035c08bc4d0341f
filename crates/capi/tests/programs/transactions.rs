//! Atomic blocks: values, nesting, exceptions and threads.

use crate::workshop::{Link, Recipe, Workshop};

const LEVELS: [&str; 4] = ["-O0", "-O1", "-O2", "-O3"];

#[test]
fn counters_survive_runs_and_builds() {
    for link in [Link::Static, Link::Shared] {
        let workshop = Workshop::new();
        let mut runs = 0;
        for level in LEVELS {
            let flags = [level];
            let recipe = Recipe {
                flags: &flags,
                link,
                ..Recipe::new("counter.c")
            };
            // A new build of the same name has the same variables.
            let program = workshop.compile("counter", &recipe);
            for _ in 0..2 {
                runs += 1;
                assert_eq!(
                    workshop.run(&program, &[]),
                    format!("{runs} {runs} {runs}\n")
                );
            }
        }
    }
}

fn at_all_levels(source: &str, more: &[&str]) {
    at(&LEVELS, source, more);
}

fn at(levels: &[&str], source: &str, more: &[&str]) {
    for level in levels {
        let flags: Vec<_> = [*level].iter().chain(more).copied().collect();
        let recipe = Recipe {
            flags: &flags,
            // The static library takes longer to link.
            link: match *level {
                "-O2" => Link::Static,
                _ => Link::Shared,
            },
            ..Recipe::new(source)
        };
        let workshop = Workshop::new();
        let program = workshop.compile("program", &recipe);
        workshop.run(&program, &[]);
    }
}

#[test]
fn transactions_nest_and_are_cancelled() {
    at_all_levels("nesting.c", &[]);
}

#[test]
fn values_of_every_width_are_committed_and_rolled_back() {
    at_all_levels("widths.c", &["-Wno-psabi"]);
    let avx2 = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|cpu| cpu.contains("avx2"));
    if !avx2 {
        return skip::test("this CPU has no AVX2: values of 32 bytes are not tested");
    }
    at(&["-O0", "-O2"], "widths.c", &["-mavx2"]);
}

#[test]
fn blocks_do_not_starve_and_commits_wait_for_readers() {
    let workshop = Workshop::new();
    let program = workshop.compile("patience", &Recipe::new("patience.c"));
    workshop.run(&program, &[]);
}

/// Neither a block nor its replay changes the bytes beside its stores.
#[test]
fn blocks_leave_neighbours_alone() {
    let workshop = Workshop::new();
    let program = workshop.compile("neighbours", &Recipe::new("neighbours.c"));
    workshop.run(&program, &[]);
    workshop.run(&program, &["again"]);
}

#[test]
fn copies_and_allocations_are_atomic() {
    at_all_levels("memory.c", &[]);
}

#[test]
fn functions_of_the_c_library_work_inside_a_block() {
    at_all_levels("strings.c", &[]);
    at(&["-O2"], "strings.c", &["-D_FORTIFY_SOURCE=2"]);
    at(
        &["-O2", "-O1", "-O3"],
        "strings.c",
        &["-D_FORTIFY_SOURCE=3"],
    );
}

#[test]
fn exceptions_leave_a_transaction_as_the_program_says() {
    at_all_levels("exceptions.cc", &[]);
}

#[test]
fn transactions_of_threads_are_isolated() {
    at_all_levels("threads.c", &[]);
}
