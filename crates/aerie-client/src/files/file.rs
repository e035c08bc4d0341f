//! Open files.

use super::{OFlags, access};
use crate::client::Client;
use std::borrow::Borrow;
use std::io::SeekFrom;
use vfs::sync::Mutex;
use vfs::{Attr, Errno, FileSystem, Ino, OpenFlags, Result, SetAttr};

/// An open file or directory. It is closed when it is dropped.
pub struct File<C: Borrow<Client>> {
    client: C,
    ino: Ino,
    access: OpenFlags,
    appends: bool,
    /// The offset. Held by each call that moves it.
    at: Mutex<u64>,
}

impl<C: Borrow<Client>> File<C> {
    pub(super) fn new(client: C, ino: Ino, flags: OFlags) -> Self {
        Self {
            client,
            ino,
            access: access(flags),
            appends: flags.contains(OFlags::APPEND),
            at: Mutex::new(0),
        }
    }

    fn client(&self) -> &Client {
        self.client.borrow()
    }

    fn must_have(&self, access: OpenFlags) -> Result<()> {
        match self.access.contains(access) {
            true => Ok(()),
            false => Err(Errno::BADF),
        }
    }

    /// Reads at the offset, and moves it. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize> {
        let mut at = self.at.lock();
        let len = self.read_at(buf, *at)?;
        *at += len as u64;
        Ok(len)
    }

    /// Reads at `off`.
    ///
    /// # Errors
    /// Those of `pread`.
    pub fn read_at(&self, buf: &mut [u8], off: u64) -> Result<usize> {
        self.must_have(OpenFlags::READ)?;
        self.client().read(self.client().own(), self.ino, off, buf)
    }

    /// Writes at the offset, or at the end of a file that was opened with `APPEND`, and moves the offset.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write(&self, data: &[u8]) -> Result<usize> {
        let mut at = self.at.lock();
        let (off, len) = match self.appends {
            true => {
                self.must_have(OpenFlags::WRITE)?;
                self.client().append(self.client().own(), self.ino, data)?
            }
            false => (*at, self.write_at(data, *at)?),
        };
        *at = off + len as u64;
        Ok(len)
    }

    /// Writes at `off`.
    ///
    /// # Errors
    /// Those of `pwrite`.
    pub fn write_at(&self, data: &[u8], off: u64) -> Result<usize> {
        self.must_have(OpenFlags::WRITE)?;
        let client = self.client();
        client.write(client.own(), self.ino, off, data)
    }

    /// Moves the offset. Returns it.
    ///
    /// # Errors
    /// `EINVAL` for one below 0.
    pub fn seek(&self, to: SeekFrom) -> Result<u64> {
        let mut at = self.at.lock();
        let to = match to {
            SeekFrom::Start(off) => Some(off),
            SeekFrom::Current(by) => at.checked_add_signed(by),
            SeekFrom::End(by) => self.attributes()?.size.checked_add_signed(by),
        };
        let is_offset = |off: &u64| i64::try_from(*off).is_ok();
        *at = to.filter(is_offset).ok_or(Errno::INVAL)?;
        Ok(*at)
    }

    /// Sets the size.
    ///
    /// # Errors
    /// Those of `ftruncate`.
    pub fn set_size(&self, bytes: u64) -> Result<()> {
        self.must_have(OpenFlags::WRITE).map_err(|_| Errno::INVAL)?;
        let set = SetAttr {
            size: Some(bytes),
            ..SetAttr::default()
        };
        let client = self.client();
        client.setattr(client.own(), self.ino, &set).map(drop)
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn attributes(&self) -> Result<Attr> {
        self.client().getattr(self.client().own(), self.ino)
    }

    /// Waits until the file, and all earlier changes of the client, are durable.
    ///
    /// # Errors
    /// That of the first change that the service has refused since the last call of this kind.
    pub fn sync(&self) -> Result<()> {
        self.client().fsync(self.client().own(), self.ino, false)
    }
}

impl<C: Borrow<Client>> Drop for File<C> {
    fn drop(&mut self) {
        self.client().release(self.ino);
    }
}
