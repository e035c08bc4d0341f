//! Merging: a new change joins an existing patch if both can always be written together
//! (2.2.2 and 2.2.3).

use super::parts::{Edge, NONE, Patch, State, Undo};
use super::{BlockSlot, Graph, Reach, Slots, extent, undo_of};
use crate::{Change, PatchId};
use medium::Rule;
use smallvec::SmallVec;

/// Patches that a search for a cycle visits before it gives up.
const SEARCH_BUDGET: usize = 64;

/// The part of a change that a patch overlaps.
#[derive(PartialEq, Eq)]
enum Cover {
    Not,
    Part,
    Whole,
}

fn cover(patch: &Patch, change: Change<'_>) -> Cover {
    let (from, len) = extent(change);
    if patch.at() >= from + len || from >= patch.end() {
        return Cover::Not;
    }
    let whole = match (&patch.undo, change) {
        (Undo::Bits { touched, .. }, Change::Flip { mask, .. }) => {
            if touched & mask == 0 {
                return Cover::Not;
            }
            touched & mask == mask
        }
        // Flips of other bits of these bytes may be older, and do not wait for each other.
        (Undo::Bits { .. }, Change::Bytes { .. }) => false,
        (Undo::Empty | Undo::Hard | Undo::Small(_) | Undo::Saved(_), _) => {
            patch.at() <= from && from + len <= patch.end()
        }
    };
    if whole { Cover::Whole } else { Cover::Part }
}

impl Graph {
    /// Merges a change into a pending patch of its block, if that is safe. Returns the patch.
    /// The caller applies the data.
    pub(super) fn join_existing(
        &mut self,
        b: BlockSlot,
        change: Change<'_>,
        befores: &Slots,
        hard: bool,
    ) -> Option<u32> {
        if self.block(b).pending == 0 {
            return None;
        }
        if hard {
            let hard = self.harden(b);
            self.absorb(hard, befores);
            if self.optimise.hard_merge {
                self.stats.merged_hard += 1;
            } else {
                self.keep_record(hard);
            }
            return Some(hard);
        }
        if !self.optimise.overlap_merge {
            return None;
        }
        let target = self.overlap_target(b, change, befores)?;
        self.widen(b, target, change);
        for &(before, rule) in befores {
            if before != target && !self.depends_directly(target, before) {
                self.link(target, before, rule);
            }
        }
        self.stats.merged_overlap += 1;
        Some(target)
    }

    /// Merges all pending patches of a block, at least one, into one hard patch. No patch
    /// elsewhere waits for any of them, so none is the head of a block-level cycle (P3).
    fn harden(&mut self, b: BlockSlot) -> u32 {
        let target = self.oldest_pending(b);
        if !self.patches[target as usize].is_hard() {
            self.stats.hardened += 1;
            self.drop_undo(target, Undo::Hard);
            let whole = self.block(b).data.len() as u32;
            self.patches[target as usize].set_extent(0, whole);
            self.widen_in_lanes(b, target);
        }
        let mut at = self.patches[target as usize].newer;
        while at != NONE {
            let next = self.patches[at as usize].newer;
            if self.patches[at as usize].state == State::Pending {
                self.move_into(at, target);
            }
            at = next;
        }
        self.block_mut(b).hard = target;
        self.recheck(target);
        target
    }

    fn oldest_pending(&self, b: BlockSlot) -> u32 {
        let mut at = self.block(b).oldest;
        while self.patches[at as usize].state != State::Pending {
            at = self.patches[at as usize].newer;
        }
        at
    }

