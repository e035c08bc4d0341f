//! [`BlockFs`]: every system call in terms of a format's steps (UHFS in section 2.4 of
//! the Featherstitch chapter), in soft-updates order.
//!
//! # Guarantees
//! The calls keep the contract of [`FileSystem`] on each store, whether it obeys the order, makes
//! transactions of it or drops it. On a store that obeys, the following holds after any crash:
//!
//! - **U1** A name leads to an initialised inode of its type (`InitialiseBeforePoint`).
//! - **U2** A pointer leads to a block with this file's contents, never another's and never garbage
//!   (`InitialiseBeforePoint`, `NullifyBeforeReuse`).
//! - **U3** A link count is at least the number of names: it is raised before a name is made and
//!   lowered after one is removed.
//! - **U4** A file is never unreachable (`LinkBeforeUnlink`). During a rename the old name, the new
//!   name or both lead to it from the root. Of several names, one is removed only after the others
//!   are durable. A replaced name leads to the old inode or to the new one. A directory has at most
//!   two names. Both are reachable, `..` leads to the directory of one of them, and either can be
//!   removed or renamed.
//! - **U5** A synced file has a name. An fsync waits for the inode's names, and for those of the
//!   new directories that lead to it (see `homes`).
//!
//! A crash may leave blocks and inodes that are marked as used without an owner, link counts that
//! are too high, and wrong free counts.
//!
//! # Locks
//! A call that changes something holds `tree` for writing, other calls for reading. `known` and
//! `twins` are taken inside it, `known` for moments, and `dying` inside `known`.
//! [`Store::begin`](patch::Store::begin) and [`Store::end`](patch::Store::end), which may wait for
//! write-back, are called without any of them.
//!
//! Before its first change a call does not hold `tree` while it waits for a device. It runs in
//! attempts (see [`patch::attempt`]), and other calls may change the tree between them. An attempt
//! that stops has no effects. One that succeeds has seen one state of the tree. A listing that
//! takes several attempts goes on after the entries that it has returned.
//!
//! After its first change a call waits with `tree` held. The blocks that it will read are therefore
//! read before ([`Format::ready`]). These reads remain:
//! - blocks that the cache has evicted meanwhile, and all reads of a call that has given attempts
//!   up;
//! - the names of the whole tree, if a directory that is removed after a crash got a high link
//!   count only since the names were read (`twins`);
//! - the other name of a directory that a rename replaces;
//! - further bitmaps, if free counts are wrong or nearly all groups are full;
//! - blocks that are overwritten as a whole, with the optimisation `hard` off;
//! - with a journal, the neighbour in the list of orphans of a file that gets a name.

mod attrs;
mod change_order;
mod data;
mod dying;
mod homes;
mod known;
mod labels;
mod names;
mod order;
mod past_end;
mod policy;
mod refusal;
mod rename;
mod twins;
mod unstored;

pub use policy::OnError;

use crate::{Format, FormatError, Heads};
use dying::{Death, Dying};
use hashbrown::HashMap;
use known::{Known, MIN_KNOWN, Synced};
use parking_lot::{Mutex, RwLock};
use patch::attempt::Attempts;
use patch::{Caller, Groups, Op, Store};
use refusal::{Refusal, not_stored, report};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use twins::Twins;
use vfs::check::Finding;
use vfs::xattrs::{XattrChange, names_for};
use vfs::{
    Atime, Attr, Clock, Cookie, Ctx, DirEntry, Errno, Fallocate, FileFlags, FileSystem, FileType,
    Guarantees, Ino, Name, NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr,
    StatFs, SystemClock, Timestamp, XattrMode, perm,
};

/// Options of a mount.
#[derive(Clone)]
pub struct BlockFsOptions {
    /// Whether all changes are refused.
    pub read_only: bool,
    /// When reads update access times.
    pub atime: Atime,
    /// The clock for time stamps.
    pub clock: Arc<dyn Clock>,
    /// The promise of the stack.
    pub guarantees: Guarantees,
    /// The reaction to damage.
    pub on_error: OnError,
    /// The layer on the others of the store, which orders sets of changes. Without it the file
    /// system has no [`ChangeOrder`](vfs::ChangeOrder).
    pub groups: Option<Arc<Groups<Arc<dyn Store>>>>,
}

