//! Patches that are kept until they are durable.

use patch::PatchId;

/// Patches kept before those that are durable are dropped.
const MIN_LIMIT: usize = 64;

/// A list of patches that is bounded by how many of them are not durable: at most twice as
/// many, or a few.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    patches: Vec<PatchId>,
    /// Length at which durable ones are dropped next; 0 stands for [`MIN_LIMIT`].
    limit: usize,
}

impl Unstored {
    /// Adds a patch.
    pub fn push(&mut self, patch: PatchId, is_pending: impl Fn(PatchId) -> bool) {
        if patch == PatchId::DURABLE || self.patches.last() == Some(&patch) {
            return;
        }
        self.patches.push(patch);
        if self.patches.len() > self.limit.max(MIN_LIMIT) {
            self.prune(is_pending);
        }
    }

    /// Drops patches that are durable.
    pub fn prune(&mut self, is_pending: impl Fn(PatchId) -> bool) {
        self.patches.sort_unstable();
        self.patches.dedup();
        self.patches.retain(|patch| is_pending(*patch));
        self.limit = 2 * self.patches.len();
    }

    /// Those that may not be durable.
    pub fn patches(&self) -> &[PatchId] {
        &self.patches
    }

    /// Drops all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
