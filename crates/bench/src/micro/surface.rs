//! The calls that are measured, on an engine in this process and through the kernel.
//!
//! Both sides do the same work for the same operation: `create` makes a file, opens and
//! closes it; `open` finds a name, opens and closes it; the rest is one call.

use super::ops::{BLOCK, FILE_BLOCKS};
use crate::Result;
use crate::error::Context;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{pread, pwrite};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use vfs::{Ctx, FileSystem, Ino, Name, OpenFlags, RenameFlags};

/// One of the two directories of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkDir {
    A,
    B,
}

/// One target: two directories, a file of [`FILE_BLOCKS`] blocks, a log that is empty.
pub(crate) trait Surface {
    fn create(&mut self, dir: WorkDir, name: &CStr) -> Result<()>;
    fn open(&mut self, dir: WorkDir, name: &CStr) -> Result<()>;
    fn unlink(&mut self, dir: WorkDir, name: &CStr) -> Result<()>;
    fn mkdir(&mut self, dir: WorkDir, name: &CStr) -> Result<()>;
    fn rmdir(&mut self, dir: WorkDir, name: &CStr) -> Result<()>;
    fn rename(&mut self, dir: WorkDir, name: &CStr, to: WorkDir, new: &CStr) -> Result<()>;
    fn read(&mut self, off: u64, buf: &mut [u8]) -> Result<()>;
    fn write(&mut self, off: u64, data: &[u8]) -> Result<()>;
    fn write_fsync(&mut self, off: u64, data: &[u8]) -> Result<()>;
    /// Writes at the end of the log, which is at `off`.
    fn append(&mut self, off: u64, data: &[u8]) -> Result<()>;
    /// Makes the log empty; not measured.
    fn empty_log(&mut self) -> Result<()>;
}

/// A file system called in this process.
pub(crate) struct Engine {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    dirs: [Ino; 2],
    file: Ino,
    log: Ino,
}

impl Engine {
    /// Prepares a fresh file system. The references to what is prepared are never
    /// given back: the file system is removed with the value.
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> Result<Self> {
        Self::in_dir(fs, Ino::ROOT)
    }

    /// As [`new`](Self::new), in a new directory `home` of a file system that has other
    /// users.
    pub(crate) fn below(fs: Arc<dyn FileSystem>, home: &str) -> Result<Self> {
        let made = fs.mkdir(&Ctx::root(), Ino::ROOT, home.as_bytes(), 0o755);
        let home = made.what(|| "preparing an engine".to_owned())?.ino;
        Self::in_dir(fs, home)
    }

    fn in_dir(fs: Arc<dyn FileSystem>, home: Ino) -> Result<Self> {
        let cx = Ctx::root();
        let what = || "preparing an engine".to_owned();
        let dir = |name: &[u8]| fs.mkdir(&cx, home, name, 0o755).what(what);
        let dirs = [dir(b"a")?.ino, dir(b"b")?.ino];
        let make = |name: &[u8]| fs.create(&cx, home, name, 0o644).what(what);
        let (file, log) = (make(b"file")?.ino, make(b"log")?.ino);
        for block in 0..FILE_BLOCKS {
            fs.write(&cx, file, block * BLOCK as u64, &[1; BLOCK])
                .what(what)?;
        }
        Ok(Self {
            fs,
            cx,
            dirs,
            file,
            log,
        })
    }

    fn dir(&self, dir: WorkDir) -> Ino {
        self.dirs[dir as usize]
    }

    fn use_once(&self, ino: Ino) -> vfs::Result<()> {
        self.fs.open(&self.cx, ino, OpenFlags::WRITE)?;
        self.fs.release(ino);
        self.fs.forget(ino, 1);
        Ok(())
    }
}

impl Surface for Engine {
    fn create(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        self.fs
            .create(&self.cx, self.dir(dir), name.to_bytes(), 0o644)
            .and_then(|attr| self.use_once(attr.ino))
            .what(|| "create".into())
    }

    fn open(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        self.fs
            .lookup(&self.cx, self.dir(dir), name.to_bytes())
            .and_then(|attr| self.use_once(attr.ino))
            .what(|| "open".into())
    }

    fn unlink(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        self.fs
            .unlink(&self.cx, self.dir(dir), name.to_bytes())
            .what(|| "unlink".into())
    }

    fn mkdir(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        self.fs
            .mkdir(&self.cx, self.dir(dir), name.to_bytes(), 0o755)
            .map(|attr| self.fs.forget(attr.ino, 1))
            .what(|| "mkdir".into())
    }

    fn rmdir(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        self.fs
            .rmdir(&self.cx, self.dir(dir), name.to_bytes())
            .what(|| "rmdir".into())
    }

    fn rename(&mut self, dir: WorkDir, name: &CStr, to: WorkDir, new: &CStr) -> Result<()> {
        let (from, to) = (self.dir(dir), self.dir(to));
        let (name, new) = (name.to_bytes(), new.to_bytes());
        self.fs
            .rename(
                &self.cx,
                Name::new(from, name),
                Name::new(to, new),
                RenameFlags::empty(),
            )
            .what(|| "rename".into())
    }

