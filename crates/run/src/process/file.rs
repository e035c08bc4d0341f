//! Files of the store that calls use.

use super::{LOCAL, Process, REFERS, process};
use crate::kernel::Result;
use crate::shared::Description;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use vfs::{Errno, FileSystem, Ino, OpenFlags};

/// A file of the store, in use by a call.
pub(crate) struct File {
    pub(crate) number: u32,
    pub(crate) description: &'static Description,
}

impl File {
    pub(crate) fn ino(&self) -> Ino {
        self.description.ino()
    }

    /// Passes the use of the description to the caller.
    pub(super) fn keep(self) -> u32 {
        let number = self.number;
        std::mem::forget(self);
        number
    }

    /// The file system of this process, which has the file open from now on.
    pub(crate) fn fs(&self) -> Result<&'static dyn FileSystem> {
        let process = process();
        let fs = process.fs()?;
        let local = &LOCAL[self.number as usize];
        if local.load(Acquire) & REFERS == 0 && local.fetch_or(REFERS, AcqRel) & REFERS == 0 {
            self.open_again(process, fs).inspect_err(|_| {
                local.fetch_and(!REFERS, AcqRel);
            })?;
        }
        Ok(fs)
    }

    /// Opens what another process, or another connection, has open, unless the file is gone.
    #[cold]
    fn open_again(&self, process: &Process, fs: &'static dyn FileSystem) -> Result<()> {
        let ((ino, generation), cx) = (self.description.inode(), process.permitted()?);
        fs.open(&cx, ino, open_flags(self.description.flags()))?;
        match fs.getattr(&cx, ino) {
            Ok(attr) if attr.generation == generation => Ok(()),
            found => {
                fs.release(ino);
                found.and(Err(Errno::STALE))
            }
        }
    }

    /// Whether it was opened for reading.
    pub(crate) fn may_read(&self) -> Result<()> {
        match open_flags(self.description.flags()).contains(OpenFlags::READ) {
            true => Ok(()),
            false => Err(Errno::BADF),
        }
    }

    /// Whether it was opened for writing.
    pub(crate) fn may_write(&self) -> Result<()> {
        match open_flags(self.description.flags()).contains(OpenFlags::WRITE) {
            true => Ok(()),
            false => Err(Errno::BADF),
        }
    }

    pub(crate) fn has(&self, flag: i32) -> bool {
        self.description.flags() & flag as u32 != 0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        process().drop_user(self.number);
    }
}

/// The access that the flags of `open` ask for.
pub(crate) fn open_flags(flags: u32) -> OpenFlags {
    if flags & libc::O_PATH as u32 != 0 {
        return OpenFlags::empty();
    }
    match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => OpenFlags::READ,
        libc::O_WRONLY => OpenFlags::WRITE,
        _ => OpenFlags::READ | OpenFlags::WRITE,
    }
}
