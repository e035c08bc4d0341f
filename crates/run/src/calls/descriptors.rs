//! Descriptors: their numbers are the kernel's, which has a placeholder for each.

use super::backed::{self, Offset};
use super::{Answer, Call, Stop};
use crate::abi::FD_LIMIT;
use crate::kernel;
use crate::memory;
use crate::own::{self, is_own};
use crate::process::File;
use libc::*;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, FileType};

/// Flags that `fcntl(F_SETFL)` changes.
const SETTABLE: u32 = (O_APPEND | O_NONBLOCK | O_NOATIME | O_DIRECT | O_ASYNC) as u32;

/// `close`, `close_range`, `dup`, `dup2`, `dup3`, `ioctl`.
pub(crate) fn change(call: &Call) -> Answer {
    let process = call.process;
    match call.number {
        SYS_close_range => close_range(call),
        _ if is_own(call.args[0]) => Err(Errno::BADF.into()),
        SYS_close => {
            let _alone = process.changes_descriptors();
            process.forget_fd(call.args[0] as u32);
            Ok(call.pass()?)
        }
        SYS_dup => {
            let file = call.file(0)?;
            let fd = call.pass()?;
            process.duplicated(fd as u32, file.number)?;
            Ok(fd)
        }
        SYS_ioctl => {
            let file = call.file(0)?;
            control(call, &file)
        }
        _ => duplicate_to(call),
    }
}

/// The requests of `ioctl` that files of all file systems have.
fn control(call: &Call, file: &File) -> Answer {
    let request = call.int(1) as u64;
    match request {
        FIOCLEX | FIONCLEX => Err(Stop::Kernel),
        _ if file.has(O_PATH) => Err(Errno::BADF.into()),
        FIONBIO => {
            let is_on = memory::load::<u32>(call.args[2])? != 0;
            let others = file.description.flags() & !(O_NONBLOCK as u32);
            set_status(
                call,
                file,
                others | if is_on { O_NONBLOCK as u32 } else { 0 },
            )
        }
        FIONREAD => {
            let attr = file.fs()?.getattr(&*call.process.cx()?, file.ino())?;
            if attr.kind != FileType::Regular {
                return Err(Errno::NOTTY.into());
            }
            let at = match backed::offset(call.process, file)? {
                Offset::Here(_held) => file.description.offset.load(Relaxed),
                Offset::Kernel(own) => kernel::seek(own.0, 0, SEEK_CUR)?,
            };
            // The kernel cuts a greater number, too.
            memory::store(call.args[2], &(attr.size.wrapping_sub(at) as u32))?;
            Ok(0)
        }
        _ => Err(Errno::NOTTY.into()),
    }
}

/// Sets the flags of a description.
fn set_status(call: &Call, file: &File, flags: u32) -> Answer {
    let place = backed::offset(call.process, file)?;
    file.description.flags.store(flags, Relaxed);
    if let Offset::Kernel(own) = place {
        backed::set_flags(own.0, file)?;
    }
    Ok(0)
}

fn duplicate_to(call: &Call) -> Answer {
    let [old, new, ..] = call.args;
    if old as u32 == new as u32 {
        return Err(Stop::Kernel);
    }
    if call.number == SYS_dup3 && call.int(2) & !O_CLOEXEC != 0 {
        return Err(Errno::INVAL.into());
    }
    if is_own(new) || new as u32 as usize >= FD_LIMIT {
        return Err(Errno::BADF.into());
    }
    let file = call.process.file(old);
    if file.is_none() {
        kernel::closes_on_exec(old as u32)?; // it is open
    }
    let alone = call.process.changes_descriptors();
    call.process.forget_fd(new as u32);
    let fd = call.pass()?;
    drop(alone);
    if let Some(file) = file {
        call.process.duplicated(fd as u32, file.number)?;
    }
    Ok(fd)
}

/// Closes all of a range but the descriptors of this library.
fn close_range(call: &Call) -> Answer {
    let (first, last, flags) = (call.args[0] as u32, call.args[1] as u32, call.args[2]);
    if first > last || flags & !u64::from(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 {
        return Err(Errno::INVAL.into());
    }
    let _alone = call.process.changes_descriptors();
    if flags & u64::from(CLOSE_RANGE_CLOEXEC) == 0 {
        let files: Vec<_> = call.process.files().collect();
        for (fd, _) in files {
            if (first..=last).contains(&fd) {
                call.process.forget_fd(fd);
            }
        }
    }
    let mut from = first;
    for own in own::all() {
        if (from..=last).contains(&own) {
            if from < own {
                kernel::close_range(from, own - 1, flags)?;
            }
            from = own + 1;
        }
    }
    if from <= last {
        kernel::close_range(from, last, flags)?;
    }
    Ok(0)
}

/// `sendmsg`: another process gets descriptors of the mount.
pub(crate) fn send(call: &Call) -> Answer {
    for place in own::descriptors_of(call.args[1]).unwrap_or_default() {
        let fd = memory::load(place)?;
        if let Some(number) = call.process.number_of(fd) {
            backed::hand_over(call.process, &[(fd, number)]);
        }
    }
    Err(Stop::Kernel)
}

/// `fcntl`.
pub(crate) fn fcntl(call: &Call) -> Answer {
    if is_own(call.args[0]) {
        return Err(Errno::BADF.into());
    }
    let file = call.file(0)?;
    match call.int(1) {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let fd = call.pass()?;
            call.process.duplicated(fd as u32, file.number)?;
            Ok(fd)
        }
        F_GETFD | F_SETFD => Err(Stop::Kernel),
        F_GETFL => Ok(file.description.flags().into()),
        F_SETFL => {
            let kept = file.description.flags() & !SETTABLE;
            set_status(call, &file, kept | call.args[2] as u32 & SETTABLE)
        }
        F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW => {
            super::locks::record(call, &file)
        }
        _ => Err(Errno::INVAL.into()),
    }
}
