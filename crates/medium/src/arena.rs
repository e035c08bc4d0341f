//! Several files in one range of addresses.
//!
//! Guarantees:
//!
//! 1. Byte `off` of the arena is at the address [`base`](Arena::base) `+ off`, and while
//!    the arena lives nothing but its files is ever mapped in its range. An arena made
//!    again at the same base has the same file at the same addresses.
//! 2. An access to bytes that no file has, or that leaves the file in which it starts,
//!    even for one that begins right behind it, is out of range.
//! 3. For each file what [`MappedPmem`] guarantees; errors tell offsets in the arena.
//! 4. [`map`](Arena::map) and [`unmap`](Arena::unmap) may run while other threads use the
//!    arena. An access that meets an `unmap` happens wholly before it or is out of range,
//!    and when `unmap` returns no thread is inside the region any more.
//! 5. A child made by `fork` has none of it.
//! 6. What a thread flushed in a region is durable when its next fence returns `Ok`, also
//!    if another thread has taken the region away in between.
//!
//! Accesses take no lock. They find their region in a table of granules and use it inside
//! a section that `unmap` waits for (see [`rcu`]).

use crate::addresses::{Reservation, occupant};
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

/// A reserved range of addresses in which files are mapped at offsets that the caller
/// chooses: persistent memory whose pointers stay valid (the regions of Mnemosyne).
pub struct Arena {
    /// The region that has each granule; null where none has.
    granules: Box<[AtomicPtr<Region>]>,
    /// All regions, for the fence, with gaps; the places from `fenced_end` on were never
    /// used.
    fenced: Box<[AtomicPtr<Region>]>,
    fenced_end: AtomicUsize,
    /// By their starts. Keeps alive what the pointers above point to.
    regions: Mutex<BTreeMap<u64, Arc<Region>>>,
    /// The error that sticks.
    failed: OnceLock<MediumError>,
    /// Last, because the regions give their addresses back to it.
    reservation: Reservation,
}

/// A mapped file in the arena.
struct Region {
    start: u64,
    /// Its place in `Arena::fenced`.
    slot: usize,
    mapped: MappedPmem,
}

impl Arena {
    /// Regions start at multiples of it: 2 MiB, a huge page.
    pub const GRANULE_BYTES: u64 = 2 << 20;

    /// Reserves `len` bytes of addresses at `base`, or where the kernel likes. They take
    /// no memory.
    ///
    /// # Errors
    /// [`ArenaError`]: `base` or `len` is not made of whole granules, something else is
    /// there (the error says what), or the system refuses.
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

    /// The first address. (Whoever goes to an address directly: one at which no file is
    /// mapped kills the process.)
    pub fn base(&self) -> u64 {
        self.reservation.base().as_ptr() as u64
    }

    /// Locks the file, block device or DAX device at `path` and maps it, whole, at the
    /// offset `start`. Returns its length, which need not be made of whole granules: the
    /// rest of the last one stays out of range.
    ///
    /// # Errors
    /// [`ArenaError`]: `start` is not a multiple of a granule, the file does not end inside
    /// the arena or would overlap another, or [`MappedPmem::open`] would fail. Nothing has
    /// changed then.
    pub fn map(
        &self,
        start: u64,
        path: impl AsRef<Path>,
        options: &MapOptions,
    ) -> Result<u64, ArenaError> {
        let path = path.as_ref();
        self.put(start, path, options, |target, place| {
            // SAFETY: `put` gives a place that is the region's.
            Ok(unsafe { MappedPmem::place(path, target, place, options) }?)
        })
    }

