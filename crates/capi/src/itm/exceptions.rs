//! C++ exceptions inside transactions.
//!
//! An exception that leaves a transaction commits it. The undo of a transaction includes its
//! exceptions:
//!
//! - Exceptions that were not thrown, or thrown and not caught, are freed.
//! - Its handlers end.
//! - The runtime's count of uncaught exceptions has its earlier value.
//!
//! The destructors of exception objects do not run: the undo covers the stores of the constructors.

use crate::cxx;
use crate::thread::Thread;
use crate::thread::exceptions::object_of;
use libc::c_void;

/// Deletes an exception that reaches no handler.
///
/// # Safety
/// The exception must be thrown and not caught. Its destructor, which is code of the program,
/// runs.
pub(crate) unsafe fn delete(exception: Option<*mut c_void>) {
    if let Some(exception) = exception {
        // SAFETY: the caller's promise.
        unsafe { cxx::delete_unwind()(exception) };
    }
}

impl Thread {
    /// Records the end of the innermost handler. It frees the exception object, unless the object
    /// was thrown again or is also another handler's.
    fn handler_ends(&mut self) {
        let Some(object) = self.exceptions.handled.pop() else {
            return;
        };
        if self.exceptions.handled.contains(&object) || !self.fresh.has(object as u64, 1) {
            return;
        }
        // SAFETY: this transaction allocated the object, and a handler caught it.
        match unsafe { cxx::is_thrown_again(object) } {
            true => self.exceptions.objects.push(object),
            false => self.memory_freed(object as u64),
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_cxa_allocate_exception(len: usize) -> *mut c_void {
    // SAFETY: any length is valid.
    let object = unsafe { cxx::allocate_exception()(len) };
    // SAFETY: the program called.
    let thread = unsafe { Thread::running() };
    thread.exceptions.note();
    thread.exceptions.objects.push(object);
    thread.fresh.add(object as u64, len as u64);
    object
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_cxa_free_exception(object: *mut c_void) {
    // SAFETY: the program called.
    let thread = unsafe { Thread::running() };
    thread.exceptions.objects.retain(|o| *o != object);
    thread.memory_freed(object as u64);
    // SAFETY: the caller's promise.
    unsafe { cxx::free_exception()(object) };
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn _ITM_cxa_throw(
    object: *mut c_void,
    kind: *mut c_void,
    destructor: *mut c_void,
) -> ! {
    // SAFETY: the caller's promise. No reference of ours is in use when it throws.
    unsafe { cxx::throw()(object, kind, destructor) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_cxa_begin_catch(exception: *mut c_void) -> *mut c_void {
    // SAFETY: the program called.
    let exceptions = &mut unsafe { Thread::running() }.exceptions;
    exceptions.note();
    let object = object_of(exception);
    exceptions.handled.push(object);
    // From here on the end of the handler frees the object.
    exceptions.objects.retain(|o| *o != object);
    // SAFETY: the caller's promise.
    unsafe { cxx::begin_catch()(exception) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn _ITM_cxa_end_catch() {
    // SAFETY: the program called; the reference is dropped before a destructor runs.
    let thread = unsafe { Thread::running() };
    thread.handler_ends();
    // SAFETY: the caller's promise.
    unsafe { cxx::end_catch()() };
}
