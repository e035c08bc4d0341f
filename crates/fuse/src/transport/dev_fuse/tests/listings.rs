//! Listings fill the buffer that the kernel offers, and no more.

use super::kernel::{Body, Kernel, everything, op};
use super::model;
use super::stub::Failing;
use crate::options::MountOptions;
use std::collections::BTreeSet;
use std::sync::Arc;
use vfs::Errno;

/// Bytes of an entry before its name: without attributes, and with them.
const PLAIN: usize = 24;
const PLUS: usize = 128 + PLAIN;

#[derive(Debug)]
struct Entry {
    ino: u64,
    cookie: u64,
    kind: u32,
    name: Vec<u8>,
    /// The node and the seconds for which it and its attributes are valid, if there are any.
    node: Option<(u64, [u64; 2])>,
}

fn list(kernel: &mut Kernel, opcode: u32, after: u64, bytes: u32) -> Vec<Entry> {
    let body = Body::new().u64(0).u64(after).u32(bytes).u32(0);
    let reply = kernel.ok(opcode, 1, &body.u64(0).u64(0));
    assert!(reply.body.len() <= bytes as usize, "{}", reply.body.len());
    let head = if opcode == op::READDIR { PLAIN } else { PLUS };
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < reply.body.len() {
        let dirent = at + head - PLAIN;
        let len = reply.u32(dirent + 16) as usize;
        let lifetimes = || [reply.u64(at + 16), reply.u64(at + 24)];
        entries.push(Entry {
            ino: reply.u64(dirent),
            cookie: reply.u64(dirent + 8),
            kind: reply.u32(dirent + 20),
            name: reply.body[at + head..at + head + len].to_vec(),
            node: (head == PLUS).then(|| (reply.u64(at), lifetimes())),
        });
        at += (head + len).next_multiple_of(8);
    }
    assert_eq!(at, reply.body.len());
    entries
}

/// Lists everything through buffers of this size.
fn list_all(kernel: &mut Kernel, opcode: u32, bytes: u32) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let after = all.last().map_or(0, |entry| entry.cookie);
        let mut some = list(kernel, opcode, after, bytes);
        if some.is_empty() {
            return all;
        }
        all.append(&mut some);
    }
}

#[test]
fn every_name_is_listed_once_whatever_the_buffer() {
    let mut kernel = model();
    for n in 0..40 {
        let name = format!("{}{n}", "n".repeat(n * 5));
        kernel.make_file(name.as_bytes(), 0o600);
    }
    kernel.make_dir(1, b"dir");
    for opcode in [op::READDIR, op::READDIRPLUS] {
        for bytes in [400, 1000, 4096, 65_536] {
            let all = list_all(&mut kernel, opcode, bytes);
            let names: BTreeSet<_> = all.iter().map(|entry| &entry.name).collect();
            assert_eq!((all.len(), names.len()), (43, 43), "of {bytes} bytes");
            let dir = all.iter().find(|entry| entry.name == b"dir").unwrap();
            assert_eq!(dir.kind, 4);
        }
    }
    kernel.unmount().unwrap();
}

/// The entry that did not fit comes with the next buffer, and its inode is not referred to.
#[test]
fn a_buffer_that_is_too_small_for_an_entry_gets_none() {
    let mut kernel = model();
    for opcode in [op::READDIR, op::READDIRPLUS] {
        for bytes in [0, 8, 24] {
            assert!(list(&mut kernel, opcode, 0, bytes).is_empty());
        }
    }
    kernel.unmount().unwrap();
}

#[test]
fn entries_with_attributes_name_their_inode() {
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o600);
    let all = list_all(&mut kernel, op::READDIRPLUS, 4096);
    let found = all.iter().find(|entry| entry.name == b"file").unwrap();
    let year = 31_536_000;
    assert_eq!(found.ino, file);
    assert_eq!(found.node, Some((file, [year, year])));
    kernel.unmount().unwrap();
}

/// Neither its name nor its attributes are valid for any time: the next use asks for it.
#[test]
fn an_inode_that_cannot_be_read_is_listed_and_not_believed() {
    let fs = Failing {
        lists_unreadable: true,
        ..Failing::with(Errno::IO)
    };
    let mut kernel = Kernel::start(Arc::new(fs), &MountOptions::default(), everything());
    let before = crate::io_errors();
    let all = list(&mut kernel, op::READDIRPLUS, 0, 4096);
    assert!(crate::io_errors() > before);
    let [entry] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!((entry.ino, &entry.name[..]), (9, &b"unreadable"[..]));
    assert_eq!(entry.node, Some((9, [0, 0])));
    kernel.unmount().unwrap();
}
