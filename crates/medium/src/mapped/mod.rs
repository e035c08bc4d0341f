//! A mapped file, block device or DAX device as persistent memory.
//!
//! Guarantees:
//!
//! 1. A mapping that is open for writing excludes every other mapping of its file; one that is
//!    open for reading excludes writers. (The super-user's writers ignore readers of other
//!    users.) [`MappedPmem::open`] refuses a file that the kernel uses as a mounted device, as
//!    swap space or for a loop device. [`MappedPmem::map_descriptor`] takes no lock.
//! 2. [`MappedPmem::durability`] is the durability that [`fence`](Pmem::fence) gives.
//! 3. A page can be lost: its file is truncated, its file system full, its memory broken. Every
//!    load, read and fence from then on returns [`MediumError::Unreadable`]; the process
//!    survives. A file truncated inside a page loses the rest of that page without a fault;
//!    only `msync` notices this, at the next fence.
//! 4. An open for writing makes the contents as durable as a fence does, even those stored by a
//!    process that was killed before its fence.
//! 5. If [`MappedPmem::is_guarded`], no code of the process changes the region by a stray store: only the
//!    stores of this module reach it, each in the time for which it opens the [guard](crate::guard).

mod create;
mod descriptor;
mod guarded;
mod target;

pub use create::{Reserve, create_file, create_private_file};
pub(crate) use target::Target;

use crate::addresses::{Mapping, keep_from_children};
use crate::arena_error::ArenaError;
use crate::claim::{self, Intent};
use crate::cpu::{self, LineFlush};
use crate::durability::{Durability, EffectiveDurability};
use crate::guard::Window;
use crate::lossy::LossyCache;
use crate::open_error::OpenError;
use crate::pager::{Flushing, PagedRegion, Pager, Unpaged};
use crate::raw::Raw;
use crate::shared_bytes::SharedBytes;
use crate::sigbus::Watch;
use crate::touched::{PAGE_BYTES, Touched};
use crate::{MediumError, Pmem, Rule};
use guarded::Guarded;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use target::{map, shared, system};

/// Options for opening a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapOptions {
    /// The durability that a fence is to give.
    pub durability: Durability,
    /// Makes [`Auto`](Durability::Auto) select [`Msync`](Durability::Msync) on a disk, instead
    /// of [`Process`](Durability::Process). A file system in memory gets `Process` regardless:
    /// its files do not survive a crash of the machine.
    pub power_safe: bool,
    /// Executes the flush and fence instructions even where the durability in force does not
    /// need them. Ignored on processors without such instructions. For measurements on memory
    /// that stands in for persistent memory.
    pub force_flush: bool,
    /// Refuses stores: the next fence reports them with `EROFS`.
    pub read_only: bool,
    /// Permits a mapping for writing of a file that only idle loop devices use.
    pub over_idle_loops: bool,
    /// Refuses a symbolic link: for names in a directory that others may be able to write to.
    pub no_links: bool,
    /// Kills the process at a store to the mapping by other code than that of [`MappedPmem`], where the processor
    /// has protection keys. Elsewhere it has no effect; see [`MappedPmem::is_guarded`]. It is
    /// for a mapping in the process of a program that does not store there itself, so regions of an arena
    /// ignore it.
    pub guarded: bool,
    /// Simulates a power failure when the process is killed. The file keeps the stores that
    /// were flushed and fenced, and a random part of the rest. The durability is
    /// [`Process`](Durability::Process) then. For tests of programs that store to the mapping
    /// themselves.
    pub simulate_power_cut: bool,
}

/// Persistent memory in a mapped file.
pub struct MappedPmem {
    raw: Raw,
    /// The part that may be stored to: the whole mapping, or nothing.
    writable: Raw,
    watch: Watch,
    /// The flush instruction, if flushes have an effect on this mapping.
    line_flush: Option<LineFlush>,
    upkeep: Upkeep,
    lossy: Option<LossyCache>,
    /// Held while pages are written back. A fence whose pages another fence took returns only
    /// after those are durable.
    writing_back: Mutex<()>,
    failed: OnceLock<MediumError>,
    durability: EffectiveDurability,
    path: PathBuf,
    /// The mapping to which `writable` refers, if it is another one.
    guarded: Option<Guarded>,
    /// The mapping to which `raw` refers, and usually `writable`. Declared before `file`, so that it is
    /// unmapped before the lock is released.
    mapping: Mapping,
    /// Holds the lock.
    file: Arc<File>,
    /// Keeps the kernel's claim on a block device.
    claim: Option<File>,
    /// Holds the lock of the file that a loop device shows.
    backing: Option<File>,
}

