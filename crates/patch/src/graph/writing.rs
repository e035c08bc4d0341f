//! Writing: the patches that a write of a block includes, its contents, and the commit
//! (P2, P5).

use super::parts::{BlockSlot, NONE, Patch, State, Undo};
use super::{Graph, flip, is_same_block};
use crate::PatchId;
use crate::seeded::{Bug, hit};
use medium::block::Buffer;
use smallvec::SmallVec;
use std::sync::Arc;

impl Graph {
    /// Adds a pending patch to its block's ready list, or removes it.
    pub(super) fn recheck(&mut self, slot: u32) {
        let patch = &mut self.patches[slot as usize];
        if patch.is_empty() || patch.state != State::Pending {
            return;
        }
        let ready = patch.unmet_foreign == 0 && patch.unmet_same == 0;
        if ready == patch.ready {
            return;
        }
        patch.ready = ready;
        let b = patch.block;
        let list = &mut self.block_mut(b).ready;
        if ready {
            list.push(slot);
        } else {
            list.retain(|&other| other != slot);
        }
        self.woken.push(b);
    }

    /// Issues all ready patches of a block, and those that waited only for them (P2). Returns
    /// the contents to be written. The block must be ready.
    pub(crate) fn issue(&mut self, b: BlockSlot) -> Arc<Buffer> {
        assert!(
            self.block(b).is_ready(),
            "P2: block {b:?} has nothing to send"
        );
        while let Some(slot) = self.block_mut(b).ready.pop() {
            self.set_issued(b, slot);
        }
        let block = self.block(b);
        let whole = block.pending == 0;
        let data = if whole || hit(Bug::LoseRollback) {
            block.data.clone()
        } else {
            Arc::new(self.without_pending(b))
        };
        self.stats.issued(whole);
        self.woken.push(b);
        data
    }

    fn set_issued(&mut self, b: BlockSlot, slot: u32) {
        let patch = &mut self.patches[slot as usize];
        patch.ready = false;
        let mut edge = patch.afters;
        let mut external = 0;
        while edge != NONE {
            let next = self.edges[edge as usize].next_after;
            let after = self.edges[edge as usize].after();
            if is_same_block(&self.patches[after as usize], &self.patches[slot as usize]) {
                // One write includes both.
                self.patches[after as usize].unmet_same -= 1;
                self.unlink(edge);
                self.recheck(after);
            } else if self.counts_external(after, slot) {
                external += 1;
            }
            edge = next;
        }
        self.patches[slot as usize].state = State::Issued;
        let block = self.block_mut(b);
        block.external -= external;
        block.pending -= 1;
        block.issued += 1;
        if block.hard == slot {
            block.hard = NONE;
        }
    }

    /// The contents rolled back to exclude pending patches, undone newest first. A newer patch
    /// that overlaps an excluded one depends on it, and is excluded too.
    fn without_pending(&self, b: BlockSlot) -> Buffer {
        let block = self.block(b);
        let mut data = Buffer::clone(&block.data);
        let mut at = block.newest;
        while at != NONE {
            let patch = &self.patches[at as usize];
            if patch.state == State::Pending {
                let range = patch.at() as usize..patch.end() as usize;
                match &patch.undo {
                    Undo::Small(old) => data[range.clone()].copy_from_slice(&old[..range.len()]),
                    Undo::Saved(index) => data[range].copy_from_slice(&self.saved[*index as usize]),
                    Undo::Bits { flip: mask, .. } => flip(&mut data[..], patch.at(), *mask),
                    Undo::Hard | Undo::Empty => unreachable!("P3: a write excludes a hard patch"),
                }
            }
            at = patch.older;
        }
        data
    }

    /// Commits the issued patches of a block whose write is durable.
    pub(crate) fn commit(&mut self, b: BlockSlot) {
        let mut empties = SmallVec::new();
        let mut at = self.block(b).oldest;
        while at != NONE {
            let next = self.patches[at as usize].newer;
            if self.patches[at as usize].state == State::Issued {
                self.detach(at);
                self.forget(at, &mut empties);
            }
            at = next;
        }
        self.commit_empties(empties);
        self.woken.push(b);
    }

