//! The state of a transaction between its edits and its commit: blocks that it takes and
//! frees, stores in flight, and neutral stores.
//!
//! A transaction that is dropped before its commit gives back the blocks that it took, once
//! its stores are durable.

use crate::edit::INODE_FILE;
use crate::error::{Fault, Res};
use crate::format::BlockNo;
use crate::seeded::{Bug, hit};
use crate::stores::Stores;
use crate::volume::{Dropped, Volume};
use medium::{Pmem, Rule};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{Errno, Ino};

/// The way in which an operation holds the tree lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeLock {
    /// Shared: inodes stay where they are.
    Shared,
    /// Exclusive: inodes may move, and directories may change parents.
    Exclusive,
}

/// Blocks that an operation takes or frees.
type Blocks = SmallVec<[BlockNo; 4]>;

/// The change of the number of blocks of each tree by a commit.
pub(crate) type Deltas = SmallVec<[(Ino, i64); 2]>;

/// The state of a transaction between its edits and its commit.
pub(crate) struct Staged<'v, P: Pmem> {
    pub vol: &'v Volume<P>,
    lock: TreeLock,
    /// The commit will move inodes.
    pub moves_inodes: bool,
    /// Free blocks that this operation must leave.
    leaves: u64,
    taken: Blocks,
    freed: Blocks,
    /// Subtrees to which no pointer leads once this operation has committed, with their trees.
    pub dropped: SmallVec<[(Ino, Dropped); 2]>,
    pub stores: Stores<'v, P>,
    /// Stores of words that change trees but not their contents: byte offset and value.
    pub neutral: SmallVec<[(u64, u64); 2]>,
}

impl<'v, P: Pmem> Staged<'v, P> {
    #[inline]
    pub(crate) fn new(vol: &'v Volume<P>, lock: TreeLock) -> Self {
        Self {
            vol,
            lock,
            moves_inodes: false,
            leaves: vol.reserve,
            taken: Blocks::new(),
            freed: Blocks::new(),
            dropped: SmallVec::new(),
            stores: Stores::new(&vol.pm),
            neutral: SmallVec::new(),
        }
    }

    /// Lets this operation take the blocks that are kept back for changes that free space. It
    /// must free at least as many blocks as it takes.
    pub(crate) fn use_reserve(&mut self) {
        self.leaves = 0;
    }

    /// Takes a block for this operation. It is given back if the operation does not commit. The
    /// check precedes the take without a lock: in modes that keep blocks back, no other
    /// operation takes one now ([`crate::volume::reserve`]).
    pub(crate) fn take(&mut self) -> Res<BlockNo> {
        if self.vol.map.free() <= self.leaves {
            return Err(Errno::NOSPC.into());
        }
        let block = BlockNo(self.vol.map.take().ok_or(Errno::NOSPC)?);
        self.taken.push(block);
        Ok(block)
    }

    /// Frees a block once this operation has committed.
    pub(crate) fn free(&mut self, block: BlockNo) {
        if hit(Bug::ReuseBeforeCommit) {
            self.vol.map.release(block.0);
            return;
        }
        self.freed.push(block);
    }

    /// Frees a subtree of `tree` once this operation has committed. Its blocks are not listed,
    /// which would take unbounded memory: they are found again when they are freed.
    pub(crate) fn drop_tree(&mut self, tree: Ino, dropped: Dropped) -> Res<()> {
        if hit(Bug::ReuseBeforeCommit) {
            return self.vol.release(dropped, &mut 0);
        }
        self.dropped.push((tree, dropped));
        Ok(())
    }

    /// Fails, for a retry under the exclusive lock, if inodes must not move now.
    pub(crate) fn may_move(&mut self, tree: Ino) -> Res<()> {
        if tree == INODE_FILE {
            if self.lock == TreeLock::Shared {
                return Err(Fault::Exclusive);
            }
            self.moves_inodes = true;
        }
        Ok(())
    }

    /// Blocks taken less those freed, without [`dropped`](Self::dropped) subtrees.
    pub(crate) fn balance(&self) -> i64 {
        self.taken.len() as i64 - self.freed.len() as i64
    }

    /// Frees the blocks that a commit replaced (step 4), and keeps those that it took. Adds the
    /// freed blocks of subtrees to `deltas`.
    pub(crate) fn committed(&mut self, deltas: &mut Deltas) {
        self.taken.clear();
        for block in self.freed.drain(..) {
            self.vol.map.release(block.0);
        }
        self.release_dropped(deltas);
    }

    /// Frees subtrees. A read error does not undo the operation: it is logged, and the blocks
    /// stay taken until the next mount.
    fn release_dropped(&mut self, deltas: &mut Deltas) {
        for (ino, dropped) in std::mem::take(&mut self.dropped) {
            let mut freed = 0;
            if hit(Bug::DroppedTreeLeaks) {
                self.vol.map.release(dropped.block.0);
                freed = 1;
            } else if let Err(e) = self.vol.release(dropped, &mut freed) {
                e.errno();
            }
            deltas.push((ino, -(freed as i64)));
        }
    }

    /// Records a failed commit, which may or may not be durable: nothing of it may be reused,
    /// and the volume accepts no more changes.
    pub(crate) fn uncertain(&mut self) {
        self.vol.failed.store(true, SeqCst);
        self.taken.clear();
        self.stores.forget();
    }
}

impl<P: Pmem> Drop for Staged<'_, P> {
    fn drop(&mut self) {
        // Invisible stores of this operation stay in place. They must be durable before its
        // blocks are free: a store of the next owner could otherwise lose against them.
        if self.stores.is_dirty() && hit(Bug::AbortUnflushed) {
            self.stores.forget();
        }
        if self.stores.barrier(Rule::NullifyBeforeReuse).is_err() {
            self.vol.failed.store(true, SeqCst);
        }
        for block in self.taken.drain(..) {
            self.vol.map.release(block.0);
        }
    }
}
