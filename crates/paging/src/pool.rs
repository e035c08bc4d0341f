//! A pool in a file, and the regions that use it.

use crate::PoolError;
use crate::frames::{Frames, FramesError, PageId, PageStore, check_layout, count_in};
use crate::moving::{Moving, PageCounts, Shared};
use crate::region::RegionFile;
use crate::residency::Residency;
use medium::pager::{Flushing, PagedRegion, Pager, PagerError, Unpaged, prepare_barrier};
use medium::{
    EffectiveDurability, MapOptions, MappedPmem, MediumError, Reserve, create_private_file,
    without_signals,
};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Bytes of a page, unless a pool needs larger ones to have few enough.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Bytes of the largest page that a pool chooses by itself.
const PAGE_BYTES_MAX: u64 = 2 << 20;
/// The least number of frames: one instruction may need several pages at a time.
const FRAMES_LEAST: u64 = 16;
/// Mappings that are left to the rest of the program.
const OTHER_MAPPINGS: u64 = 4096;

/// Frames in persistent memory, for the pages of larger regions.
pub struct Pool {
    path: PathBuf,
    /// Whether files must survive a power failure.
    is_synced: bool,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A region in use, as the interface for its mapping.
struct Paged {
    pool: Arc<Pool>,
    region: Arc<RegionFile>,
}

impl Pool {
    /// Makes a pool of `bytes` in a file at `path`, whose contents are lost. Pages have
    /// `page_bytes`, or the smallest size of which this system can map all frames.
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
        create_private_file(path, bytes, Reserve::Whole)?;
        let memory = MappedPmem::open(path, map)?;
        Frames::<MappedPmem>::format(&memory, page_bytes, least, fastrand::u64(..)).map_err(wrong)
    }

    /// Opens the pool at `path`, with all pages in it. If the mapping is read-only, no pages
    /// are moved.
    ///
    /// # Errors
    /// [`PoolError`]; of these [`OpenError::InUse`](medium::OpenError::InUse) names the process
    /// that has the pool open.
    pub fn open(path: impl AsRef<Path>, map: &MapOptions) -> Result<Self, PoolError> {
        let path = path.as_ref();
        let memory = MappedPmem::open(path, map)?;
        memory.keep_from_children()?;
        // With durability `process` no disk is waited for, except to measure that.
        let is_synced = memory.durability() != EffectiveDurability::Process || map.force_flush;
        let opened = Frames::open(memory);
        let (frames, entries) = opened.map_err(|why| PoolError::of(path, why))?;
        if frames.page_bytes() < rustix::param::page_size() as u64 {
            let what = "its pages are smaller than this system's";
            return Err(PoolError::of(path, FramesError::NotAPool { what }));
        }
        let moving = match map.read_only {
            true => None,
            false => Some(moving(path, frames.count())?),
        };
        let mut pool = Self {
            path: path.to_owned(),
            is_synced,
            shared: Arc::new(Shared::new(frames, &entries, moving)),
            threads: Vec::new(),
        };
        if pool.shared.moving.is_some() {
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
        let thread = without_signals(|| {
            thread.spawn(move || {
                let ending = EndTogether;
                if let Some(moving) = &shared.moving {
                    run(&shared, moving);
                }
                std::mem::forget(ending);
            })
        });
        let thread = thread.map_err(|source| PoolError::System {
            doing: "start a thread for",
            path: self.path.clone(),
            source,
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The id, which distinguishes the pool from others.
    pub fn id(&self) -> u64 {
        self.shared.frames.id()
    }

    /// The file's name with which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.shared.frames.page_bytes()
    }

    /// The number of frames.
    pub fn frames(&self) -> u32 {
        self.shared.frames.count()
    }

    /// The number of frames with a page.
    pub fn frames_in_use(&self) -> u32 {
        self.frames() - self.shared.residency().free() as u32
    }

    /// The counts of moved pages.
    pub fn counts(&self) -> PageCounts {
        self.shared.state.lock().counts
    }

    /// Whether a directory has recorded the pool.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn is_claimed(&self) -> Result<bool, PoolError> {
        let claimed = self.shared.frames.is_claimed();
        claimed.map_err(|why| PoolError::of(self.path(), why.into()))
    }

    /// Records that a directory uses the pool. Durable at return.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn claim(&self) -> Result<(), PoolError> {
        let claimed = self.shared.frames.claim();
        claimed.map_err(|why| PoolError::of(self.path(), why.into()))
    }

    /// Unlocks the file in a child made by `fork`, which inherits its lock but not its memory.
    /// The parent's lock stays.
    ///
    /// # Safety
    /// The pool must not be used or dropped in this process any more.
    pub unsafe fn abandon(&self) {
        // SAFETY: the caller promises that the pool is not used any more.
        unsafe { self.shared.frames.pmem().close_files() };
    }

    /// Makes the pages of the region in `slot` leave their frames when it is unmapped.
    pub fn doom(&self, slot: u16) {
        self.shared.state.lock().doomed.push(slot);
    }

    /// Removes all pages of the region in `slot` from their frames, because the region is to be
    /// removed. It must not be in use. Durable at return.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn forget(&self, slot: u16) -> Result<(), PoolError> {
        let mut state = self.shared.state.lock();
        state.doomed.retain(|doomed| *doomed != slot);
        if state.is_in_use(slot) {
            return Err(self.system("remove a region in use from", Errno::BUSY));
        }
        let forgotten = self.shared.forget(&mut state, slot);
        forgotten.map_err(|why| PoolError::of(self.path(), why.into()))
    }

