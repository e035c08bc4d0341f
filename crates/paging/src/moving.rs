//! The threads that move pages.
//!
//! One thread answers faults: it loads the page into a free frame, or finds it in one, and maps
//! the frame. The other keeps some frames free. Each holds the one lock for moments only. The
//! first holds it while it maps a frame, so that the second cannot unmap a frame that is not
//! mapped yet. The second never holds it while it moves memory: that waits until the first has
//! read the event.

use crate::frames::{Frames, PageError, PageId};
use crate::region::RegionFile;
use crate::residency::{Fault, Residency, Victim};
use crate::userfaultfd::Faults;
use medium::pager::{barrier, keep_from_children};
use medium::{MappedPmem, MediumError};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read, write};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munlock,
    munmap,
};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The largest number of frames to keep free, and of pages to unmap or write back at a time.
const RESERVE_MAX: usize = 32;
/// The time until the next attempt to unmap pages, if the system refused.
const PAUSE: Duration = Duration::from_millis(10);

/// Counts of moved pages since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCounts {
    /// Pages copied from files to frames.
    pub loaded: u64,
    /// Pages mapped again, because they were still in their frames.
    pub mapped_again: u64,
    /// Pages written to files.
    pub written: u64,
    /// Pages removed from their frames, written or not.
    pub released: u64,
}

/// The state that the threads share.
pub(crate) struct Shared {
    pub(crate) frames: Frames<MappedPmem>,
    pub(crate) state: Mutex<State>,
    /// Wakes the thread that keeps frames free.
    pub(crate) work: Condvar,
    /// Wakes threads that wait until a region is not busy.
    done: Condvar,
    /// `None`: the pool is read-only and no pages are moved.
    pub(crate) moving: Option<Moving>,
}

/// The means of moving pages.
pub(crate) struct Moving {
    faults: Faults,
    /// Wakes the thread that answers faults, to retry those that had to wait.
    again: OwnedFd,
    /// Whether the thread that answers faults is to end.
    pub(crate) is_ending: AtomicBool,
    /// Number of frames to keep free.
    reserve: usize,
    /// Number of pages that are unmapped and wait for their second chance.
    waiting: usize,
}

pub(crate) struct State {
    pub residency: Residency,
    /// The regions in use, by their first addresses.
    pub regions: BTreeMap<u64, Arc<RegionFile>>,
    /// Regions whose frames are released when they are unmapped.
    pub doomed: Vec<u16>,
    pub counts: PageCounts,
    /// Whether no frame can be freed until the state changes.
    is_stuck: bool,
    /// Whether faults had to wait since the last retry.
    has_waiting: bool,
    /// Whether the thread that keeps frames free is to end.
    pub is_ending: bool,
}

impl State {
    /// Whether the region in `slot` is in use.
    pub(crate) fn is_in_use(&self, slot: u16) -> bool {
        self.regions.values().any(|region| region.slot == slot)
    }
}

impl Moving {
    pub(crate) fn new(frames: u32) -> io::Result<Self> {
        let faults = Faults::new()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let again = eventfd(0, flags)?;
        let reserve = (frames as usize / 8).clamp(1, RESERVE_MAX);
        Ok(Self {
            faults,
            again,
            is_ending: AtomicBool::new(false),
            reserve,
            waiting: (frames as usize / 8).max(1),
        })
    }

    /// Watches anonymous memory, and drops its contents.
    ///
    /// # Safety
    /// As for [`Faults::watch`]; all earlier stores to the memory are lost.
    pub(crate) unsafe fn watch(&self, base: u64, len: u64) -> Result<(), Errno> {
        // In a child no thread would answer faults.
        keep_from_children(base, len)?;
        let (start, bytes) = (base as *mut _, len as usize);
        // SAFETY: the caller vouches for the memory. In a program that locks all its memory the
        // kernel has filled it with zeros, which must be dropped.
        unsafe {
            munlock(start, bytes)?;
            self.faults.watch(base, len)?;
            madvise(start, bytes, Advice::LinuxDontNeed)
        }
    }

    /// Makes the thread that answers faults retry those that had to wait.
    pub(crate) fn try_again(&self) {
        // A write to a full counter fails; then the counter is not zero and will be read.
        let _ = write(&self.again, &1_u64.to_ne_bytes());
    }
}

