//! Freeing blocks of files, from the end backwards.
//!
//! # Order
//! A subtree that is freed as a whole is cut at its topmost pointer, in one change. The bitmap
//! marks the blocks as free after that.

use crate::inode::Node;
use crate::tree::{SECTORS, pointer_at, slot_end};
use crate::volume::Ext2;
use blockfs::{Freed, Heads, Removed, Result};
use medium::block::Lba;
use patch::{Before, Op, Patched, Rule};
use std::ops::Range;
use vfs::Ino;

/// Most blocks that one call frees.
const CUT_MAX: usize = 4096;

/// The result of an attempt to take a subtree as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gathered {
    Whole,
    /// It has blocks that must stay.
    Stays,
    /// It is larger than the budget.
    TooLarge,
}

/// Blocks that were cut off, each with the removal of the last pointer to it. They are still marked
/// as used.
#[derive(Default)]
struct Detached {
    blocks: Vec<(u32, Removed)>,
    /// Whether blocks are left in the range.
    more: bool,
}

/// A cut under way.
struct Cut<'a> {
    ino: u32,
    range: Range<u64>,
    budget: usize,
    befores: &'a [Before],
    done: Detached,
}

impl Ext2 {
    /// Calls `f` for at most `budget` blocks of a range, from its end backwards. A block comes
    /// before the blocks that point to it.
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

    /// Cuts blocks off a file, then marks them as free.
    pub(crate) fn cut(
        &self,
        op: &Op,
        ino: Ino,
        range: Range<u64>,
        budget: u32,
        befores: &[Before],
    ) -> Result<Freed> {
        let detached = self.detach(op, ino, range, budget, befores)?;
        let mut removals = Heads::new();
        for (block, removed) in detached.blocks {
            if removals.last() != Some(&removed.patch) {
                removals.push(removed.patch);
            }
            self.give_block(op, block, removed)?;
        }
        Ok(Freed {
            removed: removals,
            more: detached.more,
        })
    }

    fn detach(
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
        // Blocks that are cut off with a pointer in the inode, and that pointer.
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

    /// Whether a pointer leads to blocks in the range. Notes it if the budget is used up.
    fn is_due(&self, cut: &mut Cut<'_>, pointer: u32, level: u32, base: u64) -> bool {
        let overlaps = base < cut.range.end && base + self.span(level) > cut.range.start;
        if pointer == 0 || !overlaps {
            return false;
        }
        cut.done.more |= cut.budget == 0;
        cut.budget > 0
    }

    /// Lists a subtree, if all of it is freed and it fits the budget. Indirect blocks come after
    /// the blocks that they point to, since a change that nothing waits for is the cheapest to
    /// undo.
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

    /// Cuts off the blocks in the range below an indirect block that stays, from the end backwards.
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

    /// Clears the last pointers to data in an indirect block that are in the range, in one change.
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

    /// The befores of removing pointers to these blocks: those of the caller, and older removals,
    /// so that the youngest removal stands for all.
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

    /// Records blocks as cut off, each with the pointer at which it was cut off.
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
            cut.done.blocks.push((block, removed));
        }
    }
}
