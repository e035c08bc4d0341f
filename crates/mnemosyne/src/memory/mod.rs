//! The durable memory of a program: regions, a heap, transactions and named roots.
//!
//! # Guarantees
//!
//! - **S1** Recovery is over before a program sees its data.
//! - **S2** A transaction records a new or removed region together with the program's pointer to
//!   it. No crash leaks a region, and none leaves a dangling pointer to one.
//! - **S3** A region keeps its offset, so pointers into it stay valid in every run.
//!
//! # Design
//!
//! Transactions change the region table. A region is made in these steps:
//!
//! 1. The slot records that the region is being made.
//! 2. Its bytes are made.
//! 3. The slot records that it exists, in the transaction that stores the program's pointer.
//!
//! A region is removed in these steps:
//!
//! 1. The slot records that the region is being removed, in the transaction that clears the
//!    pointer.
//! 2. The logs are truncated, so that no recovery restores words where another region may be by
//!    then.
//! 3. The bytes are removed.
//! 4. The slot is freed.
//!
//! The next start finishes the removal of regions that a crash has left in between.

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

/// Errors of durable memory as a whole.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// There is no durable memory.
    #[error("this is not durable memory: {what}")]
    NotDurableMemory {
        /// The reason.
        what: &'static str,
    },
    /// The requested layout is impossible.
    #[error("durable memory cannot have this layout")]
    Layout,
    /// A slot of the region table is damaged.
    #[error("slot {slot} of the region table is damaged: {what}")]
    Slot {
        /// The number of the slot.
        slot: u64,
        /// The damage.
        what: &'static str,
    },
    /// A root is damaged.
    #[error("root {root} is damaged")]
    Root {
        /// The number of the root.
        root: u64,
    },
    /// A repair would give up the base address of the memory.
    #[error(
        "root {root} ({BASE_ROOT}) is damaged: it holds the address that pointers are for, and \
         without it the next start would move the memory; restore the directory from a copy"
    )]
    Base {
        /// The number of the root.
        root: u64,
    },
    /// A descriptor of the heap, which records the allocated blocks, is damaged.
    #[error(transparent)]
    Heap(HeapError),
    /// The bytes of a region are lost.
    #[error("{what} is missing or too short: region {slot} has {len} bytes there")]
    Lost {
        /// The slot of the region.
        slot: u64,
        /// The location of its bytes, such as a file.
        what: String,
        /// The length that it should have, in bytes.
        len: u64,
    },
    /// A region lies beyond the reserved addresses.
    #[error("region {slot} ends at {end:#x}, and only {len:#x} bytes of addresses are reserved")]
    Beyond {
        /// The slot of the region.
        slot: u64,
        /// The offset of its end.
        end: u64,
        /// The number of reserved bytes.
        len: u64,
    },
    /// There is no room for a region.
    #[error("there is no room for a region of {len} bytes")]
    NoRoom {
        /// The bytes that were requested.
        len: u64,
    },
    /// No region begins at the offset.
    #[error("no region of a program begins at {start:#x}")]
    NoRegion {
        /// The offset of the region that was to be removed.
        start: u64,
    },
    /// A region of the heap does not have a segment.
    #[error("region {slot} should be a part of the heap, and is not")]
    NotASegment {
        /// The slot of the region.
        slot: u64,
    },
    /// The logs are damaged.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// The bytes of a region are unavailable.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The memory failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// No further transaction can commit.
    #[error("no more transactions: {0}")]
    Failed(Arc<LogError>),
    /// A transaction that changes the region table was rejected.
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

/// The root whose layout is the address at which C programs map the memory.
pub const BASE_ROOT: &str = "selvedge.base";

/// The length in bytes of the heap's first segment, and the minimum of its growth.
const FIRST_GROWTH: u64 = 4 << 20;

