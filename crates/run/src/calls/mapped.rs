//! Contents of files that have shared mappings.
//!
//! The kernel keeps the pages of a shared mapping in the cache of the mount. It drops or writes them when a call on
//! the mount requires that. It does not see other calls. So all processes of a run execute the calls on the contents of
//! such a file on the mount: a mapping shows what a call has written, and a call sees what was stored in a mapping.

use super::{Session, locks};
use crate::kernel::{self, Result};
use crate::own::Descriptor;
use crate::process::{File, Process, open_flags};
use crate::raw;
use crate::shared::Reason;
use libc::{
    O_CLOEXEC, O_NOFOLLOW, O_PATH, SYS_fallocate, SYS_fdatasync, SYS_fsync, SYS_ftruncate,
    SYS_pread64, SYS_pwrite64, SYS_readv, SYS_writev,
};
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::sync::{Arc, PoisonError};
use vfs::{Errno, Ino};

/// A file on the mount that this process has open.
pub(crate) struct OnMount(Arc<Descriptor>);

impl OnMount {
    /// Opens the file on the mount once, if it has a shared mapping. Returns `None` as well if the file lost its name, or was
    /// moved, before that, or if the process may not open it as the descriptor was opened.
    pub(crate) fn of_mapped(process: &Process, file: &File) -> Option<Self> {
        // A child of `vfork` has descriptors of its own, and the memory of its parent.
        if !process.shared.is_mapped(file.ino()) || process.is_vfork_child() {
            return None;
        }
        process.mounted()?;
        process.count(Reason::SharedMapping);
        let mut files = process
            .mapped
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (known, access) = match files.entry(file.ino()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let opened = locks::on_mount(process, file, &locks::MOST).ok()?;
                let fd = locks::keep(process, file, opened).ok()?;
                let access = open_flags(kernel::flags(fd).ok()?);
                place.insert((Arc::new(Descriptor(fd)), access))
            }
        };
        let is_enough = access.contains(open_flags(file.description.flags()));
        is_enough.then(|| Self(Arc::clone(known)))
    }
}

/// Cuts a file to nothing on the mount, if it has a shared mapping.
pub(crate) fn cut(session: &Session, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
    let process = session.process;
    if !process.shared.is_mapped(ino) || process.mounted().is_none() {
        return Ok(());
    }
    process.count(Reason::SharedMapping);
    let path = locks::mounted_path(process, session.fs, dir, name)?;
    // The name may be another file's by now. The record locks of the process stay when a descriptor of O_PATH is closed.
    let fd = match kernel::open(&path, O_PATH | O_NOFOLLOW | O_CLOEXEC) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        opened => opened?,
    };
    let opened = Descriptor(crate::own::keep(fd)?);
    match kernel::device_and_inode(opened.0)? {
        found if Some(found) == process.mounted().map(|device| (device, ino.0)) => {
            let number = format!("/proc/self/fd/{}", opened.0);
            kernel::truncate(&CString::new(number).map_err(|_| Errno::INVAL)?, 0)
        }
        _ => Ok(()),
    }
}

impl From<Arc<Descriptor>> for OnMount {
    fn from(descriptor: Arc<Descriptor>) -> Self {
        Self(descriptor)
    }
}

impl OnMount {
    /// Reads at the offset of the kernel's file, which advances.
    pub(crate) fn read_next(&self, buffers: &[(u64, usize)]) -> Result<usize> {
        self.on_buffers(SYS_readv, buffers)
    }

    /// Writes at the offset of the kernel's file, which advances, or at its end.
    pub(crate) fn write_next(&self, buffers: &[(u64, usize)]) -> Result<usize> {
        self.on_buffers(SYS_writev, buffers)
    }

    /// The kernel checks the buffers, which are the program's.
    fn on_buffers(&self, number: i64, buffers: &[(u64, usize)]) -> Result<usize> {
        let parts: Vec<[u64; 2]> = buffers.iter().map(|(at, len)| [*at, *len as u64]).collect();
        let args = [parts.as_ptr() as u64, parts.len() as u64, 0, 0, 0];
        self.call(number, args).map(|moved| moved as usize)
    }

    /// Reads at an offset.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let args = [to.as_mut_ptr() as u64, to.len() as u64, offset, 0, 0];
        self.call(SYS_pread64, args).map(|read| read as usize)
    }

    /// Writes at an offset.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        let args = [from.as_ptr() as u64, from.len() as u64, offset, 0, 0];
        self.call(SYS_pwrite64, args)
            .map(|written| written as usize)
    }

    /// Sets the length.
    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        self.call(SYS_ftruncate, [size, 0, 0, 0, 0]).map(drop)
    }

    /// `fallocate`.
    pub(crate) fn allocate(&self, mode: i32, off: u64, len: u64) -> Result<()> {
        self.call(SYS_fallocate, [mode as u64, off, len, 0, 0])
            .map(drop)
    }

    /// Makes what was stored in mappings durable.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        let number = if data_only { SYS_fdatasync } else { SYS_fsync };
        self.call(number, [0; 5]).map(drop)
    }

    /// Executes a call on the file, whose memory is a slice. A signal does not end it: it waits for the end of the
    /// program's call.
    fn call(&self, number: i64, [a, b, c, d, e]: [u64; 5]) -> Result<u64> {
        loop {
            // SAFETY: the callers pass numbers, the address and the length of a slice, or buffers of the program.
            let done =
                kernel::result(unsafe { raw::syscall(number, [self.0.0.into(), a, b, c, d, e]) });
            if done != Err(Errno::INTR) {
                return done;
            }
        }
    }
}
