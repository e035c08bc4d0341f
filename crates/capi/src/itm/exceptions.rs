//! C++ exceptions inside transactions.
//!
//! An exception that leaves a transaction commits it. When a transaction is undone, so are its
//! exceptions: those that were allocated and not thrown, or thrown and not caught, are freed;
//! those that are being handled are no longer; and the runtime's count of those that are on
//! their way is what it was. The destructors of exception objects do not run: what the
//! constructors wrote is undone with the rest.

use crate::cxx;
use crate::thread::Thread;
use libc::{c_uint, c_void};

/// Bytes that the C++ runtime has in front of an exception object, as the unwinder sees it.
const UNWIND_HEADER: usize = 32;

#[derive(Default)]
pub(crate) struct Exceptions {
    /// Objects that the transaction allocated and that nobody has caught.
    objects: Vec<*mut c_void>,
    /// The objects whose handlers it is inside of.
    handled: Vec<*mut c_void>,
    /// On their way when it began; if it has to do with exceptions at all.
    uncaught: Option<c_uint>,
    /// The exception because of which it ends.
    ends_by: Option<*mut c_void>,
    /// The same, once it is undone, if the exception was thrown by code that is no part of the
    /// transaction: it will not arrive, and is to be deleted.
    pub foreign: Option<*mut c_void>,
}

/// What there was, to come back to.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    objects: usize,
    handled: usize,
}

impl Exceptions {
    /// A transaction begins.
    pub fn begin(&mut self) {
        self.uncaught = None;
    }

    /// It has committed.
    pub fn committed(&mut self) {
        self.objects.clear();
        self.handled.clear();
        self.uncaught = None;
    }

    pub fn mark(&self) -> Mark {
        Mark {
            objects: self.objects.len(),
            handled: self.handled.len(),
        }
    }

    /// It ends because of this exception, or null.
    pub fn ends_by(&mut self, exception: *mut c_void) {
        self.ends_by = (!exception.is_null()).then_some(exception);
    }

    /// It has left nothing.
    pub fn rolled_back(&mut self) {
        let is_foreign = |exception: &_| !self.objects.contains(&object_of(*exception));
        self.foreign = self.ends_by.take().filter(is_foreign);
        if self.foreign.is_some() && self.uncaught.is_none() {
            // The code that threw it has not told; to delete it does not count it off.
            // SAFETY: the runtime gives every thread such a place.
            let now = unsafe { (*cxx::get_globals()()).uncaught };
            self.uncaught = Some(now.saturating_sub(1));
        }
        self.return_to(Mark {
            objects: 0,
            handled: 0,
        });
        self.committed();
    }

    /// It has left nothing of what it did since then.
    pub fn return_to(&mut self, mark: Mark) {
        // A handler may have ended since that was begun before.
        let handlers = self.handled.len().saturating_sub(mark.handled) as c_uint;
        if handlers > 0 {
            // SAFETY: so many handlers were begun and not ended.
            unsafe { cxx::tm_cleanup()(std::ptr::null_mut(), std::ptr::null_mut(), handlers) };
        }
        self.handled.truncate(mark.handled);
        let objects = mark.objects.min(self.objects.len());
        for object in self.objects.drain(objects..) {
            // SAFETY: allocated, and not caught: nobody else frees it.
            unsafe { cxx::free_exception()(object) };
        }
        if let Some(uncaught) = self.uncaught {
            // SAFETY: the runtime gives every thread such a place.
            unsafe { (*cxx::get_globals()()).uncaught = uncaught };
        }
    }

    /// It has to do with exceptions.
    fn note(&mut self) {
        if self.uncaught.is_none() {
            // SAFETY: as above.
            self.uncaught = Some(unsafe { (*cxx::get_globals()()).uncaught });
        }
    }
}

/// Deletes an exception that will not arrive.
///
/// # Safety
/// It must be one that is on its way. Its destructor, which is the program's, runs.
pub(crate) unsafe fn delete(exception: Option<*mut c_void>) {
    if let Some(exception) = exception {
        // SAFETY: the caller's promise.
        unsafe { cxx::delete_unwind()(exception) };
    }
}

/// The object of an exception, as the unwinder knows it.
fn object_of(exception: *mut c_void) -> *mut c_void {
    exception.wrapping_byte_add(UNWIND_HEADER)
}

impl Thread {
    /// The innermost handler is about to end. Its object goes, unless it was thrown again or
    /// another handler has it, too.
    fn handler_ends(&mut self) {
        let Some(object) = self.exceptions.handled.pop() else {
            return;
        };
        if self.exceptions.handled.contains(&object) || !self.fresh.has(object as u64, 1) {
            return;
        }
        // SAFETY: this transaction allocated it, and it was caught.
        match unsafe { cxx::is_thrown_again(object) } {
            true => self.exceptions.objects.push(object),
            false => self.goes(object as u64),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_cxa_allocate_exception(len: usize) -> *mut c_void {
    // SAFETY: any length will do.
    let object = unsafe { cxx::allocate_exception()(len) };
    // SAFETY: the program called.
    let thread = unsafe { Thread::running() };
    thread.exceptions.note();
    thread.exceptions.objects.push(object);
    thread.fresh.add(object as u64, len as u64);
    object
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_cxa_free_exception(object: *mut c_void) {
    // SAFETY: the program called.
    let thread = unsafe { Thread::running() };
    thread.exceptions.objects.retain(|o| *o != object);
    thread.goes(object as u64);
    // SAFETY: the caller's promise.
    unsafe { cxx::free_exception()(object) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ITM_cxa_throw(
    object: *mut c_void,
    kind: *mut c_void,
    destructor: *mut c_void,
) -> ! {
    // SAFETY: the caller's promise. Nothing of ours is in use when it throws.
    unsafe { cxx::throw()(object, kind, destructor) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_cxa_begin_catch(exception: *mut c_void) -> *mut c_void {
    // SAFETY: the program called.
    let exceptions = &mut unsafe { Thread::running() }.exceptions;
    exceptions.note();
    let object = object_of(exception);
    exceptions.handled.push(object);
    // From here on the end of the handler frees it.
    exceptions.objects.retain(|o| *o != object);
    // SAFETY: the caller's promise.
    unsafe { cxx::begin_catch()(exception) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ITM_cxa_end_catch() {
    // SAFETY: the program called; the reference is gone when a destructor runs.
    let thread = unsafe { Thread::running() };
    thread.handler_ends();
    // SAFETY: the caller's promise.
    unsafe { cxx::end_catch()() };
}
