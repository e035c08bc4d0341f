//! Blocks of files: direct, single, double and triple indirect pointers.
//!
//! # Order
//! A pointer comes after the bit of the block that it points to, and after the block's contents.
//! With new indirect blocks, the topmost pointer comes after everything below it.

use crate::alloc::Purpose;
use crate::format::{DIRECT, INDIRECT, Inode, POINTERS};
use crate::inode::Node;
use crate::seeded::{Bug, hit};
use crate::volume::Ext2;
use blockfs::{Allocated, FormatError, Heads, Piece, Result, Written};
use medium::block::{Buffer, Lba};
use patch::{Before, Change, Content, Op, PatchId, Rule, attempt};
use smallvec::SmallVec;
use std::mem::offset_of;
use std::ops::Range;
use vfs::{Errno, FileType, Ino};

/// One of an inode's pointers, with the number of indirect blocks between it and data, and the
/// first index that it leads to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub slot: usize,
    pub level: u32,
    pub base: u64,
}

/// The path to a block: the pointer in the inode, and those in indirect blocks.
struct Path {
    slot: usize,
    steps: SmallVec<[u32; 3]>,
}

fn init(patch: PatchId) -> Before {
    Before {
        patch,
        rule: Rule::InitialiseBeforePoint,
    }
}

pub(crate) fn pointer_at(block: &[u8], index: u32) -> u32 {
    let at = index as usize * 4;
    block[at..]
        .first_chunk()
        .map_or(0, |b| u32::from_le_bytes(*b))
}

/// The offset of a pointer in its inode, in bytes.
pub(crate) fn slot_end(slot: usize) -> usize {
    offset_of!(Inode, block) + 4 * (slot + 1)
}

/// Requests the next indirect blocks of this level together with one that is absent. Otherwise an
/// attempt on a long file would be repeated for each.
fn want_more(error: &FormatError, block: &[u8], index: u64, level: u32) {
    const AHEAD: usize = 256;
    if level > 1 && error.is_absent() {
        let pointers = block.chunks_exact(4).skip(index as usize + 1);
        let next = pointers.map(|p| pointer_at(p, 0)).filter(|p| *p != 0);
        attempt::want(next.take(AHEAD).map(|p| Lba(p.into())));
    }
}

pub(crate) const SECTORS: usize = offset_of!(Inode, sectors);
const SIZE: usize = offset_of!(Inode, size_low);

impl Ext2 {
    /// Pointers in an indirect block.
    pub(crate) fn fan_out(&self) -> u32 {
        self.layout.block_bytes / 4
    }

    /// The number of a file's blocks to which a pointer of this level leads.
    pub(crate) fn span(&self, level: u32) -> u64 {
        u64::from(self.fan_out()).pow(level)
    }

    pub(crate) fn roots(&self) -> [Root; POINTERS] {
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

    pub(crate) fn sectors_per_block(&self) -> u32 {
        self.layout.block_bytes / 512
    }

    /// The existing indirect blocks on the path to a block, and the block.
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

    /// The place of block `index`, if there is one.
    pub(crate) fn block_at(&self, node: &Node, index: u64) -> Result<Option<u32>> {
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(None);
        }
        match self.path(index) {
            Ok(path) => Ok(self.walk(node, &path)?.1),
            Err(_) => Ok(None), // beyond what can be
        }
    }

