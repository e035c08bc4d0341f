//! The persistent heap (sections 3.1.3 and 3.2.3).
//!
//! # Guarantees
//!
//! - **H1** Allocations and frees are part of a transaction. They and the pointer to the block are
//!   durable with the rest of it, or not at all. No block leaks, except those that the program
//!   itself forgets.
//! - **H2** A block has one owner at a time. It is reused only when no recovery could replay a
//!   write to it, so the new owner may fill it by plain stores.
//! - **H3** A free of an offset at which no block is allocated is rejected, and has no effect.
//! - **H4** No call takes time in proportion to the heap. The first call that needs a segment reads
//!   its descriptors, 1 byte for 128.
//!
//! # Design
//!
//! Blocks up to 4 KiB share superblocks of 8 KiB with others of their size. Larger ones have whole
//! pages. Descriptors apart from the blocks record which are allocated; see [`Segment`] for the
//! bytes. The user's transaction changes them like any other word. A volatile index has the free
//! blocks. A session takes the free blocks of a whole superblock from it, so that two threads
//! seldom write to the same descriptor.

mod classes;
mod index;
mod segment;

pub use crate::error::HeapError;
pub use classes::PAGE_BYTES;
pub(crate) use segment::Damage;
pub use segment::Segment;

use crate::seeded::{Bug, hit};
use crate::tx::{Interrupted, Memory, Space, TxSession};
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

/// The size of the block that an allocation of `bytes` bytes gets.
pub fn usable_size(bytes: u64) -> u64 {
    match Class::of(bytes) {
        Some(class) => class.size(),
        None => bytes.next_multiple_of(PAGE_BYTES),
    }
}

impl<S: Space> Clone for Heap<S> {
    fn clone(&self) -> Self {
        let shared = self.shared.clone();
        Self { shared }
    }
}

impl<S: Space> Heap<S> {
    /// A heap of these segments. Each is read when it is needed.
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

    /// A session, which allocates for one session of transactions.
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

    /// The segments.
    pub fn segments(&self) -> Vec<Segment> {
        self.shared.segments.read().clone()
    }

    /// The segment that holds byte `off`.
    fn segment_of(&self, off: u64) -> Result<Segment, HeapError> {
        let segments = self.shared.segments.read();
        let mut holders = segments.iter().filter(|segment| segment.has_byte(off));
        holders.next().copied().ok_or(HeapError::Foreign { off })
    }

    /// Takes free blocks by `take`, after those were released that no recovery writes to. Reads
    /// more segments while `take` finds none.
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

    /// Whether there may be room for a block of that many bytes.
    pub fn may_hold(&self, bytes: u64) -> bool {
        let mut index = self.shared.index.lock();
        index.release(self.shared.memory.low_water());
        index.may_hold(bytes)
    }

    /// Makes all freed blocks available. Returns false if none was waiting.
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

/// The allocations of one session of transactions. Each call belongs to the transaction that is
/// under way there. When that ends, call [`committed`](Self::committed) or
/// [`rolled_back`](Self::rolled_back).
pub struct HeapSession<S: Space> {
    heap: Heap<S>,
    /// The superblock of each class, from which only this session allocates.
    current: [Option<Taken>; CLASSES],
    /// Blocks allocated by the transaction under way.
    reserved: Vec<Block>,
    /// Blocks freed by the transaction under way.
    freed: Vec<Block>,
    /// Blocks freed by earlier transactions and not in the index yet: less than [`KEPT_BYTES`].
    kept_back: KeptBack,
    /// Segments of this session that the index has read. A segment is never removed.
    segments: Vec<Segment>,
}

/// Bytes of freed blocks at which a session adds them to the index.
const KEPT_BYTES: u64 = PAGE_BYTES;

/// Freed blocks, each with the stamp of its transaction, and their total length in bytes.
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

/// The changes of a transaction to the heap at some point, to return to.
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    reserved: usize,
    freed: usize,
}

impl<S: Space> HeapSession<S> {
    /// Allocates a block of at least `bytes`, with undefined contents. Returns its offset, a
    /// multiple of 16, and of 64 if `bytes` is a multiple of that.
    ///
    /// # Errors
    /// [`HeapError::NoSpace`], and the errors of steps of transactions.
    pub fn alloc(&mut self, tx: &mut TxSession<S>, bytes: u64) -> Result<u64, Interrupted> {
        match Class::of(bytes) {
            Some(class) => self.alloc_small(tx, class, bytes),
            None => self.alloc_pages(tx, bytes),
        }
    }

