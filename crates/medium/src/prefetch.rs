//! The instruction that brings a line into the caches.

/// Starts to bring the first line of a value in DRAM into the caches of the processor. A hint, like
/// [`Pmem::prefetch`](crate::Pmem::prefetch): it reads nothing.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_line(std::ptr::from_ref(value).cast());
}

/// As [`prefetch`], of the line with an address. Any address will do.
#[inline]
pub(crate) fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which never faults; the instruction is part of every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