    /// Checks that every page belongs to a region in a slot that is `known`.
    ///
    /// # Errors
    /// [`PoolError`], which names the entry of a page that does not.
    pub fn check_pages(&self, known: impl Fn(u16) -> bool) -> Result<(), PoolError> {
        let Some((frame, page)) = self.shared.residency().stray(known) else {
            return Ok(());
        };
        let PageId { slot, page } = page;
        let what = format!("it is for page {page} of region {slot}, which does not exist");
        Err(PoolError::of(
            self.path(),
            self.shared.frames.damaged(frame, what),
        ))
    }

    /// Starts to page a region: all its memory is watched from now on.
    ///
    /// # Safety
    /// As for [`Pager::attach`].
    unsafe fn use_region(self: Arc<Self>, region: Unpaged) -> Result<Paged, PoolError> {
        let Unpaged { slot, len, .. } = region;
        let base = region.base.as_ptr() as u64;
        let region = Arc::new(RegionFile {
            slot,
            base,
            len,
            page_bytes: self.page_bytes(),
            file: region.file,
            is_synced: self.is_synced,
            marker: region.marker,
            failed: OnceLock::new(),
        });
        let refused = |e: Errno| self.system("move pages with", e);
        // The previous process may have used a durability that does not synchronise.
        let synced = region.sync();
        synced.map_err(|e| refused(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        prepare_barrier().map_err(refused)?;
        let mut state = self.shared.state.lock();
        self.check_extent(&state.residency, slot, len)?;
        let in_use = state.is_in_use(slot);
        let Some(moving) = self.shared.moving.as_ref().filter(|_| !in_use) else {
            return Err(refused(Errno::BUSY));
        };
        // SAFETY: nothing was stored there. The thread that answers faults runs until the pool
        // ends, which `Paged` keeps alive.
        unsafe { moving.watch(base, len) }.map_err(refused)?;
        state.residency.attach(slot);
        state.regions.insert(base, region.clone());
        drop(state);
        Ok(Paged { pool: self, region })
    }

    /// Maps the pages of the region in `slot` that are in frames over its file, read-only.
    ///
    /// # Safety
    /// As for [`Pager::overlay`].
    unsafe fn map_frames(&self, slot: u16, base: u64, len: u64) -> Result<(), PoolError> {
        let shared = &*self.shared;
        let residency = shared.residency();
        self.check_extent(&residency, slot, len)?;
        for (frame, page) in residency.frames_of(slot) {
            let off = u64::from(page.page) * self.page_bytes();
            let bytes = self.page_bytes().min(len - off);
            let memory = shared.frames.pmem();
            // SAFETY: inside the caller's mapping, and at most the size of a frame.
            let mapped =
                unsafe { memory.map_again(shared.frames.at(frame), bytes, base + off, false) };
            mapped.map_err(|e| self.system("map frames of", e))?;
        }
        Ok(())
    }

    /// Checks that all pages of a region of `len` bytes are inside it.
    fn check_extent(&self, residency: &Residency, slot: u16, len: u64) -> Result<(), PoolError> {
        let pages = len.div_ceil(self.page_bytes());
        if pages > u64::from(u32::MAX) {
            return Err(self.system("move that many pages with", Errno::FBIG));
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
}

impl Pager for Pool {
    fn flushing(&self) -> Flushing {
        self.shared.frames.pmem().flushing()
    }

    unsafe fn attach(self: Arc<Self>, region: Unpaged) -> Result<Box<dyn PagedRegion>, PagerError> {
        // SAFETY: the caller vouches for the region.
        let paged = unsafe { self.use_region(region) }?;
        Ok(Box::new(paged))
    }

    unsafe fn overlay(&self, slot: u16, base: u64, len: u64) -> Result<(), PagerError> {
        // SAFETY: the caller vouches for the mapping.
        Ok(unsafe { self.map_frames(slot, base, len) }?)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(moving) = &self.shared.moving else {
            return;
        };
        self.shared.state.lock().is_ending = true;
        self.shared.work.notify_all();
        // The thread that keeps frames free may be waiting for the other, never the reverse.
        while let Some(thread) = self.threads.pop() {
            if self.threads.is_empty() {
                moving.is_ending.store(true, SeqCst);
                moving.try_again();
            }
            let _ = thread.join();
        }
    }
}

impl PagedRegion for Paged {
    fn mark(&self, off: u64, len: u64) {
        let frames = &self.pool.shared.frames;
        if len == 0 || !frames.pmem().has_write_back() {
            return;
        }
        // After the stores: their page is now in a frame, or durable in the file.
        fence(SeqCst);
        let residency = self.pool.shared.residency();
        let page_bytes = frames.page_bytes();
        let (first, last) = (off / page_bytes, (off + len - 1) / page_bytes);
        for page in first..=last {
            let id = PageId {
                slot: self.region.slot,
                page: page as u32,
            };
            let Some(frame) = residency.frame_of(id) else {
                continue;
            };
            let start = off.max(page * page_bytes);
            let end = (off + len).min((page + 1) * page_bytes);
            frames
                .pmem()
                .mark(frames.at(frame) + start % page_bytes, end - start);
        }
    }

    fn sync_marked(&self) -> Result<(), MediumError> {
        let synced = self.pool.shared.frames.pmem().complete_fence();
        // The pool's offsets are not those of the region.
        synced.map_err(|why| match why {
            MediumError::NotDurable { .. } => why,
            MediumError::OutOfRange { .. }
            | MediumError::Unreadable { .. }
            | MediumError::Denied { .. }
            | MediumError::PowerCut => MediumError::NotDurable {
                errno: Errno::IO.raw_os_error(),
            },
        })?;
        self.region.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        self.pool.shared.detach(&self.region);
    }
}

/// Ends the process if a thread on which others wait panics: they would wait forever.
struct EndTogether;

impl Drop for EndTogether {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The means of moving pages through `frames` frames.
fn moving(path: &Path, frames: u32) -> Result<Moving, PoolError> {
    let most = frames_that_can_be_mapped();
    if u64::from(frames) > most {
        return Err(PoolError::TooManyFrames {
            path: path.to_owned(),
            frames,
            most,
            needed: u64::from(frames) * 2 + OTHER_MAPPINGS,
        });
    }
    Moving::new(frames).map_err(|source| PoolError::NoFaults {
        path: path.to_owned(),
        source,
    })
}

/// The number of frames that this system can map apart from each other, with gaps.
fn frames_that_can_be_mapped() -> u64 {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    // Linux's default.
    limit.unwrap_or(65_530).saturating_sub(OTHER_MAPPINGS) / 2
}

/// The page size with which a pool of `bytes` has few enough pages.
fn page_bytes_for(bytes: u64) -> u64 {
    let most = frames_that_can_be_mapped();
    let mut page_bytes = PAGE_BYTES;
    while page_bytes < PAGE_BYTES_MAX && count_in(bytes, page_bytes).is_some_and(|n| n > most) {
        page_bytes *= 2;
    }
    page_bytes
}
