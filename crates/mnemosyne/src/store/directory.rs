//! Regions in the files of a directory, in one range of addresses.
//!
//! # Guarantees
//!
//! 1. The files are `regions`, the system region, and for each slot of the region table that
//!    is in use one named `region-` and the slot's number. A file of this name is whole: it
//!    got the name when it was all zeros and durable, and the name is durable at return.
//! 2. All blocks of a file are taken when it is made: that the disk is full shows then, and
//!    not at a store.
//! 3. While a directory is open nobody else opens it, in this process or another.
//! 4. Of processes that make a directory at the same time, one does.
//! 5. Directories, files and pools are made for their owner only (modes 0700 and 0600). Those
//!    that are there keep their modes.
//! 6. What was committed survives a power failure, unless less is asked for: on a disk
//!    [`Durability::Auto`](medium::Durability::Auto) is `msync`. With `process` a crash of the
//!    machine is noticed at the next opening (see `boot`).
//! 7. With a pool, regions may be larger than persistent memory: their pages lie in the files
//!    here, or in the pool (see [`medium::paging`]). The files may then be on a disk. What has
//!    to be in persistent memory as a whole, is in the pool's directory: `regions`, and the
//!    files of static variables.

use super::boot::BootNote;
use super::pool::{FRAMES, Pooled};
use super::{Backing, BackingError, Layout, Options, Region, RegionKind, Store, StoreError};
use medium::{
    Arena, ArenaError, EffectiveDurability, MapOptions, MappedPmem, OpenError, Pool, Reserve,
};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, DirEntry, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file of the system region.
pub(super) const SYSTEM: &str = "regions";
/// Those of other regions, in front of the numbers of their slots.
const REGION: &str = "region-";
/// What files are called, behind their names, until they are whole.
const UNFINISHED: &str = ".new-";

/// How to open a directory.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// The address of the first byte, a multiple of 2 MiB; `None`: wherever there is room.
    pub base: Option<u64>,
    /// Bytes of addresses, which all regions must fit in.
    pub bytes: u64,
    /// What a system region is to be like, if there is none yet.
    pub layout: Layout,
    /// Fails if there is nothing at the path, rather than make it.
    pub must_exist: bool,
    /// How to map the files.
    pub map: MapOptions,
    /// What moves pages between the files and persistent memory. `None`: what the directory
    /// was made with, which may be nothing.
    pub pool: Option<PoolOptions>,
    /// Open the directory, too, if the machine went down while it was in use with durability
    /// `process`: what was stored last may be missing, or there in part.
    pub accept_loss: bool,
}

/// Where a pool is, and what it is to be like.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// A directory on persistent memory.
    pub path: PathBuf,
    /// Bytes of the pool, if there is none yet: 16 pages at least.
    pub bytes: u64,
    /// Bytes of a page, if there is none yet; `None`: 64 KiB, or more in a large pool.
    pub page_bytes: Option<u64>,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self {
            base: None,
            bytes: 1 << 40,
            layout: Layout::default(),
            must_exist: false,
            map: MapOptions::default(),
            pool: None,
            accept_loss: false,
        }
    }
}

/// A directory of regions, mapped.
pub struct Directory {
    path: PathBuf,
    arena: Arc<Arena>,
    map: MapOptions,
    pooled: Option<Pooled>,
    boot: Option<BootNote>,
}

