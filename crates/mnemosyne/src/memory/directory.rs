//! Regions in the files of a directory, in one range of addresses.
//!
//! # Guarantees
//!
//! 1. The files are `regions`, the system region, and one for each used slot of the region table:
//!    `region-` and the slot's number. A file gets this name once it is whole and durable, all
//!    zeros. The name is durable when the call returns.
//! 2. All blocks of a file are allocated when it is made. So a full disk is an error then, and not
//!    at a store.
//! 3. Files of other programs are not replaced, whatever their names. A region takes the next slot
//!    then. If another name that is needed is taken, opening fails.
//! 4. While a directory is open, nothing opens it again, in this process or another.
//! 5. Of several processes that make a directory at the same time, one does.
//! 6. Directories, files and pools are made for their owner only (modes 0700 and 0600). Existing
//!    ones keep their modes.
//! 7. Committed transactions survive a power failure, unless less is requested: on a disk
//!    [`Durability::Auto`](medium::Durability::Auto) is `msync`. With `process` the next opening
//!    detects a crash of the machine (see `boot`).
//! 8. New directories on the path are durable before anything is made in them. Names that a killed
//!    process has left are durable before anything relies on them.
//! 9. With a pool, regions may be larger than persistent memory: their pages are in the files here,
//!    or in the pool (see [`paging`]). The files may then be on a disk. The pool's directory has
//!    the files that must be in persistent memory as a whole: `regions`, and those of static
//!    variables.

use super::boot::BootNote;
use super::files::{
    Files, Mappings, SystemFiles, directory_of, is_unfinished, make_directory, make_new,
    make_system, sync_found,
};
use super::names::{FRAMES, SYSTEM, file_name, slot_of};
use super::options::DirectoryOptions;
use super::pool::Pooled;
use super::seeded::{Bug, hit};
use super::{Backing, BackingError, DurableMemory, MemoryError, Options, Region, RegionKind};
use medium::{ArenaError, EffectiveDurability, MapOptions};
use paging::Pool;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mapped directory of regions.
pub struct Directory<F: Files = SystemFiles> {
    files: F,
    path: PathBuf,
    arena: Arc<F::Arena>,
    map: MapOptions,
    pooled: Option<Pooled>,
    boot: Option<BootNote>,
}

impl Directory {
    /// Opens the directory at `path`, and makes it if it does not exist, unless it is mapped read
    /// only.
    ///
    /// # Errors
    /// [`MemoryError`]. [`OpenError::InUse`](medium::OpenError::InUse) names the process that has
    /// the directory open.
    pub fn open(path: impl AsRef<Path>, options: &DirectoryOptions) -> Result<Self, MemoryError> {
        Self::open_in(SystemFiles, path, options)
    }
}

