//! The calls of workloads, on an engine in this process and through the kernel.
//!
//! Both sides do the same work for the same call. A file is open while its value lives. A path is resolved from the root.
//! An engine does this component by component. The library of a client of a service caches directories, as the kernel
//! does.

use crate::error::{Context, Result};
use crate::server::Server;
use crate::service::Connected;
use aerie_client::{Client, File, Files, OFlags as Flags};
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom};
use rustix::io::{pread, pwrite, write};
use std::any::Any;
use std::borrow::Borrow;
use std::ffi::CStr;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::Path;
use tempfile::TempDir;
use vfs::{Ctx, Errno, FileSystem, Ino, OpenFlags, SetAttr};

/// The bytes that are written.
pub(crate) static DATA: [u8; 1 << 20] = [b'm'; 1 << 20];

/// A file system that several threads use.
pub(crate) trait Tree: Send + Sync {
    fn mkdir(&self, path: &CStr) -> Result<()>;
    fn create(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>>;
    fn open(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>>;
    fn stat(&self, path: &CStr) -> Result<()>;
    fn chmod(&self, path: &CStr, mode: u32) -> Result<()>;
    fn unlink(&self, path: &CStr) -> Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
}

/// An open file.
pub(crate) trait OpenFile {
    /// Returns the number of bytes read.
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<usize>;
    /// Fails if the file system takes only a part.
    fn write(&self, off: u64, data: &[u8]) -> Result<()>;
    /// Writes at most 1 MiB at the end of the file, which it finds by a call.
    fn append(&self, bytes: usize) -> Result<()>;
    fn fsync(&self) -> Result<()>;

    /// Reads to the end of the file.
    fn read_whole(&self, buf: &mut [u8]) -> Result<()> {
        let mut off = 0;
        loop {
            match self.read(off, buf)? {
                0 => return Ok(()),
                read => off += read as u64,
            }
        }
    }

    /// Writes this many bytes in calls of at most `io_bytes`, which are at most 1 MiB.
    fn write_bytes(&self, off: u64, bytes: usize, io_bytes: usize) -> Result<()> {
        let mut calls = (0..bytes).step_by(io_bytes);
        calls.try_for_each(|done| {
            let len = io_bytes.min(bytes - done);
            self.write(off + done as u64, &DATA[..len])
        })
    }
}

/// Fails if a call wrote less than its data, as it does when the file system is full.
fn whole(written: usize, data: &[u8]) -> Result<()> {
    match written == data.len() {
        true => Ok(()),
        false => Err(Errno::NOSPC).what(|| format!("write of {written} of {} bytes", data.len())),
    }
}

/// A file system called in this process.
pub(crate) struct InProcess<F> {
    fs: F,
    cx: Ctx,
}

impl<F: Deref<Target: FileSystem>> InProcess<F> {
    pub(crate) fn new(fs: F) -> Self {
        let cx = Ctx::root();
        Self { fs, cx }
    }

    /// Calls `act` with the directory of the path, and with the name in it.
    fn at<T>(&self, path: &CStr, act: impl FnOnce(Ino, &[u8]) -> vfs::Result<T>) -> vfs::Result<T> {
        let mut names = path.to_bytes().split(|byte| *byte == b'/');
        let last = names.next_back().unwrap_or_default();
        let mut dir = Ino::ROOT;
        for name in names {
            let found = self.fs.lookup(&self.cx, dir, name);
            self.leave(dir);
            dir = found?.ino;
        }
        let done = act(dir, last);
        self.leave(dir);
        done
    }

    fn leave(&self, dir: Ino) {
        if dir != Ino::ROOT {
            self.fs.forget(dir, 1);
        }
    }

    /// Opens a file, and takes over the reference of the caller.
    fn opened(&self, ino: Ino) -> vfs::Result<Box<dyn OpenFile + '_>> {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let opened = self.fs.open(&self.cx, ino, flags);
        opened.inspect_err(|_| self.fs.forget(ino, 1))?;
        Ok(Box::new(Opened { tree: self, ino }))
    }
}

impl<F: Deref<Target: FileSystem> + Send + Sync> Tree for InProcess<F> {
    fn mkdir(&self, path: &CStr) -> Result<()> {
        let made = self.at(path, |dir, name| self.fs.mkdir(&self.cx, dir, name, 0o755));
        made.map(|made| self.fs.forget(made.ino, 1))
            .what(|| "mkdir".into())
    }

