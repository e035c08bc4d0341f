//! File contents: reading, writing, cutting, allocating.

use super::{BlockFs, Refusal, caller};
use crate::seeded::{Bug, hit};
use crate::{Befores, Format, Heads, InodeChange, Next, Piece, after};
use medium::block::Lba;
use patch::{Before, Caller, Op, PatchId, Rule, attempt};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{
    Attr, Ctx, Errno, Fallocate, FileType, Ino, Result, SeekKind, Timestamp, must_be_regular, perm,
};

type Refused<T> = std::result::Result<T, Refusal>;

/// Blocks of data that one operation writes at most.
const WRITE_BLOCKS: u64 = 1024;

/// A part of a range that lies within one block.
struct Part {
    index: u64,
    /// Offset in the block, in bytes.
    at: usize,
    /// Offset in the range, in bytes.
    from: usize,
    len: usize,
}

impl Part {
    /// Returns `bytes` as a piece at this part's place.
    fn piece<'a>(&self, bytes: &'a [u8]) -> Piece<'a> {
        Piece {
            at: self.at as u32,
            bytes,
        }
    }
}

/// Cuts `off..off + len` at block boundaries.
fn parts(block_bytes: u64, off: u64, len: usize) -> impl Iterator<Item = Part> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let here = off + from as u64;
        let at = here % block_bytes;
        let part = Part {
            index: here / block_bytes,
            at: at as usize,
            from,
            len: (len - from).min((block_bytes - at) as usize),
        };
        from += part.len;
        (part.len > 0).then_some(part)
    })
}

impl<F: Format> BlockFs<F> {
    fn block_size(&self) -> u64 {
        u64::from(self.format.block_bytes())
    }

    // --- reading --------------------------------------------------------------------

    /// Reads from a file. The call waits for the device without the tree's lock, so that the device
    /// can serve several reads at once and other calls go on.
    pub(super) fn read_data(&self, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        self.look(|| {
            let len = self.readable(ino, off, buf.len())?;
            self.copy_out(ino, off, &mut buf[..len])?;
            Ok(len)
        })
    }

    /// The number of `len` bytes that lie before the end of a file.
    fn readable(&self, ino: Ino, off: u64, len: usize) -> Refused<usize> {
        let attr = self.attr(ino)?;
        must_be_regular(attr.kind, Errno::INVAL)?;
        Ok(attr.size.saturating_sub(off).min(len as u64) as usize)
    }

    /// The existing blocks that a range covers in part.
    fn edges(&self, ino: Ino, off: u64, len: usize) -> crate::Result<SmallVec<[Lba; 2]>> {
        let block = self.block_size();
        let edges = parts(block, off, len).filter(|part| part.len < block as usize);
        let blocks = edges.map(|part| self.format.block_of(ino, part.index));
        blocks.filter_map(crate::Result::transpose).collect()
    }

    /// Copies contents. Holes are zeros.
    pub(super) fn copy_out(&self, ino: Ino, off: u64, buf: &mut [u8]) -> crate::Result<()> {
        let end = off + buf.len() as u64;
        for part in parts(self.block_size(), off, buf.len()) {
            let target = &mut buf[part.from..part.from + part.len];
            match self.format.block_of(ino, part.index)? {
                None => target.fill(0),
                Some(lba) => {
                    let read = self.format.store().read(lba);
                    let block = read.inspect_err(|_| self.want_ahead(ino, part.index, lba, end))?;
                    target.copy_from_slice(&block[part.at..part.at + part.len]);
                }
            }
        }
        Ok(())
    }

    /// Requests the blocks of a read up to byte `end` together with one that is absent. A few more
    /// are requested if one read of the device covers them.
    fn want_ahead(&self, ino: Ino, index: u64, lba: Lba, end: u64) {
        const AHEAD: u64 = 32;
        if !attempt::is_attempt() {
            return;
        }
        let end = end.div_ceil(self.block_size());
        let mut last = lba;
        for index in index + 1..end.max(index + AHEAD) {
            match self.format.block_of(ino, index) {
                Ok(Some(next)) if index < end || next.0 == last.0 + 1 => {
                    attempt::want([next]);
                    last = next;
                }
                Ok(None) if index < end => {}
                _ => return,
            }
        }
    }

