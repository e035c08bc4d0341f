//! The patch graph: every change that is not durable yet, and the changes that must be durable
//! before it.
//!
//! # Guarantees
//! [`Graph::verify`] checks P1 to P6, and asserts cite the numbers.
//!
//! - **P1** *Acyclic.* Edges never form a cycle. A patch gets its befores when it is made, and
//!   a merge adds none that waits for the patch.
//! - **P2** *Closed writes.* Each patch that [`Graph::issue`] writes has its befores on the
//!   medium or in the same write (`dep[F_B]` within `C` and `F_B`).
//! - **P3** *A hard patch is never left out of a write.* No hard patch is the head of a block-level cycle
//!   (a chain that leaves its block and comes back), so no write must leave it out. A block
//!   has at most one pending hard patch, and all its other pending patches depend on it.
//! - **P4** *Counts.* `unmet_*`, `external`, `held_back`, `pending`, `issued`, `live` and the
//!   ready lists equal a recount (`live` may stay true too long).
//! - **P5** *Commits only.* A patch is freed only when its write is durable; an empty patch,
//!   when all its befores are durable and it is not held.
//! - **P6** *Lanes.* See `lanes`.
//! - **P7** *Levels.* A patch with data has a level above those of its befores on other blocks,
//!   as they were when it got them. So a level bounds the length of a chain of befores, unless
//!   a patch that others waited for has joined a higher one.
//!
//! The names are those of sections 2.1 and 2.2 of the Featherstitch chapter.

mod draw;
mod edges;
mod lanes;
mod merge;
mod parts;
#[cfg(test)]
mod tests;
mod verify;
mod writing;

pub(crate) use parts::{Addr, Block, BlockSlot, State};

/// Bytes of a patch in memory, without its undo data.
pub(crate) const PATCH_BYTES: u64 = (size_of::<Patch>() + size_of::<u8>()) as u64;
/// Bytes of an edge in memory.
pub(crate) const EDGE_BYTES: u64 = size_of::<Edge>() as u64;

use parts::{Edge, NONE, Patch, Undo};

use crate::seeded::{Bug, hit};
use crate::stats::Stats;
use crate::{Before, Change, Optimise, PatchId, Patched};
use medium::Rule;
use medium::block::Buffer;
use slab::Slab;
use smallvec::SmallVec;
use std::sync::Arc;

/// The level of order at which a patch is written back: its sync takes a flush for each level.
pub(crate) const MOST_LEVELS: u8 = 64;

/// Befores as slots.
type Slots = SmallVec<[(u32, Rule); 4]>;

/// How a patch's befores lead to a block's pending patches, through empty patches only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Not,
    Free,
    /// By a path with a held patch.
    Held,
}

/// All patches that are not durable, their edges, and the cached blocks.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    patches: Vec<Patch>,
    /// The level of each patch (P7), at most `u8::MAX`.
    levels: Vec<u8>,
    /// The last patch raised to [`MOST_LEVELS`] or above since [`Graph::take_deep`].
    deep: Option<PatchId>,
    free_patches: Vec<u32>,
    edges: Vec<Edge>,
    free_edges: Vec<u32>,
    blocks: Vec<Option<Block>>,
    free_blocks: Vec<u32>,
    optimise: Optimise,
    /// Undo data of more than 8 bytes.
    saved: Slab<Vec<u8>>,
    stats: Stats,
    /// Number of the last search; see [`Patch::seen`].
    search: u32,
    /// Blocks whose readiness may have changed.
    woken: Vec<BlockSlot>,
}

