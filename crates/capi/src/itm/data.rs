//! Loads and stores of one value, and gcc's log calls for memory of this thread only.

use crate::fatal::die;
use crate::itm::done;
use crate::itm::failure::STALE;
use crate::space::{canonical, has_stale_address};
use crate::thread::Thread;
use libc::c_void;
use medium::WORD_BYTES;
use mnemosyne::tx::{Interrupted, Space};
use std::arch::naked_asm;
use std::arch::x86_64::{__m128, __m256};

impl Thread {
    /// Loads `N` bytes at `at`.
    ///
    /// # Safety
    /// The bytes must be readable.
    #[inline(always)]
    unsafe fn load<const N: usize>(&mut self, at: u64) -> Result<[u8; N], Interrupted> {
        if self.is_young(at) || self.is_own_block(at, N) {
            // SAFETY: the caller's promise.
            return Ok(unsafe { (at as *const [u8; N]).read_unaligned() });
        }
        let at = canonical(at);
        let skip = (at % WORD_BYTES) as usize;
        if skip + N <= WORD_BYTES as usize {
            let word = self.session.tx().load(at - skip as u64)?.to_le_bytes();
            let mut bytes = [0; N];
            bytes.copy_from_slice(&word[skip..skip + N]);
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        self.session.tx().read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Stores bytes at `at`.
    ///
    /// # Safety
    /// The bytes must be writable.
    #[inline(always)]
    pub(crate) unsafe fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        // SAFETY: the caller's promise.
        if unsafe { self.is_stored_at_once(at, bytes.len()) }? {
            // SAFETY: the caller's promise; only this thread can reach the bytes, or it has their
            // locks.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            return Ok(());
        }
        let at = canonical(at);
        if has_stale_address(at, bytes) {
            let space = self.program.memory.memory().space();
            if let Some(off) = space.offset(at) {
                let what = STALE;
                return Err(Interrupted::NoValue { off, what });
            }
        }
        if self.is_own_block(at, bytes.len()) {
            self.fill(at, bytes);
            return Ok(());
        }
        match bytes.try_into() {
            Ok(word) if at.is_multiple_of(WORD_BYTES) => {
                self.session.tx().store(at, u64::from_le_bytes(word))
            }
            _ => self.session.tx().write(at, bytes),
        }
    }

    /// Records the old value of `len` bytes at `at`, which the compiler then changes in place.
    ///
    /// # Safety
    /// The bytes must be readable.
    unsafe fn log(&mut self, at: u64, len: usize) {
        let space = self.program.memory.memory().space();
        if space.offset(canonical(at)).is_some() {
            die(format_args!(
                "the compiler would store to the durable memory at {at:#x} without a log: do not \
                 declare functions that return durable memory with the attribute malloc"
            ));
        }
        // SAFETY: the caller's promise.
        unsafe { self.note_old(at, len) };
    }
}

/// Loads a value for one of the interface's functions.
///
/// # Safety
/// The program may load `N` bytes at `at`.
#[inline(always)]
unsafe fn load<const N: usize, T>(at: *const T) -> [u8; N] {
    // SAFETY: the program called, and none of its code runs meanwhile.
    unsafe { done(Thread::running().load(at as u64)) }
}

/// Stores a value for one of the interface's functions.
///
/// # Safety
/// The program may store `N` bytes at `at`.
#[inline(always)]
unsafe fn store<const N: usize, T>(at: *mut T, bytes: [u8; N]) {
    // SAFETY: as above.
    unsafe { done(Thread::running().store(at as u64, &bytes)) }
}

macro_rules! loads {
    ($ty:ty: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(at: *const $ty) -> $ty {
            // SAFETY: the caller's promise.
            <$ty>::from_le_bytes(unsafe { load(at) })
        }
    )*};
}

macro_rules! stores {
    ($ty:ty: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(at: *mut $ty, value: $ty) {
            // SAFETY: the caller's promise.
            unsafe { store(at, value.to_le_bytes()) };
        }
    )*};
}

loads!(u8: _ITM_RU1 _ITM_RaRU1 _ITM_RaWU1 _ITM_RfWU1);
loads!(u16: _ITM_RU2 _ITM_RaRU2 _ITM_RaWU2 _ITM_RfWU2);
loads!(u32: _ITM_RU4 _ITM_RaRU4 _ITM_RaWU4 _ITM_RfWU4);
loads!(u64: _ITM_RU8 _ITM_RaRU8 _ITM_RaWU8 _ITM_RfWU8);
loads!(f32: _ITM_RF _ITM_RaRF _ITM_RaWF _ITM_RfWF);
loads!(f64: _ITM_RD _ITM_RaRD _ITM_RaWD _ITM_RfWD);
// A vector of 8 bytes is passed as a double is: in the lower half of a vector register.
loads!(f64: _ITM_RM64 _ITM_RaRM64 _ITM_RaWM64 _ITM_RfWM64);

