//! Order between sets of changes, without durability: what an engine offers to patchgroups.

use crate::Result;
use std::sync::Arc;

/// The number of a set of changes. Numbers are not reused during a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(pub u64);

/// The sets that the changes of a call join; by default none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sets(Option<Arc<[u64]>>);

impl Sets {
    /// No set.
    pub const NONE: Self = Self(None);

    /// These sets.
    pub fn new(sets: impl IntoIterator<Item = SetId>) -> Self {
        let sets: Arc<[u64]> = sets.into_iter().map(|set| set.0).collect();
        Self(Some(sets).filter(|sets| !sets.is_empty()))
    }

    /// Their numbers, if there are any.
    pub fn numbers(&self) -> Option<&Arc<[u64]>> {
        self.0.as_ref()
    }

    /// Whether there is no set.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// The order between sets of changes (section 2.3 of the Featherstitch chapter). A call's
/// changes join the sets that its [`Ctx`](crate::Ctx) names.
///
/// # Guarantee
/// If a crash state has one change of a set, it has all changes for which the set waits, by
/// [`depend`](Self::depend) or [`barrier`](Self::barrier). Calls on a set that was removed do
/// nothing. A set keeps no change from being written.
#[allow(clippy::missing_errors_doc)] // as for `FileSystem`: EIO
pub trait ChangeOrder: Send + Sync {
    /// Makes an empty set.
    fn create(&self) -> SetId;
    /// Removes a set. The order of its changes stays.
    fn remove(&self, set: SetId);
    /// Makes the later changes of `after` wait for the present ones of `before`, and for all
    /// that these wait for.
    fn depend(&self, after: SetId, before: SetId);
    /// Makes the later changes of the set wait for its present ones. Waits for no device.
    fn barrier(&self, set: SetId) -> Result<()>;
    /// Makes durable the set's changes, and those for which they wait.
    fn sync(&self, set: SetId) -> Result<()>;
    /// Number of units of the set that are not durable yet: patches, in an engine on blocks.
    fn pending(&self, set: SetId) -> usize;
}
