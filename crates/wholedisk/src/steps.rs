//! The steps of the format. Those that would change the shape of the tree fail with `EPERM`.

use crate::{DISK, Inodes, NAME, WholeDisk};
use blockfs::{
    Format, FormatError, Freed, Heads, InodeChange, NewInode, Next, Piece, Removed, Result, Written,
};
use medium::block::Lba;
use patch::{Before, Change, Content, Op, PatchId, Store};
use std::ops::Range;
use vfs::check::Finding;
use vfs::{Attr, Cookie, Ctx, DirEntry, Errno, FileType, Ino, StatFs, Timestamp};

/// The error of steps that change more than contents and times.
const FIXED: FormatError = FormatError::Limit(Errno::PERM);

impl WholeDisk {
    pub(crate) fn new(store: std::sync::Arc<dyn Store>, now: Timestamp) -> Self {
        let inodes = Inodes::new(&*store, now).into();
        Self { store, inodes }
    }
}

/// Changes the times of an inode. Other fields can only be set to their present values.
fn change_times(attr: &mut Attr, change: &InodeChange) -> Result<()> {
    let InodeChange {
        perm,
        uid,
        gid,
        nlink,
        size,
        atime,
        mtime,
        ctime,
    } = *change;
    let shape = [
        (perm, attr.perm),
        (uid, attr.uid),
        (gid, attr.gid),
        (nlink, attr.nlink),
    ];
    let differs = |(new, old): (Option<u32>, u32)| new.is_some_and(|new| new != old);
    if shape.into_iter().any(differs) || size.is_some_and(|size| size != attr.size) {
        return Err(FIXED);
    }
    attr.atime = atime.unwrap_or(attr.atime);
    attr.mtime = mtime.unwrap_or(attr.mtime);
    attr.ctime = ctime.unwrap_or(attr.ctime);
    Ok(())
}

