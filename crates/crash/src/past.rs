//! The states after each operation, as callers saw them and inode by inode.

use crate::handles::{FileId, Handle};
use crate::sabotage::{Sabotage, hit};
use crate::world::{Inode, World};
use oracle::script::State;
use oracle::snapshot::{Content, Node, Snapshot, Times};
use std::collections::BTreeMap;
use vfs::{Ctx, Errno, FileSystem, FileType, Ino, Timestamp};

/// The state after an operation.
pub(crate) struct Past {
    pub expected: Expected,
    /// The state by inode; empty where the promise states nothing about single inodes.
    pub known: Known,
}

/// The state after an operation by inode, and the file of each inode number.
#[derive(Default)]
pub(crate) struct Known {
    pub world: World,
    /// The file of each inode number.
    pub files: BTreeMap<Ino, FileId>,
    /// Time of the operation.
    pub at: Timestamp,
}

/// An inode, and its names if it is a directory.
pub(crate) type KnownFile<'a> = (&'a Inode, Option<&'a BTreeMap<Vec<u8>, Ino>>);

impl Known {
    /// A file in this state.
    pub(crate) fn of(&self, file: FileId) -> Option<KnownFile<'_>> {
        let (ino, _) = self.files.iter().find(|(_, other)| **other == file)?;
        Some((self.world.nodes.get(ino)?, self.world.names.get(ino)))
    }
}

/// The state of the model after an operation.
pub(crate) struct Expected {
    pub snapshot: Snapshot,
    pub hash: u64,
    /// The inode of each path, in order.
    pub inos: Vec<Ino>,
    /// The handle of each path's file on the file system, in order.
    pub handles: Vec<Handle>,
    /// The times of open files, which may have no name.
    open: Vec<(Ino, Times)>,
}

impl Expected {
    /// The state of `model`, and of the files that the script has open in `state`.
    pub(crate) fn of(model: &dyn FileSystem, state: &State) -> Result<Self, String> {
        let snapshot = Snapshot::take(model).map_err(|e| format!("model: {e}"))?;
        let inos: Result<_, Errno> = snapshot.iter().map(|(p, ..)| resolve(model, p)).collect();
        let inos = inos.map_err(|e| format!("model: {e}"))?;
        let open = state.open_inodes().map(|ino| {
            let attr = model.getattr(&state.cx, ino)?;
            Ok((ino, Times::of(&attr)))
        });
        let open: Result<_, Errno> = open.collect();
        let open = open.map_err(|e| format!("model: {e}"))?;
        let hash = snapshot.hash() as u64;
        Ok(Self {
            snapshot,
            hash,
            inos,
            handles: Vec::new(),
            open,
        })
    }

    /// The differences of `seen`, without any crash, from this state.
    pub(crate) fn compared_with(&self, seen: &Snapshot) -> Option<String> {
        if !same_content(seen, &self.snapshot) {
            return Some(self.snapshot.diff(seen).join("; "));
        }
        let times = || self.snapshot.diff_times(seen).join("; ");
        (!seen.has_same_times(&self.snapshot)).then(|| format!("times differ: {}", times()))
    }

    pub(crate) fn times_of(&self, ino: Ino) -> Option<&Times> {
        if let Some(at) = self.inos.iter().position(|i| *i == ino) {
            return self.snapshot.iter().nth(at).map(|(_, _, times)| times);
        }
        let open = self.open.iter().find(|(open, _)| *open == ino);
        open.map(|(_, times)| times)
    }
}

pub(crate) fn resolve(fs: &dyn FileSystem, path: &[u8]) -> Result<Ino, Errno> {
    let cx = Ctx::root();
    let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Ino::ROOT, |dir, name| {
        let attr = fs.lookup(&cx, dir, name)?;
        fs.forget(attr.ino, 1);
        Ok(attr.ino)
    })
}

/// The handle of each path.
pub(crate) fn handles_of(fs: &dyn FileSystem, seen: &Snapshot) -> Result<Vec<Handle>, String> {
    let handle = |path: &[u8]| {
        let attr = fs.getattr(&Ctx::root(), resolve(fs, path)?)?;
        Ok((attr.ino, attr.generation))
    };
    let paths = seen.iter().map(|(path, ..)| path);
    let all = paths.map(|path| handle(path).map_err(|e| failed("stat", path, e)));
    all.collect()
}

pub(crate) fn failed(what: &str, path: &[u8], e: Errno) -> String {
    format!("{what} {}: {e}", path.escape_ascii())
}

/// Whether callers see the same, times apart.
pub(crate) fn same_content(a: &Snapshot, b: &Snapshot) -> bool {
    if hit(Sabotage::LinkCountIgnored) {
        return same_without_links(a, b);
    }
    a.is_same_except_times(b)
}

/// Whether callers see the same, times and link counts apart.
pub(crate) fn same_without_links(a: &Snapshot, b: &Snapshot) -> bool {
    let without_links = |(path, node, _): (&[u8], &Node, &Times)| {
        let node = node.clone();
        (path.to_vec(), Node { nlink: 0, ..node })
    };
    a.iter().map(without_links).eq(b.iter().map(without_links))
}

/// Whether callers see the same, times and contents of files apart.
pub(crate) fn same_but_contents(a: &Snapshot, b: &Snapshot) -> bool {
    let bare = |(path, node, _): (&[u8], &Node, &Times)| {
        let content = match node.kind {
            FileType::Regular => Content::None,
            _ => node.content.clone(),
        };
        let node = node.clone();
        (path.to_vec(), Node { content, ..node })
    };
    a.iter().map(bare).eq(b.iter().map(bare))
}