    fn alloc_small(
        &mut self,
        tx: &mut TxSession<S>,
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

    /// Takes a block of this class.
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

    /// Takes contiguous pages for that many bytes. Returns the first and their number.
    fn take_pages(&mut self, bytes: u64) -> Result<(u64, u64), HeapError> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let kept_back = self.kept_back.drain();
        let room = self.heap.find(kept_back, |index| index.take_pages(pages))?;
        let start = room.ok_or(HeapError::NoSpace { bytes })?;
        self.reserved.push(Block::Extent { start, pages });
        Ok((start, pages))
    }

    /// Takes pages for an overflow of the transaction under way, in as few parts as possible, at
    /// most `most`. They count as blocks that the transaction allocates and frees: they are reused
    /// once no recovery reads them. No descriptor marks them as used, so after a crash they are
    /// free.
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
            // They wait until the low water has passed the stamp of the commit.
            self.freed.extend(extents);
        }
        let ranges = room
            .iter()
            .map(|&(start, pages)| start..start + pages * PAGE_BYTES);
        Ok(ranges.collect())
    }

    fn alloc_pages(&mut self, tx: &mut TxSession<S>, bytes: u64) -> Result<u64, Interrupted> {
        let (start, pages) = self.take_pages(bytes)?;
        let descriptor = self.heap.segment_of(start)?.descriptor(start);
        tx.store(tx.address(descriptor), Page::Extent(pages).encode())?;
        Ok(start)
    }

    /// Copies `bytes` to `off` without a log, in a block that this transaction allocated. For large
    /// contents.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`]: this transaction did not allocate the block, or it is too
    /// short.
    pub fn fill(
        &mut self,
        tx: &mut TxSession<S>,
        off: u64,
        bytes: &[u8],
    ) -> Result<(), Interrupted> {
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
    /// [`HeapError`], and the errors of steps of transactions.
    pub fn free(&mut self, tx: &mut TxSession<S>, off: u64) -> Result<(), Interrupted> {
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

    /// The bytes of the block at `off`, at least as many as were requested.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn size_of(&mut self, tx: &mut TxSession<S>, off: u64) -> Result<u64, Interrupted> {
        Ok(self.block_at(tx, off)?.0.bytes())
    }

    /// Loads the bits of a descriptor in the word at `at`.
    fn bits(&self, tx: &mut TxSession<S>, at: u64, descriptor: u64) -> Result<u64, Interrupted> {
        let what = FLIPPED;
        let damaged = HeapError::Damaged { descriptor, what };
        Ok(sealed::open(tx.load(at)?).ok_or(damaged)?)
    }

    /// The segment that holds byte `off`. The index has read it, and so counts the blocks that are
    /// freed there.
    fn segment_of(&mut self, off: u64) -> Result<Segment, HeapError> {
        let mut used = self.segments.iter();
        if let Some(segment) = used.find(|segment| segment.has_byte(off)) {
            return Ok(*segment);
        }
        let segment = self.heap.segment_of(off)?;
        let shared = &self.heap.shared;
        let pm = shared.memory.space().pmem();
        shared.index.lock().ensure(pm, segment)?;
        self.segments.push(segment);
        Ok(segment)
    }

    /// Whether an allocated block begins at `off`. Reads only the descriptor of its page.
    ///
    /// # Errors
    /// The errors of steps of transactions, and [`HeapError::Damaged`].
    pub fn is_block(&self, tx: &mut TxSession<S>, off: u64) -> Result<bool, Interrupted> {
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

    /// Finds the allocated block at `off`, and the descriptor of its page.
    fn block_at(&mut self, tx: &mut TxSession<S>, off: u64) -> Result<(Block, u64), Interrupted> {
        let segment = self.segment_of(off)?;
        self.block_in(tx, segment, off)
    }

    /// As [`block_at`](Self::block_at), in this segment.
    fn block_in(
        &self,
        tx: &mut TxSession<S>,
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
            Some(Page::Extent(pages)) if off == page => match segment.has_pages(page, pages) {
                true => Ok((Block::Extent { start: page, pages }, descriptor)),
                false => Err(damaged(TOO_LONG).into()),
            },
            Some(Page::Extent(_) | Page::Free) => Err(none),
            None => Err(damaged(UNKNOWN).into()),
        }
    }

    /// Records that the transaction committed with this stamp.
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

    /// The changes of the transaction under way so far.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            reserved: self.reserved.len(),
            freed: self.freed.len(),
        }
    }

    /// Records that the transaction was rolled back.
    pub fn rolled_back(&mut self) {
        self.return_to(Savepoint {
            reserved: 0,
            freed: 0,
        });
    }

    /// Undoes the changes of the transaction since a savepoint.
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