impl Directory {
    /// Opens the directory at `path`, and makes it if it is not there, unless it is to be
    /// mapped read only.
    ///
    /// # Errors
    /// [`StoreError`]; of these [`OpenError::InUse`] names who has it open.
    pub fn open(path: impl AsRef<Path>, options: &DirectoryOptions) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let mut options = options.clone();
        options.map.power_safe = true;
        let options = &options;
        let read_only = options.map.read_only;
        let makes = !read_only && !options.must_exist;
        if makes {
            make_directory(path)?;
        }
        // Mappings are known by it: it must not depend on where the program goes.
        let path = path.canonicalize().map_err(|e| failed("find", path, e))?;
        // Until the system region is ours, which keeps others out.
        let _turn = match read_only {
            true => None,
            false => Some(turn(&path)?),
        };
        let boot = match read_only {
            true => None,
            false => Some(BootNote::find(&path, options.accept_loss)?),
        };
        let pooled = Pooled::open(&path, options)?;
        let in_memory = pooled.as_ref().map_or(&path, |pooled| &pooled.path);
        let system = in_memory.join(SYSTEM);
        if makes && pooled.is_none() && !exists(&system)? {
            make_system(&system, options)?;
        }
        let arena = Arena::reserve(options.base, options.bytes).map_err(BackingError::from)?;
        let mapped = arena.map(0, &system, &options.map);
        mapped.map_err(BackingError::from)?;
        let mut directory = Self {
            path,
            arena: Arc::new(arena),
            map: options.map,
            pooled,
            boot,
        };
        directory.note_boot()?;
        if !read_only {
            directory.remove_unfinished(&directory.path)?;
            directory.remove_unfinished(directory.in_memory())?;
        }
        Ok(directory)
    }

    /// Has the next opening notice a crash of the machine, if the durability does not cover it.
    fn note_boot(&mut self) -> Result<(), StoreError> {
        let is_lost = self.durability() == EffectiveDurability::Process
            && !medium::is_in_memory(self.in_memory())?;
        match &mut self.boot {
            // A simulation leaves what a power failure would leave, which is no loss.
            Some(boot) if is_lost && !self.map.simulate_power_cut => Ok(boot.make()?),
            _ => self.settle(),
        }
    }

    /// Makes all files durable, if they are not, and the note superfluous that the next opening
    /// would notice a crash of the machine by. For the end of a program: what is stored later
    /// is not covered. Dropping does it.
    ///
    /// # Errors
    /// [`StoreError`]; then the note stays.
    pub fn settle(&self) -> Result<(), StoreError> {
        let Some(boot) = self.boot.as_ref().filter(|boot| boot.is_there) else {
            return Ok(());
        };
        let mut files = Vec::new();
        for place in [&self.path, self.in_memory()] {
            let names = names(place)?.into_iter();
            let is_ours = |name: &OsString| {
                let name = name.to_string_lossy();
                name == SYSTEM || name == FRAMES || name.starts_with(REGION)
            };
            files.extend(names.filter(is_ours).map(|name| place.join(name)));
        }
        Ok(boot.settle(files)?)
    }

    /// The range of addresses.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The durability in force.
    pub fn durability(&self) -> EffectiveDurability {
        let system = self.arena.durability(0);
        system.unwrap_or(EffectiveDurability::Process)
    }

    /// What moves pages, if there is such a thing.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pooled.as_ref().map(|pooled| &pooled.pool)
    }

    /// Where the files are that are in persistent memory as a whole.
    fn in_memory(&self) -> &Path {
        let pooled = self.pooled.as_ref();
        pooled.map_or(&self.path, |pooled| &pooled.path)
    }

    /// The file of a region.
    pub fn file(&self, region: &Region) -> PathBuf {
        let place = match self.pool_of(region) {
            Some(_) => &self.path,
            None => self.in_memory(),
        };
        place.join(format!("{REGION}{:04}", region.slot))
    }

    /// What moves a region's pages, and the slot by which it knows the region.
    fn pool_of(&self, region: &Region) -> Option<(&Arc<Pool>, u16)> {
        let pool = self.pool().filter(|_| region.kind != RegionKind::Static)?;
        // There are no more slots than that.
        Some((pool, region.slot as u16))
    }

    fn map(&self, region: &Region) -> Result<(), ArenaError> {
        let (start, path) = (region.start, self.file(region));
        match self.pool_of(region) {
            Some(pool) => self.arena.map_paged(start, path, pool, &self.map)?,
            None => self.arena.map(start, path, &self.map)?,
        };
        Ok(())
    }

    /// Slots that have files.
    pub(super) fn files(&self) -> Result<Vec<u64>, StoreError> {
        let slot = |name: &OsStr| name.to_str()?.strip_prefix(REGION)?.parse().ok();
        let mut found = names(&self.path)?;
        if self.in_memory() != self.path {
            found.extend(names(self.in_memory())?);
        }
        Ok(found.iter().filter_map(|name| slot(name)).collect())
    }

    /// Removes what those left behind who died while they made a file.
    fn remove_unfinished(&self, place: &Path) -> Result<(), StoreError> {
        for name in names(place)? {
            if name.to_string_lossy().contains(UNFINISHED) {
                remove(&place.join(name))?;
            }
        }
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Other holders of the arena may still store to it.
        if Arc::strong_count(&self.arena) == 1 {
            // If it fails, the note stays.
            let _ = self.settle();
        }
    }
}

impl Store<Directory> {
    /// Opens the directory at `path`, which is made if it is not there, recovers what is in
    /// it, and uses it; a thread truncates the logs. Addresses in transactions are offsets.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open_directory(
        path: impl AsRef<Path>,
        directory: &DirectoryOptions,
        options: Options,
    ) -> Result<Self, StoreError> {
        let directory = Directory::open(path, directory)?;
        let arena = directory.arena().clone();
        let store = Self::open(directory, arena, options)?;
        store.truncate_in_background();
        Ok(store)
    }
}

impl Backing for Directory {
    type Pmem = Arc<Arena>;

    fn pmem(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn create(&self, region: &Region) -> Result<(), BackingError> {
        make_file(&self.file(region), |unfinished| {
            medium::create_private_file(unfinished, region.len, Reserve::Whole)
        })?;
        Ok(self.map(region)?)
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        let path = self.file(region);
        match path.metadata() {
            Ok(file) if file.len() >= region.len => {}
            Ok(_) => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed("find", &path, e).into()),
        }
        self.map(region)?;
        Ok(true)
    }