impl Graph {
    pub(crate) fn new(optimise: Optimise) -> Self {
        Self {
            optimise,
            ..Self::default()
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn optimise(&self) -> Optimise {
        self.optimise
    }

    // --- blocks -------------------------------------------------------------------

    pub(crate) fn add_block(&mut self, addr: Addr, data: Arc<Buffer>) -> BlockSlot {
        let block = Some(Block {
            addr,
            data,
            oldest: NONE,
            newest: NONE,
            pending: 0,
            issued: 0,
            ready: Vec::new(),
            hard: NONE,
            external: 0,
            held_back: 0,
            lanes: None,
        });
        if let Some(slot) = self.free_blocks.pop() {
            self.blocks[slot as usize] = block;
            return BlockSlot(slot);
        }
        self.blocks.push(block);
        BlockSlot((self.blocks.len() - 1) as u32)
    }

    /// Removes a clean block.
    pub(crate) fn remove_block(&mut self, b: BlockSlot) {
        assert!(!self.block(b).is_dirty(), "only clean blocks are evicted");
        self.blocks[b.0 as usize] = None;
        self.free_blocks.push(b.0);
    }

    pub(crate) fn block(&self, b: BlockSlot) -> &Block {
        self.blocks[b.0 as usize].as_ref().expect("a block in use")
    }

    fn block_mut(&mut self, b: BlockSlot) -> &mut Block {
        self.blocks[b.0 as usize].as_mut().expect("a block in use")
    }

    /// Removes and returns a block whose readiness may have changed.
    pub(crate) fn next_woken(&mut self) -> Option<BlockSlot> {
        self.woken.pop()
    }

    // --- making patches -----------------------------------------------------------

    /// Changes a block. The caller has checked that the change is within the block.
    pub(crate) fn change(
        &mut self,
        b: BlockSlot,
        change: Change<'_>,
        befores: &[Before],
    ) -> Patched {
        let befores = self.resolve_befores(b, befores);
        let hard = self.can_be_hard(b, &befores);
        let (slot, merged) = match self.join_existing(b, change, &befores, hard) {
            Some(slot) => (slot, true),
            None => (self.make(b, change, &befores, hard), false),
        };
        self.apply(b, change);
        self.stats.changes += 1;
        self.woken.push(b);
        Patched {
            id: PatchId::of(slot, &self.patches[slot as usize]),
            merged,
        }
    }

    /// Makes an empty patch. A held one does not commit before [`Graph::release`].
    pub(crate) fn empty(&mut self, befores: &[Before], held: bool) -> PatchId {
        let befores: Slots = self.resolve_all(befores);
        if befores.is_empty() && !held {
            return PatchId::DURABLE;
        }
        if !held && let Some(same) = self.same_empty(&befores) {
            return self.id_of(same);
        }
        let slot = self.new_patch(BlockSlot(NONE), 0, 1, Undo::Empty);
        self.patches[slot as usize].held = held;
        for (before, rule) in befores {
            self.link(slot, before, rule);
        }
        PatchId::of(slot, &self.patches[slot as usize])
    }

    /// The empty patch among these befores that waits for all others of them, so that a new one
    /// would commit with it. Otherwise many barriers between changes of one block would make a
    /// chain of empty patches, which each change of the block would walk.
    fn same_empty(&self, befores: &Slots) -> Option<u32> {
        let slots = || befores.iter().map(|&(slot, _)| slot);
        let mut empties = slots().filter(|&slot| {
            let patch = &self.patches[slot as usize];
            patch.is_empty() && !patch.held
        });
        let last = empties.next_back()?;
        let waits = |slot| slot == last || self.depends_directly(last, slot);
        slots().all(waits).then_some(last)
    }

    /// Replaces the befores of a held empty patch. The caller ensures that no block-level
    /// cycle arises; `verify` detects one.
    pub(crate) fn set_befores(&mut self, empty: PatchId, befores: &[Before]) {
        let Some(slot) = self.resolve(empty) else {
            return;
        };
        assert!(
            self.patches[slot as usize].is_empty() && self.patches[slot as usize].held,
            "only held empty patches gain befores"
        );
        while let Some(edge) = self.first_before(slot) {
            self.drop_edge(edge);
        }
        for (before, rule) in self.resolve_all(befores) {
            self.link(slot, before, rule);
        }
    }

    /// Adds a before to a held empty patch. As for `set_befores`, the caller ensures that no
    /// cycle arises; [`Graph::waits_for`] finds one.
    pub(crate) fn add_before(&mut self, empty: PatchId, before: Before) {
        if let (Some(slot), Some(first)) = (self.resolve(empty), self.resolve(before.patch)) {
            let patch = &self.patches[slot as usize];
            assert!(
                patch.is_empty() && patch.held,
                "only held empty patches gain befores"
            );
            if !self.depends_directly(slot, first) {
                self.link(slot, first, before.rule);
            }
        }
    }

    /// Whether any of these patches is `before` or waits for it.
    pub(crate) fn waits_for(&mut self, ids: &[PatchId], before: PatchId) -> bool {
        let Some(before) = self.resolve(before) else {
            return false;
        };
        let mut todo: Vec<u32> = ids.iter().filter_map(|id| self.resolve(*id)).collect();
        let search = self.next_search();
        self.stats.visited += ids.len() as u64;
        while let Some(slot) = todo.pop() {
            if slot == before {
                return true;
            }
            if std::mem::replace(&mut self.patches[slot as usize].seen, search) != search {
                self.stats.visited += 1;
                todo.extend(self.befores(slot).map(|e| e.before));
            }
        }
        false
    }

    /// Lets a held empty patch commit once its befores have committed.
    pub(crate) fn release(&mut self, empty: PatchId) {
        let Some(slot) = self.resolve(empty) else {
            return;
        };
        self.patches[slot as usize].held = false;
        self.commit_empties(SmallVec::from_slice(&[slot]));
    }

    /// Cancels all pending changes of a block whose contents are not needed. Their afters now
    /// wait for their befores. The cached bytes do not change.
    pub(crate) fn cancel(&mut self, b: BlockSlot) {
        let mut done = SmallVec::new();
        let mut at = self.block(b).oldest;
        while at != NONE {
            let next = self.patches[at as usize].newer;
            if self.patches[at as usize].state == State::Pending {
                match self.first_before(at) {
                    None => self.discard(at, &mut done),
                    Some(_) => {
                        self.make_empty(at);
                        done.push(at);
                    }
                }
            }
            at = next;
        }
        self.commit_empties(done);
        self.woken.push(b);
    }

    fn make(&mut self, b: BlockSlot, change: Change<'_>, befores: &Slots, hard: bool) -> u32 {
        let (at, len) = extent(change);
        let overlaps = self.overlaps(b, change);
        let slot = if hard {
            let whole = self.block(b).data.len() as u32;
            let slot = self.new_patch(b, 0, whole, Undo::Hard);
            self.block_mut(b).hard = slot;
            slot
        } else {
            let undo = self.save(b, change);
            self.new_patch(b, at, at + len, undo)
        };
        for &(before, rule) in befores {
            self.link(slot, before, rule);
        }
        for before in overlaps {
            if !self.depends_directly(slot, before) {
                self.link(slot, before, Rule::Overlap);
            }
        }
        self.recheck(slot);
        slot
    }

    /// Whether a new patch cannot be the head of a block-level cycle, now or later (2.2.1). No
    /// patch elsewhere waits for a pending patch of this block, and no before is a held empty
    /// patch that waits for it.
    fn can_be_hard(&mut self, b: BlockSlot, befores: &Slots) -> bool {
        self.optimise.hard
            && (self.block(b).external == 0 || hit(Bug::HardInCycle))
            && !befores
                .iter()
                .any(|&(before, _)| self.reach(before, b) == Reach::Held)
    }

    /// The undo data of a change that is about to be made.
    fn save(&mut self, b: BlockSlot, change: Change<'_>) -> Undo {
        match change {
            Change::Flip { mask, .. } => Undo::Bits {
                flip: mask,
                touched: mask,
            },
            Change::Bytes { at, bytes } => {
                let at = at as usize;
                let block = self.blocks[b.0 as usize].as_ref().expect("a block in use");
                undo_of(&mut self.saved, block.data[at..at + bytes.len()].to_vec())
            }
        }
    }

    /// Frees the undo data of a patch; `instead` replaces it.
    fn drop_undo(&mut self, slot: u32, instead: Undo) {
        let patch = &mut self.patches[slot as usize];
        self.stats.undo_shrunk(patch.undo_bytes());
        if let Undo::Saved(index) = std::mem::replace(&mut patch.undo, instead) {
            self.saved.remove(index as usize);
        }
    }

    fn apply(&mut self, b: BlockSlot, change: Change<'_>) {
        let data = &mut self.block_mut(b).data;
        match change {
            Change::Bytes { at: 0, bytes } if bytes.len() == data.len() => {
                // Do not copy bytes that are about to be overwritten.
                match Arc::get_mut(data) {
                    Some(buffer) => buffer.copy_from_slice(bytes),
                    None => *data = Arc::new(Buffer::from_slice(bytes)),
                }
            }
            Change::Bytes { at, bytes } => {
                let at = at as usize;
                Arc::make_mut(data)[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Change::Flip { at, mask } => flip(&mut Arc::make_mut(data)[..], at, mask),
        }
    }

    fn new_patch(&mut self, block: BlockSlot, from: u32, to: u32, undo: Undo) -> u32 {
        let slot = self.free_patches.pop().unwrap_or_else(|| {
            self.patches.push(Patch::vacant(1));
            self.levels.push(0);
            (self.patches.len() - 1) as u32
        });
        self.levels[slot as usize] = 0;
        let patch = &mut self.patches[slot as usize];
        *patch = Patch::vacant(patch.generation);
        (patch.state, patch.block, patch.undo) = (State::Pending, block, undo);
        patch.set_extent(from, to);
        let undo_bytes = patch.undo_bytes();
        let hard = patch.is_hard();
        self.stats.made(undo_bytes, hard, block.0 == NONE);
        if block.0 != NONE {
            self.append(block, slot);
        }
        slot
    }

    /// Appends a new patch to its block's list.
    fn append(&mut self, b: BlockSlot, slot: u32) {
        let newest = self.block(b).newest;
        self.patches[slot as usize].older = newest;
        let block = self.block_mut(b);
        block.newest = slot;
        block.pending += 1;
        if newest == NONE {
            block.oldest = slot;
        } else {
            self.patches[newest as usize].newer = slot;
        }
        self.put_into_lanes(b, slot);
    }

    /// Removes a patch from its block's lists. Its edges stay.
    fn detach(&mut self, slot: u32) {
        let patch = &mut self.patches[slot as usize];
        let (b, older, newer, ready) = (patch.block, patch.older, patch.newer, patch.ready);
        let (state, waits) = (patch.state, patch.unmet_foreign > 0);
        patch.ready = false;
        let block = self.blocks[b.0 as usize].as_mut().expect("a block in use");
        match state {
            State::Pending => block.pending -= 1,
            State::Issued => block.issued -= 1,
            State::Free | State::Moved => unreachable!("not on a block"),
        }
        if state == State::Pending && waits {
            block.held_back -= 1;
        }
        if ready {
            block.ready.retain(|&other| other != slot);
        }
        if block.hard == slot {
            block.hard = NONE;
        }
        match older {
            NONE => block.oldest = newer,
            _ => self.patches[older as usize].newer = newer,
        }
        match newer {
            NONE => self.block_mut(b).newest = older,
            _ => self.patches[newer as usize].older = older,
        }
        self.take_from_lanes(b, slot);
    }

    /// Frees a patch that has no edges, and those that were merged into it.
    fn free(&mut self, slot: u32) {
        let mut doomed: SmallVec<[u32; 8]> = SmallVec::from_slice(&[slot]);
        while let Some(slot) = doomed.pop() {
            let mut moved = self.patches[slot as usize].first_moved;
            while moved != NONE {
                doomed.push(moved);
                moved = *self.patches[moved as usize].next_moved();
            }
            self.drop_undo(slot, Undo::Empty);
            self.stats.freed();
            let patch = &mut self.patches[slot as usize];
            *patch = Patch::vacant(patch.generation.wrapping_add(1).max(1));
            self.free_patches.push(slot);
        }
    }

    // --- ids ----------------------------------------------------------------------

    /// The slot of the patch to which an id refers, unless it is durable.
    fn resolve(&self, id: PatchId) -> Option<u32> {
        let mut slot = id.slot;
        let mut patch = self.patches.get(slot as usize)?;
        if patch.generation != id.generation || patch.state == State::Free {
            return None;
        }
        while patch.state == State::Moved {
            slot = patch.newer;
            patch = &self.patches[slot as usize];
        }
        Some(slot)
    }

    /// Whether the patch is not durable yet.
    pub(crate) fn is_pending(&self, id: PatchId) -> bool {
        self.resolve(id).is_some()
    }

    /// The state of a patch; `Free` if it is durable or was cancelled.
    pub(crate) fn state(&self, id: PatchId) -> State {
        let slot = self.resolve(id);
        slot.map_or(State::Free, |slot| self.patches[slot as usize].state)
    }

    /// The slots of befores that are not durable, each once: there may be thousands.
    fn resolve_all(&mut self, befores: &[Before]) -> Slots {
        let search = self.next_search();
        let mut slots = Slots::new();
        for before in befores {
            if let Some(slot) = self.resolve(before.patch)
                && std::mem::replace(&mut self.patches[slot as usize].seen, search) != search
            {
                slots.push((slot, before.rule));
            }
        }
        slots
    }

    /// As `resolve_all`, without issued patches of `b`, for which a new patch there need not
    /// wait.
    fn resolve_befores(&mut self, b: BlockSlot, befores: &[Before]) -> Slots {
        let mut slots = self.resolve_all(befores);
        slots.retain(|(slot, _)| {
            let patch = &self.patches[*slot as usize];
            !(patch.block == b && patch.state == State::Issued)
        });
        slots
    }
}

fn is_same_block(a: &Patch, b: &Patch) -> bool {
    a.block == b.block && a.block.0 != NONE
}

/// The bytes that a change covers: offset and length.
fn extent(change: Change<'_>) -> (u32, u32) {
    match change {
        Change::Bytes { at, bytes } => (at, bytes.len() as u32),
        Change::Flip { at, .. } => (at, 4),
    }
}

fn undo_of(saved: &mut Slab<Vec<u8>>, bytes: Vec<u8>) -> Undo {
    if bytes.len() <= 8 {
        let mut small = [0; 8];
        small[..bytes.len()].copy_from_slice(&bytes);
        Undo::Small(small)
    } else {
        Undo::Saved(saved.insert(bytes) as u32)
    }
}

fn flip(data: &mut [u8], at: u32, mask: u32) {
    let at = at as usize;
    for (byte, mask) in data[at..at + 4].iter_mut().zip(mask.to_le_bytes()) {
        *byte ^= mask;
    }
}
