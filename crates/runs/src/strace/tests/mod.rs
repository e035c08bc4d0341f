//! Traces that are written by hand, damaged traces, and real ones.

mod damaged;
mod fragments;
mod real;

use super::*;
use crate::Call;

/// The tree after all calls of a run.
pub(super) fn replayed(run: &Run) -> Tree {
    let mut tree = Tree::default();
    for entry in &run.entries {
        tree.apply(&entry.call, &run.data).unwrap();
    }
    tree
}

/// The texts of the calls after the setup.
pub(super) fn texts(run: &Run) -> Vec<&str> {
    let entries = run.entries[run.header.setup..].iter();
    entries.map(|entry| &*entry.text).collect()
}

/// The contents of a file of a tree.
pub(super) fn contents(tree: &Tree, path: &str) -> Vec<u8> {
    let node = tree.resolve(path.as_bytes()).expect(path);
    tree.get(node).unwrap().contents.bytes(1 << 20).unwrap()
}

/// The bytes that the program of a run has written to its standard output.
pub(super) fn output(run: &Run) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in &run.entries {
        if let Call::Output { data } = entry.call {
            all.extend_from_slice(run.bytes(data));
        }
    }
    all
}
