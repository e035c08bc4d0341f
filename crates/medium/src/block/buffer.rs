//! Memory for blocks, aligned as direct I/O wants it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of one or more blocks, aligned to 4,096. Never empty.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

/// What `O_DIRECT` asks for on every device in use.
const ALIGN: usize = 4096;

// SAFETY: a buffer owns its memory, as `Box<[u8]>` does.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes; at least one.
    ///
    /// # Panics
    /// If `len` is 0 or beyond `isize::MAX`.
    pub fn zeroed(len: usize) -> Self {
        assert!(len > 0, "a buffer holds at least one byte");
        let layout = layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, len }
    }

    /// A copy of `bytes`, which are not empty.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, ALIGN).expect("a length within isize::MAX")
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and not freed since.
        unsafe { dealloc(self.start.as_ptr(), layout(self.len)) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this buffer owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}
