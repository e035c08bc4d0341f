//! A mapped file, block device or DAX device as persistent memory.
//!
//! Guarantees:
//!
//! 1. While a mapping is open for writing nobody else has one of the same file, and
//!    while one is open for reading nobody has one for writing. (The super-user's writers
//!    pass over readers of other users.) [`MappedPmem::open`] refuses what the kernel uses,
//!    as a mounted device, as swap space or behind a loop device.
//! 2. What [`fence`](Pmem::fence) is worth is what [`MappedPmem::durability`] says.
//! 3. A page that is gone (file truncated, its file system full, memory broken) gives
//!    [`MediumError::Unreadable`] on every load, read and fence from then on; it never
//!    kills the process. A file cut off inside a page loses the rest of that page
//!    without a fault; `msync` notices this at the next fence, the others do not.
//! 4. What is there when it is opened for writing is as durable as after a fence, whoever
//!    stored it, also if they were killed before their fence.

use crate::addresses::{Mapping, keep_from_children};
use crate::arena_error::ArenaError;
use crate::block::is_read_only;
use crate::claim::{self, Intent};
use crate::cpu::{self, LineFlush};
use crate::durability::{Durability, EffectiveDurability, keeps_in_memory};
use crate::lock::{Access, lock};
use crate::lossy::{self, LossyCache};
use crate::open_error::OpenError;
use crate::pager::{PagedRegion, Pager, Unpaged};
use crate::raw::Raw;
use crate::sigbus::Watch;
use crate::touched::{PAGE_BYTES, Touched};
use crate::{MediumError, Pmem, Rule};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How to open a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapOptions {
    /// What the fence is to be worth.
    pub durability: Durability,
    /// On a disk, [`Auto`](Durability::Auto) is [`Msync`](Durability::Msync) and not
    /// [`Process`](Durability::Process). In a file system in memory it is `Process` all the
    /// same: nothing there outlives the machine.
    pub power_safe: bool,
    /// Execute the flush and fence instructions even where the durability in force
    /// does not need them. For measurements on memory that stands in for persistent
    /// memory; ignored on processors without such instructions.
    pub force_flush: bool,
    /// Refuse stores (the next fence reports them with `EROFS`).
    pub read_only: bool,
    /// Map also a file for writing that loop devices show which nobody uses.
    pub over_idle_loops: bool,
    /// Refuse a symbolic link: for names in a directory that others may be able to write to.
    pub no_links: bool,
    /// Have a process that is killed leave in the file what a power failure would leave in
    /// persistent memory: what was flushed and fenced, and by chance some of the rest. What
    /// the fence is worth is [`Process`](Durability::Process) then. For tests of programs
    /// that store to the mapping themselves.
    pub simulate_power_cut: bool,
}

/// Persistent memory in a mapped file.
pub struct MappedPmem {
    raw: Raw,
    /// The part that may be stored to: all or nothing.
    writable: Raw,
    watch: Watch,
    /// The flush instruction, where flushing means anything.
    line_flush: Option<LineFlush>,
    upkeep: Upkeep,
    lossy: Option<LossyCache>,
    /// Held while pages are written back, so that a fence whose pages another one
    /// took returns only after they are durable.
    writing_back: Mutex<()>,
    failed: OnceLock<MediumError>,
    durability: EffectiveDurability,
    path: PathBuf,
    /// What `raw` and `writable` are about. Before `file`, because it has to be gone
    /// when the lock goes.
    mapping: Mapping,
    /// Holds the lock.
    file: Arc<File>,
    /// Keeps the kernel's claim on a block device.
    claim: Option<File>,
    /// Holds the lock of the file behind a loop device.
    backing: Option<File>,
}

/// What a fence has to see to, besides lines that were flushed.
enum Upkeep {
    /// Nothing.
    None,
    /// Pages of the file.
    WriteBack(Touched),
    /// Pages that a pager brings and removes.
    Paged(Box<dyn PagedRegion>),
}

