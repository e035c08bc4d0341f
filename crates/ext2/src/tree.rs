//! Blocks of files: direct, single, double and triple indirect pointers.
//!
//! # Order
//! A pointer comes after the bit of the block that it points to and after its contents;
//! with new indirect blocks in between, the topmost pointer comes after all that hangs
//! below it. What is taken off as a whole is cut at its topmost pointer: one change, and
//! all blocks below are free after it.

use crate::format::{DIRECT, INDIRECT, Inode, POINTERS};
use crate::inode::Node;
use crate::seeded::{Bug, hit};
use crate::volume::Ext2;
use blockfs::{Allocated, Detached, FormatError, Purpose, Removed, Result};
use medium::block::{Buffer, Lba};
use patch::{Before, Op, PatchId, Patched, Rule, attempt};
use smallvec::SmallVec;
use std::mem::offset_of;
use std::ops::Range;
use vfs::{Errno, Ino};

/// Most blocks that one call takes off.
const CUT_MAX: usize = 4096;

/// One of an inode's pointers: how many indirect blocks lie between it and data, and the
/// first index that it leads to.
#[derive(Debug, Clone, Copy)]
struct Root {
    slot: usize,
    level: u32,
    base: u64,
}

/// The way to a block: the pointer in the inode, and those in indirect blocks.
struct Path {
    slot: usize,
    steps: SmallVec<[u32; 3]>,
}

/// What became of an attempt to take a subtree as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gathered {
    Whole,
    /// It has blocks that are to stay.
    Stays,
    /// It is larger than the budget.
    TooLarge,
}

/// A cut under way.
struct Cut<'a> {
    ino: u32,
    range: Range<u64>,
    budget: usize,
    befores: &'a [Before],
    done: Detached,
}

fn init(patch: PatchId) -> Before {
    Before {
        patch,
        rule: Rule::InitialiseBeforePoint,
    }
}

fn pointer_at(block: &[u8], index: u32) -> u32 {
    let at = index as usize * 4;
    block[at..]
        .first_chunk()
        .map_or(0, |b| u32::from_le_bytes(*b))
}

/// Where an inode's pointer is in it.
fn slot_end(slot: usize) -> usize {
    offset_of!(Inode, block) + 4 * (slot + 1)
}

/// Has the indirect blocks that follow in a block of this level read along with one that is
/// absent: else an attempt at a long file would begin anew at each.
fn want_more(error: &FormatError, block: &[u8], index: u64, level: u32) {
    const AHEAD: usize = 256;
    if level > 1 && error.is_absent() {
        let pointers = block.chunks_exact(4).skip(index as usize + 1);
        let next = pointers.map(|p| pointer_at(p, 0)).filter(|p| *p != 0);
        attempt::want(next.take(AHEAD).map(|p| Lba(p.into())));
    }
}

const SECTORS: usize = offset_of!(Inode, sectors);
const SIZE: usize = offset_of!(Inode, size_low);

impl Ext2 {
    /// Pointers in an indirect block.
    fn fan_out(&self) -> u32 {
        self.layout.block_bytes / 4
    }

    /// How many blocks of a file a pointer of this level leads to.
    fn span(&self, level: u32) -> u64 {
        u64::from(self.fan_out()).pow(level)
    }

    fn roots(&self) -> [Root; POINTERS] {
        let mut base = 0;
        std::array::from_fn(|slot| {
            let level = slot.saturating_sub(DIRECT - 1) as u32;
            let root = Root { slot, level, base };
            base += self.span(level);
            root
        })
    }

    fn path(&self, index: u64) -> Result<Path> {
        let roots = self.roots();
        let root = roots.iter().rev().find(|root| index >= root.base);
        let root = root.filter(|root| index - root.base < self.span(root.level));
        let root = root.ok_or(FormatError::Limit(Errno::FBIG))?;
        let within = index - root.base;
        let step = |level| (within / self.span(level) % u64::from(self.fan_out())) as u32;
        Ok(Path {
            slot: root.slot,
            steps: (0..root.level).rev().map(step).collect(),
        })
    }

    fn sectors_per_block(&self) -> u32 {
        self.layout.block_bytes / 512
    }

    /// The indirect blocks on the way to a block, as far as there are, and the block.
    fn walk(&self, node: &Node, path: &Path) -> Result<(SmallVec<[u32; 3]>, Option<u32>)> {
        let mut way = SmallVec::new();
        let mut at = self.pointee(node.inode.block[path.slot].get(), node.ino)?;
        for &step in &path.steps {
            let Some(block) = at else { break };
            way.push(block);
            let pointer = pointer_at(&self.store.read(Lba(block.into()))?, step);
            at = self.pointee(pointer, node.ino)?;
        }
        if way.len() < path.steps.len() {
            at = None;
        }
        Ok((way, at))
    }

