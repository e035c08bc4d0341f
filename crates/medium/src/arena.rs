//! Several files in one range of addresses.
//!
//! Guarantees:
//!
//! 1. Byte `off` of the arena is at the address [`base`](Arena::base) `+ off`. While the arena
//!    lives, only its files are mapped in its range. An arena made again at the same base has
//!    the same files at the same addresses.
//! 2. An access to bytes of no file is out of range. So is an access that continues after the
//!    end of the file in which it starts, even into the next file.
//! 3. For each file the guarantees of [`MappedPmem`] hold. Errors give offsets in the arena.
//! 4. [`map`](Arena::map) and [`unmap`](Arena::unmap) may run while other threads use the
//!    arena. An access during an `unmap` happens wholly before it or is out of range. When
//!    `unmap` returns, no thread is inside the region any more.
//! 5. A child made by `fork` does not inherit the arena.
//! 6. A thread's flushes in a region are durable when its next fence returns `Ok`, even if
//!    another thread has unmapped the region in between.
//!
//! Accesses take no lock. They find their region in a table of granules and use it inside a
//! section, for whose end `unmap` waits (see [`rcu`]).

use crate::addresses::{GRANULE_BYTES, Reservation, occupant};
use crate::arena_error::ArenaError;
use crate::mapped::Target;
use crate::pager::Pager;
use crate::{
    EffectiveDurability, MapOptions, MappedPmem, MediumError, OpenError, Pmem, Rule, WORD_BYTES,
};
use crate::{cpu, rcu, sigbus};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, OnceLock};

/// A reserved range of addresses, with files at offsets that the caller chooses: persistent
/// memory whose pointers stay valid. (Mnemosyne's regions.)
pub struct Arena {
    /// The region in each granule; null where there is none.
    granules: Box<[AtomicPtr<Region>]>,
    /// All regions, for the fence, with gaps. The slots from `fenced_end` on were never used.
    fenced: Box<[AtomicPtr<Region>]>,
    fenced_end: AtomicUsize,
    /// By their starts. Owns the regions to which the pointers above point.
    regions: Mutex<BTreeMap<u64, Arc<Region>>>,
    /// The first error, which every later fence returns.
    failed: OnceLock<MediumError>,
    /// Declared last: the regions return their addresses to it when they are dropped.
    reservation: Reservation,
}

/// A mapped file in the arena.
struct Region {
    start: u64,
    /// Its index in `Arena::fenced`.
    slot: usize,
    mapped: MappedPmem,
}

impl Arena {
    /// Regions start at multiples of this: 2 MiB, a huge page.
    pub const GRANULE_BYTES: u64 = GRANULE_BYTES;

    /// Reserves `len` bytes of addresses at `base`, or where the kernel chooses. They take no
    /// memory.
    ///
    /// # Errors
    /// [`ArenaError`]: `base` or `len` does not consist of whole granules, something else is
    /// mapped there (the error describes it), or a system call fails.
    pub fn reserve(base: Option<u64>, len: u64) -> Result<Self, ArenaError> {
        check_granules("the base address", base.unwrap_or(0))?;
        check_granules("the size of the arena", len)?;
        rcu::prepare().map_err(synchronize)?;
        let reserved = match base {
            Some(base) => Reservation::at(base, len),
            None => Reservation::anywhere(len, Self::GRANULE_BYTES),
        };
        let reservation = reserved.map_err(|e| match (base, e) {
            (Some(base), Errno::EXIST) => taken(base, len),
            _ => ArenaError::Reserve {
                base,
                len_bytes: len,
                source: e.into(),
            },
        })?;
        Ok(Self {
            granules: null_pointers((len / Self::GRANULE_BYTES) as usize),
            fenced: null_pointers(sigbus::SLOTS),
            fenced_end: AtomicUsize::new(0),
            regions: Mutex::new(BTreeMap::new()),
            failed: OnceLock::new(),
            reservation,
        })
    }

    /// The first address. A direct access to an address where no file is mapped kills the
    /// process.
    pub fn base(&self) -> u64 {
        self.reservation.base().as_ptr() as u64
    }