/// The duties of a fence besides waiting for flushed lines.
enum Upkeep {
    /// No duty.
    None,
    /// Writes back pages of the file.
    WriteBack(Touched),
    /// Settles pages that a pager brings and removes.
    Paged(Box<dyn PagedRegion>),
}

impl Upkeep {
    /// Records that `off..off + len` must be durable at the next fence.
    #[inline]
    fn mark(&self, off: u64, len: u64) {
        match self {
            Self::None => {}
            Self::WriteBack(touched) => touched.mark(off, len),
            Self::Paged(paged) => paged.mark(off, len),
        }
    }
}

impl MappedPmem {
    /// Locks and maps the whole regular file, block device or DAX device at `path`.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and, if it is in use, its holder.
    pub fn open(path: impl AsRef<Path>, options: &MapOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let mut target = Target::open(path, options)?;
        let intent = Intent::new(options.read_only, options.over_idle_loops);
        target.backing = claim::check(path, &target.file, intent)?;
        let (mapping, durability) = map(path, &mut target, options)?;
        let guarded = Guarded::of(&mapping, &target, durability, options);
        Self::mapped(path, target, (mapping, guarded), durability, options)
    }

    /// Maps `target`, the file at `path`, at the address `place`. A child made by `fork` does
    /// not inherit the mapping, because it would store to its parent's memory.
    ///
    /// # Safety
    /// As for [`Mapping::move_to`].
    pub(crate) unsafe fn place(
        path: &Path,
        mut target: Target,
        place: NonNull<u8>,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        // `mremap` would not report this: a DAX device may have very large pages.
        if !(place.as_ptr() as usize).is_multiple_of(target.page) {
            return Err(system("map", path, Errno::INVAL));
        }
        let (mapping, durability) = map(path, &mut target, options)?;
        // This precedes the move, so that no child inherits the mapping at any moment.
        let kept = keep_from_children(mapping.base().as_ptr() as u64, target.len);
        kept.map_err(|e| system("keep from children", path, e))?;
        // SAFETY: the mapping is new, and the caller vouches for `place`.
        let mapping = unsafe { mapping.move_to(place) };
        let mapping = mapping.map_err(|e| system("map", path, e))?;
        Self::mapped(path, target, (mapping, None), durability, options)
    }

    /// Maps the region in `slot` at the address `place`. Its pages are in `target`, the file at
    /// `path`, or in the memory of `pager`.
    ///
    /// # Safety
    /// As for [`Mapping::move_to`].
    pub(crate) unsafe fn place_paged(
        path: &Path,
        target: Target,
        place: NonNull<u8>,
        (pager, slot): (&Arc<impl Pager>, u16),
        options: &MapOptions,
    ) -> Result<Self, ArenaError> {
        let (len, flushing) = (target.len, pager.flushing());
        if options.read_only {
            // SAFETY: the caller vouches for `place`.
            let mapped = unsafe { Self::place(path, target, place, options) }?;
            // SAFETY: the mapping was just made, and nothing else refers to it.
            let overlaid = unsafe { pager.overlay(slot, place.as_ptr() as u64, len) };
            overlaid.map_err(ArenaError::Pager)?;
            return Ok(mapped);
        }
        // SAFETY: the caller vouches for `place`.
        let mapping = unsafe { Mapping::anonymous_at(place, len as usize) };
        let mapping = mapping.map_err(|e| system("map", path, e))?;
        let mappings = (mapping, None);
        let mut mapped = Self::new(path, target, mappings, flushing.durability, options)?;
        mapped.line_flush = flushing.line_flush;
        let region = Unpaged {
            slot,
            base: place,
            len,
            file: mapped.file.clone(),
            marker: mapped.watch.marker(),
        };
        // SAFETY: this is the mapping just made; it ends after `upkeep` is dropped.
        let paged = unsafe { pager.clone().attach(region) };
        mapped.upkeep = Upkeep::Paged(paged.map_err(ArenaError::Pager)?);
        Ok(mapped)
    }

    /// The way in which stores become durable, for the regions of a pager with this memory.
    pub fn flushing(&self) -> Flushing {
        Flushing {
            durability: self.durability,
            line_flush: self.line_flush,
        }
    }

