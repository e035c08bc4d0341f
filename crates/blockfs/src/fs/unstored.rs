//! Patches that are kept until they are durable.

use patch::PatchId;

/// Patches kept before those that are durable are dropped.
const MIN_LIMIT: usize = 64;

/// A list of patches. Its length is at most twice the number of those that are not durable, or a
/// small constant.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    patches: Vec<PatchId>,
    /// Length at which durable ones are dropped next. 0 stands for [`MIN_LIMIT`].
    limit: usize,
}

impl Unstored {
    /// Adds a patch.
    pub(super) fn push(&mut self, patch: PatchId, is_pending: impl Fn(PatchId) -> bool) {
        if patch == PatchId::DURABLE || self.patches.last() == Some(&patch) {
            return;
        }
        self.patches.push(patch);
        if self.patches.len() > self.limit.max(MIN_LIMIT) {
            self.prune(is_pending);
        }
    }

    /// Drops patches that are durable.
    pub(super) fn prune(&mut self, is_pending: impl Fn(PatchId) -> bool) {
        self.patches.sort_unstable();
        self.patches.dedup();
        self.patches.retain(|patch| is_pending(*patch));
        self.limit = 2 * self.patches.len();
    }

    /// The patches that may not be durable.
    pub(super) fn patches(&self) -> &[PatchId] {
        &self.patches
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Patches of a cache, one for each block.
    fn patches(n: usize) -> Vec<PatchId> {
        use medium::block::{Geometry, Lba, MemoryDevice};
        use patch::{Cache, CacheOptions, Change, Content, Store};
        let geometry = Geometry {
            block_bytes: 512,
            blocks: n as u64,
        };
        let options = CacheOptions {
            interval: None,
            ..CacheOptions::default()
        };
        let device = Box::new(MemoryDevice::new(geometry));
        let store = std::sync::Arc::new(Cache::new(vec![device], options)).store(0);
        let op = store.begin(n as u32, patch::Caller::SYSTEM).unwrap();
        let change = Change::Bytes { at: 0, bytes: &[1] };
        let changed = |lba| store.change(&op, Lba(lba), Content::Data, change, &[]);
        let ids = (0..n as u64).map(|lba| changed(lba).unwrap().id).collect();
        store.end(op);
        ids
    }

    #[test]
    fn the_list_is_bounded_by_what_is_not_durable() {
        let mut list = Unstored::default();
        for (at, patch) in patches(1000).into_iter().enumerate() {
            // Only the last ten are pending.
            let young: Vec<PatchId> = vec![patch];
            list.push(patch, |other| young.contains(&other));
            assert!(list.patches().len() <= MIN_LIMIT + 1, "after {at}");
        }
    }

    #[test]
    fn a_patch_that_is_pending_stays() {
        let mut list = Unstored::default();
        let all = patches(300);
        for &patch in &all {
            list.push(patch, |_| true);
            list.push(patch, |_| true); // a repetition is dropped
        }
        assert_eq!(list.patches(), all);
        let asked = Cell::new(0);
        list.prune(|patch| {
            asked.set(asked.get() + 1);
            patch == all[7]
        });
        assert_eq!((list.patches(), asked.get()), (&all[7..8], 300));
        list.push(PatchId::DURABLE, |_| true);
        assert_eq!(list.patches(), &all[7..8]);
        list.clear();
        assert!(list.patches().is_empty());
    }
}
