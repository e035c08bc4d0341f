//! Patchgroups: order between changes of files, without `fsync` (section 2.3 of the
//! Featherstitch chapter).
//!
//! A group collects the changes that a process makes while it has the group *engaged*. A group
//! can depend on other groups: its changes then reach the disk after theirs. Of the calls here only
//! [`Group::sync`] waits for the disk. `docs/patchgroups.md` explains groups, their errors, and
//! what each file system does with them.
//!
//! # Example
//!
//! The input is not removed before the output is durable:
//!
//! ```no_run
//! use pg::Group;
//! use std::fs;
//!
//! let copy = Group::new("/mnt/mail")?;
//! let drop = Group::new("/mnt/mail")?;
//! {
//!     let _engaged = copy.engage()?;
//!     fs::copy("/mnt/mail/inbox/1", "/mnt/mail/archive/1")?;
//! }
//! drop.depend(&copy)?;
//! let _engaged = drop.engage()?;
//! fs::remove_file("/mnt/mail/inbox/1")?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Life of a group
//! 1. [`Group::depend`] names the groups for which this one waits.
//! 2. [`Group::engage`] any number of times, in any number of processes and threads. Children
//!    inherit what their parent has engaged.
//! 3. Once another group depends on it, it is sealed: no process engages it again.
//!
//! So a group cannot wait for itself, not even through other groups. A group is a descriptor:
//! children inherit it through `fork` and `exec`, and its last close ends it. The order of its
//! changes stays.
#![warn(unreachable_pub)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod protocol;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::ioctl::{NoArg, Opcode, Setter, ioctl};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A patchgroup. Dropping the value closes its descriptor; the group ends with its last descriptor.
#[derive(Debug)]
pub struct Group {
    descriptor: OwnedFd,
    /// Guards of this process. The server counts processes only.
    engagements: Mutex<usize>,
}

impl Group {
    /// Makes a group in the mount that `dir`, a directory, is in.
    ///
    /// # Errors
    /// `ENOENT` or `EINVAL` if the file system has no patchgroups; `EOPNOTSUPP` if it keeps no
    /// order; `EROFS` if it is mounted read-only; `ENFILE` if the user has 4,096 groups in the
    /// mount; others of open(2).
    pub fn new(dir: impl AsRef<Path>) -> io::Result<Self> {
        // Random, since processes of two name spaces can have the same id.
        let number = RandomState::new().build_hasher().finish();
        let name = format!("{}.{number:016x}", protocol::NAME);
        // Without CLOEXEC: a program that this process starts shares its groups.
        let group = Self {
            descriptor: open(dir.as_ref().join(name), OFlags::RDWR, Mode::empty())?,
            engagements: Mutex::new(0),
        };
        // Another file system may have a file of that name.
        match fstat(&group.descriptor)?.st_ino >> 62 {
            1 => Ok(group),
            _ => Err(rustix::io::Errno::INVAL.into()),
        }
    }

    /// The number of the group in its mount, as `selvedge pg list` shows it. The inode number of
    /// the descriptor is this number with bit 62 set.
    ///
    /// # Errors
    /// `ENOTCONN` if the server of the mount has ended.
    pub fn number(&self) -> io::Result<u64> {
        Ok(fstat(&self.descriptor)?.st_ino & !(1 << 62))
    }

    /// Makes this group wait for `before`, and seals `before`.
    ///
    /// # Errors
    /// `EBUSY` if a running process has `before` engaged, or a process has ever engaged this
    /// group. A child that has inherited the engagement counts. `EINVAL` if this group is sealed,
    /// or if both are the same group; `EBADF` if `before` is not a group of this mount; `EPERM` if
    /// another user has made one of them.
    pub fn depend(&self, before: &Self) -> io::Result<()> {
        let (own, other) = (fstat(&self.descriptor)?, fstat(&before.descriptor)?);
        // Each mount counts its groups: another one may have a group of this number.
        if own.st_dev != other.st_dev {
            return Err(rustix::io::Errno::BADF.into());
        }
        let input = other.st_ino;
        // SAFETY: the request reads the 8 bytes of `input` and writes nothing.
        let request = unsafe { Setter::<{ protocol::DEPEND as Opcode }, u64>::new(input) };
        // SAFETY: as above. A descriptor of another kind answers ENOTTY.
        Ok(unsafe { ioctl(&self.descriptor, request) }?)
    }

    /// Makes the changes of this process, in all of its threads, part of the group until the last guard
    /// of the process is dropped. Its children inherit that when they are made, and keep it.
    ///
    /// # Errors
    /// `EINVAL` if the group is sealed; `EPERM` if another user has made it; `ESRCH` if the server
    /// cannot see the process, which is in a container of its own.
    pub fn engage(&self) -> io::Result<Engaged<'_>> {
        let mut engagements = self.engagements();
        self.request::<{ protocol::ENGAGE as Opcode }>()?;
        *engagements += 1;
        Ok(Engaged(self))
    }

    fn engagements(&self) -> MutexGuard<'_, usize> {
        self.engagements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the changes so far durable, and those for which they wait.
    ///
    /// # Errors
    /// `EIO` if something could not be stored.
    pub fn sync(&self) -> io::Result<()> {
        self.request::<{ protocol::SYNC as Opcode }>()
    }

    /// Makes later changes of the group wait for its changes so far. Waits for nothing.
    ///
    /// # Errors
    /// `EINVAL` if the group is sealed; `EIO` if something could not be stored.
    pub fn barrier(&self) -> io::Result<()> {
        self.request::<{ protocol::BARRIER as Opcode }>()
    }

    /// Makes each `fsync`, `fdatasync` and synchronous write of engaged processes a
    /// [barrier](Self::barrier).
    ///
    /// # Errors
    /// `EBUSY` if a process has ever engaged the group.
    pub fn order(&self) -> io::Result<()> {
        self.request::<{ protocol::ORDER as Opcode }>()
    }

    fn request<const REQUEST: Opcode>(&self) -> io::Result<()> {
        // SAFETY: the request has no argument.
        let request = unsafe { NoArg::<REQUEST>::new() };
        // SAFETY: as above. A descriptor of another kind answers ENOTTY.
        Ok(unsafe { ioctl(&self.descriptor, request) }?)
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A group that this process has engaged.
#[derive(Debug)]
#[must_use = "the group is disengaged when the last one of the process is dropped"]
pub struct Engaged<'a>(&'a Group);

impl Drop for Engaged<'_> {
    fn drop(&mut self) {
        let mut engagements = self.0.engagements();
        *engagements -= 1;
        if *engagements == 0 {
            // It fails only if the server has ended, and the engagement with it.
            let _ = self.0.request::<{ protocol::DISENGAGE as Opcode }>();
        }
    }
}
