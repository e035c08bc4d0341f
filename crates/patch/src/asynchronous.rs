//! No order, as in file systems without soft updates or a journal (2.4.2), except for the order
//! that programs request.

use crate::seeded::{Bug, hit};
use crate::{Before, Change, Content, Op, PatchId, Patched, Rule, Store, StoreError, StoreLayer};
use medium::block::Lba;
use parking_lot::Mutex;

/// A store that drops the befores of a format. After a crash the file system needs a checker. Crash
/// tests use it as their control.
///
/// The order between sets of [`Groups`](crate::Groups) is kept. While a change waits for it, all
/// changes keep their befores. Otherwise consequences of a change, such as the reuse of blocks that
/// it freed, could be durable before it.
pub struct Async<S> {
    below: S,
    /// Patches that stand for earlier groups, and may not be durable.
    groups: Mutex<Vec<PatchId>>,
}

impl<S: Store> Async<S> {
    /// A layer over `below`.
    pub fn new(below: S) -> Self {
        Self {
            below,
            groups: Mutex::default(),
        }
    }

    /// The befores that this layer keeps.
    fn kept<'a>(&self, befores: &'a [Before]) -> &'a [Before] {
        let mut groups = self.groups.lock();
        let is_group = |b: &&Before| b.rule == Rule::GroupAfterGroup && !hit(Bug::GroupLostByAsync);
        let named = befores.iter().filter(is_group);
        for group in named {
            if !groups.contains(&group.patch) {
                groups.push(group.patch);
            }
        }
        if groups.is_empty() {
            return &[];
        }
        groups.retain(|&group| self.below.is_pending(group));
        match groups.is_empty() {
            true => &[],
            false => befores,
        }
    }
}

impl<S: Store> StoreLayer for Async<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.below
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let kept = self.kept(befores);
        self.below.change(op, lba, content, change, kept)
    }

    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        let kept = self.kept(befores);
        self.below.freed(op, lba, kept, unreachable)
    }

    /// Keeps the befores of empty patches that stand for groups.
    fn empty(&self, befores: &[Before], held: bool) -> PatchId {
        let is_group = |before: &Before| before.rule == Rule::GroupAfterGroup;
        let kept: Vec<Before> = befores.iter().copied().filter(is_group).collect();
        self.below.empty(&kept, held)
    }

    fn set_befores(&self, _empty: PatchId, _befores: &[Before]) {}

    fn add_before(&self, _empty: PatchId, _before: Before) {}
}
