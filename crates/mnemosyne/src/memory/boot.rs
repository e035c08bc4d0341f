//! The note of the boot: detects crashes of the machine that a directory's durability did not
//! cover.
//!
//! # Guarantees
//!
//! 1. While a directory on a disk is open with [`EffectiveDurability::Process`], its file `boot`
//!    contains the id of the machine's boot. It is durable before anything is stored. A file `boot`
//!    of another format belongs to another program: it is left alone, and is an error if a note is
//!    needed.
//! 2. The file is removed once all files of the directory are durable: when the directory is
//!    closed, or opened with another durability.
//! 3. A directory whose file has the id of an earlier boot is rejected, unless the user accepts the
//!    loss. The machine went down before all stores were durable, and the files may be any mixture
//!    of old and new pages. The logs cannot detect this.
//!
//! [`EffectiveDurability::Process`]: medium::EffectiveDurability::Process

use super::BackingError;
use super::files::{Files, make_file, make_new};
use super::names::BOOT_NOTE;
use super::seeded::{Bug, hit};
use medium::OpenError;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The start of the file, before the boot's id and a line feed.
const NOTE_HEAD: &str = "selvedge boot ";

/// The note of a directory.
#[derive(Debug)]
pub(super) struct BootNote {
    directory: PathBuf,
    is_there: AtomicBool,
}

impl BootNote {
    /// Finds the note of `directory`.
    ///
    /// # Errors
    /// [`BackingError::Crashed`] if the note is of an earlier boot and the loss is not accepted.
    pub(super) fn find(
        files: &impl Files,
        directory: &Path,
        accept_loss: bool,
    ) -> Result<Self, BackingError> {
        let note = read(files, directory)?;
        let directory = directory.to_owned();
        if !accept_loss && is_of_crash(files, note.as_deref())? {
            return Err(BackingError::Crashed { directory });
        }
        Ok(Self {
            directory,
            is_there: note.is_some().into(),
        })
    }

    /// Whether there is a note.
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Relaxed)
    }

    /// Whether `directory` has a note of an earlier boot.
    pub(super) fn is_of_crash(files: &impl Files, directory: &Path) -> Result<bool, BackingError> {
        let note = read(files, directory)?;
        Ok(is_of_crash(files, note.as_deref())?)
    }

    /// Makes the note durable.
    ///
    /// # Errors
    /// [`BackingError::InTheWay`] if another program's file has the name.
    pub(super) fn make(&self, files: &impl Files) -> Result<(), BackingError> {
        let (file, contents) = (self.directory.join(BOOT_NOTE), contents(files)?);
        let write = |path: &Path| files.write(path, &contents);
        match hit(Bug::NoteNotSynced) {
            true => files.remove(&file).and_then(|()| write(&file))?,
            false if self.is_there() => make_file(files, &file, write)?,
            false => make_new(files, &file, write)?,
        }
        self.is_there.store(true, Relaxed);
        Ok(())
    }

    /// Removes the note once the files at `paths` are durable.
    pub(super) fn remove(
        &self,
        files: &impl Files,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> Result<(), OpenError> {
        let mut paths = paths.into_iter();
        if !hit(Bug::NoteRemovedBeforeSync) {
            paths.try_for_each(|path| files.sync(&path))?;
        }
        files.remove(&self.directory.join(BOOT_NOTE))?;
        files.sync_directory(&self.directory)?;
        paths.try_for_each(|path| files.sync(&path))
    }
}

/// Reads the note of a directory. Files of other programs are ignored.
fn read(files: &impl Files, directory: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    let found = files.read(&directory.join(BOOT_NOTE))?;
    Ok(found.filter(|note| note.starts_with(NOTE_HEAD.as_bytes())))
}

fn is_of_crash(files: &impl Files, note: Option<&[u8]>) -> Result<bool, OpenError> {
    match note {
        Some(note) => Ok(note != contents(files)?),
        None => Ok(false),
    }
}

/// The contents of a note of this boot.
fn contents(files: &impl Files) -> Result<Vec<u8>, OpenError> {
    Ok(format!("{NOTE_HEAD}{}\n", files.boot()?).into_bytes())
}