/// Options that the format does not fix.
#[derive(Debug, Clone)]
pub struct Options {
    /// Options of transactions.
    pub tx: tx::Options,
    /// The maximum growth of the heap in bytes, unless a block needs more. Up to it the heap grows
    /// by half of its length.
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

/// The ranges of the parts of the heap among regions, ascending.
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
    /// Held by the thread that changes the region table.
    changing: Mutex<()>,
    /// Held by the thread that finds room for the heap.
    growing: Mutex<()>,
    /// The last field: when it is dropped, nothing stores any more.
    backing: B,
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> Clone for DurableMemory<B, S> {
    fn clone(&self) -> Self {
        let shared = self.shared.clone();
        Self { shared }
    }
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> DurableMemory<B, S> {
    /// Recovers and opens the memory whose system region `backing` has mapped. Transactions see the
    /// memory as `space`.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open(backing: B, space: S, options: Options) -> Result<Self, MemoryError> {
        Self::open_with(backing, space, options, None)
    }

    /// As [`open`](Self::open). If there is a list `lost`, damaged records are added to it, and
    /// given up with those after them in their logs.
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
        // Replay the system region first: its table decides which words of regions are replayed.
        unrecovered.replay(|off| off < system.bytes);
        let regions = system.regions(pm)?;
        for (state, region) in &regions {
            if *state != State::There {
                // Remove it now: its bytes may take room that recovery needs.
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
            off < system.bytes || there.any(|(_, region)| region.has_byte(off))
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

    /// Starts a thread that truncates the logs, so that commits need not. It ends with the memory.
    pub fn truncate_in_background(&self)
    where
        S: 'static,
        S::Pmem: 'static,
    {
        if let Some(truncator) = self.shared.memory.truncator() {
            self.shared.truncator.get_or_init(|| truncator);
        }
    }

    /// A session, in which one thread runs transactions. There may be any number of sessions.
    pub fn session(&self) -> Session<B, S> {
        Session::new(self)
    }

    /// The provider of the regions' bytes.
    pub fn backing(&self) -> &B {
        &self.shared.backing
    }

    /// The memory that transactions change.
    pub fn memory(&self) -> &Memory<S> {
        &self.shared.memory
    }

    /// The heap.
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

    /// Makes a region of `len` bytes, rounded up to a multiple of 4,096, all zeros. `link` gets its
    /// start and stores the program's pointer to it, in the transaction that makes the region
    /// exist. Not to be called inside a transaction.
    ///
    /// # Errors
    /// [`MemoryError`]; then the region does not exist.
    pub fn map(
        &self,
        kind: RegionKind,
        len: u64,
        tag: u64,
        mut link: impl FnMut(&mut Transaction<'_, S>, u64) -> Result<(), Interrupted>,
    ) -> Result<Region, MemoryError> {
        let shared = &*self.shared;
        let _turn = shared.changing.lock();
        let region = self.choose_range(kind, len, tag)?;
        let state = match hit(Bug::RegionBeforeBytes) {
            true => State::There,
            false => State::Creating,
        };
        self.set(&region, Some(state), |_| Ok(()))?;
        if let Err(error) = self.make(&region) {
            match error {
                // The bytes that exist there belong to another program.
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
            // The region may exist after a crash.
            Err(error @ MemoryError::Refused(TxError::Failed(_))) => Err(error),
            Err(error) => {
                self.finish_removal(&region)?;
                Err(error)
            }
        }
    }

    /// Makes the bytes of a region.
    fn make(&self, region: &Region) -> Result<(), MemoryError> {
        let backing = &self.shared.backing;
        backing.create(region)?;
        if region.kind == RegionKind::Heap {
            Segment::format(backing.pmem(), region.start, region.len)?;
        }
        Ok(())
    }

    /// Finds a free slot, and the first gap of offsets that is large enough.
    fn choose_range(&self, kind: RegionKind, len: u64, tag: u64) -> Result<Region, MemoryError> {
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

    /// Stores the state of a region in the table, and runs `also` in the same transaction.
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

    /// Removes the region that starts at `start`, which is not part of the heap. `unlink` clears
    /// the program's pointer to it. No thread may use the region any more. Not to be called inside
    /// a transaction.
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

    /// Frees the bytes and the slot of a region that is being removed, or was never finished.
    fn finish_removal(&self, region: &Region) -> Result<(), MemoryError> {
        self.shared.backing.remove(region)?;
        self.set(region, None, |_| Ok(()))
    }

    /// Makes room for a block of that many bytes, after the heap had none. `lacks` is the number of
    /// times that this was not enough. By now the heap may have only blocks that the transaction
    /// itself freed when it failed, which are too few for it.
    fn make_room(&self, bytes: u64, lacks: u32) -> Result<(), MemoryError> {
        let _turn = self.shared.growing.lock();
        let heap = &self.shared.heap;
        // Another thread may have made room meanwhile.
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
