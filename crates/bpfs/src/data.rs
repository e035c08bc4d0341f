//! Operations on contents: read, write, truncate, fallocate, seek.

use crate::edit::What;
use crate::error::{Fault, Res};
use crate::format::{BLOCK, BlockNo, CTIME_ALONE, FANOUT, HeightAddr, at, height_for, span};
use crate::fs::{Bpfs, Found};
use crate::seeded::{self, Bug, hit};
use crate::staged::TreeLock;
use crate::stores::Stores;
use crate::tx::Tx;
use crate::volume::{Dropped, Tree, Volume};
use medium::{Pmem, Rule};
use std::sync::atomic::Ordering::SeqCst;
use vfs::{
    Atime, Attr, Ctx, Errno, Fallocate, FileType, Ino, SIZE_MAX, SYMLINK_MAX, SeekKind, end_of,
    must_be_regular, perm,
};

/// Rounds down to whole blocks.
fn floor(byte: u64) -> u64 {
    byte / BLOCK * BLOCK
}
/// Rounds up to whole blocks.
fn ceil(byte: u64) -> u64 {
    byte.next_multiple_of(BLOCK)
}

/// Edits that make `start..end` read as zeros: whole blocks become holes.
fn zero<P: Pmem>(tx: &mut Tx<'_, '_, P>, ino: Ino, start: u64, end: u64) {
    let (head, tail) = (ceil(start).min(end), floor(end).max(ceil(start).min(end)));
    tx.edit(ino, start, head, What::Zeros);
    tx.edit(ino, head, tail, What::Hole);
    tx.edit(ino, tail, end, What::Zeros);
}

impl<P: Pmem> Bpfs<P> {
    /// Reads; also returns whether the access time is due.
    pub(crate) fn do_read(&self, ino: Ino, off: u64, buf: &mut [u8]) -> Res<(usize, bool)> {
        let (_guard, found) = self.peek(ino)?;
        must_be_regular(found.attr.kind, Errno::INVAL)?;
        let tree = found.tree();
        let len = tree.size.saturating_sub(off).min(buf.len() as u64) as usize;
        let mut at = off;
        let mut rest = &mut buf[..len];
        while !rest.is_empty() {
            let skip = at % BLOCK;
            let take = rest.len().min((BLOCK - skip) as usize);
            let (part, tail) = rest.split_at_mut(take);
            match self.vol.leaf(&tree, at / BLOCK)? {
                BlockNo::NULL => part.fill(0),
                block => self.vol.pm.read(block.addr() + skip, part)?,
            }
            rest = tail;
            at += take as u64;
        }
        Ok((len, self.is_atime_due(&found.attr)))
    }

    pub(crate) fn do_readlink(&self, ino: Ino) -> Res<Vec<u8>> {
        let (_guard, found) = self.peek(ino)?;
        if found.attr.kind != FileType::Symlink {
            return Err(Errno::INVAL.into());
        }
        let len = found.attr.size;
        if len > SYMLINK_MAX as u64 {
            let what = format!("inode {ino}: symbolic link of {len} bytes");
            return Err(Fault::Corrupt(what));
        }
        let target = self.vol.first_leaf(&found, len as usize)?;
        if target.contains(&0) {
            let what = format!("inode {ino}: the target of the symbolic link has a NUL byte");
            return Err(Fault::Corrupt(what));
        }
        Ok(target)
    }

    fn is_atime_due(&self, attr: &Attr) -> bool {
        self.atime != Atime::Never && self.atime.is_due(attr, self.clock.now())
    }

    /// Updates the access time if it is due. A failure is logged and does not fail the read.
    pub(crate) fn accessed(&self, cx: &Ctx, ino: Ino) {
        if cx.noatime || self.read_only || self.atime == Atime::Never {
            return;
        }
        let updated = self.mutate(TreeLock::Shared, |lock| {
            let (_guard, found) = self.hold(ino)?;
            if self.is_atime_due(&found.attr) {
                let mut tx = Tx::new(&self.vol, lock);
                tx.time(ino, at::ATIME, self.clock.now().0);
                tx.commit()?;
            }
            Ok(())
        });
        if let Err(e) = updated {
            tracing::warn!("access time of inode {ino}: {e}");
        }
    }

