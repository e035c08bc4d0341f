//! The credentials of the process, as callers of the file system.
//!
//! A caller that the process keeps stays in memory until its end, once for all times at which the process has the same
//! credentials. So calls need no count of its users.

use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, PoisonError};
use vfs::Ctx;

/// The caller of a call.
pub(crate) enum Caller {
    /// That of the process.
    Kept(&'static Ctx),
    /// That of a thread with other credentials, or of a child of `vfork`.
    Own(Box<Ctx>),
}

impl Deref for Caller {
    type Target = Ctx;

    fn deref(&self) -> &Ctx {
        match self {
            Self::Kept(cx) => cx,
            Self::Own(cx) => cx,
        }
    }
}

/// The callers that a process has been.
#[derive(Default)]
pub(super) struct Callers {
    /// The present one, or null if it is unknown.
    now: AtomicPtr<Ctx>,
    /// How often the credentials may have changed.
    changes: AtomicU64,
    all: Mutex<Vec<&'static Ctx>>,
}

impl Callers {
    /// The present caller.
    pub(super) fn known(&self) -> Option<&'static Ctx> {
        // SAFETY: the pointer is null or that of a leaked box, to which there are shared references only.
        unsafe { self.now.load(Acquire).as_ref() }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// The credentials may have changed.
    pub(super) fn forget(&self) {
        let _all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        self.changes.fetch_add(1, Release);
        self.now.store(null_mut(), Release);
    }

    /// Keeps a caller. It is the present one unless the credentials have changed since there were `changes` of them.
    pub(super) fn keep(&self, cx: Ctx, changes: u64) -> &'static Ctx {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|known| ***known == cx).copied();
        let kept = known.unwrap_or_else(|| {
            let new: &'static Ctx = Box::leak(Box::new(cx));
            all.push(new);
            new
        });
        // Another thread may have changed the user meanwhile.
        if self.changes() == changes {
            self.now.store(std::ptr::from_ref(kept).cast_mut(), Release);
        }
        kept
    }
}