    /// Moves the edges of one patch to another of the same block, to which its id refers from
    /// now on.
    fn move_into(&mut self, slot: u32, target: u32) {
        while let Some(edge) = self.first_before(slot) {
            let (before, rule) = (
                self.edges[edge as usize].before,
                self.edges[edge as usize].rule(),
            );
            self.drop_edge(edge);
            let same = self.patches[before as usize].block == self.patches[target as usize].block;
            if !same && !self.depends_directly(target, before) {
                self.link(target, before, rule);
            }
        }
        while let Some(edge) = self.first_after(slot) {
            let (after, rule) = (
                self.edges[edge as usize].after(),
                self.edges[edge as usize].rule(),
            );
            self.drop_edge(edge);
            if after != target && !self.depends_directly(after, target) {
                self.link(after, target, rule);
            }
        }
        self.detach(slot);
        self.drop_undo(slot, Undo::Empty);
        self.hang(slot, target);
    }

    /// Marks `slot` as merged into `target`.
    fn hang(&mut self, slot: u32, target: u32) {
        let first = std::mem::replace(&mut self.patches[target as usize].first_moved, slot);
        let patch = &mut self.patches[slot as usize];
        patch.state = State::Moved;
        *patch.target() = target;
        *patch.next_moved() = first;
    }

    /// Keeps a record of a change, as a patch that is always written with the block's hard
    /// patch. For graphs with merging switched off.
    fn keep_record(&mut self, hard: u32) {
        let block = self.patches[hard as usize].block;
        let end = self.patches[hard as usize].end();
        let slot = self.new_patch(block, 0, end, Undo::Hard);
        self.detach(slot);
        self.hang(slot, hard);
    }

    /// Adds befores to a block's hard patch. An empty before that waits for the block is
    /// replaced by its own befores on other blocks (P1).
    fn absorb(&mut self, hard: u32, befores: &Slots) {
        let b = self.patches[hard as usize].block;
        let mut todo: SmallVec<[(u32, Rule); 8]> = befores.iter().copied().collect();
        while let Some((before, rule)) = todo.pop() {
            if self.patches[before as usize].block == b {
                continue;
            }
            if self.reach(before, b) == Reach::Free {
                todo.extend(self.befores(before).map(|e| (e.before, e.rule())));
            } else if !self.depends_directly(hard, before) {
                self.link(hard, before, rule);
            }
        }
    }

    /// How an empty patch waits for a pending patch of `b`. The search does not follow data
    /// patches elsewhere, since none of them waits for `b`. It starts at the block, because a
    /// commit may wait for thousands of blocks.
    pub(super) fn reach(&mut self, empty: u32, b: BlockSlot) -> Reach {
        if !self.patches[empty as usize].is_empty() || !self.mark_empties_above(b, empty) {
            return Reach::Not;
        }
        // Back from the empty patch, through marked patches only.
        let above = self.search;
        let mut todo: SmallVec<[u32; 16]> = SmallVec::from_slice(&[empty]);
        while let Some(slot) = todo.pop() {
            let patch = &mut self.patches[slot as usize];
            if patch.seen != above || !patch.is_empty() {
                continue;
            }
            if patch.held {
                return Reach::Held;
            }
            patch.seen = 0;
            todo.extend(self.befores(slot).map(|e| e.before));
        }
        Reach::Free
    }

    /// Marks the empty patches that wait for a pending patch of `b`, through empty patches
    /// only. Returns whether `wanted` is one.
    fn mark_empties_above(&mut self, b: BlockSlot, wanted: u32) -> bool {
        if self.block(b).pending == 0 {
            return false;
        }
        let search = self.next_search();
        let mut todo: SmallVec<[u32; 16]> = SmallVec::new();
        let mut at = self.block(b).oldest;
        while at != NONE {
            let patch = &self.patches[at as usize];
            if patch.state == State::Pending {
                todo.push(at);
            }
            at = patch.newer;
        }
        while let Some(slot) = todo.pop() {
            let mut edge = self.patches[slot as usize].afters;
            while edge != NONE {
                let after = self.edges[edge as usize].after();
                edge = self.edges[edge as usize].next_after;
                let patch = &mut self.patches[after as usize];
                if patch.is_empty() && std::mem::replace(&mut patch.seen, search) != search {
                    todo.push(after);
                }
            }
        }
        self.patches[wanted as usize].seen == search
    }

