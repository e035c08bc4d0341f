//! The order of a file system in which each call is durable, in order, when it returns.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{ChangeOrder, Durability, Guarantees, Ordering, Result, SetId};

/// An order that holds by itself: no call does anything.
#[derive(Debug, Default)]
pub(crate) struct ByItself(AtomicU64);

impl ByItself {
    /// The order of a file system with these promises, if it holds by itself.
    pub(crate) fn of(promise: &Guarantees) -> Option<Self> {
        let is_ordered = promise.durable == Durability::AtReturn
            && promise.metadata_ordered == Ordering::Global
            && promise.data_ordered == Ordering::Global;
        is_ordered.then(Self::default)
    }
}

impl ChangeOrder for ByItself {
    fn create(&self) -> SetId {
        SetId(self.0.fetch_add(1, Relaxed))
    }

    fn remove(&self, _set: SetId) {}

    fn depend(&self, _after: SetId, _before: SetId) {}

    fn barrier(&self, _set: SetId) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _set: SetId) -> Result<()> {
        Ok(())
    }

    fn pending(&self, _set: SetId) -> usize {
        0
    }
}
