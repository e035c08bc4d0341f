//! [`Format`] for [`Ext2`].

use crate::format::{INLINE_TARGET_MAX, LINK_MAX, ROOT_INO};
use crate::layout::Reserve;
use crate::volume::Ext2;
use blockfs::{Format, Freed, Heads, InodeChange, NewInode, Next, Piece, Removed, Result, Written};
use medium::block::Lba;
use patch::{Before, Op, PatchId, Store};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::check::Finding;
use vfs::{Attr, Cookie, Ctx, DirEntry, FileType, Ino, NAME_MAX, StatFs};

impl Format for Ext2 {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn block_bytes(&self) -> u32 {
        self.layout.block_bytes
    }

    fn max_size(&self) -> u64 {
        self.largest()
    }

    fn max_links(&self, _kind: FileType) -> u32 {
        LINK_MAX
    }

    fn max_inline_target(&self) -> usize {
        INLINE_TARGET_MAX
    }

    /// A target with a zero byte after it fits one block.
    fn max_target(&self) -> usize {
        self.layout.block_bytes as usize - 1
    }

    /// As in the kernel, these are the super-user, and the user and the group in the superblock,
    /// unless that is group 0.
    fn may_use_reserve(&self, cx: &Ctx) -> bool {
        let Reserve { uid, gid, .. } = self.layout.reserve;
        cx.uid == 0 || cx.uid == uid || (gid != 0 && cx.is_in_group(gid))
    }

    fn keep_reserve(&self, on: bool) {
        self.state.lock().keeps_reserve = on;
    }

    fn reserve_blocks(&self) -> u64 {
        self.layout.reserve.blocks
    }

    fn statfs(&self) -> Result<StatFs> {
        let state = self.state.lock();
        Ok(StatFs {
            block_bytes: self.layout.block_bytes,
            blocks: u64::from(self.layout.blocks).saturating_sub(self.layout.overhead),
            blocks_free: state.free_blocks,
            blocks_avail: state.free_blocks.saturating_sub(self.reserve_blocks()),
            inodes: self.layout.inodes.into(),
            inodes_free: state.free_inodes,
            name_max: NAME_MAX as u32,
        })
    }

    fn was_clean(&self) -> bool {
        Ext2::was_clean(self)
    }

    fn root(&self) -> Ino {
        Ino(ROOT_INO.into())
    }

    fn inode(&self, ino: Ino) -> Result<Option<Attr>> {
        self.attr(ino)
    }

    fn allocate_inode(&self, op: &Op, dir: Ino, new: &NewInode) -> Result<(Ino, Heads)> {
        self.make(op, dir, new)
    }

    fn inherit(&self, op: &Op, dir: Ino, ino: Ino) -> Result<Heads> {
        self.inherit_lists(op, dir, ino)
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

    fn free_inode(&self, op: &Op, ino: Ino, befores: &[Before], never_stored: bool) -> Result<()> {
        self.unmake(op, ino, befores, never_stored)
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
        self.has_no_names(dir)
    }

    fn init_directory(&self, op: &Op, dir: Ino, parent: Ino) -> Result<Heads> {
        self.start_directory(op, dir, parent)
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
        self.insert_name(op, dir, name, (ino, kind), befores)
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
        self.exchange_name(op, dir, name, (ino, kind), befores)
    }

    fn remove_name(&self, op: &Op, dir: Ino, name: &[u8], befores: &[Before]) -> Result<Removed> {
        self.erase_name(op, dir, name, befores)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        self.above(dir)
    }

    fn set_parent(&self, op: &Op, dir: Ino, parent: Ino, befores: &[Before]) -> Result<PatchId> {
        self.set_above(op, dir, parent, befores)
    }

    fn block_of(&self, ino: Ino, index: u64) -> Result<Option<Lba>> {
        let node = self.load_ino(ino)?;
        let block = self.block_at(&node, index)?;
        Ok(block.map(|block| Lba(block.into())))
    }

    fn indirect_blocks(&self, ino: Ino, index: u64) -> Result<SmallVec<[Lba; 3]>> {
        let path = self.indirect_on_path(&self.load_ino(ino)?, index)?;
        Ok(path.iter().map(|block| Lba((*block).into())).collect())
    }

    fn next_block(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>> {
        let found = self.next_from(ino, index..end)?;
        Ok(found.map(|found| found.max(index)))
    }

    fn next_hole(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>> {
        self.next_hole_from(ino, index..end)
    }

    fn cost(&self, blocks: u64) -> u32 {
        self.worst_cost(blocks)
    }

    fn room_for(&self, ino: Ino, from: u64, to: u64) -> Result<u64> {
        self.missing(ino, from..to)
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
        self.short_target(ino)
    }

    fn set_inline_target(&self, op: &Op, ino: Ino, target: &[u8]) -> Result<PatchId> {
        self.store_short_target(op, ino, target)
    }

    fn attributes(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.all_attributes(ino)
    }

    fn attribute_block(&self, ino: Ino) -> Result<Option<Lba>> {
        let found = self.attr_block(&self.load_ino(ino)?)?;
        Ok(found.map(|(block, _)| Lba(block.into())))
    }

    fn set_attributes(&self, op: &Op, ino: Ino, all: &[(Vec<u8>, Vec<u8>)]) -> Result<Heads> {
        self.replace_attributes(op, ino, all)
    }

    fn add_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads> {
        self.note_orphan(op, ino, befores)
    }

    fn remove_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads> {
        self.unnote_orphan(op, ino, befores)
    }

    fn is_orphan(&self, ino: Ino) -> Result<bool> {
        let node = self.load_ino(ino)?;
        Ok(self.state.lock().orphans.contains(node.ino))
    }

    fn orphans(&self) -> Result<Vec<Ino>> {
        Ok(self.list_orphans())
    }

    fn ready(&self, next: Next<'_>) -> Result<()> {
        self.ready_for(next)
    }

    fn mark_damaged(&self) -> Result<()> {
        self.note_errors()
    }

    fn audit(&self) -> Vec<Finding> {
        self.audit_counts()
    }

    fn write_back(&self, _op: &Op) -> Result<()> {
        Ok(()) // free counts are stored as they change
    }

    fn close(&self) -> Result<()> {
        Ext2::close(self)
    }
}
