//! The allocator of the library that is preloaded.
//!
//! It takes memory from the kernel, and not from the program's `malloc`, so a call on the store works
//! in a signal handler that has interrupted it. No lock of it stays taken in a child ([`Heap::pause`]).
//! The threads that a connection starts are an exception: libc takes memory for them.

use dlmalloc::Dlmalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard, PoisonError};

static MEMORY: Mutex<Dlmalloc> = Mutex::new(Dlmalloc::new());

/// An allocator for `#[global_allocator]`.
#[derive(Debug, Clone, Copy)]
pub struct Heap;

fn memory() -> MutexGuard<'static, Dlmalloc> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heap {
    /// Keeps other threads out until the guard is dropped, in the parent and in the child of a fork. The
    /// thread must not allocate meanwhile.
    pub(crate) fn pause() -> impl Drop {
        struct Paused {
            _held: MutexGuard<'static, Dlmalloc>,
        }
        impl Drop for Paused {
            fn drop(&mut self) {}
        }
        Paused { _held: memory() }
    }
}

// SAFETY: `Dlmalloc` implements the contract for the layouts that it gets; the lock serialises its calls.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller passes a layout of non-zero size.
        unsafe { memory().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller passes an allocation with its layout.
        unsafe { memory().free(at, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as `alloc`.
        unsafe { memory().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as `dealloc`, and the new size is not 0.
        unsafe { memory().realloc(at, layout.size(), layout.align(), size) }
    }
}
