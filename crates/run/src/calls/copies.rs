//! Calls that copy between two descriptors.

use super::{Answer, Call, Stop};
use crate::calls::backed::{self, Offset};
use crate::calls::data;
use crate::kernel::{self, Result};
use crate::memory;
use crate::process::{File, process};
use crate::raw;
use libc::*;
use std::sync::atomic::Ordering::Relaxed;
use vfs::Errno;

/// Most bytes of a call, as in the kernel: a file that is copied to its own end has no end.
const MOST: u64 = 0x7fff_f000;
/// Bytes of a part of a copy.
const PART: usize = 64 << 10;

/// The flags of `splice`.
const SPLICE_FLAGS: u32 = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;

/// One side of a copy.
struct Side {
    fd: u64,
    file: Option<File>,
    /// The address of an offset, or 0 for that of the descriptor.
    offset: u64,
}

/// `sendfile`, `copy_file_range`, `splice`.
pub(crate) fn copy(call: &Call) -> Answer {
    let args = call.args;
    let (from, from_offset, to, to_offset, len) = match call.number {
        SYS_sendfile => (args[1], args[2], args[0], 0, args[3]),
        _ => (args[0], args[1], args[2], args[3], args[4]),
    };
    let from = Side {
        fd: from,
        file: call.process.file(from),
        offset: from_offset,
    };
    let to = Side {
        fd: to,
        file: call.process.file(to),
        offset: to_offset,
    };
    if from.file.is_none() && to.file.is_none() {
        return Err(Stop::Kernel);
    }
    let is_mixed = from.file.is_none() || to.file.is_none();
    if call.number == SYS_copy_file_range && is_mixed {
        return Err(Errno::XDEV.into());
    }
    if call.number == SYS_copy_file_range && call.int(5) != 0 {
        return Err(Errno::INVAL.into());
    }
    if to.file.as_ref().is_some_and(|file| file.has(O_APPEND)) {
        return Err(match call.number {
            SYS_copy_file_range => Errno::BADF.into(),
            _ => Errno::INVAL.into(),
        });
    }
    let len = len.min(MOST);
    if call.number == SYS_splice {
        check_splice(call, &from, &to)?;
    }
    find_end_of_session(call, [&from, &to])?;
    if call.number == SYS_copy_file_range && overlaps(call, &from, &to, len)? {
        return Err(Errno::INVAL.into());
    }
    let mut part = vec![0_u8; PART.min(len as usize)];
    let mut copied = 0_u64;
    while copied < len {
        let wanted = part.len().min((len - copied) as usize);
        let done = match call.number {
            SYS_splice if to.file.is_none() => splice_to_pipe(call, &from, &to, wanted),
            _ => copy_part(call, &from, &to, &mut part[..wanted]),
        };
        match done {
            Ok(0) => break,
            Ok(moved) => copied += moved,
            Err(_) if copied > 0 => break,
            Err(stop) => return Err(stop),
        }
        if is_mixed {
            break; // a pipe or a socket may block: the program sees what was moved
        }
    }
    call.process.count(crate::shared::Reason::Answered);
    Ok(copied)
}

/// Checks the arguments of a splice: the side that is not in the store must be a pipe, which has no offset. With
/// `SPLICE_F_NONBLOCK` an empty pipe is an error.
fn check_splice(call: &Call, from: &Side, to: &Side) -> Result<()> {
    let mut sides = [from, to].into_iter();
    let pipe = sides.find(|side| side.file.is_none());
    let pipe = pipe.ok_or(Errno::INVAL)?;
    if call.args[5] as u32 & !SPLICE_FLAGS != 0 || !kernel::is_pipe(pipe.fd as u32)? {
        return Err(Errno::INVAL);
    }
    if pipe.offset != 0 {
        return Err(Errno::SPIPE);
    }
    if !may_wait(call) && from.file.is_none() && !kernel::is_ready(pipe.fd as u32, POLLIN)? {
        return Err(Errno::AGAIN);
    }
    Ok(())
}

/// Whether a splice may wait for its pipe.
fn may_wait(call: &Call) -> bool {
    call.args[5] as u32 & SPLICE_F_NONBLOCK == 0
}

/// Moves as much of a file to a pipe as it has room for. It waits for some room, and never for more.
fn splice_to_pipe(call: &Call, from: &Side, to: &Side, len: usize) -> Answer {
    let start = from.offset()?;
    // The pipe refers to these pages afterwards, so they are not used again.
    let mut pages = Pages::new(len)?;
    let read = from.transfer(call, true, pages.bytes())?;
    let moved = match read {
        0 => Ok(0),
        read => pages.splice(to.fd, read, may_wait(call)),
    };
    from.unread(start, read - *moved.as_ref().unwrap_or(&0))?;
    moved
}

/// Fails if the session has ended, before anything is read.
fn find_end_of_session(call: &Call, sides: [&Side; 2]) -> Result<()> {
    let _calls = call.process.gate.read();
    let mut files = sides.into_iter().filter_map(|side| side.file.as_ref());
    files.try_for_each(|file| {
        file.fs()?
            .getattr(&*call.process.cx()?, file.ino())
            .map(drop)
    })
}

/// Whether a copy inside of one file would write what it has still to read.
fn overlaps(call: &Call, from: &Side, to: &Side, len: u64) -> Result<bool> {
    let (Some(one), Some(other)) = (&from.file, &to.file) else {
        return Ok(false);
    };
    if one.ino() != other.ino() {
        return Ok(false);
    }
    let _calls = call.process.gate.read();
    let size = one.fs()?.getattr(&*call.process.cx()?, one.ino())?.size;
    let (start, target) = (from.position(one)?, to.position(other)?);
    let len = len.min(size.saturating_sub(start));
    Ok(start < target.saturating_add(len) && target < start.saturating_add(len))
}

