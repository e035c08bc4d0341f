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

use super::{Backing, BackingError, Layout, Options, Store, StoreError};
use medium::{Arena, ArenaError, EffectiveDurability, MapOptions, MappedPmem, OpenError, Reserve};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file of the system region.
const SYSTEM: &str = "regions";
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
    /// How to map the files.
    pub map: MapOptions,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self {
            base: None,
            bytes: 1 << 40,
            layout: Layout::default(),
            map: MapOptions::default(),
        }
    }
}

/// A directory of regions, mapped.
pub struct Directory {
    path: PathBuf,
    arena: Arc<Arena>,
    map: MapOptions,
}

impl Directory {
    /// Opens the directory at `path`, and makes it if it is not there, unless it is to be
    /// mapped read only.
    ///
    /// # Errors
    /// [`StoreError`]; of these [`OpenError::InUse`] names who has it open.
    pub fn open(path: impl AsRef<Path>, options: &DirectoryOptions) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let read_only = options.map.read_only;
        if !read_only {
            std::fs::create_dir_all(path).map_err(|e| failed("create", path, e))?;
        }
        // Mappings are known by it: it must not depend on where the program goes.
        let path = path.canonicalize().map_err(|e| failed("find", path, e))?;
        let system = path.join(SYSTEM);
        if !read_only && !exists(&system)? {
            make_system(&system, options)?;
        }
        let arena = Arena::reserve(options.base, options.bytes).map_err(BackingError::from)?;
        let mapped = arena.map(0, &system, &options.map);
        mapped.map_err(BackingError::from)?;
        let directory = Self {
            path,
            arena: Arc::new(arena),
            map: options.map,
        };
        if !read_only {
            directory.remove_unfinished()?;
        }
        Ok(directory)
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

    /// The file of the region in `slot`.
    pub fn file(&self, slot: u64) -> PathBuf {
        self.path.join(format!("region-{slot:04}"))
    }

    /// Removes what those left behind who died while they made a file.
    fn remove_unfinished(&self) -> Result<(), StoreError> {
        let entries = std::fs::read_dir(&self.path).map_err(|e| failed("read", &self.path, e))?;
        for entry in entries {
            let name = entry
                .map_err(|e| failed("read", &self.path, e))?
                .file_name();
            if name.to_string_lossy().contains(UNFINISHED) {
                remove(&self.path.join(name))?;
            }
        }
        Ok(())
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

    fn create(&self, slot: u64, start: u64, len: u64) -> Result<(), BackingError> {
        let path = self.file(slot);
        make_file(&path, |unfinished| {
            medium::create_file(unfinished, len, Reserve::Whole)
        })?;
        self.arena.map(start, &path, &self.map)?;
        Ok(())
    }

    fn open(&self, slot: u64, start: u64, len: u64) -> Result<bool, BackingError> {
        let path = self.file(slot);
        match path.metadata() {
            Ok(file) if file.len() >= len => {}
            Ok(_) => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed("find", &path, e).into()),
        }
        self.arena.map(start, &path, &self.map)?;
        Ok(true)
    }

    fn remove(&self, slot: u64, start: u64) -> Result<(), BackingError> {
        match self.arena.unmap(start) {
            Ok(()) | Err(ArenaError::NotMapped { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        remove(&self.file(slot))?;
        Ok(sync_directory(&self.path)?)
    }
}

/// Makes the system region, unless somebody else is faster.
fn make_system(path: &Path, options: &DirectoryOptions) -> Result<(), StoreError> {
    let bytes = options.layout.bytes();
    let unfinished = unfinished(path);
    let made = medium::create_file(&unfinished, bytes, Reserve::Whole)
        .and_then(|()| MappedPmem::open(&unfinished, &options.map))
        .map_err(|e| StoreError::Backing(e.into()))
        .and_then(|file| options.layout.format(&file));
    let made = made.and_then(|()| {
        sync(&unfinished)?;
        Ok(())
    });
    if let Err(error) = made {
        // What is in the way of this is what the error tells.
        let _ = std::fs::remove_file(&unfinished);
        return Err(error);
    }
    match renameat_with(CWD, &unfinished, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Somebody was faster, and may have taken ours for a leftover.
        Err(Errno::EXIST | Errno::NOENT) => remove(&unfinished)?,
        Err(e) => return Err(failed("rename", &unfinished, e.into()).into()),
    }
    sync_directory(path.parent().unwrap_or(path))?;
    Ok(())
}

/// Makes a file at `path` that is there whole or not at all; `make` makes it elsewhere. One
/// that is there is lost.
fn make_file(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let unfinished = unfinished(path);
    let made = make(&unfinished).and_then(|()| sync(&unfinished));
    let made = made.and_then(|()| {
        std::fs::rename(&unfinished, path).map_err(|e| failed("rename", &unfinished, e))
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    made?;
    sync_directory(path.parent().unwrap_or(path))
}

/// What a file is called that is not whole yet: as nobody else calls one.
fn unfinished(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}{}-{count}", std::process::id()));
    name.into()
}

fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(|e| failed("find", path, e))
}

fn remove(path: &Path) -> Result<(), OpenError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, e)),
        _ => Ok(()),
    }
}

fn sync(path: &Path) -> Result<(), OpenError> {
    let file = File::open(path).map_err(|e| failed("open", path, e))?;
    file.sync_all().map_err(|e| failed("sync", path, e))
}

fn sync_directory(path: &Path) -> Result<(), OpenError> {
    match sync(path) {
        // Some file systems have no such call for directories.
        Err(OpenError::System { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
            Ok(())
        }
        other => other,
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::System {
        doing,
        path: path.to_owned(),
        source,
    }
}
