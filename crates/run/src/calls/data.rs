//! Contents of files: reads, writes, offsets, lengths.

use super::backed::{self, Offset};
use super::mapped::OnMount;
use super::{Answer, Call};
use crate::kernel::{self, Result};
use crate::memory::{self, Buffers};
use crate::process::{Caller, File, Process};
use libc::*;
use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Ctx, Errno, Fallocate, FileSystem, SeekKind, SetAttr, perm};

/// Most bytes of one call, as in the kernel.
const COUNT_MAX: usize = 0x7fff_f000;

/// Most bytes of a buffer that are touched without a look at the size of the file.
const TOUCHED: usize = 64 << 10;

/// Reads and writes.
pub(crate) fn transfer(call: &Call) -> Answer {
    let file = call.file(0)?;
    let [_, address, count, ..] = call.args;
    let buffers = match call.number {
        SYS_read | SYS_write | SYS_pread64 | SYS_pwrite64 => {
            Buffers::from_buf([(address, count as usize)])
        }
        _ => memory::buffers(address, count)?,
    };
    let flags = match call.number {
        SYS_preadv2 | SYS_pwritev2 => call.int(5),
        _ => 0,
    };
    let given = match call.number {
        SYS_pread64 | SYS_pwrite64 | SYS_preadv | SYS_pwritev => Some(call.args[3] as i64),
        SYS_preadv2 | SYS_pwritev2 => {
            if flags & !(RWF_DSYNC | RWF_SYNC | RWF_HIPRI) != 0 {
                return Err(Errno::OPNOTSUPP.into());
            }
            Some(call.args[3] as i64).filter(|offset| *offset != -1)
        }
        _ => None,
    };
    if given.is_some_and(|offset| offset < 0) {
        return Err(Errno::INVAL.into());
    }
    let is_read = matches!(
        call.number,
        SYS_read | SYS_pread64 | SYS_readv | SYS_preadv | SYS_preadv2
    );
    let moved = match is_read {
        true => read(
            call.process,
            &file,
            &buffers,
            given.map(|offset| offset as u64),
        ),
        false => write(
            call.process,
            &file,
            &buffers,
            given.map(|offset| offset as u64),
            flags,
        ),
    };
    Ok(moved? as u64)
}

/// Runs a call at the offset of the description, which advances, or at `given`. `at_own` runs it on the kernel's file, if
/// that has the offset.
fn at_offset(
    process: &Process,
    file: &File,
    given: Option<u64>,
    at_own: impl FnOnce(&OnMount) -> Result<usize>,
    run: impl FnOnce(u64) -> Result<(u64, usize)>,
) -> Result<usize> {
    match given {
        Some(offset) => run(offset).map(|(_, moved)| moved),
        None => {
            let _held = match backed::offset(process, file)? {
                Offset::Here(held) => held,
                Offset::Kernel(own) => return at_own(&OnMount::from(own)),
            };
            let (offset, moved) = run(file.description.offset.load(Relaxed))?;
            file.description
                .offset
                .store(offset + moved as u64, Relaxed);
            Ok(moved)
        }
    }
}

/// The caller of reads and writes.
fn caller(process: &Process, file: &File) -> Result<Caller> {
    let cx = process.cx()?;
    if !file.has(O_NOATIME) {
        return Ok(cx);
    }
    Ok(Caller::Own(Box::new(Ctx {
        noatime: true,
        ..Ctx::clone(&cx)
    })))
}

/// The contents of a file, for reads and writes.
struct Contents<'a> {
    process: &'a Process,
    file: &'a File,
    fs: &'static dyn FileSystem,
    cx: Caller,
    /// If it has a shared mapping.
    on_mount: Option<OnMount>,
}

impl<'a> Contents<'a> {
    fn of(process: &'a Process, file: &'a File) -> Result<Self> {
        Ok(Self {
            process,
            file,
            fs: file.fs()?,
            cx: caller(process, file)?,
            on_mount: OnMount::of_mapped(process, file),
        })
    }

    fn size(&self) -> Result<u64> {
        Ok(self.fs.getattr(&self.cx, self.file.ino())?.size)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        match &self.on_mount {
            Some(on_mount) => on_mount.read(offset, to),
            None => self.fs.read(&self.cx, self.file.ino(), offset, to),
        }
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        if let Some(on_mount) = &self.on_mount {
            return on_mount.write(offset, from);
        }
        let written = self.fs.write(&self.cx, self.file.ino(), offset, from)?;
        // A mapping that was made meanwhile may have the page as it was.
        match OnMount::of_mapped(self.process, self.file) {
            Some(on_mount) => on_mount.write(offset, &from[..written]),
            None => Ok(written),
        }
    }