impl BlockFsOptions {
    /// Options of a read-write mount with relative access times and the system's clock.
    pub fn new(guarantees: Guarantees) -> Self {
        Self {
            read_only: false,
            atime: Atime::Relative,
            clock: Arc::new(SystemClock),
            guarantees,
            on_error: OnError::default(),
            groups: None,
        }
    }
}

/// A mounted file system of format `F`, with the guarantees and locks of the module.
pub struct BlockFs<F: Format> {
    format: F,
    options: BlockFsOptions,
    tree: RwLock<()>,
    known: Mutex<HashMap<Ino, Known>>,
    /// Number of `known` inodes at which unreferenced, durable ones are forgotten.
    most_known: AtomicUsize,
    dying: Dying,
    twins: Twins,
    policy: policy::Policy,
}

impl<F: Format> BlockFs<F> {
    /// Mounts. Unless read-only, it finishes the unlinked and truncated files that a crash left, as
    /// far as the format has recorded them.
    ///
    /// # Errors
    /// The defect of the image or of its medium.
    pub fn open(format: F, options: BlockFsOptions) -> std::result::Result<Self, FormatError> {
        let fs = Self {
            twins: Twins::new(format.was_clean()),
            format,
            options,
            tree: RwLock::new(()),
            known: Mutex::new(HashMap::new()),
            most_known: AtomicUsize::new(MIN_KNOWN),
            dying: Dying::default(),
            policy: policy::Policy::default(),
        };
        if !fs.options.read_only {
            fs.finish_orphans()?;
        }
        Ok(fs)
    }

    /// Unmounts: frees inodes without names, open ones included, makes everything durable and marks
    /// the image as clean. No call may follow.
    ///
    /// # Errors
    /// If something could not be stored. The image is then not marked.
    pub fn close(&self) -> std::result::Result<(), FormatError> {
        if self.options.read_only {
            return Ok(());
        }
        // Inodes without names are freed even if they are open.
        (self.known.lock().values_mut()).for_each(|known| known.refs = 0);
        // An inode that cannot be read must not keep the changes of all others from the disk.
        let finished = match self.is_read_only() {
            true => Ok(()),
            false => self.finish_orphans(),
        };
        self.sync().map_err(FormatError::Limit)?;
        finished?;
        self.format.close()
    }

    /// The format beneath.
    pub fn format(&self) -> &F {
        &self.format
    }

    // --- operations -----------------------------------------------------------------

    /// Runs a change of `caller`, of at most `blocks` distinct blocks. It may run several times:
    /// before its first change it stops where it would wait for a device. That wait takes place
    /// without the lock, and between operations of the store.
    fn change<T>(
        &self,
        caller: &Caller,
        blocks: u32,
        mut f: impl FnMut(&Op) -> std::result::Result<T, Refusal>,
    ) -> Result<T> {
        let mut attempts = Attempts::new(self.format.store());
        let result = loop {
            self.is_served()?;
            if self.is_read_only() {
                return Err(Errno::ROFS);
            }
            let op = self.format.store().begin(blocks, caller.clone());
            let op = op.map_err(FormatError::from);
            let op = op.map_err(|e| report(&e))?;
            let done = {
                let _alone = self.tree.write();
                attempts.run(|| f(&op))
            };
            self.format.store().end(op);
            match done {
                Some(result) => break result,
                None => attempts.fetch(),
            }
        };
        result.map_err(|refusal| self.failed(refusal))
    }

