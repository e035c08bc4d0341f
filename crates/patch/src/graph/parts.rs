//! The parts of the graph: slots for patches, edges and blocks.

use super::lanes::Lanes;
use crate::PatchId;
use medium::Rule;
use medium::block::{Buffer, Lba};
use std::sync::Arc;

/// The index that stands for no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The address of a block: number of its device, and block number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Addr {
    pub device: u8,
    pub lba: Lba,
}

/// A slot of the block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockSlot(pub u32);

/// The state of a patch's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is free.
    Free,
    /// The patch is in memory only.
    Pending,
    /// A write of the patch's block, with the patch, is under way.
    Issued,
    /// The patch was merged into another one, to which its id now refers.
    Moved,
}

/// The undo data of a patch: what a write without the patch needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Undo {
    /// None: the patch is empty.
    Empty,
    /// None: the patch is hard, and no write leaves it out.
    Hard,
    /// At most 8 old bytes.
    Small([u8; 8]),
    /// The old bytes, in [`Graph::saved`](super::Graph::saved).
    Saved(u32),
    /// Bits of one word: `flip` undoes the change; `touched` are all bits that it ever changed.
    Bits { flip: u32, touched: u32 },
}

/// A slot of the patch table. A cache has many of them, so each byte of its size matters.
#[derive(Debug)]
pub(crate) struct Patch {
    pub generation: u32,
    pub state: State,
    /// An empty patch that must not commit although its befores have committed.
    pub held: bool,
    /// An empty patch for which a change waits, directly or through empty patches.
    pub live: bool,
    /// The patch is on its block's ready list.
    pub ready: bool,
    pub block: BlockSlot,
    /// The first byte that the patch changes; 0 for a hard patch.
    first: u16,
    /// The last byte that the patch changes; for a hard patch, the block's last one.
    last: u16,
    pub undo: Undo,
    /// First edge to a before.
    pub befores: u32,
    /// First edge from an after.
    pub afters: u32,
    /// Number of edges to befores on other blocks and to empty ones.
    pub unmet_foreign: u32,
    /// Number of edges to befores on the same block that are not issued.
    pub unmet_same: u32,
    /// The next older patch of the block. If `Moved`: the next patch that was merged into the
    /// same one.
    pub older: u32,
    /// The next newer patch of the block. If `Moved`: the patch that this one was merged into.
    pub newer: u32,
    /// The first of the patches that were merged into this one.
    pub first_moved: u32,
    /// Number of the last search that visited the patch.
    pub seen: u32,
}

impl Patch {
    pub(crate) fn vacant(generation: u32) -> Self {
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

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.undo, Undo::Empty)
    }

    pub(crate) fn is_hard(&self) -> bool {
        matches!(self.undo, Undo::Hard)
    }

    pub(crate) fn undo_bytes(&self) -> usize {
        match self.undo {
            Undo::Empty | Undo::Hard => 0,
            Undo::Small(_) | Undo::Saved(_) => (self.end() - self.at()) as usize,
            Undo::Bits { .. } => 4,
        }
    }

    /// The first byte that the patch changes.
    pub(crate) fn at(&self) -> u32 {
        self.first.into()
    }

    /// The byte after the last one that the patch changes.
    pub(crate) fn end(&self) -> u32 {
        u32::from(self.last) + 1
    }

    /// Sets the changed range. Blocks have at most 64 KiB.
    pub(crate) fn set_extent(&mut self, from: u32, to: u32) {
        debug_assert!(from < to && to <= 1 << 16);
        (self.first, self.last) = (from as u16, (to - 1) as u16);
    }

    /// The patch that this `Moved` one was merged into.
    pub(crate) fn target(&mut self) -> &mut u32 {
        &mut self.newer
    }

    /// The next patch that was merged into the same one as this `Moved` one.
    pub(crate) fn next_moved(&mut self) -> &mut u32 {
        &mut self.older
    }
}

/// An edge: one patch waits for another. It is on the lists of both patches.
#[derive(Debug)]
pub(crate) struct Edge {
    /// The slot of the after, and in the upper bits the rule.
    pub(super) after_and_rule: u32,
    pub before: u32,
    /// Neighbours in the after's list of befores.
    pub prev_before: u32,
    pub next_before: u32,
    /// Neighbours in the before's list of afters.
    pub prev_after: u32,
    pub next_after: u32,
}

/// Bits of a patch's slot number.
const SLOT_BITS: u32 = u32::BITS - (Rule::ALL.len() - 1).ilog2() - 1;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

impl Edge {
    /// An edge that is on no list yet.
    pub(super) fn new(after: u32, before: u32, rule: Rule) -> Self {
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

    /// The slot of the after.
    pub(super) fn after(&self) -> u32 {
        self.after_and_rule & SLOT_MASK
    }

    /// The reason for the order.
    pub(super) fn rule(&self) -> Rule {
        Rule::ALL[(self.after_and_rule >> SLOT_BITS) as usize]
    }
}

/// A slot of the block table: a cached block and the patches on it.
#[derive(Debug)]
pub(crate) struct Block {
    pub addr: Addr,
    pub data: Arc<Buffer>,
    /// The ends of the list of pending and issued patches, by creation.
    pub oldest: u32,
    pub newest: u32,
    /// Number of pending patches.
    pub pending: u32,
    /// Number of issued patches.
    pub issued: u32,
    /// Pending patches that wait for nothing.
    pub ready: Vec<u32>,
    /// The newest pending hard patch.
    pub hard: u32,
    /// Number of edges from patches of other blocks, or live empty ones, to pending patches
    /// of this block.
    pub external: u32,
    /// Number of pending patches that wait for patches of other blocks or empty ones.
    pub held_back: u32,
    /// An index of the patches by place, if the block has many.
    pub lanes: Option<Lanes>,
}

impl Block {
    pub(crate) fn is_dirty(&self) -> bool {
        self.pending + self.issued > 0
    }

    /// Whether some pending patches can be written now.
    pub(crate) fn is_ready(&self) -> bool {
        self.issued == 0 && !self.ready.is_empty()
    }

    /// Whether all pending patches can be written together.
    pub(crate) fn is_whole(&self) -> bool {
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
