//! The file system under a directory of regions.
//!
//! # Guarantees
//!
//! 1. A directory of regions reaches files only through [`Files`], and their bytes only through its
//!    mappings. So a crash explorer can replace the system by a model. Pools of pages are the
//!    exception: their files are those of the system.
//! 2. [`make_file`] and [`make_first`] leave a whole, durable file under the name or none, also
//!    after a crash. They may leave a part under another name, for which [`is_unfinished`] returns
//!    true.
//! 3. A directory may have files of other programs, with any names, and other users may be able to
//!    write to it. No link in it is followed, no pipe is waited for, and no file of another program
//!    is replaced.
//!
//! # Requirements on the file system
//!
//! A change of a name (made, renamed, removed) is atomic, and durable once its directory was
//! synchronised. Before that a crash may lose it, independently of other changes. The length and
//! the contents of a file, but not its name, are durable once the file was synchronised. Bytes of a
//! file that were never stored are zeros.

use super::names::{self, SYSTEM};
use super::options::DirectoryOptions;
use super::seeded::{Bug, hit};
use super::{BackingError, MemoryError};
use medium::{
    Arena, ArenaError, EffectiveDurability, MapOptions, MappedPmem, OpenError, Pmem, Reserve,
};
use paging::{Pool, PoolError};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, DirEntry, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The suffix of a file's name until it is whole; a unique part follows.
const UNFINISHED: &str = ".new-";
/// The maximum that is read of a small file: a head, a number and a path.
const SMALL_BYTES: u64 = 8 << 10;
/// The time to wait for other processes that make files of a directory.
const PATIENCE: Duration = Duration::from_secs(2);
/// The file from which the kernel returns the id of its boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A file system, and the mapping of its files.
pub trait Files: Send + Sync {
    /// Several files mapped in one range of addresses.
    type Arena: Mappings;
    /// A mapped file.
    type Mapped: Pmem;
    /// A lock of a directory while its files are made.
    type Turn;

    /// Makes a directory, for its owner only, unless it exists.
    ///
    /// # Errors
    /// [`OpenError::System`], as for all methods below.
    fn make_directory(&self, path: &Path) -> Result<(), OpenError>;

    /// The absolute path without links.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn canonical(&self, path: &Path) -> Result<PathBuf, OpenError>;

    /// Waits a moment for the lock of the directory.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process keeps it; [`OpenError::System`].
    fn lock(&self, directory: &Path) -> Result<Self::Turn, OpenError>;

    /// The names of the regular files in a directory.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn names(&self, directory: &Path) -> Result<Vec<OsString>, OpenError>;

    /// The length of a regular file in bytes, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`OpenError::WrongKind`] if it is not a regular file; [`OpenError::System`].
    fn len_of(&self, path: &Path) -> Result<Option<u64>, OpenError>;

    /// Whether a file or a directory exists.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn exists(&self, path: &Path) -> Result<bool, OpenError> {
        Ok(self.len_of(path)?.is_some())
    }

    /// Makes a new file of that many zero bytes, and allocates its blocks.
    ///
    /// # Errors
    /// [`OpenError`]; `System` if the file exists.
    fn create(&self, path: &Path, len_bytes: u64) -> Result<(), OpenError>;

    /// Makes a new file of these bytes.
    ///
    /// # Errors
    /// [`OpenError::System`], also if the file exists.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), OpenError>;

    /// The contents of a small file, or the beginning of a larger one. `None`: no regular file has
    /// this name.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, OpenError>;

    /// Renames a file, and replaces a file of the new name.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError>;

    /// Renames a file. Returns false if the new name is taken, or the file does not exist.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, OpenError>;

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn remove(&self, path: &Path) -> Result<(), OpenError>;

    /// Makes the contents and the length of a file durable, also if another process stored them.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn sync(&self, path: &Path) -> Result<(), OpenError>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn sync_directory(&self, path: &Path) -> Result<(), OpenError>;

    /// A part for the names of files that no one else uses at this time: numbers, separated by `-`.
    fn unique(&self) -> String;

    /// Whether another process that is alive uses this part in the names of its files.
    fn is_at_work(&self, unique: &str) -> bool;

    /// An id of this boot of the machine.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn boot(&self) -> Result<String, OpenError>;

    /// Whether no file here survives a crash of the machine.
    ///
    /// # Errors
    /// [`OpenError::System`].
    fn is_in_memory(&self, path: &Path) -> Result<bool, OpenError>;

    /// Locks and maps a file.
    ///
    /// # Errors
    /// [`OpenError`].
    fn map(&self, path: &Path, options: &MapOptions) -> Result<Self::Mapped, OpenError>;

    /// Reserves a range of addresses.
    ///
    /// # Errors
    /// [`ArenaError`].
    fn reserve(&self, base: Option<u64>, len_bytes: u64) -> Result<Self::Arena, ArenaError>;

    /// Makes a pool of pages in a new file.
    ///
    /// # Errors
    /// [`PoolError`].
    fn create_pool(
        &self,
        path: &Path,
        len_bytes: u64,
        page_bytes: Option<u64>,
        options: &MapOptions,
    ) -> Result<(), PoolError>;

    /// Opens the pool in a file.
    ///
    /// # Errors
    /// [`PoolError`].
    fn open_pool(&self, path: &Path, options: &MapOptions) -> Result<Pool, PoolError>;
}

