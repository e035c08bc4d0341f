//! The actions of a transaction at its end.

use libc::c_void;

/// A function of the program, and its argument.
pub(crate) type Call = (unsafe extern "C" fn(*mut c_void), *mut c_void);

/// The actions that the program registered, and its frees.
#[derive(Default)]
pub(crate) struct Actions {
    pub on_commit: Vec<Call>,
    pub on_failure: Vec<Call>,
}

/// The numbers of actions at one time, for a return to them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark {
    pub on_commit: usize,
    pub on_failure: usize,
}

impl Actions {
    pub(crate) fn is_empty(&self) -> bool {
        self.on_commit.is_empty() && self.on_failure.is_empty()
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark {
            on_commit: self.on_commit.len(),
            on_failure: self.on_failure.len(),
        }
    }
}