    /// Makes the value for a mapping of the target itself, without a pager.
    fn mapped(
        path: &Path,
        target: Target,
        mappings: (Mapping, Option<Guarded>),
        durability: EffectiveDurability,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        let mut mapped = Self::new(path, target, mappings, durability, options)?;
        if durability == EffectiveDurability::Msync {
            mapped.upkeep = Upkeep::WriteBack(Touched::new(mapped.raw.len()));
        }
        mapped.make_durable()?;
        Ok(mapped)
    }

    fn new(
        path: &Path,
        target: Target,
        (mapping, guarded): (Mapping, Option<Guarded>),
        durability: EffectiveDurability,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        let (base, len) = (mapping.base(), target.len);
        let for_stores = guarded.as_ref().map_or(base, Guarded::base);
        let starts = [base, for_stores].map(NonNull::as_ptr);
        let Some(watch) = Watch::new(starts, len as usize, target.page) else {
            let path = path.to_owned();
            return Err(OpenError::TooMany { path });
        };
        let lossy = target.copy;
        let lossy = lossy.map(|copy| LossyCache::new(copy, target.file.clone()));
        let is_dax = durability == EffectiveDurability::Dax;
        let writable = if options.read_only { 0 } else { len };
        Ok(Self {
            // SAFETY: the mapping lives until the value is dropped. It is page-aligned and
            // `len` bytes long, and nothing else refers to it.
            raw: unsafe { Raw::new(base, len) },
            // SAFETY: as above, and mapped writable if `writable` is not 0, inside of the windows of `guarded`.
            writable: unsafe { Raw::new(for_stores, writable) },
            watch,
            line_flush: LineFlush::detect().filter(|_| is_dax || options.force_flush),
            upkeep: Upkeep::None,
            lossy,
            writing_back: Mutex::new(()),
            failed: OnceLock::new(),
            durability,
            path: path.to_owned(),
            guarded,
            mapping,
            file: target.file,
            claim: target.claim,
            backing: target.backing,
        })
    }

    /// The durability in force.
    pub fn durability(&self) -> EffectiveDurability {
        self.durability
    }

    /// Whether a stray store to the region kills the process.
    pub fn is_guarded(&self) -> bool {
        self.guarded.is_some()
    }

    /// Gives this thread access to the memory of `writable`.
    #[inline]
    fn window(&self) -> Option<Window> {
        self.guarded.as_ref().map(Guarded::open)
    }

    /// The file that has the bytes of the mapping, for a second mapping of some of them.
    pub(crate) fn shared_file(&self) -> &Arc<File> {
        self.lossy.as_ref().map_or(&self.file, LossyCache::copy)
    }