    pub(crate) fn do_write(
        &self,
        cx: &Ctx,
        ino: Ino,
        off: u64,
        data: &[u8],
        lock: TreeLock,
    ) -> Res<usize> {
        let (_guard, node) = self.locked(ino)?;
        if self.try_overwrite(ino, off, data)? {
            return Ok(data.len());
        }
        let found = self.find(ino, node)?;
        must_be_regular(found.attr.kind, Errno::INVAL)?;
        if data.is_empty() {
            return Ok(0);
        }
        let end = end_of(off, data.len() as u64, SIZE_MAX)?;
        let size = found.attr.size;
        let mut tx = Tx::new(&self.vol, lock);
        self.seeded_write_bugs(&mut tx, &found, off, end)?;
        if off > size {
            zero(&mut tx, ino, size, off);
        }
        tx.edit(ino, off, end, What::Bytes(data));
        if end > size {
            tx.set(ino, at::SIZE, end);
        }
        self.contents_changed(&mut tx, cx, &found);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        Ok(data.len())
    }

    /// Overwrites bytes in one word, or one whole block, without a transaction: one word
    /// commits these, whatever the rest of the file is. The effect is that of a transaction,
    /// for a fraction of the instructions.
    ///
    /// Returns false, and has changed nothing, if this is not such a write, or may fail, or
    /// does more than change contents.
    fn try_overwrite(&self, ino: Ino, off: u64, data: &[u8]) -> Res<bool> {
        let (vol, len) = (&self.vol, data.len() as u64);
        let in_word = len > 0 && off % 8 + len <= 8;
        let whole = len == BLOCK && off.is_multiple_of(BLOCK);
        let one_store = vol.rules.short_circuit && vol.rules.times;
        if !one_store || !(in_word || whole) {
            return Ok(false);
        }
        let addr = vol.inode_addr(ino)?;
        let (mode, tree) = (vol.pm.load(addr + at::MODE)? as u32, vol.tree(addr)?);
        let plain = FileType::from_mode(mode) == Some(FileType::Regular)
            && mode & (perm::SET_UID | perm::SET_GID) == 0;
        let inside = tree.size.checked_sub(len).is_some_and(|last| off <= last);
        if !plain || !inside {
            return Ok(false);
        }
        let old = vol.leaf(&tree, off / BLOCK)?;
        if old.is_null() {
            return Ok(false);
        }
        if in_word {
            let word = vol.merged(old.addr() + off % BLOCK, data)?;
            self.commit_overwrite(addr, None, word)?;
            return Ok(true);
        }
        let Some(slot) = vol.slot_of(&tree, off / BLOCK)? else {
            return Ok(false);
        };
        let Some(new) = vol.map.take() else {
            return Ok(false);
        };
        self.commit_overwrite(addr, Some((BlockNo(new), data)), (slot, new))?;
        vol.map.release(old.0);
        Ok(true)
    }

    /// Fills a fresh block, if there is one; then one word commits. `inode` is the byte offset
    /// of the inode, for its times.
    fn commit_overwrite(
        &self,
        inode: u64,
        fresh: Option<(BlockNo, &[u8])>,
        (addr, value): (u64, u64),
    ) -> Res<()> {
        let pm = &self.vol.pm;
        let mut stores = Stores::new(&self.vol.pm);
        let mut commit = || {
            match fresh {
                Some((block, bytes)) => stores.fill(block.addr(), bytes),
                None => stores.commit_word(addr, value)?,
            }
            stores.flush(); // the write-back runs while the times are read
            let (now, ctime) = (self.clock.now().0, pm.load(inode + at::CTIME)? as i64);
            if fresh.is_some() {
                if !hit(Bug::NoFenceBeforeCommit) {
                    stores.barrier(Rule::InitialiseBeforePoint)?;
                }
                stores.commit_word(addr, value)?;
            }
            stores.put_word(inode + at::MTIME, now as u64)?;
            if ctime & CTIME_ALONE != 0 {
                stores.put_word(inode + at::CTIME, (now | CTIME_ALONE) as u64)?;
            }
            stores.barrier(Rule::DurableBeforeReturn)
        };
        // The commit may or may not be durable: nothing of it may be used again.
        commit().inspect_err(|_| self.vol.failed.store(true, SeqCst))
    }

