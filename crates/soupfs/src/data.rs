//! Operations on contents: read, write, truncate, fallocate, seek.
//!
//! New blocks are staged in memory until a persister links them. Blocks of the tree are overwritten
//! in place, or copied if the mount copies data.

use crate::error::Res;
use crate::format::{FANOUT, MAX_HEIGHT, PAGE, Page, Root, TABLE_BITS};
use crate::node::{Node, State};
use crate::staged::Staged;
use crate::volume::Volume;
use medium::Pmem;
use std::sync::Arc;
use vfs::{
    Ctx, Errno, Fallocate, Ino, SIZE_MAX, SYMLINK_MAX, SeekKind, Timestamp, end_of,
    must_be_regular, perm,
};

/// Most blocks that a part of a fallocate changes: 64 MiB.
const PART: u64 = (64 << 20) / PAGE;

/// A fallocate, which is made in parts: rounds and other calls may run between them.
pub(crate) struct Parts {
    kind: Fallocate,
    off: u64,
    len: u64,
    /// The offset at which the next part begins.
    at: u64,
    /// The size of the file, if parts have been made.
    grown: Option<Grown>,
}

/// The size of a file before the first part of a fallocate and after the last one, and its time then.
struct Grown {
    from: u64,
    to: u64,
    mtime: Timestamp,
}

impl Parts {
    pub(crate) fn new(kind: Fallocate, off: u64, len: u64) -> Self {
        Self {
            kind,
            off,
            len,
            at: off,
            grown: None,
        }
    }
}

impl<P: Pmem> Volume<P> {
    /// The page of a block in the latest view.
    fn page_of(&self, state: &State, block: u64) -> Res<Option<Page>> {
        match state.file.staged.get(block) {
            Some(staged) => Ok(staged.page()),
            None if state.file.is_cut(block) => Ok(None),
            None => self.space.block(state.file.root(), block),
        }
    }

    /// A page of a block for new bytes. `is_whole`: all bytes are written.
    fn page_for(&self, state: &mut State, block: u64, is_whole: bool) -> Res<Page> {
        let old = self.page_of(state, block)?;
        let is_own = state.file.staged.is_own(block);
        // A crash may show a file under the name that it had, and then as it was.
        let copies = self.copies_data || (state.links == 0 && !state.is_gone());
        if let Some(page) = old.filter(|_| is_own || !copies) {
            if !is_own {
                state.file.dirty.insert(block);
            }
            return Ok(page);
        }
        let page = match is_whole {
            true => self.alloc.take_page(&self.space)?,
            false => self.take_zeroed()?,
        };
        if let Err(e) = self.reserve_nodes(state, block) {
            self.alloc.abandon_page(&self.space, page)?;
            return Err(e);
        }
        if let Some(old) = old.filter(|_| !is_whole) {
            let mut bytes = [0; PAGE as usize];
            self.space.pm.read(old.addr(), &mut bytes)?;
            self.space.pm.store(page.addr(), &bytes);
        }
        let staged = Staged::Page {
            page,
            is_taken: false,
        };
        // The page that it replaces, of the tree or of a round at work.
        state.file.lost_pages += u64::from(old.is_some() && !is_own);
        state.file.staged.insert(block, staged);
        Ok(page)
    }

    /// Takes pages for the nodes that lead to a block, so that the round that links it needs none: the
    /// caller has no other chance to see that memory is short.
    fn reserve_nodes(&self, state: &mut State, block: u64) -> Res<()> {
        let most = state.file.nodes_with(block) as usize;
        let missing = most.saturating_sub(state.file.nodes.len());
        if missing > 0 {
            let pages = self.alloc.take_pages(&self.space, missing)?;
            state.file.nodes.extend(pages);
        }
        Ok(())
    }

    pub(crate) fn read(&self, ino: Ino, off: u64, buf: &mut [u8]) -> Res<(usize, bool)> {
        let node = self.node(ino)?;
        let state = node.state.read();
        must_be_regular(state.kind, Errno::INVAL)?;
        let len = state.size.saturating_sub(off).min(buf.len() as u64) as usize;
        for (at, part) in parts_mut(off, &mut buf[..len]) {
            match self.page_of(&state, at / PAGE)? {
                None => part.fill(0),
                Some(page) => self.space.pm.read(page.addr() + at % PAGE, part)?,
            }
        }
        Ok((len, self.is_atime_due(&node, &state)))
    }