    fn describe(&self, region: &Region) -> String {
        self.file(region).display().to_string()
    }

    fn remove(&self, region: &Region) -> Result<(), BackingError> {
        let pool = self.pool_of(region);
        if let Some((pool, slot)) = pool {
            pool.doom(slot);
        }
        match self.arena.unmap(region.start) {
            Ok(()) | Err(ArenaError::NotMapped { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        if let Some((pool, slot)) = pool {
            // Before the file: a page that is in a frame is one of a region that there is.
            pool.forget(slot)?;
        }
        let path = self.file(region);
        remove(&path)?;
        Ok(sync_directory(path.parent().unwrap_or(&path))?)
    }

    fn no_others(&self, regions: &[Region]) -> Result<(), BackingError> {
        let paged = regions.iter().filter_map(|region| self.pool_of(region));
        let slots: HashSet<u16> = paged.map(|(_, slot)| slot).collect();
        match self.pool() {
            Some(pool) => Ok(pool.check_pages(|slot| slots.contains(&slot))?),
            None => Ok(()),
        }
    }
}

/// The right to make what a directory needs, as long as this is kept: of those who open it at
/// the same time one finds nothing there, and the others what it has made.
fn turn(path: &Path) -> Result<File, OpenError> {
    let directory = File::open(path).map_err(|e| failed("open", path, e))?;
    let locked = flock(&directory, FlockOperation::LockExclusive);
    locked.map_err(|e| failed("lock", path, e.into()))?;
    Ok(directory)
}

/// What files there are in a directory.
fn names(place: &Path) -> Result<Vec<OsString>, OpenError> {
    let entries = std::fs::read_dir(place).map_err(|e| failed("read", place, e))?;
    let name = |entry: io::Result<DirEntry>| {
        let entry = entry.map_err(|e| failed("read", place, e))?;
        Ok(entry.file_name())
    };
    entries.map(name).collect()
}

/// Makes the system region, unless somebody else is faster.
pub(super) fn make_system(path: &Path, options: &DirectoryOptions) -> Result<(), StoreError> {
    make_first(path, |unfinished| {
        medium::create_private_file(unfinished, options.layout.bytes(), Reserve::Whole)?;
        let file = MappedPmem::open(unfinished, &options.map)?;
        options.layout.format(&file)
    })
}

/// Makes a file at `path` that is there whole or not at all; `make` makes it elsewhere. One
/// that is there is lost.
pub(super) fn make_file<E: From<OpenError>>(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    make_and_rename(path, make, |unfinished| {
        std::fs::rename(unfinished, path).map_err(|e| failed("rename", unfinished, e))
    })
}

/// As [`make_file`], but one that is there stays: somebody else was faster, and may use it.
pub(super) fn make_first<E: From<OpenError>>(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    make_and_rename(path, make, |unfinished| {
        match renameat_with(CWD, unfinished, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            // Who was faster may have taken ours for a leftover.
            Err(Errno::EXIST | Errno::NOENT) => remove(unfinished),
            Err(e) => Err(failed("rename", unfinished, e.into())),
        }
    })
}

fn make_and_rename<E: From<OpenError>>(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
    rename: impl FnOnce(&Path) -> Result<(), OpenError>,
) -> Result<(), E> {
    let unfinished = unfinished(path);
    // Of a process of that number that crashed.
    remove(&unfinished)?;
    let made = make(&unfinished).and_then(|()| {
        sync(&unfinished)?;
        Ok(rename(&unfinished)?)
    });
    if made.is_err() {
        // What is in the way of this is what the error tells.
        let _ = std::fs::remove_file(&unfinished);
    }
    made?;
    Ok(sync_directory(path.parent().unwrap_or(path))?)
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(bytes));
    written.map_err(|e| failed("write", path, e))
}

/// Makes a directory, unless it is there, with those above it: for its owner only.
pub(super) fn make_directory(path: &Path) -> Result<(), OpenError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path);
    made.map_err(|e| failed("create", path, e))
}

/// What a file is called that is not whole yet: as nobody else calls one.
fn unfinished(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}{}-{count}", std::process::id()));
    name.into()
}

pub(super) fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(|e| failed("find", path, e))
}

pub(super) fn remove(path: &Path) -> Result<(), OpenError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, e)),
        _ => Ok(()),
    }
}

pub(super) fn sync(path: &Path) -> Result<(), OpenError> {
    let file = File::open(path).map_err(|e| failed("open", path, e))?;
    file.sync_all().map_err(|e| failed("sync", path, e))
}

pub(super) fn sync_directory(path: &Path) -> Result<(), OpenError> {
    match sync(path) {
        // Some file systems have no such call for directories.
        Err(OpenError::System { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
            Ok(())
        }
        other => other,
    }
}

pub(super) fn failed(doing: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::System {
        doing,
        path: path.to_owned(),
        source,
    }
}