    /// Frees a durable patch. Adds empty patches that may be durable now to `empties`.
    fn forget(&mut self, slot: u32, empties: &mut SmallVec<[u32; 8]>) {
        debug_assert_eq!(self.patches[slot as usize].befores, NONE, "P2");
        while let Some(edge) = self.first_after(slot) {
            let after = self.edges[edge as usize].after();
            self.unlink(edge);
            self.sub_unmet_foreign(after);
            if self.patches[after as usize].is_empty() {
                empties.push(after);
            } else {
                self.recheck(after);
            }
        }
        self.free(slot);
    }

    /// Frees a pending patch that waits for nothing and need not be written. Adds empty
    /// patches that may be durable now to `empties`.
    pub(super) fn discard(&mut self, slot: u32, empties: &mut SmallVec<[u32; 8]>) {
        while let Some(edge) = self.first_after(slot) {
            let after = self.edges[edge as usize].after();
            self.drop_edge(edge);
            if self.patches[after as usize].is_empty() {
                empties.push(after);
            }
        }
        self.detach(slot);
        self.free(slot);
    }

    pub(super) fn commit_empties(&mut self, mut slots: SmallVec<[u32; 8]>) {
        while let Some(slot) = slots.pop() {
            let patch = &self.patches[slot as usize];
            let done = patch.state == State::Pending && patch.is_empty() && !patch.held;
            if done && patch.unmet_foreign == 0 {
                self.forget(slot, &mut slots);
            }
        }
    }

    /// One item for each patch of a block and for each of their edges: the block of the edge's
    /// before. `None` for the patch itself, for an empty before, and for this block.
    pub(crate) fn blocks_before(&self, b: BlockSlot) -> impl Iterator<Item = Option<BlockSlot>> {
        let some = |slot: u32| Some(slot).filter(|slot| *slot != NONE);
        let next = move |at: &u32| some(self.patches[*at as usize].newer);
        let elsewhere = move |before: &BlockSlot| *before != b && before.0 != NONE;
        std::iter::successors(some(self.block(b).oldest), next).flat_map(move |slot| {
            let befores = self
                .befores(slot)
                .map(|e| self.patches[e.before as usize].block);
            std::iter::once(None).chain(befores.map(move |before| Some(before).filter(elsewhere)))
        })
    }

    /// The patches with data that these patches wait for, themselves included.
    pub(crate) fn closure(&mut self, ids: &[PatchId]) -> Vec<PatchId> {
        let mut todo: Vec<u32> = ids.iter().filter_map(|id| self.resolve(*id)).collect();
        let mut patches = Vec::new();
        let search = self.next_search();
        self.stats.visited += ids.len() as u64;
        while let Some(slot) = todo.pop() {
            if std::mem::replace(&mut self.patches[slot as usize].seen, search) == search {
                continue;
            }
            self.stats.visited += 1;
            let patch = &self.patches[slot as usize];
            if !patch.is_empty() {
                patches.push(PatchId::of(slot, patch));
            }
            todo.extend(self.befores(slot).map(|e| e.before));
        }
        patches
    }

    /// Counts patches that a sync has visited.
    pub(crate) fn looked_at(&mut self, patches: usize) {
        self.stats.visited += patches as u64;
    }

    /// The block of a patch that is not durable, unless the patch is empty.
    pub(crate) fn block_of(&self, id: PatchId) -> Option<BlockSlot> {
        let patch = &self.patches[self.resolve(id)? as usize];
        Some(patch.block).filter(|block| block.0 != NONE)
    }

    /// Every patch that is not durable.
    pub(crate) fn all(&self) -> Vec<PatchId> {
        let open = |p: &&Patch| matches!(p.state, State::Pending | State::Issued);
        let slots = self.patches.iter().enumerate().filter(|(_, p)| open(p));
        slots.map(|(slot, p)| PatchId::of(slot as u32, p)).collect()
    }

    /// Starts a search. Returns its number, which no patch has yet.
    pub(super) fn next_search(&mut self) -> u32 {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            self.patches.iter_mut().for_each(|p| p.seen = 0);
            self.search = 1;
        }
        self.search
    }
}
