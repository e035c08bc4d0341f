//! `memcpy`, `memmove` and `memset`.
//!
//! One side of a copy may be memory of this thread only, as the compiler has found (`Rn`, `Wn`).
//! That side is accessed directly.

use crate::itm::done;
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_int, c_void};
use mnemosyne::tx::Interrupted;

/// Bytes copied at a time.
const CHUNK: usize = 1024;

/// The owner of the memory of one side of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Own,
    Shared,
}

impl Thread {
    /// Reads one side of a copy.
    ///
    /// # Safety
    /// `buf.len()` bytes must be readable at `at`.
    unsafe fn read_side(&mut self, side: Side, at: u64, buf: &mut [u8]) -> Result<(), Interrupted> {
        if side == Side::Own {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(at as *const u8, buf.as_mut_ptr(), buf.len()) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.read(at, buf) }
    }

    /// Reads the bytes at `at`.
    ///
    /// # Safety
    /// The bytes must be readable.
    pub(crate) unsafe fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Interrupted> {
        if self.is_young(at) || self.is_own_block(at, buf.len()) {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(at as *const u8, buf.as_mut_ptr(), buf.len()) };
            return Ok(());
        }
        self.session.tx().read(canonical(at), buf)
    }

    /// Writes one side of a copy.
    ///
    /// # Safety
    /// There must be room for the bytes at `at`.
    unsafe fn write_side(&mut self, side: Side, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        if side == Side::Own {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.store(at, bytes) }
    }

    /// Copies `len` bytes, which may overlap.
    ///
    /// # Safety
    /// The ranges must be as for `memmove`.
    unsafe fn copy(
        &mut self,
        (to_side, to): (Side, u64),
        (side, from): (Side, u64),
        len: usize,
    ) -> Result<(), Interrupted> {
        // Backward if a forward copy would overwrite bytes before it reads them.
        let is_backward = to.wrapping_sub(from) < len as u64;
        let mut buf = [0; CHUNK];
        let mut done = 0;
        while done < len {
            let part = CHUNK.min(len - done);
            let at = if is_backward { len - done - part } else { done } as u64;
            // SAFETY: inside the ranges of the caller.
            unsafe {
                self.read_side(side, from + at, &mut buf[..part])?;
                self.write_side(to_side, to + at, &buf[..part])?;
            }
            done += part;
        }
        Ok(())
    }

    /// Sets `len` bytes.
    ///
    /// # Safety
    /// The range must be as for `memset`.
    pub(crate) unsafe fn set(&mut self, to: u64, byte: u8, len: usize) -> Result<(), Interrupted> {
        let bytes = [byte; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let part = CHUNK.min(len - at);
            // SAFETY: inside the range of the caller.
            unsafe { self.store(to + at as u64, &bytes[..part]) }?;
        }
        Ok(())
    }
}

macro_rules! copies {
    ($to:ident $from:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            to: *mut c_void,
            from: *const c_void,
            len: usize,
        ) -> *mut c_void {
            let (target, source) = ((Side::$to, to as u64), (Side::$from, from as u64));
            // SAFETY: the program called, and none of its code runs meanwhile; the rest is its
            // promise.
            unsafe { done(Thread::running().copy(target, source, len)) };
            to
        }
    )*};
}

copies!(Shared Own: _ITM_memcpyRnWt _ITM_memcpyRnWtaR _ITM_memcpyRnWtaW);
copies!(Own Shared: _ITM_memcpyRtWn _ITM_memcpyRtaRWn _ITM_memcpyRtaWWn);
copies!(Shared Shared: _ITM_memcpyRtWt _ITM_memcpyRtWtaR _ITM_memcpyRtWtaW);
copies!(Shared Shared: _ITM_memcpyRtaRWt _ITM_memcpyRtaRWtaR _ITM_memcpyRtaRWtaW);
copies!(Shared Shared: _ITM_memcpyRtaWWt _ITM_memcpyRtaWWtaR _ITM_memcpyRtaWWtaW);
copies!(Shared Own: _ITM_memmoveRnWt _ITM_memmoveRnWtaR _ITM_memmoveRnWtaW);
copies!(Own Shared: _ITM_memmoveRtWn _ITM_memmoveRtaRWn _ITM_memmoveRtaWWn);
copies!(Shared Shared: _ITM_memmoveRtWt _ITM_memmoveRtWtaR _ITM_memmoveRtWtaW);
copies!(Shared Shared: _ITM_memmoveRtaRWt _ITM_memmoveRtaRWtaR _ITM_memmoveRtaRWtaW);
copies!(Shared Shared: _ITM_memmoveRtaWWt _ITM_memmoveRtaWWtaR _ITM_memmoveRtaWWtaW);

macro_rules! sets {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void {
            // SAFETY: as above.
            unsafe { done(Thread::running().set(to as u64, byte as u8, len)) };
            to
        }
    )*};
}

sets!(_ITM_memsetW _ITM_memsetWaR _ITM_memsetWaW);
