//! [`Format`] for [`Toy`].

use super::bytes::{Inode, TARGET_MAX, field};
use super::{BLOCK, BLOCKS, FIRST_FRAGMENT, Fault, INODES, RESERVE, ROOT, Toy, names, place, sup};
use blockfs::{
    Format, FormatError, Freed, Heads, InodeChange, NewInode, Next, Piece, Removed, Result, Written,
};
use medium::block::Lba;
use patch::{Before, Op, PatchId, Store};
use std::ops::Range;
use vfs::check::{Finding, Severity};
use vfs::{Attr, Cookie, Ctx, DirEntry, Errno, FileType, Ino, StatFs};

impl Format for Toy {
    fn store(&self) -> &dyn Store {
        &*self.store
    }
    fn block_bytes(&self) -> u32 {
        BLOCK
    }
    fn max_size(&self) -> u64 {
        self.largest()
    }
    fn max_links(&self, _kind: FileType) -> u32 {
        20
    }
    fn max_inline_target(&self) -> usize {
        TARGET_MAX
    }
    fn max_target(&self) -> usize {
        BLOCK as usize
    }
    fn may_use_reserve(&self, cx: &Ctx) -> bool {
        cx.uid == 0
    }
    fn keep_reserve(&self, on: bool) {
        self.state.lock().keeps_reserve = on;
    }
    fn reserve_blocks(&self) -> u64 {
        RESERVE
    }
    fn statfs(&self) -> Result<StatFs> {
        let state = self.state.lock();
        let (blocks_free, inodes_free) = (state.free, state.free_inodes);
        drop(state);
        Ok(StatFs {
            block_bytes: BLOCK,
            blocks: BLOCKS - FIRST_FRAGMENT,
            blocks_free,
            blocks_avail: blocks_free.saturating_sub(RESERVE),
            inodes: INODES - ROOT,
            inodes_free,
            name_max: names::NAME_MAX as u32,
        })
    }
    fn was_clean(&self) -> bool {
        self.clean
    }
    fn root(&self) -> Ino {
        Ino(ROOT)
    }

