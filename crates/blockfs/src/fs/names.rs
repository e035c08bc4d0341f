//! Making, linking and removing names.

use super::dying::Death;
use super::past_end::PastEnd;
use super::twins::may_have_two;
use super::{BlockFs, Refusal, caller, joined};
use crate::seeded::{Bug, hit};
use crate::{
    Befores, Format, FormatError, Heads, InodeChange, NewInode, Next, Piece, Removed, after,
};
use patch::{Caller, Op, PatchId, Rule};
use vfs::{
    Attr, Cookie, Ctx, DirEntry, Errno, FileType, Ino, Name, NewNode, Removal, Result, Timestamp,
    perm,
};

/// A name of a directory besides the one that is being removed.
pub(super) struct OtherName {
    /// Whether `..` led to the directory of the removed name, and moves.
    moved: bool,
    /// The befores of the removal.
    pub there: Befores,
}

/// When an inode is freed after its last name was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freeing {
    /// In the operation that removes the name.
    Now,
    /// In operations of its own, after its last reference.
    Later,
}

impl<F: Format> BlockFs<F> {
    /// The directory `dir`, searched for `name`.
    pub(super) fn search(
        &self,
        cx: &Ctx,
        dir: Ino,
        name: &[u8],
    ) -> std::result::Result<(Attr, Option<Ino>), Refusal> {
        let attr = self.attr(dir)?;
        if attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let found = match attr.nlink {
            0 => None, // removed, and still referenced
            _ => self.format.find(dir, name)?,
        };
        perm::may_search(cx, &attr)?;
        Ok((attr, found))
    }

    /// The directory `dir`, to which `name` may be added.
    fn parent_for_new(
        &self,
        cx: &Ctx,
        dir: Ino,
        name: &[u8],
    ) -> std::result::Result<Attr, Refusal> {
        let (attr, found) = self.search(cx, dir, name)?;
        if found.is_some() {
            return Err(Errno::EXIST.into());
        }
        if attr.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        perm::may_create(cx, &attr)?;
        Ok(attr)
    }

    /// Lists a directory. An error after an accepted entry only ends the listing, so that the
    /// caller keeps the accepted entries. The next call returns the error.
    pub(super) fn list(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> std::result::Result<bool, Refusal>,
    ) -> Result<()> {
        // An accepted entry is not offered again in the next attempt.
        let mut last = after;
        let listed = self.look(|| {
            let attr = self.attr(dir)?;
            if attr.kind != FileType::Directory {
                return Err(Errno::NOTDIR.into());
            }
            perm::access(cx, &attr, perm::Access::READ)?;
            if attr.nlink == 0 {
                return Err(Errno::NOENT.into());
            }
            let mut refused = None;
            self.format.list(dir, last, &mut |entry| {
                let ino = self.up(entry.ino);
                let more = sink(&DirEntry { ino, ..*entry }).unwrap_or_else(|refusal| {
                    refused = Some(refusal);
                    false
                });
                if more {
                    last = entry.cookie;
                }
                more
            })?;
            refused.map_or(Ok(()), Err)
        });
        if last == after {
            listed?;
        }
        self.accessed(cx, dir);
        Ok(())
    }

    /// Makes an inode and its name. Takes a reference.
    pub(super) fn make_node(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let Name { dir, name } = at;
        let blocks = self.format.cost(1) * 3 + 4;
        self.change_for(cx, blocks, |op| {
            let parent = self.parent_for_new(cx, dir, name)?;
            let directory = new.is_directory();
            perm::may_mknod(cx, new.kind())?;
            if directory && parent.nlink >= self.format.max_links(FileType::Directory) {
                return Err(Errno::MLINK.into());
            }
            if new.target().len() > self.format.max_target() {
                return Err(Errno::NAMETOOLONG.into());
            }
            self.format.ready(Next::AddName { dir, name })?;
            let (ino, ready) = self.make_inode(op, cx, &parent, new)?;
            let mut befores = after(Rule::InitialiseBeforePoint, ready.iter().copied());
            if hit(Bug::NameBeforeInode) {
                befores.clear();
            }
            if directory {
                let links = InodeChange::links(parent.nlink + 1);
                let raised = self.format.change_inode(op, dir, &links, &[])?;
                befores.extend(after(Rule::LinkBeforeUnlink, [raised]));
            }
            let entry = match self
                .format
                .add_name(op, dir, name, ino, new.kind(), &befores)
            {
                Ok(entry) => entry,
                Err(error) => {
                    if directory {
                        let links = InodeChange::links(parent.nlink);
                        self.format.change_inode(op, dir, &links, &[])?;
                    }
                    self.unmake(op, ino)?;
                    return Err(error.into());
                }
            };
            let stamped = self.touch(op, dir, self.now())?;
            self.note(dir, &[entry, stamped]);
            if !hit(Bug::FsyncWithoutName) {
                self.note(ino, &[entry]);
            }
            let entry = Heads::from_slice(&[entry]);
            self.found_on(ino, if directory { &entry } else { &ready });
            self.live_in(ino, dir);
            self.know_past_end(ino, PastEnd::Nothing);
            self.refer(ino);
            Ok(self.shown(self.attr(ino)?))
        })
    }