    fn create(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.at(path, |dir, name| self.fs.create(&self.cx, dir, name, 0o644))
            .and_then(|attr| self.opened(attr.ino))
            .what(|| "create".into())
    }

    fn open(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.at(path, |dir, name| self.fs.lookup(&self.cx, dir, name))
            .and_then(|attr| self.opened(attr.ino))
            .what(|| "open".into())
    }

    fn stat(&self, path: &CStr) -> Result<()> {
        let found = self.at(path, |dir, name| self.fs.lookup(&self.cx, dir, name));
        found
            .map(|found| self.fs.forget(found.ino, 1))
            .what(|| "stat".into())
    }

    fn chmod(&self, path: &CStr, mode: u32) -> Result<()> {
        let set = SetAttr {
            perm: Some(mode),
            ..SetAttr::default()
        };
        self.at(path, |dir, name| {
            let found = self.fs.lookup(&self.cx, dir, name)?.ino;
            let changed = self.fs.setattr(&self.cx, found, &set);
            self.fs.forget(found, 1);
            changed
        })
        .map(drop)
        .what(|| "chmod".into())
    }

    fn unlink(&self, path: &CStr) -> Result<()> {
        self.at(path, |dir, name| self.fs.unlink(&self.cx, dir, name))
            .what(|| "unlink".into())
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync().what(|| "sync".into())
    }
}

/// An open file of an engine.
struct Opened<'t, F: Deref<Target: FileSystem>> {
    tree: &'t InProcess<F>,
    ino: Ino,
}

impl<F: Deref<Target: FileSystem>> OpenFile for Opened<'_, F> {
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<usize> {
        let InProcess { fs, cx } = self.tree;
        fs.read(cx, self.ino, off, buf).what(|| "read".into())
    }

    fn write(&self, off: u64, data: &[u8]) -> Result<()> {
        let InProcess { fs, cx } = self.tree;
        let written = fs.write(cx, self.ino, off, data);
        whole(written.what(|| "write".into())?, data)
    }

    fn append(&self, bytes: usize) -> Result<()> {
        let InProcess { fs, cx } = self.tree;
        let size = fs.getattr(cx, self.ino).what(|| "getattr".into())?.size;
        self.write(size, &DATA[..bytes])
    }

    fn fsync(&self) -> Result<()> {
        let InProcess { fs, cx } = self.tree;
        fs.fsync(cx, self.ino, false).what(|| "fsync".into())
    }
}

impl<F: Deref<Target: FileSystem>> Drop for Opened<'_, F> {
    fn drop(&mut self) {
        self.tree.fs.release(self.ino);
        self.tree.fs.forget(self.ino, 1);
    }
}

/// A client of a service, by the paths of its library.
pub(crate) struct ByPath(pub(crate) Connected);

impl ByPath {
    fn files(&self) -> Files<&Client> {
        Files::new(self.0.borrow())
    }

    fn open_with(&self, path: &CStr, flags: Flags) -> Result<Box<dyn OpenFile + '_>> {
        let file = self
            .files()
            .open(path.to_bytes(), flags | Flags::RDWR, 0o644);
        Ok(Box::new(file.what(|| "open".into())?))
    }
}

impl Tree for ByPath {
    fn mkdir(&self, path: &CStr) -> Result<()> {
        let made = self.files().make_directory(path.to_bytes(), 0o755);
        made.what(|| "mkdir".into())
    }

    fn create(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.open_with(path, Flags::CREATE | Flags::EXCL)
    }

    fn open(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.open_with(path, Flags::empty())
    }

    fn stat(&self, path: &CStr) -> Result<()> {
        let found = self.files().attributes(path.to_bytes());
        found.map(drop).what(|| "stat".into())
    }

    fn chmod(&self, path: &CStr, mode: u32) -> Result<()> {
        let set = SetAttr {
            perm: Some(mode),
            ..SetAttr::default()
        };
        let set = self.files().set_attributes(path.to_bytes(), &set);
        set.what(|| "chmod".into())
    }