    /// States new times, and clears the set-id bits after an unprivileged change.
    fn contents_changed(&self, tx: &mut Tx<'_, '_, P>, cx: &Ctx, found: &Found<'_>) {
        let perm = perm::perm_after_write(cx, &found.attr);
        if perm != found.attr.perm {
            tx.set(found.ino, at::MODE, found.mode_word(perm));
        }
        self.touch_contents(tx, found, self.clock.now());
    }

    /// Adds a change of the file's size to `tx`. Blocks past the new end, and those above a
    /// lower root, are free once the transaction has committed.
    pub(crate) fn resize(&self, tx: &mut Tx<'_, '_, P>, found: &Found<'_>, size: u64) -> Res<()> {
        let old = found.attr.size;
        if size > old {
            zero(tx, found.ino, old, size);
        }
        tx.set(found.ino, at::SIZE, size);
        if size < old
            && let Some(all) = found.tree().whole()
        {
            self.cut(tx, found.ino, all, size.div_ceil(BLOCK))?;
        }
        Ok(())
    }

    /// Cuts a whole tree to `keep` leaves: drops what lies beyond, and makes the tree as low as
    /// its leaves allow. With no leaf left, the word of height and root is ignored.
    fn cut(&self, tx: &mut Tx<'_, '_, P>, ino: Ino, all: Dropped, keep: u64) -> Res<()> {
        let mut each = |dropped| tx.drop_tree(ino, dropped);
        self.vol.beyond(all, keep, &mut each)?;
        let Some(need) = keep.checked_sub(1).map(height_for) else {
            return Ok(());
        };
        let (mut root, mut height) = (all.block, all.height);
        while height > need && !root.is_null() {
            each(Dropped {
                block: root,
                height: 0, // its children stay
                leaves: 0,
            })?;
            root = self.vol.slot(root, 0)?;
            height -= 1;
        }
        if height < all.height {
            tx.lower(ino, HeightAddr::new(need, root));
        }
        Ok(())
    }

    pub(crate) fn do_fallocate(
        &self,
        cx: &Ctx,
        ino: Ino,
        kind: Fallocate,
        off: u64,
        len: u64,
        lock: TreeLock,
    ) -> Res<()> {
        let (_guard, found) = self.hold(ino)?;
        must_be_regular(found.attr.kind, Errno::NODEV)?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = end_of(off, len, SIZE_MAX)?;
        let size = found.attr.size;
        if !matches!(kind, Fallocate::PunchHole) {
            self.must_fit(&found.tree(), off, end)?;
        }
        let new_size = if kind.keeps_size() {
            size
        } else {
            size.max(end)
        };
        let mut tx = Tx::new(&self.vol, lock);
        if matches!(kind, Fallocate::PunchHole) {
            tx.use_reserve();
        }
        match kind {
            Fallocate::Allocate { .. } => reserve(&mut tx, ino, off, end.min(new_size), size),
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                clear(&mut tx, ino, (off, end), (size, new_size));
            }
        }
        if new_size > size {
            tx.set(ino, at::SIZE, new_size);
        }
        self.contents_changed(&mut tx, cx, &found);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        Ok(())
    }

    /// `ENOSPC` if the blocks that `off..end` lacks are unavailable. Blocks beyond the end of
    /// the file are not kept, so no more can be promised of them.
    fn must_fit(&self, tree: &Tree, off: u64, end: u64) -> Res<()> {
        let wanted = ceil(end) / BLOCK - off / BLOCK;
        let free = self.vol.available();
        if wanted <= free {
            return Ok(());
        }
        let mut have = 0;
        let last = tree.valid_leaves().min(ceil(end) / BLOCK);
        let mut leaf = off / BLOCK;
        while let Some(data) = self.vol.next(tree, leaf, last, true)? {
            have += 1;
            leaf = data + 1;
        }
        if wanted - have > free {
            Err(Errno::NOSPC.into())
        } else {
            Ok(())
        }
    }

    pub(crate) fn do_seek(&self, ino: Ino, off: u64, kind: SeekKind) -> Res<u64> {
        let (_guard, found) = self.peek(ino)?;
        if found.attr.kind != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        let tree = found.tree();
        if off >= tree.size {
            return Err(Errno::NXIO.into());
        }
        let want = kind == SeekKind::Data;
        let found = self
            .vol
            .next(&tree, off / BLOCK, tree.valid_leaves(), want)?;
        match (found, kind) {
            (Some(leaf), _) => Ok(off.max(leaf * BLOCK)),
            (None, SeekKind::Data) => Err(Errno::NXIO.into()),
            (None, SeekKind::Hole) => Ok(tree.size),
        }
    }

    /// The two bugs that the authors of BPFS planted (3.6.5).
    fn seeded_write_bugs(
        &self,
        tx: &mut Tx<'_, '_, P>,
        found: &Found<'_>,
        off: u64,
        end: u64,
    ) -> Res<()> {
        if end > found.attr.size && hit(Bug::SizeSetEarly) {
            tx.hide_word(found.addr + at::SIZE, end)?;
            tx.hide_word(found.addr + at::SIZE, found.attr.size)?;
        }
        if !seeded::BUILT {
            return Ok(());
        }
        let leaf = self.vol.leaf(&found.tree(), off / BLOCK)?;
        if !leaf.is_null() && hit(Bug::FirstByte) {
            let word = self.vol.pm.load(leaf.addr())?;
            tx.hide_word(leaf.addr(), word ^ 0xff)?;
            tx.hide_word(leaf.addr(), word)?;
        }
        Ok(())
    }
}