    pub(super) fn seek_data(&self, ino: Ino, off: u64, kind: SeekKind) -> Refused<u64> {
        let attr = self.attr(ino)?;
        if attr.kind != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        if off >= attr.size {
            return Err(Errno::NXIO.into());
        }
        let block = self.block_size();
        let end = attr.size.div_ceil(block);
        let first = off / block;
        match kind {
            SeekKind::Data => {
                let next = self
                    .format
                    .next_block(ino, first, end)?
                    .ok_or(Errno::NXIO)?;
                Ok((next * block).max(off))
            }
            SeekKind::Hole => {
                let next = self.format.next_hole(ino, first, end)?.unwrap_or(end);
                Ok((next * block).clamp(off, attr.size))
            }
        }
    }

    // --- writing --------------------------------------------------------------------

    /// Writes everything, or nothing if there is no room. A write that is larger than one operation
    /// becomes several operations.
    pub(super) fn write_data(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        let block = self.block_size();
        let end = self.end_of(off, data.len() as u64)?;
        self.look(|| {
            let attr = self.attr(ino)?;
            must_be_regular(attr.kind, Errno::INVAL)?;
            Ok(perm::may_write(&attr, off)?)
        })?;
        self.trim(ino, end)?;
        let piece = (self.portion(WRITE_BLOCKS) * block) as usize;
        if data.len() > piece - (off % block) as usize {
            // Otherwise the pieces before the one without room would stay written. A single piece
            // checks its own room.
            self.look(|| self.check_room(cx, ino, off / block, end.div_ceil(block)))?;
        }
        let mut done = 0;
        while done < data.len() {
            // Pieces end at block boundaries.
            let at = off + done as u64;
            let len = (piece - (at % block) as usize).min(data.len() - done);
            self.write_piece(cx, ino, at, &data[done..done + len])?;
            done += len;
        }
        Ok(done)
    }

    fn end_of(&self, off: u64, len: u64) -> Result<u64> {
        vfs::end_of(off, len, self.format.max_size().min(vfs::SIZE_MAX))
    }

    /// Returns the number of blocks that the holes in a range take.
    fn check_room(&self, cx: &Ctx, ino: Ino, from: u64, to: u64) -> Refused<u64> {
        let needed = self.format.room_for(ino, from, to)?;
        if needed > self.room(cx)? {
            return Err(Errno::NOSPC.into());
        }
        Ok(needed)
    }

    /// Reads all that a write of a part of a file needs, before the first change. The write takes
    /// `blocks` for holes.
    fn ready_to_write(&self, attr: &Attr, part: Range<u64>, blocks: u64) -> crate::Result<()> {
        let (ino, block) = (attr.ino, self.block_size());
        let mut edges = self.edges(ino, part.start, (part.end - part.start) as usize)?;
        if part.end > attr.size && !attr.size.is_multiple_of(block) {
            edges.extend(self.format.block_of(ino, attr.size / block)?); // for `clear_tail`
        }
        self.format.store().ready(&edges)?;
        let from = part.start / block;
        self.format.ready(Next::Write { ino, from, blocks })
    }

    /// Reads all that one step needs to free blocks from byte `size` on.
    pub(super) fn ready_to_cut(&self, ino: Ino, size: u64) -> crate::Result<()> {
        let block = self.block_size();
        if !size.is_multiple_of(block)
            && let Some(lba) = self.format.block_of(ino, size / block)?
        {
            self.format.store().ready(&[lba])?; // its rest is zeroed
        }
        self.format.ready(Next::Cut {
            ino,
            from: size.div_ceil(block),
            to: u64::MAX,
            budget: self.destroyed_at_once() as u32,
        })
    }