    /// The places of the blocks from the first one on, up to a hole, at most `most`.
    pub(crate) fn blocks_up_to_hole(&self, node: &Node, most: u64) -> Result<Vec<u32>> {
        let mut blocks = Vec::new();
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(blocks);
        }
        for root in self.roots() {
            let pointer = node.inode.block[root.slot].get();
            if !self.add_below((node.ino, pointer), root.level, most, &mut blocks)? {
                break;
            }
        }
        Ok(blocks)
    }

    /// Adds the blocks below a pointer of an inode. Returns whether there was no hole, and room for
    /// all.
    fn add_below(
        &self,
        (ino, pointer): (u32, u32),
        level: u32,
        most: u64,
        blocks: &mut Vec<u32>,
    ) -> Result<bool> {
        if blocks.len() as u64 >= most {
            return Ok(false);
        }
        let Some(block) = self.pointee(pointer, ino)? else {
            return Ok(false);
        };
        if level == 0 {
            blocks.push(block);
            return Ok(true);
        }
        let block = self.store.read(Lba(block.into()))?;
        for index in 0..self.fan_out() {
            if !self.add_below((ino, pointer_at(&block, index)), level - 1, most, blocks)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The existing indirect blocks on the path to block `index`.
    pub(crate) fn indirect_on_path(&self, node: &Node, index: u64) -> Result<SmallVec<[u32; 3]>> {
        if !node.has_blocks(self.layout.block_bytes) {
            return Ok(SmallVec::new());
        }
        Ok(self.walk(node, &self.path(index)?)?.0)
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

    /// The number of blocks that the holes in a range take, indirect ones included.
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

    // --- writing ----------------------------------------------------------------------

    /// Stores bytes in a block of a file. A hole gets a block.
    pub(crate) fn put(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        Piece { at, bytes }: Piece<'_>,
        befores: &[Before],
    ) -> Result<Written> {
        let node = self.load_ino(ino)?;
        let content = match node.kind() {
            Some(FileType::Regular) => Content::Data,
            _ => Content::Metadata,
        };
        let path = self.path(index)?;
        let (way, there) = self.walk(&node, &path)?;
        if let Some(block) = there {
            let change = Change::Bytes { at, bytes };
            let lba = Lba(block.into());
            let patched = self.store.change(op, lba, content, change, befores)?;
            return Ok(Written {
                patch: patched.id,
                filled: Heads::new(),
            });
        }
        let needed = 1 + path.steps.len() - way.len();
        if self.state.lock().usable_blocks(&self.layout) < needed as u64 {
            return Err(FormatError::NoSpace);
        }
        let block = self.take_block(op, node.ino, index, Purpose::Data)?;
        let mut padded;
        let contents = if bytes.len() == self.layout.block_bytes as usize {
            bytes
        } else {
            padded = Buffer::zeroed(self.layout.block_bytes as usize);
            padded[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            &padded
        };
        let filled = block.fill(&*self.store, op, content, contents)?;
        let mut before_pointer: SmallVec<[Before; 4]> = SmallVec::from_slice(befores);
        before_pointer.extend(filled.before_pointer);
        Ok(Written {
            patch: self.attach(op, ino, index, &block, &before_pointer, None)?,
            filled: Heads::from_slice(&[filled.patch]),
        })
    }

    /// Points a file at a block and sets the size if there is one in `size`.
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

    /// The block at an index that is past the end of a directory: a crash came between the pointer and the size.
    pub(crate) fn block_past_end(&self, dir: Ino, index: u64) -> Result<Option<Lba>> {
        let node = self.load_ino(dir)?;
        let (_, there) = self.walk(&node, &self.path(index)?)?;
        Ok(there.map(|block| Lba(block.into())))
    }

    /// Fills a block of a directory and raises its size to it, for a block that the directory points to already.
    pub(crate) fn adopt_dir_block(
        &self,
        op: &Op,
        dir: Ino,
        block: Lba,
        size: u32,
        contents: &[u8],
        befores: &[Before],
    ) -> Result<(PatchId, PatchId)> {
        let filled = self.change(op, block, 0, contents, &[])?;
        let mut befores = befores.to_vec();
        if !hit(Bug::GrowBeforeFill) {
            befores.push(init(filled));
        }
        let mut node = self.load_ino(dir)?;
        node.inode.size_low.set(size);
        let grown = self.write_node(op, &node, SIZE..SIZE + 4, &befores)?.id;
        Ok((grown, filled))
    }

    pub(crate) fn first_pointed(&self, block: u32, by: PatchId) {
        self.state.lock().attached.insert(&*self.store, block, by);
    }

    /// Makes an indirect block with one pointer, in one change. The pointer to it must come after
    /// `befores`, to which the change is added.
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
        let reused = new.before_contents();
        let reused = reused.filter(|_| !hit(Bug::IndirectBeforeReuse));
        let made = self.change(op, new.lba, 0, &contents, reused.as_slice())?;
        self.first_pointed(child, made);
        befores.push(init(made));
        befores.push(init(new.bit));
        Ok(new.lba.0 as u32)
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
