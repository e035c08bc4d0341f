//! The redo logs of a store, each of which one transaction at a time uses.
//!
//! 1. A transaction that runs alone begins after the end of all others, and holds off those that begin later.
//! 2. Transactions that run beside others wait for a free log, and for one that runs alone or waits to do so.
//! 3. After a failed commit no transaction begins or commits.

use crate::claims::Claims;
use crate::error::{Error, Result};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use vfs::sync::{Condvar, Mutex, MutexGuard};

/// The logs, as parts of values of the type `C`, and their uses.
pub(crate) struct Slots<C> {
    changes: Box<[Mutex<C>]>,
    uses: Mutex<Uses>,
    /// A log became free.
    freed: Condvar,
    pub(crate) claims: Claims,
    /// A commit has failed, so that the memory may lack a part of it.
    pub(crate) is_failed: AtomicBool,
}

struct Uses {
    is_used: Box<[bool]>,
    is_alone: bool,
    /// Transactions that wait to run alone.
    waiting: usize,
    /// Threads that wait for any log. Without one, nobody makes the system call that wakes them.
    asleep: usize,
}

/// How a transaction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// No other transaction is open.
    Alone,
    /// Others may be.
    Beside,
}

/// A log while a transaction has it.
pub(crate) struct Slot<'a, C> {
    pub(crate) slots: &'a Slots<C>,
    pub(crate) number: usize,
    changes: MutexGuard<'a, C>,
}

impl<C> Slots<C> {
    /// All of them are free.
    pub(crate) fn new(changes: impl IntoIterator<Item = C>) -> Self {
        let changes: Box<[_]> = changes.into_iter().map(Mutex::new).collect();
        let is_used = vec![false; changes.len()].into();
        Self {
            changes,
            uses: Mutex::new(Uses {
                is_used,
                is_alone: false,
                waiting: 0,
                asleep: 0,
            }),
            freed: Condvar::new(),
            claims: Claims::default(),
            is_failed: AtomicBool::new(false),
        }
    }

    /// Number of transactions that can be open at a time.
    pub(crate) fn count(&self) -> usize {
        self.changes.len()
    }

    /// Waits for a log: the first free one, which is the longest.
    ///
    /// # Errors
    /// [`Error::NotAStore`] after a failed commit.
    pub(crate) fn take(&self, company: Company) -> Result<Slot<'_, C>> {
        let number = match company {
            Company::Alone => self.take_all(),
            Company::Beside => self.take_free(),
        };
        let changes = self.changes[number].lock();
        let slot = Slot {
            slots: self,
            number,
            changes,
        };
        self.must_work().map(|()| slot)
    }

    fn take_free(&self) -> usize {
        let mut uses = self.uses.lock();
        loop {
            let free = uses.is_used.iter().position(|is_used| !is_used);
            if let Some(free) = free.filter(|_| !uses.is_alone && uses.waiting == 0) {
                uses.is_used[free] = true;
                return free;
            }
            uses = self.wait(uses);
        }
    }

    /// Waits until a log is free.
    fn wait<'a>(&self, mut uses: MutexGuard<'a, Uses>) -> MutexGuard<'a, Uses> {
        uses.asleep += 1;
        let mut uses = self.freed.wait(uses);
        uses.asleep -= 1;
        uses
    }

    fn take_all(&self) -> usize {
        let mut uses = self.uses.lock();
        uses.waiting += 1;
        while uses.is_used.contains(&true) {
            uses = self.wait(uses);
        }
        uses.waiting -= 1;
        uses.is_alone = true;
        uses.is_used[0] = true;
        0
    }

    /// # Errors
    /// [`Error::NotAStore`] after a failed commit.
    pub(crate) fn must_work(&self) -> Result<()> {
        match self.is_failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => {
                let what = "a commit has failed; open the store again".to_owned();
                Err(Error::NotAStore(what))
            }
        }
    }
}

impl<C> Deref for Slot<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.changes
    }
}

impl<C> DerefMut for Slot<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.changes
    }
}

impl<C> Drop for Slot<'_, C> {
    fn drop(&mut self) {
        let mut uses = self.slots.uses.lock();
        uses.is_used[self.number] = false;
        // No other one is open if this one runs alone.
        uses.is_alone = false;
        let is_awaited = uses.asleep > 0;
        drop(uses);
        if is_awaited {
            self.slots.freed.notify_all();
        }
    }
}