    /// Where block `index` is, if there is one.
    pub(crate) fn block_at(&self, node: &Node, index: u64) -> Result<Option<u32>> {
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(None);
        }
        match self.path(index) {
            Ok(path) => Ok(self.walk(node, &path)?.1),
            Err(_) => Ok(None), // beyond what can be
        }
    }

    // --- looking ----------------------------------------------------------------------

    pub(crate) fn next_from(&self, ino: Ino, range: Range<u64>) -> Result<Option<u64>> {
        let node = self.load_ino(ino)?;
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(None);
        }
        for root in self.roots() {
            let pointer = node.inode.block[root.slot].get();
            let found = self.next_below(node.ino, pointer, root.level, root.base, &range)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn next_below(
        &self,
        ino: u32,
        pointer: u32,
        level: u32,
        base: u64,
        range: &Range<u64>,
    ) -> Result<Option<u64>> {
        let end = base + self.span(level);
        if pointer == 0 || base >= range.end || end <= range.start {
            return Ok(None);
        }
        let Some(block) = self.pointee(pointer, ino)? else {
            return Ok(None);
        };
        if level == 0 {
            return Ok(Some(base));
        }
        let block = self.store.read(Lba(block.into()))?;
        let below = self.span(level - 1);
        let first = range.start.saturating_sub(base) / below;
        for index in first as u32..self.fan_out() {
            let base = base + u64::from(index) * below;
            let pointer = pointer_at(&block, index);
            let found = self.next_below(ino, pointer, level - 1, base, range);
            let found = found.inspect_err(|e| want_more(e, &block, index.into(), level))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    pub(crate) fn next_hole_from(&self, ino: Ino, range: Range<u64>) -> Result<Option<u64>> {
        let node = self.load_ino(ino)?;
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(Some(range.start).filter(|start| *start < range.end));
        }
        for root in self.roots() {
            let pointer = node.inode.block[root.slot].get();
            let found = self.hole_below(node.ino, pointer, root.level, root.base, &range)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first hole of a range below a pointer. Reads each indirect block once.
    fn hole_below(
        &self,
        ino: u32,
        pointer: u32,
        level: u32,
        base: u64,
        range: &Range<u64>,
    ) -> Result<Option<u64>> {
        let from = range.start.max(base);
        let to = range.end.min(base + self.span(level));
        if from >= to {
            return Ok(None);
        }
        if pointer == 0 || level == 0 {
            return Ok(Some(from).filter(|_| pointer == 0));
        }
        let Some(block) = self.pointee(pointer, ino)? else {
            return Ok(Some(from));
        };
        let block = self.store.read(Lba(block.into()))?;
        let below = self.span(level - 1);
        for index in (from - base) / below..(to - base).div_ceil(below) {
            let pointer = pointer_at(&block, index as u32);
            let base = base + index * below;
            let found = self.hole_below(ino, pointer, level - 1, base, range);
            let found = found.inspect_err(|e| want_more(e, &block, index, level))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// How many blocks, indirect ones included, it takes to fill the holes in a range.
    pub(crate) fn missing(&self, ino: Ino, range: Range<u64>) -> Result<u64> {
        let node = self.load_ino(ino)?;
        let mut missing = 0;
        for root in self.roots() {
            let pointer = node.inode.block[root.slot].get();
            missing += self.missing_below(node.ino, pointer, root.level, root.base, &range)?;
        }
        Ok(missing)
    }

    fn missing_below(
        &self,
        ino: u32,
        pointer: u32,
        level: u32,
        base: u64,
        range: &Range<u64>,
    ) -> Result<u64> {
        let from = range.start.max(base);
        let to = range.end.min(base + self.span(level));
        if from >= to {
            return Ok(0);
        }
        let Some(block) = self.pointee(pointer, ino)? else {
            let nodes = |level| {
                let span = self.span(level);
                (to - base).div_ceil(span) - (from - base) / span
            };
            return Ok((0..=level).map(nodes).sum());
        };
        if level == 0 {
            return Ok(0);
        }
        let block = self.store.read(Lba(block.into()))?;
        let below = self.span(level - 1);
        let (first, last) = ((from - base) / below, (to - base).div_ceil(below));
        let mut missing = 0;
        for index in first..last {
            let pointer = pointer_at(&block, index as u32);
            let base = base + index * below;
            let below = self.missing_below(ino, pointer, level - 1, base, range);
            missing += below.inspect_err(|e| want_more(e, &block, index, level))?;
        }
        Ok(missing)
    }

    // --- attaching --------------------------------------------------------------------

    /// Points a file at a block and, if `size` says so, covers it with the size.
    pub(crate) fn attach(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        block: &Allocated,
        befores: &[Before],
        size: Option<u32>,
    ) -> Result<PatchId> {
        let mut node = self.load_ino(ino)?;
        let path = self.path(index)?;
        let (way, there) = self.walk(&node, &path)?;
        if there.is_some() {
            let what = format!("inode {ino}: block {index} is there already");
            return Err(FormatError::Corrupt(what));
        }
        let new = path.steps.len() - way.len();
        if self.state.lock().usable_blocks(&self.layout) < new as u64 {
            return Err(FormatError::NoSpace);
        }
        let mut befores: SmallVec<[Before; 8]> = SmallVec::from_slice(befores);
        if !hit(Bug::PointBeforeBit) {
            befores.push(init(block.bit));
        }
        let mut child = block.lba.0 as u32;
        for &step in path.steps[way.len()..].iter().rev() {
            child = self.make_indirect(op, node.ino, index, step, child, &mut befores)?;
        }
        let sectors = (1 + new as u32) * self.sectors_per_block();
        let inode = &mut node.inode;
        inode
            .sectors
            .set(inode.sectors.get().saturating_add(sectors));
        if let Some(size) = size {
            inode.size_low.set(size);
        }
        let start = if size.is_some() { SIZE } else { SECTORS };
        let Some(last) = way.last() else {
            inode.block[path.slot].set(child);
            let range = start..slot_end(path.slot);
            let pointed = self.write_node(op, &node, range, &befores)?.id;
            self.first_pointed(child, pointed);
            return Ok(pointed);
        };
        let at = path.steps[way.len() - 1] * 4;
        let lba = Lba(u64::from(*last));
        let pointed = self.change(op, lba, at, &child.to_le_bytes(), &befores)?;
        self.first_pointed(child, pointed);
        let counted = self.write_node(op, &node, start..SECTORS + 4, &[init(pointed)])?;
        Ok(counted.id)
    }

    pub(crate) fn first_pointed(&self, block: u32, by: PatchId) {
        self.state.lock().attached.insert(&*self.store, block, by);
    }

    /// A new indirect block with one pointer, in one change. What points to it must come
    /// after `befores`, to which it adds itself.
    fn make_indirect(
        &self,
        op: &Op,
        ino: u32,
        index: u64,
        step: u32,
        child: u32,
        befores: &mut SmallVec<[Before; 8]>,
    ) -> Result<u32> {
        let new = self.take_block(op, ino, index, Purpose::Indirect)?;
        let mut contents = match hit(Bug::IndirectNotCleared) {
            true => Buffer::clone(&*self.store.read(new.lba)?),
            false => Buffer::zeroed(self.layout.block_bytes as usize),
        };
        let at = step as usize * 4;
        contents[at..at + 4].copy_from_slice(&child.to_le_bytes());
        let waits = |_: &PatchId| !hit(Bug::IndirectBeforeReuse);
        let reused = new.reused_after.filter(waits).map(|patch| Before {
            patch,
            rule: Rule::NullifyBeforeReuse,
        });
        let made = self.change(op, new.lba, 0, &contents, reused.as_slice())?;
        self.first_pointed(child, made);
        befores.push(init(made));
        befores.push(init(new.bit));
        Ok(new.lba.0 as u32)
    }

    /// Calls `f` for the blocks of a range, from its end on and each before those that point to
    /// it, at most `budget` of them.
    pub(crate) fn each_from_end(
        &self,
        node: &Node,
        range: Range<u64>,
        budget: u32,
        f: &mut impl FnMut(u32),
    ) -> Result<()> {
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(());
        }
        let mut left = budget;
        for root in self.roots().into_iter().rev() {
            let pointer = node.inode.block[root.slot].get();
            let at = (pointer, root.level, root.base);
            self.each_below(node.ino, at, &range, &mut left, f)?;
        }
        Ok(())
    }

    fn each_below(
        &self,
        ino: u32,
        (pointer, level, base): (u32, u32, u64),
        range: &Range<u64>,
        left: &mut u32,
        f: &mut impl FnMut(u32),
    ) -> Result<()> {
        let from = range.start.max(base);
        let to = range.end.min(base + self.span(level));
        if from >= to || *left == 0 {
            return Ok(());
        }
        let Some(block) = self.pointee(pointer, ino)? else {
            return Ok(());
        };
        if level > 0 {
            let pointers = self.store.read(Lba(block.into()))?;
            let below = self.span(level - 1);
            for index in ((from - base) / below..(to - base).div_ceil(below)).rev() {
                let at = (
                    pointer_at(&pointers, index as u32),
                    level - 1,
                    base + index * below,
                );
                self.each_below(ino, at, range, left, f)?;
            }
        }
        if *left > 0 {
            *left -= 1;
            f(block);
        }
        Ok(())
    }

    // --- taking off -------------------------------------------------------------------

    pub(crate) fn detach(
        &self,
        op: &Op,
        ino: Ino,
        range: Range<u64>,
        budget: u32,
        befores: &[Before],
    ) -> Result<Detached> {
        let mut node = self.load_ino(ino)?;
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(Detached::default());
        }
        let mut cut = Cut {
            ino: node.ino,
            range,
            budget: (budget as usize).clamp(1, CUT_MAX),
            befores,
            done: Detached::default(),
        };
        // Blocks that go with a pointer in the inode, and that pointer.
        let mut tops: Vec<(u32, u32)> = Vec::new();
        let mut end = SECTORS + 4;
        for root in self.roots().into_iter().rev() {
            let pointer = node.inode.block[root.slot].get();
            if !self.is_due(&mut cut, pointer, root.level, root.base) {
                continue;
            }
            let mut blocks = Vec::new();
            match self.gather(&cut, pointer, root.level, root.base, &mut blocks)? {
                Gathered::Whole => {
                    cut.budget -= blocks.len();
                    tops.extend(blocks.into_iter().map(|block| (block, pointer)));
                    node.inode.block[root.slot].set(0);
                    end = end.max(slot_end(root.slot));
                }
                partly => {
                    cut.done.more |= partly == Gathered::TooLarge;
                    self.descend(op, &mut cut, pointer, root.level, root.base)?;
                }
            }
        }
        let count = (tops.len() + cut.done.blocks.len()) as u32;
        if count > 0 {
            let sectors = &mut node.inode.sectors;
            sectors.set(
                sectors
                    .get()
                    .saturating_sub(count * self.sectors_per_block()),
            );
            let befores = match tops.is_empty() {
                true => Vec::new(), // only the count, which nothing waits for
                false => self.befores_of(&cut, tops.iter().map(|(block, _)| *block)),
            };
            let patched = self.write_node(op, &node, SECTORS..end, &befores)?;
            self.record(&mut cut, patched, tops);
        }
        Ok(cut.done)
    }

    /// Whether a pointer leads to something in the range; notes it if the budget is used up.
    fn is_due(&self, cut: &mut Cut<'_>, pointer: u32, level: u32, base: u64) -> bool {
        let overlaps = base < cut.range.end && base + self.span(level) > cut.range.start;
        if pointer == 0 || !overlaps {
            return false;
        }
        cut.done.more |= cut.budget == 0;
        cut.budget > 0
    }

    /// Lists a subtree, if all of it is to go and it fits the budget. Pointers come behind
    /// what they point to: what waits for nothing is the cheapest to take back.
    fn gather(
        &self,
        cut: &Cut<'_>,
        pointer: u32,
        level: u32,
        base: u64,
        into: &mut Vec<u32>,
    ) -> Result<Gathered> {
        let Some(block) = self.pointee(pointer, cut.ino)? else {
            return Ok(Gathered::Whole);
        };
        if level == 0 && !cut.range.contains(&base) {
            return Ok(Gathered::Stays);
        }
        if level > 0 {
            let pointers = self.store.read(Lba(block.into()))?;
            let below = self.span(level - 1);
            for index in 0..self.fan_out() {
                let base = base + u64::from(index) * below;
                let pointer = pointer_at(&pointers, index);
                let gathered = self.gather(cut, pointer, level - 1, base, into)?;
                if gathered != Gathered::Whole {
                    return Ok(gathered);
                }
            }
        }
        if into.len() == cut.budget {
            return Ok(Gathered::TooLarge);
        }
        into.push(block);
        Ok(Gathered::Whole)
    }

    /// Takes off what is due below an indirect block that stays, from the end backwards.
    fn descend(
        &self,
        op: &Op,
        cut: &mut Cut<'_>,
        pointer: u32,
        level: u32,
        base: u64,
    ) -> Result<()> {
        let Some(block) = self.pointee(pointer, cut.ino)? else {
            return Ok(());
        };
        if level == 0 {
            return Ok(());
        }
        if level == 1 {
            return self.clear_pointers(op, cut, block, base);
        }
        let below = self.span(level - 1);
        for index in (0..self.fan_out()).rev() {
            let pointer = pointer_at(&self.store.read(Lba(block.into()))?, index);
            let base = base + u64::from(index) * below;
            if !self.is_due(cut, pointer, level - 1, base) {
                continue;
            }
            let mut blocks = Vec::new();
            match self.gather(cut, pointer, level - 1, base, &mut blocks)? {
                Gathered::Whole => {
                    cut.budget -= blocks.len();
                    let befores = self.befores_of(cut, blocks.iter().copied());
                    let lba = Lba(block.into());
                    let patched = self.patch(op, lba, index * 4, &[0; 4], &befores)?;
                    let tops = blocks.into_iter().map(|block| (block, pointer));
                    self.record(cut, patched, tops);
                }
                partly => {
                    cut.done.more |= partly == Gathered::TooLarge;
                    self.descend(op, cut, pointer, level - 1, base)?;
                }
            }
        }
        Ok(())
    }

    /// Clears the last pointers to data that are due in an indirect block, in one change.
    fn clear_pointers(&self, op: &Op, cut: &mut Cut<'_>, block: u32, base: u64) -> Result<()> {
        let lba = Lba(block.into());
        let contents = self.store.read(lba)?;
        let within = |index: u64| index.clamp(base, base + self.span(1)) - base;
        let (from, to) = (within(cut.range.start) as u32, within(cut.range.end) as u32);
        let mut taken = Vec::new();
        let (mut first, mut end) = (to, to);
        for index in (from..to).rev() {
            let Some(block) = self.pointee(pointer_at(&contents, index), cut.ino)? else {
                continue;
            };
            if taken.len() == cut.budget {
                cut.done.more = true;
                break;
            }
            if taken.is_empty() {
                end = index + 1;
            }
            first = index;
            taken.push(block);
        }
        drop(contents);
        if taken.is_empty() {
            return Ok(());
        }
        cut.budget -= taken.len();
        let befores = self.befores_of(cut, taken.iter().copied());
        let zeros = vec![0; (end - first) as usize * 4];
        let patched = self.patch(op, lba, first * 4, &zeros, &befores)?;
        self.record(cut, patched, taken.into_iter().map(|block| (block, block)));
        Ok(())
    }

    /// What removing pointers to these blocks must come after: besides what the caller says,
    /// older removals, so that the youngest stands for all.
    fn befores_of(&self, cut: &Cut<'_>, blocks: impl Iterator<Item = u32>) -> Vec<Before> {
        let mut befores = cut.befores.to_vec();
        let state = self.state.lock();
        for block in blocks {
            if let Some(&patch) = state.removed.get(&*self.store, &block) {
                let rule = Rule::NullifyBeforeReuse;
                befores.push(Before { patch, rule });
            }
        }
        befores.sort_unstable_by_key(|before| before.patch);
        befores.dedup_by_key(|before| before.patch);
        befores
    }

    /// Notes blocks as taken off, each with the pointer at which it was cut off.
    fn record(
        &self,
        cut: &mut Cut<'_>,
        patched: Patched,
        blocks: impl IntoIterator<Item = (u32, u32)>,
    ) {
        let state = self.state.lock();
        for (block, top) in blocks {
            let attached = state.attached.get(&*self.store, &top);
            let never_stored = patched.merged && attached == Some(&patched.id);
            let removed = Removed {
                patch: patched.id,
                never_stored,
            };
            cut.done.blocks.push((Lba(block.into()), removed));
        }
    }

    /// Most blocks that a change of `blocks` neighbouring blocks of a file touches.
    pub(crate) fn worst_cost(&self, blocks: u64) -> u32 {
        let indirect = blocks.div_ceil(self.fan_out().into()) + 2 * INDIRECT.len() as u64;
        let taken = blocks + indirect;
        let maps = taken.min(self.layout.groups.into());
        let descriptors = maps.min(self.layout.descriptor_blocks.into());
        // And the superblock, the inode, its bitmap and descriptor, and an attribute block.
        u32::try_from(taken + maps + descriptors + 5).unwrap_or(u32::MAX)
    }
}