    /// Writes at the end. Returns the offset, too.
    fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        let (offset, written) = self.fs.append(&self.cx, self.file.ino(), from)?;
        // A mapping gets the same bytes, also one that was made meanwhile.
        let new = match self.on_mount {
            Some(_) => None,
            None => OnMount::of_mapped(self.process, self.file),
        };
        if let Some(on_mount) = self.on_mount.as_ref().or(new.as_ref()) {
            on_mount.write(offset, &from[..written])?;
        }
        Ok((offset, written))
    }

    /// Makes the file durable, with what was stored in its mappings.
    fn sync(&self, data_only: bool) -> Result<()> {
        if let Some(on_mount) = &self.on_mount {
            on_mount.sync(data_only)?;
        }
        self.fs.fsync(&self.cx, self.file.ino(), data_only)
    }
}

/// Reads into the buffers.
pub(crate) fn read(
    process: &Process,
    file: &File,
    buffers: &[(u64, usize)],
    given: Option<u64>,
) -> Result<usize> {
    file.may_read()?;
    let contents = Contents::of(process, file)?;
    let at_own = |own: &OnMount| own.read_next(buffers);
    at_offset(process, file, given, at_own, |offset| {
        let mut moved = 0;
        for &(address, len) in buffers {
            let at = offset + moved as u64;
            let read = target(&contents, at, address, len.min(COUNT_MAX - moved))
                .and_then(|to| contents.read(at, to));
            match read {
                Ok(read) if read == len => moved += read,
                Ok(read) => {
                    moved += read;
                    break;
                }
                Err(_) if moved > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok((offset, moved))
    })
}

/// The memory for a read at an offset. A part for bytes beyond the end of the file is not touched.
fn target<'a>(
    contents: &Contents<'_>,
    offset: u64,
    address: u64,
    len: usize,
) -> Result<&'a mut [u8]> {
    if len <= TOUCHED
        && let Ok(to) = memory::bytes_mut(address, len)
    {
        return Ok(to);
    }
    let left = contents.size()?.saturating_sub(offset);
    memory::bytes_mut(address, len.min(usize::try_from(left).unwrap_or(len)))
}

/// The bytes of all buffers, which are appended at once.
fn gathered(buffers: &[(u64, usize)]) -> Result<Cow<'static, [u8]>> {
    if let [(address, len)] = buffers {
        return memory::bytes(*address, (*len).min(COUNT_MAX)).map(Cow::Borrowed);
    }
    let mut all = Vec::new();
    for (address, len) in buffers {
        match memory::bytes(*address, (*len).min(COUNT_MAX - all.len())) {
            Ok(bytes) => all.extend(bytes),
            Err(_) if !all.is_empty() => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(Cow::Owned(all))
}

fn write_at(contents: &Contents<'_>, offset: u64, buffers: &[(u64, usize)]) -> Result<usize> {
    let mut moved = 0;
    for &(address, len) in buffers {
        let len = len.min(COUNT_MAX - moved);
        let from = memory::bytes(address, len);
        if from.is_ok_and(<[u8]>::is_empty) {
            continue;
        }
        match from.and_then(|from| contents.write(offset + moved as u64, from)) {
            Ok(written) if written == len => moved += written,
            Ok(written) => {
                moved += written;
                break;
            }
            Err(_) if moved > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(moved)
}

/// The buffers up to the limit of the sizes of files.
fn below_limit<'b>(
    process: &Process,
    offset: u64,
    buffers: &'b [(u64, usize)],
) -> Result<Cow<'b, [(u64, usize)]>> {
    let len = buffers.iter().map(|(_, len)| *len as u64).sum();
    let mut left = process.below_limit(offset, len)? as usize;
    let parts = buffers.iter().map(|&(address, len)| {
        let len = len.min(left);
        left -= len;
        (address, len)
    });
    Ok(Cow::Owned(parts.collect()))
}

/// Writes the buffers.
pub(crate) fn write(
    process: &Process,
    file: &File,
    buffers: &[(u64, usize)],
    given: Option<u64>,
    flags: i32,
) -> Result<usize> {
    file.may_write()?;
    let contents = Contents::of(process, file)?;
    let at_own = |own: &OnMount| {
        let moved = own.write_next(buffers)?;
        if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
            own.sync(flags & RWF_SYNC == 0)?;
        }
        Ok(moved)
    };
    at_offset(process, file, given, at_own, |offset| {
        let appends = file.has(O_APPEND);
        let buffers = &*match process.limits_sizes() {
            true if appends => below_limit(process, contents.size()?, buffers)?,
            true => below_limit(process, offset, buffers)?,
            false => Cow::Borrowed(buffers),
        };
        let (offset, moved) = match appends {
            true => contents.append(&gathered(buffers)?)?,
            false => (offset, write_at(&contents, offset, buffers)?),
        };
        let whole = file.has(O_SYNC & !O_DSYNC) || flags & RWF_SYNC != 0;
        if moved > 0 && (whole || file.has(O_DSYNC) || flags & RWF_DSYNC != 0) {
            contents.sync(!whole)?;
        }
        Ok((offset, moved))
    })
}

