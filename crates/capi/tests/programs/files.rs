//! Files, keys and values of a service in this process.

use crate::workshop::{Link, Recipe, Workshop, example, said};
use aerie_client::{Client, Kv};
use aerie_server::{Limits, Serving};
use medium::{MapOptions, MappedPmem, Reserve};
use pxfs::Pxfs;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use vfs::{Atime, SystemClock};

/// Starts the service of a new store.
fn served(workshop: &Workshop) -> (Serving, PathBuf) {
    let (image, socket) = (workshop.path("image"), workshop.path("socket"));
    medium::create_file(&image, 16 << 20, Reserve::Sparse).unwrap();
    let memory = Arc::new(MappedPmem::open(&image, &MapOptions::default()).unwrap());
    let durability = memory.durability();
    pxfs::mkfs(&memory, &pxfs::MkfsOptions::default()).unwrap();
    let fs = Pxfs::open(memory, Arc::new(SystemClock), Atime::Never).unwrap();
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let service = aerie_server::serve(fs, (&file, durability), &socket, Limits::default()).unwrap();
    (service, socket)
}

/// A program that uses no durable memory: without the options for it.
fn recipe(source: &str) -> Recipe<'_> {
    Recipe {
        script: false,
        ..Recipe::new(source)
    }
}

#[test]
fn programs_use_files_and_values_of_a_service() {
    for (link, flags) in [(Link::Static, &["-O0"][..]), (Link::Shared, &["-O2"])] {
        let workshop = Workshop::new();
        let (service, socket) = served(&workshop);
        let recipe = Recipe {
            link,
            flags,
            libraries: &["-lm", "-ldl"],
            ..recipe("files.c")
        };
        let program = workshop.compile("files", &recipe);
        workshop.run(&program, &[socket.to_str().unwrap()]);
        let client = Client::connect(&socket, &Default::default()).unwrap();
        let kv = Kv::open(&client, b"a/b").unwrap();
        assert_eq!(kv.get(b"left").unwrap().unwrap(), b"behind");
        assert_eq!(kv.get(b"count").unwrap().unwrap(), b"200");
        drop(kv);
        drop(client);
        service.stop();
    }
}

#[test]
fn a_program_that_ends_with_an_open_store_loses_nothing() {
    for link in [Link::Static, Link::Shared] {
        let workshop = Workshop::new();
        let (service, socket) = served(&workshop);
        let recipe = Recipe {
            link,
            libraries: &["-lm", "-ldl"],
            ..recipe("leaving.c")
        };
        let program = workshop.compile("leaving", &recipe);
        for end in ["return", "exit", "fork"] {
            workshop.run(&program, &[socket.to_str().unwrap(), end]);
            let client = Client::connect(&socket, &Default::default()).unwrap();
            let kv = Kv::open(&client, b"left").unwrap();
            assert_eq!(
                kv.get(end.as_bytes()).unwrap().as_deref(),
                Some(&b"behind"[..])
            );
        }
        service.stop();
    }
}

#[test]
fn stray_stores_into_a_store_kill_the_program() {
    let workshop = Workshop::new();
    let (service, socket) = served(&workshop);
    let program = workshop.compile("guard", &recipe("guard.c"));
    let output = workshop.command(&program).arg(&socket).output().unwrap();
    if said(&output, &program) == "no protection keys\n" {
        skip::test("the processor or the kernel has no protection keys");
    }
    let client = Client::connect(&socket, &Default::default()).unwrap();
    let kv = Kv::open(&client, b"values").unwrap();
    assert_eq!(kv.get(b"key").unwrap().unwrap(), [b'v'; 4096]);
    drop(kv);
    drop(client);
    service.stop();
}

#[test]
fn the_example_shares_its_cache_with_other_programs() {
    let workshop = Workshop::new();
    let (service, socket) = served(&workshop);
    let program = workshop.compile("cache", &recipe(&example("cache.c")));
    let run = |words: &[&str], input: &str| cache(&workshop, &program, &socket, words, input);
    run(&["put", "one"], "first page");
    let client = Client::connect(&socket, &Default::default()).unwrap();
    let kv = Kv::open(&client, b"cache/pages").unwrap();
    assert_eq!(kv.get(b"one").unwrap().unwrap(), b"first page");
    kv.put(b"two", b"second page").unwrap();
    assert_eq!(run(&["show", "two"], ""), "second page");
    run(&["put", "two"], "another");
    assert_eq!(kv.get(b"two").unwrap().unwrap(), b"another");
    let names = run(&["names"], "");
    let mut names: Vec<_> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(run(&["list"], ""), "one\ntwo\n");
    drop(kv);
    drop(client);
    service.stop();
}

fn cache(
    workshop: &Workshop,
    program: &Path,
    socket: &Path,
    words: &[&str],
    input: &str,
) -> String {
    let mut command = workshop.command(program);
    command.arg(socket).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    said(&child.wait_with_output().unwrap(), program)
}