impl Upkeep {
    /// Notes that `off..off + len` has to be durable at the next fence.
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
    /// Locks and maps the regular file, block device or DAX device at `path`, whole.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and, if it is in use, by whom.
    pub fn open(path: impl AsRef<Path>, options: &MapOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let mut target = Target::open(path, options)?;
        let intent = Intent::new(options.read_only, options.over_idle_loops);
        target.backing = claim::check(path, &target.file, intent)?;
        let (mapping, durability) = map(path, &mut target, options)?;
        Self::mapped(path, target, mapping, durability, options)
    }

    /// Maps `target`, the file at `path`, at the address `place`, where a child made by `fork`
    /// has nothing: it would store to its parent's memory.
    ///
    /// # Safety
    /// As for [`Mapping::move_to`].
    pub(crate) unsafe fn place(
        path: &Path,
        mut target: Target,
        place: NonNull<u8>,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        // The move would not notice: a DAX device may have very large pages.
        if !(place.as_ptr() as usize).is_multiple_of(target.page) {
            return Err(system("map", path, Errno::INVAL));
        }
        let (mapping, durability) = map(path, &mut target, options)?;
        // Before it moves, so that there is no moment in which a child gets it.
        let kept = keep_from_children(mapping.base().as_ptr() as u64, target.len);
        kept.map_err(|e| system("keep from children", path, e))?;
        // SAFETY: the mapping is new; the rest is the caller's promise.
        let mapping = unsafe { mapping.move_to(place) };
        let mapping = mapping.map_err(|e| system("map", path, e))?;
        Self::mapped(path, target, mapping, durability, options)
    }

