//! Opening of a file or block device: its kind, its locks and its abilities.

use super::{DeviceOptions, Direct};
use crate::OpenError;
use crate::block::{Buffer, Geometry};
use crate::claim::{self, Intent};
use crate::lock::{Access, lock};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl};
use rustix::fs::{fdatasync, fstat, major, minor, statx};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// `STATX_WRITE_ATOMIC`, since Linux 6.11.
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);

/// An open, locked file of a usable kind and size.
pub(super) struct Target {
    pub(super) file: File,
    /// A second open of the same file, for flushes. The system reports a failed write-back once
    /// to each open, so no other call can take the report. It also keeps the kernel's claim on
    /// a block device.
    pub(super) flushed: File,
    /// Holds the lock of the file that a loop device shows.
    pub(super) backing: Option<File>,
    pub(super) kind: Kind,
    pub(super) geometry: Geometry,
    /// The alignment of buffers for direct I/O, in bytes; 0 without direct I/O.
    pub(super) buffer_align: usize,
    /// The largest write that the system reports as atomic, in bytes; 0 without a report.
    pub(super) atomic_bytes: u32,
    /// Bytes of a sector of the disk below: as addressed, and as written inside.
    pub(super) logical_bytes: u32,
    pub(super) physical_bytes: u32,
    /// Whether flushing works.
    pub(super) flushes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    Block,
}

impl Target {
    pub(super) fn open(
        path: &Path,
        block_bytes: u32,
        options: &DeviceOptions,
    ) -> Result<Self, OpenError> {
        // The check of the kind precedes the open: opening a pipe or a tape has effects.
        let stat = rustix::fs::stat(path).map_err(|e| system("open", path, e))?;
        let kind = kind(path, FileType::from_raw_mode(stat.st_mode))?;
        let device = (kind == Kind::Block).then_some(stat.st_rdev);
        if !options.read_only && device.is_some_and(is_read_only) {
            return Err(read_only(path));
        }
        let file = open_as(path, options.read_only, OFlags::empty());
        let file = file.map_err(|e| match e {
            Errno::ROFS => read_only(path),
            e => system("open", path, e),
        })?;
        lock(path, &file, Access::of(options.read_only))?;
        let intent = Intent::new(options.read_only, options.over_idle_loops);
        let backing = claim::check(path, &file, intent)?;
        // The kernel refuses a device that is mounted or part of another. This comes after the
        // lock, whose error can name the holder.
        let claims = kind == Kind::Block && !options.read_only;
        let flags = if claims {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        let flushed = open_as(path, options.read_only, flags);
        let flushed = flushed.map_err(|e| match claims {
            true => claim::not_ours(path, &file, e),
            false => system("open", path, e),
        })?;
        check_same(path, &file, &flushed)?;
        let sectors = Sectors::of(&file, kind);
        let geometry = geometry(
            path,
            &file,
            kind,
            block_bytes,
            options.offset_bytes,
            &sectors,
        )?;
        let buffer_align = go_direct(path, &file, kind, geometry, options)?;
        Ok(Self {
            atomic_bytes: atomic_bytes(&file, buffer_align > 0),
            flushes: options.read_only || can_flush(path, &flushed, options)?,
            file,
            flushed,
            backing,
            kind,
            geometry,
            buffer_align,
            logical_bytes: sectors.logical,
            physical_bytes: sectors.physical,
        })
    }
}

fn read_only(path: &Path) -> OpenError {
    let path = path.to_owned();
    OpenError::ReadOnly { path }
}

/// Whether a block device refuses writes: the kernel permits the open even then.
pub(crate) fn is_read_only(device: rustix::fs::Dev) -> bool {
    let path = format!("/sys/dev/block/{}:{}/ro", major(device), minor(device));
    std::fs::read_to_string(path).is_ok_and(|ro| ro.trim() == "1")
}

fn open_as(path: &Path, read_only: bool, flags: OFlags) -> Result<File, Errno> {
    let access = if read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    let flags = access | OFlags::CLOEXEC | flags;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

fn kind(path: &Path, found: FileType) -> Result<Kind, OpenError> {
    let kind = match found {
        FileType::RegularFile => return Ok(Kind::Regular),
        FileType::BlockDevice => return Ok(Kind::Block),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        _ => "neither",
    };
    let path = path.to_owned();
    Err(OpenError::WrongKind { path, kind })
}

/// Checks that the name did not change to another file between two opens.
fn check_same(path: &Path, one: &File, other: &File) -> Result<(), OpenError> {
    let id = |file| fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
    match (id(one), id(other)) {
        (Ok(one), Ok(other)) if one == other => Ok(()),
        (Err(e), _) | (_, Err(e)) => Err(system("open", path, e)),
        _ => Err(system("open", path, Errno::STALE)),
    }
}

fn geometry(
    path: &Path,
    file: &File,
    kind: Kind,
    block_bytes: u32,
    offset: u64,
    sectors: &Sectors,
) -> Result<Geometry, OpenError> {
    let path = || path.to_owned();
    let possible = block_bytes.is_power_of_two() && (512..=65_536).contains(&block_bytes);
    // The pages of a file hide the sectors of its disk.
    if !possible || kind == Kind::Block && block_bytes < sectors.logical {
        return Err(OpenError::BlockSize {
            path: path(),
            block_bytes,
            sector_bytes: sectors.logical,
        });
    }
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    let len_bytes = end.map_err(|e| system("size", &path(), e))?;
    let len_bytes = len_bytes.saturating_sub(offset);
    let blocks = len_bytes / u64::from(block_bytes);
    if blocks == 0 {
        return Err(OpenError::NoBlock {
            path: path(),
            len_bytes,
            block_bytes,
        });
    }
    Ok(Geometry {
        block_bytes,
        blocks,
    })
}

/// Bypasses the page cache if that is requested and possible. Returns the alignment of buffers,
/// or 0 if the page cache is in use.
fn go_direct(
    path: &Path,
    file: &File,
    kind: Kind,
    geometry: Geometry,
    options: &DeviceOptions,
) -> Result<usize, OpenError> {
    let wanted = options.direct;
    if wanted == Direct::Off {
        return Ok(0);
    }
    match try_direct(file, kind, geometry, options.offset_bytes) {
        Ok(align) => Ok(align),
        Err(e) if wanted == Direct::On => Err(system("use direct I/O on", path, e)),
        Err(_) => {
            let flags = fcntl_getfl(file).map_err(|e| system("open", path, e))?;
            fcntl_setfl(file, flags - OFlags::DIRECT).map_err(|e| system("open", path, e))?;
            Ok(0)
        }
    }
}

fn try_direct(file: &File, kind: Kind, geometry: Geometry, base: u64) -> Result<usize, Errno> {
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, flags | OFlags::DIRECT)?;
    let told = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|x| StatxFlags::from_bits_retain(x.stx_mask).contains(StatxFlags::DIOALIGN));
    // A file system may support direct I/O without a report: the read below shows it.
    let (offset, memory) = match told {
        Some(x) if kind == Kind::Regular => (x.stx_dio_offset_align, x.stx_dio_mem_align),
        _ => (512, 4096),
    };
    let fits = offset > 0
        && geometry.block_bytes.is_multiple_of(offset)
        && base.is_multiple_of(offset.into());
    if !fits || memory > 4096 {
        return Err(Errno::INVAL);
    }
    let mut first = Buffer::zeroed(geometry.block_bytes as usize);
    rustix::io::pread(file, &mut *first, base)?;
    Ok(memory.max(1) as usize)
}

