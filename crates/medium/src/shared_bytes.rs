//! Bytes that other threads and processes may change while they are read.
//!
//! Guarantees: every read is inside of the bytes, and no Rust reference to them exists. A byte that is changed
//! meanwhile is read as it was before or after the change, and so may differ from one read to the next.

use std::fmt;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes that are read in place, and that others may change meanwhile.
///
/// They are compared with, and made of, byte slices. [`Read`] takes them from the front.
///
/// ```
/// use medium::SharedBytes;
/// let value = SharedBytes::from(b"<p>Hello".as_slice());
/// assert!(value.len() == 8 && value.get(1) == Some(b'p'));
/// assert!(value.slice(3..) == b"Hello" && value.iter().all(|byte| byte.is_ascii()));
/// std::io::copy(&mut value.clone(), &mut std::io::stdout())?;
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedBytes<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

// SAFETY: the bytes are only loaded, with other threads in mind, as through the `&[AtomicU8]` that it names.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

/// Bytes that are copied at a time to be compared.
const PART: usize = 256;

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// The bytes must be readable for `'a`. All stores to them meanwhile must be as [`Raw`](crate::raw::Raw)
    /// describes.
    pub(crate) unsafe fn new(start: *const u8, len: usize) -> Self {
        let memory = PhantomData;
        Self { start, len, memory }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for callers in C. A Rust reference to the bytes must not be made of it.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// The byte at `at`.
    #[inline]
    pub fn get(&self, at: usize) -> Option<u8> {
        // SAFETY: inside of the bytes, which are readable. An atomic load of a byte is a plain one for the
        // processor, also from memory that must not be written.
        (at < self.len)
            .then(|| unsafe { AtomicU8::from_ptr(self.start.add(at).cast_mut()).load(Relaxed) })
    }

    /// The bytes in their order.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        (0..self.len).map_while(|at| self.get(at))
    }

    /// A part of the bytes.
    ///
    /// # Panics
    /// If the range ends outside of the bytes, or before it begins, as for byte slices.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let from = match range.start_bound() {
            Bound::Included(at) => *at,
            Bound::Excluded(at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(at) => at.saturating_add(1),
            Bound::Excluded(at) => *at,
            Bound::Unbounded => self.len,
        };
        assert!(from <= to && to <= self.len, "{from}..{to} of {}", self.len);
        // SAFETY: inside of the bytes, to which the same applies.
        unsafe { Self::new(self.start.add(from), to - from) }
    }

    /// Copies the bytes from `at` on, as much as `buf` takes. Returns the number of copied bytes.
    #[inline]
    pub fn read_at(&self, at: usize, buf: &mut [u8]) -> usize {
        let at = at.min(self.len);
        let len = buf.len().min(self.len - at);
        // SAFETY: the source is inside of the bytes, and `buf`, a unique reference, cannot overlap it. A store
        // by another thread may race with the copy. The copy moves whole bytes, each old or new.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), buf.as_mut_ptr(), len) };
        len
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read_at(0, &mut bytes);
        bytes
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a slice is readable, and nobody stores to it.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl PartialEq<[u8]> for SharedBytes<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        let mut part = [0; PART];
        self.len == other.len()
            && other.chunks(PART).enumerate().all(|(n, wanted)| {
                let len = self.read_at(n * PART, &mut part);
                part[..len].starts_with(wanted)
            })
    }
}

impl PartialEq<&[u8]> for SharedBytes<'_> {
    fn eq(&self, other: &&[u8]) -> bool {
        *self == **other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for SharedBytes<'_> {
    fn eq(&self, other: &[u8; N]) -> bool {
        *self == other[..]
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for SharedBytes<'_> {
    fn eq(&self, other: &&[u8; N]) -> bool {
        *self == other[..]
    }
}

impl Read for SharedBytes<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.read_at(0, buf);
        *self = self.slice(len..);
        Ok(len)
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapOptions, MappedPmem, Pmem, Reserve, create_file};
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_read_as_a_slice(bytes in vec(any::<u8>(), 0..1000), at in 0..1200_usize, len in 0..300_usize) {
            let shared = SharedBytes::from(&bytes[..]);
            prop_assert_eq!(shared.get(at), bytes.get(at).copied());
            prop_assert_eq!(shared.to_vec(), &bytes[..]);
            let mut buf = vec![0x55; len];
            let rest = bytes.get(at..).unwrap_or_default();
            let copied = rest.len().min(len);
            prop_assert_eq!(shared.read_at(at, &mut buf), copied);
            prop_assert!(buf[..copied] == rest[..copied] && buf[copied..].iter().all(|byte| *byte == 0x55));
            let from = at.min(bytes.len());
            let part = shared.slice(from..);
            prop_assert!(part == bytes[from..] && part.iter().eq(bytes[from..].iter().copied()));
            let mut read = Vec::new();
            part.clone().read_to_end(&mut read)?;
            prop_assert_eq!(&read, &bytes[from..]);
            if let Some(byte) = read.first_mut() {
                *byte ^= 1;
                prop_assert!(part != read[..] && part != bytes[from + 1..]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "2..5 of 4")]
    fn a_part_is_inside() {
        let _ = SharedBytes::from(b"four".as_slice()).slice(2..5);
    }

    /// A reader beside a writer, in memory that the reader may not write.
    #[test]
    fn changes_are_seen_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        create_file(&path, 1 << 16, Reserve::Sparse).unwrap();
        let options = MapOptions::default();
        let writer = MappedPmem::open(&path, &options).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let options = MapOptions {
            read_only: true,
            ..options
        };
        let reader = MappedPmem::map_descriptor(file.into(), "reader", &options).unwrap();
        let shared = reader.shared_bytes(4093, 10).unwrap();
        assert!(shared == [0; 10]);
        writer.store(4095, b"abc");
        assert!(shared == b"\0\0abc\0\0\0\0\0" && shared.get(3) == Some(b'b'));
        assert!(reader.shared_bytes((1 << 16) - 9, 10).is_err());
        assert!(reader.shared_bytes(u64::MAX, 1).is_err());
    }
}