    pub(crate) fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Res<usize> {
        let node = self.node(ino)?;
        let mut state = node.state.write();
        must_be_regular(state.kind, Errno::INVAL)?;
        if data.is_empty() {
            return Ok(0);
        }
        let end = end_of(off, data.len() as u64, SIZE_MAX)?;
        let stored = self.store(&mut state, off, data);
        match stored {
            Ok(()) => state.size = state.size.max(end),
            Err(_) => self.drop_past_end(&mut state)?,
        }
        self.contents_changed(cx, &node, &mut state);
        self.pressure.add_bytes(data.len() as u64);
        stored.map(|()| data.len())
    }

    /// Stores bytes. The size does not change.
    fn store(&self, state: &mut State, off: u64, data: &[u8]) -> Res<()> {
        self.zero_gap(state, off)?;
        let mut at = off;
        let mut rest = data;
        while !rest.is_empty() {
            let take = rest.len().min((PAGE - at % PAGE) as usize);
            let page = self.page_for(state, at / PAGE, take == PAGE as usize)?;
            self.space.pm.store(page.addr() + at % PAGE, &rest[..take]);
            rest = &rest[take..];
            at += take as u64;
        }
        Ok(())
    }

    /// Drops the blocks past the end, which a call that failed has staged: a file that grows shows zeros.
    fn drop_past_end(&self, state: &mut State) -> Res<()> {
        self.drop_from(state, state.size.div_ceil(PAGE))
    }

    /// Drops the staged blocks from `first` on.
    fn drop_from(&self, state: &mut State, first: u64) -> Res<()> {
        let mut dropped = state.file.staged.split_off(first);
        dropped.try_for_each(|staged| self.drop_staged(staged))
    }

    /// Zeros the bytes of the last block after the end, up to `until`: rounds do not flush them, so that
    /// a crash may have left those of another file.
    fn zero_gap(&self, state: &mut State, until: u64) -> Res<()> {
        let (from, block) = (state.size, state.size / PAGE);
        let until = until.min((block + 1) * PAGE);
        if from % PAGE != 0 && from < until && self.page_of(state, block)?.is_some() {
            self.zero(state, from, until)?;
        }
        Ok(())
    }

    /// Zeros bytes of one block that has a page.
    fn zero(&self, state: &mut State, from: u64, until: u64) -> Res<()> {
        let page = self.page_for(state, from / PAGE, false)?;
        let zeros = [0; PAGE as usize];
        let len = (until - from) as usize;
        self.space
            .pm
            .store(page.addr() + from % PAGE, &zeros[..len]);
        Ok(())
    }

    fn contents_changed(&self, cx: &Ctx, node: &Arc<Node>, state: &mut State) {
        state.perm = perm::perm_after_write(cx, &state.attr(node.ino));
        let now = self.clock.now();
        self.touch_contents(node, state, now);
    }