stores!(u8: _ITM_WU1 _ITM_WaRU1 _ITM_WaWU1);
stores!(u16: _ITM_WU2 _ITM_WaRU2 _ITM_WaWU2);
stores!(u32: _ITM_WU4 _ITM_WaRU4 _ITM_WaWU4);
stores!(u64: _ITM_WU8 _ITM_WaRU8 _ITM_WaWU8);
stores!(f32: _ITM_WF _ITM_WaRF _ITM_WaWF);
stores!(f64: _ITM_WD _ITM_WaRD _ITM_WaWD);
stores!(f64: _ITM_WM64 _ITM_WaRM64 _ITM_WaWM64);

// The vectors are passed in the registers that C uses.
macro_rules! vector_loads {
    ($ty:ty, $feature:literal: $($name:ident)*) => {$(
        #[allow(improper_ctypes_definitions)]
        #[unsafe(no_mangle)]
        #[target_feature(enable = $feature)]
        pub(crate) unsafe extern "C" fn $name(at: *const $ty) -> $ty {
            // SAFETY: the caller's promise; a vector is any bytes.
            unsafe { std::mem::transmute::<[u8; size_of::<$ty>()], $ty>(load(at)) }
        }
    )*};
}

macro_rules! vector_stores {
    ($ty:ty, $feature:literal: $($name:ident)*) => {$(
        #[allow(improper_ctypes_definitions)]
        #[unsafe(no_mangle)]
        #[target_feature(enable = $feature)]
        pub(crate) unsafe extern "C" fn $name(at: *mut $ty, value: $ty) {
            // SAFETY: the caller's promise; a vector is any bytes.
            unsafe { store(at, std::mem::transmute::<$ty, [u8; size_of::<$ty>()]>(value)) };
        }
    )*};
}

vector_loads!(__m128, "sse": _ITM_RM128 _ITM_RaRM128 _ITM_RaWM128 _ITM_RfWM128);
vector_stores!(__m128, "sse": _ITM_WM128 _ITM_WaRM128 _ITM_WaWM128);
// Only code for a processor with these registers calls them.
vector_loads!(__m256, "avx": _ITM_RM256 _ITM_RaRM256 _ITM_RaWM256 _ITM_RfWM256);
vector_stores!(__m256, "avx": _ITM_WM256 _ITM_WaRM256 _ITM_WaWM256);

/// Bytes of a `long double` without its padding.
const EXTENDED: usize = 10;

/// Loads a `long double`.
///
/// # Safety
/// Ten bytes must be readable at `at`, and writable at `to`.
unsafe extern "C" fn load_extended(at: *const [u8; EXTENDED], to: *mut [u8; EXTENDED]) {
    // SAFETY: the caller's promise.
    unsafe { to.write(load(at)) };
}

/// Stores a `long double`.
///
/// # Safety
/// Ten bytes must be readable at `from`, and writable at `at`.
unsafe extern "C" fn store_extended(at: *mut [u8; EXTENDED], from: *const [u8; EXTENDED]) {
    // SAFETY: the caller's promise.
    unsafe { store(at, from.read()) };
}

/// Defines loads of a `long double`. It is returned in a register of the x87, which Rust does not
/// support.
macro_rules! extended_loads {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(at: *const c_void) {
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 24",
                ".cfi_adjust_cfa_offset 24",
                "mov rsi, rsp",
                "call {load}",
                "fld tbyte ptr [rsp]",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                ".cfi_endproc",
                load = sym load_extended,
            )
        }
    )*};
}

/// Defines stores of a `long double`, which is passed on the stack.
macro_rules! extended_stores {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(at: *mut c_void) {
            naked_asm!(
                "lea rsi, [rsp + 8]",
                "jmp {store}",
                store = sym store_extended,
            )
        }
    )*};
}

extended_loads!(_ITM_RE _ITM_RaRE _ITM_RaWE _ITM_RfWE);
extended_stores!(_ITM_WE _ITM_WaRE _ITM_WaWE);

macro_rules! logs {
    ($($name:ident: $bytes:literal,)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(at: *const c_void) {
            // SAFETY: the program called, and then changes the bytes.
            unsafe { Thread::running().log(at as u64, $bytes) };
        }
    )*};
}

logs! {
    _ITM_LU1: 1,
    _ITM_LU2: 2,
    _ITM_LU4: 4,
    _ITM_LU8: 8,
    _ITM_LF: 4,
    _ITM_LD: 8,
    _ITM_LE: 16,
    _ITM_LM64: 8,
    _ITM_LM128: 16,
    _ITM_LM256: 32,
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_LB(at: *const c_void, len: usize) {
    // SAFETY: as above.
    unsafe { Thread::running().log(at as u64, len) };
}

/// Drops the transaction's stores to volatile bytes: they are neither made nor undone.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_dropReferences(at: *const c_void, len: usize) {
    // SAFETY: the program called.
    let thread = unsafe { Thread::running() };
    thread.session.tx().forget(canonical(at as u64), len as u64);
}
