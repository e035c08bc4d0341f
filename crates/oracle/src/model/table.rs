//! The table of inodes, and the count of blocks.

use super::node::{Entry, Node};
use hashbrown::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::{Ctx, Errno, FileType, Ino, NewNode, Result, Timestamp, perm};

/// The table of all inodes.
pub(super) struct Table {
    pub(super) nodes: HashMap<Ino, Arc<Node>>,
    next_ino: u64,
}

/// The count of blocks in use.
pub(super) struct Space {
    /// Blocks in all.
    pub(super) blocks: u64,
    used: AtomicU64,
}

impl Table {
    /// A table that holds only a root directory.
    pub(super) fn new(root: Node) -> Self {
        Self {
            next_ino: root.ino.0 + 1,
            nodes: HashMap::from([(root.ino, Arc::new(root))]),
        }
    }

    /// An independent copy, references included.
    pub(super) fn fork(&self) -> Self {
        let fork = |(&ino, node): (&Ino, &Arc<Node>)| (ino, Arc::new(node.fork()));
        Self {
            nodes: self.nodes.iter().map(fork).collect(),
            next_ino: self.next_ino,
        }
    }

    pub(super) fn node(&self, ino: Ino) -> Result<&Arc<Node>> {
        self.nodes.get(&ino).ok_or(Errno::STALE)
    }

    /// Adds a new inode in `parent`.
    pub(super) fn insert(
        &mut self,
        cx: &Ctx,
        parent: &Node,
        now: Timestamp,
        new: &NewNode<'_>,
    ) -> Arc<Node> {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let owner = perm::new_owner(cx, &parent.attr(), new);
        let node = Arc::new(Node::new(ino, parent.ino, owner, now, new));
        self.nodes.insert(ino, node.clone());
        node
    }

    /// The directory `dir`, if it may be searched for `name`.
    pub(super) fn search(
        &self,
        cx: &Ctx,
        dir: Ino,
        name: &[u8],
    ) -> Result<(Arc<Node>, Option<Entry>)> {
        let parent = self.node(dir)?;
        let entry = parent.entry(name)?;
        perm::may_search(cx, &parent.attr())?;
        Ok((parent.clone(), entry))
    }

    pub(super) fn existing(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<(Arc<Node>, Entry)> {
        let (parent, entry) = self.search(cx, dir, name)?;
        Ok((parent, entry.ok_or(Errno::NOENT)?))
    }

    /// The directory `dir`, if `name` may be added to it.
    pub(super) fn parent_for_new(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Arc<Node>> {
        let (parent, entry) = self.search(cx, dir, name)?;
        if entry.is_some() {
            return Err(Errno::EXIST);
        }
        let attr = parent.attr();
        if attr.nlink == 0 {
            return Err(Errno::NOENT); // removed, and still referenced
        }
        perm::may_create(cx, &attr)?;
        Ok(parent)
    }

    /// Whether `ino` is `below` or one of the directories above it.
    pub(super) fn is_above(&self, ino: Ino, below: Ino) -> bool {
        let mut at = below;
        while at != ino {
            // A removed directory may have no parent any more.
            let parent = self
                .node(at)
                .and_then(|node| node.with_dir(|dir| dir.parent));
            match parent {
                Ok(parent) if at != Ino::ROOT => at = parent,
                _ => return false,
            }
        }
        true
    }

    /// Takes one link off an inode whose name was removed.
    pub(super) fn drop_name(&mut self, node: &Node, now: Timestamp, space: &Space) {
        {
            let body = &mut *node.body.write();
            body.nlink = if node.kind == FileType::Directory {
                0
            } else {
                body.nlink - 1
            };
            body.ctime = now;
        }
        self.reclaim(node, space);
    }

    /// Frees an inode that has neither name nor reference.
    pub(super) fn reclaim(&mut self, node: &Node, space: &Space) {
        let body = node.body.read();
        if body.nlink == 0 && node.refs.load(SeqCst) == 0 && self.nodes.remove(&node.ino).is_some()
        {
            space.give(body.blocks());
        }
    }
}

impl Space {
    /// A space of `blocks` blocks, none of them in use.
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            blocks,
            used: AtomicU64::new(0),
        }
    }

    /// An independent copy.
    pub(super) fn fork(&self) -> Self {
        Self {
            blocks: self.blocks,
            used: AtomicU64::new(self.used()),
        }
    }

    /// Blocks in use.
    pub(super) fn used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    pub(super) fn take(&self, blocks: u64) -> Result<()> {
        let take = |used: u64| used.checked_add(blocks).filter(|&sum| sum <= self.blocks);
        match self.used.fetch_update(SeqCst, SeqCst, take) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::NOSPC),
        }
    }

    pub(super) fn give(&self, blocks: u64) {
        self.used.fetch_sub(blocks, SeqCst);
    }
}
