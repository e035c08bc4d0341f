//! Calls for which Linux distinguishes a device from a regular file.

use crate::{DISK, WholeDisk};
use blockfs::{BlockFs, Format};
use std::sync::Arc;
use vfs::{
    Attr, Ctx, Errno, Fallocate, FileSystem, FileSystemLayer, Ino, OpenFlags, Result, SetAttr,
};

/// The file system to serve: calls on the file act as on a block device.
///
/// - A truncation to length 0 succeeds and changes nothing, as `O_TRUNC` does on a device. The
///   kernel sends `O_TRUNC` to FUSE servers as this truncation. So `dd of=disk` writes in place,
///   with and without `conv=notrunc`. A truncation to another length fails with `EPERM`.
/// - A write that reaches past the end is short. One at the end or after it fails with `ENOSPC`.
/// - `fallocate` punches no holes (`EOPNOTSUPP`), as on a device that cannot discard, so programs
///   write zeros where they need them. It zeroes a range up to the end of the device.
pub struct DeviceCalls(Arc<BlockFs<WholeDisk>>);

impl DeviceCalls {
    /// The calls on a mounted device.
    pub fn new(fs: Arc<BlockFs<WholeDisk>>) -> Self {
        Self(fs)
    }

    fn bytes(&self) -> u64 {
        let store = self.0.format().store();
        store.blocks() * u64::from(store.block_bytes())
    }

    /// The bytes from `off` to the end of the device. None if there are none.
    fn left(&self, off: u64) -> Option<u64> {
        self.bytes().checked_sub(off).filter(|&left| left > 0)
    }
}

impl FileSystemLayer for DeviceCalls {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut set = *set;
        if ino == DISK {
            set.size = set.size.filter(|&size| size > 0);
        }
        self.below().setattr(cx, ino, &set)
    }

    fn open(&self, cx: &Ctx, ino: Ino, mut flags: OpenFlags) -> Result<()> {
        if ino == DISK && flags.contains(OpenFlags::TRUNCATE) {
            flags.remove(OpenFlags::TRUNCATE);
            flags.insert(OpenFlags::WRITE); // the permission that a truncation needs
        }
        self.below().open(cx, ino, flags)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, mut data: &[u8]) -> Result<usize> {
        if ino == DISK && !data.is_empty() {
            let left = self.left(off).ok_or(Errno::NOSPC)?;
            data = &data[..data.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        }
        self.below().write(cx, ino, off, data)
    }

    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        vfs::append_by_write(self, cx, ino, data)
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        let len = match kind {
            Fallocate::PunchHole if ino == DISK => return Err(Errno::OPNOTSUPP),
            Fallocate::ZeroRange { keep_size: true } if ino == DISK => {
                len.min(self.left(off).ok_or(Errno::INVAL)?)
            }
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } | Fallocate::Allocate { .. } => len,
        };
        self.below().fallocate(cx, ino, kind, off, len)
    }
}
