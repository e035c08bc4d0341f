//! Operations that change directories: make, link, remove, rename.

use crate::dir::{self, DirIndex, NewEntry, Place};
use crate::error::{Fault, Res};
use crate::format::{BLOCK, HeightAddr, INODE, Inode, at, rec_len};
use crate::fs::{Bpfs, Found, WriteLock};
use crate::table::Node;
use crate::tx::{INODE_FILE, Tx, What};
use crate::volume::Volume;
use medium::Pmem;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{Attr, Ctx, Errno, FileType, Ino, RenameFlags, Result, Timestamp, check_name, perm};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of an inode that mean something.
const INODE_USED: usize = at::XATTR as usize + 8;

/// An inode number taken for an operation; given back unless the operation keeps it.
struct Number<'f, P: Pmem> {
    fs: &'f Bpfs<P>,
    ino: Ino,
    kept: bool,
}

impl<P: Pmem> Drop for Number<'_, P> {
    fn drop(&mut self) {
        if !self.kept {
            self.fs.inodes.release(self.ino.0);
        }
    }
}

/// An inode in the making.
struct NewInode {
    ino: Ino,
    inode: Inode,
}

impl NewInode {
    fn new(ino: Ino, kind: FileType, owner: perm::NewOwner, rdev: u32, now: Timestamp) -> Self {
        let mut inode = Inode::new_zeroed();
        inode.uid = owner.uid.into();
        inode.gid = owner.gid.into();
        inode.mode = (kind.mode_bits() | owner.perm).into();
        inode.rdev = u64::from(rdev).into();
        inode.mtime = now.0.into();
        inode.ctime = (now.0 & !crate::fs::CTIME_ALONE).into();
        inode.atime = now.0.into();
        Self { ino, inode }
    }

    /// Adds it to a transaction: in place where the mode allows, since no entry names it.
    fn put<'a, P: Pmem>(&'a mut self, tx: &mut Tx<'_, 'a, P>) -> Res<()> {
        let addr = tx.home(self.ino)?;
        self.inode.generation = tx.vol.pm.load(addr)?.wrapping_add(1).into();
        let bytes = &self.inode.as_bytes()[..INODE_USED];
        if tx.vol.rules.other {
            for (i, word) in bytes.chunks_exact(8).enumerate() {
                let word = word.try_into().map_or(0, u64::from_le_bytes);
                tx.hide_word(addr + i as u64 * 8, word)?;
            }
        } else {
            let start = (self.ino.0 - 1) * INODE;
            tx.edit(
                INODE_FILE,
                start,
                start + INODE_USED as u64,
                What::Bytes(bytes),
            );
        }
        Ok(())
    }
}

impl Node {
    /// A new inode's volatile state.
    fn start(&self, names: u32, blocks: u64, parent: Ino) {
        self.names.store(names, SeqCst);
        self.refs.store(1, SeqCst);
        self.subdirs.store(0, SeqCst);
        self.blocks.store(blocks, SeqCst);
        self.parent.store(parent.0, SeqCst);
        self.nameable.store(names == 0, SeqCst);
        self.live.store(true, SeqCst);
    }
}

