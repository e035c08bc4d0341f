//! A pool in a file, and the threads that move pages.
//!
//! One thread answers faults: it brings the page into a free frame, or finds it in one, and
//! maps the frame. Another keeps some frames free. Their order of locks: each takes the one
//! lock for moments only; the first holds it while it maps a frame, so that the second does
//! not take away what is not there yet; the second holds it never while it moves memory, since
//! that waits for the first, which has to read of it.

use super::PoolError;
use super::frames::{Frames, FramesError, PageError, PageId, PageStore, check_layout, count_in};
use super::region::{Paged, RegionFile};
use super::residency::{Fault, Residency, Victim};
use super::userfaultfd::Faults;
use crate::sigbus::Marker;
use crate::{EffectiveDurability, MapOptions, MappedPmem, MediumError, rcu};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read, write};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munlock,
    munmap,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a page, if a pool does not need larger ones to have few enough.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Bytes of the largest page that a pool is given unasked.
const PAGE_BYTES_MAX: u64 = 2 << 20;
/// Fewest frames: one instruction may need several pages at a time.
const FRAMES_LEAST: u64 = 16;
/// Mappings that are left to the rest of the program.
const OTHER_MAPPINGS: u64 = 4096;
/// Most frames that are kept free, and most that are unmapped or written back at a time.
const RESERVE_MAX: usize = 32;
/// The time until it is tried again to unmap pages, where the system did not let us.
const PAUSE: Duration = Duration::from_millis(10);

/// Frames in persistent memory for the pages of regions that are larger.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// How many pages have been moved since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCounts {
    /// Read from files into frames.
    pub loaded: u64,
    /// Mapped again, since they were still in their frames.
    pub mapped_again: u64,
    /// Written to files.
    pub written: u64,
    /// Removed from their frames, written or not.
    pub released: u64,
}

#[derive(Default)]
struct Counters {
    loaded: AtomicU64,
    mapped_again: AtomicU64,
    written: AtomicU64,
    released: AtomicU64,
}

/// What the threads share.
pub(super) struct Shared {
    path: PathBuf,
    pub(super) frames: Frames<MappedPmem>,
    state: Mutex<State>,
    /// For the thread that keeps frames free: there is something to do.
    work: Condvar,
    /// For those who wait for a region: something was done.
    done: Condvar,
    counters: Counters,
    moves_pages: Option<Moving>,
    is_synced: bool,
}

/// What it takes to move pages.
struct Moving {
    faults: Faults,
    /// For the thread that answers faults: those that had to wait can be tried again.
    again: OwnedFd,
    /// Faults need not be answered any more.
    is_ending: AtomicBool,
    /// Frames to keep free.
    reserve: usize,
    /// Pages that are unmapped and wait for their second chance.
    waiting: usize,
}

struct State {
    residency: Residency,
    /// The regions in use, by their first addresses.
    regions: BTreeMap<u64, Arc<RegionFile>>,
    /// Regions whose frames are to go with them.
    doomed: Vec<u16>,
    /// Nothing can be freed until something happens.
    is_stuck: bool,
    /// Faults had to wait since they were last tried again.
    has_waiting: bool,
    /// Frames need not be kept free any more.
    is_ending: bool,
}

