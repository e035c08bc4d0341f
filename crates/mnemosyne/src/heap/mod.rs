//! The persistent heap (sections 3.1.3 and 3.2.3).
//!
//! # Guarantees
//!
//! - **H1** An allocation and a free are part of a transaction: they are there after a crash
//!   if the rest of it is, the pointer to the block among it. Nothing leaks but what the
//!   program itself forgets.
//! - **H2** A block has one owner at a time. It is handed out again only when nothing that a
//!   recovery could replay writes to it: whoever has a fresh block may fill it by plain
//!   stores.
//! - **H3** A free of what is not allocated is refused, and leaves nothing.
//! - **H4** No call takes time in proportion to the heap, but the first one that needs a
//!   segment, which reads its descriptors (1 byte for 128).
//!
//! # How
//!
//! Blocks up to 4 KiB share superblocks of 8 KiB with others of their size, larger ones have
//! whole pages. Which are allocated is told by bits and numbers apart from the blocks; see
//! [`Segment`] for the bytes. They are changed by the user's transaction like any other word.
//! Where there is room is known to a volatile index. A session takes the free blocks of a
//! whole superblock from it, so that two threads seldom write to one descriptor.

mod classes;
mod index;
mod segment;

pub use crate::error::HeapError;
pub use classes::PAGE_BYTES;
pub(crate) use segment::Damage;
pub use segment::Segment;

use crate::seeded::{Bug, hit};
use crate::tx::{Interrupted, Memory, Session, Space};
use classes::{CLASSES, Class};
use index::{Block, Index, Taken};
use parking_lot::{Mutex, RwLock};
use segment::{FLIPPED, Page, TOO_LONG, UNKNOWN, bit_of};
use std::ops::Range;
use std::sync::Arc;
use wordlog::sealed::{self, seal};

/// A heap of some segments. Cheap to clone.
pub struct Heap<S: Space> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Space> {
    memory: Memory<S>,
    segments: RwLock<Vec<Segment>>,
    index: Mutex<Index>,
}

impl<S: Space> Clone for Heap<S> {
    fn clone(&self) -> Self {
        let shared = self.shared.clone();
        Self { shared }
    }
}

impl<S: Space> Heap<S> {
    /// The heap that these segments are, which are read when they are needed.
    pub fn new(memory: Memory<S>, segments: impl IntoIterator<Item = Segment>) -> Self {
        let heap = Self {
            shared: Arc::new(Shared {
                memory,
                segments: RwLock::default(),
                index: Mutex::default(),
            }),
        };
        segments.into_iter().for_each(|segment| heap.add(segment));
        heap
    }

    /// Adds a segment.
    pub fn add(&self, segment: Segment) {
        self.shared.segments.write().push(segment);
        self.shared.index.lock().add(segment);
    }

    /// What one session of transactions allocates with.
    pub fn session(&self) -> HeapSession<S> {
        HeapSession {
            heap: self.clone(),
            current: [None; CLASSES],
            reserved: Vec::new(),
            freed: Vec::new(),
            kept_back: KeptBack::default(),
            segments: Vec::new(),
        }
    }

    /// Its parts.
    pub fn segments(&self) -> Vec<Segment> {
        self.shared.segments.read().clone()
    }

    /// The segment that holds byte `off`.
    fn segment_of(&self, off: u64) -> Result<Segment, HeapError> {
        let segments = self.shared.segments.read();
        let mut holders = segments.iter().filter(|segment| segment.holds(off));
        holders.next().copied().ok_or(HeapError::Foreign { off })
    }

    /// Takes room by `take`: out of what is free, or kept back too long, or not read yet.
    fn find<T>(
        &self,
        freed: impl Iterator<Item = (u64, Block)>,
        mut take: impl FnMut(&mut Index) -> Option<T>,
    ) -> Result<Option<T>, HeapError> {
        let memory = &self.shared.memory;
        let mut index = self.shared.index.lock();
        index.put_freed(freed);
        index.release(memory.low_water());
        loop {
            if let Some(room) = take(&mut index) {
                return Ok(Some(room));
            }
            if !index.read_next(memory.space().pmem())? {
                return Ok(None);
            }
        }
    }