    fn inode(&self, ino: Ino) -> Result<Option<Attr>> {
        if !(ROOT..INODES).contains(&ino.0) {
            return Ok(None);
        }
        Ok(Inode(self.store.read(place(ino))?.to_vec()).attr(ino))
    }
    fn allocate_inode(&self, op: &Op, _dir: Ino, new: &NewInode) -> Result<(Ino, Heads)> {
        self.make(op, new)
    }
    fn inherit(&self, _op: &Op, _dir: Ino, _ino: Ino) -> Result<Heads> {
        Ok(Heads::new())
    }
    fn change_inode(
        &self,
        op: &Op,
        ino: Ino,
        change: &InodeChange,
        befores: &[Before],
    ) -> Result<PatchId> {
        self.change_fields(op, ino, change, befores)
    }
    fn free_inode(&self, op: &Op, ino: Ino, befores: &[Before], _never_stored: bool) -> Result<()> {
        self.clear(op, ino, befores)
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.find_name(dir, name)
    }
    fn list(
        &self,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list_names(dir, after, sink)
    }
    fn is_empty(&self, dir: Ino) -> Result<bool> {
        Ok(!self.has_names(dir)?)
    }
    fn init_directory(&self, op: &Op, dir: Ino, parent: Ino) -> Result<Heads> {
        Ok(Heads::from_slice(&[self.set_up(op, dir, parent, &[])?]))
    }
    fn add_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        befores: &[Before],
    ) -> Result<PatchId> {
        self.insert(op, dir, name, (ino, kind), befores)
    }
    fn replace_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        befores: &[Before],
    ) -> Result<Removed> {
        self.exchange(op, dir, name, (ino, kind), befores)
    }
    fn remove_name(&self, op: &Op, dir: Ino, name: &[u8], befores: &[Before]) -> Result<Removed> {
        self.erase(op, dir, name, befores)
    }
    fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(Ino(self.load(dir)?.get(field::PARENT).into()))
    }
    fn set_parent(&self, op: &Op, dir: Ino, parent: Ino, befores: &[Before]) -> Result<PatchId> {
        self.set_up(op, dir, parent, befores)
    }

    fn block_of(&self, ino: Ino, index: u64) -> Result<Option<Lba>> {
        Ok(self.fragment_of(&self.load(ino)?, index))
    }
    fn next_block(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>> {
        let inode = self.load(ino)?;
        let mut indices = index..end.min(self.end_of(&inode));
        Ok(indices.find(|index| self.fragment_of(&inode, *index).is_some()))
    }
    fn next_hole(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>> {
        let inode = self.load(ino)?;
        Ok((index..end).find(|index| self.fragment_of(&inode, *index).is_none()))
    }
    fn cost(&self, blocks: u64) -> u32 {
        let runs = blocks.div_ceil(self.kind.fragments) + 2;
        let cost = runs * self.kind.fragments * 2 + 4;
        u32::try_from(cost)
            .unwrap_or(u32::MAX)
            .min(self.store.max_op_blocks() / 8)
    }
    fn room_for(&self, ino: Ino, from: u64, to: u64) -> Result<u64> {
        self.check_room(&self.load(ino)?, from..to)
    }
    fn write_block(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        piece: Piece<'_>,
        befores: &[Before],
    ) -> Result<Written> {
        self.put(op, ino, index, piece, befores)
    }
    fn free_blocks(
        &self,
        op: &Op,
        ino: Ino,
        blocks: Range<u64>,
        budget: u32,
        befores: &[Before],
    ) -> Result<Freed> {
        self.cut(op, ino, blocks, budget, befores)
    }

    fn inline_target(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let inode = self.load(ino)?;
        let len = inode.get(field::TARGET_LEN) as usize;
        Ok((len > 0).then(|| inode.0[field::TARGET as usize..][..len].to_vec()))
    }
    fn set_inline_target(&self, op: &Op, ino: Ino, target: &[u8]) -> Result<PatchId> {
        if target.len() > TARGET_MAX {
            return Err(FormatError::Limit(Errno::NAMETOOLONG));
        }
        let mut inode = self.load(ino)?;
        inode.put(field::TARGET_LEN, target.len() as u32);
        inode.0[field::TARGET as usize..][..target.len()].copy_from_slice(target);
        inode.apply(&InodeChange {
            size: Some(target.len() as u64),
            ..InodeChange::default()
        });
        let changed = &inode.0[field::SIZE as usize..field::RUNS as usize];
        self.set(op, place(ino), field::SIZE, changed, &[])
    }
    fn attributes(&self, _ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(Vec::new())
    }
    fn set_attributes(&self, _op: &Op, _ino: Ino, all: &[(Vec<u8>, Vec<u8>)]) -> Result<Heads> {
        match all.is_empty() {
            true => Ok(Heads::new()),
            false => Err(FormatError::Limit(Errno::OPNOTSUPP)),
        }
    }

    fn add_orphan(&self, _op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads> {
        self.state.lock().orphans.insert(ino);
        Ok(befores.iter().map(|before| before.patch).collect())
    }
    fn remove_orphan(&self, _op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads> {
        self.state.lock().orphans.remove(&ino);
        Ok(befores.iter().map(|before| before.patch).collect())
    }
    fn is_orphan(&self, ino: Ino) -> Result<bool> {
        Ok(self.state.lock().orphans.contains(&ino))
    }
    fn orphans(&self) -> Result<Vec<Ino>> {
        Ok(self.state.lock().orphans.iter().copied().collect())
    }

    fn ready(&self, _next: Next<'_>) -> Result<()> {
        Ok(()) // all of it fits the cache
    }
    fn mark_damaged(&self) -> Result<()> {
        self.mark(sup::DAMAGED, 1)
    }
    fn audit(&self) -> Vec<Finding> {
        let state = self.state.lock();
        let kept = (state.free, state.free_inodes);
        drop(state);
        let counted = (self.counted(), self.counted_inodes());
        if matches!(counted, (Ok(free), Ok(inodes)) if (free, inodes) == kept) {
            return Vec::new();
        }
        vec![Finding {
            invariant: "counts".into(),
            severity: Severity::Corrupt,
            what: format!("{kept:?} fragments and inodes are free in memory, not {counted:?}"),
        }]
    }
    fn write_back(&self, op: &Op) -> Result<()> {
        if !self.has(Fault::ForgetsCounts) {
            let free = self.state.lock().free as u32;
            self.set(op, Lba(0), sup::FREE, &free.to_le_bytes(), &[])?;
        }
        Ok(())
    }
    fn close(&self) -> Result<()> {
        self.store.sync_all()?;
        self.mark(sup::CLEAN, 1)
    }
}
