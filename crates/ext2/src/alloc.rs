//! Free blocks and inodes: their places, their choice, and marking them as free.

use crate::format::{DIRECT, GroupDescriptor, Super};
use crate::layout::Group;
use crate::needed::Needed;
use crate::state::State;
use crate::volume::Ext2;
use blockfs::{Allocated, FormatError, Removed, Result};
use medium::block::Lba;
use patch::{Before, Change, Content, Op, PatchId};
use std::mem::offset_of;
use std::ops::Range;
use vfs::check::{Finding, Severity};

/// The purpose of a block. Each purpose has its own placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Contents of a regular file or a long symbolic link.
    Data,
    /// Contents of a directory.
    Directory,
    /// Pointers to blocks.
    Indirect,
    /// Extended attributes.
    Attributes,
}

/// The first bit at or after `from`, and below `to`, that is not set.
fn first_clear(map: &[u8], from: u32, to: u32) -> Option<u32> {
    let mut at = from;
    while at < to {
        if at.is_multiple_of(64) {
            let start = at as usize / 8;
            let word = map[start..].first_chunk().map(|b| u64::from_le_bytes(*b));
            if word == Some(u64::MAX) {
                at += 64;
                continue;
            }
        }
        if map[at as usize / 8] >> (at % 8) & 1 == 0 {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The first eight clear bits in one byte at or after `from`.
fn first_clear_byte(map: &[u8], from: u32, to: u32) -> Option<u32> {
    let bytes = &map[(from as usize).div_ceil(8).min(to as usize / 8)..to as usize / 8];
    let found = bytes.iter().position(|byte| *byte == 0)?;
    Some(to / 8 * 8 - (bytes.len() - found) as u32 * 8)
}

/// A clear bit near `goal`: the goal or one soon after it, else the start of a free run, else any.
fn near(map: &[u8], goal: u32, bits: u32) -> Option<u32> {
    let soon = (goal + 1).next_multiple_of(64).min(bits);
    first_clear(map, goal, soon)
        .or_else(|| first_clear_byte(map, soon, bits))
        .or_else(|| first_clear(map, soon, bits))
        .or_else(|| first_clear(map, 0, goal.min(bits)))
}

pub(crate) fn is_set(map: &[u8], bit: u32) -> bool {
    map[bit as usize / 8] >> (bit % 8) & 1 == 1
}

fn count_clear(map: &[u8], bits: u32) -> u32 {
    let whole = &map[..bits as usize / 8];
    let ones: u32 = whole.iter().map(|byte| byte.count_ones()).sum();
    let rest = (bits / 8 * 8..bits).filter(|bit| is_set(map, *bit)).count();
    bits - ones - rest as u32
}

impl Ext2 {
    // --- blocks ---------------------------------------------------------------------

    /// The preferred place of block `index` of a file.
    pub(crate) fn goal(&self, ino: u32, index: u64, purpose: Purpose) -> Result<u32> {
        let layout = &self.layout;
        let group = layout.group_of_inode(ino);
        let start = layout.group_start(group);
        if matches!(purpose, Purpose::Indirect | Purpose::Attributes) {
            // Apart from data, which stay contiguous.
            return Ok(start + layout.blocks_in(group) / 16 * 15);
        }
        if index > 0
            && let Some(previous) = self.block_at(&self.load(ino)?, index - 1)?
        {
            return Ok(previous + 1);
        }
        // After a hole: apart from the blocks that may fill it later.
        let ahead = index.saturating_sub(DIRECT as u64);
        let offset = ahead.min(u64::from(layout.blocks_in(group)) / 2) as u32;
        Ok(start + offset)
    }

    pub(crate) fn take_block(
        &self,
        op: &Op,
        ino: u32,
        index: u64,
        purpose: Purpose,
    ) -> Result<Allocated> {
        let goal = self.goal(ino, index, purpose)?;
        let layout = &self.layout;
        let goal = if goal < layout.blocks {
            goal
        } else {
            layout.first_block
        };
        let first = layout.group_of(goal);
        let mut state = self.state.lock();
        if state.usable_blocks(layout) == 0 {
            return Err(FormatError::NoSpace);
        }
        for rested in [true, false] {
            for step in 0..layout.groups {
                let group = (first + step) % layout.groups;
                let from = match step {
                    0 => goal - layout.group_start(group),
                    _ => 0,
                };
                if let Some(bit) = self.free_bit(&mut state, group, from, rested)? {
                    return self.take_bit(op, &mut state, group, bit);
                }
            }
        }
        Err(FormatError::NoSpace)
    }

    /// A free block of a group near `from`: one that has rested, or any.
    fn free_bit(
        &self,
        state: &mut State,
        group: u32,
        from: u32,
        rested: bool,
    ) -> Result<Option<u32>> {
        let known = state.groups[group as usize];
        if known.free_blocks == 0 {
            return Ok(None);
        }
        let map = self.store.read(Lba(known.block_bitmap.into()))?;
        let bits = self.layout.blocks_in(group);
        let Some(bit) = near(&map, from, bits) else {
            state.set_free_blocks(group, 0); // the count was wrong
            return Ok(None);
        };
        let block = self.layout.group_start(group) + bit;
        if !rested || state.removed.get(&*self.store, &block).is_none() {
            return Ok(Some(bit));
        }
        Ok(near(&state.resting.hidden(group, &map), from, bits))
    }

    fn take_bit(&self, op: &Op, state: &mut State, group: u32, bit: u32) -> Result<Allocated> {
        let block = self.layout.group_start(group) + bit;
        if self.is_structure(state, block) {
            let what = format!("block bitmap of group {group}: block {block} is marked free");
            return Err(FormatError::Corrupt(what));
        }
        let mut needed = Needed::new();
        self.counts_of(group, &mut needed);
        self.store.ready(&needed)?;
        let map = Lba(state.groups[group as usize].block_bitmap.into());
        let bit_set = self.flip(op, map, bit, &[])?;
        state.resting.remove(group, bit);
        let free = state.groups[group as usize].free_blocks - 1;
        state.set_free_blocks(group, free);
        self.write_counts(op, state, group)?;
        Ok(Allocated {
            lba: Lba(block.into()),
            bit: bit_set,
            reused_after: state.removed.get(&*self.store, &block).copied(),
        })
    }

    /// Marks a block as free once its pointers are gone.
    pub(crate) fn give_block(&self, op: &Op, block: u32, removed: Removed) -> Result<()> {
        let layout = &self.layout;
        let group = layout.group_of(block);
        let bit = block - layout.group_start(group);
        let mut state = self.state.lock();
        let map = Lba(state.groups[group as usize].block_bitmap.into());
        if self.is_structure(&state, block) || !is_set(&self.store.read(map)?, bit) {
            let what = format!("block bitmap of group {group}: block {block} is free already");
            return Err(FormatError::Corrupt(what));
        }
        let befores = removed.before_reuse();
        let befores = befores.as_slice();
        self.flip(op, map, bit, befores)?;
        if !removed.never_stored {
            state.let_rest(&*self.store, layout, block, removed.patch);
        }
        state.attached.remove(&block);
        let free = state.groups[group as usize].free_blocks + 1;
        state.set_free_blocks(group, free);
        self.write_counts(op, &state, group)?;
        let lba = Lba(block.into());
        self.store.freed(op, lba, befores, removed.never_stored)?;
        Ok(())
    }

    /// Whether a block holds a structure of the format. No file may have it.
    pub(crate) fn is_structure(&self, state: &State, block: u32) -> bool {
        let layout = &self.layout;
        let group = layout.group_of(block);
        let known = &state.groups[group as usize];
        let table = known.inode_table..known.inode_table + layout.table_blocks();
        block == known.block_bitmap
            || block == known.inode_bitmap
            || table.contains(&block)
            || (layout.has_super(group)
                && block - layout.group_start(group) <= layout.descriptor_blocks)
    }

    /// The block of a pointer, `None` for a hole.
    pub(crate) fn pointee(&self, pointer: u32, ino: u32) -> Result<Option<u32>> {
        if pointer == 0 {
            return Ok(None);
        }
        let range = self.layout.first_block + 1..self.layout.blocks;
        if !range.contains(&pointer) || self.is_structure(&self.state.lock(), pointer) {
            let what = format!("inode {ino}: points to block {pointer}");
            return Err(FormatError::Corrupt(what));
        }
        Ok(Some(pointer))
    }

    fn flip(&self, op: &Op, map: Lba, bit: u32, befores: &[Before]) -> Result<PatchId> {
        let change = Change::Flip {
            at: bit / 32 * 4,
            mask: 1 << (bit % 32),
        };
        let content = Content::Metadata;
        Ok(self.store.change(op, map, content, change, befores)?.id)
    }

    /// Writes a group's counts. They are not ordered: a crash may leave wrong ones, and the next
    /// mount counts anew.
    fn write_counts(&self, op: &Op, state: &State, group: u32) -> Result<()> {
        let known = &state.groups[group as usize];
        let (lba, at) = self.layout.descriptor(group);
        let at = at + offset_of!(GroupDescriptor, free_blocks) as u32;
        let mut bytes = [0; 6];
        bytes[..2].copy_from_slice(&(known.free_blocks as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(known.free_inodes as u16).to_le_bytes());
        bytes[4..].copy_from_slice(&(known.directories as u16).to_le_bytes());
        self.change(op, lba, at, &bytes, &[])?;
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&(state.free_blocks as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&(state.free_inodes as u32).to_le_bytes());
        self.change_super(op, offset_of!(Super, free_blocks), &bytes, &[])?;
        Ok(())
    }

    // --- inodes ---------------------------------------------------------------------

    /// Takes a free inode near directory `dir`, which will have `blocks` blocks at once. Returns
    /// its number and its bit.
    pub(crate) fn take_inode(
        &self,
        op: &Op,
        dir: u32,
        (directory, blocks): (bool, u64),
    ) -> Result<(u32, PatchId)> {
        let layout = &self.layout;
        let mut state = self.state.lock();
        let parent = layout.group_of_inode(dir);
        let order: Box<dyn Iterator<Item = u32>> = match directory {
            true => Box::new(directory_groups(&state, parent, dir).into_iter()),
            false => Box::new(file_groups(parent, layout.groups, dir)),
        };
        for group in order {
            let known = state.groups[group as usize];
            if known.free_inodes == 0 {
                continue;
            }
            let map = Lba(known.inode_bitmap.into());
            let first = if group == 0 { layout.first_ino - 1 } else { 0 };
            let found = first_clear(&self.store.read(map)?, first, layout.inodes_per_group);
            let Some(bit) = found else {
                state.set_free_inodes(group, 0); // the count was wrong
                continue;
            };
            let ino = group * layout.inodes_per_group + bit + 1;
            self.ready_new(&state, ino, blocks)?;
            let flip = self.flip(op, map, bit, &[])?;
            state.set_free_inodes(group, known.free_inodes - 1);
            state.groups[group as usize].directories += u32::from(directory);
            self.write_counts(op, &state, group)?;
            return Ok((ino, flip));
        }
        Err(FormatError::NoSpace)
    }

    /// Marks an inode as free, after `befores`.
    pub(crate) fn give_inode(
        &self,
        op: &Op,
        ino: u32,
        directory: bool,
        befores: &[Before],
    ) -> Result<()> {
        let layout = &self.layout;
        let group = layout.group_of_inode(ino);
        let bit = (ino - 1) % layout.inodes_per_group;
        let mut state = self.state.lock();
        let map = Lba(state.groups[group as usize].inode_bitmap.into());
        if !is_set(&self.store.read(map)?, bit) {
            let what = format!("inode bitmap of group {group}: inode {ino} is free already");
            return Err(FormatError::Corrupt(what));
        }
        self.flip(op, map, bit, befores)?;
        let free = state.groups[group as usize].free_inodes + 1;
        state.set_free_inodes(group, free);
        let directories = &mut state.groups[group as usize].directories;
        *directories = directories.saturating_sub(u32::from(directory));
        self.write_counts(op, &state, group)
    }

    /// The free blocks by the bitmaps.
    pub(crate) fn free_list(&self) -> Result<Vec<u32>> {
        let groups = self.state.lock().groups.clone();
        let mut free = Vec::new();
        for (group, known) in (0..).zip(&groups) {
            let map = self.store.read(Lba(known.block_bitmap.into()))?;
            let bits = (0..self.layout.blocks_in(group)).filter(|bit| !is_set(&map, *bit));
            free.extend(bits.map(|bit| self.layout.group_start(group) + bit));
        }
        Ok(free)
    }

    /// The byte ranges of the device that hold the free inodes by the bitmaps.
    pub(crate) fn free_inode_ranges(&self) -> Result<Vec<Range<usize>>> {
        let groups = self.state.lock().groups.clone();
        let each = self.layout.inodes_per_group;
        let mut free = Vec::new();
        for (group, known) in (0..).zip(&groups) {
            let map = self.store.read(Lba(known.inode_bitmap.into()))?;
            for bit in (0..each).filter(|bit| !is_set(&map, *bit)) {
                let (lba, at) = self.place(group * each + bit + 1);
                let start = lba.0 as usize * self.layout.block_bytes as usize + at as usize;
                free.push(start..start + self.layout.inode_bytes as usize);
            }
        }
        Ok(free)
    }

    // --- counts ---------------------------------------------------------------------

    /// Counts the free blocks and inodes in a group's bitmaps.
    fn counted(&self, group: u32, known: &Group) -> Result<(u32, u32)> {
        let blocks = self.store.read(Lba(known.block_bitmap.into()))?;
        let inodes = self.store.read(Lba(known.inode_bitmap.into()))?;
        let blocks = count_clear(&blocks, self.layout.blocks_in(group));
        Ok((blocks, count_clear(&inodes, self.layout.inodes_per_group)))
    }

    /// Replaces the counts in memory, since a crash may have left wrong ones.
    pub(crate) fn recount(&self) -> Result<()> {
        let mut state = self.state.lock();
        for group in 0..self.layout.groups {
            let known = state.groups[group as usize];
            let (blocks, inodes) = self.counted(group, &known)?;
            state.set_free_blocks(group, blocks);
            state.set_free_inodes(group, inodes);
        }
        Ok(())
    }

    pub(crate) fn audit_counts(&self) -> Vec<Finding> {
        let state = self.state.lock();
        let mut findings = Vec::new();
        let mut report = |what| {
            findings.push(Finding {
                invariant: "counts".into(),
                severity: Severity::Corrupt,
                what,
            });
        };
        for (group, known) in state.groups.iter().enumerate() {
            let free = (known.free_blocks, known.free_inodes);
            match self.counted(group as u32, known) {
                Ok(counted) if counted == free => {}
                Ok(counted) => report(format!(
                    "group {group}: {free:?} blocks and inodes are free in memory, {counted:?} in the bitmaps"
                )),
                Err(error) => report(format!("group {group}: {error}")),
            }
        }
        findings
    }
}

/// The groups for a new directory, in order of preference (Orlov). Directories of the root lie
/// apart from each other, others near their parent unless it is crowded there.
fn directory_groups(state: &State, parent: u32, dir: u32) -> Vec<u32> {
    let groups = state.groups.len() as u32;
    let mut order: Vec<u32> = (0..groups).map(|step| (parent + step) % groups).collect();
    let average_inodes = state.free_inodes / u64::from(groups);
    let average_blocks = state.free_blocks / u64::from(groups);
    let group = |group: u32| &state.groups[group as usize];
    if dir == crate::format::ROOT_INO {
        let roomy = |g: u32| {
            u64::from(group(g).free_inodes) >= average_inodes
                && u64::from(group(g).free_blocks) >= average_blocks
        };
        order.sort_by_key(|&g| (!roomy(g), group(g).directories));
    } else {
        let roomy = |g: u32| {
            u64::from(group(g).free_inodes) >= average_inodes / 2
                && u64::from(group(g).free_blocks) >= average_blocks / 2
        };
        order.sort_by_key(|&g| !roomy(g));
    }
    order
}

/// The groups for other inodes, in order of preference: the directory's group, then groups that
/// differ by directory, then all.
fn file_groups(parent: u32, groups: u32, dir: u32) -> impl Iterator<Item = u32> {
    let steps = std::iter::successors(Some(1_u32), |step| step.checked_mul(2));
    let hashed = steps
        .take_while(move |step| *step < groups)
        .map(move |step| parent.wrapping_add(dir).wrapping_add(2 * step - 1) % groups);
    let all = (1..groups).map(move |step| (parent + step) % groups);
    std::iter::once(parent).chain(hashed).chain(all)
}