    /// Maps at the address `place` what `target`, the file at `path`, and the memory of `pager`
    /// have of the region in `slot`.
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
        let (len, memory) = (target.len, pager.memory());
        if options.read_only {
            // SAFETY: the caller's promise.
            let mapped = unsafe { Self::place(path, target, place, options) }?;
            // SAFETY: what was just mapped, which nobody knows of.
            let overlaid = unsafe { pager.overlay(slot, place.as_ptr() as u64, len) };
            overlaid.map_err(ArenaError::Pager)?;
            return Ok(mapped);
        }
        // SAFETY: the caller's promise.
        let mapping = unsafe { Mapping::anonymous_at(place, len as usize) };
        let mapping = mapping.map_err(|e| system("map", path, e))?;
        let durability = memory.durability();
        let mut mapped = Self::new(path, target, mapping, durability, options)?;
        mapped.line_flush = memory.line_flush;
        let region = Unpaged {
            slot,
            base: place,
            len,
            file: mapped.file.clone(),
            marker: mapped.watch.marker(),
        };
        // SAFETY: it is the mapping just made, and ends after `upkeep` is dropped.
        let paged = unsafe { pager.clone().attach(region) };
        mapped.upkeep = Upkeep::Paged(paged.map_err(ArenaError::Pager)?);
        Ok(mapped)
    }

    /// What there is to a mapping of the target itself.
    fn mapped(
        path: &Path,
        target: Target,
        mapping: Mapping,
        durability: EffectiveDurability,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        let mut mapped = Self::new(path, target, mapping, durability, options)?;
        if durability == EffectiveDurability::Msync {
            mapped.upkeep = Upkeep::WriteBack(Touched::new(mapped.raw.len()));
        }
        mapped.make_durable()?;
        Ok(mapped)
    }

    fn new(
        path: &Path,
        target: Target,
        mapping: Mapping,
        durability: EffectiveDurability,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        let (base, len) = (mapping.base(), target.len);
        let Some(watch) = Watch::new(base.as_ptr(), len as usize, target.page) else {
            let path = path.to_owned();
            return Err(OpenError::TooMany { path });
        };
        let lossy = target.copy;
        let lossy = lossy.map(|copy| LossyCache::new(copy, target.file.clone()));
        let is_dax = durability == EffectiveDurability::Dax;
        let writable = if options.read_only { 0 } else { len };
        Ok(Self {
            // SAFETY: the mapping stays as long as the value, page-aligned and `len` bytes
            // long, and nothing else knows of it.
            raw: unsafe { Raw::new(base, len) },
            // SAFETY: as above, and mapped writable if `writable` is not 0.
            writable: unsafe { Raw::new(base, writable) },
            watch,
            line_flush: LineFlush::detect().filter(|_| is_dax || options.force_flush),
            upkeep: Upkeep::None,
            lossy,
            writing_back: Mutex::new(()),
            failed: OnceLock::new(),
            durability,
            path: path.to_owned(),
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

    /// What has the bytes of the mapping, for those who map some of them once more.
    pub(crate) fn shared_file(&self) -> &Arc<File> {
        self.lossy.as_ref().map_or(&self.file, LossyCache::copy)
    }

    /// The flush instruction in use ("clwb", "clflushopt" or "clflush"), or `None` if
    /// flushing is not needed.
    pub fn flush_instruction(&self) -> Option<&'static str> {
        self.line_flush.map(LineFlush::name)
    }

    /// The file's name as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the mapping out of children made by `fork`.
    pub fn keep_from_children(&self) -> Result<(), OpenError> {
        let kept = keep_from_children(self.mapping.base().as_ptr() as u64, self.raw.len());
        kept.map_err(|e| system("keep from children", &self.path, e))
    }

    /// Closes the files, and so gives up the locks of a process that has not got the mapping.
    ///
    /// # Safety
    /// Nobody may use or drop this any more.
    pub unsafe fn close_files(&self) {
        let others = self.claim.iter().chain(&self.backing);
        for file in std::iter::once(&*self.file).chain(others) {
            // SAFETY: nobody will use the descriptor.
            unsafe { libc::close(file.as_raw_fd()) };
        }
    }

    /// Makes durable what is there: a process that was killed may have left it in caches only,
    /// and whoever opens it cannot tell. Finds out, too, that `msync` works.
    fn make_durable(&self) -> Result<(), OpenError> {
        let system = |e| system("msync", &self.path, e);
        if self.durability == EffectiveDurability::Process || self.writable.len() == 0 {
            return Ok(());
        }
        let stat = fstat(&self.file).map_err(system)?;
        match (FileType::from_raw_mode(stat.st_mode), self.line_flush) {
            // The kernel does not know what was stored to such a device.
            (FileType::CharacterDevice, Some(how)) => {
                // SAFETY: the mapping has so many bytes.
                unsafe {
                    cpu::flush_lines(how, self.mapping.base().as_ptr(), self.raw.len() as usize)
                };
                cpu::fence();
                Ok(())
            }
            _ => self.write_back(0, self.raw.len()).map_err(system),
        }
    }

    /// Whether fences write back pages that were [marked](Self::mark).
    pub fn writes_back(&self) -> bool {
        matches!(self.upkeep, Upkeep::WriteBack(_))
    }

    /// Notes that `off..off + len`, which lies inside, has to be durable at the next fence,
    /// whoever stored it, wherever it is mapped.
    pub fn mark(&self, off: u64, len: u64) {
        self.upkeep.mark(off, len);
    }

    /// Maps `len` bytes from `off` on a second time, at the address `place`.
    ///
    /// # Safety
    /// What is at `place` must be the caller's to replace.
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
        // SAFETY: the caller's promise.
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
        // A file that shrank inside a page faults on no access, yet loses bytes.
        let now = fstat(&self.file).map(|stat| (FileType::from_raw_mode(stat.st_mode), stat));
        if let Ok((FileType::RegularFile, stat)) = now
            && (stat.st_size as u64) < self.raw.len()
        {
            let marker = self.watch.marker();
            marker.fail(stat.st_size as u64 / PAGE_BYTES * PAGE_BYTES);
        }
    }

    #[cold]
    fn fail(&self, error: MediumError) {
        let _ = self.failed.set(error);
    }

    /// Why a store was out of range, of all or of the (empty) part that may be stored to.
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
        let stored = self.writable.store(off, bytes);
        stored.map_err(|e| self.refusal(e))
    }

    /// [`store_nt`](Pmem::store_nt) that returns its error instead of keeping it.
    pub(crate) fn try_store_nt(&self, off: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let dst = self.writable.at(off, bytes.len());
        let dst = dst.map_err(|e| self.refusal(e))?;
        match self.line_flush {
            // SAFETY: `at` checked the range of a mapping that outlives the call.
            Some(how) => unsafe { cpu::copy_nt(how, dst, bytes) },
            None => self.writable.store(off, bytes)?,
        }
        self.leaves_cache(off, bytes.len() as u64)
    }

    /// [`flush`](Pmem::flush) that returns its error instead of keeping it.
    #[inline]
    pub(crate) fn try_flush(&self, off: u64, len: u64) -> Result<(), MediumError> {
        let start = self.raw.at(off, len as usize)?;
        if let Some(how) = self.line_flush {
            // SAFETY: `at` checked the range of a mapping that outlives the call.
            unsafe { cpu::flush_lines(how, start, len as usize) };
        }
        // Here and not at each store: only what is flushed must become durable.
        self.leaves_cache(off, len)
    }

    /// Notes what was flushed or stored around the cache, where the next fence needs it.
    #[inline]
    fn leaves_cache(&self, off: u64, len: u64) -> Result<(), MediumError> {
        self.upkeep.mark(off, len);
        match &self.lossy {
            Some(lossy) => lossy.flush(&self.raw, off, len).map_err(not_written),
            None => Ok(()),
        }
    }

    /// What a [`fence`](Pmem::fence) does besides waiting for the processor.
    #[inline]
    pub fn settle(&self) -> Result<(), MediumError> {
        match &self.upkeep {
            Upkeep::None => {}
            Upkeep::WriteBack(touched) => self.sync_touched(touched),
            Upkeep::Paged(paged) => paged.settle()?,
        }
        if let Some(lossy) = &self.lossy
            && let Err(e) = lossy.fence(&self.raw)
        {
            self.fail(not_written(e));
        }
        self.watch.check()?;
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }

    /// [`settle`](Self::settle) for all threads, none of which uses the mapping any more.
    pub(crate) fn settle_all(&self) -> Result<(), MediumError> {
        if let Some(lossy) = &self.lossy
            && let Err(e) = lossy.fence_all()
        {
            self.fail(not_written(e));
        }
        self.settle()
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
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let word = self.raw.load(off)?;
        self.watch.check()?;
        Ok(word)
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
            // The page cache outlives the process with all that was stored, but the
            // compiler must not move stores across.
            None => std::sync::atomic::fence(std::sync::atomic::Ordering::Release),
        }
        self.settle()
    }
}

