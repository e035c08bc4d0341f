//! Drawings of the graph.

use super::Graph;
use super::parts::{NONE, Patch, State, Undo};
use crate::PatchId;
use crate::draw::{Drawing, DrawnBlock, DrawnEdge, DrawnPatch, Kind};
use std::collections::HashMap;

impl Graph {
    /// A drawing of all patches that are not durable: blocks by address, patches by creation.
    pub(crate) fn draw(&self) -> Drawing {
        let mut dirty: Vec<_> = self.blocks.iter().flatten().collect();
        dirty.retain(|block| block.is_dirty());
        dirty.sort_unstable_by_key(|block| block.addr);
        let mut drawing = Drawing::default();
        let mut numbers = HashMap::new();
        for block in dirty {
            let number = drawing.blocks.len();
            drawing.blocks.push(DrawnBlock {
                device: block.addr.device,
                lba: block.addr.lba.0,
                name: None,
            });
            let mut slot = block.oldest;
            while slot != NONE {
                numbers.insert(slot, drawing.patches.len());
                drawing.patches.push(self.drawn(slot, Some(number)));
                slot = self.patches[slot as usize].newer;
            }
        }
        for (slot, patch) in self.patches.iter().enumerate() {
            if patch.state == State::Pending && patch.is_empty() {
                numbers.insert(slot as u32, drawing.patches.len());
                drawing.patches.push(self.drawn(slot as u32, None));
            }
        }
        let mut by_number: Vec<_> = numbers.iter().map(|(slot, n)| (*n, *slot)).collect();
        by_number.sort_unstable();
        for (after, slot) in by_number {
            drawing
                .edges
                .extend(self.befores(slot).map(|edge| DrawnEdge {
                    after,
                    before: numbers[&edge.before],
                    rule: edge.rule(),
                }));
        }
        drawing
    }

    fn drawn(&self, slot: u32, block: Option<usize>) -> DrawnPatch {
        let patch = &self.patches[slot as usize];
        DrawnPatch {
            id: format!("{:?}", PatchId::of(slot, patch)),
            block,
            kind: kind(patch),
            at: patch.at(),
            len_bytes: patch.end() - patch.at(),
            undo_bytes: patch.undo_bytes(),
            issued: patch.state == State::Issued,
        }
    }
}

fn kind(patch: &Patch) -> Kind {
    match patch.undo {
        Undo::Empty if patch.held => Kind::Held,
        Undo::Empty => Kind::Empty,
        Undo::Hard => Kind::Hard,
        Undo::Small(_) | Undo::Saved(_) => Kind::Bytes,
        Undo::Bits { .. } => Kind::Bits,
    }
}
