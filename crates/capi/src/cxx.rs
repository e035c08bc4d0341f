//! Functions of the C++ runtime, which a C program does not have.
//!
//! Each is asked for weakly: its address is 0 where there is none. Whoever calls one is called
//! by C++ code, which has it.

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

/// Allocates, or throws.
type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
/// Allocates, or gives null.
type NewNothrow = unsafe extern "C" fn(usize, *const c_void) -> *mut c_void;
/// Frees.
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

/// What the C++ runtime knows of a thread's exceptions.
#[repr(C)]
pub(crate) struct Globals {
    caught: *mut c_void,
    /// Thrown, and not caught yet.
    pub uncaught: c_uint,
}

/// Where the C++ runtime counts the handlers of an exception, in front of its object: less than
/// 0 once it was thrown again.
const HANDLERS: usize = 72;

/// # Safety
/// `object` must be one that was made by `allocate_exception` and has been caught.
pub(crate) unsafe fn is_thrown_again(object: *mut c_void) -> bool {
    let handlers = object.wrapping_byte_sub(HANDLERS).cast::<c_int>();
    // SAFETY: the interface of the runtime fixes what is there.
    unsafe { handlers.read() < 0 }
}
