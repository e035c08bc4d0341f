//! The working directory and the umask: those of the process, or of a child of `vfork`.
//!
//! A working directory in the store is an open file description without a descriptor: calls and processes share
//! it, and find another directory that has got its number, as they do for descriptors.
//!
//! A child of `vfork` changes its own while other threads of its parent use the parent's.

use super::{File, LOCAL, Process};
use crate::abi::{CWD_REACHES, Surroundings, thread};
use crate::kernel::{self, Result};
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{MutexGuard, PoisonError};
use vfs::Ino;

/// A working directory in the mount, or the mount point itself, that the store has not been asked for.
const BELOW: usize = usize::MAX;
/// An umask that the kernel has not been asked for.
const UNKNOWN: u32 = u32::MAX;

/// The working directory.
pub(crate) enum Working<'a> {
    /// In the store.
    Inside(File),
    /// Above the mount point, which has this path there.
    Above(&'a [u8]),
    /// In the mount, or the mount point itself: the store has not been asked for it.
    Unknown,
    /// A path that is relative to it goes to the kernel.
    Elsewhere,
}

impl Surroundings {
    pub(super) fn unknown() -> Self {
        Self {
            cwd: AtomicU32::new(0),
            outside: AtomicUsize::new(0),
            umask: AtomicU32::new(UNKNOWN),
        }
    }

    /// Takes those of the parent, whose directory has one more user.
    pub(super) fn copy(&self, from: &Self) {
        let cwd = from.cwd.load(Relaxed);
        if cwd != 0 {
            LOCAL[cwd as usize - 1].fetch_add(1, AcqRel);
        }
        self.cwd.store(cwd, Relaxed);
        self.outside.store(from.outside.load(Relaxed), Relaxed);
        self.umask.store(from.umask.load(Relaxed), Relaxed);
    }
}

impl Process {
    fn surroundings(&self) -> &Surroundings {
        match thread().fds.load(Relaxed) {
            0 => &self.own_surroundings,
            _ => &thread().surroundings,
        }
    }

    /// The mode bits that new files do not get.
    pub(crate) fn umask(&self) -> u32 {
        let known = self.surroundings().umask.load(Relaxed);
        if known != UNKNOWN {
            return known;
        }
        let status = kernel::read_small(c"/proc/self/status").unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let umask = line
            .and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok())
            .unwrap_or(0o022);
        self.set_umask(umask);
        umask
    }

    pub(crate) fn set_umask(&self, umask: u32) {
        self.surroundings().umask.store(umask & 0o777, Relaxed);
    }

    /// The working directory, if it is in the store.
    pub(crate) fn cwd(&self) -> Option<File> {
        self.file_of(&self.surroundings().cwd)
    }

    /// The description of the working directory, if that is in the store.
    pub(crate) fn cwd_number(&self) -> Option<u32> {
        self.surroundings().cwd.load(Acquire).checked_sub(1)
    }

    /// Opens a directory of the store, of this number and generation, and makes it the working directory.
    pub(crate) fn work_in(&self, inode: (Ino, u64)) -> Result<()> {
        let directory = self.described(inode)?;
        directory.fs()?;
        self.set_cwd(Some(directory));
        Ok(())
    }

    /// A description of a directory that the file system has not opened yet.
    pub(super) fn described(&self, inode: (Ino, u64)) -> Result<File> {
        let number = self.shared.reserve()?;
        let flags = libc::O_PATH as u32;
        self.shared.describe(number, inode, flags, None);
        LOCAL[number as usize].store(1, Release);
        Ok(File {
            number,
            description: self.shared.description(number),
        })
    }

    /// Sets the working directory; without one in the store, it is the kernel's.
    pub(crate) fn set_cwd(&self, directory: Option<File>) {
        let (entry, outside) = match directory {
            Some(directory) => (directory.keep() + 1, 0),
            None => (0, self.outside_of_store()),
        };
        let place = self.surroundings();
        place.outside.store(outside, Relaxed);
        let old = place.cwd.swap(entry, AcqRel);
        // All calls of a child of `vfork` are looked at.
        if thread().fds.load(Relaxed) == 0 {
            CWD_REACHES.store(u32::from(entry != 0 || outside != 0), Relaxed);
        }
        if let Some(old) = old.checked_sub(1) {
            self.drop_user(old);
        }
    }

    /// Holds back other threads that change the working directory, here and in the kernel. A child of `vfork` has its own.
    pub(crate) fn moves(&self) -> Option<MutexGuard<'_, ()>> {
        let held = || self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        (thread().fds.load(Relaxed) == 0).then(held)
    }

    /// Where the kernel's working directory is.
    fn outside_of_store(&self) -> usize {
        let path = kernel::directory().unwrap_or_default();
        let inside = |outer: &[u8], inner: &[u8]| {
            let below = inner.strip_prefix(outer);
            below.is_some_and(|below| below.is_empty() || below[0] == b'/')
        };
        match &path[..] {
            b"/" => 1,
            path if inside(&self.at, path) => BELOW,
            path if inside(path, &self.at) && path.starts_with(b"/") => path.len() + 1,
            _ => 0,
        }
    }

    /// Whether the kernel has the same working directory, on the mount.
    pub(crate) fn kernel_is_in_working_directory(&self) -> bool {
        let found = kernel::device_and_inode_of(c".").ok();
        let own = self.mounted().zip(self.cwd());
        own.is_some_and(|(device, cwd)| found == Some((device, cwd.ino().0)))
    }

    /// The working directory, for paths that are relative to it.
    pub(crate) fn working(&self) -> Working<'_> {
        match (self.cwd(), self.surroundings().outside.load(Relaxed)) {
            (Some(cwd), _) => Working::Inside(cwd),
            (None, 0) => Working::Elsewhere,
            (None, BELOW) => Working::Unknown,
            (None, bytes) => Working::Above(&self.at[bytes..]),
        }
    }
}