    /// Takes an inode and gives it its first contents. Returns the befores of a name for it.
    fn make_inode(
        &self,
        op: &Op,
        cx: &Ctx,
        parent: &Attr,
        new: &NewNode<'_>,
    ) -> std::result::Result<(Ino, Heads), Refusal> {
        let owner = perm::new_owner(cx, parent, new);
        let inode = NewInode {
            kind: new.kind(),
            perm: owner.perm,
            nlink: 1 + u32::from(new.is_directory()),
            uid: owner.uid,
            gid: owner.gid,
            rdev: new.rdev(),
            now: self.now(),
        };
        let (ino, ready) = self.format.allocate_inode(op, parent.ino, &inode)?;
        let filled = match new.kind() {
            FileType::Directory => self.format.init_directory(op, ino, parent.ino),
            FileType::Symlink => self.store_target(op, ino, new.target()),
            FileType::Regular
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharDevice
            | FileType::BlockDevice => Ok(Heads::new()),
        };
        let handed = filled.and_then(|filled| {
            let handed = self.format.inherit(op, parent.ino, ino)?;
            Ok(joined([filled, handed]))
        });
        match handed {
            Ok(handed) => Ok((ino, joined([ready, handed]))),
            Err(error) => {
                self.unmake(op, ino)?;
                Err(error.into())
            }
        }
    }

    fn store_target(&self, op: &Op, ino: Ino, target: &[u8]) -> crate::Result<Heads> {
        if target.len() <= self.format.max_inline_target() {
            let stored = self.format.set_inline_target(op, ino, target)?;
            return Ok(Heads::from_slice(&[stored]));
        }
        let size = InodeChange {
            size: Some(target.len() as u64),
            ..InodeChange::default()
        };
        let filled = self.put(op, ino, 0, Piece::from_start(target), &[])?;
        let sized = self.format.change_inode(op, ino, &size, &[])?;
        Ok(Heads::from_slice(&[filled, sized]))
    }

    /// The target of a symbolic link.
    pub(super) fn target_of(&self, ino: Ino) -> std::result::Result<Vec<u8>, Refusal> {
        let attr = self.attr(ino)?;
        if attr.kind != FileType::Symlink {
            return Err(Errno::INVAL.into());
        }
        let damaged =
            || FormatError::Corrupt(format!("inode {ino}: a symbolic link without its target"));
        if attr.size > vfs::SYMLINK_MAX as u64 {
            return Err(damaged().into());
        }
        let target = match self.format.inline_target(ino)? {
            Some(target) => target,
            None => {
                let mut target = vec![0; attr.size as usize];
                self.copy_out(ino, 0, &mut target)?;
                target
            }
        };
        match target.is_empty() || target.contains(&0) {
            true => Err(damaged().into()),
            false => Ok(target),
        }
    }

    /// Frees an inode that did not get a name.
    fn unmake(&self, op: &Op, ino: Ino) -> crate::Result<()> {
        loop {
            let freed = self
                .format
                .free_blocks(op, ino, 0..u64::MAX, u32::MAX, &[])?;
            if !freed.more {
                return self.format.free_inode(op, ino, &[], true);
            }
        }
    }

    /// Updates a directory's times after a change of its names.
    pub(super) fn touch(&self, op: &Op, dir: Ino, now: Timestamp) -> crate::Result<PatchId> {
        let times = InodeChange {
            mtime: Some(now),
            ctime: Some(now),
            ..InodeChange::default()
        };
        self.format.change_inode(op, dir, &times, &[])
    }

