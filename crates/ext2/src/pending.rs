//! Facts about patches that are kept until the patches are durable.

use hashbrown::HashMap;
use patch::{PatchId, Store};
use std::hash::Hash;

/// A map to patches that forgets the durable ones. Its size is bounded by the patches that the
/// store holds back.
#[derive(Debug)]
pub(crate) struct Pending<K, V> {
    known: HashMap<K, V>,
    /// Length at which durable patches are forgotten next.
    limit: usize,
}

/// A value that contains a patch.
pub(crate) trait OfPatch {
    fn patch(&self) -> PatchId;
}

impl OfPatch for PatchId {
    fn patch(&self) -> PatchId {
        *self
    }
}

const MIN_LIMIT: usize = 1024;

impl<K, V> Default for Pending<K, V> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            limit: MIN_LIMIT,
        }
    }
}

impl<K: Hash + Eq, V: OfPatch> Pending<K, V> {
    pub(crate) fn insert(&mut self, store: &dyn Store, key: K, value: V) {
        if self.known.len() >= self.limit {
            self.known.retain(|_, v| store.is_pending(v.patch()));
            self.limit = (self.known.len() * 2).max(MIN_LIMIT);
        }
        self.known.insert(key, value);
    }

    pub(crate) fn get(&self, store: &dyn Store, key: &K) -> Option<&V> {
        let found = self.known.get(key)?;
        store.is_pending(found.patch()).then_some(found)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.known.remove(key)
    }
}

/// The patch that made a name, and the bytes to undo it.
#[derive(Debug)]
pub(crate) struct MadeName {
    pub patch: PatchId,
    /// The offset of the change in the block, the old bytes and the new ones. They are empty if
    /// bytes alone cannot undo the change.
    pub at: usize,
    pub old: Box<[u8]>,
    pub new: Box<[u8]>,
}

impl OfPatch for MadeName {
    fn patch(&self) -> PatchId {
        self.patch
    }
}
