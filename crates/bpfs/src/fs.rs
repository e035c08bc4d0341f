//! The mounted file system: what operations share, and the `FileSystem` trait.
//!
//! The operations are in `names` and `rename` (changes of directories), `data` (of contents)
//! and `attrs` (of inodes).

use crate::alloc::Bitmap;
use crate::dir::{self, DirIndex};
use crate::error::{Fault, Res};
use crate::format::{BLOCK, INODE, Inode, at};
use crate::indexes::Indexes;
use crate::mode::Mode;
use crate::mount::SuperInfo;
use crate::table::{Node, Table};
use crate::tx::{Deltas, Tx};
use crate::volume::{Tree, Volume};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use medium::Pmem;
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use vfs::check::{Finding, Report};
use vfs::{
    Atime, Atomicity, Attr, Clock, Cookie, Ctx, DirEntry, Durability, Errno, Fallocate, FileFlags,
    FileSystem, FileType, Guarantees, Ino, Name, NewNode, OpenFlags, Ordering, Removal,
    RenameFlags, Result, SeekKind, SetAttr, StatFs, SystemClock, Timestamp, XattrMode, check_name,
    perm,
};

/// Options of a mount.
#[derive(Clone)]
pub struct MountOptions {
    /// Nothing is written to the medium.
    pub read_only: bool,
    /// Commit mode from now on; `None`: as before.
    pub mode: Option<Mode>,
    /// Access times.
    pub atime: Atime,
    /// The source of time stamps.
    pub clock: Arc<dyn Clock>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            mode: None,
            atime: Atime::Relative,
            clock: Arc::new(SystemClock),
        }
    }
}

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
    pub(crate) indexes: Indexes,
    pub(crate) info: SuperInfo,
}

/// Lowest bit of a stored change time. Clear: the change time is the later of it and the
/// modification time, so that a write stores one time. Set, once a caller has chosen a
/// modification time: the change time stands alone.
pub(crate) const CTIME_ALONE: i64 = 1;

/// How an operation holds the tree lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeLock {
    /// Shared: inodes stay where they are.
    Shared,
    /// Exclusive: inodes may move, and directories may change parents.
    Exclusive,
}

/// An inode's lock, held to change it.
pub(crate) type WriteLock<'f> = RwLockWriteGuard<'f, Option<Box<DirIndex>>>;
/// An inode's lock, held to look at it.
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
    pub fn tree(&self) -> Tree {
        Tree {
            ha: crate::format::HeightAddr(self.inode.ha.get()),
            size: self.inode.size.get(),
        }
    }
}

