//! A descriptor that a call takes before it changes a file: a call that gets none has changed nothing.

use super::{LOCAL, Process, REFERS};
use crate::abi::FD_LIMIT;
use crate::kernel::{self, Result};
use std::sync::atomic::Ordering::Release;
use vfs::{Errno, Ino};

/// A descriptor and a description without a file. They are given back unless they get one.
pub(crate) struct Reserved {
    process: &'static Process,
    fd: u32,
    number: u32,
}

impl Process {
    /// Takes a descriptor and a description. `EMFILE` or `ENFILE` without one.
    pub(crate) fn reserve(&'static self, closes_on_exec: bool) -> Result<Reserved> {
        let fd = kernel::duplicate(self.placeholder, 0, closes_on_exec)?;
        let number = match (fd as usize) < FD_LIMIT {
            true => self.shared.reserve(),
            false => Err(Errno::MFILE),
        };
        let number = number.inspect_err(|_| {
            let _ = kernel::close(fd);
        })?;
        Ok(Reserved {
            process: self,
            fd,
            number,
        })
    }
}

impl Reserved {
    /// The descriptor, which has a file now. The file system has it open.
    pub(crate) fn open(
        self,
        inode: (Ino, u64),
        flags: u32,
        opened_as: Option<(Ino, &[u8])>,
    ) -> u64 {
        let (process, fd, number) = (self.process, self.fd, self.number);
        std::mem::forget(self);
        process.shared.describe(number, inode, flags, opened_as);
        LOCAL[number as usize].store(1 | REFERS, Release);
        process.note(fd, number);
        fd.into()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = kernel::close(self.fd);
        self.process.give_up(self.number);
    }
}
