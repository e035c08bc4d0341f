//! A store for tests, in which [attempts](crate::attempt) stop as often as they can.

use crate::store::check_change;
use crate::{Before, Change, Content, Op, Patched, Store, StoreError, StoreLayer, attempt};
use medium::block::{Buffer, Lba};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread::ThreadId;

/// The blocks that each thread has waited for, during the work of this number.
type Known = HashMap<ThreadId, (u64, HashSet<Lba>)>;

/// A store in which each block is absent the first time that a piece of work needs it. Tests
/// so detect work that cannot be repeated.
pub struct Forgetful<S> {
    inner: S,
    known: Mutex<Known>,
}

impl<S: Store> Forgetful<S> {
    /// A layer that treats the blocks which `inner` has in memory as absent.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            known: Mutex::default(),
        }
    }

    fn with_known<T>(&self, f: impl FnOnce(&mut HashSet<Lba>) -> T) -> T {
        let mut all = self.known.lock();
        let (work, known) = all.entry(std::thread::current().id()).or_default();
        if std::mem::replace(work, attempt::work()) != attempt::work() {
            known.clear();
        }
        f(known)
    }

    /// Notes that a block is read, unless an attempt must stop at it.
    fn reach(&self, lba: Lba) -> Result<(), StoreError> {
        let is_new = self.with_known(|known| match attempt::is_attempt() {
            true => !known.contains(&lba),
            false => {
                known.insert(lba);
                false
            }
        });
        match is_new && lba.0 < self.inner.blocks() {
            true => Err(attempt::absent([lba])),
            false => Ok(()),
        }
    }
}

impl<S: Store> StoreLayer for Forgetful<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.inner
    }

    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        self.reach(lba)?;
        self.inner.read(lba)
    }

    /// Does nothing: a prefetch is a hint.
    fn prefetch(&self, _lba: Lba, _blocks: u64) {}

    fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError> {
        if attempt::is_attempt() {
            blocks.iter().try_for_each(|lba| self.reach(*lba))?;
        }
        self.inner.ready(blocks)
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        if !check_change(change, self.inner.block_bytes()) {
            self.reach(lba)?;
        }
        self.inner.change(op, lba, content, change, befores)
    }
}