    /// Runs a call, and again after it found no room while an inode without a name and
    /// references was freed.
    fn patiently<T>(&self, f: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let ended = self.dying.ended();
            match f() {
                Err(Errno::NOSPC) if self.dying.wait(ended) => {}
                result => return result,
            }
        }
    }

    /// Runs `f`, which changes nothing. It may run several times: an attempt stops where it would
    /// wait for a device, and that wait takes place without the lock.
    fn look<T>(&self, mut f: impl FnMut() -> std::result::Result<T, Refusal>) -> Result<T> {
        self.is_served()?;
        let mut attempts = Attempts::new(self.format.store());
        let result = loop {
            let done = {
                let _shared = self.tree.read();
                attempts.run(&mut f)
            };
            match done {
                Some(result) => break result,
                None => attempts.fetch(),
            }
        };
        result.map_err(|refusal| self.failed(refusal))
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    // --- inodes ---------------------------------------------------------------------

    /// Translates a caller's inode number to the format's.
    fn down(&self, ino: Ino) -> Ino {
        if ino == Ino::ROOT {
            self.format.root()
        } else {
            ino
        }
    }

    /// Translates the directory of a name to the format's number.
    fn name_down<'a>(&self, at: Name<'a>) -> Name<'a> {
        Name::new(self.down(at.dir), at.name)
    }

    /// Translates the format's inode number to the callers'.
    fn up(&self, ino: Ino) -> Ino {
        if ino == self.format.root() {
            Ino::ROOT
        } else {
            ino
        }
    }

    /// Attributes of an inode in use, by the format's number.
    fn attr(&self, ino: Ino) -> std::result::Result<Attr, Refusal> {
        let attr = self.format.inode(ino)?.ok_or(Errno::STALE)?;
        self.saw(attr.flags);
        Ok(attr)
    }

    /// Attributes of an inode that a name leads to. A free one is damage.
    fn named(&self, ino: Ino) -> std::result::Result<Attr, Refusal> {
        let attr = self.format.inode(ino)?.ok_or_else(|| {
            FormatError::Corrupt(format!("inode {ino}: a name leads to it, but it is free"))
        })?;
        self.saw(attr.flags);
        Ok(attr)
    }

    /// The attributes as callers see them.
    fn shown(&self, mut attr: Attr) -> Attr {
        attr.ino = self.up(attr.ino);
        attr
    }

    fn refer(&self, ino: Ino) {
        self.known.lock().entry(ino).or_default().refs += 1;
    }

    fn is_referenced(&self, ino: Ino) -> bool {
        self.known
            .lock()
            .get(&ino)
            .is_some_and(|known| known.refs > 0)
    }

    /// Gives back references. The last one frees an inode that has no name.
    fn give_back(&self, ino: Ino, count: u64) {
        let Some(death) = self.take_references(ino, count) else {
            return;
        };
        if let Err(errno) = self.destroy_orphan(&Caller::SYSTEM, death) {
            tracing::warn!("inode {ino} has no name and could not be freed: {errno}");
        }
    }

    /// Takes references off an inode. Returns its [`Death`] if it has no name and this was the
    /// last reference. `statfs` counts its blocks as free from here on, so calls without room
    /// must wait for it from here on, too.
    fn take_references(&self, ino: Ino, count: u64) -> Option<Death<'_>> {
        let mut known = self.known.lock();
        self.forget_homes(&mut known, ino);
        let entry = known.get_mut(&ino)?;
        entry.refs = entry.refs.saturating_sub(count);
        if entry.refs > 0 {
            return None;
        }
        entry.prune(|patch| self.format.store().is_pending(patch));
        let is_nameless = entry.nameless;
        if entry.can_be_forgotten() {
            known.remove(&ino);
        }
        match is_nameless && !self.is_read_only() {
            true => self.dying.enter(ino),
            false => None,
        }
    }

    /// Updates the access time after a read, if the policy requires it.
    fn accessed(&self, cx: &Ctx, ino: Ino) {
        if cx.noatime || self.options.atime == Atime::Never || self.is_read_only() {
            return;
        }
        let now = self.now();
        let due = |attr: &Attr| {
            !attr.flags.contains(FileFlags::NOATIME) && self.options.atime.is_due(attr, now)
        };
        let Ok(true) = self.look(|| Ok(due(&self.attr(ino)?))) else {
            return;
        };
        let change = crate::InodeChange {
            atime: Some(now),
            ..Default::default()
        };
        // A read does not fail because its time could not be stored.
        let _ = self.change(&caller(cx), 1, |op| {
            let stamped = self.format.change_inode(op, ino, &change, &[])?;
            self.note_inode(ino, &change, stamped);
            Ok(())
        });
    }
}

