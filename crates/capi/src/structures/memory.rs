//! The strings, buffers and cursors of the program, as parts of the transaction.

use crate::call::CallError;
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_int, c_void, ssize_t};
use mnemosyne::tx::{Interrupted, Space};

/// The reason why the body of a call stops.
pub(super) enum Stopped {
    Interrupted(Interrupted),
    Refused(CallError),
}

impl From<Interrupted> for Stopped {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl From<CallError> for Stopped {
    fn from(why: CallError) -> Self {
        Self::Refused(why)
    }
}

impl From<Stopped> for CallError {
    fn from(why: Stopped) -> Self {
        match why {
            Stopped::Interrupted(why) => Self::Interrupted(why),
            Stopped::Refused(why) => why,
        }
    }
}

pub(super) type Answer<T> = Result<T, Stopped>;

/// A key and its value.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// A buffer of the program's, and the room in it.
#[derive(Clone, Copy)]
pub(super) struct Buffer(pub *mut c_void, pub usize);

/// A cursor of the program's.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub at: *mut c_void,
    pub key: Buffer,
    pub key_size: usize,
    pub value: Buffer,
}

/// Bytes of a cursor, and the offsets of the sizes of key and value in it.
const ENTRY_BYTES: usize = 48;
const KEY_SIZE: usize = 16;
const VALUE_SIZE: usize = 40;

impl Thread {
    /// Reads memory of the program.
    pub(super) fn fetch(&mut self, at: *const c_void, bytes: &mut [u8]) -> Answer<()> {
        if at.is_null() && !bytes.is_empty() {
            return Err(CallError::Null(bytes.len()).into());
        }
        if self.depth > 0 {
            // SAFETY: the program passed these bytes.
            return Ok(unsafe { self.read(at as u64, bytes) }?);
        }
        // SAFETY: the program passed these bytes, and waits for the call.
        unsafe { std::ptr::copy(at.cast(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes to memory of the program.
    pub(super) fn deliver(&mut self, at: *mut c_void, bytes: &[u8]) -> Answer<()> {
        if at.is_null() && !bytes.is_empty() {
            return Err(CallError::Null(bytes.len()).into());
        }
        if self.depth > 0 {
            // SAFETY: the program passed this buffer.
            return Ok(unsafe { self.store(at as u64, bytes) }?);
        }
        let known = canonical(at as u64);
        if self.program.memory.memory().space().offset(known).is_some() {
            return Ok(self.session.tx().write(known, bytes)?);
        }
        // SAFETY: the program passed this buffer, and waits for the call.
        unsafe { std::ptr::copy(bytes.as_ptr(), at.cast(), bytes.len()) };
        Ok(())
    }

    /// Reads a byte string of the program.
    pub(super) fn string(&mut self, at: *const c_void, len: usize) -> Answer<Vec<u8>> {
        if u32::try_from(len).is_err() {
            return Err(CallError::TooLong(len).into());
        }
        let mut bytes = vec![0; len];
        self.fetch(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies a string as far as there is room. Returns its length.
    pub(super) fn copy_out(&mut self, found: Option<Vec<u8>>, to: Buffer) -> Answer<ssize_t> {
        let bytes = found.ok_or(CallError::Nothing)?;
        self.deliver(to.0, &bytes[..bytes.len().min(to.1)])?;
        Ok(bytes.len() as ssize_t)
    }

    /// Reads a cursor of the program.
    pub(super) fn entry(&mut self, at: *mut c_void) -> Answer<Entry> {
        let mut bytes = [0; ENTRY_BYTES];
        self.fetch(at, &mut bytes)?;
        let (words, _) = bytes.as_chunks();
        let word = |n: usize| usize::from_ne_bytes(words[n]);
        Ok(Entry {
            at,
            key: Buffer(word(0) as *mut c_void, word(1)),
            key_size: word(2),
            value: Buffer(word(3) as *mut c_void, word(4)),
        })
    }

    /// The key at which a cursor is.
    pub(super) fn key_of(&mut self, entry: Entry) -> Answer<Vec<u8>> {
        match entry.key_size <= entry.key.1 {
            true => self.string(entry.key.0, entry.key_size),
            false => Err(CallError::Buffer(entry.key_size).into()),
        }
    }

    /// Moves a cursor to an entry. Returns 1, or 0 if there is no entry.
    pub(super) fn show(&mut self, found: Option<Pair>, entry: Entry) -> Answer<c_int> {
        let Some((key, value)) = found else {
            return Ok(0);
        };
        for (bytes, buffer, size) in [(key, entry.key, KEY_SIZE), (value, entry.value, VALUE_SIZE)]
        {
            let len = self.copy_out(Some(bytes), buffer)?;
            self.deliver(entry.at.wrapping_byte_add(size), &len.to_ne_bytes())?;
        }
        Ok(1)
    }
}