    /// Whether there may be room for a block of so many bytes.
    pub fn may_hold(&self, bytes: u64) -> bool {
        let mut index = self.shared.index.lock();
        index.release(self.shared.memory.low_water());
        index.may_hold(bytes)
    }

    /// Waits until what was freed can be used again. `false`: nothing was.
    ///
    /// # Errors
    /// As [`Memory::truncate`].
    pub fn reclaim(&self) -> Result<bool, Arc<wordlog::LogError>> {
        if self.shared.index.lock().kept_back() == 0 {
            return Ok(false);
        }
        self.shared.memory.truncate()?;
        let low_water = self.shared.memory.low_water();
        self.shared.index.lock().release(low_water);
        Ok(true)
    }
}

/// The heap for one session of transactions. Each of its calls belongs to the transaction
/// that is under way there; when that is over, [`committed`](Self::committed) or
/// [`rolled_back`](Self::rolled_back) must say how.
pub struct HeapSession<S: Space> {
    heap: Heap<S>,
    /// A superblock for each class, for which nobody else allocates.
    current: [Option<Taken>; CLASSES],
    /// Allocated by the transaction under way.
    reserved: Vec<Block>,
    /// Freed by it.
    freed: Vec<Block>,
    /// Freed by earlier ones and not in the index yet: less than [`KEPT_BYTES`].
    kept_back: KeptBack,
    /// Segments that the index has read, those that were used: they never go.
    segments: Vec<Segment>,
}

/// Bytes of freed blocks that a session tells the index of together.
const KEPT_BYTES: u64 = PAGE_BYTES;

/// Freed blocks, each with the stamp of its transaction, and how many bytes they are.
#[derive(Default)]
struct KeptBack {
    blocks: Vec<(u64, Block)>,
    bytes: u64,
}

impl KeptBack {
    fn put(&mut self, stamp: u64, block: Block) {
        self.bytes += block.bytes();
        self.blocks.push((stamp, block));
    }

    fn drain(&mut self) -> impl Iterator<Item = (u64, Block)> + '_ {
        self.bytes = 0;
        self.blocks.drain(..)
    }
}

/// What a transaction has done to the heap so far, to come back to.
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    reserved: usize,
    freed: usize,
}

impl<S: Space> HeapSession<S> {
    /// Allocates a block of at least `bytes`, which holds anything. Returns its offset, a
    /// multiple of 16, and of 64 if `bytes` is a multiple of that.
    ///
    /// # Errors
    /// [`HeapError::NoSpace`], and what steps of transactions give.
    pub fn alloc(&mut self, tx: &mut Session<S>, bytes: u64) -> Result<u64, Interrupted> {
        match Class::of(bytes) {
            Some(class) => self.alloc_small(tx, class, bytes),
            None => self.alloc_pages(tx, bytes),
        }
    }

    fn alloc_small(
        &mut self,
        tx: &mut Session<S>,
        class: Class,
        bytes: u64,
    ) -> Result<u64, Interrupted> {
        let (taken, block) = self.take(class, bytes)?;
        let (page, descriptor) = (taken.page, taken.descriptor);
        self.reserved.push(Block::Small { page, class, block });
        let (first, what) = (tx.address(descriptor), Page::Superblock(class).encode());
        if tx.load(first)? != what {
            tx.store(first, what)?;
        }
        let (at, bit) = bit_of(first, block);
        let bits = self.bits(tx, at, descriptor)?;
        if bits & bit != 0 {
            let what = "a free block became allocated";
            return Err(HeapError::Damaged { descriptor, what }.into());
        }
        if !hit(Bug::BlockWithoutBit) {
            tx.store(at, seal(bits | bit))?;
        }
        Ok(page + u64::from(block) * class.size())
    }

    /// A block of this class that nobody else has.
    fn take(&mut self, class: Class, bytes: u64) -> Result<(Taken, u32), HeapError> {
        let current = &mut self.current[class.number()];
        loop {
            if let Some(taken) = current
                && let Some(block) = taken.blocks.take()
            {
                return Ok((*taken, block));
            }
            let used_up = current.take();
            let more = self.heap.find(self.kept_back.drain(), |index| {
                if let Some(taken) = &used_up {
                    index.put_taken(taken);
                }
                let room = index.take_superblock(class);
                room.or_else(|| index.make_superblock(class))
            });
            *current = more?;
            if current.is_none() {
                return Err(HeapError::NoSpace { bytes });
            }
        }
    }

