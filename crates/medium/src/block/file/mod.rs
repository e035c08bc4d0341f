//! A file or block device.
//!
//! Guarantees:
//!
//! 1. A device that is open for writing excludes every other device or mapping of its file; one
//!    that is open for reading excludes writers. (The super-user's writers ignore readers of
//!    other users.) A file that the kernel uses as a mounted device, as swap space or for a
//!    loop device is not opened.
//! 2. A flush is `fdatasync`, a durable write `RWF_DSYNC`. Once a flush has failed, all later
//!    ones fail: the system reports a failed write-back only once.
//! 3. A truncated file gives errors, on reads after its end and on every flush and write. No
//!    write extends it again.

mod open;
mod request;
mod uring;

use super::{BlockDevice, BlockError, Buffer, Completion, Geometry, Lba, Persistence, Write};
use crate::block::device::{block_range, byte_range, write_range};
use crate::{OpenError, Rule};
pub(crate) use open::is_read_only;
use open::{Kind, Target};
use parking_lot::Mutex;
use request::{Next, Request, completion, writing};
use rustix::fs::{FallocateFlags, fallocate, fdatasync, fstat};
use rustix::io::{Errno, ReadWriteFlags, pread, pwritev2};
use std::fs::File;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use uring::Uring;

/// Whether to bypass the page cache (`O_DIRECT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// If the file and the block size allow it.
    #[default]
    Auto,
    /// Always; else the open fails.
    On,
    /// Never.
    Off,
}

/// The system interface for writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// io_uring if the system has it and permits it to this process, else `pwritev2`.
    #[default]
    Auto,
    /// io_uring; else the open fails.
    Uring,
    /// `pwritev2`, so that writes have ended when [`submit`](BlockDevice::submit) returns.
    Pwrite,
}

/// Options for opening a [`FileDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceOptions {
    /// Refuses writes and discards (`EROFS`), and permits other readers meanwhile.
    pub read_only: bool,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// The system interface for writes.
    pub io: Io,
    /// Opens the file even if it cannot flush. Flushes then do nothing, and a crash may leave
    /// any contents.
    pub unsafe_no_flush: bool,
    /// The position of block 0 in the file or device, in bytes: for an image inside an image.
    pub offset_bytes: u64,
    /// Permits writes to a file that only idle loop devices use.
    pub over_idle_loops: bool,
}

/// The properties found and chosen when a [`FileDevice`] was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether writes go through io_uring.
    pub uring: bool,
    /// Whether flushing works.
    pub flushes: bool,
    /// Bytes of a sector as addressed by the disk below; 512 if there is no disk.
    pub logical_bytes: u32,
    /// Bytes of a sector as written inside the disk below, by its own report. Disks by custom
    /// do not tear it, but do not guarantee so: [`Persistence::atomic_bytes`] ignores it.
    pub physical_bytes: u32,
}

/// A file or block device, by io_uring or by `pread` and `pwritev2`.
pub struct FileDevice {
    name: Arc<str>,
    geometry: Geometry,
    /// The position of block 0, in bytes.
    offset: u64,
    persistence: Persistence,
    facts: DeviceFacts,
    read_only: bool,
    kind: Kind,
    /// The alignment of buffers for direct reads, in bytes; 0: no requirement.
    buffer_align: usize,
    /// The largest number of blocks of one request.
    merged: usize,
    engine: Engine,
    /// Holds the lock.
    file: Arc<File>,
    flushed: File,
    /// Holds the lock of the file that a loop device shows.
    _backing: Option<File>,
    /// The error with which flushing has failed, if it has.
    failed: Mutex<Option<Errno>>,
}

enum Engine {
    Uring(Box<Uring>),
    Blocking {
        flags: ReadWriteFlags,
        done: Mutex<Vec<Completion>>,
    },
}

/// The largest size of a request in bytes: longer ones only delay others.
const MERGED_BYTES: u32 = 1 << 20;

