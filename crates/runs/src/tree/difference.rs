//! Differences of two trees.

use super::{Contents, Inode, Kind, Node, Tree};
use crate::Bytes;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

/// A difference of a crash state from the tree that the program saw.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Difference {
    /// The path.
    pub path: Bytes,
    /// The difference in words, such as `is missing`.
    pub what: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.what)
    }
}

impl Tree {
    /// The differences of `self` from `expected`, in order of path.
    pub fn differences(&self, expected: &Self) -> Vec<Difference> {
        let (ours, theirs) = (by_path(self), by_path(expected));
        let mut found = Vec::new();
        for (path, node) in &theirs {
            let what = match (ours.get(path), expected.get(*node)) {
                (None, _) => Some("is missing".to_owned()),
                (Some(mine), Some(theirs)) => {
                    self.get(*mine).and_then(|mine| of_inode(mine, theirs))
                }
                (Some(_), None) => None,
            };
            found.extend(what.map(|what| difference(path, what)));
        }
        let more = ours.keys().filter(|path| !theirs.contains_key(*path));
        found.extend(more.map(|path| difference(path, "is still there".to_owned())));
        found.sort_unstable();
        found
    }
}

impl Tree {
    /// How far two trees are apart: the paths that only one has, with their pages, and the
    /// attributes, lengths and pages that differ.
    pub(crate) fn distance(&self, other: &Self) -> usize {
        let (ours, theirs) = (by_path(self), by_path(other));
        let theirs_alone = theirs.iter().filter(|(path, _)| !ours.contains_key(*path));
        let alone = theirs_alone.map(|(_, node)| other.get(*node).map_or(1, whole));
        let inodes = ours.iter().map(|(path, mine)| {
            let theirs = theirs.get(path).and_then(|node| other.get(*node));
            match (self.get(*mine), theirs) {
                (Some(mine), Some(theirs)) => apart(mine, theirs),
                (Some(mine), None) => whole(mine),
                (None, _) => 1,
            }
        });
        alone.chain(inodes).sum()
    }
}

/// How far an inode is from none: farther than from one with other contents.
fn whole(inode: &Inode) -> usize {
    2 + inode.contents.pages.len()
}

impl Tree {
    /// The pages of this tree's files that are different in the other tree.
    pub(crate) fn different_pages(&self, other: &Self) -> Vec<(Node, u64)> {
        let (ours, theirs) = (by_path(self), by_path(other));
        let mut found = Vec::new();
        for (path, node) in ours {
            let theirs = theirs.get(&path).and_then(|node| other.get(*node));
            if let (Some(mine), Some(theirs)) = (self.get(node), theirs) {
                let pages = different_pages(&mine.contents, &theirs.contents);
                found.extend(pages.into_iter().map(|page| (node, page)));
            }
        }
        found
    }
}

/// How far two inodes are apart.
fn apart(ours: &Inode, theirs: &Inode) -> usize {
    let attributes = |inode: &Inode| (inode.perm, inode.uid, inode.gid);
    let differs = [
        ours.kind != theirs.kind,
        attributes(ours) != attributes(theirs),
        ours.xattrs != theirs.xattrs,
        ours.contents.size != theirs.contents.size,
    ];
    let pages = different_pages(&ours.contents, &theirs.contents);
    differs.into_iter().filter(|differs| *differs).count() + pages.len()
}

/// The pages that differ, in order.
fn different_pages(ours: &Contents, theirs: &Contents) -> BTreeSet<u64> {
    let numbers = ours.pages.keys().chain(theirs.pages.keys());
    numbers
        .copied()
        .filter(|number| ours.pages.get(number) != theirs.pages.get(number))
        .collect()
}

fn by_path(tree: &Tree) -> BTreeMap<Vec<u8>, Node> {
    tree.paths().into_iter().collect()
}

fn difference(path: &[u8], what: String) -> Difference {
    Difference {
        path: path.into(),
        what,
    }
}

fn of_inode(ours: &Inode, theirs: &Inode) -> Option<String> {
    if ours.kind.file_type() != theirs.kind.file_type() {
        let (ours, theirs) = (ours.kind.file_type(), theirs.kind.file_type());
        return Some(format!("is of type {ours:?}, not {theirs:?}"));
    }
    if let (Kind::Symlink(ours), Kind::Symlink(theirs)) = (&ours.kind, &theirs.kind)
        && ours != theirs
    {
        return Some(format!("points to {ours:?}, not {theirs:?}"));
    }
    if ours.contents != theirs.contents {
        return Some(of_contents(&ours.contents, &theirs.contents));
    }
    let attributes = |inode: &Inode| (inode.perm, inode.uid, inode.gid);
    if attributes(ours) != attributes(theirs) {
        return Some("has another owner or mode".to_owned());
    }
    (ours.xattrs != theirs.xattrs).then(|| "has other extended attributes".to_owned())
}

/// The sizes, or the pages that differ.
fn of_contents(ours: &Contents, theirs: &Contents) -> String {
    if ours.size != theirs.size {
        return format!("has {} bytes, not {}", ours.size, theirs.size);
    }
    let numbers = Vec::from_iter(different_pages(ours, theirs));
    let zeros = |number: &u64| !ours.pages.contains_key(number);
    let state = match numbers.iter().all(zeros) {
        true => "zeros",
        false => "other contents",
    };
    match numbers.as_slice() {
        [one] => format!("has {state} in page {one}"),
        [first, .., last] => format!(
            "has {state} in {} pages from {first} to {last}",
            numbers.len()
        ),
        [] => "has other contents".to_owned(),
    }
}
