//! Edges between patches, and the counts that depend on them (P4).

use super::parts::{Edge, NONE, State};
use super::{Graph, MOST_LEVELS, is_same_block};
use crate::{PatchId, Rule};
use smallvec::SmallVec;

impl Graph {
    /// Makes `after` wait for `before`.
    pub(super) fn link(&mut self, after: u32, before: u32, rule: Rule) {
        debug_assert_ne!(after, before, "P1");
        let (a, b) = (
            &self.patches[after as usize],
            &self.patches[before as usize],
        );
        let same = is_same_block(a, b);
        if same && b.state == State::Issued {
            return; // the block is written again only after that write has ended
        }
        if !same && self.waits_through_another(after, before) {
            return;
        }
        let edge = Edge {
            next_before: a.befores,
            next_after: b.afters,
            ..Edge::new(after, before, rule)
        };
        let (next_before, next_after) = (edge.next_before, edge.next_after);
        let index = match self.free_edges.pop() {
            Some(index) => {
                self.edges[index as usize] = edge;
                index
            }
            None => {
                self.edges.push(edge);
                (self.edges.len() - 1) as u32
            }
        };
        if next_before != NONE {
            self.edges[next_before as usize].prev_before = index;
        }
        if next_after != NONE {
            self.edges[next_after as usize].prev_after = index;
        }
        self.patches[after as usize].befores = index;
        self.patches[before as usize].afters = index;
        self.stats.linked();
        if same {
            self.patches[after as usize].unmet_same += 1;
        } else {
            self.add_unmet_foreign(after);
            self.count_external(after, before);
        }
        self.raise(after, before, same);
        self.recheck(after);
    }

    /// Raises a patch to the level that a new before requires (P7). Its afters keep their
    /// levels: usually there are none yet.
    fn raise(&mut self, after: u32, before: u32, same: bool) {
        let step = u8::from(!same && !self.patches[before as usize].is_empty());
        let level = self.levels[before as usize].saturating_add(step);
        if level > self.levels[after as usize] {
            self.levels[after as usize] = level;
            if level >= MOST_LEVELS {
                self.deep = Some(self.id_of(after));
            }
        }
    }

    /// Returns once the last patch that was raised to [`MOST_LEVELS`] or more.
    pub(crate) fn take_deep(&mut self) -> Option<PatchId> {
        self.deep.take()
    }

    /// Removes an edge from both lists. Changes no counts.
    pub(super) fn unlink(&mut self, index: u32) {
        let e = &self.edges[index as usize];
        let (after, before) = (e.after(), e.before);
        let (prev_before, next_before) = (e.prev_before, e.next_before);
        let (prev_after, next_after) = (e.prev_after, e.next_after);
        match prev_before {
            NONE => self.patches[after as usize].befores = next_before,
            _ => self.edges[prev_before as usize].next_before = next_before,
        }
        if next_before != NONE {
            self.edges[next_before as usize].prev_before = prev_before;
        }
        match prev_after {
            NONE => self.patches[before as usize].afters = next_after,
            _ => self.edges[prev_after as usize].next_after = next_after,
        }
        if next_after != NONE {
            self.edges[next_after as usize].prev_after = prev_after;
        }
        self.free_edges.push(index);
        self.stats.unlinked();
    }

    /// Removes an edge although its before is not durable, and adjusts the counts.
    pub(super) fn drop_edge(&mut self, index: u32) {
        let (after, before) = (
            self.edges[index as usize].after(),
            self.edges[index as usize].before,
        );
        if is_same_block(
            &self.patches[after as usize],
            &self.patches[before as usize],
        ) {
            self.patches[after as usize].unmet_same -= 1;
        } else {
            self.sub_unmet_foreign(after);
            if self.counts_external(after, before) {
                let b = self.patches[before as usize].block;
                self.block_mut(b).external -= 1;
            }
        }
        self.unlink(index);
        self.recheck(after);
    }

    fn add_unmet_foreign(&mut self, slot: u32) {
        let patch = &mut self.patches[slot as usize];
        patch.unmet_foreign += 1;
        if patch.unmet_foreign == 1 && patch.state == State::Pending && !patch.is_empty() {
            let b = patch.block;
            self.block_mut(b).held_back += 1;
            self.woken.push(b);
        }
    }

    pub(super) fn sub_unmet_foreign(&mut self, slot: u32) {
        let patch = &mut self.patches[slot as usize];
        patch.unmet_foreign -= 1;
        if patch.unmet_foreign == 0 && patch.state == State::Pending && !patch.is_empty() {
            let b = patch.block;
            self.block_mut(b).held_back -= 1;
            self.woken.push(b);
        }
    }

    /// Whether the `external` count of the before's block includes this edge.
    pub(super) fn counts_external(&self, after: u32, before: u32) -> bool {
        let (a, b) = (
            &self.patches[after as usize],
            &self.patches[before as usize],
        );
        b.state == State::Pending
            && !b.is_empty()
            && (a.live || !a.is_empty())
            && !is_same_block(a, b)
    }

    /// Counts a new edge in `external`. If it makes an empty before live, also counts the edges
    /// of that one.
    fn count_external(&mut self, after: u32, before: u32) {
        let mut edges: SmallVec<[(u32, u32); 8]> = SmallVec::from_slice(&[(after, before)]);
        while let Some((after, before)) = edges.pop() {
            if self.counts_external(after, before) {
                let b = self.patches[before as usize].block;
                self.block_mut(b).external += 1;
                continue;
            }
            let live = {
                let a = &self.patches[after as usize];
                a.live || !a.is_empty()
            };
            let b = &mut self.patches[before as usize];
            if live && b.is_empty() && !b.live {
                b.live = true;
                edges.extend(self.befores(before).map(|e| (before, e.before)));
            }
        }
    }

    pub(super) fn befores(&self, slot: u32) -> impl Iterator<Item = &Edge> {
        let first = self.patches[slot as usize].befores;
        std::iter::successors(self.edges.get(first as usize), |e| {
            self.edges.get(e.next_before as usize)
        })
    }

    pub(super) fn afters(&self, slot: u32) -> impl Iterator<Item = &Edge> {
        let first = self.patches[slot as usize].afters;
        std::iter::successors(self.edges.get(first as usize), |e| {
            self.edges.get(e.next_after as usize)
        })
    }

    pub(super) fn first_before(&self, slot: u32) -> Option<u32> {
        Some(self.patches[slot as usize].befores).filter(|&edge| edge != NONE)
    }

    pub(super) fn first_after(&self, slot: u32) -> Option<u32> {
        Some(self.patches[slot as usize].afters).filter(|&edge| edge != NONE)
    }

    /// Whether an edge would be redundant: `after` waits for one of the first afters of
    /// `before`. Empty patches do not count, since their befores can change. Patches of the
    /// block of `before` do not count, since they stop waiting once `before` is issued.
    fn waits_through_another(&self, after: u32, before: u32) -> bool {
        const FIRST: usize = 2;
        let block = self.patches[before as usize].block;
        self.afters(before).take(FIRST).any(|e| {
            let between = &self.patches[e.after() as usize];
            let lasts = !between.is_empty() && between.block != block;
            lasts && e.after() != after && self.depends_directly(after, e.after())
        })
    }

    pub(super) fn depends_directly(&self, after: u32, before: u32) -> bool {
        // An edge is on both lists, so the search ends with the shorter one.
        let mut lists = self.befores(after).zip(self.afters(before));
        lists.any(|(e, f)| e.before == before || f.after() == after)
    }
}
