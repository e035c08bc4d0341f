//! What a transaction is to do at its end.

use libc::c_void;

/// A function of the program's, and what to call it with.
pub(crate) type Call = (unsafe extern "C" fn(*mut c_void), *mut c_void);

/// What the program has asked for, and frees.
#[derive(Default)]
pub(crate) struct Actions {
    pub on_commit: Vec<Call>,
    pub on_failure: Vec<Call>,
}

/// How many actions there were, to come back to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark {
    pub on_commit: usize,
    pub on_failure: usize,
}

impl Actions {
    pub fn is_empty(&self) -> bool {
        self.on_commit.is_empty() && self.on_failure.is_empty()
    }

    pub fn mark(&self) -> Mark {
        Mark {
            on_commit: self.on_commit.len(),
            on_failure: self.on_failure.len(),
        }
    }
}