impl<F: Files> Directory<F> {
    /// As [`open`](Directory::open), in another file system.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open_in(
        files: F,
        path: impl AsRef<Path>,
        options: &DirectoryOptions,
    ) -> Result<Self, MemoryError> {
        let path = path.as_ref();
        let mut options = options.clone();
        options.map.power_safe = true;
        options.map.no_links = true;
        let options = &options;
        let read_only = options.map.read_only;
        let makes = !read_only && !options.must_exist;
        if makes {
            make_directory(&files, path)?;
        }
        // Mappings are identified by the path, so it must not depend on the working directory.
        let path = files.canonical(path)?;
        // Until the system region is locked, which keeps other processes out.
        let _turn = match read_only {
            true => None,
            false => Some(files.lock(&path)?),
        };
        if !read_only {
            sync_found(&files, &path)?;
        }
        let boot = match read_only {
            true => None,
            false => Some(BootNote::find(&files, &path, options.accept_loss)?),
        };
        let pooled = Pooled::open(&files, &path, options)?;
        let in_memory = pooled.as_ref().map_or(&path, |pooled| &pooled.path);
        let system = in_memory.join(SYSTEM);
        if makes && pooled.is_none() && !files.exists(&system)? {
            make_system(&files, &system, options)?;
        }
        let arena = files.reserve(options.base, options.bytes);
        let arena = arena.map_err(BackingError::from)?;
        let mapped = arena.map(0, &system, &options.map);
        mapped.map_err(BackingError::from)?;
        let directory = Self {
            files,
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

    /// Makes the note by which the next opening detects a crash of the machine that the durability
    /// does not cover.
    fn note_boot(&self) -> Result<(), MemoryError> {
        let is_lost = self.durability() == EffectiveDurability::Process
            && !self.files.is_in_memory(self.in_memory())?;
        match &self.boot {
            // A simulated power cut leaves a state of a power failure, in which nothing is lost.
            Some(boot) if is_lost && !self.map.simulate_power_cut => {
                match hit(Bug::NoteAfterStores) {
                    true => Ok(()),
                    false => Ok(boot.make(&self.files)?),
                }
            }
            _ => self.remove_note(),
        }
    }

    /// Makes all files durable, also plain stores that were never flushed, and removes the note of the boot. Call it at
    /// the end of a program: later stores are not covered.
    ///
    /// # Errors
    /// [`MemoryError`]; then the note remains.
    pub fn sync(&self) -> Result<(), MemoryError> {
        match &self.boot {
            Some(boot) if !boot.is_there() && !hit(Bug::OnlyNotedSynced) => {
                let mut paths = self.memory_files()?.into_iter();
                Ok(paths.try_for_each(|path| self.files.sync(&path))?)
            }
            _ => self.remove_note(),
        }
    }

    /// Removes the note of the boot, if there is one, once all files are durable. Dropping the directory does that.
    fn remove_note(&self) -> Result<(), MemoryError> {
        let Some(boot) = self.boot.as_ref().filter(|boot| boot.is_there()) else {
            return Ok(());
        };
        Ok(boot.remove(&self.files, self.memory_files()?)?)
    }

    /// The files that have contents of the memory.
    fn memory_files(&self) -> Result<Vec<PathBuf>, MemoryError> {
        let mut files = Vec::new();
        for directory in [&self.path, self.in_memory()] {
            let names = self.files.names(directory)?.into_iter();
            let is_memory = |name: &OsString| {
                let name = name.to_str().unwrap_or_default();
                [SYSTEM, FRAMES].contains(&name) || slot_of(name).is_some()
            };
            files.extend(names.filter(is_memory).map(|name| directory.join(name)));
        }
        Ok(files)
    }

    /// The range of addresses.
    pub fn arena(&self) -> &Arc<F::Arena> {
        &self.arena
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The durability in force.
    pub fn durability(&self) -> EffectiveDurability {
        let system = self.arena.durability(0);
        system.unwrap_or(EffectiveDurability::Process)
    }

    /// The pool that moves pages, if there is one.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pooled.as_ref().map(|pooled| &pooled.pool)
    }

    /// The directory of the files that are in persistent memory as a whole.
    fn in_memory(&self) -> &Path {
        let pooled = self.pooled.as_ref();
        pooled.map_or(&self.path, |pooled| &pooled.path)
    }

    /// The file of a region.
    pub fn file(&self, region: &Region) -> PathBuf {
        let directory = match self.pool_of(region) {
            Some(_) => &self.path,
            None => self.in_memory(),
        };
        directory.join(file_name(region.slot))
    }

    /// The pool that moves a region's pages, and the slot by which it identifies the region.
    fn pool_of(&self, region: &Region) -> Option<(&Arc<Pool>, u16)> {
        let pool = self.pool().filter(|_| region.kind != RegionKind::Static)?;
        // A table has no more slots than that.
        Some((pool, region.slot as u16))
    }

    fn map(&self, region: &Region) -> Result<(), ArenaError> {
        let (start, path) = (region.start, self.file(region));
        match self.pool_of(region) {
            Some(pool) => self.arena.map_paged(start, &path, pool, &self.map),
            None => self.arena.map(start, &path, &self.map),
        }
    }

    /// The slots that have files.
    pub(super) fn files(&self) -> Result<Vec<u64>, MemoryError> {
        let slot = |name: &OsStr| slot_of(name.to_str()?);
        let mut found = self.files.names(&self.path)?;
        if self.in_memory() != self.path {
            found.extend(self.files.names(self.in_memory())?);
        }
        Ok(found.iter().filter_map(|name| slot(name)).collect())
    }

    /// Removes unfinished files of killed processes.
    fn remove_unfinished(&self, directory: &Path) -> Result<(), MemoryError> {
        let names = self.files.names(directory)?.into_iter();
        let mut unfinished = names.filter(|name| is_unfinished(&self.files, name));
        unfinished.try_for_each(|name| Ok(self.files.remove(&directory.join(name))?))
    }
}

impl<F: Files> Drop for Directory<F> {
    fn drop(&mut self) {
        // Other owners of the arena may still store to it.
        if Arc::strong_count(&self.arena) == 1 {
            // After a failure the note remains.
            let _ = self.remove_note();
        }
    }
}

impl DurableMemory<Directory> {
    /// Opens the directory at `path`, or makes it if it does not exist, and recovers its memory. A
    /// thread truncates the logs. Addresses in transactions are offsets.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open_directory(
        path: impl AsRef<Path>,
        directory: &DirectoryOptions,
        options: Options,
    ) -> Result<Self, MemoryError> {
        let directory = Directory::open(path, directory)?;
        let arena = directory.arena().clone();
        let memory = Self::open(directory, arena, options)?;
        memory.truncate_in_background();
        Ok(memory)
    }
}

impl<F: Files> Backing for Directory<F> {
    type Pmem = Arc<F::Arena>;

    fn pmem(&self) -> &Arc<F::Arena> {
        &self.arena
    }

    fn create(&self, region: &Region) -> Result<(), BackingError> {
        make_new(&self.files, &self.file(region), |unfinished| {
            self.files.create(unfinished, region.len)
        })?;
        if let Some(boot) = &self.boot
            && self.durability() == EffectiveDurability::Process
            && hit(Bug::NoteAfterStores)
        {
            boot.make(&self.files)?;
        }
        Ok(self.map(region)?)
    }

    fn is_free(&self, slot: u64) -> Result<bool, BackingError> {
        let name = file_name(slot);
        let is_there = |directory: &Path| self.files.exists(&directory.join(&name));
        Ok(!is_there(&self.path)? && !is_there(self.in_memory())?)
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        let found = self.files.len_of(&self.file(region))?;
        if found.is_none_or(|bytes| bytes < region.len) {
            return Ok(false);
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
            // Before the file: a page in a frame must belong to a region that exists.
            pool.forget(slot)?;
        }
        let path = self.file(region);
        self.files.remove(&path)?;
        if hit(Bug::RemovalNotSynced) {
            return Ok(());
        }
        Ok(self.files.sync_directory(directory_of(&path))?)
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