    /// Sets the size; the node is locked.
    pub(crate) fn resize(&self, state: &mut State, size: u64) -> Res<()> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        if size >= state.size {
            self.zero_gap(state, size)?;
            state.size = size;
            return Ok(());
        }
        let cut = size.div_ceil(PAGE);
        let lost = self.pages_from(state, cut)?;
        self.drop_from(state, cut)?;
        state.file.lost_pages += lost;
        state.file.dirty.split_off(&cut);
        state.file.cut = Some(state.file.cut.map_or(cut, |old| old.min(cut)));
        state.file.cut_size = Some(state.file.cut_size.map_or(size, |old| old.min(size)));
        state.size = size;
        Ok(())
    }

    /// Pages of the latest view from block `cut` on that the inode counts: those of the tree, its nodes
    /// included, and those of a round at work.
    fn pages_from(&self, state: &State, cut: u64) -> Res<u64> {
        let staged = state.file.staged.from(cut);
        let taken = |(block, staged): &(u64, Staged)| {
            staged.page().is_some() && !state.file.staged.is_own(*block)
        };
        let taken = staged.filter(taken).count() as u64;
        let root = state.file.root();
        match root.page() {
            Some(page) if root.height() <= MAX_HEIGHT => {
                Ok(taken + self.counted_from(state, page, (root.height(), 0), (cut, &mut 0))?)
            }
            _ => Ok(taken),
        }
    }

    /// Pages of the tree in and below a node, whose first block is `first`, that begin at `cut` or later
    /// and are of the latest view.
    fn counted_from(
        &self,
        state: &State,
        node: Page,
        (height, first): (u32, u64),
        (cut, seen): (u64, &mut u64),
    ) -> Res<u64> {
        if state.file.is_cut(first) {
            return Ok(0);
        }
        if height == 0 {
            let is_there = first >= cut && state.file.staged.get(first).is_none();
            return Ok(is_there.into());
        }
        let mut count = u64::from(first >= cut);
        let shift = TABLE_BITS * (height - 1);
        for index in (cut.saturating_sub(first) >> shift)..FANOUT {
            let next = self.space.load(self.space.entry(node, index)?)?;
            if next != 0 {
                let next = self.space.page_of_tree(Page(next), seen)?;
                let place = (height - 1, first + (index << shift));
                count += self.counted_from(state, next, place, (cut, &mut *seen))?;
            }
        }
        Ok(count)
    }

    /// Gives back a staged page, unless a persister is about to link it: then the next round frees
    /// it.
    fn drop_staged(&self, staged: Staged) -> Res<()> {
        match staged {
            Staged::Page {
                page,
                is_taken: false,
            } => self.alloc.abandon_page(&self.space, page),
            Staged::Page { is_taken: true, .. } | Staged::Hole => Ok(()),
        }
    }

    /// Makes the next part of a fallocate. Returns whether it was the last one. A part that fails gives
    /// back what it took past the end.
    pub(crate) fn fallocate(&self, cx: &Ctx, ino: Ino, parts: &mut Parts) -> Res<bool> {
        let node = self.node(ino)?;
        let mut state = node.state.write();
        must_be_regular(state.kind, Errno::NODEV)?;
        if parts.len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = end_of(parts.off, parts.len, SIZE_MAX)?;
        let keeps_size = parts.kind.keeps_size();
        // Another call has changed the file since the last part: what it wrote stays if a part fails.
        let is_same = |grown: &Grown| (grown.to, grown.mtime) == (state.size, state.mtime);
        parts.grown = parts.grown.take().filter(is_same);
        let last = match parts.kind {
            Fallocate::Allocate { .. } if !keeps_size => end,
            _ => end.min(state.size),
        };
        if matches!(parts.kind, Fallocate::Allocate { .. }) && last < end {
            self.must_fit(&state, parts.at, end)?;
        }
        let done = match parts.kind {
            Fallocate::Allocate { .. } => self.reserve(&mut state, parts.at, last),
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                self.punch(&mut state, parts.at, last)
            }
        };
        let done = done.and_then(|next| {
            let next = if next < last { next } else { end };
            let size = match keeps_size {
                true => state.size,
                false => state.size.max(next),
            };
            self.zero_gap(&mut state, size)?;
            Ok((next, size))
        });
        let from = state.size;
        match &done {
            Ok((_, size)) => state.size = *size,
            Err(_) => self.drop_past_end(&mut state)?,
        }
        match (&done, parts.kind) {
            // Only zeros are there that were holes.
            (Err(_), Fallocate::Allocate { .. }) => self.touch(&node, &state),
            _ => self.contents_changed(cx, &node, &mut state),
        }
        let (next, size) = done?;
        parts.at = next;
        let grown = parts.grown.get_or_insert(Grown {
            from,
            to: size,
            mtime: state.mtime,
        });
        (grown.to, grown.mtime) = (size, state.mtime);
        Ok(next == end)
    }

    /// Fails if there is no space for the blocks past the end of a file up to `end`, which are not taken.
    fn must_fit(&self, state: &State, off: u64, end: u64) -> Res<()> {
        let first = (off / PAGE).max(state.size.div_ceil(PAGE));
        let wanted = end.div_ceil(PAGE).saturating_sub(first);
        match wanted > self.alloc.free(&self.space)?.pages {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    /// Takes back the size that the parts of a fallocate have added before one failed, unless another
    /// call has changed the file since.
    pub(crate) fn undo_growth(&self, ino: Ino, parts: &Parts) -> Res<()> {
        let Some(grown) = parts.grown.as_ref().filter(|grown| grown.from < grown.to) else {
            return Ok(());
        };
        let node = self.node(ino)?;
        let mut state = node.state.write();
        if state.size == grown.to && state.mtime == grown.mtime {
            self.resize(&mut state, grown.from)?;
            self.touch_state(&node, &mut state);
        }
        Ok(())
    }

    /// Takes pages for the holes of a range, up to some number of blocks. Returns the end of these.
    fn reserve(&self, state: &mut State, off: u64, end: u64) -> Res<u64> {
        let blocks = off / PAGE..end.div_ceil(PAGE);
        let wanted = blocks.end.saturating_sub(blocks.start);
        if wanted > self.space.pages {
            return Err(Errno::NOSPC.into());
        }
        let stop = blocks.end.min(blocks.start + PART);
        for block in blocks.start..stop {
            if self.page_of(state, block)?.is_none() {
                self.page_for(state, block, false)?;
                self.pressure.add_bytes(PAGE);
            }
        }
        Ok(end.min(stop * PAGE))
    }

    /// Makes a range read as zeros, and gives back its whole blocks, up to some number of blocks. Returns
    /// the end of these.
    fn punch(&self, state: &mut State, off: u64, end: u64) -> Res<u64> {
        if off >= end {
            return Ok(end); // past the end of the file, where all is zero
        }
        let mut left = PART;
        let mut at = off / PAGE;
        while let Some(block) = self.next_block(state, at)?.filter(|b| b * PAGE < end) {
            if left == 0 {
                return Ok(block * PAGE);
            }
            let (start, stop) = (block * PAGE, (block + 1) * PAGE);
            let is_whole = off <= start && (stop <= end || end >= state.size);
            if is_whole {
                state.file.lost_pages += u64::from(!state.file.staged.is_own(block));
                if let Some(staged) = state.file.staged.remove(block) {
                    self.drop_staged(staged)?;
                }
                state.file.dirty.remove(&block);
                state.file.staged.insert(block, Staged::Hole);
            } else {
                self.zero(state, off.max(start), end.min(stop))?;
            }
            self.pressure.add_bytes(PAGE);
            left -= 1;
            at = block + 1;
        }
        Ok(end)
    }

    /// The first block from `from` on that has a page.
    fn next_block(&self, state: &State, from: u64) -> Res<Option<u64>> {
        let mut staged = state.file.staged.from(from);
        let staged = staged.find(|(_, staged)| staged.page().is_some());
        let staged = staged.map(|(block, _)| block);
        let mut at = from;
        let stored = loop {
            let next = self.next_stored(state.file.root(), at)?;
            match next.filter(|block| !state.file.is_cut(*block)) {
                Some(block) if state.file.staged.get(block).is_some() => at = block + 1,
                other => break other,
            }
        };
        Ok(staged.into_iter().chain(stored).min())
    }

    /// The first block from `from` on that the tree has.
    fn next_stored(&self, root: Root, from: u64) -> Res<Option<u64>> {
        match root.page() {
            Some(page) if from < Root::span(root.height()) => {
                self.next_below(page, (root.height(), 0), from, &mut 0)
            }
            _ => Ok(None),
        }
    }

    fn next_below(
        &self,
        node: Page,
        (height, first): (u32, u64),
        from: u64,
        seen: &mut u64,
    ) -> Res<Option<u64>> {
        if height == 0 {
            return Ok(Some(first));
        }
        let shift = TABLE_BITS * (height - 1);
        for index in (from.saturating_sub(first) >> shift)..FANOUT {
            let next = self.space.load(self.space.entry(node, index)?)?;
            if next == 0 {
                continue;
            }
            let place = (height - 1, first + (index << shift));
            let next = self.space.page_of_tree(Page(next), seen)?;
            let found = self.next_below(next, place, from, seen)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    pub(crate) fn seek(&self, ino: Ino, off: u64, kind: SeekKind) -> Res<u64> {
        let node = self.node(ino)?;
        let state = node.state.read();
        if must_be_regular(state.kind, Errno::INVAL).is_err() {
            return Err(Errno::INVAL.into());
        }
        if off >= state.size {
            return Err(Errno::NXIO.into());
        }
        let mut block = off / PAGE;
        match kind {
            SeekKind::Data => {
                let next = self.next_block(&state, block)?;
                let next = next.filter(|block| block * PAGE < state.size);
                Ok(off.max(next.ok_or(Errno::NXIO)? * PAGE))
            }
            SeekKind::Hole => {
                while block * PAGE < state.size && self.page_of(&state, block)?.is_some() {
                    block += 1;
                }
                Ok(off.max((block * PAGE).min(state.size)))
            }
        }
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Res<Vec<u8>> {
        let node = self.node(ino)?;
        let state = node.state.read();
        let Some(line) = state.target else {
            return Err(Errno::INVAL.into());
        };
        if state.size > SYMLINK_MAX as u64 {
            return Err(crate::error::corrupt(format_args!(
                "the link {ino} is too long"
            )));
        }
        let mut target = vec![0; state.size as usize];
        self.space.text(line, &mut target)?;
        Ok(target)
    }
}

/// The parts of a buffer that lie in one page each, with their offsets in the file.
fn parts_mut(off: u64, buf: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    let first = ((PAGE - off % PAGE) as usize).min(buf.len());
    let (head, tail) = buf.split_at_mut(first);
    let start = off + first as u64;
    let tail = tail.chunks_mut(PAGE as usize).enumerate();
    let tail = tail.map(move |(n, part)| (start + n as u64 * PAGE, part));
    std::iter::once((off, head)).chain(tail)
}
