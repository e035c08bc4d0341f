//! Files whose names the program chooses, such as a drawing beside an image.
//!
//! Guarantees:
//! - A file is created anew, for its owner only unless the caller says otherwise, and takes
//!   the name when it is complete. A symbolic link or a pipe of that name is replaced, not
//!   followed or opened.
//! - The directory is opened once. Nothing that happens to its path later, such as a mount
//!   over it, leads elsewhere.

use rustix::fs::{Mode, OFlags, open};
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

/// The mode of a file that only its owner reads.
pub(crate) const PRIVATE: u32 = 0o600;

/// A file that is written as a whole, if at all.
#[derive(Debug, Clone)]
pub(crate) struct OwnFile {
    dir: Arc<OwnedFd>,
    path: PathBuf,
    name: OsString,
}

impl OwnFile {
    /// The file at `path`.
    ///
    /// # Errors
    /// If there is no such directory.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            dir: Arc::new(open(dir, flags, Mode::empty())?),
            name: name.to_owned(),
            path,
        })
    }

    /// The file at `path`, which the user chose: not one that replaces anything but a
    /// regular file, such as a device.
    ///
    /// # Errors
    /// If there is no such directory, or a file of another kind has that name.
    pub(crate) fn chosen(path: &Path) -> io::Result<Self> {
        let file = Self::new(path)?;
        match std::fs::symlink_metadata(file.in_dir(&file.name)) {
            Ok(there) if !there.is_file() => Err(io::Error::other("is not a regular file")),
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(file),
        }
    }

    /// The file whose name is that of `image` and `ending`.
    ///
    /// # Errors
    /// If there is no such directory.
    pub(crate) fn beside(image: &Path, ending: &str) -> io::Result<Self> {
        let mut path = image.as_os_str().to_owned();
        path.push(ending);
        Self::new(Path::new(&path))
    }

    /// The absolute path that it was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file can be written, before there are contents.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn try_write(&self) -> io::Result<()> {
        self.unfinished(PRIVATE)?.close()
    }

    /// Makes the file, or replaces it.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn write(&self, bytes: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
        let mut file = self.unfinished(mode)?;
        file.write_all(bytes.as_ref())?;
        file.persist(self.in_dir(&self.name))?;
        Ok(())
    }

    fn unfinished(&self, mode: u32) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(".selvedge-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(self.in_dir(OsStr::new("")))
    }

    /// A path to `name` in the directory, wherever that is by now.
    fn in_dir(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.dir.as_raw_fd().to_string())
            .join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, link) = (dir.path().join("secret"), dir.path().join("link"));
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, &link).unwrap();
        let file = OwnFile::new(&link).unwrap();
        assert!(OwnFile::chosen(&link).is_err());
        assert!(OwnFile::chosen(Path::new("/dev/null")).is_err());
        assert!(OwnFile::chosen(&secret).is_ok());
        file.write("new", PRIVATE).unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        let made = fs::symlink_metadata(&link).unwrap();
        assert_eq!((made.is_file(), made.mode() & 0o7777), (true, PRIVATE));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_directory_that_was_moved_is_still_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::create_dir(&old).unwrap();
        let file = OwnFile::beside(&old.join("image"), ".svg").unwrap();
        file.try_write().unwrap();
        fs::rename(&old, &new).unwrap();
        symlink("/none", &old).unwrap();
        file.write("new", 0o644).unwrap();
        assert_eq!(fs::read_to_string(new.join("image.svg")).unwrap(), "new");
        assert!(OwnFile::new(&dir.path().join("none/file")).is_err());
    }
}
