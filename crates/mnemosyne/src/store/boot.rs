//! Crashes of the machine that a directory's durability did not cover.
//!
//! # Guarantees
//!
//! 1. While a directory on a disk is open with [`EffectiveDurability::Process`], its file `boot`
//!    names the boot of the machine. The file is durable before anything is stored.
//! 2. The file is removed once all files of the directory are durable: when the directory is
//!    closed, or is opened with another durability.
//! 3. A directory whose file names an earlier boot is refused, unless its user accepts the loss:
//!    the machine went down before everything was durable, and what is there may be any mixture
//!    of old and new pages. No log can tell.
//!
//! [`EffectiveDurability::Process`]: medium::EffectiveDurability::Process

use super::BackingError;
use super::directory::{exists, failed, make_file, remove, sync, sync_directory, write_file};
use medium::OpenError;
use std::path::{Path, PathBuf};

/// The file.
pub(super) const NOTE: &str = "boot";
/// What it begins with, before the boot's id and a line feed.
const NOTE_HEAD: &str = "selvedge boot ";
/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The note of a directory.
#[derive(Debug)]
pub(super) struct BootNote {
    file: PathBuf,
    pub is_there: bool,
}

impl BootNote {
    /// Finds the note of `directory`.
    ///
    /// # Errors
    /// [`BackingError::Crashed`] if it is of an earlier boot, unless that loss is accepted.
    pub fn find(directory: &Path, accept_loss: bool) -> Result<Self, BackingError> {
        let file = directory.join(NOTE);
        let is_there = exists(&file)?;
        if !accept_loss && Self::is_of_crash(directory)? {
            let directory = directory.to_owned();
            return Err(BackingError::Crashed { directory });
        }
        Ok(Self { file, is_there })
    }

    /// Whether `directory` has a note, of an earlier boot.
    pub fn is_of_crash(directory: &Path) -> Result<bool, BackingError> {
        let file = directory.join(NOTE);
        if !exists(&file)? {
            return Ok(false);
        }
        let found = std::fs::read(&file).map_err(|e| failed("read", &file, e))?;
        Ok(found != contents()?)
    }

    /// Makes the note, durably.
    pub fn make(&mut self) -> Result<(), OpenError> {
        let contents = contents()?;
        make_file(&self.file, |unfinished| write_file(unfinished, &contents))?;
        self.is_there = true;
        Ok(())
    }

    /// Removes the note once `files` are durable.
    pub fn settle(&self, files: impl IntoIterator<Item = PathBuf>) -> Result<(), OpenError> {
        files.into_iter().try_for_each(|file| sync(&file))?;
        remove(&self.file)?;
        sync_directory(self.file.parent().unwrap_or(&self.file))
    }
}

/// What the note of this boot holds.
fn contents() -> Result<Vec<u8>, OpenError> {
    let path = Path::new(BOOT_ID);
    let id = std::fs::read_to_string(path).map_err(|e| failed("read", path, e))?;
    Ok(format!("{NOTE_HEAD}{}\n", id.trim()).into_bytes())
}