    /// Pages that nobody else has.
    fn take_pages(&mut self, bytes: u64) -> Result<(u64, u64), HeapError> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let kept_back = self.kept_back.drain();
        let room = self.heap.find(kept_back, |index| index.take_pages(pages))?;
        let start = room.ok_or(HeapError::NoSpace { bytes })?;
        self.reserved.push(Block::Extent { start, pages });
        Ok((start, pages))
    }

    /// Room for what the transaction under way logs beyond its log, in as few parts as there can
    /// be, and no more than `most`. It counts as blocks that the transaction allocates and frees:
    /// others get the pages once no recovery reads them. No descriptor says so, so that after a
    /// crash they are free.
    ///
    /// # Errors
    /// [`HeapError`].
    pub(crate) fn overflow(
        &mut self,
        bytes: u64,
        most: usize,
    ) -> Result<Vec<Range<u64>>, HeapError> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let kept_back = self.kept_back.drain();
        let room = self
            .heap
            .find(kept_back, |index| index.take_runs(pages, most))?;
        let room = room.ok_or(HeapError::NoSpace { bytes })?;
        let extents = room
            .iter()
            .map(|&(start, pages)| Block::Extent { start, pages });
        if hit(Bug::OverflowInLog) {
            extents.for_each(|block| self.kept_back.put(0, block));
        } else {
            self.reserved.extend(extents.clone());
            // With the stamp of the commit, which the low water has to pass.
            self.freed.extend(extents);
        }
        let ranges = room
            .iter()
            .map(|&(start, pages)| start..start + pages * PAGE_BYTES);
        Ok(ranges.collect())
    }

    fn alloc_pages(&mut self, tx: &mut Session<S>, bytes: u64) -> Result<u64, Interrupted> {
        let (start, pages) = self.take_pages(bytes)?;
        let descriptor = self.heap.segment_of(start)?.descriptor(start);
        tx.store(tx.address(descriptor), Page::Extent(pages).encode())?;
        Ok(start)
    }

    /// Copies `bytes` to `off`, in a block that this transaction allocated, without a log: for
    /// contents that are not small.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`]: the block is not of this transaction, or too short.
    pub fn fill(&mut self, tx: &mut Session<S>, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        let end = off.saturating_add(bytes.len() as u64);
        let is_in = |block: &Block| block.start() <= off && end <= block.start() + block.bytes();
        if !self.reserved.iter().rev().any(is_in) {
            return Err(HeapError::NotAllocated { off }.into());
        }
        tx.fill(off, bytes)
    }

    /// Frees the block at `off`.
    ///
    /// # Errors
    /// [`HeapError`], and what steps of transactions give.
    pub fn free(&mut self, tx: &mut Session<S>, off: u64) -> Result<(), Interrupted> {
        let (block, descriptor) = self.block_at(tx, off)?;
        match block {
            Block::Extent { .. } => tx.store(tx.address(descriptor), Page::Free.encode())?,
            Block::Small { block, .. } => {
                let (at, bit) = bit_of(tx.address(descriptor), block);
                let bits = self.bits(tx, at, descriptor)?;
                tx.store(at, seal(bits & !bit))?;
            }
        }
        self.freed.push(block);
        Ok(())
    }

    /// Bytes of the block at `off`: at least what was asked for.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn size_of(&mut self, tx: &mut Session<S>, off: u64) -> Result<u64, Interrupted> {
        Ok(self.block_at(tx, off)?.0.bytes())
    }

    /// The bits of a descriptor that are in the word at `at`.
    fn bits(&self, tx: &mut Session<S>, at: u64, descriptor: u64) -> Result<u64, Interrupted> {
        let what = FLIPPED;
        let damaged = HeapError::Damaged { descriptor, what };
        Ok(sealed::open(tx.load(at)?).ok_or(damaged)?)
    }

    /// The segment that holds byte `off`, which the index has read: from then on it counts
    /// what is freed there.
    fn segment_of(&mut self, off: u64) -> Result<Segment, HeapError> {
        let mut used = self.segments.iter();
        if let Some(segment) = used.find(|segment| segment.holds(off)) {
            return Ok(*segment);
        }
        let segment = self.heap.segment_of(off)?;
        let shared = &self.heap.shared;
        let pm = shared.memory.space().pmem();
        shared.index.lock().ensure(pm, segment)?;
        self.segments.push(segment);
        Ok(segment)
    }

    /// Whether an allocated block begins at `off`. Reads no more than the descriptor of its page.
    ///
    /// # Errors
    /// What steps of transactions give, and [`HeapError::Damaged`].
    pub fn is_block(&self, tx: &mut Session<S>, off: u64) -> Result<bool, Interrupted> {
        let found = match self.heap.segment_of(off) {
            Ok(segment) => self.block_in(tx, segment, off),
            Err(why) => Err(why.into()),
        };
        match found {
            Ok(_) => Ok(true),
            Err(Interrupted::Heap(HeapError::Foreign { .. } | HeapError::NotAllocated { .. })) => {
                Ok(false)
            }
            Err(why) => Err(why),
        }
    }

    /// The allocated block at `off`, and its page's descriptor.
    fn block_at(&mut self, tx: &mut Session<S>, off: u64) -> Result<(Block, u64), Interrupted> {
        let segment = self.segment_of(off)?;
        self.block_in(tx, segment, off)
    }

    /// The same, in its segment.
    fn block_in(
        &self,
        tx: &mut Session<S>,
        segment: Segment,
        off: u64,
    ) -> Result<(Block, u64), Interrupted> {
        let (page, descriptor) = (segment.page_start(off), segment.descriptor(off));
        let none = Interrupted::Heap(HeapError::NotAllocated { off });
        let damaged = |what| HeapError::Damaged { descriptor, what };
        let first = tx.address(descriptor);
        match Page::decode(tx.load(first)?) {
            Some(Page::Superblock(class)) => {
                let block = ((off - page) / class.size()) as u32;
                if !(off - page).is_multiple_of(class.size()) || block >= class.capacity() {
                    return Err(none);
                }
                let (at, bit) = bit_of(first, block);
                match self.bits(tx, at, descriptor)? & bit {
                    0 => Err(none),
                    _ => Ok((Block::Small { page, class, block }, descriptor)),
                }
            }
            Some(Page::Extent(pages)) if off == page => match segment.fits(page, pages) {
                true => Ok((Block::Extent { start: page, pages }, descriptor)),
                false => Err(damaged(TOO_LONG).into()),
            },
            Some(Page::Extent(_) | Page::Free) => Err(none),
            None => Err(damaged(UNKNOWN).into()),
        }
    }

    /// The transaction committed, at this stamp.
    pub fn committed(&mut self, stamp: u64) {
        self.reserved.clear();
        if self.freed.is_empty() {
            return;
        }
        let stamp = if hit(Bug::FreshBlockInLog) { 0 } else { stamp };
        for block in self.freed.drain(..) {
            self.kept_back.put(stamp, block);
        }
        if self.kept_back.bytes >= KEPT_BYTES {
            let mut index = self.heap.shared.index.lock();
            index.put_freed(self.kept_back.drain());
        }
    }

    /// What the transaction under way has done so far.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            reserved: self.reserved.len(),
            freed: self.freed.len(),
        }
    }

    /// The transaction left nothing.
    pub fn rolled_back(&mut self) {
        self.return_to(Savepoint {
            reserved: 0,
            freed: 0,
        });
    }

    /// The transaction left nothing of what it did since a savepoint.
    pub fn return_to(&mut self, savepoint: Savepoint) {
        let freed = self.freed.drain(savepoint.freed..);
        if hit(Bug::FreedByAbort) {
            freed.for_each(|block| self.kept_back.put(0, block));
        } else {
            drop(freed);
        }
        for reserved in self.reserved.drain(savepoint.reserved..) {
            if let Block::Small { page, class, block } = reserved
                && let Some(taken) = &mut self.current[class.number()]
                && taken.page == page
            {
                taken.blocks.set(block);
            } else {
                self.heap.shared.index.lock().put(reserved);
            }
        }
    }
}

impl<S: Space> Drop for HeapSession<S> {
    fn drop(&mut self) {
        self.rolled_back();
        let mut index = self.heap.shared.index.lock();
        index.put_freed(self.kept_back.drain());
        for taken in self.current.iter().flatten() {
            index.put_taken(taken);
        }
    }
}