    /// Pending patches of the block that a change overlaps, newest first, without direct
    /// befores of others among them. Of two patches that overlap, the newer waits for the
    /// older, so the search ends at a patch that covers the change. A hard patch covers the
    /// block.
    pub(super) fn overlaps(&mut self, b: BlockSlot, change: Change<'_>) -> SmallVec<[u32; 4]> {
        let search = self.next_search();
        let mut found = SmallVec::new();
        let mut trail = self.trail(b, change);
        while let Some(at) = self.follow(b, &mut trail) {
            let patch = &self.patches[at as usize];
            let waited_for = patch.seen == search;
            let cover = match patch.state {
                State::Pending => cover(patch, change),
                State::Free | State::Issued | State::Moved => Cover::Not,
            };
            if cover != Cover::Not && !waited_for && !found.contains(&at) {
                found.push(at);
            }
            if cover == Cover::Whole {
                // Its befores, possibly thousands, need no marks.
                self.leave(b, &mut trail);
            } else if cover == Cover::Part || waited_for {
                self.mark_befores(at, search);
            }
        }
        found
    }

    /// Marks the direct befores of a patch as visited by a search.
    fn mark_befores(&mut self, slot: u32, search: u32) {
        let mut edge = self.patches[slot as usize].befores;
        while edge != NONE {
            let Edge {
                before,
                next_before,
                ..
            } = self.edges[edge as usize];
            self.patches[before as usize].seen = search;
            edge = next_before;
        }
    }

    /// The patch that the change may join: the only patch that it overlaps or, for a flip, a
    /// patch of the same word.
    fn overlap_target(&mut self, b: BlockSlot, change: Change<'_>, befores: &Slots) -> Option<u32> {
        let overlaps = self.overlaps(b, change);
        if let [only] = overlaps[..]
            && self.can_include(only, change)
            && self.may_join(only, &overlaps, befores)
        {
            return Some(only);
        }
        let Change::Flip { at: word, .. } = change else {
            return None;
        };
        let mut trail = self.trail(b, change);
        while let Some(at) = self.follow(b, &mut trail) {
            let patch = &self.patches[at as usize];
            let same_word = patch.state == State::Pending
                && patch.at() == word
                && matches!(patch.undo, Undo::Bits { .. });
            if same_word && self.may_join(at, &overlaps, befores) {
                return Some(at);
            }
        }
        None
    }

    /// Whether the undo data of `target` can include the change. Bytes and flips join each
    /// other only if the bytes cover the flips' word: otherwise the wider undo data would
    /// include newer changes of the rest of the word.
    fn can_include(&self, target: u32, change: Change<'_>) -> bool {
        let patch = &self.patches[target as usize];
        let (at, len) = extent(change);
        match (change, &patch.undo) {
            (Change::Flip { .. }, Undo::Small(_) | Undo::Saved(_)) => {
                patch.at() <= at && at + len <= patch.end()
            }
            (Change::Bytes { .. }, Undo::Bits { .. }) => {
                at <= patch.at() && patch.end() <= at + len
            }
            (Change::Flip { .. }, Undo::Empty | Undo::Hard | Undo::Bits { .. })
            | (Change::Bytes { .. }, Undo::Empty | Undo::Hard | Undo::Small(_) | Undo::Saved(_)) => {
                true
            }
        }
    }

