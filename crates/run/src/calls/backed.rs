//! Descriptions of the store that the kernel has a file for.
//!
//! To the kernel a descriptor of the store is a placeholder. That is not enough for
//!
//! - a lock of `flock`, or a record lock of a description: it lasts until all descriptors of the description are closed, also
//!   those in other processes, such as the shell that has started the program which takes the lock;
//! - a program that does not load this library, and uses the descriptors that it inherits by calls of the kernel.
//!
//! So the description gets a file on the mount, and its descriptors become descriptors of this file, in all processes that
//! share it. A process that has placeholders finds that at its next call, and gets the file from the custodian
//! ([`custody`](crate::custody)). Once a program without this library may use the file, the offset is that of the kernel's
//! file ([`Backing::Whole`]).

use super::locks;
use crate::kernel::{self, Result};
use crate::own::Descriptor;
use crate::process::{File, Process};
use crate::shared::{Backing, Held, Reason};
use libc::{O_ACCMODE, O_APPEND, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_SYNC, SEEK_SET};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, PoisonError};
use vfs::{Errno, FileType};

/// Flags of the kernel's file that `fcntl` changes.
const CHANGING: i32 = O_APPEND | O_NONBLOCK;

/// The descriptor of the kernel for a file that is open in the process. It is opened on the mount at the first use.
pub(crate) fn file_of(process: &Process, file: &File, why: Reason) -> Result<Arc<Descriptor>> {
    if let Some(known) = known(process, file.number) {
        return Ok(known);
    }
    if process.is_vfork_child() {
        return Err(Errno::NODEV); // the descriptors are not those of the memory's process
    }
    let _held = file.description.offset_lock.lock();
    if let Some(known) = known(process, file.number) {
        return Ok(known); // another thread was faster
    }
    let fd = obtain(process, file, why)?;
    let own = Arc::new(Descriptor(locks::keep(process, file, fd)?));
    replace_all(process, file, own.0);
    let files = process.kernel_files.lock();
    let mut files = files.unwrap_or_else(PoisonError::into_inner);
    files.insert(file.number, Arc::clone(&own));
    Ok(own)
}

/// The place of the offset of a description.
pub(crate) enum Offset<'f> {
    /// The description itself, whose offset nobody else changes meanwhile.
    Here(Held<'f>),
    /// The kernel's file.
    Kernel(Arc<Descriptor>),
}

/// Finds the offset of a description, which stays in the kernel's file once it is there.
pub(crate) fn offset<'f>(process: &Process, file: &'f File) -> Result<Offset<'f>> {
    let held = file.description.offset_lock.lock();
    if file.description.backing() != Backing::Whole {
        return Ok(Offset::Here(held));
    }
    drop(held);
    // Without the file the offset is unknown.
    let own = file_of(process, file, Reason::Other).map_err(|_| Errno::IO)?;
    Ok(Offset::Kernel(own))
}

/// Sets the flags of the kernel's file that the description has, and that change after the open.
pub(crate) fn set_flags(own: u32, file: &File) -> Result<()> {
    kernel::set_flags(own, file.description.flags() & CHANGING as u32)
}

/// Gets the files that other processes have opened for descriptions of this one.
pub(crate) fn pick_up(process: &Process) {
    let now = process.shared.backed();
    if process.is_vfork_child() || process.seen_backed.swap(now, Relaxed) == now {
        return;
    }
    let _calls = process.gate.read();
    for (fd, number) in process.files() {
        if process.shared.description(number).backing() != Backing::None
            && let Some(file) = process.file(fd.into())
        {
            let _ = file_of(process, &file, Reason::Other);
        }
    }
}

/// Makes descriptors usable for a program without this library. Returns them. Those of files without a name cannot be used,
/// and none of a store that is not mounted.
pub(crate) fn hand_over(process: &Process, descriptors: &[(u32, u32)]) -> Vec<u32> {
    let is_done = |fd: &u32| {
        let file = process.file((*fd).into());
        file.is_some_and(|file| hand_over_one(process, &file, *fd).is_ok())
    };
    let all = descriptors.iter().map(|(fd, _)| *fd);
    all.filter(is_done).collect()
}

