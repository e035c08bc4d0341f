//! The mounted file system, and the state and steps that operations share.
//!
//! The operations are in `names` and `rename` (changes of directories), `data` (of
//! contents) and `attrs` (of inodes).

use crate::alloc::Bitmap;
use crate::dir::DirIndex;
use crate::edit::INODE_FILE;
use crate::error::{Fault, Res};
use crate::format::{BLOCK, CTIME_ALONE, HeightAddr, Inode, at};
use crate::indexes::Indexes;
use crate::staged::{Deltas, TreeLock};
use crate::super_block::SuperInfo;
use crate::table::{Node, Table};
use crate::tx::Tx;
use crate::volume::{Tree, Volume};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use hashbrown::HashSet;
use medium::Pmem;
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};
use vfs::{Atime, Attr, Clock, Errno, FileFlags, FileType, Ino, Result, Timestamp, perm};

/// A mounted BPFS.
pub struct Bpfs<P: Pmem> {
    pub(crate) vol: Volume<P>,
    pub(crate) table: Table,
    /// Inode numbers in use. Number 0 is never free.
    pub(crate) inodes: Bitmap,
    pub(crate) inode_capacity: u64,
    pub(crate) read_only: bool,
    pub(crate) atime: Atime,
    pub(crate) clock: Arc<dyn Clock>,
    /// Shared: inodes stay where they are. Exclusive: they may move.
    pub(crate) tree_lock: ShardedLock<()>,
    /// Held while the inode file grows.
    pub(crate) grow_lock: Mutex<()>,
    /// Inodes that have lost their last name, and whose space is not free yet.
    pub(crate) nameless: Mutex<HashSet<u64>>,
    pub(crate) indexes: Indexes,
    pub(crate) info: SuperInfo,
}

/// The lock of an inode, held to change it.
pub(crate) type WriteLock<'f> = RwLockWriteGuard<'f, Option<Box<DirIndex>>>;
/// The lock of an inode, held to read it.
pub(crate) type ReadLock<'f> = RwLockReadGuard<'f, Option<Box<DirIndex>>>;

/// An inode, as an operation has read it.
pub(crate) struct Found<'f> {
    pub ino: Ino,
    pub node: &'f Node,
    pub addr: u64,
    pub inode: Inode,
    pub attr: Attr,
}

impl Found<'_> {
    pub(crate) fn tree(&self) -> Tree {
        Tree {
            ha: HeightAddr(self.inode.ha.get()),
            size: self.inode.size.get(),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.attr.kind == FileType::Directory
    }
}

#[cold]
fn bad_mode(ino: Ino, mode: u32) -> Fault {
    Fault::Corrupt(format!("inode {ino} has mode {mode:o}"))
}

impl<P: Pmem> Bpfs<P> {
    /// The medium.
    pub fn pmem(&self) -> &P {
        &self.vol.pm
    }

    /// The contents of the super block.
    pub fn info(&self) -> &SuperInfo {
        &self.info
    }