    /// The flush instruction in use ("clwb", "clflushopt" or "clflush"), or `None` if
    /// flushing is not needed.
    pub fn flush_instruction(&self) -> Option<&'static str> {
        self.line_flush.map(LineFlush::name)
    }

    /// The file's name with which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Excludes the mapping from children made by `fork`.
    pub fn keep_from_children(&self) -> Result<(), OpenError> {
        let for_stores = self.guarded.as_ref().map(Guarded::base);
        let bases = std::iter::once(self.mapping.base()).chain(for_stores);
        let mut kept = bases.map(|base| keep_from_children(base.as_ptr() as u64, self.raw.len()));
        let kept = kept.try_for_each(|kept| kept);
        kept.map_err(|e| system("keep from children", &self.path, e))
    }

    /// Closes the files, and so releases the locks of a process that does not have the mapping.
    ///
    /// # Safety
    /// The value must not be used or dropped afterwards.
    pub unsafe fn close_files(&self) {
        let others = self.claim.iter().chain(&self.backing);
        for file in std::iter::once(&*self.file).chain(others) {
            // SAFETY: the caller promises that the descriptor is not used any more.
            unsafe { libc::close(file.as_raw_fd()) };
        }
    }

    /// Makes the present contents durable: a process that was killed may have left them in
    /// caches only. Shows, too, whether `msync` works.
    fn make_durable(&self) -> Result<(), OpenError> {
        let system = |e| system("msync", &self.path, e);
        if self.durability == EffectiveDurability::Process || self.writable.len() == 0 {
            return Ok(());
        }
        let stat = fstat(&self.file).map_err(system)?;
        match (FileType::from_raw_mode(stat.st_mode), self.line_flush) {
            // The kernel has no record of the stores to such a device.
            (FileType::CharacterDevice, Some(how)) => {
                // SAFETY: the mapping is `raw.len()` bytes long.
                unsafe {
                    cpu::flush_lines(how, self.mapping.base().as_ptr(), self.raw.len() as usize)
                };
                cpu::fence();
                Ok(())
            }
            _ => self.write_back(0, self.raw.len()).map_err(system),
        }
    }

    /// Returns whether fences write back pages that were [marked](Self::mark).
    pub fn has_write_back(&self) -> bool {
        matches!(self.upkeep, Upkeep::WriteBack(_))
    }

    /// Records that `off..off + len`, which lies inside, must be durable at the next fence: any
    /// stores there, through any mapping.
    pub fn mark(&self, off: u64, len: u64) {
        self.upkeep.mark(off, len);
    }

    /// Maps the `len` bytes from `off` on once more, at the address `place`.
    ///
    /// # Safety
    /// Nothing at `place` may be in use: the mapping replaces it.
    pub unsafe fn map_again(
        &self,
        off: u64,
        len: u64,
        place: u64,
        writable: bool,
    ) -> Result<(), Errno> {
        self.raw.at(off, len as usize).map_err(|_| Errno::INVAL)?;
        let prot = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let flags = MapFlags::FIXED | shared(self.durability);
        // SAFETY: the caller vouches for `place`.
        unsafe {
            mmap(
                place as *mut c_void,
                len as usize,
                prot,
                flags,
                &self.file,
                off,
            )
        }?;
        Ok(())
    }

    fn write_back(&self, off: u64, len: u64) -> Result<(), Errno> {
        let Ok(start) = self.raw.at(off, len as usize) else {
            return Err(Errno::INVAL);
        };
        let page = rustix::param::page_size();
        let skew = start as usize % page;
        let start = start.wrapping_sub(skew).cast::<c_void>();
        // SAFETY: the range, rounded down to a page, lies inside the mapping; writing
        // it back changes no bytes.
        unsafe { msync(start, skew + len as usize, MsyncFlags::SYNC) }
    }

    /// Writes back all touched pages and waits for the disk.
    fn sync_touched(&self, touched: &Touched) {
        let _turn = self
            .writing_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        touched.take(|run| {
            if let Err(e) = self.write_back(run.start, run.end - run.start) {
                self.fail(not_durable(e));
            }
        });
        // A file that shrank inside a page loses bytes, but no access faults.
        let now = fstat(&self.file).map(|stat| (FileType::from_raw_mode(stat.st_mode), stat));
        if let Ok((FileType::RegularFile, stat)) = now
            && (stat.st_size as u64) < self.raw.len()
        {
            let marker = self.watch.marker();
            marker.fail(stat.st_size as u64 / PAGE_BYTES * PAGE_BYTES);
        }
    }

    /// The bytes at `off`, without a copy. If a page is lost, they are zeros, and the next load fails.
    ///
    /// # Errors
    /// [`MediumError::OutOfRange`].
    pub fn shared_bytes(&self, off: u64, len: usize) -> Result<SharedBytes<'_>, MediumError> {
        let start = self.raw.at(off, len)?;
        // SAFETY: `at` checked the range of a mapping that outlives the value. All stores are those of `Raw`.
        Ok(unsafe { SharedBytes::new(start, len) })
    }

    #[cold]
    fn fail(&self, error: MediumError) {
        let _ = self.failed.set(error);
    }

    /// The error of a store out of range: `EROFS` if the mapping is read-only.
    #[cold]
    fn refusal(&self, error: MediumError) -> MediumError {
        let read_only = self.writable.len() == 0;
        if read_only {
            not_durable(Errno::ROFS)
        } else {
            error
        }
    }

    /// [`store`](Pmem::store) that returns its error instead of keeping it.
    #[inline]
    pub(crate) fn try_store(&self, off: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let stored = {
            let _window = self.window();
            self.writable.store(off, bytes)
        };
        stored.map_err(|e| self.refusal(e))
    }

    /// [`store_nt`](Pmem::store_nt) that returns its error instead of keeping it.
    pub(crate) fn try_store_nt(&self, off: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let dst = self.writable.at(off, bytes.len());
        let dst = dst.map_err(|e| self.refusal(e))?;
        {
            let _window = self.window();
            match self.line_flush {
                // SAFETY: `at` checked the range of a mapping that outlives the call.
                Some(how) => unsafe { cpu::copy_nt(how, dst, bytes) },
                None => self.writable.store(off, bytes)?,
            }
        }
        self.leaves_cache(off, bytes.len() as u64)
    }

    /// [`flush`](Pmem::flush) that returns its error instead of keeping it.
    #[inline]
    pub(crate) fn try_flush(&self, off: u64, len: u64) -> Result<(), MediumError> {
        let mut start = self.raw.at(off, len as usize)?;
        if let Some(how) = self.line_flush {
            let _window = self.window();
            // The pages of the mapping for stores are present: the lines were stored through it.
            if self.guarded.is_some() {
                start = self.writable.at(off, len as usize)?;
            }
            // SAFETY: `at` checked the range of a mapping that outlives the call.
            unsafe { cpu::flush_lines(how, start, len as usize) };
        }
        // A flush marks the pages, not each store: only flushed bytes must become durable.
        self.leaves_cache(off, len)
    }

    /// Marks flushed or streamed bytes, if the next fence has to make them durable.
    #[inline]
    fn leaves_cache(&self, off: u64, len: u64) -> Result<(), MediumError> {
        self.upkeep.mark(off, len);
        match &self.lossy {
            Some(lossy) => lossy.flush(&self.raw, off, len).map_err(not_written),
            None => Ok(()),
        }
    }

    /// Does the work of a [`fence`](Pmem::fence) besides waiting for the processor.
    #[inline]
    pub fn complete_fence(&self) -> Result<(), MediumError> {
        match &self.upkeep {
            Upkeep::None => {}
            Upkeep::WriteBack(touched) => self.sync_touched(touched),
            Upkeep::Paged(paged) => paged.sync_marked()?,
        }
        if let Some(lossy) = &self.lossy
            && let Err(e) = lossy.fence(&self.raw)
        {
            self.fail(not_written(e));
        }
        self.watch.check()?;
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }

    /// Completes the fences of all threads, of which none uses the mapping any more.
    pub(crate) fn complete_all_fences(&self) -> Result<(), MediumError> {
        if let Some(lossy) = &self.lossy
            && let Err(e) = lossy.fence_all()
        {
            self.fail(not_written(e));
        }
        self.complete_fence()
    }
}