fn atomic_bytes(file: &File, direct: bool) -> u32 {
    let told = statx(file, c"", AtFlags::EMPTY_PATH, WRITE_ATOMIC).ok();
    told.filter(|x| direct && StatxFlags::from_bits_retain(x.stx_mask).contains(WRITE_ATOMIC))
        .map_or(0, |x| x.stx_atomic_write_unit_max)
}

/// Shows at the open, rather than at the first commit, that flushing does not work.
fn can_flush(path: &Path, file: &File, options: &DeviceOptions) -> Result<bool, OpenError> {
    match fdatasync(file) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) if options.unsafe_no_flush => Ok(false),
        Err(error @ (Errno::INVAL | Errno::NOTSUP | Errno::NOSYS)) => Err(OpenError::NoFlush {
            path: path.to_owned(),
            source: error.into(),
        }),
        Err(e) => Err(system("flush", path, e)),
    }
}

/// The sectors of the disk of a file, or of a block device.
struct Sectors {
    logical: u32,
    physical: u32,
}

impl Sectors {
    /// The sizes from sysfs; 512 if there is no disk, or sysfs does not list it.
    fn of(file: &File, kind: Kind) -> Self {
        let number = fstat(file).map(|stat| match kind {
            Kind::Regular => stat.st_dev,
            Kind::Block => stat.st_rdev,
        });
        let dir =
            number.map(|n| PathBuf::from(format!("/sys/dev/block/{}:{}", major(n), minor(n))));
        let read = |name: &str| {
            let dir = dir.as_ref().ok()?;
            // The queue of a partition is that of its disk, one directory up.
            let queues = [dir.join("queue"), dir.join("../queue")];
            let text = queues
                .iter()
                .find_map(|q| std::fs::read_to_string(q.join(name)).ok())?;
            text.trim()
                .parse::<u32>()
                .ok()
                .filter(|n| n.is_power_of_two() && *n >= 512)
        };
        let logical = read("logical_block_size").unwrap_or(512);
        let physical = read("physical_block_size").unwrap_or(logical);
        Self { logical, physical }
    }
}

pub(super) fn system(doing: &'static str, path: &Path, e: Errno) -> OpenError {
    OpenError::System {
        doing,
        path: path.to_owned(),
        source: e.into(),
    }
}
