//! The volatile index of free blocks, rebuilt by every program, segment by segment.
//!
//! Guarantee: each block is in the index at most once, and only if it is free. No session has taken
//! it, and no recovery could replay a write to it.

use super::classes::{CLASSES, Class, PAGE_BYTES};
use super::segment::{Bits, Page, Segment};
use crate::error::HeapError;
use hashbrown::HashMap;
use medium::Pmem;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A block as an allocation returns it and a free takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// A block of the superblock whose page starts at `page`.
    Small { page: u64, class: Class, block: u32 },
    /// Whole pages from `start` on.
    Extent { start: u64, pages: u64 },
}

impl Block {
    pub(super) fn start(&self) -> u64 {
        match self {
            Self::Small { page, class, block } => page + u64::from(*block) * class.size(),
            Self::Extent { start, .. } => *start,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Small { class, .. } => class.size(),
            Self::Extent { pages, .. } => pages * PAGE_BYTES,
        }
    }
}

/// Blocks of a superblock that one session has taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub page: u64,
    pub descriptor: u64,
    pub blocks: Bits,
}

#[derive(Debug)]
struct Superblock {
    descriptor: u64,
    class: Class,
    free: Bits,
    /// Whether a session has taken its blocks.
    is_taken: bool,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    /// Segments that were read, and those that were not yet.
    known: Vec<Segment>,
    unknown: VecDeque<Segment>,
    /// Runs of free pages: start and number of pages.
    runs: BTreeMap<u64, u64>,
    /// The same runs, by number of pages.
    by_pages: BTreeSet<(u64, u64)>,
    superblocks: HashMap<u64, Superblock>,
    /// All superblocks that have free blocks and that no session has, and some that do not.
    available: [Vec<u64>; CLASSES],
    /// Freed blocks, each with the stamp of its transaction.
    quarantine: VecDeque<(u64, Block)>,
}

impl Index {
    /// Adds a segment, which is read when it is needed.
    pub(super) fn add(&mut self, segment: Segment) {
        self.unknown.push_back(segment);
    }

    /// Reads the next segment. Returns false if there is none.
    pub(super) fn read_next<P: Pmem>(&mut self, pm: &P) -> Result<bool, HeapError> {
        let Some(segment) = self.unknown.pop_front() else {
            return Ok(false);
        };
        self.read(pm, segment)?;
        Ok(true)
    }

    /// Reads this segment, unless it was read before.
    pub(super) fn ensure<P: Pmem>(&mut self, pm: &P, segment: Segment) -> Result<(), HeapError> {
        if self.known.contains(&segment) {
            return Ok(());
        }
        self.unknown.retain(|other| *other != segment);
        self.read(pm, segment)
    }

    fn read<P: Pmem>(&mut self, pm: &P, segment: Segment) -> Result<(), HeapError> {
        // Read all of it first, so that nothing of a damaged segment is used.
        let mut pages = Vec::new();
        segment.each_page(pm, |page| pages.push(page))?;
        for (page, descriptor, what, allocated) in pages {
            match what {
                Page::Free => self.put_run(page, 1),
                Page::Extent(_) => {}
                Page::Superblock(class) => {
                    let free = Bits::first(class.capacity()).without(&allocated);
                    self.put_superblock(page, descriptor, class, free);
                }
            }
        }
        self.known.push(segment);
        Ok(())
    }

    fn put_superblock(&mut self, page: u64, descriptor: u64, class: Class, free: Bits) {
        if free.count() == class.capacity() {
            return self.put_run(page, 1);
        }
        if !free.is_empty() {
            self.available[class.number()].push(page);
        }
        let superblock = Superblock {
            descriptor,
            class,
            free,
            is_taken: false,
        };
        self.superblocks.insert(page, superblock);
    }

    // --- pages ----------------------------------------------------------------------

    fn put_run(&mut self, start: u64, pages: u64) {
        let (mut start, mut pages) = (start, pages);
        if let Some((&before, &count)) = self.runs.range(..start).next_back()
            && before + count * PAGE_BYTES == start
        {
            self.drop_run(before, count);
            (start, pages) = (before, pages + count);
        }
        let end = start + pages * PAGE_BYTES;
        if let Some(&count) = self.runs.get(&end) {
            self.drop_run(end, count);
            pages += count;
        }
        self.runs.insert(start, pages);
        self.by_pages.insert((pages, start));
    }

    fn drop_run(&mut self, start: u64, pages: u64) {
        self.runs.remove(&start);
        self.by_pages.remove(&(pages, start));
    }

