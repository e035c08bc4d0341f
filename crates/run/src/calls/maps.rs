//! `mmap` of files of the store.
//!
//! A private mapping gets a copy of the contents at the time of the call, which POSIX permits. A shared
//! mapping is one of the file on the mount. Without a mount it is a copy too if it is not writable.

use super::mapped::OnMount;
use super::{Answer, Call, Stop};
use crate::kernel;
use crate::process::{File, LockOf, open_flags};
use crate::shared::Reason;
use libc::*;
use vfs::{Errno, OpenFlags};

/// A private mapping of more bytes is made of the file on the mount, if there is one.
const COPIED_MAX: u64 = 64 << 20;

/// `mmap`.
pub(crate) fn map(call: &Call) -> Answer {
    let flags = call.int(3);
    if flags & MAP_ANONYMOUS != 0 {
        return Err(Stop::Kernel);
    }
    let Some(file) = call.process.file(call.args[4]) else {
        return Err(Stop::Kernel);
    };
    file.may_read().map_err(|_| Errno::ACCESS)?;
    let [address, len, protection, _, _, offset] = call.args;
    let is_private = flags & MAP_TYPE == MAP_PRIVATE;
    let is_mounted = call.process.mounted().is_some();
    if !is_private && !is_mounted && protection & PROT_WRITE as u64 != 0 {
        return Err(Errno::NODEV.into());
    }
    if is_mounted && (!is_private || len > COPIED_MAX) {
        call.process.count(Reason::SharedMapping);
        if !is_private {
            call.process.shared.set_mapped(file.ino());
        }
        return on_mount(call, &file, !is_private);
    }
    if !offset.is_multiple_of(4096) {
        return Err(Errno::INVAL.into());
    }
    call.process.count(Reason::Answered);
    // A session that has ended shows itself before there is a mapping.
    file.fs()?.getattr(&*call.process.cx()?, file.ino())?;
    let flags = (flags | MAP_ANONYMOUS) as u64;
    let writable = (PROT_READ | PROT_WRITE) as u64;
    let mapped = call.with([address, len, writable, flags, u64::MAX, 0])?;
    // SAFETY: the kernel has just made this mapping, of at least `len` bytes, for this call.
    let to = unsafe { std::slice::from_raw_parts_mut(mapped as *mut u8, len as usize) };
    let read = fill(call, &file, offset, to);
    let set = [mapped, len, protection, 0, 0, 0];
    // SAFETY: as above; the protection is that which the program asks for.
    let protected = kernel::result(unsafe { crate::raw::syscall(SYS_mprotect, set) });
    read.and(protected)?;
    Ok(mapped)
}

/// Maps the file on the mount. To close a descriptor of it drops the locks of the process. So a file with locks is
/// mapped by the descriptor that has them, which may be one for writing, too.
fn on_mount(call: &Call, file: &File, is_shared: bool) -> Answer {
    let [address, len, protection, flags, _, offset] = call.args;
    let map = |fd: u32| call.with([address, len, protection, flags, fd.into(), offset]);
    let locks = call.process.locks_held();
    if let Some(fd) = locks.get(&LockOf::Process(file.ino())) {
        if is_shared && protection & PROT_WRITE as u64 != 0 {
            file.may_write().map_err(|_| Errno::ACCESS)?;
        }
        // The kernel asks for the size: the file may have grown since that open.
        kernel::device_and_inode(*fd)?;
        return Ok(map(*fd)?);
    }
    let fd = super::locks::on_mount(call.process, file, &[access(file)])?;
    let mapped = map(fd);
    kernel::close(fd)?;
    Ok(mapped?)
}

/// The access that a mapping requires.
pub(crate) fn access(file: &File) -> i32 {
    match open_flags(file.description.flags()) == OpenFlags::READ {
        true => O_RDONLY,
        false => O_RDWR,
    }
}

fn fill(call: &Call, file: &File, offset: u64, to: &mut [u8]) -> kernel::Result<usize> {
    match OnMount::of_mapped(call.process, file) {
        Some(on_mount) => on_mount.read(offset, to),
        None => file
            .fs()?
            .read(&*call.process.cx()?, file.ino(), offset, to),
    }
}