/// Edits that make `off..end` of a file, and the bytes by which it grows, read as zeros.
fn clear<P: Pmem>(
    tx: &mut Tx<'_, '_, P>,
    ino: Ino,
    (off, end): (u64, u64),
    (size, new_size): (u64, u64),
) {
    if off < size {
        // Bytes beyond the end are garbage: a hole may reach to the end of the block.
        let last = if end >= size && new_size == size {
            ceil(size)
        } else {
            end.min(size)
        };
        zero(tx, ino, off, last);
    }
    zero(tx, ino, size, new_size);
}

/// Edits that put a leaf under every block of `off..end`, where a file of `size` bytes
/// grows to at least `end`.
fn reserve<P: Pmem>(tx: &mut Tx<'_, '_, P>, ino: Ino, off: u64, end: u64, size: u64) {
    if off >= end {
        return;
    }
    let (start, end) = (floor(off), ceil(end));
    tx.edit(ino, start, end.min(size), What::Reserve);
    if end > size {
        // The last valid block holds garbage after the end. The blocks up to `start` are a gap.
        let tail = ceil(size);
        tx.edit(ino, size, tail, What::Zeros);
        tx.edit(ino, tail, start, What::Hole);
        tx.edit(ino, tail.max(start), end, What::Reserve);
    }
}

impl<P: Pmem> Volume<P> {
    /// Reads `len` bytes from the first leaf of a small file.
    fn first_leaf(&self, found: &Found<'_>, len: usize) -> Res<Vec<u8>> {
        let leaf = self.leaf(&found.tree(), 0)?;
        let mut bytes = vec![0; len];
        if leaf.is_null() || len as u64 > BLOCK {
            let what = format!("inode {}: {len} bytes in block {}", found.ino, leaf.0);
            return Err(Fault::Corrupt(what));
        }
        self.pm.read(leaf.addr(), &mut bytes)?;
        Ok(bytes)
    }

    /// Calls `each` for the largest subtrees of `all` that hold none of its first `keep`
    /// leaves.
    fn beyond(&self, all: Dropped, keep: u64, each: &mut dyn FnMut(Dropped) -> Res<()>) -> Res<()> {
        if keep == 0 {
            return each(all);
        }
        if all.height == 0 {
            return Ok(());
        }
        let step = span(all.height - 1);
        for slot in (keep - 1) / step..FANOUT.min(all.leaves.div_ceil(step)) {
            let child = self.slot(all.block, slot)?;
            if !child.is_null() {
                let first = slot * step;
                let below = Dropped {
                    block: child,
                    height: all.height - 1,
                    leaves: (all.leaves - first).min(step),
                };
                self.beyond(below, keep.saturating_sub(first), each)?;
            }
        }
        Ok(())
    }

    /// The first leaf number in `from..end` that has a block (`want`) or has none.
    fn next(&self, tree: &Tree, from: u64, end: u64, want: bool) -> Res<Option<u64>> {
        let (height, end) = (tree.ha.height(), end.min(tree.valid_leaves()));
        if from >= end {
            return Ok(None);
        }
        if let Some(leaf) = self.next_in(tree.ha.block(), height, 0, (from, end), want)? {
            return Ok(Some(leaf));
        }
        // All leaves past the tree's capacity are holes.
        let rest = from.max(span(height));
        Ok((!want && rest < end).then_some(rest))
    }