/// The change time: the later of the two stored times, unless the inode says otherwise.
pub(crate) fn ctime_of(inode: &Inode) -> Timestamp {
    let (mtime, ctime) = (inode.mtime.get(), inode.ctime.get());
    let alone = ctime & CTIME_ALONE != 0;
    Timestamp(if alone {
        ctime & !CTIME_ALONE
    } else {
        ctime.max(mtime)
    })
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

    /// The promises of mounts in `mode`.
    pub fn guarantees_of(mode: Mode) -> Guarantees {
        let times_atomic = !mode.rules().times;
        let mut notes = vec![
            "A write through a mount is atomic up to 1 MiB and 256 pages of the program's memory; \
             a longer one is several calls."
                .into(),
            "A write through mmap is one call for each batch of pages that the kernel writes back."
                .into(),
            "Before Linux 6.6, a write that begins inside a page is several calls.".into(),
        ];
        if !times_atomic {
            notes.push("Each time stamp is old or new by itself.".into());
        }
        Guarantees {
            name: format!("bpfs (mode={mode})"),
            durable: Durability::AtReturn,
            metadata_atomic: Atomicity::Call,
            data_atomic: Atomicity::Call,
            metadata_ordered: Ordering::Global,
            data_ordered: Ordering::Global,
            times_atomic,
            notes,
        }
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

    /// Locks a live inode to look at it, and reads it.
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
            ctime: ctime_of(inode),
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
            if *ino != crate::tx::INODE_FILE {
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

    fn list(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, &Node) -> Res<bool>,
    ) -> Res<()> {
        let (_guard, found) = self.peek(dir)?;
        let node = found.node;
        if found.attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        perm::access(cx, &found.attr, perm::Access::READ)?;
        let parent = Ino(node.parent.load(SeqCst));
        for (ino, name, cookie) in [(dir, &b"."[..], 1), (parent, b"..", 2)] {
            let entry = DirEntry {
                ino,
                kind: FileType::Directory,
                name,
                cookie: Cookie(cookie),
            };
            if after.0 < cookie && !sink(&entry, self.table.node(ino))? {
                return Ok(());
            }
        }
        // The cookie of an entry is 3 + its position / 8: unique, in order, and stable.
        let from = after.0.saturating_sub(2).saturating_mul(8);
        if from >= found.attr.size {
            return Ok(());
        }
        let mut more = true;
        dir::for_blocks(&self.vol, &found.tree(), from, &mut |base, bytes| {
            dir::parse(bytes, base, &mut |e| {
                if e.ino != 0 && e.pos >= from && more {
                    let kind = FileType::from_code(e.kind).unwrap_or(FileType::Regular);
                    let cookie = Cookie(3 + e.pos / 8);
                    let entry = DirEntry {
                        ino: Ino(e.ino),
                        kind,
                        name: e.name,
                        cookie,
                    };
                    // A dead inode is of a failed commit; lookups skip its entry too.
                    if let Ok(node) = self.node(Ino(e.ino)) {
                        more = sink(&entry, node)?;
                    }
                }
                Ok(())
            })?;
            Ok(more)
        })
    }
}

impl<P: Pmem> FileSystem for Bpfs<P> {
    fn guarantees(&self) -> Guarantees {
        Self::guarantees_of(self.info.mode)
    }

    fn audit(&self) -> Vec<Finding> {
        let mut report = Report::default();
        if let Err(e) = crate::audit::audit(self, &mut report) {
            report.add("audit", vfs::check::Severity::Corrupt, format!("{e:?}"));
        }
        report.findings
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.look(|| self.do_lookup(cx, dir, name))
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        self.look(|| {
            let (_guard, found) = self.peek(ino)?;
            found.node.life.refs.fetch_add(1, SeqCst);
            Ok(found.attr)
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.unref(ino, count);
    }

    fn getattr(&self, _cx: &Ctx, ino: Ino) -> Result<Attr> {
        self.look(|| {
            let (_guard, found) = self.peek(ino)?;
            Ok(found.attr)
        })
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.mutate(TreeLock::Shared, |lock| self.do_setattr(cx, ino, set, lock))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let guard = self.shared();
        let listed = self.list(cx, dir, after, &mut |entry, _| Ok(sink(entry)));
        drop(guard);
        listed.map_err(Fault::errno)?;
        self.accessed(cx, dir);
        Ok(())
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let guard = self.shared();
        let listed = self.list(cx, dir, after, &mut |entry, node| {
            // `.` is locked already, and `..` comes before it in the order of locks.
            let _held = (entry.cookie.0 > 2).then(|| node.lock.read());
            let attr = self.find(entry.ino, node)?.attr;
            let accepted = sink(entry, Some(&attr));
            if accepted && entry.cookie.0 > 2 {
                node.life.refs.fetch_add(1, SeqCst);
            }
            Ok(accepted)
        });
        drop(guard);
        listed.map_err(Fault::errno)?;
        self.accessed(cx, dir);
        Ok(())
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        check_name(at.name)?;
        self.mutate(TreeLock::Shared, |lock| self.do_make(cx, at, new, lock))
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let target = self.look(|| self.do_readlink(ino))?;
        self.accessed(cx, ino);
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_link(cx, ino, dir, name, lock)
        })
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.mutate(TreeLock::Shared, |lock| self.do_remove(cx, at, which, lock))
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        self.do_rename(cx, from, to, flags)
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_tmpfile(cx, dir, mode, lock)
        })
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let attr = self.look(|| {
            let (_guard, Found { node, attr, .. }) = self.peek(ino)?;
            perm::may_open(cx, &attr, flags)?;
            node.life.refs.fetch_add(1, SeqCst);
            Ok(attr)
        })?;
        if flags.contains(OpenFlags::TRUNCATE) && attr.kind == FileType::Regular {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            if let Err(e) = self.setattr(cx, ino, &set) {
                self.release(ino);
                return Err(e);
            }
        }
        Ok(())
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let guard = self.shared();
        let read = self.do_read(ino, off, buf);
        drop(guard);
        let (len, stale) = read.map_err(Fault::errno)?;
        if stale && !buf.is_empty() {
            self.accessed(cx, ino);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_write(cx, ino, off, data, lock)
        })
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_fallocate(cx, ino, kind, off, len, lock)
        })
    }

    fn seek(&self, _cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        self.look(|| self.do_seek(ino, off, kind))
    }

    fn fsync(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.look(|| self.node(ino).and_then(|_| self.vol.usable()))
    }

    fn fsyncdir(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.look(|| {
            let (_guard, found) = self.peek(ino)?;
            if found.attr.kind != FileType::Directory {
                return Err(Errno::NOTDIR.into());
            }
            self.vol.usable()
        })
    }

    fn sync(&self) -> Result<()> {
        self.vol.usable().map_err(Fault::errno)
    }

    fn statfs(&self) -> Result<StatFs> {
        let available = self.vol.available();
        let per_block = BLOCK / INODE;
        let numbers_free = self.inodes.free();
        let used = self.inodes.len().saturating_sub(numbers_free + 1);
        let inodes_free = numbers_free + available * per_block;
        Ok(StatFs {
            block_bytes: BLOCK as u32,
            blocks: self.vol.blocks,
            blocks_free: self.vol.map.free(),
            blocks_avail: available,
            inodes: used + inodes_free,
            inodes_free,
            name_max: vfs::NAME_MAX as u32,
        })
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.look(|| self.do_getxattr(cx, ino, name))
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_setxattr(cx, ino, name, value, mode, lock)
        })
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.look(|| self.do_listxattr(cx, ino))
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_removexattr(cx, ino, name, lock)
        })
    }
}
