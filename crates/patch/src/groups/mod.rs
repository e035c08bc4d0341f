//! Order between sets of changes (section 2.3 of the Featherstitch chapter): the part of
//! patchgroups that stands between a format and its journal.
//!
//! A *set* collects the changes of the operations whose [`Caller`](crate::Caller) names it. It
//! has one empty patch, *first*, for which its later changes wait.
//!
//! # Guarantees
//! - **G1** *Order.* After `depend(q, p)`, each later change of `q` waits for all changes that
//!   `p` had at the call, and for all that those wait for. [`Groups::barrier`] is `depend(p, p)`.
//! - **G2** *No cycles.* An empty patch is made with its befores, and gains none later. So an
//!   order between sets leads to older patches only, whatever order a program requests.
//! - **G3** *Nothing is held.* No patch waits for a program, so a set that stays open keeps no
//!   change from the medium.
//! - **G4** *No cost without sets.* An operation without sets passes unchanged.
//!
//! The paper makes two empty patches for each group when the group is made, and holds one of them
//! until the group gains an after. Here the empty patch is made when a set gains an after, with the
//! changes that the set has at that moment as its befores. So no patch is held.

#[cfg(test)]
mod tests;

use crate::seeded::{Bug, hit};
use crate::{Before, Change, Content, Op, PatchId, Patched, Rule, Store, StoreError, StoreLayer};
use medium::block::Lba;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Number of recorded changes at which those that are durable are dropped.
const FIRST_LIMIT: usize = 256;

/// The sets that the changes of an operation join; by default none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Sets(Option<Arc<[u64]>>);

impl Sets {
    /// No set.
    pub const NONE: Self = Self(None);

    /// These sets, by number.
    pub fn new(sets: Option<Arc<[u64]>>) -> Self {
        Self(sets.filter(|sets| !sets.is_empty()))
    }

    fn numbers(&self) -> &[u64] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// One set.
#[derive(Debug)]
struct Set {
    /// The patch for which later changes wait; [`PatchId::DURABLE`] if they wait for nothing.
    first: PatchId,
    /// The changes that the newest `first` stands for. All changes of a transaction are one patch,
    /// so a further barrier in the transaction needs no further empty patch.
    covered: HashSet<PatchId>,
    /// Changes since the last barrier that may not be durable.
    changes: HashSet<PatchId>,
    /// Size of `changes` at which the durable ones are dropped.
    limit: usize,
}

#[derive(Debug, Default)]
struct Table {
    sets: HashMap<u64, Set>,
    last: u64,
}

/// A store that orders sets of changes. Calls on a set that was removed do nothing.
pub struct Groups<S> {
    below: S,
    table: Mutex<Table>,
}

impl<S: Store> Groups<S> {
    /// A layer without sets.
    pub fn new(below: S) -> Self {
        Self {
            below,
            table: Mutex::default(),
        }
    }

    /// Makes an empty set, and returns its number.
    pub fn create(&self) -> u64 {
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        let set = Set {
            first: PatchId::DURABLE,
            covered: HashSet::new(),
            changes: HashSet::new(),
            limit: FIRST_LIMIT,
        };
        table.sets.insert(number, set);
        number
    }

    /// Removes a set. The order of its changes stays.
    pub fn remove(&self, set: u64) {
        self.table.lock().sets.remove(&set);
    }

    /// Makes later changes of `after` wait for the changes of `before` (G1).
    pub fn depend(&self, after: u64, before: u64) {
        let mut table = self.table.lock();
        let Some(earlier) = table.sets.get(&before) else {
            return;
        };
        let (first, mut changes) = (earlier.first, earlier.changes.clone());
        if hit(Bug::GroupReleasedEarly) {
            changes.clear();
        }
        let is_partly_durable = || changes.iter().any(|patch| !self.below.is_pending(*patch));
        if is_partly_durable() && hit(Bug::GroupPartlyDurable) {
            changes.clear();
        }
        let Some(set) = table.sets.get_mut(&after) else {
            return;
        };
        if after == before {
            // The first patch will stand for them.
            set.changes.clear();
            if changes.is_subset(&set.covered) {
                return;
            }
        }
        let firsts = [set.first, first].into_iter();
        let befores: Vec<Before> = firsts.chain(changes.iter().copied()).map(group).collect();
        set.first = self.below.empty(&befores, false);
        set.covered = changes;
    }

    /// Makes later changes of a set wait for its earlier ones. It does not wait for a device.
    ///
    /// # Errors
    /// An earlier write has failed.
    pub fn barrier(&self, set: u64) -> Result<(), StoreError> {
        if let Some(error) = self.below.failure() {
            return Err(StoreError::Failed(error));
        }
        self.depend(set, set);
        Ok(())
    }

    /// Makes durable the changes of a set, and what they wait for.
    ///
    /// # Errors
    /// A write has failed, now or earlier.
    pub fn sync(&self, set: u64) -> Result<(), StoreError> {
        let pending = self.table.lock().sets.get(&set).map(Set::pending);
        self.below.sync(&pending.unwrap_or_default())
    }

    /// Number of patches with changes of a set that are not durable yet.
    pub fn pending(&self, set: u64) -> usize {
        let mut table = self.table.lock();
        table.sets.get_mut(&set).map_or(0, |set| {
            set.prune(&self.below);
            set.changes.len() + usize::from(self.below.is_pending(set.first))
        })
    }

    /// The patches for which changes of these sets wait.
    fn firsts(&self, sets: &Sets) -> Vec<Before> {
        let table = self.table.lock();
        let sets = sets.numbers().iter();
        sets.filter_map(|number| table.sets.get(number))
            .filter(|set| set.first != PatchId::DURABLE)
            .map(|set| group(set.first))
            .collect()
    }

    fn record(&self, sets: &Sets, patch: PatchId) {
        let mut table = self.table.lock();
        for number in sets.numbers() {
            if let Some(set) = table.sets.get_mut(number)
                && set.changes.insert(patch)
                && set.changes.len() > set.limit
            {
                set.prune(&self.below);
            }
        }
    }
}

impl Set {
    /// All patches with its changes, and what they wait for.
    fn pending(&self) -> Vec<PatchId> {
        let is_dropped = self.first != PatchId::DURABLE && hit(Bug::GroupSyncedAlone);
        let first = (!is_dropped).then_some(self.first).into_iter();
        first.chain(self.changes.iter().copied()).collect()
    }

    fn prune(&mut self, store: &impl Store) {
        self.changes.retain(|&patch| store.is_pending(patch));
        self.limit = (2 * self.changes.len()).max(FIRST_LIMIT);
        if !store.is_pending(self.first) {
            self.first = PatchId::DURABLE;
            self.covered.clear();
        }
    }
}

fn group(patch: PatchId) -> Before {
    Before {
        patch,
        rule: Rule::GroupAfterGroup,
    }
}

impl<S: Store> StoreLayer for Groups<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.below
    }

    /// A barrier of another thread may take place between the read of the set's first patch and
    /// the record of the change. The change then stands before the barrier or after it: its
    /// call was under way.
    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let sets = &op.caller.sets;
        if *sets == Sets::NONE {
            return self.below.change(op, lba, content, change, befores);
        }
        let mut all = self.firsts(sets);
        all.extend_from_slice(befores);
        let patched = self.below.change(op, lba, content, change, &all)?;
        self.record(sets, patched.id);
        Ok(patched)
    }
}
