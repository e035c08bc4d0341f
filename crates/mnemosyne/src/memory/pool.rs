//! The pool of a directory: its identity and its files.
//!
//! # Guarantees
//!
//! 1. A directory whose pages are in a pool is used with that pool, or not at all.
//! 2. A pool is used by one directory.
//! 3. A crash while a pool is made leaves a directory that can be opened, with a pool or
//!    without.
//!
//! # Design
//!
//! The pool is a directory on persistent memory. It contains `frames`, the pages, and `regions`,
//! the system region, because logs are not paged. It also has the regions of static variables,
//! which are mapped at other addresses, too. The directory has a file `pool`, with the pool's id
//! and path. The files are made in this order: `frames`, `regions`, `pool`. Then `frames` records
//! that a directory has claimed it. A pool that is not claimed is empty.

use super::files::{
    Files, make_directory, make_file, make_first, make_new, make_system, sync_found,
};
use super::names::{FRAMES, POOL_NOTE, SYSTEM, slot_of};
use super::options::{DirectoryOptions, PoolOptions};
use super::{BackingError, MemoryError, MismatchError};
use medium::OpenError;
use paging::Pool;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The start of the file that names a directory's pool. The id in hexadecimal digits follows; the
/// next line is the path.
const NOTE_HEAD: &str = "selvedge pool ";

/// The pool of a directory.
pub(super) struct Pooled {
    /// The directory of the pool.
    pub path: PathBuf,
    pub pool: Arc<Pool>,
}

/// The id and the path of a directory's pool.
struct Note {
    id: u64,
    path: PathBuf,
}

impl Note {
    fn read(files: &impl Files, directory: &Path) -> Result<Option<Self>, MemoryError> {
        let file = directory.join(POOL_NOTE);
        let Some(bytes) = files.read(&file)? else {
            return Ok(None);
        };
        // The system region of a directory with a pool is in the pool, not in the directory.
        let is_ours = bytes.starts_with(NOTE_HEAD.as_bytes());
        if !is_ours && files.exists(&directory.join(SYSTEM))? {
            return Ok(None);
        }
        let note = Self::parse(&bytes).ok_or(MismatchError::Note { file })?;
        Ok(Some(note))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(NOTE_HEAD.as_bytes())?;
        let (id, path) = rest.split_at_checked(16)?;
        let path = path.strip_prefix(b"\n")?.strip_suffix(b"\n")?;
        Some(Self {
            id: u64::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()?,
            path: OsString::from_vec(path.to_vec()).into(),
        })
    }

    fn write(
        &self,
        files: &impl Files,
        directory: &Path,
        is_there: bool,
    ) -> Result<(), BackingError> {
        let mut bytes = format!("{NOTE_HEAD}{:016x}\n", self.id).into_bytes();
        bytes.extend_from_slice(self.path.as_os_str().as_bytes());
        bytes.push(b'\n');
        let (file, write) = (directory.join(POOL_NOTE), |path: &Path| {
            files.write(path, &bytes)
        });
        match is_there {
            true => Ok(make_file(files, &file, write)?),
            false => make_new(files, &file, write),
        }
    }
}

impl Pooled {
    /// Opens the pool of the directory at `path`, if it has one or `options` request one.
    pub(super) fn open(
        files: &impl Files,
        path: &Path,
        options: &DirectoryOptions,
    ) -> Result<Option<Self>, MemoryError> {
        match (Note::read(files, path)?, &options.pool) {
            (None, None) => Ok(None),
            (None, Some(_)) if options.map.read_only => Ok(None),
            (None, Some(wanted)) => Self::make(files, path, wanted, options).map(Some),
            (Some(note), wanted) => {
                let at = wanted.as_ref().map_or(&note.path, |wanted| &wanted.path);
                Self::find(files, path, at, &note, options).map(Some)
            }
        }
    }

    /// Opens the pool that a directory's note names.
    fn find(
        files: &impl Files,
        directory: &Path,
        at: &Path,
        note: &Note,
        options: &DirectoryOptions,
    ) -> Result<Self, MemoryError> {
        for name in [FRAMES, SYSTEM] {
            let file = at.join(name);
            if !files.exists(&file)? {
                let directory = directory.to_owned();
                return Err(MismatchError::Missing { directory, file }.into());
            }
        }
        let pooled = Self::at(files, at, options)?;
        if pooled.pool.id() != note.id {
            return Err(MismatchError::Foreign {
                directory: directory.to_owned(),
                pool: pooled.path,
                wanted: note.id,
                found: pooled.pool.id(),
            }
            .into());
        }
        if !options.map.read_only {
            if pooled.path != note.path {
                pooled.note(files, directory, true)?;
            }
            if !pooled.pool.is_claimed()? {
                pooled.pool.claim()?;
            }
        }
        Ok(pooled)
    }

    /// Makes a pool for an empty directory.
    fn make(
        files: &impl Files,
        directory: &Path,
        wanted: &PoolOptions,
        options: &DirectoryOptions,
    ) -> Result<Self, MemoryError> {
        if has_regions(files, directory)? {
            let directory = directory.to_owned();
            return Err(MismatchError::Unpooled { directory }.into());
        }
        let at = &wanted.path;
        make_directory(files, at)?;
        let frames = at.join(FRAMES);
        if !files.exists(&frames)? {
            let PoolOptions {
                bytes, page_bytes, ..
            } = *wanted;
            make_first(files, &frames, |unfinished| {
                files.create_pool(unfinished, bytes, page_bytes, &options.map)
            })?;
        }
        let pooled = Self::at(files, at, options)?;
        if pooled.pool.is_claimed()? {
            return Err(MismatchError::Taken {
                directory: directory.to_owned(),
                pool: pooled.path,
            }
            .into());
        }
        let system = pooled.path.join(SYSTEM);
        if !files.exists(&system)? {
            make_system(files, &system, options)?;
        }
        pooled.note(files, directory, false)?;
        pooled.pool.claim()?;
        Ok(pooled)
    }

    fn at(
        files: &impl Files,
        path: &Path,
        options: &DirectoryOptions,
    ) -> Result<Self, MemoryError> {
        let path = files.canonical(path)?;
        if !options.map.read_only {
            // Before the note, which names these files.
            sync_found(files, &path)?;
        }
        let pool = Arc::new(files.open_pool(&path.join(FRAMES), &options.map)?);
        Ok(Self { path, pool })
    }

    fn note(
        &self,
        files: &impl Files,
        directory: &Path,
        is_there: bool,
    ) -> Result<(), BackingError> {
        let note = Note {
            id: self.pool.id(),
            path: self.path.clone(),
        };
        note.write(files, directory, is_there)
    }
}

/// Whether a directory has files of durable memory.
fn has_regions(files: &impl Files, directory: &Path) -> Result<bool, OpenError> {
    let is_ours = |name: &OsString| name == SYSTEM || name.to_str().and_then(slot_of).is_some();
    Ok(files.names(directory)?.iter().any(is_ours))
}