impl Pool {
    /// Makes a pool of `bytes` in a file at `path`; what was in it is lost. Pages are of
    /// `page_bytes`, or of as few as this system can map.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn create(
        path: impl AsRef<Path>,
        bytes: u64,
        page_bytes: Option<u64>,
        map: &MapOptions,
    ) -> Result<(), PoolError> {
        let path = path.as_ref();
        let page_bytes = page_bytes.unwrap_or_else(|| page_bytes_for(bytes));
        let system = rustix::param::page_size() as u64;
        let least = match page_bytes >= system {
            true => FRAMES_LEAST,
            false => u64::MAX, // No such page can be mapped.
        };
        let wrong = |why| PoolError::of(path, why);
        check_layout(bytes, page_bytes, least).map_err(wrong)?;
        crate::create_file(path, bytes, crate::Reserve::Whole)?;
        let memory = MappedPmem::open(path, map)?;
        Frames::<MappedPmem>::format(&memory, page_bytes, least, fastrand::u64(..)).map_err(wrong)
    }

    /// Opens the pool at `path`, with all pages that are in it. If it is to be mapped read
    /// only, no pages are moved.
    ///
    /// # Errors
    /// [`PoolError`]; of these [`OpenError::InUse`](crate::OpenError::InUse) names who has it
    /// open.
    pub fn open(path: impl AsRef<Path>, map: &MapOptions) -> Result<Self, PoolError> {
        let path = path.as_ref();
        let memory = MappedPmem::open(path, map)?;
        // What survives no power failure needs no disk to wait for; except to measure that.
        let is_synced = memory.durability() != EffectiveDurability::Process || map.force_flush;
        let opened = Frames::open(memory);
        let (frames, entries) = opened.map_err(|why| PoolError::of(path, why))?;
        if frames.page_bytes() < rustix::param::page_size() as u64 {
            let what = "its pages are smaller than this system's";
            return Err(PoolError::of(path, FramesError::NotAPool { what }));
        }
        let moves_pages = match map.read_only {
            true => None,
            false => Some(Moving::new(path, frames.count())?),
        };
        let state = State {
            residency: Residency::new(&entries),
            regions: BTreeMap::new(),
            doomed: Vec::new(),
            is_stuck: false,
            has_waiting: false,
            is_ending: false,
        };
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            frames,
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            counters: Counters::default(),
            moves_pages,
            is_synced,
        });
        let mut pool = Self {
            shared,
            threads: Vec::new(),
        };
        if pool.shared.moves_pages.is_some() {
            pool.start("page-in", Shared::answer_faults)?;
            pool.start("page-out", Shared::keep_frames_free)?;
        }
        Ok(pool)
    }

    fn start(
        &mut self,
        name: &str,
        run: impl Fn(&Shared, &Moving) + Send + 'static,
    ) -> Result<(), PoolError> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || {
            let ending = EndTogether;
            if let Some(moving) = &shared.moves_pages {
                run(&shared, moving);
            }
            std::mem::forget(ending);
        });
        let thread = thread.map_err(|source| PoolError::System {
            doing: "start a thread for",
            path: self.shared.path.clone(),
            source,
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// What tells it from other pools.
    pub fn id(&self) -> u64 {
        self.shared.frames.id()
    }

    /// The file's name as it was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.shared.frames.page_bytes()
    }

    /// How many pages it has room for.
    pub fn frames(&self) -> u32 {
        self.shared.frames.count()
    }

    /// How many of its frames have a page.
    pub fn frames_in_use(&self) -> u32 {
        self.frames() - self.shared.residency().free() as u32
    }

    /// How many pages have been moved.
    pub fn counts(&self) -> PageCounts {
        let Counters {
            loaded,
            mapped_again,
            written,
            released,
        } = &self.shared.counters;
        PageCounts {
            loaded: loaded.load(Relaxed),
            mapped_again: mapped_again.load(Relaxed),
            written: written.load(Relaxed),
            released: released.load(Relaxed),
        }
    }

    /// Whether a directory knows of the pool.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn is_claimed(&self) -> Result<bool, PoolError> {
        let claimed = self.shared.frames.is_claimed();
        claimed.map_err(|why| PoolError::of(self.path(), why.into()))
    }

    /// Says that a directory knows of the pool. Durable at return.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn claim(&self) -> Result<(), PoolError> {
        let claimed = self.shared.frames.claim();
        claimed.map_err(|why| PoolError::of(self.path(), why.into()))
    }

    /// Has the pages of the region in `slot` go from their frames when it is unmapped.
    pub fn doom(&self, slot: u16) {
        self.shared.state.lock().doomed.push(slot);
    }

    /// Removes all pages of the region in `slot`, which is not in use, from their frames: the
    /// region is to be removed. Durable at return.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn forget(&self, slot: u16) -> Result<(), PoolError> {
        let mut state = self.shared.state.lock();
        state.doomed.retain(|doomed| *doomed != slot);
        let forgotten = self.shared.forget(&mut state, slot);
        forgotten.map_err(|why| PoolError::of(self.path(), why.into()))
    }

    /// Checks that all pages are of regions that are in use.
    ///
    /// # Errors
    /// [`PoolError`], which names the entry of one that is not.
    pub fn check_pages(&self) -> Result<(), PoolError> {
        let Some((frame, page)) = self.shared.residency().stray() else {
            return Ok(());
        };
        let PageId { slot, page } = page;
        let what = format!("it is for page {page} of region {slot}, which there is not");
        Err(PoolError::of(
            self.path(),
            self.shared.frames.damaged(frame, what),
        ))
    }

    /// Uses the region in `slot`: memory that is all to be watched, from `base` on, for a file.
    ///
    /// # Safety
    /// `base..base + len` must be anonymous memory to which nobody has stored yet, that stays
    /// until [`Paged::detach`] returns.
    pub(crate) unsafe fn attach(
        self: &Arc<Self>,
        slot: u16,
        base: NonNull<u8>,
        len: u64,
        file: &Arc<File>,
        marker: Marker,
    ) -> Result<Paged, PoolError> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        self.check_extent(&state.residency, slot, len)?;
        let base = base.as_ptr() as u64;
        let region = Arc::new(RegionFile {
            slot,
            base,
            len,
            page_bytes: self.page_bytes(),
            file: file.clone(),
            is_synced: shared.is_synced,
            marker,
            failed: OnceLock::new(),
        });
        let refused = |e: Errno| self.system("move pages with", e);
        let in_use = state.regions.values().any(|other| other.slot == slot);
        let Some(moving) = shared.moves_pages.as_ref().filter(|_| !in_use) else {
            return Err(refused(Errno::BUSY));
        };
        // Whoever was here before may have had no need of that.
        let synced = region.sync();
        synced.map_err(|e| refused(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        rcu::prepare().map_err(refused)?;
        // SAFETY: nobody has stored there; the thread that answers is there as long as the
        // pool, which `Paged` keeps.
        unsafe { moving.watch(base, len) }.map_err(refused)?;
        state.residency.attach(slot);
        state.regions.insert(base, region.clone());
        let pool = self.clone();
        Ok(Paged { pool, region })
    }

    /// Maps the pages of the region in `slot` that are in frames over its file, read only.
    ///
    /// # Safety
    /// `base..base + len` must be a mapping that is the caller's.
    pub(crate) unsafe fn overlay(&self, slot: u16, base: u64, len: u64) -> Result<(), PoolError> {
        let shared = &*self.shared;
        let residency = shared.residency();
        self.check_extent(&residency, slot, len)?;
        for (frame, page) in residency.frames_of(slot) {
            let off = u64::from(page.page) * self.page_bytes();
            let bytes = self.page_bytes().min(len - off);
            let memory = shared.frames.pmem();
            // SAFETY: inside the caller's mapping, and of the size of a frame at most.
            let mapped =
                unsafe { memory.map_again(shared.frames.at(frame), bytes, base + off, false) };
            mapped.map_err(|e| self.system("map frames of", e))?;
        }
        Ok(())
    }

    /// Whether all pages of a region of so many bytes are inside it.
    fn check_extent(&self, residency: &Residency, slot: u16, len: u64) -> Result<(), PoolError> {
        let pages = len.div_ceil(self.page_bytes());
        if pages > u64::from(u32::MAX) {
            return Err(self.system("move so many pages with", Errno::FBIG));
        }
        let mut there = residency.frames_of(slot);
        let Some((frame, page)) = there.find(|(_, page)| u64::from(page.page) >= pages) else {
            return Ok(());
        };
        let page = page.page;
        let what = format!("region {slot} has {pages} pages, and no page {page}");
        let why = self.shared.frames.damaged(frame, what);
        Err(PoolError::of(self.path(), why))
    }

    fn system(&self, doing: &'static str, e: Errno) -> PoolError {
        PoolError::System {
            doing,
            path: self.path().to_owned(),
            source: e.into(),
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What its fence is worth.
    pub(crate) fn memory(&self) -> &MappedPmem {
        self.shared.frames.pmem()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(moving) = &self.shared.moves_pages else {
            return;
        };
        self.shared.state.lock().is_ending = true;
        self.shared.work.notify_all();
        // The one that keeps frames free may be waiting for the other, never the reverse.
        while let Some(thread) = self.threads.pop() {
            if self.threads.is_empty() {
                moving.is_ending.store(true, SeqCst);
                moving.try_again();
            }
            let _ = thread.join();
        }
    }
}

/// Ends the process with a thread that others wait for: they would wait for ever.
struct EndTogether;

impl Drop for EndTogether {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Moving {
    fn new(path: &Path, frames: u32) -> Result<Self, PoolError> {
        let most = frames_that_can_be_mapped();
        if u64::from(frames) > most {
            return Err(PoolError::TooManyFrames {
                path: path.to_owned(),
                frames,
                most,
                needed: u64::from(frames) * 2 + OTHER_MAPPINGS,
            });
        }
        let failed = |doing| {
            move |source| PoolError::System {
                doing,
                path: path.to_owned(),
                source,
            }
        };
        let faults = Faults::new().map_err(|source| PoolError::NoFaults {
            path: path.to_owned(),
            source,
        })?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let again = eventfd(0, flags).map_err(|e| failed("make an event for")(e.into()))?;
        let reserve = (frames as usize / 8).clamp(1, RESERVE_MAX);
        Ok(Self {
            faults,
            again,
            is_ending: AtomicBool::new(false),
            reserve,
            waiting: (frames as usize / 8).max(1),
        })
    }

    /// Watches anonymous memory, in which there is nothing from then on.
    ///
    /// # Safety
    /// As for [`Faults::watch`]; what anybody stored there is lost.
    unsafe fn watch(&self, base: u64, len: u64) -> Result<(), Errno> {
        keep_from_children(base, len)?;
        let (start, bytes) = (base as *mut _, len as usize);
        // SAFETY: the caller's promise. A program that locks all its memory has had it filled
        // with zeros, which are to go.
        unsafe {
            munlock(start, bytes)?;
            self.faults.watch(base, len)?;
            madvise(start, bytes, Advice::LinuxDontNeed)
        }
    }

    /// Has faults that had to wait tried again.
    fn try_again(&self) {
        // It fails if it has been said very often and not read once: then it will be.
        let _ = write(&self.again, &1_u64.to_ne_bytes());
    }
}

impl Shared {
    pub(super) fn residency(&self) -> parking_lot::MappedMutexGuard<'_, Residency> {
        MutexGuard::map(self.state.lock(), |state| &mut state.residency)
    }

    // --- pages come -----------------------------------------------------------------

    /// Answers faults until the pool is dropped.
    fn answer_faults(&self, moving: &Moving) {
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
            // Nobody's any more: another try tells who touched it.
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
                self.counters.mapped_again.fetch_add(1, Relaxed);
                frame
            }
            Fault::Load(frame) => {
                // Others go on meanwhile: it may take as long as a disk does.
                let digest = MutexGuard::unlocked(&mut state, || {
                    let loaded = self.frames.load(frame, page, &*region, buf);
                    loaded.map_err(|why| self.not_loaded(&region, &why)).ok()
                });
                state.residency.loaded(frame, digest);
                self.counters.loaded.fetch_add(1, Relaxed);
                self.done.notify_all();
                if !self.has_enough(moving, &state) {
                    self.call_for_work(&mut state);
                }
                if digest.is_none() {
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

    /// Makes a page be what is in a frame.
    fn map(&self, region: &RegionFile, page: PageId, frame: u32) -> Result<(), Errno> {
        let (off, len) = region.extent(page.page);
        let place = region.base + off;
        // SAFETY: the page's addresses, at which there is nothing that anybody stored to: the
        // caller asked, and holds the lock.
        unsafe {
            self.frames
                .pmem()
                .map_again(self.frames.at(frame), len, place, true)
        }?;
        // No reason to do without the page.
        let _ = keep_from_children(place, len);
        Ok(())
    }

    /// Says why a page cannot be had.
    fn not_loaded(&self, region: &RegionFile, why: &PageError) {
        if let PageError::Pool(_) = why {
            region.fail(not_durable(Errno::IO));
        }
    }

    /// Gives zeros in place of what cannot be had, and lets their reader know. Whether it
    /// could.
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

    // --- pages go -------------------------------------------------------------------

    /// Keeps some frames free until the pool is dropped.
    fn keep_frames_free(&self, moving: &Moving) {
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
            // As many as go, besides those that keep their chance.
            let missing = (count + moving.waiting).saturating_sub(state.residency.waiting());
            let victims = state.residency.begin_unmap(missing);
            drop(state);
            let unmapped = self.unmap(moving, &victims);
            let batch = self.begin_write(moving, count);
            self.write_back(&batch, &mut buf);
            self.state.lock().is_stuck = unmapped == 0 && batch.is_empty();
            self.tell(moving);
            if unmapped < victims.len() {
                // The system was short of something.
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Lets those go on who wait for what was done.
    fn tell(&self, moving: &Moving) {
        self.done.notify_all();
        if std::mem::take(&mut self.state.lock().has_waiting) {
            moving.try_again();
        }
    }

    fn begin_write(&self, moving: &Moving, most: usize) -> Vec<Victim> {
        let batch = self.state.lock().residency.begin_write(most);
        // Writing takes as long as a disk does; those that were unmapped can be used again.
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

    /// Makes the pages of `victims` fault again. How many of them do.
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
        // Every store that reached a frame through what was there is to be seen from here on.
        // (Refused only where it was never allowed.)
        let _ = rcu::barrier();
        let mut state = self.state.lock();
        for ((frame, _), taken) in victims.iter().zip(&taken) {
            state.residency.unmapped(*frame, *taken);
        }
        taken.iter().filter(|taken| **taken).count()
    }

    /// Writes pages back, and frees the frames of those that were not used meanwhile.
    fn write_back(&self, batch: &[Victim], buf: &mut [u8]) {
        let mut digests = Vec::new();
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
                    self.counters.written.fetch_add(is_written.into(), Relaxed);
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
        let mut unused = Vec::new();
        for (frame, slot, digest) in digests {
            match digest.filter(|_| regions.contains_key(&slot)) {
                Some(digest) if state.residency.written(frame, digest) => unused.push(frame),
                Some(_) => {}
                None => state.residency.not_written(frame),
            }
        }
        drop(state);
        let released = self.frames.release(&unused);
        let mut state = self.state.lock();
        match released {
            Ok(()) => state.residency.released(&unused),
            // Never again free: nobody knows what the table says.
            Err(_) => self.fail_all(&mut state),
        }
        self.counters
            .released
            .fetch_add(unused.len() as u64, Relaxed);
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

    // --- regions go -----------------------------------------------------------------

    pub(super) fn detach(&self, region: &RegionFile) {
        let mut state = self.state.lock();
        state.residency.end(region.slot);
        while state.residency.is_busy(region.slot) {
            self.done.wait(&mut state);
        }
        state.regions.remove(&region.base);
        state.residency.detach(region.slot);
        let is_doomed = state.doomed.contains(&region.slot);
        if is_doomed {
            // If it fails, so it does again for who removes the region.
            let _ = self.forget(&mut state, region.slot);
        }
    }

    fn forget(&self, state: &mut State, slot: u16) -> Result<(), MediumError> {
        let frames = state.residency.forget(slot);
        if frames.is_empty() {
            return Ok(());
        }
        self.frames.release(&frames)?;
        state.residency.released(&frames);
        if let Some(moving) = &self.moves_pages {
            moving.try_again();
        }
        Ok(())
    }
}

/// Watched memory at which there is nothing, to be put where frames were.
struct Watched {
    /// What is left of it.
    left: std::ops::Range<u64>,
    page_bytes: u64,
}

impl Watched {
    fn new(moving: &Moving, pages: usize, page_bytes: u64) -> Result<Self, Errno> {
        let len = pages as u64 * page_bytes;
        let base = anonymous(len)?;
        let left = base..base + len;
        let watched = Self { left, page_bytes };
        // SAFETY: nobody knows of it yet; where it goes, there are answers.
        unsafe { moving.watch(base, len) }?;
        Ok(watched)
    }

    /// Puts `len` bytes of it at `place`, instead of what is there, at once for all threads.
    ///
    /// # Safety
    /// Whoever touches `place` is ready to find nothing there.
    unsafe fn put(&mut self, place: u64, len: u64) -> Result<(), Errno> {
        let piece = self.left.start as *mut _;
        let bytes = len as usize;
        // SAFETY: the piece is ours, and as long; the rest is the caller's promise.
        unsafe { mremap_fixed(piece, bytes, bytes, MremapFlags::MAYMOVE, place as *mut _) }?;
        // Where it was may be somebody else's by now.
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

/// Memory at which there is nothing, and which the system need not have room for.
fn anonymous(len: u64) -> Result<u64, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping that replaces nothing.
    Ok(unsafe { mmap_anonymous(null_mut(), len as usize, prot, flags) }? as u64)
}

/// Ends what nobody reaches.
fn unmap(range: &std::ops::Range<u64>) {
    if !range.is_empty() {
        let len = (range.end - range.start) as usize;
        // SAFETY: a part of a mapping of [`Watched`], that was not put anywhere.
        let _ = unsafe { munmap(range.start as *mut _, len) };
    }
}

/// Leaves memory out of processes that are forked: in them nobody would answer, and a frame
/// would be another page's by the time they store to it.
fn keep_from_children(start: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: it changes no bytes in this process.
    unsafe { madvise(start as *mut _, len as usize, Advice::LinuxDontFork) }
}

fn not_durable(e: Errno) -> MediumError {
    MediumError::NotDurable {
        errno: e.raw_os_error(),
    }
}

/// How many frames this system can map apart from each other, each with a gap behind it.
fn frames_that_can_be_mapped() -> u64 {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    // What Linux begins with.
    limit.unwrap_or(65_530).saturating_sub(OTHER_MAPPINGS) / 2
}

/// Bytes of pages of which a pool has few enough.
fn page_bytes_for(bytes: u64) -> u64 {
    let most = frames_that_can_be_mapped();
    let mut page_bytes = PAGE_BYTES;
    while page_bytes < PAGE_BYTES_MAX && count_in(bytes, page_bytes).is_some_and(|n| n > most) {
        page_bytes *= 2;
    }
    page_bytes
}