    /// Whether a change with these befores can join `target` without a cycle, between blocks
    /// or within the block (2.2.3). The answer may be false although there is no cycle.
    fn may_join(&mut self, target: u32, overlaps: &[u32], befores: &Slots) -> bool {
        let block = self.patches[target as usize].block;
        let direct =
            |graph: &Self, before: u32| before == target || graph.depends_directly(target, before);
        if !overlaps.iter().all(|&older| direct(self, older)) {
            return false;
        }
        let mut todo: SmallVec<[u32; 16]> = SmallVec::new();
        for &(before, _) in befores {
            if direct(self, before) {
                continue;
            }
            if self.patches[before as usize].block == block {
                return false;
            }
            todo.push(before);
        }
        let search = self.next_search();
        let mut budget = SEARCH_BUDGET;
        while let Some(slot) = todo.pop() {
            if slot == target || budget == 0 {
                return false;
            }
            if std::mem::replace(&mut self.patches[slot as usize].seen, search) == search {
                continue;
            }
            budget -= 1;
            todo.extend(self.befores(slot).map(|e| e.before));
        }
        true
    }

    /// Extends `target` to cover a change that is about to be applied.
    fn widen(&mut self, b: BlockSlot, target: u32, change: Change<'_>) {
        let (at, len) = extent(change);
        let patch = &mut self.patches[target as usize];
        let (from, to) = (patch.at().min(at), patch.end().max(at + len));
        let same_extent = (from, to) == (patch.at(), patch.end());
        match (&mut patch.undo, change) {
            (Undo::Hard | Undo::Empty, _) => {}
            (Undo::Bits { flip, touched }, Change::Flip { mask, .. }) => {
                *flip ^= mask;
                *touched |= mask;
            }
            (Undo::Small(_) | Undo::Saved(_), _) if same_extent => {}
            (Undo::Bits { .. }, Change::Bytes { .. }) | (Undo::Small(_) | Undo::Saved(_), _) => {
                self.save_more(b, target, from, to);
            }
        }
    }

    /// Extends the undo data of `target` to `from..to` by the block's current bytes.
    fn save_more(&mut self, b: BlockSlot, target: u32, from: u32, to: u32) {
        let patch = &mut self.patches[target as usize];
        let (at, end) = (patch.at(), patch.end());
        let block = self.blocks[b.0 as usize].as_ref().expect("a block in use");
        let mut old = match patch.undo {
            Undo::Small(bytes) => bytes[..(end - at) as usize].to_vec(),
            Undo::Saved(index) => self.saved.remove(index as usize),
            Undo::Bits { flip, .. } => {
                let mut bytes = block.data[at as usize..end as usize].to_vec();
                super::flip(&mut bytes, 0, flip);
                bytes
            }
            Undo::Hard | Undo::Empty => unreachable!("nothing to save"),
        };
        old.extend_from_slice(&block.data[end as usize..to as usize]);
        old.splice(0..0, block.data[from as usize..at as usize].iter().copied());
        self.stats.undo_grown(old.len() - patch.undo_bytes());
        patch.undo = undo_of(&mut self.saved, old);
        patch.set_extent(from, to);
        self.widen_in_lanes(b, target);
    }

    /// Turns a pending patch of a block into an empty one.
    pub(super) fn make_empty(&mut self, slot: u32) {
        let befores: SmallVec<[(u32, Rule); 4]> =
            self.befores(slot).map(|e| (e.before, e.rule())).collect();
        let afters: SmallVec<[(u32, Rule); 4]> =
            self.afters(slot).map(|e| (e.after(), e.rule())).collect();
        while let Some(edge) = self.first_before(slot) {
            self.drop_edge(edge);
        }
        while let Some(edge) = self.first_after(slot) {
            self.drop_edge(edge);
        }
        self.detach(slot);
        self.drop_undo(slot, Undo::Empty);
        self.patches[slot as usize].block = BlockSlot(NONE);
        for (before, rule) in befores {
            self.link(slot, before, rule);
        }
        for (after, rule) in afters {
            self.link(after, slot, rule);
        }
    }

    /// The id of a patch; for messages and drawings.
    pub(super) fn id_of(&self, slot: u32) -> PatchId {
        PatchId::of(slot, &self.patches[slot as usize])
    }
}