impl Format for WholeDisk {
    fn store(&self) -> &dyn Store {
        &*self.store
    }
    fn block_bytes(&self) -> u32 {
        self.store.block_bytes()
    }
    /// No limit besides the room: a write past the end fails with `ENOSPC`, as on a device.
    fn max_size(&self) -> u64 {
        vfs::SIZE_MAX
    }
    /// No limit, as for the longest target: `EPERM` refuses further names and symbolic links.
    fn max_links(&self, _kind: FileType) -> u32 {
        u32::MAX
    }
    fn max_inline_target(&self) -> usize {
        0
    }
    fn max_target(&self) -> usize {
        vfs::SYMLINK_MAX
    }
    fn may_use_reserve(&self, _cx: &Ctx) -> bool {
        true
    }
    fn keep_reserve(&self, _on: bool) {}
    fn reserve_blocks(&self) -> u64 {
        0
    }
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_bytes: self.store.block_bytes(),
            blocks: self.store.blocks(),
            blocks_free: 0,
            blocks_avail: 0,
            inodes: 2,
            inodes_free: 0,
            name_max: vfs::NAME_MAX as u32,
        })
    }
    fn was_clean(&self) -> bool {
        true
    }
    fn root(&self) -> Ino {
        Ino::ROOT
    }

    fn inode(&self, ino: Ino) -> Result<Option<Attr>> {
        Ok(self.inodes.lock().get(ino).copied())
    }
    fn allocate_inode(&self, _op: &Op, _dir: Ino, _new: &NewInode) -> Result<(Ino, Heads)> {
        Err(FIXED)
    }
    fn inherit(&self, _op: &Op, _dir: Ino, _ino: Ino) -> Result<Heads> {
        Err(FIXED)
    }
    /// No patch: the medium has no inodes.
    fn change_inode(
        &self,
        _op: &Op,
        ino: Ino,
        change: &InodeChange,
        _befores: &[Before],
    ) -> Result<PatchId> {
        let mut inodes = self.inodes.lock();
        let attr = inodes
            .get_mut(ino)
            .ok_or(FormatError::Limit(Errno::STALE))?;
        change_times(attr, change)?;
        Ok(PatchId::DURABLE)
    }
    fn free_inode(
        &self,
        _op: &Op,
        _ino: Ino,
        _befores: &[Before],
        _never_stored: bool,
    ) -> Result<()> {
        Err(FIXED)
    }

    fn find(&self, _dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        Ok((name == NAME).then_some(DISK))
    }
    fn list(
        &self,
        _dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let entries: [(&[u8], Ino, FileType); 3] = [
            (b".", Ino::ROOT, FileType::Directory),
            (b"..", Ino::ROOT, FileType::Directory),
            (NAME, DISK, FileType::Regular),
        ];
        for ((name, ino, kind), cookie) in entries.into_iter().zip((1..).map(Cookie)) {
            let entry = DirEntry {
                ino,
                kind,
                name,
                cookie,
            };
            if cookie > after && !sink(&entry) {
                break;
            }
        }
        Ok(())
    }
    fn is_empty(&self, _dir: Ino) -> Result<bool> {
        Ok(false)
    }
    fn init_directory(&self, _op: &Op, _dir: Ino, _parent: Ino) -> Result<Heads> {
        Err(FIXED)
    }
    fn add_name(
        &self,
        _op: &Op,
        _dir: Ino,
        _name: &[u8],
        _ino: Ino,
        _kind: FileType,
        _befores: &[Before],
    ) -> Result<PatchId> {
        Err(FIXED)
    }
    fn replace_name(
        &self,
        _op: &Op,
        _dir: Ino,
        _name: &[u8],
        _ino: Ino,
        _kind: FileType,
        _befores: &[Before],
    ) -> Result<Removed> {
        Err(FIXED)
    }
    fn remove_name(
        &self,
        _op: &Op,
        _dir: Ino,
        _name: &[u8],
        _befores: &[Before],
    ) -> Result<Removed> {
        Err(FIXED)
    }
    fn parent(&self, _dir: Ino) -> Result<Ino> {
        Ok(Ino::ROOT)
    }
    fn set_parent(
        &self,
        _op: &Op,
        _dir: Ino,
        _parent: Ino,
        _befores: &[Before],
    ) -> Result<PatchId> {
        Err(FIXED)
    }

    fn block_of(&self, ino: Ino, index: u64) -> Result<Option<Lba>> {
        let is_there = ino == DISK && index < self.store.blocks();
        Ok(is_there.then_some(Lba(index)))
    }
    fn next_block(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>> {
        let end = end.min(self.store.blocks());
        Ok((ino == DISK && index < end).then_some(index))
    }
    fn next_hole(&self, _ino: Ino, index: u64, end: u64) -> Result<Option<u64>> {
        let first = index.max(self.store.blocks());
        Ok((first < end).then_some(first))
    }
    fn cost(&self, blocks: u64) -> u32 {
        let most = self.store.max_op_blocks();
        u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, most)
    }
    /// The blocks past the end of the device. None of them is free.
    fn room_for(&self, _ino: Ino, from: u64, to: u64) -> Result<u64> {
        Ok(to.saturating_sub(from.max(self.store.blocks())))
    }
    fn write_block(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        piece: Piece<'_>,
        befores: &[Before],
    ) -> Result<Written> {
        let lba = self.block_of(ino, index)?.ok_or(FormatError::NoSpace)?;
        let Piece { at, bytes } = piece;
        let change = Change::Bytes { at, bytes };
        let patched = self.store.change(op, lba, Content::Data, change, befores)?;
        Ok(Written {
            patch: patched.id,
            filled: Heads::new(),
        })
    }
    fn free_blocks(
        &self,
        _op: &Op,
        _ino: Ino,
        _blocks: Range<u64>,
        _budget: u32,
        _befores: &[Before],
    ) -> Result<Freed> {
        Err(FIXED)
    }

    fn inline_target(&self, _ino: Ino) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    fn set_inline_target(&self, _op: &Op, _ino: Ino, _target: &[u8]) -> Result<PatchId> {
        Err(FIXED)
    }
    fn attributes(&self, _ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(Vec::new())
    }
    fn set_attributes(&self, _op: &Op, _ino: Ino, _all: &[(Vec<u8>, Vec<u8>)]) -> Result<Heads> {
        Err(FIXED)
    }

    fn add_orphan(&self, _op: &Op, _ino: Ino, _befores: &[Before]) -> Result<Heads> {
        Err(FIXED)
    }
    fn remove_orphan(&self, _op: &Op, _ino: Ino, _befores: &[Before]) -> Result<Heads> {
        Err(FIXED)
    }
    fn is_orphan(&self, _ino: Ino) -> Result<bool> {
        Ok(false)
    }
    fn orphans(&self) -> Result<Vec<Ino>> {
        Ok(Vec::new())
    }

    /// Refuses a call before its first step, if one of its steps would be refused.
    fn ready(&self, next: Next<'_>) -> Result<()> {
        match next {
            Next::Write { .. } => Ok(()),
            Next::AddName { .. } | Next::Cut { .. } | Next::Free { .. } | Next::MoveUp { .. } => {
                Err(FIXED)
            }
        }
    }

    /// The format has no structure that could be damaged.
    fn mark_damaged(&self) -> Result<()> {
        Ok(())
    }
    fn audit(&self) -> Vec<Finding> {
        Vec::new()
    }
    fn write_back(&self, _op: &Op) -> Result<()> {
        Ok(())
    }
    fn close(&self) -> Result<()> {
        Ok(self.store.sync_all()?)
    }
}
