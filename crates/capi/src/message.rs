//! Errors for C callers: `errno`, a text for each thread, and a hook.

use libc::{c_char, c_int, c_void};
use parking_lot::RwLock;
use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;

/// A function of the program that receives each message.
type Hook = unsafe extern "C" fn(message: *const c_char, argument: *mut c_void);

struct Installed {
    hook: Hook,
    argument: *mut c_void,
}

// SAFETY: the header says that any thread calls the hook with the argument.
unsafe impl Send for Installed {}
// SAFETY: as above.
unsafe impl Sync for Installed {}

static HOOK: RwLock<Option<Installed>> = RwLock::new(None);

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Reports an error: calls the hook, stores the text, and sets `errno`.
#[cold]
pub(crate) fn report(errno: c_int, why: impl Display) {
    let text = why.to_string().replace('\0', "?");
    let text = CString::new(text).unwrap_or_default();
    let hook = HOOK.read().as_ref().map(|i| (i.hook, i.argument));
    if let Some((hook, argument)) = hook {
        // SAFETY: the program promised that the hook can be called with this argument; the text
        // outlives the call.
        unsafe { hook(text.as_ptr(), argument) };
    }
    // A thread that is ending cannot store a text any more.
    let _ = LAST.try_with(|last| last.replace(text));
    // Last: the hook may have changed it.
    set_errno(errno);
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library has an `errno` for every thread.
    unsafe { *libc::__errno_location() = errno };
}

/// The last message of this thread, valid until its next one; empty if there was none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selvedge_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Sets the hook that receives every message; null removes it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_set_message_hook(
    hook: Option<Hook>,
    argument: *mut c_void,
) {
    *HOOK.write() = hook.map(|hook| Installed { hook, argument });
}