/// Files that are mapped in a range of addresses; see [`Arena`], which is one.
pub trait Mappings: Pmem {
    /// Locks the file at `path` and maps it at the offset `start`.
    ///
    /// # Errors
    /// [`ArenaError`].
    fn map(&self, start: u64, path: &Path, options: &MapOptions) -> Result<(), ArenaError>;

    /// As [`map`](Self::map), for a file of which a pool may have pages.
    ///
    /// # Errors
    /// [`ArenaError`].
    fn map_paged(
        &self,
        start: u64,
        path: &Path,
        pool: (&Arc<Pool>, u16),
        options: &MapOptions,
    ) -> Result<(), ArenaError>;

    /// Unmaps the file at the offset `start`.
    ///
    /// # Errors
    /// [`ArenaError`]; `NotMapped` if there is none.
    fn unmap(&self, start: u64) -> Result<(), ArenaError>;

    /// The durability of the file at `start` after a fence, if there is one.
    fn durability(&self, start: u64) -> Option<EffectiveDurability>;
}

impl Mappings for Arena {
    fn map(&self, start: u64, path: &Path, options: &MapOptions) -> Result<(), ArenaError> {
        self.map(start, path, options).map(drop)
    }

    fn map_paged(
        &self,
        start: u64,
        path: &Path,
        pool: (&Arc<Pool>, u16),
        options: &MapOptions,
    ) -> Result<(), ArenaError> {
        self.map_paged(start, path, pool, options).map(drop)
    }

    fn unmap(&self, start: u64) -> Result<(), ArenaError> {
        self.unmap(start)
    }

    fn durability(&self, start: u64) -> Option<EffectiveDurability> {
        self.durability(start)
    }
}

/// The files of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemFiles;

impl Files for SystemFiles {
    type Arena = Arena;
    type Mapped = MappedPmem;
    type Turn = File;

