//! The file system of a mount, which is opened after the mount.

use crate::ops::Ops;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// [`Ops`] that are set after the mount and before its first request.
#[derive(Clone, Default)]
pub(crate) struct Late(Arc<OnceLock<Ops>>);

impl Late {
    /// Once only.
    pub(crate) fn set(&self, ops: Ops) {
        let _ = self.0.set(ops);
    }
}

impl Deref for Late {
    type Target = Ops;

    fn deref(&self) -> &Ops {
        self.0
            .get()
            .expect("set before the session reads a request")
    }
}
