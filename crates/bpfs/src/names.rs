//! Operations that change one directory: make, link, remove; and look-ups.
//!
//! Each commits once, entry and inode together. A call that fails leaves the tree, the maps and
//! the counts unchanged.

use crate::dir::{self, DirIndex, EntrySpace, NewEntry};
use crate::edit::{INODE_FILE, What};
use crate::error::Res;
use crate::format::{BLOCK, CTIME_ALONE, HeightAddr, INODE, Inode, at, rec_len};
use crate::fs::{Bpfs, Found};
use crate::seeded::{Bug, hit};
use crate::staged::TreeLock;
use crate::table::Node;
use crate::tx::Tx;
use medium::Pmem;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{Attr, Ctx, Errno, FileType, Ino, Name, NewNode, Removal, Timestamp, check_name, perm};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of an inode that version 1 of the format uses.
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
    /// An inode that `cx` makes in the directory `dir`.
    fn new(ino: Ino, cx: &Ctx, dir: &Attr, new: &NewNode<'_>, now: Timestamp) -> Self {
        let owner = perm::new_owner(cx, dir, new);
        let mut inode = Inode::new_zeroed();
        inode.uid = owner.uid.into();
        inode.gid = owner.gid.into();
        inode.mode = (new.kind().mode_bits() | owner.perm).into();
        inode.rdev = u64::from(new.rdev()).into();
        inode.mtime = now.0.into();
        inode.ctime = (now.0 & !CTIME_ALONE).into();
        inode.atime = now.0.into();
        Self { ino, inode }
    }

    /// Adds the inode to a transaction: in place where the mode allows, since no entry names
    /// it.
    fn put<'a, P: Pmem>(&'a mut self, tx: &mut Tx<'_, 'a, P>) -> Res<()> {
        let addr = tx.home(self.ino)?;
        let step = u64::from(!hit(Bug::SameGeneration));
        self.inode.generation = tx.vol.pm.load(addr)?.wrapping_add(step).into();
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
    /// Sets the volatile state of a new inode. Only a directory has a `parent`.
    fn start(&self, names: u32, blocks: u64, parent: Option<Ino>) {
        self.subdirs.store(0, SeqCst);
        self.blocks.store(blocks, SeqCst);
        self.parent.store(parent.map_or(0, |dir| dir.0), SeqCst);
        self.nameable.store(names == 0, SeqCst);
        self.life.begin(names);
    }

    /// Whether a live inode is a directory. The caller need not hold its lock.
    fn is_dir(&self) -> bool {
        self.parent.load(SeqCst) != 0
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
            Some(index) => {
                index.touch();
                index.find(&self.vol, &parent.tree(), name)?
            }
            None => {
                drop(held);
                let (mut held, parent) = self.hold(dir)?;
                let found =
                    self.index(&mut held, &parent)?
                        .find(&self.vol, &parent.tree(), name)?;
                // Another call may remove the entry once the lock is released: take the
                // reference before.
                return self.refer(found);
            }
        };
        self.refer(found)
    }

    /// Takes a reference to the inode that an entry names; the directory is locked. The inode
    /// is locked too, since a change in progress may have stored what is not durable yet.
    fn refer(&self, entry: Option<(u64, Ino, FileType)>) -> Res<Attr> {
        let (_, ino, _) = entry.ok_or(Errno::NOENT)?;
        let (_held, found) = self.peek(ino)?;
        found.node.life.refs.fetch_add(1, SeqCst);
        Ok(found.attr)
    }

    fn take_number(&self, lock: TreeLock) -> Res<Number<'_, P>> {
        loop {
            if let Some(n) = self.inodes.take() {
                let number = Number {
                    fs: self,
                    ino: Ino(n),
                    kept: false,
                };
                // A failed commit may have left the number in use on the medium.
                self.vol.usable()?;
                return Ok(number);
            }
            self.grow_inodes(lock)?;
        }
    }

    /// Appends one block of inodes. Their contents are arbitrary, since nothing refers to them.
    fn grow_inodes(&self, lock: TreeLock) -> Res<()> {
        let _guard = self.grow_lock.lock();
        if self.inodes.free() > 0 {
            return Ok(());
        }
        let size = self.vol.inode_file()?.size;
        let numbers = (size + BLOCK) / INODE + 1;
        if numbers > self.inode_capacity {
            return Err(Errno::NOSPC.into());
        }
        let mut tx = Tx::new(&self.vol, lock);
        tx.edit(INODE_FILE, size, size + BLOCK, What::Blank);
        tx.grow_inode_file(size + BLOCK);
        tx.commit()?;
        self.inodes.grow(numbers);
        Ok(())
    }

    /// Finds space for `name` in a directory, and restarts a block if need be.
    pub(crate) fn find_space(
        &self,
        index: &mut DirIndex,
        dir: Ino,
        name: &[u8],
        lock: TreeLock,
    ) -> Res<EntrySpace> {
        self.vol.usable()?; // a failed commit may have left an entry there
        let space = index.choose(rec_len(name.len()));
        if space.pos() >= dir::MAX_BYTES {
            return Err(Errno::NOSPC.into());
        }
        let EntrySpace::Reset { pos } = space else {
            return Ok(space);
        };
        self.restart(dir, pos, lock)?;
        index.was_reset(pos);
        Ok(index.choose(rec_len(name.len())))
    }

    /// Turns a directory block at `pos` that has only holes into unused space, by one store.
    /// The store is durable before the old heads of the holes are overwritten.
    pub(crate) fn restart(&self, dir: Ino, pos: u64, lock: TreeLock) -> Res<()> {
        let tree = self.vol.tree(self.vol.inode_addr(dir)?)?;
        let word = dir::len_word(&self.vol, &tree, pos)?;
        let mut tx = Tx::new(&self.vol, lock);
        let len = pos + at::DIRENT_LEN;
        // The type and the name stay, so that the block is never all zeros.
        let without_len = word & !u64::from(u16::MAX);
        tx.edit(dir, len, len + 8, What::Word(without_len));
        let deltas = tx.commit()?;
        self.apply(&deltas);
        Ok(())
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

    /// Makes an inode of any type with a name, which the caller has checked.
    pub(crate) fn do_make(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        new: &NewNode<'_>,
        lock: TreeLock,
    ) -> Res<Attr> {
        let Name { dir, name } = at;
        let (mut held, parent) = self.hold(dir)?;
        let dir_node = parent.node;
        let index = self.index(&mut held, &parent)?;
        self.may_make(cx, &parent, index, name)?;
        perm::may_mknod(cx, new.kind())?;
        let mut number = self.take_number(lock)?;
        let space = self.find_space(index, dir, name, lock)?;
        let parent = self.find(dir, dir_node)?; // `take_number` and `find_space` may have moved it
        let now = self.clock.now();
        let entry = NewEntry::new(number.ino, new.kind(), name, space);
        let mut made = NewInode::new(number.ino, cx, &parent.attr, new, now);
        let mut tx = Tx::new(&self.vol, lock);
        entry.put(&mut tx, dir, &parent.tree(), space, self.vol.rules.other)?;
        let target = new.target();
        if !target.is_empty() {
            let block = tx.take()?;
            tx.fill(block.addr(), target);
            made.inode.ha = HeightAddr::new(0, block).0.into();
            made.inode.size = (target.len() as u64).into();
        }
        made.put(&mut tx)?;
        self.touch_contents(&mut tx, &parent, now);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        index.placed(space, name);
        let node = self.table.node(number.ino);
        let is_dir = new.is_directory();
        node.start(1, u64::from(!target.is_empty()), is_dir.then_some(dir));
        number.kept = true;
        dir_node.subdirs.fetch_add(u32::from(is_dir), SeqCst);
        self.attr(number.ino, node, &made.inode)
    }

    pub(crate) fn do_tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32, lock: TreeLock) -> Res<Attr> {
        let (_held, parent) = self.peek(dir)?;
        if !parent.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_create(cx, &parent.attr)?;
        let file = NewNode::file(mode);
        let mut number = self.take_number(lock)?;
        let now = self.clock.now();
        let mut new = NewInode::new(number.ino, cx, &parent.attr, &file, now);
        let mut tx = Tx::new(&self.vol, lock);
        new.put(&mut tx)?;
        tx.commit()?;
        let node = self.table.node(number.ino);
        node.start(0, 0, None);
        number.kept = true;
        self.attr(number.ino, node, &new.inode)
    }

    pub(crate) fn do_link(
        &self,
        cx: &Ctx,
        ino: Ino,
        dir: Ino,
        name: &[u8],
        lock: TreeLock,
    ) -> Res<Attr> {
        check_name(name)?;
        let (mut held, parent) = self.hold(dir)?;
        let index = self.index(&mut held, &parent)?;
        self.may_make(cx, &parent, index, name)?;
        // A directory may come before `dir` in the order of locks, so it is rejected without
        // its lock. A new directory with this number comes after `dir`: `dir` is held, and can
        // move below it only under the exclusive tree lock.
        if self.node(ino)?.is_dir() {
            return Err(Errno::PERM.into());
        }
        let (_file_held, mut file) = self.hold(ino)?;
        perm::may_link(&file.attr)?; // another inode may have the number now
        if file.node.life.names.load(SeqCst) == 0 && !file.node.nameable.load(SeqCst) {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        if file.node.life.names.load(SeqCst) == u32::MAX {
            return Err(Errno::MLINK.into());
        }
        let space = self.find_space(index, dir, name, lock)?;
        let parent = self.find(dir, parent.node)?; // `find_space` may have moved it
        let now = self.clock.now();
        let entry = NewEntry::new(ino, file.attr.kind, name, space);
        let mut tx = Tx::new(&self.vol, lock);
        entry.put(&mut tx, dir, &parent.tree(), space, self.vol.rules.other)?;
        self.touch_contents(&mut tx, &parent, now);
        file.inode.ctime = self.touch_inode(&mut tx, &file, now).into();
        let deltas = tx.commit()?;
        self.apply(&deltas);
        index.placed(space, name);
        file.node.life.names.fetch_add(1, SeqCst);
        file.node.nameable.store(false, SeqCst);
        file.node.life.refs.fetch_add(1, SeqCst);
        self.attr(ino, file.node, &file.inode)
    }

    /// Removes a name.
    pub(crate) fn do_remove(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        which: Removal,
        lock: TreeLock,
    ) -> Res<()> {
        let Name { dir, name } = at;
        check_name(name)?;
        let (mut held, parent) = self.hold(dir)?;
        let index = self.index(&mut held, &parent)?;
        perm::may_search(cx, &parent.attr)?;
        let tree = parent.tree();
        let (pos, ino, _) = index.find(&self.vol, &tree, name)?.ok_or(Errno::NOENT)?;
        let (mut victim_held, victim) = self.hold(ino)?;
        perm::may_delete(cx, &parent.attr, &victim.attr)?;
        which.check(victim.is_dir())?;
        if victim.is_dir() {
            // The lock is held until the name is removed, so that the directory stays empty.
            self.must_be_empty(&mut victim_held, &victim)?;
        }
        let entry_len = dir::entry_len(&self.vol, &tree, pos)?;
        let now = self.clock.now();
        let mut tx = Tx::new(&self.vol, lock);
        tx.use_reserve();
        tx.edit(dir, pos, pos + 8, What::Word(0));
        self.touch_contents(&mut tx, &parent, now);
        self.touch_survivor(&mut tx, &victim, now);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        index.removed(pos, entry_len, name);
        if victim.is_dir() {
            parent.node.subdirs.fetch_sub(1, SeqCst);
        }
        victim.node.life.names.fetch_sub(1, SeqCst);
        drop((victim_held, held));
        self.unnamed(ino, victim.node);
        Ok(())
    }

    pub(crate) fn must_be_empty(
        &self,
        held: &mut Option<Box<DirIndex>>,
        dir: &Found<'_>,
    ) -> Res<()> {
        if self.index(held, dir)?.len() > 0 {
            Err(Errno::NOTEMPTY.into())
        } else {
            Ok(())
        }
    }

    /// Adds the change time of an inode that loses a name, if it can still be seen.
    pub(crate) fn touch_survivor(
        &self,
        tx: &mut Tx<'_, '_, P>,
        victim: &Found<'_>,
        now: Timestamp,
    ) {
        let node = victim.node;
        if node.life.refs.load(SeqCst) > 0 || node.life.names.load(SeqCst) > 1 {
            self.touch_inode(tx, victim, now);
        }
    }

    /// Whether `ino` is `below` or a directory above it. The exclusive tree lock is held.
    pub(crate) fn is_above(&self, ino: Ino, below: Ino) -> bool {
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