    fn read(&mut self, off: u64, buf: &mut [u8]) -> Result<()> {
        self.fs
            .read(&self.cx, self.file, off, buf)
            .map(drop)
            .what(|| "read".into())
    }

    fn write(&mut self, off: u64, data: &[u8]) -> Result<()> {
        self.fs
            .write(&self.cx, self.file, off, data)
            .map(drop)
            .what(|| "write".into())
    }

    fn write_fsync(&mut self, off: u64, data: &[u8]) -> Result<()> {
        self.write(off, data)?;
        self.fs
            .fsync(&self.cx, self.file, false)
            .what(|| "fsync".into())
    }

    fn append(&mut self, off: u64, data: &[u8]) -> Result<()> {
        self.fs
            .write(&self.cx, self.log, off, data)
            .map(drop)
            .what(|| "append".into())
    }

    fn empty_log(&mut self) -> Result<()> {
        self.fs
            .truncate(&self.cx, self.log, 0)
            .what(|| "truncate".into())
    }
}

/// A directory of a kernel file system, reached by descriptor only: the file system may
/// already be detached from the tree.
pub(crate) struct Directory {
    dirs: [OwnedFd; 2],
    file: OwnedFd,
    log: OwnedFd,
    /// Removes everything when dropped, unless the whole file system is removed.
    _home: Option<TempDir>,
}

impl Directory {
    /// Works in a directory of its own below `parent`, removed at the end.
    pub(crate) fn below(parent: &Path) -> Result<Self> {
        let what = || format!("preparing {}", parent.display());
        let home = tempfile::Builder::new()
            .prefix("selvedge-bench-")
            .tempdir_in(parent)
            .what(what)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(home.path(), flags, Mode::empty()).what(what)?;
        Self::prepare(&root, Some(home)).what(what)
    }

    /// Works in the root of a file system that is nobody else's.
    pub(crate) fn owned(root: &OwnedFd) -> Result<Self> {
        Self::prepare(root, None).what(|| "preparing a file system".into())
    }

    fn prepare(root: &OwnedFd, home: Option<TempDir>) -> rustix::io::Result<Self> {
        let dir = |name| {
            rustix::fs::mkdirat(root, name, Mode::from(0o755))?;
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(root, name, flags, Mode::empty())
        };
        let make = |name| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::openat(root, name, flags, Mode::from(0o644))
        };
        let made = Self {
            dirs: [dir("a")?, dir("b")?],
            file: make("file")?,
            log: make("log")?,
            _home: home,
        };
        for block in 0..FILE_BLOCKS {
            pwrite(&made.file, &[1; BLOCK], block * BLOCK as u64)?;
        }
        rustix::fs::fsync(&made.file)?;
        Ok(made)
    }

    fn dir(&self, dir: WorkDir) -> &OwnedFd {
        &self.dirs[dir as usize]
    }
}

impl Surface for Directory {
    fn create(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(self.dir(dir), name, flags, Mode::from(0o644))
            .map(drop)
            .what(|| "create".into())
    }

    fn open(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(self.dir(dir), name, flags, Mode::empty())
            .map(drop)
            .what(|| "open".into())
    }

    fn unlink(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        rustix::fs::unlinkat(self.dir(dir), name, AtFlags::empty()).what(|| "unlink".into())
    }

    fn mkdir(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        rustix::fs::mkdirat(self.dir(dir), name, Mode::from(0o755)).what(|| "mkdir".into())
    }

    fn rmdir(&mut self, dir: WorkDir, name: &CStr) -> Result<()> {
        rustix::fs::unlinkat(self.dir(dir), name, AtFlags::REMOVEDIR).what(|| "rmdir".into())
    }

    fn rename(&mut self, dir: WorkDir, name: &CStr, to: WorkDir, new: &CStr) -> Result<()> {
        rustix::fs::renameat(self.dir(dir), name, self.dir(to), new).what(|| "rename".into())
    }

    fn read(&mut self, off: u64, buf: &mut [u8]) -> Result<()> {
        pread(&self.file, buf, off).map(drop).what(|| "read".into())
    }

    fn write(&mut self, off: u64, data: &[u8]) -> Result<()> {
        pwrite(&self.file, data, off)
            .map(drop)
            .what(|| "write".into())
    }

    fn write_fsync(&mut self, off: u64, data: &[u8]) -> Result<()> {
        self.write(off, data)?;
        rustix::fs::fsync(&self.file).what(|| "fsync".into())
    }

    fn append(&mut self, off: u64, data: &[u8]) -> Result<()> {
        pwrite(&self.log, data, off)
            .map(drop)
            .what(|| "append".into())
    }

    fn empty_log(&mut self) -> Result<()> {
        rustix::fs::ftruncate(&self.log, 0).what(|| "truncate".into())
    }
}