    fn write_piece(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<()> {
        let block = self.block_size();
        let end = off + data.len() as u64;
        let blocks = end.div_ceil(block) - off / block;
        self.change_for(cx, self.format.cost(blocks) + 2, |op| {
            let attr = self.attr(ino)?;
            must_be_regular(attr.kind, Errno::INVAL)?;
            let holes = self.check_room(cx, ino, off / block, end.div_ceil(block))?;
            self.ready_to_write(&attr, off..end, holes)?;
            let mut heads: Heads = self.clear_tail(op, &attr, end)?.into_iter().collect();
            for part in parts(block, off, data.len()) {
                let bytes = &data[part.from..part.from + part.len];
                heads.push(self.put(op, ino, part.index, part.piece(bytes), &[])?);
            }
            let now = self.now();
            let changed = InodeChange {
                perm: Some(perm::perm_after_write(cx, &attr)).filter(|perm| *perm != attr.perm),
                size: Some(end).filter(|end| *end > attr.size),
                mtime: Some(now),
                ctime: Some(now),
                ..InodeChange::default()
            };
            match hit(Bug::FdatasyncWithoutData) {
                true => self.note_times(ino, &heads),
                false => self.note(ino, &heads),
            }
            self.finish_write(op, ino, &changed, &heads)
        })
    }

    /// Changes the inode after its data. U2: a size never covers missing contents.
    fn finish_write(
        &self,
        op: &Op,
        ino: Ino,
        change: &InodeChange,
        data: &[PatchId],
    ) -> Refused<()> {
        let befores = match change.size {
            Some(_) => after(Rule::InitialiseBeforePoint, data.iter().copied()),
            None => Befores::new(),
        };
        let finished = self.format.change_inode(op, ino, change, &befores)?;
        self.note_inode(ino, change, finished);
        Ok(())
    }

    /// Stores bytes in one block of a file, which is allocated if it is a hole. An fsync waits for
    /// new contents, since not every store puts the pointer after them.
    pub(super) fn put(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        piece: Piece<'_>,
        befores: &[Before],
    ) -> crate::Result<PatchId> {
        let written = self.format.write_block(op, ino, index, piece, befores)?;
        if !written.filled.is_empty() {
            self.note(ino, &written.filled);
        }
        Ok(written.patch)
    }

    /// Zeroes the bytes between the end of a file and the end of its last block, before the file
    /// grows to `end`. A cut zeroes them too, but a crash may have come in before that. U2: the new
    /// size comes after the returned patch.
    fn clear_tail(&self, op: &Op, attr: &Attr, end: u64) -> crate::Result<Option<PatchId>> {
        let block = self.block_size();
        let at = (attr.size % block) as usize;
        if end <= attr.size || at == 0 {
            return Ok(None);
        }
        let Some(lba) = self.format.block_of(attr.ino, attr.size / block)? else {
            return Ok(None);
        };
        let is_zero = |byte: &u8| *byte == 0;
        let cleared = if self.format.store().read(lba)?[at..].iter().all(is_zero) {
            let known = self.known.lock();
            known.get(&attr.ino).and_then(|known| known.cleared)
        } else {
            self.zero_in_block(op, attr.ino, attr.size, u64::MAX, &[])?
        };
        Ok(cleared.filter(|_| !hit(Bug::GrowBeforeClear)))
    }

    // --- sizes ----------------------------------------------------------------------

    /// `O_TRUNC`.
    pub(super) fn cut(&self, cx: &Ctx, ino: Ino) -> Result<()> {
        let blocks = self.format.cost(self.destroyed_at_once()) + 2;
        let more = self.change(&caller(cx), blocks, |op| {
            let attr = self.attr(ino)?;
            let now = self.now();
            let change = InodeChange {
                perm: Some(perm::perm_after_write(cx, &attr)).filter(|perm| *perm != attr.perm),
                mtime: Some(now),
                ctime: Some(now),
                ..InodeChange::default()
            };
            self.resize(op, &attr, 0, change)
        })?;
        if more {
            self.finish_cut(&caller(cx), ino)
        } else {
            Ok(())
        }
    }

    /// Sets the size along with other fields. Returns whether blocks past it are left for
    /// [`finish_cut`](Self::finish_cut).
    pub(super) fn resize(
        &self,
        op: &Op,
        attr: &Attr,
        size: u64,
        mut change: InodeChange,
    ) -> Refused<bool> {
        if size > self.format.max_size() {
            return Err(Errno::FBIG.into());
        }
        change.size = Some(size);
        if size >= attr.size {
            let cleared = self.clear_tail(op, attr, size)?;
            let befores = after(Rule::InitialiseBeforePoint, cleared);
            let grown = self.format.change_inode(op, attr.ino, &change, &befores)?;
            self.note_inode(attr.ino, &change, grown);
            return Ok(false);
        }
        self.look_past_end(attr)?;
        self.ready_to_cut(attr.ino, size)?;
        let cut = self.format.change_inode(op, attr.ino, &change, &[])?;
        self.note_inode(attr.ino, &change, cut);
        let shorter = after(Rule::NullifyBeforeReuse, [cut]);
        let cleared = self.zero_in_block(op, attr.ino, size, u64::MAX, &shorter)?;
        self.known.lock().entry(attr.ino).or_default().cleared = cleared;
        self.detach_some(op, attr.ino, size, &shorter)
    }

    /// Frees blocks past a size. If some are left, the inode is recorded as an orphan, so that with
    /// a journal a crash does not leave them.
    fn detach_some(&self, op: &Op, ino: Ino, size: u64, befores: &[Before]) -> Refused<bool> {
        let from = size.div_ceil(self.block_size());
        let budget = self.destroyed_at_once() as u32;
        let freed = self
            .format
            .free_blocks(op, ino, from..u64::MAX, budget, befores)?;
        self.note(ino, &freed.removed);
        let known = self.format.is_orphan(ino)?;
        if freed.more && !known {
            self.format.add_orphan(op, ino, &[])?;
        } else if !freed.more && known && self.attr(ino)?.nlink > 0 {
            self.format.remove_orphan(op, ino, &[])?;
        }
        Ok(freed.more)
    }

    /// Frees all blocks past the size, in as many operations as that takes.
    pub(super) fn finish_cut(&self, caller: &Caller, ino: Ino) -> Result<()> {
        loop {
            let blocks = self.format.cost(self.destroyed_at_once()) + 2;
            let more = self.change(caller, blocks, |op| {
                let size = self.attr(ino)?.size;
                self.ready_to_cut(ino, size)?;
                self.detach_some(op, ino, size, &[])
            })?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Zeroes bytes from `from` on, up to `to` or to the end of their block. An fsync of the file
    /// waits for this patch, since perhaps no other patch does.
    fn zero_in_block(
        &self,
        op: &Op,
        ino: Ino,
        from: u64,
        to: u64,
        befores: &[Before],
    ) -> crate::Result<Option<PatchId>> {
        let block = self.block_size();
        let at = from % block;
        let end = match to / block == from / block {
            true => to % block,
            false => block,
        };
        if (at == 0 && end == block) || at >= end {
            return Ok(None);
        }
        if self.format.block_of(ino, from / block)?.is_none() {
            return Ok(None);
        }
        let zeros = vec![0; (end - at) as usize];
        let piece = Piece {
            at: at as u32,
            bytes: &zeros,
        };
        let cleared = self.put(op, ino, from / block, piece, befores)?;
        if !hit(Bug::ForgetClearedTail) {
            self.note(ino, &[cleared]);
        }
        Ok(Some(cleared))
    }

    // --- fallocate ------------------------------------------------------------------

    pub(super) fn allocate_range(
        &self,
        cx: &Ctx,
        ino: Ino,
        kind: Fallocate,
        off: u64,
        len: u64,
    ) -> Result<()> {
        let attr = self.look(|| {
            let attr = self.attr(ino)?;
            must_be_regular(attr.kind, Errno::NODEV)?;
            perm::may_fallocate(&attr, kind)?;
            Ok(attr)
        })?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = self.end_of(off, len)?;
        let block = self.block_size();
        let grows = match kind {
            Fallocate::PunchHole => false,
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
                self.trim(ino, end)?;
                !keep_size
            }
        };
        let last_block = end.div_ceil(block);
        // The room for space past the end of a file is checked, but no blocks are allocated.
        let end = if grows { end } else { end.min(attr.size) };
        let most = self.destroyed_at_once();
        let mut at = off;
        loop {
            let until = end.min((at / block + most) * block);
            self.change_for(cx, self.format.cost(most) + 4, |op| {
                if kind == Fallocate::PunchHole {
                    self.ready_to_punch(ino, at..until.max(at))?;
                } else {
                    // The first part checks the room of all parts, so that a call without room
                    // takes nothing.
                    let to = if at == off {
                        last_block
                    } else {
                        until.div_ceil(block)
                    };
                    let holes = self.check_room(cx, ino, at / block, to)?;
                    let blocks = holes.min(self.format.cost(most).into());
                    self.ready_to_write(&self.attr(ino)?, at..until.max(at), blocks)?;
                }
                if at < until {
                    self.allocate_part(op, ino, kind, at..until)?;
                }
                self.note_change(op, cx, ino, grows.then_some(until))
            })?;
            if until >= end {
                return Ok(());
            }
            at = until;
            if kind == Fallocate::PunchHole {
                let last = end.div_ceil(block);
                let next = self.look(|| Ok(self.format.next_block(ino, at / block, last)?))?;
                match next {
                    Some(next) => at = at.max(next * block),
                    None => return Ok(()),
                }
            }
        }
    }

    /// One operation's part of a `fallocate`.
    fn allocate_part(&self, op: &Op, ino: Ino, kind: Fallocate, part: Range<u64>) -> Refused<()> {
        match kind {
            Fallocate::PunchHole => return self.punch(op, ino, part.start, part.end),
            Fallocate::ZeroRange { .. } => self.zero_blocks(op, ino, part.start, part.end)?,
            Fallocate::Allocate { .. } => {}
        }
        let block = self.block_size();
        self.fill_holes(op, ino, part.start / block..part.end.div_ceil(block))
    }

    /// Sets the times, and the size if it grows, after a change of contents.
    fn note_change(&self, op: &Op, cx: &Ctx, ino: Ino, size: Option<u64>) -> Refused<()> {
        let attr = self.attr(ino)?;
        let cleared = self.clear_tail(op, &attr, size.unwrap_or(0))?;
        let befores = after(Rule::InitialiseBeforePoint, cleared);
        let now: Timestamp = self.now();
        let change = InodeChange {
            perm: Some(perm::perm_after_write(cx, &attr)).filter(|perm| *perm != attr.perm),
            size: size.filter(|size| *size > attr.size),
            mtime: Some(now),
            ctime: Some(now),
            ..InodeChange::default()
        };
        let changed = self.format.change_inode(op, ino, &change, &befores)?;
        self.note_inode(ino, &change, changed);
        Ok(())
    }

    /// Gives every hole in a range of blocks a block of zeros.
    fn fill_holes(&self, op: &Op, ino: Ino, range: Range<u64>) -> Refused<()> {
        let zeros = vec![0; self.block_size() as usize];
        for index in range {
            if self.format.block_of(ino, index)?.is_none() {
                let filled = self.put(op, ino, index, Piece::from_start(&zeros), &[])?;
                self.note(ino, &[filled]);
            }
        }
        Ok(())
    }

    /// Zeroes the bytes `off..end` in existing blocks.
    fn zero_blocks(&self, op: &Op, ino: Ino, off: u64, end: u64) -> Refused<()> {
        let block = self.block_size();
        let zeros = vec![0; block as usize];
        for part in parts(block, off, (end - off) as usize) {
            if self.format.block_of(ino, part.index)?.is_some() {
                let piece = part.piece(&zeros[..part.len]);
                let put = self.put(op, ino, part.index, piece, &[])?;
                self.note(ino, &[put]);
            }
        }
        Ok(())
    }

    /// Reads all that [`punch`](Self::punch) needs, before the first change.
    fn ready_to_punch(&self, ino: Ino, part: Range<u64>) -> crate::Result<()> {
        let edges = self.edges(ino, part.start, (part.end - part.start) as usize)?;
        self.format.store().ready(&edges)?;
        let block = self.block_size();
        self.format.ready(Next::Cut {
            ino,
            from: part.start.div_ceil(block),
            to: part.end.div_ceil(block),
            budget: self.destroyed_at_once() as u32,
        })
    }

    /// Makes `off..end` read as zeros, and frees whole blocks.
    fn punch(&self, op: &Op, ino: Ino, off: u64, end: u64) -> Refused<()> {
        let block = self.block_size();
        let first = off.div_ceil(block);
        // The last block of the file is freed if the range covers the rest of it.
        let attr = self.attr(ino)?;
        self.look_past_end(&attr)?;
        let last = if end >= attr.size {
            end.div_ceil(block)
        } else {
            end / block
        };
        self.zero_in_block(op, ino, off, end, &[])?;
        let tail = last * block;
        if tail < end && last >= first {
            self.zero_in_block(op, ino, tail, end, &[])?;
        }
        let mut more = first < last;
        while more {
            let budget = self.destroyed_at_once() as u32;
            let freed = self.format.free_blocks(op, ino, first..last, budget, &[])?;
            self.note(ino, &freed.removed);
            more = freed.more;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_block_boundaries() {
        for (off, len) in [
            (0, 0),
            (0, 512),
            (511, 2),
            (100, 2000),
            (1024, 1),
            (3, 4093),
        ] {
            let (mut at, mut from) = (off, 0);
            for part in parts(512, off, len) {
                assert_eq!((part.index, part.at as u64), (at / 512, at % 512));
                assert_eq!(part.from, from);
                assert!(part.len > 0 && part.at + part.len <= 512);
                let ends = (part.at + part.len) as u64 + part.index * 512;
                assert!(ends.is_multiple_of(512) || ends == off + len as u64);
                (at, from) = (ends, from + part.len);
            }
            assert_eq!(from, len);
        }
    }
}