impl<P: Pmem> Bpfs<P> {
    pub(crate) fn do_lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Res<Attr> {
        check_name(name)?;
        let (held, parent) = self.peek(dir)?;
        if !parent.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &parent.attr)?;
        let found = match held.as_deref() {
            Some(index) => index.find(&self.vol, &parent.tree(), name)?,
            None => {
                drop(held);
                let (mut held, parent) = self.hold(dir)?;
                let found =
                    self.index(&mut held, &parent)?
                        .find(&self.vol, &parent.tree(), name)?;
                // The entry may go once the lock does: take the reference under it.
                return self.refer(found);
            }
        };
        self.refer(found)
    }

    fn refer(&self, found: Option<(u64, Ino, FileType)>) -> Res<Attr> {
        let (_, ino, _) = found.ok_or(Errno::NOENT)?;
        let node = self.node(ino)?;
        let attr = self.find(ino, node)?.attr;
        node.refs.fetch_add(1, SeqCst);
        Ok(attr)
    }

    fn take_number(&self, exclusive: bool) -> Res<Number<'_, P>> {
        loop {
            if let Some(n) = self.inodes.take() {
                let number = Number {
                    fs: self,
                    ino: Ino(n),
                    kept: false,
                };
                // A commit that failed may have left the number in use on the medium.
                self.vol.usable()?;
                return Ok(number);
            }
            self.grow_inodes(exclusive)?;
        }
    }

    /// Appends one block of inodes. Nothing refers to them: their contents do not matter.
    fn grow_inodes(&self, exclusive: bool) -> Res<()> {
        let _guard = self.grow_lock.lock();
        if self.inodes.free() > 0 {
            return Ok(());
        }
        let size = self.vol.inode_file()?.size;
        let numbers = (size + BLOCK) / INODE + 1;
        if numbers > self.inode_capacity {
            return Err(Errno::NOSPC.into());
        }
        let mut tx = Tx::new(&self.vol, exclusive);
        tx.edit(INODE_FILE, size, size + BLOCK, What::Blank);
        tx.grow_inode_file(size + BLOCK);
        tx.commit()?;
        self.inodes.grow(numbers);
        Ok(())
    }

    /// A place for `name` in a directory, made ready.
    fn place(&self, index: &mut DirIndex, dir: Ino, name: &[u8], exclusive: bool) -> Res<Place> {
        self.vol.usable()?; // a commit that failed may have left an entry there
        let place = index.choose(rec_len(name.len()));
        if place.pos() >= dir::MAX_BYTES {
            return Err(Errno::NOSPC.into());
        }
        let Place::Reset { pos } = place else {
            return Ok(place);
        };
        // Only holes are left in this block: one store turns them into unused space. It
        // must be durable before their old heads are overwritten.
        let mut tx = Tx::new(&self.vol, exclusive);
        tx.edit(dir, pos + 8, pos + 16, What::Word(0));
        let deltas = tx.commit()?;
        self.apply(&deltas);
        index.was_reset(pos);
        Ok(index.choose(rec_len(name.len())))
    }

    /// Checks that `name` may be made in `parent`.
    fn may_make(&self, cx: &Ctx, parent: &Found<'_>, index: &DirIndex, name: &[u8]) -> Res<()> {
        perm::may_search(cx, &parent.attr)?;
        if index.find(&self.vol, &parent.tree(), name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if parent.attr.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        Ok(perm::may_create(cx, &parent.attr)?)
    }

    /// Makes an inode of any type, with a name.
    #[allow(clippy::too_many_arguments)] // one for each thing that distinguishes the calls
    pub(crate) fn make(
        &self,
        cx: &Ctx,
        dir: Ino,
        name: &[u8],
        kind: FileType,
        mode: u32,
        rdev: u32,
        target: &[u8],
    ) -> Result<Attr> {
        check_name(name)?;
        self.mutate(false, |exclusive| {
            let (mut held, parent) = self.hold(dir)?;
            let dir_node = parent.node;
            let index = self.index(&mut held, &parent)?;
            self.may_make(cx, &parent, index, name)?;
            let owner = perm::new_owner(cx, &parent.attr, kind, mode);
            let mut number = self.take_number(exclusive)?;
            let place = self.place(index, dir, name, exclusive)?;
            let parent = self.find(dir, dir_node)?; // the two may have moved it
            let now = self.clock.now();
            let entry = NewEntry::new(number.ino, kind, name, place);
            let mut new = NewInode::new(number.ino, kind, owner, rdev, now);
            let mut tx = Tx::new(&self.vol, exclusive);
            entry.put(&mut tx, dir, &parent.tree(), place, self.vol.rules.other)?;
            if !target.is_empty() {
                let block = tx.take()?;
                tx.fill(block.addr(), target);
                new.inode.ha = HeightAddr::new(0, block).0.into();
                new.inode.size = (target.len() as u64).into();
            }
            new.put(&mut tx)?;
            self.touch_contents(&mut tx, &parent, now);
            let deltas = tx.commit()?;
            self.apply(&deltas);
            index.placed(place, name);
            let node = self.table.node(number.ino);
            node.start(1, u64::from(!target.is_empty()), dir);
            number.kept = true;
            if kind == FileType::Directory {
                dir_node.subdirs.fetch_add(1, SeqCst);
            }
            Ok(self.find(number.ino, node)?.attr)
        })
    }

    pub(crate) fn do_tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32, exclusive: bool) -> Res<Attr> {
        let (_held, parent) = self.peek(dir)?;
        if !parent.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_create(cx, &parent.attr)?;
        let owner = perm::new_owner(cx, &parent.attr, FileType::Regular, mode);
        let mut number = self.take_number(exclusive)?;
        let now = self.clock.now();
        let mut new = NewInode::new(number.ino, FileType::Regular, owner, 0, now);
        let mut tx = Tx::new(&self.vol, exclusive);
        new.put(&mut tx)?;
        tx.commit()?;
        let node = self.table.node(number.ino);
        node.start(0, 0, dir);
        number.kept = true;
        Ok(self.find(number.ino, node)?.attr)
    }

    pub(crate) fn do_link(
        &self,
        cx: &Ctx,
        ino: Ino,
        dir: Ino,
        name: &[u8],
        exclusive: bool,
    ) -> Res<Attr> {
        check_name(name)?;
        let (mut held, parent) = self.hold(dir)?;
        let index = self.index(&mut held, &parent)?;
        self.may_make(cx, &parent, index, name)?;
        // Before it is locked: a directory may come before `dir` in the order of locks.
        perm::may_link(&self.find(ino, self.node(ino)?)?.attr)?;
        let (_file_held, file) = self.hold(ino)?;
        perm::may_link(&file.attr)?; // another inode may have got the number
        if file.node.names.load(SeqCst) == 0 && !file.node.nameable.load(SeqCst) {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        if file.node.names.load(SeqCst) == u32::MAX {
            return Err(Errno::MLINK.into());
        }
        let place = self.place(index, dir, name, exclusive)?;
        let parent = self.find(dir, parent.node)?; // that may have moved it
        let now = self.clock.now();
        let entry = NewEntry::new(ino, file.attr.kind, name, place);
        let mut tx = Tx::new(&self.vol, exclusive);
        entry.put(&mut tx, dir, &parent.tree(), place, self.vol.rules.other)?;
        self.touch_contents(&mut tx, &parent, now);
        self.touch_inode(&mut tx, &file, now);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        index.placed(place, name);
        file.node.names.fetch_add(1, SeqCst);
        file.node.nameable.store(false, SeqCst);
        file.node.refs.fetch_add(1, SeqCst);
        Ok(self.find(ino, file.node)?.attr)
    }

    /// Removes a name: of a directory, if it is empty, with `want_dir`; else of anything
    /// but a directory.
    pub(crate) fn remove(
        &self,
        cx: &Ctx,
        dir: Ino,
        name: &[u8],
        want_dir: bool,
        exclusive: bool,
    ) -> Res<()> {
        check_name(name)?;
        let (mut held, parent) = self.hold(dir)?;
        let index = self.index(&mut held, &parent)?;
        perm::may_search(cx, &parent.attr)?;
        let tree = parent.tree();
        let (pos, ino, _) = index.find(&self.vol, &tree, name)?.ok_or(Errno::NOENT)?;
        let (mut victim_held, victim) = self.hold(ino)?;
        perm::may_delete(cx, &parent.attr, &victim.attr)?;
        match (want_dir, victim.is_dir()) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            // Held until the name is gone, it stays empty.
            (true, true) => self.must_be_empty(&mut victim_held, &victim)?,
            (false, false) => {}
        }
        let entry_len = dir::entry_len(&self.vol, &tree, pos)?;
        let now = self.clock.now();
        let mut tx = Tx::new(&self.vol, exclusive);
        tx.edit(dir, pos, pos + 8, What::Word(0));
        self.touch_contents(&mut tx, &parent, now);
        self.touch_survivor(&mut tx, &victim, now);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        index.removed(pos, entry_len, name);
        if want_dir {
            parent.node.subdirs.fetch_sub(1, SeqCst);
        }
        victim.node.names.fetch_sub(1, SeqCst);
        drop((victim_held, held));
        self.reap(ino, victim.node);
        Ok(())
    }

    fn must_be_empty(&self, held: &mut Option<Box<DirIndex>>, dir: &Found<'_>) -> Res<()> {
        if self.index(held, dir)?.len() > 0 {
            Err(Errno::NOTEMPTY.into())
        } else {
            Ok(())
        }
    }

    /// An inode that loses a name and can still be seen has changed.
    fn touch_survivor(&self, tx: &mut Tx<'_, '_, P>, victim: &Found<'_>, now: Timestamp) {
        let node = victim.node;
        if node.refs.load(SeqCst) > 0 || node.names.load(SeqCst) > 1 {
            self.touch_inode(tx, victim, now);
        }
    }

    /// Whether `ino` is `below` or a directory above it. The exclusive tree lock is held.
    fn is_above(&self, ino: Ino, below: Ino) -> bool {
        let mut at = below;
        loop {
            if at == ino {
                return true;
            }
            let parent = Ino(self.table.node(at).parent.load(SeqCst));
            if at == Ino::ROOT || parent == at {
                return false;
            }
            at = parent;
        }
    }
}

