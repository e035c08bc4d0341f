//! The file of a mapping: what it is, whose it is, and how it is mapped.

use super::MapOptions;
use crate::addresses::Mapping;
use crate::block::is_read_only;
use crate::claim;
use crate::cpu::LineFlush;
use crate::durability::{Durability, EffectiveDurability, is_memory_fs};
use crate::lock::{Access, lock};
use crate::lossy;
use crate::open_error::OpenError;
use crate::touched::PAGE_BYTES;
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An open file of a usable kind and size. It is locked, unless another process opened it.
pub(crate) struct Target {
    pub(super) file: Arc<File>,
    pub(super) claim: Option<File>,
    pub(super) backing: Option<File>,
    /// The copy that is mapped instead of the file while a power cut is simulated.
    pub(super) copy: Option<Arc<File>>,
    pub(crate) len: u64,
    /// Bytes of the smallest page of a mapping of the file.
    pub(super) page: usize,
}

impl Target {
    pub(crate) fn open(path: &Path, options: &MapOptions) -> Result<Self, OpenError> {
        let write = !options.read_only;
        // The check of the kind precedes the open: opening a pipe or a tape has effects.
        let stat = match options.no_links {
            true => rustix::fs::lstat(path),
            false => rustix::fs::stat(path),
        };
        let stat = stat.map_err(|e| system("open", path, e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let dax = (kind == FileType::CharacterDevice)
            .then(|| DaxDevice::find(stat.st_rdev))
            .flatten();
        if dax.is_none() {
            check_kind(path, kind)?;
        }
        let read_only = || OpenError::ReadOnly {
            path: path.to_owned(),
        };
        if write && kind == FileType::BlockDevice && is_read_only(stat.st_rdev) {
            return Err(read_only());
        }
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // The name may refer to another file by now: the open file is checked again below.
        let mut always = OFlags::NONBLOCK | OFlags::CLOEXEC;
        always.set(OFlags::NOFOLLOW, options.no_links);
        let open = |flags| rustix::fs::open(path, access | always | flags, Mode::empty());
        let file = File::from(open(OFlags::empty()).map_err(|e| match e {
            Errno::ROFS => read_only(),
            e => system("open", path, e),
        })?);
        if dax.is_none() {
            let opened = fstat(&file).map_err(|e| system("look at", path, e))?;
            check_kind(path, FileType::from_raw_mode(opened.st_mode))?;
        }
        lock(path, &file, Access::of(options.read_only))?;
        // The kernel refuses a device that is mounted or part of another. This comes after
        // the lock, whose error can name the holder.
        let claim = (write && kind == FileType::BlockDevice).then(|| open(OFlags::EXCL));
        let claim = claim.transpose();
        let claim = claim.map_err(|e| claim::not_ours(path, &file, e))?;
        let claim = claim.map(File::from);
        let sized = Self::sized(path, file, dax)?;
        Ok(Self { claim, ..sized })
    }

    /// Takes a file that another process opened, without a lock or a claim.
    pub(super) fn of_descriptor(path: &Path, file: File) -> Result<Self, OpenError> {
        let stat = fstat(&file).map_err(|e| system("look at", path, e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let dax = (kind == FileType::CharacterDevice)
            .then(|| DaxDevice::find(stat.st_rdev))
            .flatten();
        if dax.is_none() {
            check_kind(path, kind)?;
        }
        Self::sized(path, file, dax)
    }

    /// Adds the size of the file or device, if it is a possible one.
    fn sized(path: &Path, file: File, dax: Option<DaxDevice>) -> Result<Self, OpenError> {
        let (len, page) = match dax {
            Some(dax) => (dax.len, dax.align),
            None => (len_of(path, &file)?, rustix::param::page_size()),
        };
        if len == 0 || !len.is_multiple_of(PAGE_BYTES) || usize::try_from(len).is_err() {
            let path = path.to_owned();
            return Err(OpenError::WrongSize {
                path,
                len_bytes: len,
            });
        }
        Ok(Self {
            file: Arc::new(file),
            copy: None,
            claim: None,
            backing: None,
            len,
            page,
        })
    }
}

/// Size of a file or block device in bytes: the offset of its end.
fn len_of(path: &Path, file: &File) -> Result<u64, OpenError> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(|e| system("size", path, e))
}

pub(super) fn check_kind(path: &Path, kind: FileType) -> Result<(), OpenError> {
    let kind = match kind {
        FileType::RegularFile | FileType::BlockDevice => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
        FileType::CharacterDevice => "a character device",
        _ => "neither",
    };
    let path = path.to_owned();
    Err(OpenError::WrongKind { path, kind })
}

pub(super) fn system(doing: &'static str, path: &Path, e: Errno) -> OpenError {
    OpenError::System {
        doing,
        path: path.to_owned(),
        source: e.into(),
    }
}

/// The attributes of a `/dev/daxX.Y` in sysfs.
struct DaxDevice {
    /// Size in bytes.
    len: u64,
    /// Bytes of the smallest page of a mapping.
    align: usize,
}

impl DaxDevice {
    fn find(rdev: u64) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let dir = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
        let subsystem = std::fs::read_link(dir.join("subsystem")).ok()?;
        if subsystem.file_name()? != "dax" {
            return None;
        }
        let number = |name| {
            std::fs::read_to_string(dir.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let align = number("align").unwrap_or(2 << 20);
        Some(Self {
            len: number("size")?,
            align: align as usize,
        })
    }
}

/// Maps the target as the options request. Returns the durability of the mapping, too.
pub(super) fn map(
    path: &Path,
    target: &mut Target,
    options: &MapOptions,
) -> Result<(Mapping, EffectiveDurability), OpenError> {
    let no_dax = |reason| OpenError::NoDax {
        path: path.to_owned(),
        reason,
    };
    let prot = if options.read_only {
        ProtFlags::READ
    } else {
        ProtFlags::READ | ProtFlags::WRITE
    };
    let len = target.len as usize;
    let mapping_of = |file: &File, flags| {
        // SAFETY: a new mapping at an address that the kernel picks overlaps nothing.
        let base = unsafe { mmap(null_mut(), len, prot, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        // SAFETY: this is the mapping just made.
        Ok(unsafe { Mapping::new(base, len) })
    };
    if options.simulate_power_cut && !options.read_only {
        let copy = lossy::copy_of(&target.file, target.len);
        let copy = copy.map_err(|source| OpenError::System {
            doing: "copy",
            path: path.to_owned(),
            source,
        })?;
        let mapped = mapping_of(&copy, MapFlags::SHARED).map_err(|e| system("map", path, e))?;
        target.copy = Some(Arc::new(copy));
        return Ok((mapped, EffectiveDurability::Process));
    }
    let mapping = |flags| mapping_of(&target.file, flags);
    if matches!(options.durability, Durability::Auto | Durability::Dax) {
        let synced = match LineFlush::detect() {
            None => Err("this processor has no known flush instruction"),
            Some(_) => match mapping(shared(EffectiveDurability::Dax)) {
                Ok(mapped) => Ok(mapped),
                Err(_) => Err("it is not persistent memory (no MAP_SYNC mapping)"),
            },
        };
        match synced {
            Ok(mapped) => return Ok((mapped, EffectiveDurability::Dax)),
            Err(reason) if options.durability == Durability::Dax => return Err(no_dax(reason)),
            Err(_) => {}
        }
    }
    let effective = match options.durability {
        Durability::Msync => EffectiveDurability::Msync,
        Durability::Auto if options.power_safe && !is_volatile(&target.file) => {
            EffectiveDurability::Msync
        }
        Durability::Auto | Durability::Dax | Durability::Process => EffectiveDurability::Process,
    };
    let mapped = mapping(shared(effective)).map_err(|e| system("map", path, e))?;
    Ok((mapped, effective))
}

/// Whether the file's file system keeps its files in memory.
fn is_volatile(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| is_memory_fs(&found))
}

/// The flags with which a file is mapped for `durability`.
pub(super) fn shared(durability: EffectiveDurability) -> MapFlags {
    match durability {
        EffectiveDurability::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        EffectiveDurability::Process | EffectiveDurability::Msync => MapFlags::SHARED,
    }
}