    fn unlink(&self, path: &CStr) -> Result<()> {
        let removed = self.files().unlink(path.to_bytes());
        removed.what(|| "unlink".into())
    }

    fn sync(&self) -> Result<()> {
        self.files().sync().what(|| "sync".into())
    }
}

impl OpenFile for File<&Client> {
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(buf, off).what(|| "read".into())
    }

    fn write(&self, off: u64, data: &[u8]) -> Result<()> {
        whole(self.write_at(data, off).what(|| "write".into())?, data)
    }

    fn append(&self, bytes: usize) -> Result<()> {
        let size = self.attributes().what(|| "getattr".into())?.size;
        OpenFile::write(self, size, &DATA[..bytes])
    }

    fn fsync(&self) -> Result<()> {
        self.sync().what(|| "fsync".into())
    }
}

/// A directory, by system calls. Only its descriptor is used: its file system may already be
/// detached from the tree.
pub(crate) struct Directory {
    root: OwnedFd,
    keep: Keep,
}

/// The owner of a directory, dropped after its descriptor.
enum Keep {
    /// None, or the file system of the descriptor.
    Nothing,
    /// A directory to remove.
    Home { _home: TempDir },
    /// A mount, and what it stands on.
    Mount {
        server: Server,
        _below: Box<dyn Any + Send + Sync>,
    },
}

impl Directory {
    /// A directory at this path.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.what(|| format!("opening {}", path.display()))?;
        Ok(Self::owned(root))
    }

    /// The root of a file system without other users.
    pub(crate) fn owned(root: OwnedFd) -> Self {
        let keep = Keep::Nothing;
        Self { root, keep }
    }

    /// A new directory, removed at the end.
    pub(crate) fn temporary(home: TempDir) -> Result<Self> {
        let Self { root, .. } = Self::open(home.path())?;
        let keep = Keep::Home { _home: home };
        Ok(Self { root, keep })
    }

    /// The root of a mount, which is unmounted at the end. Then `below` is dropped: the directory of its
    /// image, or a service.
    pub(crate) fn mounted(server: Server, below: impl Any + Send + Sync) -> Result<Self> {
        let Self { root, .. } = Self::open(&server.dir)?;
        let keep = Keep::Mount {
            server,
            _below: Box::new(below),
        };
        Ok(Self { root, keep })
    }

    fn at(&self, path: &CStr, flags: OFlags) -> Result<Box<dyn OpenFile>> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::from(0o644));
        Ok(Box::new(file.what(|| "open".into())?))
    }
}

impl Tree for Directory {
    fn mkdir(&self, path: &CStr) -> Result<()> {
        rustix::fs::mkdirat(&self.root, path, Mode::from(0o755)).what(|| "mkdir".into())
    }

    fn create(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.at(path, OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.at(path, OFlags::empty())
    }

    fn stat(&self, path: &CStr) -> Result<()> {
        let stat = rustix::fs::statat(&self.root, path, AtFlags::empty());
        stat.map(drop).what(|| "stat".into())
    }

    fn chmod(&self, path: &CStr, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::chmodat(&self.root, path, mode, AtFlags::empty()).what(|| "chmod".into())
    }

    fn unlink(&self, path: &CStr) -> Result<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::empty()).what(|| "unlink".into())
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(&self.root).what(|| "sync".into())?;
        match &self.keep {
            Keep::Mount { server, .. } => server.sync(),
            Keep::Nothing | Keep::Home { .. } => Ok(()),
        }
    }
}

impl OpenFile for OwnedFd {
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<usize> {
        pread(self, buf, off).what(|| "read".into())
    }

    fn write(&self, off: u64, data: &[u8]) -> Result<()> {
        whole(pwrite(self, data, off).what(|| "write".into())?, data)
    }

    fn append(&self, bytes: usize) -> Result<()> {
        rustix::fs::seek(self, SeekFrom::End(0)).what(|| "lseek".into())?;
        let data = &DATA[..bytes];
        whole(write(self, data).what(|| "append".into())?, data)
    }

    fn fsync(&self) -> Result<()> {
        rustix::fs::fsync(self).what(|| "fsync".into())
    }
}