/// One end of a rename.
#[derive(Clone, Copy)]
struct End<'e> {
    dir: Ino,
    node: &'e Node,
    name: &'e [u8],
}

/// What a rename has found in place.
struct Move<'e> {
    from: End<'e>,
    to: End<'e>,
    source: Found<'e>,
    source_pos: u64,
    target: Option<Found<'e>>,
    target_pos: u64,
    exchange: bool,
}

/// The locked indexes of a rename: one if both ends are in one directory.
struct Indexes<'i> {
    from: &'i mut DirIndex,
    to: Option<&'i mut DirIndex>,
}

impl Indexes<'_> {
    fn to(&mut self) -> &mut DirIndex {
        self.to.as_deref_mut().unwrap_or(self.from)
    }
}

impl<P: Pmem> Bpfs<P> {
    pub(crate) fn do_rename(
        &self,
        cx: &Ctx,
        (dir, name): (Ino, &[u8]),
        (new_dir, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        if flags.contains(RenameFlags::NO_REPLACE | RenameFlags::EXCHANGE) {
            return Err(Errno::INVAL);
        }
        // Directories change parents only under the exclusive lock: ancestry holds still.
        self.mutate(dir != new_dir, |exclusive| {
            let (mut from_held, from_dir) = self.hold(dir)?;
            let mut other = (dir != new_dir).then(|| self.hold(new_dir)).transpose()?;
            let from = End {
                dir,
                node: from_dir.node,
                name,
            };
            let to = End {
                dir: new_dir,
                node: other
                    .as_ref()
                    .map_or(from_dir.node, |(_, found)| found.node),
                name: new_name,
            };
            let from_index = self.index(&mut from_held, &from_dir)?;
            let to_index = match &mut other {
                None => None,
                Some((held, found)) => Some(self.index(held, found)?),
            };
            let mut indexes = Indexes {
                from: from_index,
                to: to_index,
            };
            let Some(mut plan) = self.plan_rename(cx, from, to, &mut indexes, flags)? else {
                return Ok(());
            };
            let mut held = self.hold_moved(&mut plan)?;
            if let (Some(target), false) = (&plan.target, plan.exchange)
                && let Some((_, lock)) = held.iter_mut().find(|(ino, _)| *ino == target.ino)
                && target.is_dir()
            {
                // Held until the name is gone, it stays empty.
                self.must_be_empty(lock, target)?;
            }
            self.apply_rename(&plan, &mut indexes, exclusive)?;
            drop((held, other, from_held));
            if let (Some(target), false) = (&plan.target, plan.exchange) {
                self.reap(target.ino, target.node);
            }
            Ok(())
        })
    }

    /// Locks what a rename moves or replaces, in the order of the numbers, and reads it
    /// again.
    fn hold_moved<'f>(&'f self, plan: &mut Move<'f>) -> Res<SmallVec<[(Ino, WriteLock<'f>); 2]>> {
        let mut found: SmallVec<[&mut Found<'f>; 2]> = SmallVec::new();
        found.push(&mut plan.source);
        found.extend(plan.target.as_mut());
        found.sort_by_key(|f| (!f.is_dir(), f.ino)); // directories before what they may name
        let mut held = SmallVec::new();
        for at in found {
            let (lock, now) = self.hold(at.ino)?;
            held.push((at.ino, lock));
            *at = now;
        }
        Ok(held)
    }

    /// All checks but emptiness, in the order of Linux. `None`: nothing to do.
    fn plan_rename<'e>(
        &'e self,
        cx: &Ctx,
        from: End<'e>,
        to: End<'e>,
        indexes: &mut Indexes<'_>,
        flags: RenameFlags,
    ) -> Res<Option<Move<'e>>> {
        let from_dir = self.find(from.dir, from.node)?;
        let to_dir = self.find(to.dir, to.node)?;
        perm::may_search(cx, &from_dir.attr)?;
        perm::may_search(cx, &to_dir.attr)?;
        let old = indexes.from.find(&self.vol, &from_dir.tree(), from.name)?;
        let new = indexes.to().find(&self.vol, &to_dir.tree(), to.name)?;
        let (source_pos, source, _) = old.ok_or(Errno::NOENT)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        match new {
            Some(_) if flags.contains(RenameFlags::NO_REPLACE) => return Err(Errno::EXIST.into()),
            None if exchange => return Err(Errno::NOENT.into()),
            _ => {}
        }
        let source = self.find(source, self.node(source)?)?;
        let target_pos = new.map_or(0, |n| n.0);
        let target = new
            .map(|(_, ino, _)| self.find(ino, self.node(ino)?))
            .transpose()?;
        let plan = Move {
            from,
            to,
            source,
            source_pos,
            target,
            target_pos,
            exchange,
        };
        self.check_ancestry(&plan)?;
        if plan
            .target
            .as_ref()
            .is_some_and(|t| t.ino == plan.source.ino)
        {
            return Ok(None);
        }
        if to_dir.attr.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        let target_attr = plan.target.as_ref().map(|t| &t.attr);
        let (a, b) = (&from_dir.attr, &to_dir.attr);
        perm::may_rename(cx, a, &plan.source.attr, b, target_attr, exchange)?;
        if let (Some(target), false) = (target_attr, exchange) {
            match (plan.source.is_dir(), target.kind == FileType::Directory) {
                (true, false) => return Err(Errno::NOTDIR.into()),
                (false, true) => return Err(Errno::ISDIR.into()),
                _ => {}
            }
        }
        Ok(Some(plan))
    }

    /// No directory may come to lie below itself.
    fn check_ancestry(&self, plan: &Move<'_>) -> Res<()> {
        if plan.from.dir == plan.to.dir {
            return Ok(());
        }
        if plan.source.is_dir() && self.is_above(plan.source.ino, plan.to.dir) {
            return Err(Errno::INVAL.into());
        }
        let target = plan.target.as_ref().filter(|t| t.is_dir());
        if target.is_some_and(|t| self.is_above(t.ino, plan.from.dir)) {
            let errno = if plan.exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            };
            return Err(errno.into());
        }
        Ok(())
    }

    /// One commit for both directories; then what is kept in memory.
    fn apply_rename(&self, plan: &Move<'_>, indexes: &mut Indexes<'_>, exclusive: bool) -> Res<()> {
        let (from, to) = (plan.from, plan.to);
        let place = match plan.target {
            Some(_) => None,
            None => Some(self.place(indexes.to(), to.dir, to.name, exclusive)?),
        };
        let from_dir = self.find(from.dir, from.node)?;
        let to_dir = self.find(to.dir, to.node)?;
        let entry_len = dir::entry_len(&self.vol, &from_dir.tree(), plan.source_pos)?;
        let now = self.clock.now();
        let (source, kind) = (&plan.source, plan.source.attr.kind);
        let entry = place.map(|p| NewEntry::new(source.ino, kind, to.name, p));
        let kinds = [
            kind as u8,
            plan.target.as_ref().map_or(0, |t| t.attr.kind as u8),
        ];

        let mut tx = Tx::new(&self.vol, exclusive);
        if let (Some(entry), Some(place)) = (&entry, place) {
            // Copies are made anyway unless the log takes the two words.
            entry.put(&mut tx, to.dir, &to_dir.tree(), place, self.vol.rules.log)?;
        }
        let left = plan.target.as_ref().filter(|_| plan.exchange);
        let word = left.map_or(0, |t| t.ino.0);
        tx.edit(
            from.dir,
            plan.source_pos,
            plan.source_pos + 8,
            What::Word(word),
        );
        if let Some(target) = &plan.target {
            tx.edit(
                to.dir,
                plan.target_pos,
                plan.target_pos + 8,
                What::Word(source.ino.0),
            );
            if target.attr.kind != kind {
                set_kind(&mut tx, to.dir, plan.target_pos, &kinds[..1]);
                if plan.exchange {
                    set_kind(&mut tx, from.dir, plan.source_pos, &kinds[1..]);
                }
            }
        }
        self.touch_contents(&mut tx, &from_dir, now);
        if from.dir != to.dir {
            self.touch_contents(&mut tx, &to_dir, now);
        }
        self.touch_inode(&mut tx, source, now);
        match &plan.target {
            Some(target) if plan.exchange => self.touch_inode(&mut tx, target, now),
            Some(target) => self.touch_survivor(&mut tx, target, now),
            None => {}
        }
        let deltas = tx.commit()?;
        self.apply(&deltas);
        if let Some(place) = place {
            indexes.to().placed(place, to.name);
        }
        if !plan.exchange {
            indexes.from.removed(plan.source_pos, entry_len, from.name);
        }
        self.book_rename(plan);
        Ok(())
    }

    /// Parents, subdirectory counts and names after a rename.
    fn book_rename(&self, plan: &Move<'_>) {
        let (from, to) = (plan.from.node, plan.to.node);
        if plan.source.is_dir() {
            plan.source.node.parent.store(plan.to.dir.0, SeqCst);
            from.subdirs.fetch_sub(1, SeqCst);
            to.subdirs.fetch_add(1, SeqCst);
        }
        let Some(target) = &plan.target else { return };
        if target.is_dir() {
            to.subdirs.fetch_sub(1, SeqCst);
        }
        if plan.exchange {
            if target.is_dir() {
                target.node.parent.store(plan.from.dir.0, SeqCst);
                from.subdirs.fetch_add(1, SeqCst);
            }
        } else {
            target.node.names.fetch_sub(1, SeqCst);
        }
    }
}

/// Changes the type in the entry at `pos`.
fn set_kind<'a, P: Pmem>(tx: &mut Tx<'_, 'a, P>, dir: Ino, pos: u64, kind: &'a [u8]) {
    tx.edit(dir, pos + 10, pos + 11, What::Bytes(kind));
}

impl Found<'_> {
    fn is_dir(&self) -> bool {
        self.attr.kind == FileType::Directory
    }
}

impl<P: Pmem> Volume<P> {
    /// Reads `len` bytes from the first leaf of a small file.
    pub(crate) fn first_leaf(&self, found: &Found<'_>, len: usize) -> Res<Vec<u8>> {
        let leaf = self.leaf(&found.tree(), 0)?;
        let mut bytes = vec![0; len];
        if leaf.is_null() || len as u64 > BLOCK {
            let what = format!("inode {}: {len} bytes in block {}", found.ino, leaf.0);
            return Err(Fault::Corrupt(what));
        }
        self.pm.read(leaf.addr(), &mut bytes)?;
        Ok(bytes)
    }
}
