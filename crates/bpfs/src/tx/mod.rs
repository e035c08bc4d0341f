//! One operation's changes, and their atomic commit.
//!
//! An operation states its changes in three classes:
//!
//! - **visible**: [`Tx::set`], [`Tx::edit`]. All of them appear in one atomic step.
//! - **hidden**: [`Tx::hide`]. Bytes to which no committed structure leads (an inode or
//!   an entry in the making). Stored in place where the mode allows, else visible.
//! - **times**: [`Tx::time`]. Each is old or new by itself where the mode allows
//!   (3.3.4), else visible. [`Tx::time_first`] is durable before the others.
//!
//! # Order
//! 1. Hidden bytes and copies are stored while the trees are crawled. A fence makes
//!    them durable. *Rule: initialise before point.*
//! 2. Neutral stores (a taller tree, a zeroed block in a hole) change the tree but not
//!    its contents. A fence before and after orders them with 1 and with the commit.
//!    *Rule: initialise before point.*
//! 3. **The commit**: one aligned store, or the log's header, or the two super blocks.
//!    The times follow, then a fence. *Rule: data before commit.*
//!    A tree that was cut may then get a lower root, by a store and a fence of its own.
//! 4. Replaced blocks become free. *Rule: nullify before reuse.*
//!
//! # The commit point
//! There is one. The edits of the operation decide which:
//!
//! - *one edit* inside a valid word: that word, with no crawl.
//! - *logged*: some edits go through the redo log, and the others are hidden, past the end
//!   of their tree. No crawl may offer a word or move an inode.
//! - *alone*, which excludes *logged*: the edits are of one file and leave the inode file
//!   unchanged. The crawl of the file has [`Right::Word`](crate::crawl::Right::Word), and a word that it offers is
//!   the point.
//! - else the crawl of the inode file yields the point, and files are changed by copies.
//!
//! *Neutral* stores may accompany the last three. They are not part of the point, and
//! precede it.
//!
//! A transaction that is dropped before 3 has changed nothing. It frees the blocks that it
//! took once its invisible stores are durable, since others skip a store of an equal value.

mod commit;
mod plan;

use crate::edit::{Edit, Edits, INODE_FILE, What};
use crate::error::Res;
use crate::format::{BlockNo, HeightAddr, INODE, at};
use crate::staged::{Staged, TreeLock};
use crate::volume::{Dropped, Tree, Volume};
use medium::Pmem;
use smallvec::SmallVec;
use vfs::Ino;

/// A transaction: the changes of one operation.
pub(crate) struct Tx<'v, 'a, P: Pmem> {
    pub vol: &'v Volume<P>,
    edits: Edits<'a>,
    times: SmallVec<[(Ino, u64, u64); 4]>,
    /// The time that must be durable before the others are stored.
    first_time: Option<(Ino, u64, u64)>,
    /// Byte offsets of inodes, as far as they were looked up.
    homes: SmallVec<[(Ino, u64); 2]>,
    /// New size of the inode file.
    root_size: Option<u64>,
    /// A lower root over the leaves that a tree keeps, stored after the commit: inode, new
    /// word.
    lower: Option<(Ino, HeightAddr)>,
    pub(crate) staged: Staged<'v, P>,
}

impl<'v, 'a, P: Pmem> Tx<'v, 'a, P> {
    #[inline]
    pub(crate) fn new(vol: &'v Volume<P>, lock: TreeLock) -> Self {
        Self {
            vol,
            edits: SmallVec::new(),
            times: SmallVec::new(),
            first_time: None,
            homes: SmallVec::new(),
            root_size: None,
            lower: None,
            staged: Staged::new(vol, lock),
        }
    }

    /// A visible change of a tree's bytes.
    #[inline]
    pub(crate) fn edit(&mut self, tree: Ino, start: u64, end: u64, what: What<'a>) {
        if start < end {
            self.edits.push(Edit {
                tree,
                start,
                end,
                what,
            });
        }
    }

