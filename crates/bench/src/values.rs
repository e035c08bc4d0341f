//! Keys and values (KVFS) as a tree for workloads: a file is a value, which is read and replaced as a whole.
//! Directories of paths do not count.

use crate::error::{Context, Error, Result};
use crate::service::Connected;
use crate::tree::{DATA, OpenFile, Tree};
use aerie_client::{Kv, SharedBytes};
use std::ffi::CStr;
use vfs::Errno;

/// The keys and values of a directory.
pub(crate) struct Values(Kv<Connected>);

impl Values {
    /// Makes the directory, if it is not there.
    pub(crate) fn new(client: Connected) -> Result<Self> {
        let values = Kv::create(client, b"values");
        Ok(Self(values.what(|| "making a directory of values".into())?))
    }
}

fn key(path: &CStr) -> &[u8] {
    let mut names = path.to_bytes().rsplit(|byte| *byte == b'/');
    names.next().unwrap_or_default()
}

impl Tree for Values {
    fn mkdir(&self, _: &CStr) -> Result<()> {
        Ok(())
    }

    fn create(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        self.open(path)
    }

    fn open(&self, path: &CStr) -> Result<Box<dyn OpenFile + '_>> {
        let key = key(path).to_owned();
        let values = &self.0;
        Ok(Box::new(Value { values, key }))
    }

    fn stat(&self, path: &CStr) -> Result<()> {
        let found = self.0.get_into(key(path), &mut []);
        let found = found.and_then(|len| len.ok_or(Errno::NOENT));
        found.map(drop).what(|| "get".into())
    }

    fn chmod(&self, _: &CStr, _: u32) -> Result<()> {
        Err(Error::Usage("values have no mode".into()))
    }

    fn unlink(&self, path: &CStr) -> Result<()> {
        self.0.erase(key(path)).map(drop).what(|| "erase".into())
    }

    fn sync(&self) -> Result<()> {
        self.0.sync().what(|| "sync".into())
    }
}

/// A value in use.
struct Value<'t> {
    values: &'t Kv<Connected>,
    key: Vec<u8>,
}

impl OpenFile for Value<'_> {
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<usize> {
        let read = |value: SharedBytes<'_>| value.read_at(off as usize, buf);
        let read = self.values.borrow(&self.key, read);
        let read = read.and_then(|read| read.ok_or(Errno::NOENT));
        read.what(|| "get".into())
    }

    fn write(&self, off: u64, data: &[u8]) -> Result<()> {
        match off {
            0 => self.values.put(&self.key, data).what(|| "put".into()),
            _ => Err(Error::Usage("a value is replaced as a whole".into())),
        }
    }

    fn append(&self, bytes: usize) -> Result<()> {
        let value = self.values.get(&self.key).what(|| "get".into())?;
        match value {
            None => self.write(0, &DATA[..bytes]),
            Some(mut value) => {
                value.extend_from_slice(&DATA[..bytes]);
                self.write(0, &value)
            }
        }
    }

    fn fsync(&self) -> Result<()> {
        self.values.sync().what(|| "sync".into())
    }

    fn read_whole(&self, buf: &mut [u8]) -> Result<()> {
        let found = self.values.get_into(&self.key, buf);
        let found = found.and_then(|len| len.ok_or(Errno::NOENT));
        if found.what(|| "get".into())? <= buf.len() {
            return Ok(());
        }
        let size = buf.len();
        let read = |value: SharedBytes<'_>| {
            for at in (0..value.len()).step_by(size) {
                value.read_at(at, buf);
            }
        };
        let read = self.values.borrow(&self.key, read);
        read.map(drop).what(|| "get".into())
    }

    fn write_bytes(&self, off: u64, bytes: usize, _: usize) -> Result<()> {
        self.write(off, &DATA[..bytes])
    }
}