    /// Locks the file, block device or DAX device at `path` and maps all of it at the offset
    /// `start`. Returns its length, which need not consist of whole granules: the rest of the
    /// last one is out of range.
    ///
    /// # Errors
    /// [`ArenaError`]: `start` is not a multiple of a granule, the file does not end inside the
    /// arena or would overlap another, or [`MappedPmem::open`] would fail. The arena is then
    /// unchanged.
    pub fn map(
        &self,
        start: u64,
        path: impl AsRef<Path>,
        options: &MapOptions,
    ) -> Result<u64, ArenaError> {
        let path = path.as_ref();
        self.put(start, path, options, |target, place| {
            // SAFETY: `put` passes a place that belongs to the region alone.
            Ok(unsafe { MappedPmem::place(path, target, place, options) }?)
        })
    }

    /// Maps a file as [`map`](Self::map) does; `pager` has some of its pages, under the number
    /// `slot`. The durability is that of the pager's memory.
    ///
    /// # Errors
    /// As `map`; [`ArenaError::Pager`]: the pager refuses the file.
    pub fn map_paged(
        &self,
        start: u64,
        path: impl AsRef<Path>,
        (pager, slot): (&Arc<impl Pager>, u16),
        options: &MapOptions,
    ) -> Result<u64, ArenaError> {
        let path = path.as_ref();
        self.put(start, path, options, |target, place| {
            // SAFETY: `put` passes a place that belongs to the region alone.
            unsafe { MappedPmem::place_paged(path, target, place, (pager, slot), options) }
        })
    }

    /// Calls `map` for the file at `path`, with the address of the offset `start`.
    fn put(
        &self,
        start: u64,
        path: &Path,
        options: &MapOptions,
        map: impl FnOnce(Target, NonNull<u8>) -> Result<MappedPmem, ArenaError>,
    ) -> Result<u64, ArenaError> {
        check_granules("the offset in the arena", start)?;
        let mut regions = self.regions.lock();
        let target = Target::open(path, options)?;
        let len = target.len;
        self.check_room(&regions, start, len, path)?;
        let slot = self.fenced.iter().position(|s| s.load(Acquire).is_null());
        let slot = slot.ok_or_else(|| OpenError::TooMany {
            path: path.to_owned(),
        })?;
        // SAFETY: `start..start + len` lies inside the reservation, which outlives the regions.
        // No region has any of it, and the lock keeps others out.
        let place = unsafe { self.reservation.base().add(start as usize) };
        let mapped = map(target, place)?;
        let region = Arc::new(Region {
            start,
            slot,
            mapped,
        });
        let shared = Arc::as_ptr(&region).cast_mut();
        // The fence must include the region before any thread can store to it.
        self.fenced[slot].store(shared, Release);
        self.fenced_end.fetch_max(slot + 1, Release);
        self.publish(&region, shared);
        regions.insert(start, region);
        Ok(len)
    }

    /// Unmaps the region at `start` and unlocks its file. Waits for accesses and fences under
    /// way in any arena of the process.
    ///
    /// Writes back (`msync`) the flushed bytes of the region. If that fails, or the region has
    /// failed before, the next fence of the arena returns the error.
    ///
    /// # Errors
    /// [`ArenaError`]: no region starts there, or the wait fails. If the wait fails, the region
    /// is out of range but its file stays locked; call again.
    pub fn unmap(&self, start: u64) -> Result<(), ArenaError> {
        let mut regions = self.regions.lock();
        let region = regions.get(&start).ok_or(ArenaError::NotMapped { start })?;
        self.publish(region, null_mut());
        rcu::synchronize().map_err(synchronize)?;
        // No access adds to the region from here on. This precedes its removal from the fence,
        // on which threads that stored here rely.
        if let Err(e) = region.mapped.complete_all_fences() {
            self.fail(region.in_arena(e));
        }
        let listed = Arc::as_ptr(region).cast_mut();
        // Not if an earlier attempt removed it: another region may have the slot by now.
        let _ = self.fenced[region.slot].compare_exchange(listed, null_mut(), Release, Acquire);
        rcu::synchronize().map_err(synchronize)?;
        regions.remove(&start);
        Ok(())
    }