    /// A visible change of one word of an inode.
    pub(crate) fn set(&mut self, ino: Ino, field: u64, value: u64) {
        let at = (ino.0 - 1) * INODE + field;
        self.edit(INODE_FILE, at, at + 8, What::Word(value));
    }

    /// A change of a time.
    #[inline]
    pub(crate) fn time(&mut self, ino: Ino, field: u64, value: i64) {
        if self.vol.rules.times {
            self.times.push((ino, field, value as u64));
        } else {
            self.set(ino, field, value as u64);
        }
    }

    /// A change of a time that must be durable before the other times are stored.
    pub(crate) fn time_first(&mut self, ino: Ino, field: u64, value: i64) {
        if self.vol.rules.times {
            self.first_time = Some((ino, field, value as u64));
        } else {
            self.set(ino, field, value as u64);
        }
    }

    /// A change of bytes at `addr`, to which no committed structure leads.
    pub(crate) fn hide(&mut self, addr: u64, bytes: &[u8]) {
        self.staged.stores.store(addr, bytes);
    }

    /// A hidden change of one word, if it differs.
    pub(crate) fn hide_word(&mut self, addr: u64, value: u64) -> Res<()> {
        self.staged.stores.put_word(addr, value)
    }

    /// Stores the contents of a block that this operation took.
    pub(crate) fn fill(&mut self, addr: u64, bytes: &[u8]) {
        self.staged.stores.fill(addr, bytes);
    }

    /// The inode file gets this size.
    pub(crate) fn grow_inode_file(&mut self, size: u64) {
        self.root_size = Some(size);
    }

    /// Lets this operation take reserved blocks; see [`Staged::use_reserve`].
    pub(crate) fn use_reserve(&mut self) {
        self.staged.use_reserve();
    }

    /// Takes a block, which is given back without a commit; see [`Staged::take`].
    pub(crate) fn take(&mut self) -> Res<BlockNo> {
        self.staged.take()
    }

    /// Frees a block at the commit; see [`Staged::free`].
    pub(crate) fn free(&mut self, block: BlockNo) {
        self.staged.free(block);
    }

    /// Frees a subtree at the commit; see [`Staged::drop_tree`].
    pub(crate) fn drop_tree(&mut self, tree: Ino, dropped: Dropped) -> Res<()> {
        self.staged.drop_tree(tree, dropped)
    }

    /// Gives the tree of `ino`, which this operation cuts, a lower root. All its leaves are
    /// below `root`. The caller drops the nodes above.
    ///
    /// Where the commit copies, the new root is part of it. Otherwise it is a store of its own,
    /// once the commit is durable: a lower tree with the old size has lost its end. *Rule:
    /// nullify before reuse*, reversed.
    pub(crate) fn lower(&mut self, ino: Ino, root: HeightAddr) {
        if self.vol.rules.short_circuit {
            self.lower = Some((ino, root));
        } else {
            self.set(ino, at::HA, root.0);
        }
    }

    /// Records the byte offset of an inode that the caller has looked up.
    #[inline]
    pub(crate) fn at(&mut self, ino: Ino, addr: u64) {
        self.homes.push((ino, addr));
    }

    /// Byte offset of an inode.
    #[inline]
    pub(crate) fn home(&mut self, ino: Ino) -> Res<u64> {
        if let Some((_, addr)) = self.homes.iter().find(|(i, _)| *i == ino) {
            return Ok(*addr);
        }
        let addr = self.vol.inode_addr(ino)?;
        self.homes.push((ino, addr));
        Ok(addr)
    }

    /// A tree as it is before the operation.
    pub(crate) fn tree(&mut self, tree: Ino) -> Res<Tree> {
        match tree {
            INODE_FILE => self.vol.inode_file(),
            ino => self.home(ino).and_then(|addr| self.vol.tree(addr)),
        }
    }
}
