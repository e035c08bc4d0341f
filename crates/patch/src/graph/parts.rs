//! What the graph is made of: slots for patches, edges and blocks.

use super::lanes::Lanes;
use crate::PatchId;
use medium::Rule;
use medium::block::{Buffer, Lba};
use std::sync::Arc;

/// "No slot."
pub(crate) const NONE: u32 = u32::MAX;

/// A block: which device of the configuration, and where on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Addr {
    pub device: u8,
    pub lba: Lba,
}

/// A slot of the block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockSlot(pub u32);

/// Where a patch is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is free.
    Free,
    /// In memory only.
    Pending,
    /// On its way to the medium with its block.
    Issued,
    /// Merged into another patch, which its id now means.
    Moved,
}

/// What the patch changes, and what it takes to leave it out of a write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Undo {
    /// Nothing: the patch is empty.
    Empty,
    /// It cannot be left out: a hard patch.
    Hard,
    /// The old bytes, where there are at most 8.
    Small([u8; 8]),
    /// The old bytes, in [`Graph::saved`](super::Graph::saved).
    Saved(u32),
    /// Bits of one word: `flip` undoes it; `touched` are all that ever changed.
    Bits { flip: u32, touched: u32 },
}

/// A slot of the patch table. There is one for each block in use, so each byte counts.
#[derive(Debug)]
pub(crate) struct Patch {
    pub generation: u32,
    pub state: State,
    /// Of an empty patch: must not commit although its befores have.
    pub held: bool,
    /// Of an empty patch: a change waits for it, directly or through empty patches.
    pub live: bool,
    /// On its block's ready list.
    pub ready: bool,
    pub block: BlockSlot,
    /// The first and the last byte that it changes (a hard patch: of the block).
    first: u16,
    last: u16,
    pub undo: Undo,
    /// First edge to a before; first edge from an after.
    pub befores: u32,
    pub afters: u32,
    /// Edges whose before is not durable: on other blocks (or empty), on the same one
    /// and not issued.
    pub unmet_foreign: u32,
    pub unmet_same: u32,
    /// Neighbours on the block, by creation. Of `Moved`: the next one of those that were
    /// moved to the same patch, and the patch that it means now.
    pub older: u32,
    pub newer: u32,
    /// The first of those that were moved here.
    pub first_moved: u32,
    /// The last search that came by.
    pub seen: u32,
}

impl Patch {
    pub fn vacant(generation: u32) -> Self {
        Self {
            generation,
            state: State::Free,
            held: false,
            live: false,
            ready: false,
            block: BlockSlot(NONE),
            first: 0,
            last: 0,
            undo: Undo::Empty,
            befores: NONE,
            afters: NONE,
            unmet_foreign: 0,
            unmet_same: 0,
            older: NONE,
            newer: NONE,
            first_moved: NONE,
            seen: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self.undo, Undo::Empty)
    }

    pub fn is_hard(&self) -> bool {
        matches!(self.undo, Undo::Hard)
    }

    pub fn undo_bytes(&self) -> usize {
        match self.undo {
            Undo::Empty | Undo::Hard => 0,
            Undo::Small(_) | Undo::Saved(_) => (self.end() - self.at()) as usize,
            Undo::Bits { .. } => 4,
        }
    }

    /// The first byte that it changes.
    pub fn at(&self) -> u32 {
        self.first.into()
    }

    /// The byte behind the last one that it changes.
    pub fn end(&self) -> u32 {
        u32::from(self.last) + 1
    }

    /// Blocks have at most 64 KiB.
    pub fn set_extent(&mut self, from: u32, to: u32) {
        debug_assert!(from < to && to <= 1 << 16);
        (self.first, self.last) = (from as u16, (to - 1) as u16);
    }

    /// Of `Moved`: the patch that it means now.
    pub fn target(&mut self) -> &mut u32 {
        &mut self.newer
    }

    /// Of `Moved`: the next one of those that mean the same.
    pub fn next_moved(&mut self) -> &mut u32 {
        &mut self.older
    }
}

/// One patch waits for another. On both patches' lists; there are as many as patches.
#[derive(Debug)]
pub(crate) struct Edge {
    /// Who waits, and in the upper bits, why.
    pub(super) after_and_rule: u32,
    pub before: u32,
    /// Neighbours among the befores of who waits.
    pub prev_before: u32,
    pub next_before: u32,
    /// Neighbours among the afters of `before`.
    pub prev_after: u32,
    pub next_after: u32,
}

/// Bits of a patch's number: no memory holds that many.
const SLOT_BITS: u32 = u32::BITS - (Rule::ALL.len() - 1).ilog2() - 1;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

impl Edge {
    /// Of no lists yet.
    pub fn new(after: u32, before: u32, rule: Rule) -> Self {
        assert!(after <= SLOT_MASK, "too many patches");
        Self {
            after_and_rule: after | (rule as u32) << SLOT_BITS,
            before,
            prev_before: NONE,
            next_before: NONE,
            prev_after: NONE,
            next_after: NONE,
        }
    }

    /// Who waits.
    pub fn after(&self) -> u32 {
        self.after_and_rule & SLOT_MASK
    }

    /// Why.
    pub fn rule(&self) -> Rule {
        Rule::ALL[(self.after_and_rule >> SLOT_BITS) as usize]
    }
}

/// A slot of the block table: a cached block and the patches on it.
#[derive(Debug)]
pub(crate) struct Block {
    pub addr: Addr,
    pub data: Arc<Buffer>,
    /// Patches by creation, pending and issued.
    pub oldest: u32,
    pub newest: u32,
    pub pending: u32,
    pub issued: u32,
    /// Pending patches that could go out now.
    pub ready: Vec<u32>,
    /// The newest pending hard patch.
    pub hard: u32,
    /// Edges from elsewhere (other blocks, live empty patches) to pending patches here.
    pub external: u32,
    /// Pending patches that wait for something elsewhere.
    pub held_back: u32,
    /// Of a block with many patches: where they are.
    pub lanes: Option<Lanes>,
}

impl Block {
    pub fn is_dirty(&self) -> bool {
        self.pending + self.issued > 0
    }

    /// Some pending patches can go out in one write.
    pub fn is_ready(&self) -> bool {
        self.issued == 0 && !self.ready.is_empty()
    }

    /// All of them can.
    pub fn is_whole(&self) -> bool {
        self.held_back == 0
    }
}

impl PatchId {
    pub(crate) fn of(slot: u32, patch: &Patch) -> Self {
        Self {
            slot,
            generation: patch.generation,
        }
    }
}