    /// Takes the shared tree lock: inodes stay where they are while it is held.
    pub(crate) fn shared(&self) -> ShardedLockReadGuard<'_, ()> {
        self.tree_lock
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a change. It holds the shared tree lock if that is enough and the mode commits in
    /// place. Otherwise, or if inodes must move, it holds the exclusive lock.
    ///
    /// `op` must leave no trace when it fails.
    pub(crate) fn mutate<R>(&self, enough: TreeLock, op: impl Fn(TreeLock) -> Res<R>) -> Result<R> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        self.vol.usable().map_err(Fault::errno)?;
        if enough == TreeLock::Shared && self.vol.rules.other {
            let guard = self.shared();
            match op(TreeLock::Shared) {
                Err(Fault::Exclusive) => drop(guard),
                done => return done.map_err(Fault::errno),
            }
        }
        let _guard = self
            .tree_lock
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        op(TreeLock::Exclusive).map_err(Fault::errno)
    }

    /// Runs a look-up under the shared tree lock.
    pub(crate) fn look<R>(&self, op: impl Fn() -> Res<R>) -> Result<R> {
        let _guard = self.shared();
        op().map_err(Fault::errno)
    }

    /// The volatile state of a live inode.
    #[inline]
    pub(crate) fn node(&self, ino: Ino) -> Res<&Node> {
        if ino.0 == 0 || ino.0 >= self.inodes.len() {
            return Err(Errno::STALE.into());
        }
        let node = self.table.node(ino);
        if !node.life.live.load(SeqCst) {
            return Err(Errno::STALE.into());
        }
        Ok(node)
    }

    /// Locks a live inode to change it.
    #[inline]
    pub(crate) fn locked(&self, ino: Ino) -> Res<(WriteLock<'_>, &Node)> {
        let node = self.node(ino)?;
        let held = node.lock.write();
        if !node.life.live.load(SeqCst) {
            return Err(Errno::STALE.into()); // freed while this thread waited
        }
        self.vol.usable()?; // after a failed commit the state may never be durable
        Ok((held, node))
    }

    /// Locks a live inode to change it, and reads it.
    #[inline]
    pub(crate) fn hold(&self, ino: Ino) -> Res<(WriteLock<'_>, Found<'_>)> {
        let (held, node) = self.locked(ino)?;
        Ok((held, self.find(ino, node)?))
    }

    /// Locks a live inode against changes, and reads it.
    #[inline]
    pub(crate) fn peek(&self, ino: Ino) -> Res<(ReadLock<'_>, Found<'_>)> {
        let node = self.node(ino)?;
        let held = node.lock.read();
        self.node(ino)?; // it may have been freed while this thread waited
        Ok((held, self.find(ino, node)?))
    }

    /// Reads an inode. The caller holds the tree lock, and the inode's lock if the
    /// fields must belong together.
    #[inline]
    pub(crate) fn find<'f>(&'f self, ino: Ino, node: &'f Node) -> Res<Found<'f>> {
        let addr = self.vol.inode_addr(ino)?;
        let inode = self.vol.inode(addr)?;
        let attr = self.attr(ino, node, &inode)?;
        Ok(Found {
            ino,
            node,
            addr,
            inode,
            attr,
        })
    }

    /// The attributes of an inode, from its fields and its volatile counts.
    #[inline]
    pub(crate) fn attr(&self, ino: Ino, node: &Node, inode: &Inode) -> Res<Attr> {
        let mode = inode.mode.get();
        let kind = FileType::from_mode(mode).ok_or_else(|| bad_mode(ino, mode))?;
        let names = node.life.names.load(SeqCst);
        let nlink = match kind {
            FileType::Directory if names > 0 => 2 + node.subdirs.load(SeqCst),
            _ => names,
        };
        Ok(Attr {
            ino,
            generation: inode.generation.get(),
            kind,
            perm: mode & perm::PERM_MASK,
            nlink,
            uid: inode.uid.get(),
            gid: inode.gid.get(),
            rdev: inode.rdev.get() as u32,
            size: inode.size.get(),
            blocks: node.blocks.load(Relaxed) * (BLOCK / 512),
            blksize: BLOCK as u32,
            atime: Timestamp(inode.atime.get()),
            mtime: Timestamp(inode.mtime.get()),
            ctime: inode.change_time(),
            flags: FileFlags::empty(),
        })
    }

    /// Adds the time of a change of the contents to a transaction.
    pub(crate) fn touch_contents(&self, tx: &mut Tx<'_, '_, P>, of: &Found<'_>, now: Timestamp) {
        tx.at(of.ino, of.addr);
        tx.time(of.ino, at::MTIME, now.0);
        if of.inode.ctime.get() & CTIME_ALONE != 0 {
            self.touch_inode(tx, of, now);
        }
    }

    /// Adds the time of a change of the inode to a transaction. Returns the change time as it
    /// is stored.
    pub(crate) fn touch_inode(
        &self,
        tx: &mut Tx<'_, '_, P>,
        of: &Found<'_>,
        now: Timestamp,
    ) -> i64 {
        let alone = of.inode.ctime.get() & CTIME_ALONE;
        let ctime = (now.0 & !CTIME_ALONE) | alone;
        tx.time(of.ino, at::CTIME, ctime);
        ctime
    }

    /// Updates the block counts by the changes of a commit.
    pub(crate) fn apply(&self, deltas: &Deltas) {
        for (ino, delta) in deltas {
            if *ino != INODE_FILE {
                self.table
                    .node(*ino)
                    .blocks
                    .fetch_add(*delta as u64, Relaxed);
            }
        }
    }

    /// The index of a directory, which is read if it is not in memory.
    pub(crate) fn index<'g>(
        &self,
        guard: &'g mut Option<Box<DirIndex>>,
        dir: &Found<'_>,
    ) -> Res<&'g mut DirIndex> {
        if dir.attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let index = match guard.take() {
            Some(index) => index,
            None => Box::new(DirIndex::build(&self.vol, &dir.tree())?),
        };
        let index = guard.insert(index);
        self.indexes.used(dir.ino, index, &self.table);
        Ok(index)
    }

    /// Gives back `count` references. With the last one, an inode without a name is freed.
    pub(crate) fn unref(&self, ino: Ino, count: u64) {
        let _guard = self.shared();
        let Ok(node) = self.node(ino) else { return };
        if node.life.unref(count) {
            self.reap(ino, node);
        }
    }

    /// Takes note of an inode that has lost a name, and frees it if nothing refers to it.
    pub(crate) fn unnamed(&self, ino: Ino, node: &Node) {
        {
            let mut nameless = self.nameless.lock();
            // After the end of its life nobody would take it out again.
            if node.life.live.load(SeqCst) && node.life.names.load(SeqCst) == 0 {
                nameless.insert(ino.0);
            }
        }
        self.reap(ino, node);
    }

    /// Frees an inode that has neither name nor reference. No stored pointer leads to it, so
    /// only the maps change. The operation that removes the last name or reference calls this.
    pub(crate) fn reap(&self, ino: Ino, node: &Node) {
        let mut guard = node.lock.write();
        if !node.life.end() {
            return;
        }
        if let Some(index) = guard.take() {
            self.indexes.dropped(ino, &index);
        }
        if !self.read_only
            && let Err(e) = self.free_contents(ino)
        {
            e.errno(); // logged; unreadable blocks stay taken until the next mount
        }
        node.blocks.store(0, Relaxed);
        node.subdirs.store(0, Relaxed);
        node.nameable.store(false, Relaxed);
        self.nameless.lock().remove(&ino.0);
        self.inodes.release(ino.0);
    }

    fn free_contents(&self, ino: Ino) -> Res<()> {
        let addr = self.vol.inode_addr(ino)?;
        let tree = self.vol.tree(addr)?;
        let xattr = self.vol.pointer(self.vol.inode(addr)?.xattr.get())?;
        if !xattr.is_null() {
            self.vol.map.release(xattr.0);
        }
        match tree.whole() {
            Some(all) => self.vol.release(all, &mut 0),
            None => Ok(()),
        }
    }
}
