//! The heap, regions and logs.

use crate::workshop::{self, Recipe, Workshop};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[test]
fn the_heap_works_inside_and_outside_of_transactions() {
    workshop::try_both_libraries("heap.c");
}

#[test]
fn regions_and_logs_outlive_the_program() {
    let workshop = Workshop::new();
    let program = workshop.compile("regions", &Recipe::new("regions.c"));
    for durability in ["process", "msync", "auto"] {
        for _ in 0..2 {
            let mut command = workshop.command(&program);
            let output = command
                .env("SELVEDGE_DURABILITY", durability)
                .output()
                .unwrap();
            workshop::said(&output, &program);
        }
    }
    // The heap and the variables are left.
    let files = std::fs::read_dir(workshop.memory()).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["region-0000", "region-0001", "regions"]);
}

/// Pages of the heap and of regions move. The pool's directory stands for persistent memory.
#[test]
fn data_larger_than_the_pool_are_usable() {
    let workshop = Workshop::new();
    let program = workshop.compile("pages", &Recipe::new("pages.c"));
    let pool = workshop.path("pool");
    let run = |bytes: &str, argument: &str| {
        let mut command = workshop.command(&program);
        command
            .env("SELVEDGE_POOL_PATH", &pool)
            .env("SELVEDGE_POOL_BYTES", bytes)
            .arg(argument);
        command.output().unwrap()
    };
    // Files that another user may read.
    let modes = |place: &Path| {
        let files = std::fs::read_dir(place).unwrap();
        let mut all: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        all.push(place.to_owned());
        all.retain(|path| path.metadata().unwrap().mode() & 0o077 != 0);
        all
    };
    let wrong = workshop::error_of(&run("2M", "first"));
    assert!(wrong.contains("SELVEDGE_POOL_BYTES=2M"), "{wrong}");
    for (runs, argument) in [(1, "first"), (2, "locked"), (3, "calls")] {
        let said = workshop::said(&run("2097152", argument), &program);
        assert_eq!(said, format!("{runs}\n"));
    }
    for place in [&pool, &workshop.memory()] {
        assert_eq!(modes(place), [] as [PathBuf; 0]);
    }
    assert_eq!(pool.join("frames").metadata().unwrap().len(), 2 << 20);
    std::fs::rename(&pool, workshop.path("elsewhere")).unwrap();
    let missing = workshop::error_of(&run("2097152", "again"));
    let told = "pool/frames is missing: bring it back, or say where the pool is; without it they \
                are lost (SELVEDGE_POOL_PATH)";
    assert!(missing.contains(told), "{missing}");
}