    /// Takes that many pages, from the start of the shortest run that has them.
    pub(super) fn take_pages(&mut self, pages: u64) -> Option<u64> {
        let &(count, start) = self.by_pages.range((pages, 0)..).next()?;
        self.drop_run(start, count);
        if count > pages {
            self.put_run(start + pages * PAGE_BYTES, count - pages);
        }
        Some(start)
    }

    /// Takes that many pages in one run. If none is long enough, takes the longest runs, at most
    /// `most`. Returns the start and the number of pages of each.
    pub(super) fn take_runs(&mut self, pages: u64, most: usize) -> Option<Vec<(u64, u64)>> {
        if let Some(start) = self.take_pages(pages) {
            return Some(vec![(start, pages)]);
        }
        let (mut taken, mut left) = (Vec::new(), pages);
        for &(count, start) in self.by_pages.iter().rev().take(most) {
            taken.push((start, count));
            left = left.saturating_sub(count);
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            return None;
        }
        let mut left = pages;
        for (start, count) in &mut taken {
            self.drop_run(*start, *count);
            if *count > left {
                self.put_run(*start + left * PAGE_BYTES, *count - left);
                *count = left;
            }
            left -= *count;
        }
        Some(taken)
    }

    /// Whether there may be room for that many bytes.
    pub(super) fn may_hold(&self, bytes: u64) -> bool {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let has_superblock =
            Class::of(bytes).is_some_and(|class| !self.available[class.number()].is_empty());
        has_superblock
            || self.by_pages.range((pages, 0)..).next().is_some()
            || !self.unknown.is_empty()
    }

    // --- superblocks ----------------------------------------------------------------

    /// Takes all free blocks of a superblock of this class.
    pub(super) fn take_superblock(&mut self, class: Class) -> Option<Taken> {
        while let Some(page) = self.available[class.number()].pop() {
            if let Some(superblock) = self.superblocks.get_mut(&page)
                && superblock.class == class
                && !superblock.is_taken
                && !superblock.free.is_empty()
            {
                superblock.is_taken = true;
                return Some(Taken {
                    page,
                    descriptor: superblock.descriptor,
                    blocks: std::mem::take(&mut superblock.free),
                });
            }
        }
        None
    }

    /// Makes a superblock of a free page, and takes its blocks.
    pub(super) fn make_superblock(&mut self, class: Class) -> Option<Taken> {
        let page = self.take_pages(1)?;
        let segment = self.known.iter().find(|segment| segment.has_byte(page))?;
        let descriptor = segment.descriptor(page);
        let superblock = Superblock {
            descriptor,
            class,
            free: Bits::default(),
            is_taken: true,
        };
        self.superblocks.insert(page, superblock);
        Some(Taken {
            page,
            descriptor,
            blocks: Bits::first(class.capacity()),
        })
    }

    /// Puts back the blocks that a session has taken and not used.
    pub(super) fn put_taken(&mut self, taken: &Taken) {
        let Some(mut superblock) = self.superblocks.remove(&taken.page) else {
            return;
        };
        for block in taken.blocks.iter() {
            superblock.free.set(block);
        }
        let Superblock {
            descriptor,
            class,
            free,
            ..
        } = superblock;
        self.put_superblock(taken.page, descriptor, class, free);
    }

    // --- blocks ---------------------------------------------------------------------

    /// Keeps freed blocks back, each with the stamp of its transaction.
    pub(super) fn put_freed(&mut self, blocks: impl Iterator<Item = (u64, Block)>) {
        self.quarantine.extend(blocks);
    }

    /// The number of blocks that are kept back.
    pub(super) fn kept_back(&self) -> usize {
        self.quarantine.len()
    }

    /// Makes blocks available that were freed up to the low water.
    pub(super) fn release(&mut self, low_water: u64) {
        // Stamps come almost in order. A late one only delays its block.
        let is_over = |freed: &mut (u64, Block)| freed.0 <= low_water;
        while let Some((_, block)) = self.quarantine.pop_front_if(is_over) {
            self.put(block);
        }
    }

    /// Makes a block available to which no recovery could replay a write.
    pub(super) fn put(&mut self, block: Block) {
        let (page, class, block) = match block {
            Block::Extent { start, pages } => return self.put_run(start, pages),
            Block::Small { page, class, block } => (page, class, block),
        };
        let Some(superblock) = self.superblocks.get_mut(&page) else {
            return;
        };
        let was_empty = superblock.free.is_empty();
        superblock.free.set(block);
        if superblock.is_taken {
            return;
        }
        if superblock.free.count() == class.capacity() {
            self.superblocks.remove(&page);
            self.put_run(page, 1);
        } else if was_empty {
            self.available[class.number()].push(page);
        }
    }
}
