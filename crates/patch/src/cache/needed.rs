//! What a sync has still to see written.
//!
//! The graph is walked once. From then on the cache reports each block that becomes ready, so
//! that a wave costs what it writes, whatever else the sync waits for.

use super::core::Queue;
use crate::PatchId;
use crate::graph::{Addr, BlockSlot, Graph};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// Blocks, with those of their patches that must be durable.
    blocks: HashMap<BlockSlot, SmallVec<[PatchId; 2]>>,
    /// Those that can be written whole and in part, in the order of the device. One that was
    /// written since, by this sync or another wave, may still be here.
    whole: BTreeMap<Addr, BlockSlot>,
    partial: BTreeMap<Addr, BlockSlot>,
}

impl Needed {
    /// All that these patches wait for, themselves included.
    pub fn new(graph: &mut Graph, ids: &[PatchId]) -> Self {
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
    pub fn is_ready(&self) -> bool {
        !self.whole.is_empty() || !self.partial.is_empty()
    }

    /// Notes that a block of the cache is in this queue now.
    pub fn moved(&mut self, slot: BlockSlot, addr: Addr, queue: Queue) {
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

    /// The next block that can be written whole, and holds a patch that is needed.
    pub fn next_whole(&mut self, graph: &mut Graph) -> Option<BlockSlot> {
        while let Some((_, slot)) = self.whole.pop_first() {
            if self.is_needed(graph, slot) {
                return Some(slot);
            }
        }
        None
    }

    /// All blocks that can be written in part, and hold a patch that is needed.
    pub fn all_partial(&mut self, graph: &mut Graph) -> Vec<BlockSlot> {
        let mut partial = std::mem::take(&mut self.partial);
        partial.retain(|_, slot| self.is_needed(graph, *slot));
        self.partial = partial;
        self.partial.values().copied().collect()
    }

    /// Whether a block still holds a patch that is needed. A slot may be another block's.
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