    fn next_in(
        &self,
        block: BlockNo,
        height: u32,
        base: u64,
        (from, end): (u64, u64),
        want: bool,
    ) -> Res<Option<u64>> {
        if base >= end || base + span(height) <= from {
            return Ok(None);
        }
        if block.is_null() || height == 0 {
            let is_data = !block.is_null();
            return Ok((is_data == want).then_some(base.max(from)));
        }
        let step = span(height - 1);
        for slot in from.saturating_sub(base) / step..FANOUT {
            let first = base + slot * step;
            if first >= end {
                break;
            }
            let child = self.slot(block, slot)?;
            let found = self.next_in(child, height - 1, first, (from, end), want)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

impl Found<'_> {
    /// The word that holds the mode, with new permission bits.
    pub(crate) fn mode_word(&self, perm: u32) -> u64 {
        let mode = self.attr.kind.mode_bits() | perm;
        u64::from(self.inode.flags.get()) << 32 | u64::from(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MkfsOptions, MountOptions, mkfs};
    use medium::MemoryPmem;
    use vfs::FileSystem;

    /// The notes of a change do not grow with the blocks that it frees, and the tree gets
    /// lower.
    #[test]
    fn a_cut_notes_subtrees_and_not_blocks() {
        const LEAVES: u64 = 3000;
        let pm = MemoryPmem::new(16 << 20);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        let file = fs.create(&cx, root, b"file", 0o644).unwrap().ino;
        let free = fs.vol.map.free();
        let data = vec![1; 1 << 20];
        for off in (0..LEAVES * BLOCK).step_by(1 << 20) {
            fs.write(&cx, file, off, &data).unwrap();
        }
        let tall = fs.hold(file).unwrap().1.tree();
        assert_eq!(tall.ha.height(), 2);
        {
            let (_held, found) = fs.hold(file).unwrap();
            let mut tx = Tx::new(&fs.vol, TreeLock::Shared);
            fs.resize(&mut tx, &found, 1).unwrap();
            // The other leaves of the first node, the other nodes, and the two above.
            assert!(tx.staged.dropped.len() <= 511 + 5 + 2);
        }
        fs.truncate(&cx, file, 1).unwrap();
        assert_eq!(fs.hold(file).unwrap().1.tree().ha.height(), 0);
        assert_eq!(fs.getattr(&cx, file).unwrap().blocks, BLOCK / 512);
        let mut back = [0; 2];
        assert_eq!(fs.read(&cx, file, 0, &mut back), Ok(1));
        assert_eq!((back[0], fs.vol.map.free()), (1, free - 1));
        fs.unlink(&cx, root, b"file").unwrap();
        fs.forget(file, 1);
        assert_eq!((fs.audit(), fs.vol.map.free()), (Vec::new(), free));
    }

    #[test]
    fn damaged_objects_are_unclean_and_not_io_errors() {
        let pm = MemoryPmem::new(1 << 20);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        let link = fs.symlink(&cx, root, b"link", b"target").unwrap().ino;
        let file = fs.create(&cx, root, b"file", 0o644).unwrap().ino;
        let at = |ino, field| fs.vol.inode_addr(ino).unwrap() + field;
        for (field, bad) in [(at::SIZE, 0), (at::SIZE, 4096), (at::HA, 0)] {
            let good = pm.load(at(link, field)).unwrap();
            pm.store_word(at(link, field), bad);
            assert_eq!(fs.readlink(&cx, link), Err(Errno::UCLEAN), "{field} {bad}");
            pm.store_word(at(link, field), good);
        }
        assert_eq!(fs.readlink(&cx, link).unwrap(), b"target");
        pm.store_word(at(file, at::MODE), 0);
        assert_eq!(fs.getattr(&cx, file).err(), Some(Errno::UCLEAN));
        assert_eq!(fs.lookup(&cx, root, b"file").err(), Some(Errno::UCLEAN));
        assert_eq!(fs.unlink(&cx, root, b"file").err(), Some(Errno::UCLEAN));
    }
}
