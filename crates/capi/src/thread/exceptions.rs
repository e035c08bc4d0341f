//! The C++ exceptions of a transaction.

use crate::cxx;
use libc::{c_uint, c_void};

/// Bytes from the unwinder's header of an exception to the exception object.
const UNWIND_HEADER: usize = 32;

/// The exceptions of a transaction.
#[derive(Default)]
pub(crate) struct Exceptions {
    /// Objects that the transaction allocated and no handler has caught.
    pub objects: Vec<*mut c_void>,
    /// The objects of the handlers that are running.
    pub handled: Vec<*mut c_void>,
    /// The runtime's count of uncaught exceptions before the transaction's first use of one.
    uncaught: Option<c_uint>,
    /// The exception that leaves the transaction.
    ends_by: Option<*mut c_void>,
    /// The exception that left the undone transaction, if code outside of the transaction threw it.
    /// The exception reaches no handler, and must be deleted.
    pub foreign: Option<*mut c_void>,
}

/// The numbers of objects and handlers at one time, for a return to them.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    objects: usize,
    handled: usize,
}

impl Exceptions {
    /// Records that a transaction begins.
    pub(crate) fn begin(&mut self) {
        self.uncaught = None;
    }

    /// Records that the transaction has committed.
    pub(crate) fn committed(&mut self) {
        self.objects.clear();
        self.handled.clear();
        self.uncaught = None;
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark {
            objects: self.objects.len(),
            handled: self.handled.len(),
        }
    }

    /// Records the exception that leaves the transaction, or null.
    pub(crate) fn ends_by(&mut self, exception: *mut c_void) {
        self.ends_by = (!exception.is_null()).then_some(exception);
    }

    /// Undoes the exceptions of the transaction.
    pub(crate) fn rolled_back(&mut self) {
        let is_foreign = |exception: &_| !self.objects.contains(&object_of(*exception));
        self.foreign = self.ends_by.take().filter(is_foreign);
        if self.foreign.is_some() && self.uncaught.is_none() {
            // Its throw was not recorded here, and its deletion does not change the count.
            // SAFETY: the runtime has a count for every thread.
            let now = unsafe { (*cxx::get_globals()()).uncaught };
            self.uncaught = Some(now.saturating_sub(1));
        }
        self.return_to(Mark {
            objects: 0,
            handled: 0,
        });
        self.committed();
    }

    /// Undoes the exceptions since `mark`.
    pub(crate) fn return_to(&mut self, mark: Mark) {
        // A handler that began before the mark may have ended since.
        let handlers = self.handled.len().saturating_sub(mark.handled) as c_uint;
        if handlers > 0 {
            // SAFETY: `handlers` handlers have begun and not ended.
            unsafe { cxx::tm_cleanup()(std::ptr::null_mut(), std::ptr::null_mut(), handlers) };
        }
        self.handled.truncate(mark.handled);
        let objects = mark.objects.min(self.objects.len());
        for object in self.objects.drain(objects..) {
            // SAFETY: allocated, and not caught, so that no handler frees it.
            unsafe { cxx::free_exception()(object) };
        }
        if let Some(uncaught) = self.uncaught {
            // SAFETY: the runtime has a count for every thread.
            unsafe { (*cxx::get_globals()()).uncaught = uncaught };
        }
    }

    /// Records the count of uncaught exceptions, at the first use of an exception.
    pub(crate) fn note(&mut self) {
        if self.uncaught.is_none() {
            // SAFETY: as above.
            self.uncaught = Some(unsafe { (*cxx::get_globals()()).uncaught });
        }
    }
}

/// The object of an exception, given its unwinder header.
pub(crate) fn object_of(exception: *mut c_void) -> *mut c_void {
    exception.wrapping_byte_add(UNWIND_HEADER)
}
