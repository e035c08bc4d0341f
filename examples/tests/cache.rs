//! The example in Rust shares a cache with other programs of a service.

use aerie_client::{Client, Kv};
use aerie_server::Limits;
use medium::{MapOptions, MappedPmem, Reserve};
use pxfs::Pxfs;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use vfs::{Atime, SystemClock};

/// Runs the program with one command. Its standard output.
fn cache(socket: &Path, words: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cache"));
    command.arg(socket).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pages_are_values_for_all_programs() {
    let place = tempfile::tempdir().unwrap();
    let (image, socket) = (place.path().join("image"), place.path().join("socket"));
    medium::create_file(&image, 16 << 20, Reserve::Sparse).unwrap();
    let memory = Arc::new(MappedPmem::open(&image, &MapOptions::default()).unwrap());
    let durability = memory.durability();
    pxfs::mkfs(&memory, &pxfs::MkfsOptions::default()).unwrap();
    let fs = Pxfs::open(memory, Arc::new(SystemClock), Atime::Never).unwrap();
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let service = aerie_server::serve(fs, (&file, durability), &socket, Limits::default()).unwrap();
    cache(&socket, &["put", "one"], "first page");
    let client = Client::connect(&socket, &Default::default()).unwrap();
    let pages = Kv::open(&client, b"cache/pages").unwrap();
    assert_eq!(pages.get(b"one").unwrap().unwrap(), b"first page");
    pages.put(b"two", b"second page").unwrap();
    assert_eq!(cache(&socket, &["show", "two"], ""), "second page");
    cache(&socket, &["put", "two"], "another");
    assert_eq!(pages.get(b"two").unwrap().unwrap(), b"another");
    let names = cache(&socket, &["names"], "");
    let mut names: Vec<_> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(cache(&socket, &["list"], ""), "one\ntwo\n");
    drop(pages);
    drop(client);
    service.stop();
}
