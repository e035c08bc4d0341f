//! An index of a block's patches by place, for blocks with many.
//!
//! # Guarantee
//! - **P6** While a block has lanes, each lane lists exactly the block's patches (pending or
//!   issued) that overlap it, each once, in the order of the block's list.

use super::parts::{NONE, Patch};
use super::{BlockSlot, Graph, extent};
use crate::Change;

/// Length of a lane in bytes; a power of two.
const LANE: u32 = if cfg!(test) { 16 } else { 64 };
/// Most pending patches of a block without lanes.
const MANY: u32 = if cfg!(test) { 2 } else { 16 };

/// Patches by the parts of the block that they overlap.
pub(super) type Lanes = Vec<Vec<u32>>;

fn span(patch: &Patch) -> std::ops::RangeInclusive<usize> {
    (patch.at() / LANE) as usize..=((patch.end() - 1) / LANE) as usize
}

/// Most lanes that a search uses; a wider change searches the block's list.
const FEW: usize = 4;

/// The position of a search for patches that a change overlaps.
pub(super) enum Trail {
    /// The next patch on the block's list.
    List(u32),
    /// The current and the last lane, and the number of patches left in the current one.
    Lanes(usize, usize, usize),
}

impl Graph {
    /// Adds a new patch, the last of its block's list, to its lanes.
    pub(super) fn put_into_lanes(&mut self, b: BlockSlot, slot: u32) {
        let block = self.blocks[b.0 as usize].as_mut().expect("a block in use");
        if let Some(lanes) = &mut block.lanes {
            for lane in &mut lanes[span(&self.patches[slot as usize])] {
                lane.push(slot);
            }
        } else if block.pending > MANY {
            let mut lanes = vec![Vec::new(); block.data.len().div_ceil(LANE as usize)];
            let mut at = block.oldest;
            while at != NONE {
                let patch = &self.patches[at as usize];
                lanes[span(patch)].iter_mut().for_each(|lane| lane.push(at));
                at = patch.newer;
            }
            block.lanes = Some(lanes);
        }
    }

    /// Adds a patch that has become wider to its new lanes, in each after the nearest older
    /// patch there.
    pub(super) fn widen_in_lanes(&mut self, b: BlockSlot, slot: u32) {
        let block = self.blocks[b.0 as usize].as_mut().expect("a block in use");
        let Some(lanes) = &mut block.lanes else {
            return;
        };
        for lane in &mut lanes[span(&self.patches[slot as usize])] {
            if lane.contains(&slot) {
                continue;
            }
            let mut older = self.patches[slot as usize].older;
            let place = loop {
                if older == NONE {
                    break 0;
                }
                if let Some(place) = lane.iter().position(|other| *other == older) {
                    break place + 1;
                }
                older = self.patches[older as usize].older;
            };
            lane.insert(place, slot);
        }
    }

    /// Removes a patch that leaves its block from its lanes.
    pub(super) fn take_from_lanes(&mut self, b: BlockSlot, slot: u32) {
        let block = self.blocks[b.0 as usize].as_mut().expect("a block in use");
        if block.oldest == NONE {
            block.lanes = None;
        } else if let Some(lanes) = &mut block.lanes {
            for lane in &mut lanes[span(&self.patches[slot as usize])] {
                lane.retain(|other| *other != slot);
            }
        }
    }

    /// Starts a search for patches that a change may overlap. Within a lane newer patches
    /// come first.
    pub(super) fn trail(&self, b: BlockSlot, change: Change<'_>) -> Trail {
        let block = self.block(b);
        let (at, len) = extent(change);
        let (first, last) = ((at / LANE) as usize, ((at + len - 1) / LANE) as usize);
        match &block.lanes {
            Some(lanes) if last - first < FEW => Trail::Lanes(first, last, lanes[first].len()),
            _ => Trail::List(block.newest),
        }
    }

    /// The next patch of the search. A patch in several lanes is returned once for each.
    pub(super) fn follow(&self, b: BlockSlot, trail: &mut Trail) -> Option<u32> {
        if matches!(trail, Trail::Lanes(_, _, 0)) {
            self.leave(b, trail);
        }
        match trail {
            Trail::List(NONE) | Trail::Lanes(_, _, 0) => None,
            Trail::List(next) => {
                let slot = *next;
                *next = self.patches[slot as usize].older;
                Some(slot)
            }
            Trail::Lanes(lane, _, left) => {
                *left -= 1;
                Some(self.block(b).lanes.as_ref()?[*lane][*left])
            }
        }
    }

    /// Skips the rest of the list or lane: the patch found there covers the whole change.
    pub(super) fn leave(&self, b: BlockSlot, trail: &mut Trail) {
        match trail {
            Trail::List(next) => *next = NONE,
            Trail::Lanes(lane, last, left) => {
                *left = 0;
                let lanes = self.block(b).lanes.as_deref().unwrap_or_default();
                while *left == 0 && lane < last {
                    *lane += 1;
                    *left = lanes[*lane].len();
                }
            }
        }
    }

    /// Checks P6.
    pub(super) fn verify_lanes(&self, b: BlockSlot) -> Result<(), String> {
        let block = self.block(b);
        let Some(lanes) = &block.lanes else {
            return Ok(());
        };
        let mut expected = vec![Vec::new(); lanes.len()];
        let some = |slot: u32| Some(slot).filter(|slot| *slot != NONE);
        let all = std::iter::successors(some(block.oldest), |at| {
            some(self.patches[*at as usize].newer)
        });
        for slot in all {
            let lanes = &mut expected[span(&self.patches[slot as usize])];
            lanes.iter_mut().for_each(|lane| lane.push(slot));
        }
        if *lanes != expected {
            return Err(format!("P6: the lanes of {:?} are wrong", block.addr));
        }
        Ok(())
    }
}
