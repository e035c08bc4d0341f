//! The pool of a directory: which it is, and that it is there.
//!
//! # Guarantees
//!
//! 1. A directory whose pages are in a pool is used with that pool, or not at all.
//! 2. A pool is used by one directory.
//! 3. A crash while a pool is made leaves a directory that can be opened, with a pool or
//!    without.
//!
//! # How
//!
//! The pool is a directory on persistent memory. In it are `frames`, the pages; `regions`, the
//! system region, since logs are not paged; and the regions of static variables, which are
//! mapped elsewhere, too. The directory has a file `pool`, which names the pool's id and its
//! place. They are made in this order: `frames`, `regions`, `pool`; and then `frames` says that
//! a directory knows of it. A pool that does not say so has nothing in it.

use super::directory::{SYSTEM, slot_of};
use super::files::{
    Files, make_directory, make_file, make_first, make_new, make_system, sync_found,
};
use super::{BackingError, DirectoryOptions, PoolOptions, StoreError};
use medium::OpenError;
use paging::Pool;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of the pages.
pub(super) const FRAMES: &str = "frames";
/// The file that names a directory's pool.
pub(super) const NOTE: &str = "pool";
/// What it begins with, before the id in hexadecimal digits; the next line is the place.
const NOTE_HEAD: &str = "selvedge pool ";

/// A directory and a pool do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum MismatchError {
    /// The pool is not there.
    #[error(
        "pages of {} are in a pool, and {} is missing: bring it back, or say where the pool is; \
         without it they are lost", directory.display(), file.display()
    )]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// What is missing of its pool.
        file: PathBuf,
    },
    /// There is another one in its place.
    #[error(
        "pages of {} are in the pool {wanted:016x}, and {} is the pool {found:016x}: say where \
         the right one is", directory.display(), pool.display()
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// The other pool.
        pool: PathBuf,
        /// The id of its own.
        wanted: u64,
        /// The id of the other.
        found: u64,
    },
    /// The pool is another directory's.
    #[error(
        "{} is the pool of another directory than {}: say another place for a new one",
        pool.display(), directory.display()
    )]
    Taken {
        /// The directory.
        directory: PathBuf,
        /// The pool.
        pool: PathBuf,
    },
    /// The directory was made without a pool, or does not know any more of which.
    #[error(
        "{} has durable memory, and no file '{NOTE}' that names a pool: open it without one, or \
         bring the file back", directory.display()
    )]
    Unpooled {
        /// The directory.
        directory: PathBuf,
    },
    /// What names the pool is damaged.
    #[error(
        "{} does not name a pool: it is damaged, or somebody else's; bring the right one back, or \
         use another directory", file.display()
    )]
    Note {
        /// The file.
        file: PathBuf,
    },
}

/// The pool of a directory.
pub(super) struct Pooled {
    /// Its directory.
    pub path: PathBuf,
    pub pool: Arc<Pool>,
}

/// What a directory knows of its pool.
struct Note {
    id: u64,
    path: PathBuf,
}

impl Note {
    fn read(files: &impl Files, directory: &Path) -> Result<Option<Self>, StoreError> {
        let file = directory.join(NOTE);
        let Some(bytes) = files.read(&file)? else {
            return Ok(None);
        };
        // A directory with a pool has its system region there, and not here.
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
        let (file, write) = (directory.join(NOTE), |path: &Path| {
            files.write(path, &bytes)
        });
        match is_there {
            true => Ok(make_file(files, &file, write)?),
            false => make_new(files, &file, write),
        }
    }
}

impl Pooled {
    /// The pool of the directory at `path`, if it has one or is to have one.
    pub fn open(
        files: &impl Files,
        path: &Path,
        options: &DirectoryOptions,
    ) -> Result<Option<Self>, StoreError> {
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

    /// The pool that a directory knows of.
    fn find(
        files: &impl Files,
        directory: &Path,
        at: &Path,
        note: &Note,
        options: &DirectoryOptions,
    ) -> Result<Self, StoreError> {
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

    /// A new pool for a directory that has nothing in it.
    fn make(
        files: &impl Files,
        directory: &Path,
        wanted: &PoolOptions,
        options: &DirectoryOptions,
    ) -> Result<Self, StoreError> {
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

    fn at(files: &impl Files, path: &Path, options: &DirectoryOptions) -> Result<Self, StoreError> {
        let path = files.canonical(path)?;
        if !options.map.read_only {
            // Before the note: it names what is there.
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
