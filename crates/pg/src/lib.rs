//! Patchgroups: order between changes of files, without `fsync` (section 2.3 of the
//! Featherstitch chapter).
//!
//! A group collects the changes that a process makes while it has the group *engaged*. A group
//! that is made to wait for others reaches the disk after them. Nothing is written sooner than
//! without groups, and no call waits for the disk but [`Group::sync`].
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
//! 3. Once another group depends on it, it is sealed: nobody engages it again.
//!
//! So a group cannot wait for itself, by whatever way. A group is a descriptor: children inherit it
//! over `fork` and `exec`, and its last close ends it. The order of its changes stays.
#![warn(unreachable_pub)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod protocol;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::ioctl::{NoArg, Opcode, Setter, ioctl};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A patchgroup. Its errors are those of the table in `pg_create(3)`.
#[derive(Debug)]
pub struct Group(OwnedFd);

impl Group {
    /// Makes a group in the mount that `dir`, a directory, is in.
    ///
    /// # Errors
    /// `ENOENT` or `EINVAL` if the file system has no patchgroups, `EOPNOTSUPP` if it keeps no
    /// order, `ENFILE` if the user has too many groups.
    pub fn new(dir: impl AsRef<Path>) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("{}.{process}.{number}", protocol::NAME);
        // Without CLOEXEC: programs that a program starts share its groups.
        let group = Self(open(dir.as_ref().join(name), OFlags::RDWR, Mode::empty())?);
        // Another file system may have a file of that name.
        match group.id()? >> 62 {
            1 => Ok(group),
            _ => Err(rustix::io::Errno::INVAL.into()),
        }
    }

    /// The group's number: the inode number of its descriptor.
    ///
    /// # Errors
    /// `EIO` if the server of the mount has ended.
    pub fn id(&self) -> io::Result<u64> {
        Ok(fstat(&self.0)?.st_ino)
    }

    /// Makes this group wait for `before`, and seals `before`.
    ///
    /// # Errors
    /// `EBUSY` if a process has `before` engaged, or has ever engaged this group; `EINVAL` if this
    /// group is sealed or `before`; `EBADF` if `before` is of another mount; `EPERM` if one is
    /// another user's.
    pub fn depend(&self, before: &Self) -> io::Result<()> {
        let input = before.id()?;
        // SAFETY: the request reads the 8 bytes of `input` and writes nothing.
        let request = unsafe { Setter::<{ protocol::DEPEND as Opcode }, u64>::new(input) };
        // SAFETY: as above. A descriptor of another kind answers ENOTTY.
        Ok(unsafe { ioctl(&self.0, request) }?)
    }

    /// Makes the changes of this process part of the group until the guard is dropped. Its children
    /// inherit that when they are made, and keep it.
    ///
    /// # Errors
    /// `EINVAL` if the group is sealed; `EPERM` if it is another user's; `ESRCH` if the server
    /// cannot see the process.
    pub fn engage(&self) -> io::Result<Engaged<'_>> {
        self.request::<{ protocol::ENGAGE as Opcode }>()?;
        Ok(Engaged(self))
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
        Ok(unsafe { ioctl(&self.0, request) }?)
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A group that this process has engaged.
#[derive(Debug)]
#[must_use = "the group is disengaged when this is dropped"]
pub struct Engaged<'a>(&'a Group);

impl Drop for Engaged<'_> {
    fn drop(&mut self) {
        // It fails only if the server has ended, and the engagement with it.
        let _ = self.0.request::<{ protocol::DISENGAGE as Opcode }>();
    }
}
