//! Functions of the C++ runtime, which a C program does not have.
//!
//! Each is a weak symbol: its address is 0 in a program without it. Only C++ code reaches the
//! calls of these functions, and C++ code has them.

use libc::{c_int, c_uint, c_void};
use std::arch::naked_asm;

macro_rules! weak {
    ($($rust:ident = $name:literal: $ty:ty;)*) => {$(
        pub(crate) fn $rust() -> $ty {
            #[unsafe(naked)]
            extern "C" fn address() -> usize {
                naked_asm!(
                    concat!(".weak ", $name),
                    concat!("mov rax, qword ptr [rip + ", $name, "@GOTPCREL]"),
                    "ret",
                )
            }
            let address = address();
            if address == 0 {
                crate::fatal::die(concat!("there is no ", $name, " in this program"));
            }
            // SAFETY: the function of this name, which is fixed, has this type.
            unsafe { std::mem::transmute::<usize, $ty>(address) }
        }
    )*};
}

/// `operator new`, which throws if there is no memory.
type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
/// `operator new`, which returns null if there is no memory.
type NewNothrow = unsafe extern "C" fn(usize, *const c_void) -> *mut c_void;
/// `operator delete`.
pub(crate) type Delete = unsafe extern "C" fn(*mut c_void);

weak! {
    new = "_Znwm": New;
    new_array = "_Znam": New;
    new_nothrow = "_ZnwmRKSt9nothrow_t": NewNothrow;
    new_array_nothrow = "_ZnamRKSt9nothrow_t": NewNothrow;
    delete = "_ZdlPv": Delete;
    delete_array = "_ZdaPv": Delete;
    allocate_exception = "__cxa_allocate_exception": unsafe extern "C" fn(usize) -> *mut c_void;
    free_exception = "__cxa_free_exception": Delete;
    throw = "__cxa_throw":
        unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_void) -> !;
    begin_catch = "__cxa_begin_catch": unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    end_catch = "__cxa_end_catch": unsafe extern "C-unwind" fn();
    get_globals = "__cxa_get_globals": unsafe extern "C" fn() -> *mut Globals;
    tm_cleanup = "__cxa_tm_cleanup": unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint);
    delete_unwind = "_Unwind_DeleteException": Delete;
}

/// The C++ runtime's record of a thread's exceptions.
#[repr(C)]
pub(crate) struct Globals {
    caught: *mut c_void,
    /// Exceptions thrown and not caught yet.
    pub uncaught: c_uint,
}

/// Bytes from the runtime's count of an exception's handlers to the exception object. A negative
/// count marks an exception that was thrown again.
const HANDLERS: usize = 72;

/// Whether a handler has thrown the exception again.
///
/// # Safety
/// `allocate_exception` must have returned `object`, and a handler must have caught it.
pub(crate) unsafe fn is_thrown_again(object: *mut c_void) -> bool {
    let handlers = object.wrapping_byte_sub(HANDLERS).cast::<c_int>();
    // SAFETY: the interface of the runtime fixes the place of the count.
    unsafe { handlers.read() < 0 }
}
