//! The instructions that move bytes from the cache to the medium.
//!
//! Guarantees: [`flush_lines`] starts to write back every line of a range, with the best
//! instruction of the processor. After [`copy_nt`], a [`fence`] is all that is missing.
//!
//! Only x86-64 has these instructions here. On other processors [`LineFlush::detect`] returns
//! `None`, and a mapping survives the process only, or uses `msync`.

use crate::{LINE_BYTES, raw::store_units};

/// The instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFlush {
    /// Writes back and keeps the line; weakly ordered.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// Writes back and drops the line; weakly ordered.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// Writes back and drops the line; ordered with other flushes.
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

impl LineFlush {
    /// The mnemonic, for reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            LineFlush::Clwb => "clwb",
            #[cfg(target_arch = "x86_64")]
            LineFlush::ClflushOpt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            LineFlush::Clflush => "clflush",
        }
    }

    /// The best instruction that the processor reports (CPUID leaf 7, EBX bits 24 and 23).
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn detect() -> Option<Self> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const CLWB: u32 = 1 << 24;
        const CLFLUSHOPT: u32 = 1 << 23;
        let leaf7 = if __cpuid(0).eax >= 7 {
            __cpuid_count(7, 0).ebx
        } else {
            0
        };
        Some(match leaf7 {
            bits if bits & CLWB != 0 => LineFlush::Clwb,
            bits if bits & CLFLUSHOPT != 0 => LineFlush::ClflushOpt,
            // Part of SSE2, and so of every x86-64.
            _ => LineFlush::Clflush,
        })
    }

    /// Always `None`: no instruction of this processor is supported.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn detect() -> Option<Self> {
        None
    }
}

/// Starts writing back the lines that the `len` bytes at `start` touch.
///
/// # Safety
/// The bytes must be mapped for the whole call.
#[inline]
pub(crate) unsafe fn flush_lines(how: LineFlush, start: *const u8, len: usize) {
    let skew = start as usize % LINE_BYTES as usize;
    let lines = (skew + len).div_ceil(LINE_BYTES as usize);
    if len == 0 {
        return;
    }
    let first = start.wrapping_sub(skew);
    for i in 0..lines {
        let line = first.wrapping_add(i * LINE_BYTES as usize);
        // SAFETY: the line holds at least one byte of the range, and a line never straddles two
        // pages, so it is mapped.
        unsafe { flush_line(how, line) };
    }
}

/// # Safety
/// `line` must be mapped.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn flush_line(how: LineFlush, line: *const u8) {
    use std::arch::asm;
    // SAFETY: the instructions change no byte, register or flag. The caller vouches for the
    // address, `LineFlush::detect` for the instruction. Without the option `readonly` the
    // compiler keeps earlier stores before them.
    unsafe {
        match how {
            LineFlush::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
            LineFlush::ClflushOpt => {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            LineFlush::Clflush => {
                asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
            }
        }
    }
}

/// # Safety
/// No requirement: `LineFlush::detect` never returns an instruction here.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn flush_line(_how: LineFlush, _line: *const u8) {}

/// Waits for this thread's flushes and streaming stores.
///
/// CLWB, CLFLUSHOPT and the streaming stores are weakly ordered and need it. CLFLUSH alone
/// would not, but it is used together with streaming stores.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE, which every x86-64 has; it touches no memory of ours.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Shortest run of whole lines for which streaming is faster. For shorter runs and partial
/// lines, a streaming store waits for the memory longer than a store and a flush do. (Measured:
/// a partial line costs several times as much.)
#[cfg(target_arch = "x86_64")]
const STREAM_LINES: usize = 8;

/// Copies `bytes` to `dst` so that only a fence is missing. Whole lines are stored around the
/// cache, with 16-byte streaming stores: the four of a line leave the write-combining buffer
/// together. The edges and short runs are stored through the cache and flushed with `how`.
///
/// Measured with 4 KiB (Xeon with AVX-512, shared memory):
///
/// | stores | time with the fence |
/// |---|---|
/// | streaming | 500 ns |
/// | through the cache, flushed with CLWB | 1200 to 1500 ns |
///
/// This holds even for a block that was written just before. Streaming stores of 32 or 64 bytes
/// gain nothing.
///
/// # Safety
/// `dst` must be mapped writable for `bytes.len()` bytes for the whole call.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_nt(how: LineFlush, dst: *mut u8, bytes: &[u8]) {
    let head = ((dst as usize).wrapping_neg() % 64).min(bytes.len());
    let (head, rest) = bytes.split_at(head);
    let (lines, tail) = rest.as_chunks::<64>();
    if lines.len() < STREAM_LINES {
        // SAFETY: the caller vouches for `dst`.
        return unsafe { store_and_flush(how, dst, bytes) };
    }
    // SAFETY: head, lines and tail are consecutive parts of the run, and the lines start on a
    // line boundary.
    unsafe {
        store_and_flush(how, dst, head);
        let mut at = dst.add(head.len());
        for line in lines {
            store_line_nt(at, line);
            at = at.add(64);
        }
        store_and_flush(how, at, tail);
    }
}

/// Copies as on x86-64, without streaming stores.
///
/// # Safety
/// The addresses must be as on x86-64.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_nt(how: LineFlush, dst: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller vouches for `dst`.
    unsafe { store_and_flush(how, dst, bytes) };
}

/// # Safety
/// As [`copy_nt`].
unsafe fn store_and_flush(how: LineFlush, dst: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller vouches for `dst`.
    unsafe {
        store_units(dst, bytes);
        flush_lines(how, dst, bytes.len());
    }
}

/// # Safety
/// `dst` must be 64-byte aligned and writable for 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn store_line_nt(dst: *mut u8, line: &[u8; 64]) {
    // SAFETY: the caller vouches for `dst`; the instructions are part of SSE2.
    unsafe {
        std::arch::asm!(
            "movdqu {a}, [{src}]",
            "movdqu {b}, [{src} + 16]",
            "movdqu {c}, [{src} + 32]",
            "movdqu {d}, [{src} + 48]",
            "movntdq [{dst}], {a}",
            "movntdq [{dst} + 16], {b}",
            "movntdq [{dst} + 32], {c}",
            "movntdq [{dst} + 48], {d}",
            src = in(reg) line.as_ptr(),
            dst = in(reg) dst,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}