impl Drop for MappedPmem {
    fn drop(&mut self) {
        // A pager must not touch the addresses once they are somebody else's.
        self.upkeep = Upkeep::None;
        self.watch.end();
    }
}

/// Maps the target as the options ask, and says what that is worth.
fn map(
    path: &Path,
    target: &mut Target,
    options: &MapOptions,
) -> Result<(Mapping, EffectiveDurability), OpenError> {
    let no_dax = |reason| OpenError::NoDax {
        path: path.to_owned(),
        reason,
    };
    let prot = if options.read_only {
        ProtFlags::READ
    } else {
        ProtFlags::READ | ProtFlags::WRITE
    };
    let len = target.len as usize;
    let mapping_of = |file: &File, flags| {
        // SAFETY: a new mapping at an address that the kernel picks overlaps nothing.
        let base = unsafe { mmap(null_mut(), len, prot, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        // SAFETY: it is the mapping just made.
        Ok(unsafe { Mapping::new(base, len) })
    };
    if options.simulate_power_cut && !options.read_only {
        let copy = lossy::copy_of(&target.file, target.len);
        let copy = copy.map_err(|source| OpenError::System {
            doing: "copy",
            path: path.to_owned(),
            source,
        })?;
        let mapped = mapping_of(&copy, MapFlags::SHARED).map_err(|e| system("map", path, e))?;
        target.copy = Some(Arc::new(copy));
        return Ok((mapped, EffectiveDurability::Process));
    }
    let mapping = |flags| mapping_of(&target.file, flags);
    if matches!(options.durability, Durability::Auto | Durability::Dax) {
        let synced = match LineFlush::detect() {
            None => Err("this processor has no known flush instruction"),
            Some(_) => match mapping(shared(EffectiveDurability::Dax)) {
                Ok(mapped) => Ok(mapped),
                Err(_) => Err("it is not persistent memory (no MAP_SYNC mapping)"),
            },
        };
        match synced {
            Ok(mapped) => return Ok((mapped, EffectiveDurability::Dax)),
            Err(reason) if options.durability == Durability::Dax => return Err(no_dax(reason)),
            Err(_) => {}
        }
    }
    let effective = match options.durability {
        Durability::Msync => EffectiveDurability::Msync,
        Durability::Auto if options.power_safe && !is_volatile(&target.file) => {
            EffectiveDurability::Msync
        }
        _ => EffectiveDurability::Process,
    };
    let mapped = mapping(shared(effective)).map_err(|e| system("map", path, e))?;
    Ok((mapped, effective))
}

fn is_volatile(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| keeps_in_memory(&found))
}

/// How a file is mapped.
fn shared(durability: EffectiveDurability) -> MapFlags {
    match durability {
        EffectiveDurability::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        EffectiveDurability::Process | EffectiveDurability::Msync => MapFlags::SHARED,
    }
}

/// An open, locked file of a usable kind and size.
pub(crate) struct Target {
    file: Arc<File>,
    claim: Option<File>,
    backing: Option<File>,
    /// What is mapped in its place, while a power cut is simulated.
    copy: Option<Arc<File>>,
    pub(crate) len: u64,
    /// Bytes of the smallest page of a mapping of it.
    page: usize,
}

impl Target {
    pub(crate) fn open(path: &Path, options: &MapOptions) -> Result<Self, OpenError> {
        let write = !options.read_only;
        // Look before opening: opening a pipe or a tape has effects.
        let stat = match options.no_links {
            true => rustix::fs::lstat(path),
            false => rustix::fs::stat(path),
        };
        let stat = stat.map_err(|e| system("open", path, e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let dax = (kind == FileType::CharacterDevice)
            .then(|| DaxDevice::find(stat.st_rdev))
            .flatten();
        if dax.is_none() {
            check_kind(path, kind)?;
        }
        let read_only = || OpenError::ReadOnly {
            path: path.to_owned(),
        };
        if write && kind == FileType::BlockDevice && is_read_only(stat.st_rdev) {
            return Err(read_only());
        }
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // What has the name by now is looked at again.
        let mut always = OFlags::NONBLOCK | OFlags::CLOEXEC;
        always.set(OFlags::NOFOLLOW, options.no_links);
        let open = |flags| rustix::fs::open(path, access | always | flags, Mode::empty());
        let file = File::from(open(OFlags::empty()).map_err(|e| match e {
            Errno::ROFS => read_only(),
            e => system("open", path, e),
        })?);
        if dax.is_none() {
            let opened = fstat(&file).map_err(|e| system("look at", path, e))?;
            check_kind(path, FileType::from_raw_mode(opened.st_mode))?;
        }
        lock(path, &file, Access::of(options.read_only))?;
        // The kernel refuses a device that is mounted or part of another. After our own
        // lock, whose error can name the holder.
        let claim = (write && kind == FileType::BlockDevice).then(|| open(OFlags::EXCL));
        let claim = claim.transpose();
        let claim = claim.map_err(|e| claim::not_ours(path, &file, e))?;
        let claim = claim.map(File::from);
        let (len, page) = match dax {
            Some(dax) => (dax.len, dax.align),
            None => (len_of(path, &file)?, rustix::param::page_size()),
        };
        if len == 0 || !len.is_multiple_of(PAGE_BYTES) || usize::try_from(len).is_err() {
            let path = path.to_owned();
            return Err(OpenError::WrongSize {
                path,
                len_bytes: len,
            });
        }
        Ok(Self {
            file: Arc::new(file),
            copy: None,
            claim,
            backing: None,
            len,
            page,
        })
    }
}

/// Size of a file or block device, by the offset of its end.
fn len_of(path: &Path, file: &File) -> Result<u64, OpenError> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(|e| system("size", path, e))
}

fn check_kind(path: &Path, kind: FileType) -> Result<(), OpenError> {
    let kind = match kind {
        FileType::RegularFile | FileType::BlockDevice => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
        FileType::CharacterDevice => "a character device",
        _ => "neither",
    };
    let path = path.to_owned();
    Err(OpenError::WrongKind { path, kind })
}

fn system(doing: &'static str, path: &Path, e: Errno) -> OpenError {
    OpenError::System {
        doing,
        path: path.to_owned(),
        source: e.into(),
    }
}

/// What sysfs says about a `/dev/daxX.Y`.
struct DaxDevice {
    len: u64,
    align: usize,
}

impl DaxDevice {
    fn find(rdev: u64) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let dir = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
        let subsystem = std::fs::read_link(dir.join("subsystem")).ok()?;
        if subsystem.file_name()? != "dax" {
            return None;
        }
        let number = |name| {
            std::fs::read_to_string(dir.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let align = number("align").unwrap_or(2 << 20);
        Some(Self {
            len: number("size")?,
            align: align as usize,
        })
    }
}

/// Whether a new file's blocks are taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reserve {
    /// Blocks are taken as they are first stored to. If the file system under the
    /// file is full by then, the region fails with [`MediumError::Unreadable`].
    #[default]
    Sparse,
    /// All blocks are taken now.
    Whole,
}

/// Makes the regular file at `path` (new or not) `len_bytes` long and all zeros.
///
/// # Errors
/// [`OpenError`] if the size is not a positive multiple of 4096, the file is in use
/// or not a regular one, or the system refuses. A file that is in use is not changed.
pub fn create_file(
    path: impl AsRef<Path>,
    len_bytes: u64,
    reserve: Reserve,
) -> Result<(), OpenError> {
    create(path.as_ref(), len_bytes, reserve, OFlags::empty(), 0o666)
}

/// As [`create_file`], but the file is new, and readable and writable by its owner only.
///
/// # Errors
/// As [`create_file`]; [`OpenError::System`] also if something has that name, such as a link
/// that somebody else made.
pub fn create_private_file(
    path: impl AsRef<Path>,
    len_bytes: u64,
    reserve: Reserve,
) -> Result<(), OpenError> {
    create(path.as_ref(), len_bytes, reserve, OFlags::EXCL, 0o600)
}

fn create(
    path: &Path,
    len_bytes: u64,
    reserve: Reserve,
    flags: OFlags,
    mode: u32,
) -> Result<(), OpenError> {
    if len_bytes == 0 || !len_bytes.is_multiple_of(PAGE_BYTES) {
        let path = path.to_owned();
        return Err(OpenError::WrongSize { path, len_bytes });
    }
    if let Ok(stat) = rustix::fs::stat(path) {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => {
                let (path, kind) = (path.to_owned(), "a block device, whose size is fixed");
                return Err(OpenError::WrongKind { path, kind });
            }
            kind => check_kind(path, kind)?,
        }
    }
    // Not truncated by the open: whoever uses it must be asked first.
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode));
    let file = File::from(file.map_err(|e| system("create", path, e))?);
    lock(path, &file, Access::Write)?;
    let resize = |len| rustix::fs::ftruncate(&file, len).map_err(|e| system("resize", path, e));
    // The first one shows whether the size is possible, before anything is lost.
    for len in [len_bytes, 0, len_bytes] {
        resize(len)?;
    }
    if reserve == Reserve::Whole {
        let flags = rustix::fs::FallocateFlags::empty();
        let reserved = rustix::fs::fallocate(&file, flags, 0, len_bytes);
        reserved.map_err(|e| system("reserve space for", path, e))?;
    }
    Ok(())
}