/// Reads once, and writes what was read. Bytes that cannot be written are not consumed.
fn copy_part(call: &Call, from: &Side, to: &Side, part: &mut [u8]) -> Answer {
    let start = from.offset()?;
    let read = from.transfer(call, true, part)?;
    if read == 0 {
        return Ok(0);
    }
    let written = to.transfer(call, false, &mut part[..read as usize]);
    let done = *written.as_ref().unwrap_or(&0);
    from.unread(start, read - done)?;
    match written {
        // The bytes may be lost: the call must not be made again.
        Err(Stop::Errno(Errno::NODEV)) => Err(Errno::IO.into()),
        written => written,
    }
}

/// Pages of anonymous memory.
struct Pages {
    address: u64,
    len: u64,
}

impl Pages {
    fn new(len: usize) -> Result<Self> {
        let (protection, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        let len = len as u64;
        let args = [0, len, protection as u64, kind as u64, u64::MAX, 0];
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = kernel::result(unsafe { raw::syscall(SYS_mmap, args) })?;
        Ok(Self { address, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and lasts until `self` is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.len as usize) }
    }

    /// Gives the first bytes to a pipe, as many as it takes at once. It waits until it takes some, if it is patient.
    fn splice(&self, pipe: u64, len: u64, is_patient: bool) -> Answer {
        let part = [self.address, len];
        loop {
            let (parts, flags) = (part.as_ptr() as u64, SPLICE_F_NONBLOCK.into());
            // SAFETY: the kernel reads a part of the mapping.
            match kernel::result(unsafe {
                raw::syscall(SYS_vmsplice, [pipe, parts, 1, flags, 0, 0])
            }) {
                Err(Errno::AGAIN) if is_patient && !kernel::is_nonblocking(pipe as u32)? => {}
                done => return Ok(done?),
            }
            let mut ready = pollfd {
                fd: pipe as i32,
                events: POLLOUT,
                revents: 0,
            };
            let args = [&raw mut ready as u64, 1, u64::MAX, 0, 0, 0];
            // SAFETY: the kernel writes a `pollfd`.
            match unsafe { raw::syscall_unless_signal(SYS_poll, args) } {
                Some(done) => drop(kernel::result(done)?),
                None => return Err(Stop::Again),
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody uses any more. A pipe has references to its pages of its own.
        let _ = unsafe { raw::syscall(SYS_munmap, [self.address, self.len, 0, 0, 0, 0]) };
    }
}

impl Side {
    fn offset(&self) -> Result<Option<u64>> {
        match self.offset {
            0 => Ok(None),
            address => match memory::load(address)? {
                offset if i64::try_from(offset).is_ok() => Ok(Some(offset)),
                _ => Err(Errno::INVAL),
            },
        }
    }

    /// The offset at which the next transfer begins.
    fn position(&self, file: &File) -> Result<u64> {
        if let Some(given) = self.offset()? {
            return Ok(given);
        }
        match backed::offset(process(), file)? {
            Offset::Kernel(own) => kernel::seek(own.0, 0, SEEK_CUR),
            Offset::Here(_held) => Ok(file.description.offset.load(Relaxed)),
        }
    }

    /// Reads into the buffer or writes it, at the offset, which advances.
    fn transfer(&self, call: &Call, is_read: bool, buffer: &mut [u8]) -> Answer {
        let given = self.offset()?;
        let _calls = self.file.as_ref().map(|_| call.process.gate.read());
        let place = [(buffer.as_mut_ptr() as u64, buffer.len())];
        let moved = match (&self.file, is_read) {
            (Some(file), true) => data::read(call.process, file, &place, given)? as u64,
            (Some(file), false) => data::write(call.process, file, &place, given, 0)? as u64,
            (None, _) => {
                let (plain, at) = match is_read {
                    true => (SYS_read, SYS_pread64),
                    false => (SYS_write, SYS_pwrite64),
                };
                let number = if given.is_some() { at } else { plain };
                let args = [
                    self.fd,
                    place[0].0,
                    place[0].1 as u64,
                    given.unwrap_or(0),
                    0,
                    0,
                ];
                // SAFETY: the kernel reads or writes the buffer.
                let done = unsafe { raw::syscall_unless_signal(number, args) };
                kernel::result(done.ok_or(Stop::Again)?)?
            }
        };
        if let Some(offset) = given {
            memory::store(self.offset, &(offset + moved))?;
        }
        Ok(moved)
    }

    /// Moves the offset back by bytes that were read in vain. Those of a pipe are lost.
    fn unread(&self, start: Option<u64>, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match (&self.file, start) {
            (_, Some(_)) => {
                let now: u64 = memory::load(self.offset)?;
                memory::store(self.offset, &(now - bytes))
            }
            (Some(file), None) => match backed::offset(process(), file)? {
                Offset::Kernel(own) => kernel::seek(own.0, -(bytes as i64), SEEK_CUR).map(drop),
                Offset::Here(_held) => {
                    let offset = &file.description.offset;
                    offset.fetch_sub(bytes, Relaxed);
                    Ok(())
                }
            },
            (None, None) => {
                let _ = kernel::seek(self.fd as u32, -(bytes as i64), SEEK_CUR);
                Ok(())
            }
        }
    }
}