impl Shared {
    pub(crate) fn residency(&self) -> parking_lot::MappedMutexGuard<'_, Residency> {
        MutexGuard::map(self.state.lock(), |state| &mut state.residency)
    }

    pub(crate) fn new(
        frames: Frames<MappedPmem>,
        entries: &[Option<PageId>],
        moving: Option<Moving>,
    ) -> Self {
        let state = State {
            residency: Residency::new(entries),
            regions: BTreeMap::new(),
            doomed: Vec::new(),
            counts: PageCounts::default(),
            is_stuck: false,
            has_waiting: false,
            is_ending: false,
        };
        Self {
            frames,
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            moving,
        }
    }

    // --- loading pages ---------------------------------------------------------------

    /// Answers faults until the pool is dropped.
    pub(crate) fn answer_faults(&self, moving: &Moving) {
        let mut buf = vec![0; self.frames.page_bytes() as usize];
        let mut waiting = Vec::new();
        while !moving.is_ending.load(SeqCst) {
            let again = moving.faults.wait(&moving.again);
            let again = again.expect("faults can be waited for");
            let mut addresses = Vec::new();
            if again {
                let _ = read(&moving.again, &mut [0; 8]);
                std::mem::swap(&mut addresses, &mut waiting);
            }
            let told = moving.faults.read(|address| addresses.push(address));
            told.expect("faults can be read");
            addresses.retain(|address| !self.answer(moving, *address, &mut buf));
            waiting.append(&mut addresses);
        }
    }

    /// Answers a fault, unless it has to wait.
    fn answer(&self, moving: &Moving, address: u64, buf: &mut [u8]) -> bool {
        let mut state = self.state.lock();
        let region = state.regions.range(..=address).next_back();
        let region = region.map(|(_, region)| region.clone());
        let Some(region) = region.filter(|region| address - region.base < region.len) else {
            // The region has ended. The thread is woken, and its next access decides.
            moving.faults.wake(address & !4095, 4096);
            return true;
        };
        let page = region.page_at(address);
        let frame = match state.residency.fault(page) {
            Fault::Mapped => {
                self.wake(moving, &region, page);
                return true;
            }
            Fault::Map(frame) => {
                state.counts.mapped_again += 1;
                frame
            }
            Fault::Load(frame) => {
                // Other threads continue meanwhile: the disk may take long.
                let loaded = MutexGuard::unlocked(&mut state, || {
                    self.frames.load(frame, page, &*region, buf)
                });
                let is_loaded = loaded.is_ok();
                match loaded {
                    Ok(digest) => state.residency.loaded(frame, Some(digest)),
                    Err(PageError::File(_)) => state.residency.loaded(frame, None),
                    // The entry may be durable: another page in the frame would be lost.
                    Err(PageError::Pool(_)) => {
                        state.residency.not_mapped(frame);
                        region.fail(not_durable(Errno::IO));
                    }
                }
                state.counts.loaded += 1;
                self.done.notify_all();
                if !self.has_enough(moving, &state) {
                    self.call_for_work(&mut state);
                }
                if !is_loaded {
                    return self.lose(moving, &region, address);
                }
                frame
            }
            Fault::Later => {
                state.has_waiting = true;
                self.call_for_work(&mut state);
                return false;
            }
            Fault::Never => return self.lose(moving, &region, address),
        };
        if let Err(e) = self.map(&region, page, frame) {
            state.residency.not_mapped(frame);
            region.fail(not_durable(e));
            return self.lose(moving, &region, address);
        }
        drop(state);
        self.wake(moving, &region, page);
        true
    }

    fn call_for_work(&self, state: &mut State) {
        state.is_stuck = false;
        self.work.notify_one();
    }

    fn wake(&self, moving: &Moving, region: &RegionFile, page: PageId) {
        let (off, len) = region.extent(page.page);
        moving.faults.wake(region.base + off, len);
    }

    /// Maps the frame of a page at the page's address.
    fn map(&self, region: &RegionFile, page: PageId, frame: u32) -> Result<(), Errno> {
        let (off, len) = region.extent(page.page);
        let place = region.base + off;
        // SAFETY: the page's addresses, to which no thread has stored since the page was
        // evicted. The caller checked this, and holds the lock.
        unsafe {
            self.frames
                .pmem()
                .map_again(self.frames.at(frame), len, place, true)
        }?;
        // In a child the frame would be another page's by the time of a store. If the call
        // fails, the page is mapped regardless.
        let _ = keep_from_children(place, len);
        Ok(())
    }

    /// Maps zeros in place of a page that cannot be read, and marks its region. Returns false if
    /// the fault must be answered again.
    fn lose(&self, moving: &Moving, region: &RegionFile, address: u64) -> bool {
        region.lose(region.page_at(address).page);
        let page = address & !4095;
        match moving.faults.zero(page, 4096) {
            Err(Errno::AGAIN) => {
                moving.try_again();
                false
            }
            _ => {
                moving.faults.wake(page, 4096);
                true
            }
        }
    }

    // --- evicting pages --------------------------------------------------------------

    /// Keeps some frames free until the pool is dropped.
    pub(crate) fn keep_frames_free(&self, moving: &Moving) {
        let mut buf = vec![0; self.frames.page_bytes() as usize];
        loop {
            let mut state = self.state.lock();
            while !state.is_ending && (state.is_stuck || self.has_enough(moving, &state)) {
                self.work.wait(&mut state);
            }
            if state.is_ending {
                return;
            }
            let count = moving.reserve;
            // As many as will be evicted, besides those that wait for their second chance.
            let missing = (count + moving.waiting).saturating_sub(state.residency.waiting());
            let victims = state.residency.begin_unmap(missing);
            drop(state);
            let unmapped = self.unmap(moving, &victims);
            let batch = self.begin_write(moving, count);
            self.write_back(&batch, &mut buf);
            self.state.lock().is_stuck = unmapped == 0 && batch.is_empty();
            self.tell(moving);
            if unmapped < victims.len() {
                // The system lacked a resource.
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Wakes threads that wait for a change of state.
    fn tell(&self, moving: &Moving) {
        self.done.notify_all();
        if std::mem::take(&mut self.state.lock().has_waiting) {
            moving.try_again();
        }
    }

    fn begin_write(&self, moving: &Moving, most: usize) -> Vec<Victim> {
        let batch = self.state.lock().residency.begin_write(most);
        // Writing takes as long as a disk does; unmapped pages can be used again meanwhile.
        self.tell(moving);
        batch
    }

    fn has_enough(&self, moving: &Moving, state: &State) -> bool {
        state.residency.free() >= moving.reserve
    }

    fn region_of(&self, slot: u16) -> Option<Arc<RegionFile>> {
        let state = self.state.lock();
        let mut regions = state.regions.values();
        regions.find(|region| region.slot == slot).cloned()
    }

    /// Makes the pages of `victims` fault again. Returns the number that do.
    fn unmap(&self, moving: &Moving, victims: &[(u32, PageId)]) -> usize {
        if victims.is_empty() {
            return 0;
        }
        let mut watched = Watched::new(moving, victims.len(), self.frames.page_bytes());
        let take = |(_, page): &(u32, PageId)| {
            let (Some(region), Ok(watched)) = (self.region_of(page.slot), &mut watched) else {
                return false;
            };
            let (off, len) = region.extent(page.page);
            // SAFETY: a page of a region in use, at which a frame of the pool is mapped.
            unsafe { watched.put(region.base + off, len) }.is_ok()
        };
        let taken: Vec<bool> = victims.iter().map(take).collect();
        // Every store that reached a frame by the old mapping is visible from here on. (The
        // call fails only where regions cannot be used at all.)
        let _ = barrier();
        let mut state = self.state.lock();
        for ((frame, _), taken) in victims.iter().zip(&taken) {
            state.residency.unmapped(*frame, *taken);
        }
        taken.iter().filter(|taken| **taken).count()
    }

    /// Writes pages back, and frees the frames of those that were not used meanwhile.
    fn write_back(&self, batch: &[Victim], buf: &mut [u8]) {
        let (mut digests, mut count) = (Vec::new(), 0);
        let mut regions: BTreeMap<u16, Arc<RegionFile>> = BTreeMap::new();
        for victim in batch {
            let Victim {
                frame,
                page,
                digest,
            } = *victim;
            let Some(region) = self.region_of(page.slot) else {
                digests.push((frame, page.slot, None));
                continue;
            };
            let written = self
                .frames
                .write_back(frame, page.page, digest, &*region, buf);
            let digest = match written {
                Ok((is_written, digest)) => {
                    count += u64::from(is_written);
                    Some(digest)
                }
                Err(why) => {
                    self.not_written(&region, &why);
                    None
                }
            };
            digests.push((frame, page.slot, digest));
            regions.insert(page.slot, region);
        }
        regions.retain(|_, region| match self.frames.sync(&**region) {
            Ok(()) => true,
            Err(why) => {
                self.not_written(region, &why.into());
                false
            }
        });
        let mut state = self.state.lock();
        state.counts.written += count;
        let mut unused = Vec::new();
        for (frame, slot, digest) in digests {
            match digest.filter(|_| regions.contains_key(&slot)) {
                Some(digest) if state.residency.finish_write(frame, digest) => unused.push(frame),
                Some(_) => {}
                None => state.residency.fail_write(frame),
            }
        }
        drop(state);
        let released = self.frames.release(&unused);
        let mut state = self.state.lock();
        match released {
            Ok(()) => state.residency.released(&unused),
            // These frames are never free again: the entries in the table are unknown.
            Err(_) => self.fail_all(&mut state),
        }
        state.counts.released += unused.len() as u64;
    }

    fn not_written(&self, region: &RegionFile, why: &PageError) {
        let errno = match why {
            PageError::File(why) => why.raw_os_error(),
            PageError::Pool(_) => None,
        };
        region.fail(MediumError::NotDurable {
            errno: errno.unwrap_or(Errno::IO.raw_os_error()),
        });
        self.state.lock().residency.fail(region.slot);
    }

    fn fail_all(&self, state: &mut State) {
        let State {
            regions, residency, ..
        } = state;
        for region in regions.values() {
            region.fail(not_durable(Errno::IO));
            residency.fail(region.slot);
        }
    }

    // --- ending regions --------------------------------------------------------------

    pub(crate) fn detach(&self, region: &RegionFile) {
        let mut state = self.state.lock();
        state.residency.end(region.slot);
        while state.residency.is_busy(region.slot) {
            self.done.wait(&mut state);
        }
        state.regions.remove(&region.base);
        state.residency.detach(region.slot);
        let is_doomed = state.doomed.contains(&region.slot);
        if is_doomed {
            // If it fails, it also fails for the caller that removes the region.
            let _ = self.forget(&mut state, region.slot);
        }
    }

    pub(crate) fn forget(&self, state: &mut State, slot: u16) -> Result<(), MediumError> {
        let frames = state.residency.forget(slot);
        if frames.is_empty() {
            return Ok(());
        }
        self.frames.release(&frames)?;
        state.residency.released(&frames);
        if let Some(moving) = &self.moving {
            moving.try_again();
        }
        Ok(())
    }
}

/// Watched memory without contents, which is moved to the addresses of frames.
struct Watched {
    /// The part that has not been moved yet.
    left: Range<u64>,
    page_bytes: u64,
}

impl Watched {
    fn new(moving: &Moving, pages: usize, page_bytes: u64) -> Result<Self, Errno> {
        let len = pages as u64 * page_bytes;
        let base = anonymous(len)?;
        let left = base..base + len;
        let watched = Self { left, page_bytes };
        // SAFETY: no other code has the addresses yet, and faults at its later place are
        // answered.
        unsafe { moving.watch(base, len) }?;
        Ok(watched)
    }

    /// Moves `len` bytes to `place`, in place of the mapping there, at once for all threads.
    ///
    /// # Safety
    /// Accesses to `place` must expect a fault that is answered later.
    unsafe fn put(&mut self, place: u64, len: u64) -> Result<(), Errno> {
        let piece = self.left.start as *mut _;
        let bytes = len as usize;
        // SAFETY: the piece is ours and of that length; the caller vouches for `place`.
        unsafe { mremap_fixed(piece, bytes, bytes, MremapFlags::MAYMOVE, place as *mut _) }?;
        // Another mapping may be at its old address by now.
        let rest = self.left.start + len..self.left.start + self.page_bytes;
        self.left.start = rest.end;
        unmap(&rest);
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        unmap(&self.left);
    }
}

/// Maps memory without contents, for which the system need not reserve room.
fn anonymous(len: u64) -> Result<u64, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping that replaces nothing.
    Ok(unsafe { mmap_anonymous(null_mut(), len as usize, prot, flags) }? as u64)
}

/// Unmaps addresses that no code uses.
fn unmap(range: &Range<u64>) {
    if !range.is_empty() {
        let len = (range.end - range.start) as usize;
        // SAFETY: a part of a mapping of [`Watched`] that was not moved.
        let _ = unsafe { munmap(range.start as *mut _, len) };
    }
}

fn not_durable(e: Errno) -> MediumError {
    MediumError::NotDurable {
        errno: e.raw_os_error(),
    }
}