/// `lseek`.
pub(crate) fn seek(call: &Call) -> Answer {
    let file = call.file(0)?;
    if file.has(O_PATH) {
        return Err(Errno::BADF.into());
    }
    let fs = file.fs()?;
    let distance = call.args[1] as i64;
    let _held = match backed::offset(call.process, &file)? {
        Offset::Here(held) => held,
        Offset::Kernel(own) => return Ok(kernel::seek(own.0, distance, call.int(2))?),
    };
    let now = file.description.offset.load(Relaxed) as i64;
    let cx = call.process.cx()?;
    let from = |kind| {
        let offset = u64::try_from(distance).map_err(|_| Errno::NXIO)?;
        fs.seek(&cx, file.ino(), offset, kind)
            .map(|offset| offset as i64)
    };
    let target = match call.int(2) {
        SEEK_SET => Some(distance),
        SEEK_CUR => now.checked_add(distance),
        SEEK_END => (fs.getattr(&cx, file.ino())?.size as i64).checked_add(distance),
        SEEK_DATA => Some(from(SeekKind::Data)?),
        SEEK_HOLE => Some(from(SeekKind::Hole)?),
        _ => return Err(Errno::INVAL.into()),
    };
    let target = target.ok_or(Errno::OVERFLOW)?;
    let target = u64::try_from(target).map_err(|_| Errno::INVAL)?;
    file.description.offset.store(target, Relaxed);
    Ok(target)
}

/// Lengths, space and durability.
pub(crate) fn change(call: &Call) -> Answer {
    let file = call.file(0)?;
    if file.has(O_PATH) {
        return Err(Errno::BADF.into());
    }
    let fs = file.fs()?;
    let cx = call.process.cx()?;
    match call.number {
        SYS_ftruncate => {
            file.may_write().map_err(|_| Errno::INVAL)?;
            let size = u64::try_from(call.args[1] as i64).map_err(|_| Errno::INVAL)?;
            match OnMount::of_mapped(call.process, &file) {
                Some(on_mount) => on_mount.set_size(size)?,
                None => set_size(call.process, fs, &file, size)?,
            }
        }
        SYS_fallocate => {
            file.may_write()?;
            let kind = fallocate_kind(call.int(1))?;
            let off = u64::try_from(call.args[2] as i64).map_err(|_| Errno::INVAL)?;
            let len = u64::try_from(call.args[3] as i64).map_err(|_| Errno::INVAL)?;
            match OnMount::of_mapped(call.process, &file) {
                Some(on_mount) => on_mount.allocate(call.int(1), off, len)?,
                None => {
                    if call.int(1) & FALLOC_FL_KEEP_SIZE == 0 {
                        let size = fs.getattr(&cx, file.ino())?.size;
                        call.process.may_resize(size, off.saturating_add(len))?;
                    }
                    fs.fallocate(&cx, file.ino(), kind, off, len)?;
                }
            }
        }
        SYS_fsync | SYS_fdatasync => {
            let data_only = call.number == SYS_fdatasync;
            match fs.getattr(&cx, file.ino())?.kind {
                vfs::FileType::Directory => fs.fsyncdir(&cx, file.ino(), data_only)?,
                _ => Contents::of(call.process, &file)?.sync(data_only)?,
            }
        }
        SYS_sync_file_range => Contents::of(call.process, &file)?.sync(true)?,
        SYS_syncfs => fs.sync()?,
        _ => {} // advice
    }
    Ok(0)
}

/// Sets the length of an open file. The descriptor permits it; set-id bits vanish as at a write.
fn set_size(process: &Process, fs: &dyn FileSystem, file: &File, size: u64) -> Result<()> {
    let cx = process.cx()?;
    let attr = fs.getattr(&cx, file.ino())?;
    process.may_resize(attr.size, size)?;
    let perm = perm::perm_after_write(&cx, &attr);
    let set = SetAttr {
        size: Some(size),
        perm: (perm != attr.perm).then_some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&process.permitted()?, file.ino(), &set)
        .map(drop)
}

fn fallocate_kind(mode: i32) -> Result<Fallocate> {
    let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
    match mode & !FALLOC_FL_KEEP_SIZE {
        0 => Ok(Fallocate::Allocate { keep_size }),
        FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Fallocate::PunchHole),
        FALLOC_FL_ZERO_RANGE => Ok(Fallocate::ZeroRange { keep_size }),
        _ => Err(Errno::OPNOTSUPP),
    }
}
