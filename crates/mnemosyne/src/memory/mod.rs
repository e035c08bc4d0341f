//! Everything durable that a program has: regions, a heap, transactions and named roots.
//!
//! # Guarantees
//!
//! - **S1** Recovery is over before a program sees its data.
//! - **S2** A region, or its end, is recorded together with the program's pointer to it: no
//!   crash leaks one, and none leaves a pointer to one that is gone.
//! - **S3** A region stays where it is: pointers into it mean the same in every run.
//!
//! # How
//!
//! The region table is changed by transactions. To make a region: a slot says that it is
//! being made; its bytes are made; the slot says that it is there, in the same transaction
//! that stores the program's pointer. To remove one: the slot says that it is being removed,
//! in the same transaction that clears the pointer; the logs are truncated, so that no
//! recovery brings words back to where another region may be by then; the bytes go; the slot
//! is free. What a crash finds on the way is removed.

mod backing;
mod boot;
mod check;
mod directory;
mod files;
mod inspection;
mod names;
mod options;
mod pool;
mod repair;
mod roots;
pub mod seeded;
mod session;
mod system;
#[cfg(test)]
mod tests;

pub use crate::region::{Region, RegionKind};
pub use backing::{Backing, BackingError, Flat, MismatchError};
pub use check::{Finding, Report, check, check_regions, check_within};
pub use directory::Directory;
pub use files::{Files, Mappings, SystemFiles};
pub use inspection::{Allocated, Inspection, Root, Seen};
pub use options::{DirectoryOptions, PoolOptions};
pub use repair::{Loss, repair, repair_regions, repair_within};
pub use session::{Savepoint, Session, Tx};
pub use system::{Layout, ROOT_NAME_MAX};

use crate::heap::{Heap, HeapError, PAGE_BYTES, Segment};
use crate::seeded::{Bug, hit};
use crate::tx::{
    self, AreaError, Interrupted, Memory, Space, Stop, Transaction, Truncator, TxError,
};
use medium::{MediumError, OpenError, Pmem, WORD_BYTES};
use paging::PoolError;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use system::{LEN_UNIT, SLOT_WORDS, State, System, encode};
use wordlog::LogError;

/// What is wrong with durable memory as a whole.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// There is none.
    #[error("this is no durable memory: {what}")]
    NotDurableMemory {
        /// What is wrong.
        what: &'static str,
    },
    /// It was to be made in a way that it cannot be.
    #[error("durable memory cannot have this layout")]
    Layout,
    /// A slot of the region table is damaged.
    #[error("slot {slot} of the region table is damaged: {what}")]
    Slot {
        /// Which one.
        slot: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A root is damaged.
    #[error("root {root} is damaged")]
    Root {
        /// Which one.
        root: u64,
    },
    /// A repair would give up the address of the memory.
    #[error(
        "root {root} ({BASE_ROOT}) is damaged: it holds the address that pointers are for, and \
         without it the next start would move the memory; restore the directory from a copy"
    )]
    Base {
        /// Which root.
        root: u64,
    },
    /// What says which blocks are allocated is damaged.
    #[error(transparent)]
    Heap(HeapError),
    /// A region's bytes are gone.
    #[error("{what} is missing or too short: region {slot} has {len} bytes there")]
    Lost {
        /// Its slot.
        slot: u64,
        /// Where its bytes should be.
        what: String,
        /// What it should have.
        len: u64,
    },
    /// A region lies beyond the addresses that were reserved.
    #[error("region {slot} ends at {end:#x}, and only {len:#x} bytes of addresses are reserved")]
    Beyond {
        /// Its slot.
        slot: u64,
        /// Where it ends.
        end: u64,
        /// Bytes of addresses.
        len: u64,
    },
    /// There is no room for a region.
    #[error("there is no room for a region of {len} bytes")]
    NoRoom {
        /// What was asked for.
        len: u64,
    },
    /// No region begins there.
    #[error("no region of a program begins at {start:#x}")]
    NoRegion {
        /// Where one was to be removed.
        start: u64,
    },
    /// A region that should hold a part of the heap does not.
    #[error("region {slot} should be a part of the heap, and is none")]
    NotASegment {
        /// Its slot.
        slot: u64,
    },
    /// The logs are damaged.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// A region's bytes cannot be had.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The memory failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// Nothing can be committed any more.
    #[error("no more transactions: {0}")]
    Failed(Arc<LogError>),
    /// A transaction of the region table was refused.
    #[error("the region table cannot be changed: {0}")]
    Refused(#[from] TxError<Infallible>),
}