/// `IOV_MAX`: the largest number of pieces of a request.
const MERGED_PIECES: u32 = 1024;

/// `RWF_ATOMIC`, since Linux 6.11: a crash leaves all of the write or nothing.
const ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// `BLKDISCARD`.
const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);

impl FileDevice {
    /// Locks and opens the regular file or block device at `path`, in blocks of `block_bytes`.
    /// A part at its end that does not fill a block stays unused.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and, if it is in use, its holder.
    pub fn open(
        path: impl AsRef<Path>,
        block_bytes: u32,
        options: &DeviceOptions,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let target = Target::open(path, block_bytes, options)?;
        let name: Arc<str> = path.display().to_string().into();
        let file = Arc::new(target.file);
        // `RWF_ATOMIC` works for single blocks only.
        let atomic = target.atomic_bytes >= block_bytes;
        let flags = if atomic {
            ATOMIC
        } else {
            ReadWriteFlags::empty()
        };
        let engine = Engine::new(path, &name, &file, flags, options.io)?;
        let most = (MERGED_BYTES / block_bytes).min(MERGED_PIECES);
        Ok(Self {
            geometry: target.geometry,
            offset: options.offset_bytes,
            persistence: Persistence {
                atomic_bytes: if atomic {
                    block_bytes
                } else {
                    target.logical_bytes
                },
                volatile_cache: true,
                durable_writes: target.flushes,
            },
            facts: DeviceFacts {
                direct: target.buffer_align > 0,
                uring: matches!(engine, Engine::Uring(_)),
                flushes: target.flushes,
                logical_bytes: target.logical_bytes,
                physical_bytes: target.physical_bytes,
            },
            read_only: options.read_only,
            kind: target.kind,
            buffer_align: target.buffer_align,
            merged: if atomic { 1 } else { most as usize },
            engine,
            name,
            file,
            flushed: target.flushed,
            _backing: target.backing,
            failed: Mutex::new(None),
        })
    }

    /// The properties found and chosen when the device was opened.
    pub fn facts(&self) -> DeviceFacts {
        self.facts
    }

    /// Checks that a block may be written with these bytes.
    fn check(&self, write: &Write) -> Result<(), BlockError> {
        write_range(&self.name, self.geometry, write)?;
        if self.read_only {
            return Err(writing(&self.name, write, Errno::ROFS));
        }
        Ok(())
    }

