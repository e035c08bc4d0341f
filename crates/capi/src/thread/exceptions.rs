//! The C++ exceptions that a transaction has to do with.

use crate::cxx;
use libc::{c_uint, c_void};

/// Bytes that the C++ runtime has in front of an exception object, as the unwinder sees it.
const UNWIND_HEADER: usize = 32;

/// The exceptions of a transaction.
#[derive(Default)]
pub(crate) struct Exceptions {
    /// Objects that the transaction allocated and that nobody has caught.
    pub objects: Vec<*mut c_void>,
    /// The objects whose handlers it is inside of.
    pub handled: Vec<*mut c_void>,
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
    pub fn note(&mut self) {
        if self.uncaught.is_none() {
            // SAFETY: as above.
            self.uncaught = Some(unsafe { (*cxx::get_globals()()).uncaught });
        }
    }
}

/// The object of an exception, as the unwinder knows it.
pub(crate) fn object_of(exception: *mut c_void) -> *mut c_void {
    exception.wrapping_byte_add(UNWIND_HEADER)
}
