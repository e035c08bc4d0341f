//! Loads and stores on bytes that other code may change at the same time.
//!
//! Guarantees: no access leaves the region. Every store consists of the units that
//! [`units`](crate::units::units) lists, one instruction each, in that order. No Rust reference
//! to the bytes ever exists.

use crate::prefetch::prefetch_line;
use crate::{MediumError, WORD_BYTES};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A live region of memory: its address and length.
pub(crate) struct Raw {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: `Raw` is an address and a length. Its bytes are accessed only by atomic loads and
// stores, and by byte copies that guarantee nothing about bytes in flight (see `read`). So any
// thread may use it.
unsafe impl Send for Raw {}
// SAFETY: as above; nothing in `Raw` itself changes.
unsafe impl Sync for Raw {}

impl Raw {
    /// Describes `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes must be 8-byte aligned and readable while the value lives; writable, too, if
    /// [`store`](Raw::store) is called. No reference to them may be in use.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: u64) -> Self {
        Self { base, len }
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The address of byte `off`, if `len` bytes from there lie inside.
    #[inline]
    pub(crate) fn at(&self, off: u64, len: usize) -> Result<*mut u8, MediumError> {
        let len = len as u64;
        match off.checked_add(len) {
            // SAFETY: `off <= self.len`, so the address is inside the region or one
            // past its end.
            Some(end) if end <= self.len => Ok(unsafe { self.base.as_ptr().add(off as usize) }),
            _ => Err(MediumError::OutOfRange { off, len }),
        }
    }

    #[inline]
    pub(crate) fn load(&self, off: u64) -> Result<u64, MediumError> {
        let src = self.at(off, WORD_BYTES as usize)?;
        if !off.is_multiple_of(WORD_BYTES) {
            let len = WORD_BYTES;
            return Err(MediumError::OutOfRange { off, len });
        }
        // SAFETY: eight bytes inside the region, aligned because base and `off` are.
        let word = unsafe { AtomicU64::from_ptr(src.cast()) }.load(Relaxed);
        Ok(u64::from_le(word))
    }

    #[inline]
    pub(crate) fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        let src = self.at(off, size_of_val(words))?.cast::<u64>();
        if !off.is_multiple_of(WORD_BYTES) {
            let len = size_of_val(words) as u64;
            return Err(MediumError::OutOfRange { off, len });
        }
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: all words are inside the region, aligned because base and `off` are.
            let loaded = unsafe { AtomicU64::from_ptr(src.add(n)) }.load(Relaxed);
            *word = u64::from_le(loaded);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let src = self.at(off, buf.len())?;
        // SAFETY: the source is inside the region, and `buf`, a unique reference, cannot
        // overlap it. A store by another thread may race with the copy. The copy moves whole
        // bytes, each old or new, and `Pmem::read` guarantees no more.
        unsafe { std::ptr::copy_nonoverlapping(src, buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    /// Starts to bring the line at `off` into the caches.
    #[inline]
    pub(crate) fn prefetch(&self, off: u64) {
        if let Ok(line) = self.at(off, 1) {
            prefetch_line(line);
        }
    }

    #[inline]
    pub(crate) fn store(&self, off: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let dst = self.at(off, bytes.len())?;
        // SAFETY: `at` checked the range; the caller of `new` vouched for the memory.
        unsafe { store_units(dst, bytes) };
        Ok(())
    }
}

/// Stores `bytes` at `dst` in ascending order as the fewest naturally aligned units.
///
/// # Safety
/// `dst` must be valid for writes of `bytes.len()` bytes for the whole call. All other accesses
/// to it must be as [`Raw`] describes.
#[inline]
pub(crate) unsafe fn store_units(dst: *mut u8, bytes: &[u8]) {
    if let Ok(word) = bytes.try_into()
        && (dst as usize).is_multiple_of(8)
    {
        // SAFETY: eight aligned bytes, for which the caller vouches.
        return unsafe { store_word(dst, word) };
    }
    if bytes.len() < 8 && (dst as usize) % 8 + bytes.len() <= 8 {
        // SAFETY: inside one word, for which the caller vouches.
        return unsafe { store_narrow(dst, bytes) };
    }
    let head = ((dst as usize).wrapping_neg() % 8).min(bytes.len());
    let (head, rest) = bytes.split_at(head);
    let (words, tail) = rest.as_chunks::<8>();
    // SAFETY: head, words and tail are consecutive parts of the run. The head ends on a word
    // boundary unless it is the whole run.
    unsafe {
        store_narrow(dst, head);
        let mut at = dst.add(head.len());
        for word in words {
            store_word(at, *word);
            at = at.add(8);
        }
        store_narrow(at, tail);
    }
}

/// # Safety
/// `dst` must be 8-byte aligned and valid for a write of 8 bytes.
#[inline]
unsafe fn store_word(dst: *mut u8, word: [u8; 8]) {
    // SAFETY: the caller vouches for `dst`.
    unsafe { AtomicU64::from_ptr(dst.cast()) }.store(u64::from_ne_bytes(word), Relaxed);
}

/// Stores fewer than 8 bytes that do not cross a word boundary.
///
/// # Safety
/// As [`store_units`].
#[inline]
unsafe fn store_narrow(mut dst: *mut u8, mut bytes: &[u8]) {
    while let Some(most) = bytes.len().checked_ilog2() {
        let len = 1 << most.min(2).min((dst as usize).trailing_zeros());
        let (unit, rest) = bytes.split_at(len);
        // SAFETY: `len` bytes are left in the run and `dst` is a multiple of `len`.
        unsafe {
            match *unit {
                [a, b, c, d] => {
                    AtomicU32::from_ptr(dst.cast()).store(u32::from_ne_bytes([a, b, c, d]), Relaxed)
                }
                [a, b] => {
                    AtomicU16::from_ptr(dst.cast()).store(u16::from_ne_bytes([a, b]), Relaxed);
                }
                _ => AtomicU8::from_ptr(dst).store(unit[0], Relaxed),
            }
            dst = dst.add(len);
        }
        bytes = rest;
    }
}
