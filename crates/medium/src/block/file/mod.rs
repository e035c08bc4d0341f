//! A file or block device.
//!
//! Guarantees:
//!
//! 1. While a device is open for writing nobody else has the same file open as a device
//!    or a mapping, and while one is open for reading nobody has it for writing. (The
//!    super-user's writers pass over readers of other users.) It is not opened while the
//!    kernel uses it, as a mounted device, as swap space or behind a loop device.
//! 2. A flush is `fdatasync`, a durable write `RWF_DSYNC`. Once a flush has failed, all
//!    later ones do: the system forgets a failed write-back after reporting it once.
//! 3. A file that was cut short gives errors, on reads behind its end and on every flush
//!    and write; it is not quietly made long again.

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

/// Whether to go around the page cache (`O_DIRECT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Where the file and the block size allow it.
    #[default]
    Auto,
    /// Yes, or do not open.
    On,
    /// No.
    Off,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// By io_uring where the system has it and lets this process use it.
    #[default]
    Auto,
    /// By io_uring, or do not open.
    Uring,
    /// By `pwritev2`, which has ended when [`submit`](BlockDevice::submit) returns.
    Pwrite,
}

/// How to open a [`FileDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceOptions {
    /// Refuse writes and discards (`EROFS`), and let others read meanwhile.
    pub read_only: bool,
    /// Whether to go around the page cache.
    pub direct: Direct,
    /// How to write.
    pub io: Io,
    /// Open it also if it cannot flush. Its flushes then do nothing: a crash may leave
    /// anything at all.
    pub unsafe_no_flush: bool,
    /// Where in the file or device block 0 begins, in bytes: for an image inside an image.
    pub offset_bytes: u64,
    /// Open also a file for writing that loop devices show which nobody uses.
    pub over_idle_loops: bool,
}

/// What was found and chosen when a [`FileDevice`] was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Whether the page cache is not in use.
    pub direct: bool,
    /// Whether writes go through io_uring.
    pub uring: bool,
    /// Whether flushing works.
    pub flushes: bool,
    /// Bytes of a sector as the disk underneath addresses it; 512 if there is no disk.
    pub logical_bytes: u32,
    /// Bytes of a sector as the disk underneath says it writes it. Disks do not tear
    /// it by custom, not by promise: [`Persistence::atomic_bytes`] does not use it.
    pub physical_bytes: u32,
}

/// A file or block device, by io_uring or by `pread` and `pwritev2`.
pub struct FileDevice {
    name: Arc<str>,
    geometry: Geometry,
    /// Where block 0 begins, in bytes.
    offset: u64,
    persistence: Persistence,
    facts: DeviceFacts,
    read_only: bool,
    kind: Kind,
    /// What direct reads need buffers aligned to; 0: anything goes.
    buffer_align: usize,
    /// Most blocks that one request may have.
    merged: usize,
    engine: Engine,
    /// Holds the lock.
    file: Arc<File>,
    flushed: File,
    /// Holds the lock of the file behind a loop device.
    _backing: Option<File>,
    /// Why flushing has failed, if it has.
    failed: Mutex<Option<Errno>>,
}

enum Engine {
    Uring(Box<Uring>),
    Blocking {
        flags: ReadWriteFlags,
        done: Mutex<Vec<Completion>>,
    },
}

/// Most bytes of a request: longer ones only make the others wait.
const MERGED_BYTES: u32 = 1 << 20;

/// `IOV_MAX`: most pieces of a request.
const MERGED_PIECES: u32 = 1024;

/// `RWF_ATOMIC`, since Linux 6.11: wholly or, after a crash, not at all.
const ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// `BLKDISCARD`.
const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);

impl FileDevice {
    /// Locks and opens the regular file or block device at `path`, as blocks of
    /// `block_bytes`; what does not fill a block at its end is left alone.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and, if it is in use, by whom.
    pub fn open(
        path: impl AsRef<Path>,
        block_bytes: u32,
        options: &DeviceOptions,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let target = Target::open(path, block_bytes, options)?;
        let name: Arc<str> = path.display().to_string().into();
        let file = Arc::new(target.file);
        // Only single blocks can be asked to be atomic.
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

    /// What was found and chosen at opening.
    pub fn facts(&self) -> DeviceFacts {
        self.facts
    }

    /// Whether a block may be written with these bytes.
    fn check(&self, write: &Write) -> Result<(), BlockError> {
        write_range(&self.name, self.geometry, write)?;
        if self.read_only {
            return Err(writing(&self.name, write, Errno::ROFS));
        }
        Ok(())
    }

    /// A write behind the end of a file would make it long again, with a hole.
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

    /// Reads into memory that direct I/O may not accept, by way of some that it does.
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
        // Held meanwhile, so that a failure is seen by whoever flushes after it.
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
            // Not every disk or file system can: then the blocks keep what they hold.
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

/// Writes a request by `pwritev2`, to the end.
fn write_all(
    file: &File,
    request: Request,
    flags: ReadWriteFlags,
    device: &Arc<str>,
    ended: &mut Vec<Completion>,
) {
    let mut open = vec![request];
    while let Some(request) = open.pop() {
        let dsync = if request.durable() {
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