    /// Makes an inode without a name. Takes a reference.
    pub(super) fn make_nameless(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.change(&caller(cx), self.format.cost(1) + 4, |op| {
            let parent = self.attr(dir)?;
            if parent.kind != FileType::Directory {
                return Err(Errno::NOTDIR.into());
            }
            perm::may_create(cx, &parent)?;
            let file = NewNode::file(mode);
            let (ino, ready) = self.make_inode(op, cx, &parent, &file)?;
            let none = InodeChange::links(0);
            let befores = after(Rule::InitialiseBeforePoint, ready.iter().copied());
            let unlinked = self.format.change_inode(op, ino, &none, &befores)?;
            let befores = after(Rule::InitialiseBeforePoint, [unlinked]);
            self.format.add_orphan(op, ino, &befores)?;
            self.note(ino, &[unlinked]);
            self.found_on(ino, &ready);
            self.know_past_end(ino, PastEnd::Nothing);
            self.refer(ino);
            let mut known = self.known.lock();
            let known = known.entry(ino).or_default();
            (known.nameless, known.nameable, known.never_named) = (true, true, true);
            self.attr(ino)
        })
    }

    /// Gives an inode a further name. Takes a reference.
    pub(super) fn add_link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change_for(cx, self.format.cost(1) + 4, |op| {
            let attr = self.attr(ino)?;
            self.parent_for_new(cx, dir, name)?;
            perm::may_link(&attr)?;
            let nameable = self
                .known
                .lock()
                .get(&ino)
                .is_some_and(|known| known.nameable);
            if attr.nlink == 0 && !nameable {
                return Err(Errno::NOENT.into());
            }
            if attr.nlink >= self.format.max_links(attr.kind) {
                return Err(Errno::MLINK.into());
            }
            self.format.ready(Next::AddName { dir, name })?;
            let reached = self.before_reached(dir)?;
            let raised = self.raise_links(op, &attr)?;
            let mut befores = after(Rule::LinkBeforeUnlink, raised);
            befores.extend(self.before_name(&attr));
            let entry = match self
                .format
                .add_name(op, dir, name, ino, attr.kind, &befores)
            {
                Ok(entry) => entry,
                Err(error) => {
                    self.format
                        .change_inode(op, ino, &InodeChange::links(attr.nlink), &[])?;
                    if attr.nlink == 0 {
                        self.format.add_orphan(op, ino, &[])?;
                    }
                    return Err(error.into());
                }
            };
            let now = self.now();
            let stamp = InodeChange {
                ctime: Some(now),
                ..InodeChange::default()
            };
            let stamped = self.format.change_inode(op, ino, &stamp, &[])?;
            let touched = self.touch(op, dir, now)?;
            self.note(dir, &[entry, touched]);
            self.note(ino, &[entry, stamped]);
            // The removal of another name waits for these patches as well.
            let reached: Heads = reached.iter().map(|before| before.patch).collect();
            self.note(ino, &reached);
            {
                let mut known = self.known.lock();
                let known = known.entry(ino).or_default();
                (known.nameless, known.nameable) = (false, false);
            }
            self.refer(ino);
            self.attr(ino)
        })
    }

    /// Raises the link count by one, before the name (U3). An inode without links stops being an
    /// orphan.
    pub(super) fn raise_links(&self, op: &Op, attr: &Attr) -> crate::Result<Heads> {
        let links = InodeChange::links(attr.nlink + 1);
        let raised = self.format.change_inode(op, attr.ino, &links, &[])?;
        if attr.nlink > 0 {
            return Ok(Heads::from_slice(&[raised]));
        }
        let befores = after(Rule::LinkBeforeUnlink, [raised]);
        self.format.remove_orphan(op, attr.ino, &befores)
    }

    /// Removes a name.
    pub(super) fn remove_name(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let Name { dir, name } = at;
        if which == Removal::Rmdir {
            self.read_names_for(dir, name);
        }
        let blocks = self.format.cost(self.destroyed_at_once()) + 4;
        let orphan = self.change(&caller(cx), blocks, |op| {
            let (parent, found) = self.search(cx, dir, name)?;
            let found = found.ok_or(Errno::NOENT)?;
            let victim = self.named(found)?;
            perm::may_delete(cx, &parent, &victim)?;
            let directory = victim.kind == FileType::Directory;
            which.check(directory)?;
            if directory && !self.format.is_empty(victim.ino)? {
                return Err(Errno::NOTEMPTY.into());
            }
            let freeing = self.ready_to_drop(&victim)?;
            let now = self.now();
            let stays = self.lean_on_other(op, &victim, dir, name)?;
            let mut befores = self.before_removal(&victim);
            befores.extend(stays.iter().flat_map(|other| other.there.iter().copied()));
            let removed = self.format.remove_name(op, dir, name, &befores)?;
            self.leave_behind(dir, &befores);
            if directory && stays.as_ref().is_none_or(|other| other.moved) {
                let links = InodeChange::links(parent.nlink - 1);
                let lowered =
                    self.format
                        .change_inode(op, dir, &links, removed.before_reuse().as_slice())?;
                self.note(dir, &[lowered]);
            }
            let touched = self.touch(op, dir, now)?;
            self.note(dir, &[removed.patch, touched]);
            let stays = stays.is_some();
            self.drop_link(op, &victim, freeing, removed, now, stays)
        })?;
        match orphan {
            Some(death) => self.destroy_orphan(&caller(cx), death),
            None => Ok(()),
        }
    }

    /// Takes one link off an inode, one of whose names is gone. Returns the inode's [`Death`] if
    /// it is unreferenced and not freed in this operation: pass it to
    /// [`destroy_orphan`](Self::destroy_orphan). `freeing`: the result of
    /// [`ready_to_drop`](Self::ready_to_drop). `stays`: it is a directory with another name.
    pub(super) fn drop_link(
        &self,
        op: &Op,
        victim: &Attr,
        freeing: Freeing,
        removed: Removed,
        now: Timestamp,
        stays: bool,
    ) -> std::result::Result<Option<Death<'_>>, Refusal> {
        let links = match victim.kind {
            FileType::Directory if !stays => 0,
            _ => victim.nlink.saturating_sub(1),
        };
        // Names that were removed earlier may still be on the medium, though this one never was.
        let earlier = self.lowered(victim.ino);
        let left = self.left_behind(victim.ino);
        let never_stored = removed.never_stored && earlier.is_none() && left.is_empty();
        let mut gone = Befores::from_iter(removed.before_reuse());
        gone.extend(left);
        gone.extend(after(Rule::NullifyBeforeReuse, earlier));
        if links == 0 && freeing == Freeing::Now {
            self.destroy(op, victim.ino, &gone, never_stored)?;
            return Ok(None);
        }
        let change = InodeChange {
            ctime: Some(now),
            ..InodeChange::links(links)
        };
        let lowered = self.format.change_inode(op, victim.ino, &change, &gone)?;
        if victim.nlink > 1 && victim.kind != FileType::Directory {
            // The removal waits for them (U4), and so do the patches after it. Naming them again at
            // the next removal would make an edge for each pair of names.
            self.note_unlink(victim.ino);
        }
        self.note(victim.ino, &[removed.patch, lowered]);
        // The last reference is dropped before this, or finds `nameless` set.
        let referenced = {
            let mut known = self.known.lock();
            let known = known.entry(victim.ino).or_default();
            known.lowered = Some(lowered);
            known.nameless = links == 0;
            known.never_named = links == 0 && never_stored;
            known.refs > 0
        };
        if links > 0 {
            return Ok(None);
        }
        let mut noted = gone;
        noted.extend(after(Rule::LinkBeforeUnlink, [lowered]));
        self.format.add_orphan(op, victim.ino, &noted)?;
        Ok(match referenced {
            true => None,
            false => self.dying.enter(victim.ino),
        })
    }

    /// Decides when the inode is freed if its last name is removed. Reads all that
    /// [`drop_link`](Self::drop_link) then needs, before the first change.
    ///
    /// The inode can lose its last reference between this and `drop_link`, but cannot get one.
    pub(super) fn ready_to_drop(&self, victim: &Attr) -> crate::Result<Freeing> {
        let is_last = victim.nlink <= 1 || victim.kind == FileType::Directory;
        if !is_last || self.is_referenced(victim.ino) || victim.blocks > self.small() {
            return Ok(Freeing::Later);
        }
        self.format.ready(Next::Free {
            ino: victim.ino,
            budget: u32::MAX,
        })?;
        Ok(Freeing::Now)
    }

    /// Prepares the removal of one name of an empty directory that may have two, since a crash
    /// interrupted its rename. `..` must lead to the directory of the other name before this name
    /// is removed. Returns `None` if this is the only name.
    pub(super) fn lean_on_other(
        &self,
        op: &Op,
        victim: &Attr,
        dir: Ino,
        name: &[u8],
    ) -> std::result::Result<Option<OtherName>, Refusal> {
        if !may_have_two(victim) {
            return Ok(None);
        }
        let Some(other) = self.other_name(victim.ino, dir, name)? else {
            return Ok(None); // its count is too high
        };
        let mut there = Befores::new();
        let moved = other != dir && self.format.parent(victim.ino)? == dir;
        if moved {
            // The count there may or may not include a link for it.
            let nlink = self.attr(other)?.nlink;
            let raised =
                self.format
                    .change_inode(op, other, &InodeChange::links(nlink + 1), &[])?;
            let befores = after(Rule::LinkBeforeUnlink, [raised]);
            let patch = self.format.set_parent(op, victim.ino, other, &befores)?;
            there = after(Rule::LinkBeforeUnlink, [patch]);
        }
        Ok(Some(OtherName { moved, there }))
    }

    /// Largest `Attr::blocks` that one operation frees together with a name.
    fn small(&self) -> u64 {
        self.destroyed_at_once() * u64::from(self.format.block_bytes()) / 512
    }

    /// Frees a small inode and its blocks.
    fn destroy(&self, op: &Op, ino: Ino, gone: &Befores, never_stored: bool) -> crate::Result<()> {
        loop {
            let freed = self
                .format
                .free_blocks(op, ino, 0..u64::MAX, u32::MAX, gone)?;
            if !freed.more {
                break;
            }
        }
        self.format.free_inode(op, ino, gone, never_stored)?;
        self.known.lock().remove(&ino);
        Ok(())
    }

    /// Blocks of a file that one operation frees.
    pub(super) fn destroyed_at_once(&self) -> u64 {
        self.portion(DESTROY_BLOCKS)
    }

    /// At most `most` blocks, and few enough that an operation on them fits the store. A small
    /// journal takes small operations only.
    pub(super) fn portion(&self, most: u64) -> u64 {
        let room = u64::from(self.format.store().max_op_blocks()) / 4;
        most.min(room).max(1)
    }

    /// Frees an orphan, in as many operations as that takes. A crash in between leaves a smaller
    /// orphan, or blocks without an owner.
    pub(super) fn destroy_orphan(&self, caller: &Caller, death: Death<'_>) -> Result<()> {
        let ino = death.ino();
        loop {
            let more = self.change(caller, self.format.cost(self.destroyed_at_once()), |op| {
                if self.format.inode(ino)?.is_none_or(|attr| attr.nlink > 0)
                    || self.is_referenced(ino)
                {
                    return Ok(false); // named, referenced or freed in between
                }
                let (gone, never_named) = self.last_name_gone(ino);
                let budget = self.destroyed_at_once() as u32;
                self.format.ready(Next::Free { ino, budget })?;
                let freed = self
                    .format
                    .free_blocks(op, ino, 0..u64::MAX, budget, &gone)?;
                if !freed.more {
                    let off = self.format.remove_orphan(op, ino, &gone)?;
                    let befores = after(Rule::NullifyBeforeReuse, off);
                    self.format.free_inode(op, ino, &befores, never_named)?;
                    self.known.lock().remove(&ino);
                    death.free_number();
                }
                Ok(freed.more)
            })?;
            if !more {
                return Ok(());
            }
        }
    }

    /// The befores of freeing an inode without a name, and whether it never had a name on the
    /// medium. Without these befores a name on the medium could lead to a free inode.
    fn last_name_gone(&self, ino: Ino) -> (Befores, bool) {
        let never_named = (self.known.lock().get(&ino)).is_some_and(|known| known.never_named);
        let waits = !never_named && !hit(Bug::EmptyBeforeUnlink);
        let lowered = waits.then(|| self.lowered(ino)).flatten();
        (after(Rule::NullifyBeforeReuse, lowered), never_named)
    }

    /// Frees inodes that had lost their last name, and finishes cuts, at mount.
    pub(super) fn finish_orphans(&self) -> crate::Result<()> {
        for ino in self.format.orphans()? {
            let Some(attr) = self.format.inode(ino)? else {
                continue;
            };
            let done = if attr.nlink > 0 {
                self.finish_cut(&Caller::SYSTEM, ino)
            } else if let Some(death) = self.dying.enter(ino) {
                self.destroy_orphan(&Caller::SYSTEM, death)
            } else {
                Ok(()) // another thread frees it
            };
            if let Err(errno) = done {
                tracing::warn!("inode {ino}, which a crash left half removed, stays: {errno}");
            }
        }
        Ok(())
    }
}

/// Most blocks of a file that one operation frees.
const DESTROY_BLOCKS: u64 = 256;

impl InodeChange {
    /// Makes a change of only the link count.
    fn links(nlink: u32) -> Self {
        Self {
            nlink: Some(nlink),
            ..Self::default()
        }
    }
}
