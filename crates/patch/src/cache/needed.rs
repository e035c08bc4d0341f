//! The blocks that a sync still needs to be written.
//!
//! A sync walks the graph once. From then on the cache reports each block that becomes ready.
//! So the cost of a wave depends on what it writes, not on all that the sync waits for.

use super::core::Queue;
use crate::PatchId;
use crate::graph::{Addr, BlockSlot, Graph};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The blocks that a sync needs, and those of them that are ready.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// The blocks, each with the patches that must become durable.
    blocks: HashMap<BlockSlot, SmallVec<[PatchId; 2]>>,
    /// Blocks that can be written whole, in the order of the device. Blocks that a wave has
    /// written since may still be here.
    whole: BTreeMap<Addr, BlockSlot>,
    /// Blocks that can be written in part, as for `whole`.
    partial: BTreeMap<Addr, BlockSlot>,
}

impl Needed {
    /// The blocks of these patches and of all that they wait for.
    pub(super) fn new(graph: &mut Graph, ids: &[PatchId]) -> Self {
        let mut needed = Self::default();
        for id in graph.closure(ids) {
            if let Some(slot) = graph.block_of(id) {
                needed.blocks.entry(slot).or_default().push(id);
            }
        }
        for &slot in needed.blocks.keys() {
            let block = graph.block(slot);
            match Queue::of(block) {
                Queue::None => {}
                Queue::Whole => drop(needed.whole.insert(block.addr, slot)),
                Queue::Partial => drop(needed.partial.insert(block.addr, slot)),
            }
        }
        needed
    }

    /// Whether any block can be written.
    pub(super) fn is_ready(&self) -> bool {
        !self.whole.is_empty() || !self.partial.is_empty()
    }

    /// Records that a block of the cache moved to this queue.
    pub(super) fn moved(&mut self, slot: BlockSlot, addr: Addr, queue: Queue) {
        if !self.blocks.contains_key(&slot) {
            return;
        }
        self.whole.remove(&addr);
        self.partial.remove(&addr);
        match queue {
            Queue::None => {}
            Queue::Whole => drop(self.whole.insert(addr, slot)),
            Queue::Partial => drop(self.partial.insert(addr, slot)),
        }
    }

    /// Removes and returns the next whole block that holds a needed patch.
    pub(super) fn next_whole(&mut self, graph: &mut Graph) -> Option<BlockSlot> {
        while let Some((_, slot)) = self.whole.pop_first() {
            if self.is_needed(graph, slot) {
                return Some(slot);
            }
        }
        None
    }

    /// All partial blocks that hold a needed patch.
    pub(super) fn all_partial(&mut self, graph: &mut Graph) -> Vec<BlockSlot> {
        let mut partial = std::mem::take(&mut self.partial);
        partial.retain(|_, slot| self.is_needed(graph, *slot));
        self.partial = partial;
        self.partial.values().copied().collect()
    }

    /// Whether a block still holds a needed patch. The slot may have a new block by now.
    fn is_needed(&mut self, graph: &mut Graph, slot: BlockSlot) -> bool {
        let Some(patches) = self.blocks.get_mut(&slot) else {
            return false;
        };
        graph.looked_at(patches.len());
        patches.retain(|id| graph.block_of(*id) == Some(slot));
        if patches.is_empty() {
            self.blocks.remove(&slot);
            return false;
        }
        true
    }
}