impl From<OpenError> for MemoryError {
    fn from(why: OpenError) -> Self {
        Self::Backing(why.into())
    }
}

impl From<PoolError> for MemoryError {
    fn from(why: PoolError) -> Self {
        Self::Backing(why.into())
    }
}

impl From<MismatchError> for MemoryError {
    fn from(why: MismatchError) -> Self {
        Self::Backing(why.into())
    }
}

impl From<Arc<LogError>> for MemoryError {
    fn from(why: Arc<LogError>) -> Self {
        Self::Failed(why)
    }
}

/// The root that holds, as its layout, the address at which C programs map the memory.
pub const BASE_ROOT: &str = "selvedge.base";

/// Bytes of the heap's first segment; the least that it grows by.
const FIRST_GROWTH: u64 = 4 << 20;

/// What is not a matter of the format.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of transactions.
    pub tx: tx::Options,
    /// Most bytes by which the heap grows, if a block does not need more. Until then it grows
    /// by half of what it has.
    pub heap_growth: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tx: tx::Options::default(),
            heap_growth: 1 << 30,
        }
    }
}

/// Where the parts of the heap are among regions, ascending.
fn heap_of<'a>(regions: impl Iterator<Item = &'a Region>) -> Vec<Range<u64>> {
    let parts = regions.filter(|region| region.kind == RegionKind::Heap);
    let mut parts: Vec<_> = parts
        .map(|region| region.start..region.start + region.len)
        .collect();
    parts.sort_unstable_by_key(|part| part.start);
    parts
}

/// A program's durable memory. Cheap to clone.
pub struct DurableMemory<B: Backing, S: Space<Pmem = B::Pmem> = <B as Backing>::Pmem> {
    shared: Arc<Shared<B, S>>,
}

struct Shared<B, S: Space> {
    system: System,
    memory: Memory<S>,
    heap: Heap<S>,
    options: Options,
    truncator: OnceLock<Truncator<S>>,
    /// Whose turn it is to change the region table.
    changing: Mutex<()>,
    /// Whose turn it is to find room for the heap.
    growing: Mutex<()>,
    /// Last: when it is dropped, nobody stores any more.
    backing: B,
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> Clone for DurableMemory<B, S> {
    fn clone(&self) -> Self {
        let shared = self.shared.clone();
        Self { shared }
    }
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> DurableMemory<B, S> {
    /// Recovers the memory whose system region is in place, and uses it. `space` is that
    /// memory as transactions are to see it.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open(backing: B, space: S, options: Options) -> Result<Self, MemoryError> {
        Self::open_with(backing, space, options, None)
    }

    /// As [`open`](Self::open), but gives up records that are damaged, with those after them in
    /// their logs, if there is a list to say so in.
    fn open_with(
        backing: B,
        space: S,
        options: Options,
        mut lost: Option<&mut Vec<AreaError>>,
    ) -> Result<Self, MemoryError> {
        let pm = backing.pmem();
        let system = System::open(pm)?;
        let (area, end) = (system.area(), system.bytes);
        let mut unrecovered = tx::Unrecovered::open(space, area, end, lost.as_deref_mut())?;
        // What the logs say of regions, so that what they say of words in them has a place.
        unrecovered.replay(|off| off < system.bytes);
        let regions = system.regions(pm)?;
        for (state, region) in &regions {
            if *state != State::There {
                // Now, since its bytes may take room that recovery needs.
                backing.remove(region)?;
            } else if !backing.open(region)? {
                let Region { slot, len, .. } = *region;
                let what = backing.describe(region);
                return Err(MemoryError::Lost { slot, what, len });
            }
        }
        let all: Vec<_> = regions.iter().map(|(_, region)| *region).collect();
        backing.no_others(&all)?;
        let there = regions.iter().filter(|(state, _)| *state == State::There);
        let heap = heap_of(there.map(|(_, region)| region));
        unrecovered.read_overflows(&heap, system.table(), lost)?;
        let is_there = |off: u64| {
            let mut there = regions.iter().filter(|(state, _)| *state == State::There);
            off < system.bytes || there.any(|(_, region)| region.holds(off))
        };
        let memory = unrecovered.recover(is_there, options.tx.clone())?;
        let mut segments = Vec::new();
        for (state, region) in &regions {
            if *state == State::There && region.kind == RegionKind::Heap {
                let slot = region.slot;
                let segment = Segment::open(pm, region.start, region.len)?;
                segments.push(segment.ok_or(MemoryError::NotASegment { slot })?);
            }
        }
        let memory = Self {
            shared: Arc::new(Shared {
                heap: Heap::new(memory.clone(), segments),
                backing,
                system,
                memory,
                options,
                truncator: OnceLock::new(),
                changing: Mutex::new(()),
                growing: Mutex::new(()),
            }),
        };
        for (_, region) in regions.iter().filter(|(state, _)| *state != State::There) {
            memory.set(region, None, |_| Ok(()))?;
        }
        Ok(memory)
    }

    /// Has a thread of its own truncate the logs from now on, off the path of commits. It ends
    /// with the store.
    pub fn truncate_in_background(&self)
    where
        S: 'static,
        S::Pmem: 'static,
    {
        if let Some(truncator) = self.shared.memory.truncator() {
            self.shared.truncator.get_or_init(|| truncator);
        }
    }

    /// One thread's way to use it. There may be any number of them.
    pub fn session(&self) -> Session<B, S> {
        Session::new(self)
    }

    /// Where the bytes of regions come from.
    pub fn backing(&self) -> &B {
        &self.shared.backing
    }

    /// The memory that its transactions change.
    pub fn memory(&self) -> &Memory<S> {
        &self.shared.memory
    }

    /// Its heap.
    pub fn heap(&self) -> &Heap<S> {
        &self.shared.heap
    }

    /// All regions but the system region, by slot.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn regions(&self) -> Result<Vec<Region>, MemoryError> {
        let _turn = self.shared.changing.lock();
        let pm = self.shared.backing.pmem();
        let regions = self.shared.system.regions(pm)?.into_iter();
        let there = regions.filter(|(state, _)| *state == State::There);
        Ok(there.map(|(_, region)| region).collect())
    }

