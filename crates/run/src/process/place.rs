//! The working directory and the umask: those of the process, or of a child of `vfork`.
//!
//! A child of `vfork` changes its own while other threads of its parent use the parent's.

use super::Process;
use crate::abi::{CWD_REACHES, Surroundings, thread};
use crate::kernel;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use vfs::Ino;

/// A working directory in the mount, or the mount point itself, that the store has not been asked for.
const BELOW: usize = usize::MAX;
/// An umask that the kernel has not been asked for.
const UNKNOWN: u32 = u32::MAX;

/// The working directory.
pub(crate) enum Working<'a> {
    /// In the store.
    Inside(Ino),
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
            cwd: AtomicU64::new(0),
            outside: AtomicUsize::new(0),
            umask: AtomicU32::new(UNKNOWN),
        }
    }

    pub(super) fn copy(&self, from: &Self) {
        self.cwd.store(from.cwd.load(Relaxed), Relaxed);
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
    pub(crate) fn cwd(&self) -> Option<Ino> {
        Some(Ino(self.surroundings().cwd.load(Relaxed))).filter(|ino| ino.0 != 0)
    }

    /// Sets the working directory; the caller passes a reference to it.
    pub(crate) fn set_cwd(&self, ino: Option<Ino>) {
        let old = self.cwd();
        self.set_cwd_number(ino.map_or(0, |ino| ino.0));
        // The parent of `vfork` has the old one, and does not learn of the new one.
        let lost = match thread().fds.load(Relaxed) {
            0 => {
                let had_reference = self.has_cwd.swap(ino.is_some(), Relaxed);
                old.filter(|_| had_reference)
            }
            _ => ino,
        };
        if let (Some(lost), Some(fs)) = (lost.filter(|ino| *ino != Ino::ROOT), self.connected()) {
            fs.forget(lost, 1);
        }
    }

    pub(super) fn set_cwd_number(&self, number: u64) {
        let outside = match number {
            0 => self.outside_of_store(),
            _ => 0,
        };
        let place = self.surroundings();
        place.cwd.store(number, Relaxed);
        place.outside.store(outside, Relaxed);
        // All calls of a child of `vfork` are looked at.
        if thread().fds.load(Relaxed) == 0 {
            CWD_REACHES.store(u32::from(number != 0 || outside != 0), Relaxed);
        }
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
        own.is_some_and(|(device, ino)| found == Some((device, ino.0)))
    }

    /// The working directory, for paths that are relative to it.
    pub(crate) fn working(&self) -> Working<'_> {
        match (self.cwd(), self.surroundings().outside.load(Relaxed)) {
            (Some(ino), _) => Working::Inside(ino),
            (None, 0) => Working::Elsewhere,
            (None, BELOW) => Working::Unknown,
            (None, bytes) => Working::Above(&self.at[bytes..]),
        }
    }
}