fn hand_over_one(process: &Process, file: &File, fd: u32) -> Result<()> {
    process.mounted().ok_or(Errno::NODEV)?;
    let is_regular = file.fs()?.getattr(&*process.cx()?, file.ino())?.kind == FileType::Regular;
    if !process.is_vfork_child() {
        let own = file_of(process, file, Reason::Execute)?;
        if !is_on_mount(process, file, fd) {
            kernel::replace(own.0, fd)?;
        }
        let _held = file.description.offset_lock.lock();
        return take_over_offset(process, file, own.0, is_regular);
    }
    // The descriptor is the child's alone. The parent, whose memory this is, gets the file from the custodian.
    let _held = file.description.offset_lock.lock();
    let opened = match known(process, file.number) {
        Some(own) => {
            take_over_offset(process, file, own.0, is_regular)?;
            return kernel::replace(own.0, fd);
        }
        None => obtain(process, file, Reason::Execute)?,
    };
    let done = take_over_offset(process, file, opened, is_regular)
        .and_then(|()| kernel::replace(opened, fd));
    kernel::close(opened)?;
    done
}

fn known(process: &Process, number: u32) -> Option<Arc<Descriptor>> {
    let files = process.kernel_files.lock();
    let files = files.unwrap_or_else(PoisonError::into_inner);
    files.get(&number).cloned()
}

/// Opens the file on the mount, or gets it from where it is. The caller holds the lock of the offset.
fn obtain(process: &Process, file: &File, why: Reason) -> Result<u32> {
    let id = process.id_of(file.number);
    if file.description.backing() != Backing::None {
        return match inherited(process, file) {
            Some(fd) => kernel::duplicate(fd, 0, true),
            None => checked(process, file, process.custodian.get(id)?),
        };
    }
    process.count(why);
    let fd = open(process, file)?;
    // This process may be one of them, as the parent of a child of `vfork`.
    let own = u32::from(!process.is_vfork_child());
    let sharers = file.description.refs.load(Acquire).saturating_sub(own);
    if sharers > 0
        && let Err(errno) = process.custodian.put(id, fd, sharers)
    {
        kernel::close(fd)?;
        return Err(errno);
    }
    file.description.set_backing(Backing::Locks);
    process.shared.has_backed();
    Ok(fd)
}

/// A file that the custodian has returned, if it is the right one: any process may give files.
fn checked(process: &Process, file: &File, found: Option<u32>) -> Result<u32> {
    let fd = found.ok_or(Errno::NODEV)?;
    match is_on_mount(process, file, fd) {
        true => Ok(fd),
        false => kernel::close(fd).and(Err(Errno::STALE)),
    }
}

/// A descriptor of the process that has the file already, such as one that was passed to this program.
fn inherited(process: &Process, file: &File) -> Option<u32> {
    let mut own = process.files().filter(|(_, number)| *number == file.number);
    own.find(|(fd, _)| is_on_mount(process, file, *fd))
        .map(|(fd, _)| fd)
}

fn is_on_mount(process: &Process, file: &File, fd: u32) -> bool {
    let found = kernel::device_and_inode(fd);
    found.is_ok_and(|(device, ino)| Some(device) == process.mounted() && ino == file.ino().0)
}

fn open(process: &Process, file: &File) -> Result<u32> {
    let flags = file.description.flags() as i32;
    if flags & O_PATH != 0 {
        return Err(Errno::BADF);
    }
    let kept = flags & (O_ACCMODE | O_SYNC | CHANGING);
    locks::on_mount(process, file, &[kept | O_CLOEXEC | O_NOFOLLOW])
}

/// Makes all descriptors of the description descriptors of the kernel's file.
fn replace_all(process: &Process, file: &File, own: u32) {
    let descriptors = process.files().filter(|(_, number)| *number == file.number);
    for (fd, _) in descriptors {
        // Meanwhile another thread may have closed it, and opened another file with this number.
        let _unchanged = process.changes_descriptors();
        let is_same = process.number_of(fd) == Some(file.number);
        if is_same && !is_on_mount(process, file, fd) {
            let _ = kernel::replace(own, fd);
        }
    }
}

/// From now on the offset is that of the kernel's file. The caller holds the lock of the offset.
fn take_over_offset(process: &Process, file: &File, fd: u32, is_regular: bool) -> Result<()> {
    let description = file.description;
    if description.backing() == Backing::Whole || !is_regular {
        return Ok(());
    }
    set_flags(fd, file)?;
    kernel::seek(fd, description.offset.load(Relaxed) as i64, SEEK_SET)?;
    description.set_backing(Backing::Whole);
    process.shared.has_backed();
    Ok(())
}