    /// Makes a region of `len` bytes, rounded up to a multiple of 4,096, all zeros. `link`
    /// stores what the program knows it by, given where it starts; it is part of the
    /// transaction that makes the region be there. Not to be called inside a transaction.
    ///
    /// # Errors
    /// [`MemoryError`]; there is no region then.
    pub fn map(
        &self,
        kind: RegionKind,
        len: u64,
        tag: u64,
        mut link: impl FnMut(&mut Transaction<'_, S>, u64) -> Result<(), Interrupted>,
    ) -> Result<Region, MemoryError> {
        let shared = &*self.shared;
        let _turn = shared.changing.lock();
        let region = self.place(kind, len, tag)?;
        let state = match hit(Bug::RegionBeforeBytes) {
            true => State::There,
            false => State::Creating,
        };
        self.set(&region, Some(state), |_| Ok(()))?;
        if let Err(error) = self.make(&region) {
            match error {
                // What is there is not ours.
                MemoryError::Backing(BackingError::InTheWay { .. }) => {
                    self.set(&region, None, |_| Ok(()))?;
                }
                _ => self.finish_removal(&region)?,
            }
            return Err(error);
        }
        let is_there = self.set(&region, Some(State::There), |tx| link(tx, region.start));
        match is_there {
            Ok(()) => Ok(region),
            // After a crash it may be there.
            Err(error @ MemoryError::Refused(TxError::Failed(_))) => Err(error),
            Err(error) => {
                self.finish_removal(&region)?;
                Err(error)
            }
        }
    }

    /// The bytes of a region that is being made.
    fn make(&self, region: &Region) -> Result<(), MemoryError> {
        let backing = &self.shared.backing;
        backing.create(region)?;
        if region.kind == RegionKind::Heap {
            Segment::format(backing.pmem(), region.start, region.len)?;
        }
        Ok(())
    }

    /// A free slot, and a place: the first that is large enough.
    fn place(&self, kind: RegionKind, len: u64, tag: u64) -> Result<Region, MemoryError> {
        let Shared {
            backing, system, ..
        } = &*self.shared;
        let none = MemoryError::NoRoom { len };
        let len = len.max(1).checked_next_multiple_of(LEN_UNIT).ok_or(none)?;
        let none = || MemoryError::NoRoom { len };
        let regions = system.regions(backing.pmem())?;
        let mut used: Vec<_> = regions.iter().map(|(_, region)| region).collect();
        let unused = |slot: &u64| used.iter().all(|region| region.slot != *slot);
        let free = |slot| Ok(backing.is_free(slot)?.then_some(slot));
        let mut slots = (0..system.slots).filter(unused).map(free);
        let slot = slots.find_map(Result::transpose).transpose();
        let slot = slot.map_err(MemoryError::Backing)?;
        used.sort_by_key(|region| region.start);
        let mut start = system.bytes.next_multiple_of(system.granule);
        for region in used {
            if region
                .start
                .checked_sub(start)
                .is_some_and(|gap| gap >= len)
            {
                break;
            }
            start = (region.start + region.len).next_multiple_of(system.granule);
        }
        let end = start.checked_add(len).ok_or_else(none)?;
        if end > backing.pmem().len() {
            return Err(none());
        }
        Ok(Region {
            slot: slot.ok_or_else(none)?,
            kind,
            start,
            len,
            tag,
        })
    }

    /// Says in the table what is becoming of a region, with what else belongs to it.
    fn set(
        &self,
        region: &Region,
        state: Option<State>,
        mut also: impl FnMut(&mut Transaction<'_, S>) -> Result<(), Interrupted>,
    ) -> Result<(), MemoryError> {
        let at = self.shared.system.slot(region.slot);
        let words = state.map_or([0; SLOT_WORDS], |state| encode(state, region));
        let at = self.shared.memory.space().address(at);
        self.shared.memory.session().run(|tx| {
            for (n, word) in words.iter().enumerate() {
                tx.store(at + n as u64 * WORD_BYTES, *word)?;
            }
            Ok::<_, Stop<Infallible>>(also(tx)?)
        })?;
        Ok(())
    }

    /// Removes the region that starts at `start`, which is no part of the heap. `unlink` takes
    /// away what the program knows it by. Nobody may use the region any more. Not to be called
    /// inside a transaction.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn unmap(
        &self,
        start: u64,
        unlink: impl FnMut(&mut Transaction<'_, S>) -> Result<(), Interrupted>,
    ) -> Result<(), MemoryError> {
        let shared = &*self.shared;
        let _turn = shared.changing.lock();
        let regions = shared.system.regions(shared.backing.pmem())?;
        let is_it = |(state, region): &&(State, Region)| {
            region.start == start && *state == State::There && region.kind != RegionKind::Heap
        };
        let (_, region) = regions
            .iter()
            .find(is_it)
            .ok_or(MemoryError::NoRegion { start })?;
        self.set(region, Some(State::Removing), unlink)?;
        if !hit(Bug::RegionInLog) {
            shared.memory.truncate()?;
        }
        self.finish_removal(region)
    }

    /// The second half of removing a region, and the end of one that was never there.
    fn finish_removal(&self, region: &Region) -> Result<(), MemoryError> {
        self.shared.backing.remove(region)?;
        self.set(region, None, |_| Ok(()))
    }

    /// Finds room for a block of so many bytes, after the heap had none. `lacks` says how often
    /// that was of no use to the transaction: what the heap has by now may be what the
    /// transaction itself gave back when it failed, and too little for all of its blocks.
    fn make_room(&self, bytes: u64, lacks: u32) -> Result<(), MemoryError> {
        let _turn = self.shared.growing.lock();
        let heap = &self.shared.heap;
        // Somebody else may have been here meanwhile.
        let has_room = lacks == 0 && heap.may_hold(bytes);
        if has_room || lacks <= 1 && heap.reclaim()? {
            return Ok(());
        }
        let needed = Segment::bytes_for(bytes).ok_or(MemoryError::NoRoom { len: bytes })?;
        let segments = self.shared.heap.segments();
        let sizes = segments.iter().map(|segment| segment.pages * PAGE_BYTES);
        let heap_bytes: u64 = sizes.sum();
        let growth = self.shared.options.heap_growth;
        let len = needed.max(growth.min(FIRST_GROWTH.max(heap_bytes / 2)));
        let region = match self.map(RegionKind::Heap, len, 0, |_, _| Ok(())) {
            Err(MemoryError::NoRoom { .. } | MemoryError::Backing(_)) if len > needed => {
                self.map(RegionKind::Heap, needed, 0, |_, _| Ok(()))?
            }
            other => other?,
        };
        let pm = self.shared.backing.pmem();
        let segment = Segment::open(pm, region.start, region.len)?;
        let slot = region.slot;
        let segment = segment.ok_or(MemoryError::NotASegment { slot })?;
        heap.add(segment);
        Ok(())
    }
}
