//! Makes the calls of a run on a file system.

use crate::{Bytes, Call, Entry, Header, Kind, Node, Place, Run, Source, Tree};
use crash::observe::Calls;
use std::collections::HashMap;
use vfs::{
    Ctx, Durability, Errno, Fallocate, FileSystem, FileType, Ino, Name, NewNode, Removal,
    RenameFlags, SetAttr, SetId, Sets, XattrMode,
};

/// The calls of a run, for a file system in this process.
pub(crate) struct Player<'a> {
    run: &'a Run,
    start: Tree,
    /// Whether requests of durability are barriers, as under `selvedge order`.
    order: bool,
    /// The present tree of names, to know what a call removes.
    names: Tree,
    inos: HashMap<Node, Ino>,
    /// By inode: the last entry that uses it.
    last_use: HashMap<Node, usize>,
    set: Option<SetId>,
}

impl<'a> Player<'a> {
    /// A player of a run.
    ///
    /// # Errors
    /// The setup of the run does not fit.
    pub(crate) fn new(run: &'a Run, order: bool) -> Result<Self, String> {
        let mut last_use = HashMap::new();
        for (n, entry) in run.entries.iter().enumerate() {
            for node in nodes_of(&entry.call) {
                last_use.insert(node, n);
            }
        }
        let start = run.start()?;
        Ok(Self {
            run,
            names: start.clone(),
            start,
            order,
            inos: HashMap::new(),
            last_use,
            set: None,
        })
    }

    fn ino(&self, node: Node) -> Result<Ino, String> {
        match node {
            Node::ROOT => Ok(Ino::ROOT),
            node => self
                .inos
                .get(&node)
                .copied()
                .ok_or_else(|| format!("there is no {node}")),
        }
    }

    fn cx(&self) -> Ctx {
        Ctx {
            sets: Sets::new(self.set),
            ..Ctx::root()
        }
    }

    fn play(&mut self, fs: &dyn FileSystem, call: &Call) -> Result<(), String> {
        self.names_of(fs, call)?;
        let cx = self.cx();
        let on = |node: &Node| self.ino(*node);
        let named = |at: &Place| self.ino(at.dir).map(|dir| (dir, at.name.0.clone()));
        let done = match call {
            Call::Make { .. } => Ok(()),
            Call::Link { node, at } => {
                let (dir, name) = named(at)?;
                fs.link(&cx, on(node)?, dir, &name)
                    .map(|attr| fs.forget(attr.ino, 1))
            }
            Call::Remove { at } => {
                let (dir, name) = named(at)?;
                fs.remove(&cx, Name::new(dir, &name), self.removal(at))
            }
            Call::Rename { from, to, exchange } => {
                let (from, to) = (named(from)?, named(to)?);
                let flags = match exchange {
                    true => RenameFlags::EXCHANGE,
                    false => RenameFlags::empty(),
                };
                let (from, to) = (Name::new(from.0, &from.1), Name::new(to.0, &to.1));
                fs.rename(&cx, from, to, flags)
            }
            Call::Write { node, off, data } => fs
                .write(&cx, on(node)?, *off, self.run.bytes(*data))
                .map(drop),
            Call::SetSize { node, size } => fs.truncate(&cx, on(node)?, *size),
            Call::Zero { node, off, len } => {
                let kind = Fallocate::ZeroRange { keep_size: true };
                fs.fallocate(&cx, on(node)?, kind, *off, *len)
            }
            Call::SetAttr {
                node,
                perm,
                uid,
                gid,
            } => fs
                .setattr(&cx, on(node)?, &attributes(*perm, *uid, *gid))
                .map(drop),
            Call::SetXattr { node, name, value } => {
                set_xattr(fs, &cx, on(node)?, name, value.as_ref())
            }
            Call::Sync {
                node, data_only, ..
            } => self.sync(fs, *node, *data_only),
            Call::SyncAll if self.order => self.barrier(fs),
            Call::SyncAll => fs.sync(),
            Call::Barrier => self.barrier(fs),
            Call::Close { .. } | Call::Output { .. } => Ok(()),
        };
        done.map_err(|e| e.to_string())
    }

