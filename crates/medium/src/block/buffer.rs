//! Memory for blocks, with the alignment of direct I/O.

use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of one or more blocks, aligned to 4,096. Never empty.
pub struct Buffer {
    page: Page,
    len: usize,
}

/// The alignment that `O_DIRECT` requires on every device in use, in bytes.
const ALIGN: usize = 4096;
/// Pages of dropped buffers that are kept for new ones, at most: 16 MiB.
const KEPT_MAX: usize = 4096;

/// Memory of [`ALIGN`] bytes, or of the length of a larger buffer.
struct Page(NonNull<u8>);

// SAFETY: a page owns its memory, as `Box<[u8]>` does.
unsafe impl Send for Page {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Page {}

/// Initialised pages of [`ALIGN`] bytes without an owner. A cache drops and makes blocks by the
/// thousand. Aligned allocations, and their clearing by the kernel, took a tenth of the
/// server's CPU time in PostMark.
static KEPT: Mutex<Vec<Page>> = Mutex::new(Vec::new());

impl Buffer {
    /// `len` zero bytes; at least one.
    ///
    /// # Panics
    /// If `len` is 0 or beyond `isize::MAX`.
    pub fn zeroed(len: usize) -> Self {
        assert!(len > 0, "a buffer holds at least one byte");
        match Self::kept(len) {
            Some(mut buffer) => {
                buffer.fill(0);
                buffer
            }
            None => {
                let layout = layout(len);
                // SAFETY: the layout's size is not zero.
                let start = NonNull::new(unsafe { alloc_zeroed(layout) });
                let page = Page(start.unwrap_or_else(|| handle_alloc_error(layout)));
                Self { page, len }
            }
        }
    }

    /// A copy of `bytes`, which must not be empty.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::kept(bytes.len()).unwrap_or_else(|| Self::zeroed(bytes.len()));
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// A kept page, with the contents that its last buffer left there.
    fn kept(len: usize) -> Option<Self> {
        let page = (1..=ALIGN).contains(&len).then(|| KEPT.lock().pop())??;
        Some(Self { page, len })
    }
}

/// The layout of the memory of a buffer of `len` bytes.
fn layout(len: usize) -> Layout {
    Layout::from_size_align(len.max(ALIGN), ALIGN).expect("a length within isize::MAX")
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let start = self.page.0;
        if self.len <= ALIGN {
            let mut kept = KEPT.lock();
            if kept.len() < KEPT_MAX {
                kept.push(Page(start));
                return;
            }
        }
        // SAFETY: allocated in `zeroed` with this layout, not freed since, and not kept.
        unsafe { dealloc(start.as_ptr(), layout(self.len)) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this buffer owns.
        unsafe { std::slice::from_raw_parts(self.page.0.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.page.0.as_ptr(), self.len) }
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