    fn make_directory(&self, path: &Path) -> Result<(), OpenError> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(_) if path.is_dir() => Ok(()),
            made => made.map_err(|e| failed("create", path, e)),
        }
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf, OpenError> {
        path.canonicalize().map_err(|e| failed("find", path, e))
    }

    /// Everybody who may read the directory can keep this lock, so the wait for it is bounded.
    fn lock(&self, path: &Path) -> Result<File, OpenError> {
        let directory = open_directory(path)?;
        medium::lock_for_writer(path, &directory, PATIENCE)?;
        Ok(directory)
    }

    fn names(&self, directory: &Path) -> Result<Vec<OsString>, OpenError> {
        let entries = std::fs::read_dir(directory).map_err(|e| failed("read", directory, e))?;
        let name = |entry: io::Result<DirEntry>| {
            let entry = entry.map_err(|e| failed("read", directory, e))?;
            // Skip a file that was removed meanwhile.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            Ok(is_file.then(|| entry.file_name()))
        };
        entries.map(name).filter_map(Result::transpose).collect()
    }

    fn len_of(&self, path: &Path) -> Result<Option<u64>, OpenError> {
        match path.symlink_metadata() {
            Ok(file) if file.is_file() => Ok(Some(file.len())),
            Ok(_) => Err(not_a_file(path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed("find", path, e)),
        }
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenError> {
        path.try_exists().map_err(|e| failed("find", path, e))
    }

    fn create(&self, path: &Path, len_bytes: u64) -> Result<(), OpenError> {
        medium::create_private_file(path, len_bytes, Reserve::Whole)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| file.write_all(bytes));
        written.map_err(|e| failed("write", path, e))
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
        let file = match open_file(path) {
            Ok(file) => file,
            Err(OpenError::WrongKind { .. }) => return Ok(None),
            Err(OpenError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let mut bytes = Vec::new();
        let read = file.take(SMALL_BYTES).read_to_end(&mut bytes);
        read.map_err(|e| failed("read", path, e))?;
        Ok(Some(bytes))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        std::fs::rename(from, to).map_err(|e| failed("rename", from, e))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, OpenError> {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST | Errno::NOENT) => Ok(false),
            Err(e) => Err(failed("rename", from, e.into())),
        }
    }

    fn remove(&self, path: &Path) -> Result<(), OpenError> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, e)),
            _ => Ok(()),
        }
    }

    fn sync(&self, path: &Path) -> Result<(), OpenError> {
        let synced = open_file(path)?.sync_all();
        synced.map_err(|e| failed("sync", path, e))
    }

    fn sync_directory(&self, path: &Path) -> Result<(), OpenError> {
        match open_directory(path)?.sync_all() {
            // Some file systems do not support this call for directories.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(|e| failed("sync", path, e)),
        }
    }

    fn unique(&self) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{}-{count}", std::process::id())
    }

    fn is_at_work(&self, unique: &str) -> bool {
        let process = unique.split('-').next().and_then(|pid| pid.parse().ok());
        let process = process.and_then(Pid::from_raw);
        let others = process.filter(|pid| *pid != getpid());
        // `EPERM` also shows that the process is alive.
        others.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }

    fn boot(&self) -> Result<String, OpenError> {
        let path = Path::new(BOOT_ID);
        let id = std::fs::read_to_string(path).map_err(|e| failed("read", path, e))?;
        Ok(id.trim().to_owned())
    }

    fn is_in_memory(&self, path: &Path) -> Result<bool, OpenError> {
        medium::is_in_memory(path)
    }

    fn map(&self, path: &Path, options: &MapOptions) -> Result<MappedPmem, OpenError> {
        MappedPmem::open(path, options)
    }

    fn reserve(&self, base: Option<u64>, len_bytes: u64) -> Result<Arena, ArenaError> {
        Arena::reserve(base, len_bytes)
    }

    fn create_pool(
        &self,
        path: &Path,
        len_bytes: u64,
        page_bytes: Option<u64>,
        options: &MapOptions,
    ) -> Result<(), PoolError> {
        Pool::create(path, len_bytes, page_bytes, options)
    }

    fn open_pool(&self, path: &Path, options: &MapOptions) -> Result<Pool, PoolError> {
        Pool::open(path, options)
    }
}

/// Opens a regular file in a directory that other users may be able to write to. It neither follows
/// a link nor waits for a pipe.
fn open_file(path: &Path) -> Result<File, OpenError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A link, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => return Err(not_a_file(path)),
        Err(e) => return Err(failed("open", path, e.into())),
    };
    let found = file.metadata().map_err(|e| failed("open", path, e))?;
    match found.is_file() {
        true => Ok(file),
        false => Err(not_a_file(path)),
    }
}

fn open_directory(path: &Path) -> Result<File, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).map(File::from);
    directory.map_err(|e| failed("open", path, e.into()))
}

fn not_a_file(path: &Path) -> OpenError {
    let path = path.to_owned();
    let kind = "not a regular file";
    OpenError::WrongKind { path, kind }
}

/// As [`make_file`], but does not replace an existing file of any kind.
///
/// # Errors
/// [`BackingError::InTheWay`] if the name is taken.
pub(super) fn make_new(
    files: &impl Files,
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), OpenError>,
) -> Result<(), BackingError> {
    let mut is_first = true;
    make_and_rename(files, path, make, |unfinished| {
        is_first = files.rename_new(unfinished, path)?;
        match is_first {
            true => Ok(()),
            false => files.remove(unfinished),
        }
    })?;
    match is_first {
        true => Ok(()),
        false => Err(BackingError::InTheWay {
            file: path.to_owned(),
        }),
    }
}