    /// Makes the inode of a call that makes one.
    fn names_of(&mut self, fs: &dyn FileSystem, call: &Call) -> Result<(), String> {
        let Call::Make {
            node,
            at,
            kind,
            perm,
            uid,
            gid,
        } = call
        else {
            return Ok(());
        };
        let cx = self.cx();
        let made = match at {
            Some(at) => {
                let dir = self.ino(at.dir)?;
                new_node(kind, *perm).and_then(|new| fs.make(&cx, Name::new(dir, &at.name.0), &new))
            }
            None => fs.tmpfile(&cx, Ino::ROOT, *perm),
        };
        let made = made.map_err(|e| e.to_string())?;
        self.inos.insert(*node, made.ino);
        let is_link = made.kind == FileType::Symlink;
        if (made.uid, made.gid) != (*uid, *gid) || (made.perm != *perm && !is_link) {
            let set = attributes(Some(*perm).filter(|_| !is_link), Some(*uid), Some(*gid));
            fs.setattr(&cx, made.ino, &set).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn removal(&self, at: &Place) -> Removal {
        let node = self.names.lookup(at).and_then(|node| self.names.get(node));
        match node.is_some_and(|inode| inode.kind == Kind::Directory) {
            true => Removal::Rmdir,
            false => Removal::Unlink,
        }
    }

    fn sync(&self, fs: &dyn FileSystem, node: Node, data_only: bool) -> vfs::Result<()> {
        if self.order {
            return self.barrier(fs);
        }
        let ino = self.ino(node).map_err(|_| Errno::STALE)?;
        let inode = self.names.get(node);
        match inode.is_some_and(|inode| inode.kind == Kind::Directory) {
            true => fs.fsyncdir(&self.cx(), ino, data_only),
            false => fs.fsync(&self.cx(), ino, data_only),
        }
    }

    /// Begins the next epoch of the set. Without a set each call is in order anyway.
    fn barrier(&self, fs: &dyn FileSystem) -> vfs::Result<()> {
        match (fs.change_order(), self.set) {
            (Some(order), Some(set)) => order.barrier(set),
            _ => Ok(()),
        }
    }

    /// The entry with this number.
    fn entry(&mut self, fs: &dyn FileSystem, n: usize) -> Result<(), String> {
        let entry = &self.run.entries[n];
        self.play(fs, &entry.call)
            .map_err(|e| format!("call {n}: {}: {e}", entry.text))?;
        // Names do not depend on data.
        if !matches!(entry.call, Call::Write { .. }) {
            self.names.apply(&entry.call, &self.run.data)?;
        }
        Ok(())
    }
}

impl Calls for Player<'_> {
    fn prepare(&mut self, fs: &dyn FileSystem) -> Result<(), String> {
        self.inos.clear();
        self.names = Tree::default();
        (0..self.run.header.setup).try_for_each(|n| self.entry(fs, n))
    }

    fn begin(&mut self, fs: &dyn FileSystem) -> Result<(), String> {
        self.inos.clear();
        self.set = None;
        self.names = self.start.clone();
        for (path, node) in self.start.paths() {
            if self.inos.contains_key(&node) {
                continue;
            }
            let mut dir = Ino::ROOT;
            let parts = path.split(|byte| *byte == b'/').collect::<Vec<_>>();
            for (n, name) in parts.iter().enumerate() {
                let found = fs.lookup(&Ctx::root(), dir, name);
                let found = found.map_err(|e| format!("{}: {e}", Bytes::from(&path[..])))?;
                if n + 1 < parts.len() {
                    fs.forget(found.ino, 1); // its name keeps it
                }
                dir = found.ino;
            }
            self.inos.insert(node, dir);
        }
        if self.uses_order() {
            self.set = fs.change_order().map(vfs::ChangeOrder::create);
            // If each call is durable when it returns, the calls are in order anyway.
            if self.set.is_none() && fs.guarantees().durable != Durability::AtReturn {
                return Err("the run has barriers, and this file system keeps no order".into());
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.run.entries.len() - self.run.header.setup
    }

    fn call(&mut self, fs: &dyn FileSystem, n: usize) -> Result<(), String> {
        let n = n + self.run.header.setup;
        self.entry(fs, n)?;
        let unused = nodes_of(&self.run.entries[n].call);
        for node in unused.into_iter().filter(|node| self.last_use[node] == n) {
            if let Some(ino) = self.inos.remove(&node) {
                fs.forget(ino, 1);
            }
        }
        Ok(())
    }

    fn is_promise(&self, n: usize) -> bool {
        matches!(
            self.run.entries[n + self.run.header.setup].call,
            Call::Output { .. }
        )
    }
}

impl Player<'_> {
    fn uses_order(&self) -> bool {
        let is_barrier = |entry: &crate::Entry| entry.call == Call::Barrier;
        self.order || self.run.entries.iter().any(is_barrier)
    }
}

impl Tree {
    /// Makes the tree on an empty file system.
    ///
    /// # Errors
    /// The call that failed, in one line.
    pub fn make_on(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let mut run = Run::new(Header::new(Source::Mount, ""));
        for (call, data) in self.calls() {
            let call = match call {
                Call::Write { node, off, .. } => Call::Write {
                    node,
                    off,
                    data: run.keep(&data),
                },
                call => call,
            };
            run.entries.push(Entry::new(call, "setup"));
        }
        run.header.setup = run.entries.len();
        Player::new(&run, false)?.prepare(fs)
    }
}

/// The inodes that a call names by number, the root excepted.
fn nodes_of(call: &Call) -> Vec<Node> {
    let nodes = match call {
        Call::Make { node, at, .. } => vec![Some(*node), at.as_ref().map(|at| at.dir)],
        Call::Link { node, at } => vec![Some(*node), Some(at.dir)],
        Call::Remove { at } => vec![Some(at.dir)],
        Call::Rename { from, to, .. } => vec![Some(from.dir), Some(to.dir)],
        Call::Write { node, .. }
        | Call::SetSize { node, .. }
        | Call::Zero { node, .. }
        | Call::SetAttr { node, .. }
        | Call::SetXattr { node, .. }
        | Call::Sync { node, .. }
        | Call::Close { node } => vec![Some(*node)],
        Call::SyncAll | Call::Barrier | Call::Output { .. } => Vec::new(),
    };
    let nodes = nodes.into_iter().flatten();
    nodes.filter(|node| *node != Node::ROOT).collect()
}

fn new_node(kind: &Kind, perm: u32) -> vfs::Result<NewNode<'_>> {
    match kind {
        Kind::File => Ok(NewNode::file(perm)),
        Kind::Directory => Ok(NewNode::directory(perm)),
        Kind::Symlink(target) => NewNode::symlink(&target.0),
        Kind::Fifo | Kind::Socket => NewNode::special(kind.file_type(), perm, 0),
        Kind::CharDevice(rdev) | Kind::BlockDevice(rdev) => {
            NewNode::special(kind.file_type(), perm, *rdev)
        }
    }
}

fn attributes(perm: Option<u32>, uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr {
        perm,
        uid,
        gid,
        ..SetAttr::default()
    }
}

fn set_xattr(
    fs: &dyn FileSystem,
    cx: &Ctx,
    ino: Ino,
    name: &Bytes,
    value: Option<&Bytes>,
) -> vfs::Result<()> {
    match value {
        Some(value) => fs.setxattr(cx, ino, &name.0, &value.0, XattrMode::Set),
        None => fs.removexattr(cx, ino, &name.0),
    }
}