    /// Unlocks all files in a child made by `fork`, which inherits their locks but not their
    /// memory. The parent's locks stay.
    ///
    /// # Safety
    /// The arena must not be used or dropped in this process any more.
    pub unsafe fn abandon(&self) {
        for place in &self.fenced[..self.fenced_end.load(Acquire)] {
            // SAFETY: as in `access`; the child has no other thread.
            if let Some(region) = unsafe { place.load(Acquire).as_ref() } {
                // SAFETY: the caller promises that the arena is not used any more.
                unsafe { region.mapped.close_files() };
            }
        }
        // Another thread may have been mapping a file at the fork, not yet excluded from children.
        // SAFETY: the caller promises that the arena is not used any more.
        let _ = unsafe { self.reservation.clear() };
    }

    /// The durability in force for the region at `start`, if there is one.
    pub fn durability(&self, start: u64) -> Option<EffectiveDurability> {
        let regions = self.regions.lock();
        regions.get(&start).map(|r| r.mapped.durability())
    }

    /// The file of the region at `start`, if there is one, for a second mapping of its bytes.
    /// While a power cut is simulated, this is the copy of the file.
    pub fn shared_file(&self, start: u64) -> Option<Arc<File>> {
        let regions = self.regions.lock();
        regions
            .get(&start)
            .map(|region| region.mapped.shared_file().clone())
    }

    /// Whether one region contains all of the `len` bytes at `off`.
    pub fn has(&self, off: u64, len: u64) -> bool {
        let look = |mapped: &MappedPmem, at: u64| match at.checked_add(len) {
            Some(end) if end <= mapped.len() => Ok(()),
            _ => Err(MediumError::OutOfRange { off, len }),
        };
        self.access(off, len, look).is_ok()
    }

    /// [`store_nt`](Pmem::store_nt) that returns its error instead of keeping it.
    ///
    /// # Errors
    /// [`MediumError`]; nothing was stored.
    pub fn try_store_nt(&self, off: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let len = bytes.len() as u64;
        self.access(off, len, |mapped, at| mapped.try_store_nt(at, bytes))
    }

    /// [`flush`](Pmem::flush) that returns its error instead of keeping it.
    ///
    /// # Errors
    /// [`MediumError`]; nothing was flushed.
    #[inline]
    pub fn try_flush(&self, off: u64, len: u64) -> Result<(), MediumError> {
        self.access(off, len, |mapped, at| mapped.try_flush(at, len))
    }

    /// Checks that the place for the file at `path` is free.
    fn check_room(
        &self,
        regions: &BTreeMap<u64, Arc<Region>>,
        start: u64,
        len: u64,
        path: &Path,
    ) -> Result<(), ArenaError> {
        if start.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(ArenaError::Outside {
                path: path.to_owned(),
                len_bytes: len,
                start,
                arena_bytes: self.len(),
            });
        }
        let wanted = granules(start, len);
        let overlaps = |other: &Region| {
            let theirs = other.granules();
            theirs.start < wanted.end && wanted.start < theirs.end
        };
        match regions.values().find(|other| overlaps(other)) {
            None => Ok(()),
            Some(other) => Err(ArenaError::Overlap {
                path: path.to_owned(),
                len_bytes: len,
                start,
                occupant: other.mapped.path().to_owned(),
                occupied: other.start,
            }),
        }
    }

    /// Makes accesses to `region` find `found`: the region itself, or null.
    fn publish(&self, region: &Region, found: *mut Region) {
        for granule in &self.granules[region.granules()] {
            // Release: the region is complete before an access can find it.
            granule.store(found, Release);
        }
    }

    /// Calls `how` for the `len` bytes at `off`, with their region and their offset in it.
    #[inline]
    fn access(
        &self,
        off: u64,
        len: u64,
        how: impl FnOnce(&MappedPmem, u64) -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let _section = rcu::section();
        let Some(granule) = self.granules.get((off / Self::GRANULE_BYTES) as usize) else {
            return self.out_of_range(off, len);
        };
        // SAFETY: `unmap` removes the pointer and waits for our section before it drops the
        // region. The arena, which is borrowed, keeps all others.
        let Some(region) = (unsafe { granule.load(Acquire).as_ref() }) else {
            return self.out_of_range(off, len);
        };
        match how(&region.mapped, off - region.start) {
            Ok(()) => Ok(()),
            Err(MediumError::OutOfRange { .. }) => self.out_of_range(off, len),
            Err(e) => Err(region.in_arena(e)),
        }
    }

    /// Records the error of a store or flush.
    #[inline]
    fn note(&self, changed: Result<(), MediumError>) {
        if let Err(e) = changed {
            self.fail(e);
        }
    }

    /// Handles an access to bytes of no region; zero bytes are in range everywhere.
    #[cold]
    fn out_of_range(&self, off: u64, len: u64) -> Result<(), MediumError> {
        if len == 0 && off <= self.len() {
            return Ok(());
        }
        Err(MediumError::OutOfRange { off, len })
    }

    #[cold]
    fn fail(&self, error: MediumError) {
        let _ = self.failed.set(error);
    }
}