/// Makes a file at `path`, whole or not at all; `make` makes it under another name. Replaces an
/// existing file, which must be one of durable memory.
pub(super) fn make_file<E: From<OpenError>>(
    files: &impl Files,
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    make_and_rename(files, path, make, |unfinished| {
        files.rename(unfinished, path)
    })
}

/// As [`make_file`], but keeps an existing file: another process was faster, and may use it.
pub(super) fn make_first<E: From<OpenError>>(
    files: &impl Files,
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    make_and_rename(files, path, make, |unfinished| {
        match files.rename_new(unfinished, path)? {
            true => Ok(()),
            // The faster process may have removed this one as unfinished.
            false => files.remove(unfinished),
        }
    })
}

fn make_and_rename<E: From<OpenError>>(
    files: &impl Files,
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
    rename: impl FnOnce(&Path) -> Result<(), OpenError>,
) -> Result<(), E> {
    let unfinished = unfinished(files, path);
    // An earlier process of the same number may have crashed here.
    files.remove(&unfinished)?;
    let made = make(&unfinished).and_then(|()| {
        // Initialise before point: a process that finds the name expects a whole file.
        if !hit(Bug::NameBeforeContents) && !hit(Bug::ContentsNotSynced) {
            files.sync(&unfinished)?;
        }
        Ok(rename(&unfinished)?)
    });
    if made.is_err() {
        // Ignore this error: the first one matters.
        let _ = files.remove(&unfinished);
    }
    made?;
    if hit(Bug::NameBeforeContents) {
        files.sync(path)?;
    }
    if hit(Bug::NameNotSynced) {
        return Ok(());
    }
    Ok(files.sync_directory(directory_of(path))?)
}

/// The directory that contains a file or a directory.
pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Makes a directory unless it exists, with those above it. Each is durable before anything is made
/// in it.
pub(super) fn make_directory(files: &impl Files, path: &Path) -> Result<(), OpenError> {
    if files.exists(&path.join(SYSTEM))? {
        return Ok(());
    }
    let mut missing = Vec::new();
    for above in path
        .ancestors()
        .filter(|above| !above.as_os_str().is_empty())
    {
        if files.exists(above)? {
            // The process that made it may have been killed before it was durable.
            sync_name(files, above)?;
            break;
        }
        missing.push(above);
    }
    missing.into_iter().rev().try_for_each(|above| {
        files.make_directory(above)?;
        sync_name(files, above)
    })
}

/// Makes the name of a directory durable.
fn sync_name(files: &impl Files, path: &Path) -> Result<(), OpenError> {
    if hit(Bug::DirectoryNotSynced) {
        return Ok(());
    }
    match files.sync_directory(directory_of(path)) {
        // The directory above belongs to another user, who also made this one.
        Err(OpenError::System { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Makes the names in a directory durable. A process may have been killed between a change and its
/// synchronisation, and these files are about to be relied on.
pub(super) fn sync_found(files: &impl Files, directory: &Path) -> Result<(), OpenError> {
    match hit(Bug::FoundNotSynced) {
        true => Ok(()),
        false => files.sync_directory(directory),
    }
}

/// The unique name of a file that is not whole yet.
fn unfinished(files: &impl Files, path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}{}", files.unique()));
    name.into()
}

/// Whether a name is that of an unfinished file that no process is making any more.
pub(super) fn is_unfinished(files: &impl Files, name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.split_once(UNFINISHED));
    parts.is_some_and(|(name, unique)| {
        let mut numbers = unique.split('-');
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let is_ours = names::is_ours(name) && numbers.all(is_number);
        is_ours && !files.is_at_work(unique)
    })
}

/// Makes the system region, unless another process is faster.
pub(super) fn make_system(
    files: &impl Files,
    path: &Path,
    options: &DirectoryOptions,
) -> Result<(), MemoryError> {
    make_first(files, path, |unfinished| {
        files.create(unfinished, options.layout.bytes())?;
        let file = files.map(unfinished, &options.map)?;
        options.layout.format(&file)
    })
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::System {
        doing,
        path: path.to_owned(),
        source,
    }
}
