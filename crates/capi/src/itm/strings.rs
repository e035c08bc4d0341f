//! The functions of `<string.h>` that the header wraps for transactions.
//!
//! Guarantee: each has the contract of the function of the C library. All its loads and stores are
//! the transaction's. `strdup` allocates as `malloc` does in a transaction: the memory is freed if
//! the transaction fails.
//!
//! gcc calls them in place of the originals, inside transactions only (`transaction_wrap`).

use super::actions::allocate;
use super::bulk::{_ITM_memcpyRtWt, _ITM_memmoveRtWt, _ITM_memsetW};
use super::done;
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_char, c_int, c_void};
use medium::WORD_BYTES;
use mnemosyne::tx::Interrupted;
use std::ptr::null_mut;

/// Bytes copied at a time.
const CHUNK: usize = 256;

/// Reads bytes in sequence, by loads of the words that contain them. It loads no later word, since
/// the memory after the end of a string may be unmapped.
struct Cursor {
    at: u64,
    word: Option<[u8; WORD_BYTES as usize]>,
}

impl Cursor {
    fn new<T>(at: *const T) -> Self {
        let at = at as u64;
        Self { at, word: None }
    }

    /// The next byte.
    ///
    /// # Safety
    /// The byte must be readable.
    #[inline]
    unsafe fn next(&mut self, thread: &mut Thread) -> Result<u8, Interrupted> {
        let at = self.at;
        self.at += 1;
        if thread.is_young(at) {
            self.word = None;
            // SAFETY: the caller's promise.
            return Ok(unsafe { (at as *const u8).read() });
        }
        let in_word = (at % WORD_BYTES) as usize;
        if let Some(word) = self.word.filter(|_| in_word > 0) {
            return Ok(word[in_word]);
        }
        let word_at = canonical(at) - in_word as u64;
        let word = thread.session.tx().load(word_at)?.to_le_bytes();
        Ok(self.word.insert(word)[in_word])
    }
}

impl Thread {
    /// The number of bytes before the first `end`; `None` if the first `most` bytes have no `end`.
    ///
    /// # Safety
    /// The bytes must be readable.
    unsafe fn find<T>(
        &mut self,
        text: *const T,
        end: u8,
        most: usize,
    ) -> Result<Option<usize>, Interrupted> {
        let mut cursor = Cursor::new(text);
        for len in 0..most {
            // SAFETY: the caller's promise.
            if unsafe { cursor.next(self) }? == end {
                return Ok(Some(len));
            }
        }
        Ok(None)
    }

    /// Compares at most `most` bytes. If they `are_text`, the first 0 ends them.
    ///
    /// # Safety
    /// The bytes must be readable.
    unsafe fn compare<T>(
        &mut self,
        (one, other): (*const T, *const T),
        most: usize,
        are_text: bool,
    ) -> Result<c_int, Interrupted> {
        let (mut one, mut other) = (Cursor::new(one), Cursor::new(other));
        for _ in 0..most {
            // SAFETY: the caller's promise.
            let (a, b) = unsafe { (one.next(self)?, other.next(self)?) };
            if a != b {
                return Ok(c_int::from(a) - c_int::from(b));
            }
            if are_text && a == 0 {
                break;
            }
        }
        Ok(0)
    }

    /// Copies at most `most` bytes of a string, without its end. Returns their number.
    ///
    /// # Safety
    /// The bytes must be readable at `from` and writable at `to`, without overlap.
    unsafe fn copy_text(
        &mut self,
        to: u64,
        from: *const c_char,
        most: usize,
    ) -> Result<usize, Interrupted> {
        let mut cursor = Cursor::new(from);
        let (mut buf, mut len) = ([0; CHUNK], 0);
        loop {
            let mut part = 0;
            let mut is_over = false;
            while part < CHUNK && !is_over {
                // SAFETY: the caller's promise.
                let byte = match len + part < most {
                    true => unsafe { cursor.next(self) }?,
                    false => 0,
                };
                is_over = byte == 0;
                buf[part] = byte;
                part += usize::from(!is_over);
            }
            // SAFETY: the caller's promise.
            unsafe { self.store(to + len as u64, &buf[..part]) }?;
            len += part;
            if is_over {
                return Ok(len);
            }
        }
    }