/// The process of a call, for the store's layers.
fn caller(cx: &Ctx) -> Caller {
    Caller {
        uid: cx.uid,
        gid: cx.gid,
        pid: cx.pid,
        sets: patch::Sets::new(cx.sets.numbers().cloned()),
    }
}

impl<F: Format> FileSystem for BlockFs<F> {
    fn guarantees(&self) -> Guarantees {
        self.options.guarantees.clone()
    }

    fn change_order(&self) -> Option<&dyn vfs::ChangeOrder> {
        self.options.groups.as_ref().map(|_| self as _)
    }

    fn audit(&self) -> Vec<Finding> {
        self.format.audit()
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        vfs::check_name(name)?;
        let dir = self.down(dir);
        self.look(|| {
            let (_, found) = self.search(cx, dir, name)?;
            let attr = self.named(found.ok_or(Errno::NOENT)?)?;
            self.refer(attr.ino);
            Ok(self.shown(attr))
        })
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        let ino = self.down(ino);
        self.look(|| {
            let attr = self.attr(ino)?;
            // One lock: a forget in between would end the inode's life.
            let mut known = self.known.lock();
            let is_referenced = known.get(&ino).is_some_and(|known| known.refs > 0);
            if attr.nlink == 0 && !is_referenced {
                return Err(Errno::STALE.into());
            }
            known.entry(ino).or_default().refs += 1;
            Ok(self.shown(attr))
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.give_back(self.down(ino), count);
    }

    fn getattr(&self, _cx: &Ctx, ino: Ino) -> Result<Attr> {
        let ino = self.down(ino);
        self.look(|| Ok(self.shown(self.attr(ino)?)))
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let ino = self.down(ino);
        let attr = self.set_attributes_of(cx, ino, set)?;
        self.stored(&[ino], FileFlags::SYNC)?;
        Ok(self.shown(attr))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(cx, self.down(dir), after, &mut |entry| Ok(sink(entry)))
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let mut damage = None;
        let listed = self.list(cx, self.down(dir), after, &mut |entry| {
            let ino = self.down(entry.ino);
            let attr = match self.named(ino) {
                Ok(attr) => Some(self.shown(attr)),
                Err(refusal) if refusal.is_damage() => {
                    damage = Some(refusal);
                    None
                }
                Err(refusal) => return Err(refusal),
            };
            let accepted = sink(entry, attr.as_ref());
            if accepted && !matches!(entry.name, b"." | b"..") {
                self.refer(ino);
            }
            Ok(accepted)
        });
        if let Some(refusal) = damage {
            self.failed(refusal);
        }
        listed
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        vfs::check_name(at.name)?;
        let at = self.name_down(at);
        let attr = self.patiently(|| self.make_node(cx, at, new))?;
        self.stored_names(&[at.dir])?;
        Ok(attr)
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let ino = self.down(ino);
        let target = self.look(|| self.target_of(ino))?;
        self.accessed(cx, ino);
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        vfs::check_name(name)?;
        let (ino, dir) = (self.down(ino), self.down(dir));
        let attr = self.patiently(|| self.add_link(cx, ino, dir, name))?;
        self.stored_names(&[dir])?;
        Ok(self.shown(attr))
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        vfs::check_name(at.name)?;
        self.remove_name(cx, self.name_down(at), which)?;
        self.stored_names(&[at.dir])
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        vfs::check_name(from.name)?;
        vfs::check_name(to.name)?;
        let names = [self.name_down(from), self.name_down(to)];
        self.patiently(|| self.move_name(cx, names, flags))?;
        self.stored_names(&[from.dir, to.dir])
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        let dir = self.down(dir);
        let attr = self.patiently(|| self.make_nameless(cx, dir, mode))?;
        Ok(self.shown(attr))
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let ino = self.down(ino);
        let attr = self.look(|| {
            let attr = self.attr(ino)?;
            perm::may_open(cx, &attr, flags)?;
            self.refer(ino);
            Ok(attr)
        })?;
        if flags.contains(OpenFlags::TRUNCATE) && attr.kind == FileType::Regular {
            let cut = self.cut(cx, ino);
            if cut.is_err() {
                self.give_back(ino, 1);
            }
            return cut;
        }
        Ok(())
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let ino = self.down(ino);
        let len = self.read_data(ino, off, buf)?;
        if !buf.is_empty() {
            self.accessed(cx, ino);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        let ino = self.down(ino);
        let len = self.patiently(|| self.write_data(cx, ino, off, data))?;
        self.stored(&[ino], FileFlags::SYNC)?;
        Ok(len)
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        let ino = self.down(ino);
        self.patiently(|| self.allocate_range(cx, ino, kind, off, len))?;
        self.stored(&[ino], FileFlags::SYNC)
    }

    fn seek(&self, _cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        let ino = self.down(ino);
        self.look(|| self.seek_data(ino, off, kind))
    }

    fn fsync(&self, _cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        let wanted = match data_only {
            true => Synced::AllButTimes,
            false => Synced::All,
        };
        self.sync_inode(ino, wanted)
    }

    fn fsyncdir(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        let attr = self.look(|| self.attr(self.down(ino)))?;
        if attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        self.sync_inode(ino, Synced::All)
    }

    fn sync(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let written_back = match self.is_read_only() {
            true => Ok(()),
            false => self.change(&Caller::SYSTEM, self.format.cost(0), |op| {
                Ok(self.format.write_back(op)?)
            }),
        };
        written_back
            .and_then(|()| {
                let synced = self.format.store().sync_all().map_err(FormatError::from);
                synced.map_err(|e| report(&e))
            })
            .map_err(not_stored)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.look(|| {
            let mut free = self.format.statfs()?;
            let orphans = match self.is_read_only() {
                true => Vec::new(),
                false => self.format.orphans()?,
            };
            // All orphans are freed with their last reference.
            for ino in orphans.into_iter().filter(|&ino| !self.is_referenced(ino)) {
                if let Some(attr) = self.format.inode(ino)?.filter(|attr| attr.nlink == 0) {
                    free.blocks_free += attr.blocks * 512 / u64::from(free.block_bytes);
                    free.inodes_free += 1;
                }
            }
            free.blocks_avail = free
                .blocks_free
                .saturating_sub(self.format.reserve_blocks());
            Ok(free)
        })
    }

    fn nameless(&self) -> Vec<Ino> {
        if self.is_read_only() {
            return Vec::new();
        }
        let nameless = self.look(|| {
            let mut inos = self.format.orphans()?;
            inos.retain(|&ino| self.is_referenced(ino));
            Ok(inos)
        });
        nameless.unwrap_or_default()
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.get_attribute(cx, self.down(ino), name)
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let ino = self.down(ino);
        let change = XattrChange::set(name, value, mode)?;
        self.patiently(|| self.change_attributes(cx, ino, &change))?;
        self.stored(&[ino], FileFlags::SYNC)
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let ino = self.down(ino);
        self.look(|| {
            self.attr(ino)?;
            let all = self.format.attributes(ino)?;
            Ok(names_for(cx, all))
        })
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let change = XattrChange::Remove { name };
        self.change_attributes(cx, self.down(ino), &change)?;
        self.stored(&[ino], FileFlags::SYNC)
    }
}

/// Joins the patches of several steps.
fn joined(heads: impl IntoIterator<Item = Heads>) -> Heads {
    heads.into_iter().flatten().collect()
}