    /// As [`map`](Self::map), for a file of which `pager` has some pages, as those of the
    /// region in `slot`; the durability of the pager's memory holds.
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
            // SAFETY: `put` gives a place that is the region's.
            unsafe { MappedPmem::place_paged(path, target, place, (pager, slot), options) }
        })
    }

    /// Has `map` map the file at `path`, given the address of the offset `start`.
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
        // SAFETY: `start..start + len` lies inside the reservation, which outlives the
        // regions, and no region has any of it; nor will another, since we hold the lock.
        let place = unsafe { self.reservation.base().add(start as usize) };
        let mapped = map(target, place)?;
        let region = Arc::new(Region {
            start,
            slot,
            mapped,
        });
        let shared = Arc::as_ptr(&region).cast_mut();
        // The fence has to know it before anyone can store to it.
        self.fenced[slot].store(shared, Release);
        self.fenced_end.fetch_max(slot + 1, Release);
        self.publish(&region, shared);
        regions.insert(start, region);
        Ok(len)
    }

    /// Takes the region at `start` away and unlocks its file. Waits for accesses and
    /// fences under way in any arena of the process.
    ///
    /// Writes back (`msync`) what was flushed in the region. An error of that, or of the
    /// region before, is not lost with it: the next fence returns it.
    ///
    /// # Errors
    /// [`ArenaError`]: no region starts there, or the system refuses to wait. In that
    /// case the region is out of range, but its file stays locked; try again.
    pub fn unmap(&self, start: u64) -> Result<(), ArenaError> {
        let mut regions = self.regions.lock();
        let region = regions.get(&start).ok_or(ArenaError::NotMapped { start })?;
        self.publish(region, null_mut());
        rcu::synchronize().map_err(synchronize)?;
        // No access adds to it from here on. Before the fence forgets it: a thread that
        // stored here relies on its next one.
        if let Err(e) = region.mapped.settle_all() {
            self.fail(region.in_arena(e));
        }
        let listed = Arc::as_ptr(region).cast_mut();
        // Not if an earlier attempt got this far: another region may be there by now.
        let _ = self.fenced[region.slot].compare_exchange(listed, null_mut(), Release, Acquire);
        rcu::synchronize().map_err(synchronize)?;
        regions.remove(&start);
        Ok(())
    }

    /// Unlocks all files, in a child made by `fork`, which has not got their memory but their
    /// locks. Lets go of nothing in the parent.
    ///
    /// # Safety
    /// Nobody may use the arena in this process any more, or drop it.
    pub unsafe fn abandon(&self) {
        for place in &self.fenced[..self.fenced_end.load(Acquire)] {
            // SAFETY: as in `access`; here is no other thread.
            if let Some(region) = unsafe { place.load(Acquire).as_ref() } {
                // SAFETY: the caller's promise.
                unsafe { region.mapped.close_files() };
            }
        }
        // What another thread was putting there at the fork, and had not yet kept from children.
        // SAFETY: the caller's promise.
        let _ = unsafe { self.reservation.clear() };
    }

    /// The durability in force for the region at `start`, if there is one.
    pub fn durability(&self, start: u64) -> Option<EffectiveDurability> {
        let regions = self.regions.lock();
        regions.get(&start).map(|r| r.mapped.durability())
    }

    /// The file of the region at `start`, if there is one, for those who map its bytes once more;
    /// while a power cut is simulated, the copy that stands in for it.
    pub fn shared_file(&self, start: u64) -> Option<Arc<File>> {
        let regions = self.regions.lock();
        regions
            .get(&start)
            .map(|region| region.mapped.shared_file().clone())
    }

    /// Whether one region has all of the `len` bytes at `off`.
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

    /// Whether the file at `path` has its place free.
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

    /// Makes accesses to `region` find `found`: itself, or null.
    fn publish(&self, region: &Region, found: *mut Region) {
        for granule in &self.granules[region.granules()] {
            // The region is whole before it is found.
            granule.store(found, Release);
        }
    }

    /// Has `how` access the `len` bytes at `off`, given their region and their offset in
    /// it.
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
        // SAFETY: `unmap` takes the pointer away and waits for our section before the
        // region goes, and the arena, which we borrow, keeps all others.
        let Some(region) = (unsafe { granule.load(Acquire).as_ref() }) else {
            return self.out_of_range(off, len);
        };
        match how(&region.mapped, off - region.start) {
            Ok(()) => Ok(()),
            Err(MediumError::OutOfRange { .. }) => self.out_of_range(off, len),
            Err(e) => Err(region.in_arena(e)),
        }
    }

    /// Keeps the error of a change.
    #[inline]
    fn note(&self, changed: Result<(), MediumError>) {
        if let Err(e) = changed {
            self.fail(e);
        }
    }

    /// An access that no region has the bytes of. No bytes are everywhere.
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
    /// The granules of the arena that it takes.
    fn granules(&self) -> Range<usize> {
        granules(self.start, self.mapped.len())
    }

    /// An error of the file, as one of the arena.
    #[cold]
    fn in_arena(&self, error: MediumError) -> MediumError {
        match error {
            MediumError::Unreadable { off } => MediumError::Unreadable {
                off: self.start + off,
            },
            // Offsets out of range are the caller's own (see `access`).
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
            if let Err(e) = region.mapped.settle() {
                self.fail(region.in_arena(e));
            }
        }
        // After the regions: one that is gone has left its error here.
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}

/// The granules that `len` bytes at `start` touch.
fn granules(start: u64, len: u64) -> Range<usize> {
    let end = (start + len).div_ceil(Arena::GRANULE_BYTES);
    (start / Arena::GRANULE_BYTES) as usize..end as usize
}

/// Memory that is not stored to until it is used: the table of a large arena is long.
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