    /// Copies at most `most` bytes of a string, and adds an end.
    ///
    /// # Safety
    /// As [`copy_text`](Self::copy_text).
    unsafe fn copy_ended(
        &mut self,
        to: u64,
        from: *const c_char,
        most: usize,
    ) -> Result<(), Interrupted> {
        // SAFETY: the caller's promise.
        unsafe {
            let len = self.copy_text(to, from, most)?;
            self.store(to + len as u64, &[0])
        }
    }

    /// Copies at most `most` bytes of a string, and fills up to `most` bytes with zeros.
    ///
    /// # Safety
    /// As [`copy_text`](Self::copy_text).
    unsafe fn copy_padded(
        &mut self,
        to: u64,
        from: *const c_char,
        most: usize,
    ) -> Result<(), Interrupted> {
        // SAFETY: the caller's promise.
        unsafe {
            let len = self.copy_text(to, from, most)?;
            self.set(to + len as u64, 0, most - len)
        }
    }
}

/// The state of this thread, which runs a transaction.
///
/// # Safety
/// As [`Thread::running`].
unsafe fn thread<'a>() -> &'a mut Thread {
    // SAFETY: the caller's promise.
    unsafe { Thread::running() }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strlen(text: *const c_char) -> usize {
    // SAFETY: the program called, and none of its code runs meanwhile; the rest is its promise.
    unsafe { done(thread().find(text, 0, usize::MAX)) }.unwrap_or(usize::MAX)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strnlen(text: *const c_char, most: usize) -> usize {
    // SAFETY: as above.
    unsafe { done(thread().find(text, 0, most)) }.unwrap_or(most)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_memchr(
    bytes: *const c_void,
    byte: c_int,
    most: usize,
) -> *mut c_void {
    // SAFETY: as above.
    let found = unsafe { done(thread().find(bytes, byte as u8, most)) };
    found.map_or(null_mut(), |at| bytes.wrapping_byte_add(at).cast_mut())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_memcmp(
    one: *const c_void,
    other: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: as above.
    unsafe { done(thread().compare((one, other), len, false)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strcmp(
    one: *const c_char,
    other: *const c_char,
) -> c_int {
    // SAFETY: as above.
    unsafe { done(thread().compare((one, other), usize::MAX, true)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strncmp(
    one: *const c_char,
    other: *const c_char,
    most: usize,
) -> c_int {
    // SAFETY: as above.
    unsafe { done(thread().compare((one, other), most, true)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strcpy(
    to: *mut c_char,
    from: *const c_char,
) -> *mut c_char {
    // SAFETY: as above.
    unsafe { done(thread().copy_ended(to as u64, from, usize::MAX)) };
    to
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strncpy(
    to: *mut c_char,
    from: *const c_char,
    most: usize,
) -> *mut c_char {
    // SAFETY: as above.
    unsafe { done(thread().copy_padded(to as u64, from, most)) };
    to
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strcat(
    to: *mut c_char,
    from: *const c_char,
) -> *mut c_char {
    // SAFETY: as above.
    unsafe {
        let len = selvedge_tx_strlen(to);
        done(thread().copy_ended(to as u64 + len as u64, from, usize::MAX));
    }
    to
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_memcpy(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { _ITM_memcpyRtWt(to, from, len) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_memmove(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { _ITM_memmoveRtWt(to, from, len) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_memset(
    to: *mut c_void,
    byte: c_int,
    len: usize,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { _ITM_memsetW(to, byte, len) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strdup(text: *const c_char) -> *mut c_char {
    // SAFETY: as above.
    unsafe { selvedge_tx_strndup(text, usize::MAX) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn selvedge_tx_strndup(
    text: *const c_char,
    most: usize,
) -> *mut c_char {
    // SAFETY: as above; there is room for the string and its end.
    unsafe {
        let len = selvedge_tx_strnlen(text, most);
        let copy = allocate(len + 1).cast::<c_char>();
        if !copy.is_null() {
            done(thread().copy_ended(copy as u64, text, len));
        }
        copy
    }
}