impl Region {
    /// The granules of the arena that the region takes.
    fn granules(&self) -> Range<usize> {
        granules(self.start, self.mapped.len())
    }

    /// Converts an error of the file to one of the arena.
    #[cold]
    fn in_arena(&self, error: MediumError) -> MediumError {
        match error {
            MediumError::Unreadable { off } => MediumError::Unreadable {
                off: self.start + off,
            },
            // Offsets out of range are already those of the caller (see `access`).
            other => other,
        }
    }
}

impl Pmem for Arena {
    #[inline]
    fn len(&self) -> u64 {
        self.reservation.len()
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let mut word = 0;
        self.access(off, WORD_BYTES, |mapped, at| {
            word = mapped.load(at)?;
            Ok(())
        })?;
        Ok(word)
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.access(off, buf.len() as u64, |mapped, at| mapped.read(at, buf))
    }

    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        self.note(self.access(off, len, |mapped, at| mapped.try_store(at, bytes)));
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.note(self.try_store_nt(off, bytes));
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        self.note(self.try_flush(off, len));
    }

    fn fence(&self, _: Rule) -> Result<(), MediumError> {
        cpu::fence();
        let _section = rcu::section();
        for place in &self.fenced[..self.fenced_end.load(Acquire)] {
            // SAFETY: as in `access`.
            let Some(region) = (unsafe { place.load(Acquire).as_ref() }) else {
                continue;
            };
            if let Err(e) = region.mapped.complete_fence() {
                self.fail(region.in_arena(e));
            }
        }
        // After the regions: the error of an unmapped region is recorded here.
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}

/// The granules that `len` bytes at `start` touch.
fn granules(start: u64, len: u64) -> Range<usize> {
    let end = (start + len).div_ceil(Arena::GRANULE_BYTES);
    (start / Arena::GRANULE_BYTES) as usize..end as usize
}

/// A table of null pointers. Its memory is not touched until it is used, because that of a
/// large arena is long.
fn null_pointers(count: usize) -> Box<[AtomicPtr<Region>]> {
    // SAFETY: zeros are null pointers.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}

fn check_granules(what: &'static str, value: u64) -> Result<(), ArenaError> {
    if value.is_multiple_of(Arena::GRANULE_BYTES) {
        Ok(())
    } else {
        Err(ArenaError::Misaligned { what, value })
    }
}

fn taken(base: u64, len: u64) -> ArenaError {
    let end = base.saturating_add(len);
    let occupant = occupant(&(base..end)).unwrap_or_else(|| "something".to_owned());
    ArenaError::Taken {
        base,
        end,
        occupant,
    }
}

fn synchronize(e: Errno) -> ArenaError {
    ArenaError::Synchronize { source: e.into() }
}