    /// Checks the length: a write after the end of a truncated file would extend it, with a
    /// hole.
    fn check_whole(&self) -> Result<(), Errno> {
        match self.kind {
            Kind::Regular
                if (fstat(&*self.file)?.st_size as u64) < self.offset + self.geometry.bytes() =>
            {
                Err(Errno::IO)
            }
            _ => Ok(()),
        }
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Errno> {
        while !buf.is_empty() {
            match pread(&*self.file, &mut *buf, offset) {
                Ok(0) => return Err(Errno::IO),
                Ok(len) => {
                    offset += len as u64;
                    buf = &mut buf[len..];
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads into memory that direct I/O may not accept, by way of an aligned buffer.
    fn read_around(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let len = buf.len().min(MERGED_BYTES as usize);
        let mut aligned = Buffer::zeroed(len);
        for (i, part) in buf.chunks_mut(len).enumerate() {
            self.read_at(offset + (i * len) as u64, &mut aligned[..part.len()])?;
            part.copy_from_slice(&aligned[..part.len()]);
        }
        Ok(())
    }

    fn discard_bytes(&self, start: u64, len: u64) -> Result<(), Errno> {
        match self.kind {
            Kind::Regular => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&*self.file, how, start, len)
            }
            Kind::Block => {
                // SAFETY: BLKDISCARD reads an array of two u64, the start and the length.
                unsafe {
                    let discard = rustix::ioctl::Setter::<BLKDISCARD, _>::new([start, len]);
                    rustix::ioctl::ioctl(&*self.file, discard)
                }
            }
        }
    }

    fn io_error(&self, what: &'static str, lba: Lba, error: Errno) -> BlockError {
        BlockError::Io {
            device: self.name.clone(),
            what,
            lba,
            error,
        }
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let range = byte_range(&self.name, self.geometry, lba, buf.len())?;
        let aligned =
            self.buffer_align == 0 || buf.as_ptr().addr().is_multiple_of(self.buffer_align);
        let result = if aligned {
            self.read_at(self.offset + range.start, buf)
        } else {
            self.read_around(self.offset + range.start, buf)
        };
        result.map_err(|e| self.io_error("reading", lba, e))
    }

    fn submit(&self, writes: Vec<Write>) {
        let whole = self.check_whole();
        let mut ended = Vec::new();
        let mut good = Vec::with_capacity(writes.len());
        for write in writes {
            let cut_short = || whole.map_err(|e| writing(&self.name, &write, e));
            match self.check(&write).and_then(|()| cut_short()) {
                Ok(()) => good.push(write),
                Err(error) => ended.push(completion(&write, Err(error))),
            }
        }
        let requests = request::merge(good, self.merged, self.offset);
        match &self.engine {
            Engine::Uring(uring) => uring.submit(requests, ended),
            Engine::Blocking { flags, done } => {
                for request in requests {
                    write_all(&self.file, request, *flags, &self.name, &mut ended);
                }
                done.lock().extend(ended);
            }
        }
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        match &self.engine {
            Engine::Uring(uring) => uring.reap(min),
            Engine::Blocking { done, .. } => std::mem::take(&mut done.lock()),
        }
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        if self.read_only || !self.facts.flushes {
            return Ok(());
        }
        // Held during the call, so that every later flush finds a failure.
        let mut failed = self.failed.lock();
        if failed.is_none() {
            *failed = fdatasync(&self.flushed)
                .and_then(|()| self.check_whole())
                .err();
        }
        let device = self.name.clone();
        failed.map_or(Ok(()), |error| Err(BlockError::Flush { device, error }))
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        let range = block_range(&self.name, self.geometry, lba, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        if self.read_only {
            return Err(self.io_error("discarding", lba, Errno::ROFS));
        }
        match self.discard_bytes(self.offset + range.start, range.end - range.start) {
            // Some disks and file systems cannot discard: the blocks then keep their contents.
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL) => Ok(()),
            Err(e) => Err(self.io_error("discarding", lba, e)),
        }
    }
}

impl Engine {
    fn new(
        path: &Path,
        name: &Arc<str>,
        file: &Arc<File>,
        flags: ReadWriteFlags,
        wanted: Io,
    ) -> Result<Self, OpenError> {
        let blocking = || Engine::Blocking {
            flags,
            done: Mutex::default(),
        };
        if wanted == Io::Pwrite {
            return Ok(blocking());
        }
        match Uring::new(name.clone(), file.clone(), flags.bits() as i32) {
            Ok(uring) => Ok(Engine::Uring(Box::new(uring))),
            Err(_) if wanted == Io::Auto => Ok(blocking()),
            Err(source) => Err(OpenError::System {
                doing: "use io_uring on",
                path: path.to_owned(),
                source,
            }),
        }
    }
}

/// Writes a whole request by `pwritev2`.
fn write_all(
    file: &File,
    request: Request,
    flags: ReadWriteFlags,
    device: &Arc<str>,
    ended: &mut Vec<Completion>,
) {
    let mut open = vec![request];
    while let Some(request) = open.pop() {
        let dsync = if request.is_durable() {
            ReadWriteFlags::DSYNC
        } else {
            ReadWriteFlags::empty()
        };
        let parts: Vec<IoSlice<'_>> = request.rest().collect();
        let result = pwritev2(file, &parts, request.offset(), flags | dsync);
        drop(parts);
        match request.after(result, device) {
            Next::Finished(done) => ended.extend(done),
            Next::Again(requests) => open.extend(requests),
        }
    }
}