fn not_durable(e: Errno) -> MediumError {
    MediumError::NotDurable {
        errno: e.raw_os_error(),
    }
}

fn not_written(e: std::io::Error) -> MediumError {
    MediumError::NotDurable {
        errno: e.raw_os_error().unwrap_or(libc::EIO),
    }
}

impl Pmem for MappedPmem {
    #[inline]
    fn len(&self) -> u64 {
        self.raw.len()
    }

    #[inline]
    fn prefetch(&self, off: u64) {
        self.raw.prefetch(off);
    }

    fn populate(&self, off: u64, len: u64) {
        let page = rustix::param::page_size() as u64;
        let (start, end) = (off / page * page, off.saturating_add(len));
        if let Ok(at) = self.writable.at(start, end.saturating_sub(start) as usize) {
            // The kernel asks whether this thread may store there.
            let _window = self.window();
            let len = (end - start) as usize;
            // SAFETY: the range is inside of a mapping that outlives the call, and the advice changes no byte.
            let _ = unsafe { madvise(at.cast(), len, Advice::LinuxPopulateWrite) };
        }
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let word = self.raw.load(off)?;
        self.watch.check()?;
        Ok(word)
    }

    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        self.raw.load_words(off, words)?;
        self.watch.check()
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.raw.read(off, buf)?;
        self.watch.check()
    }

    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) {
        if let Err(e) = self.try_store(off, bytes) {
            self.fail(e);
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        if let Err(e) = self.try_store_nt(off, bytes) {
            self.fail(e);
        }
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        if let Err(e) = self.try_flush(off, len) {
            self.fail(e);
        }
    }

    #[inline]
    fn fence(&self, _: Rule) -> Result<(), MediumError> {
        match self.line_flush {
            Some(_) => cpu::fence(),
            // The page cache keeps all stores when the process ends, but the compiler must not
            // move stores across.
            None => std::sync::atomic::fence(std::sync::atomic::Ordering::Release),
        }
        self.complete_fence()
    }

    fn drain(&self) {
        // Stores go around the caches only if there is an instruction that flushes lines.
        if self.line_flush.is_some() {
            cpu::fence();
        }
    }
}

impl Drop for MappedPmem {
    fn drop(&mut self) {
        // The pager must stop before the addresses are reused.
        self.upkeep = Upkeep::None;
        self.watch.end();
    }
}
