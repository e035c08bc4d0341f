//! Checks of the graph's invariants, and readiness by search instead of by counts.

use super::parts::{NONE, State, Undo};
use super::{BlockSlot, Graph, is_same_block};
use std::collections::HashSet;

impl Graph {
    /// Checks P1 to P6 on the whole graph. For tests and debugging: slow.
    ///
    /// # Errors
    /// The first invariant that is broken, and the patch or block.
    pub(crate) fn verify(&self) -> Result<(), String> {
        self.verify_acyclic()?;
        for slot in self.live_slots() {
            self.verify_patch(slot)?;
        }
        for (i, block) in self.blocks.iter().enumerate() {
            if block.is_some() {
                self.verify_block(BlockSlot(i as u32))?;
            }
        }
        Ok(())
    }

    fn live_slots(&self) -> impl Iterator<Item = u32> {
        (0..self.patches.len() as u32).filter(|&slot| {
            matches!(
                self.patches[slot as usize].state,
                State::Pending | State::Issued
            )
        })
    }

    /// Checks P1 by a depth-first walk that keeps its path.
    fn verify_acyclic(&self) -> Result<(), String> {
        let mut done = HashSet::new();
        let mut on_path = HashSet::new();
        for start in self.live_slots() {
            let mut todo = vec![(start, false)];
            while let Some((slot, leaving)) = todo.pop() {
                if leaving {
                    on_path.remove(&slot);
                    done.insert(slot);
                } else if on_path.contains(&slot) {
                    return Err(format!("P1: {:?} waits for itself", self.id_of(slot)));
                } else if !done.contains(&slot) {
                    on_path.insert(slot);
                    todo.push((slot, true));
                    let open = self.befores(slot).map(|e| e.before);
                    todo.extend(open.filter(|b| !done.contains(b)).map(|b| (b, false)));
                }
            }
        }
        Ok(())
    }

    fn verify_patch(&self, slot: u32) -> Result<(), String> {
        let patch = &self.patches[slot as usize];
        let id = self.id_of(slot);
        let (mut same, mut foreign) = (0, 0);
        for edge in self.befores(slot) {
            let before = &self.patches[edge.before as usize];
            if !matches!(before.state, State::Pending | State::Issued) {
                return Err(format!("P4: {id:?} waits for a patch that is freed"));
            }
            if is_same_block(patch, before) {
                same += 1;
            } else {
                foreign += 1;
            }
        }
        if (same, foreign) != (patch.unmet_same, patch.unmet_foreign) {
            return Err(format!(
                "P4: {id:?} counts {} and {} befores, a recount gives {same} and {foreign}",
                patch.unmet_same, patch.unmet_foreign
            ));
        }
        if patch.state == State::Issued && same + foreign > 0 {
            return Err(format!("P2: {id:?} was issued before what it waits for"));
        }
        if patch.is_empty() {
            let live = self.afters(slot).any(|e| {
                let after = &self.patches[e.after() as usize];
                after.live || !after.is_empty()
            });
            if live && !patch.live {
                return Err(format!("P4: {id:?} is live and not marked as live"));
            }
            if foreign == 0 && !patch.held {
                return Err(format!("P5: {id:?} should have committed"));
            }
        }
        if patch.is_hard() && patch.state == State::Pending && self.is_head_of_cycle(slot) {
            return Err(format!("P3: {id:?} is hard and heads a block-level cycle"));
        }
        Ok(())
    }

    /// Whether a chain leads from a patch off its block and back to a pending patch on it.
    fn is_head_of_cycle(&self, head: u32) -> bool {
        let block = self.patches[head as usize].block;
        let mut seen = HashSet::new();
        let mut todo: Vec<u32> = self.befores(head).map(|e| e.before).collect();
        todo.retain(|&slot| self.patches[slot as usize].block != block);
        while let Some(slot) = todo.pop() {
            let patch = &self.patches[slot as usize];
            if patch.block == block && patch.state == State::Pending {
                return true;
            }
            if seen.insert(slot) {
                todo.extend(self.befores(slot).map(|e| e.before));
            }
        }
        false
    }

    fn verify_block(&self, b: BlockSlot) -> Result<(), String> {
        self.verify_lanes(b)?;
        let block = self.block(b);
        let (mut pending, mut issued, mut held_back, mut external) = (0, 0, 0, 0);
        let mut ready = Vec::new();
        let (mut at, mut older) = (block.oldest, NONE);
        let mut hard = NONE;
        while at != NONE {
            let patch = &self.patches[at as usize];
            if patch.block != b || patch.older != older {
                return Err(format!("P4: the list of {:?} is broken", block.addr));
            }
            match patch.state {
                State::Issued => issued += 1,
                State::Pending => {
                    pending += 1;
                    held_back += u32::from(patch.unmet_foreign > 0);
                    external += self
                        .afters(at)
                        .filter(|e| self.counts_external(e.after(), at))
                        .count() as u32;
                    if patch.unmet_foreign + patch.unmet_same == 0 {
                        ready.push(at);
                    }
                    if patch.ready != (patch.unmet_foreign + patch.unmet_same == 0) {
                        return Err(format!(
                            "P4: {:?} has a wrong mark of being ready",
                            self.id_of(at)
                        ));
                    }
                    if matches!(patch.undo, Undo::Hard) {
                        if hard != NONE {
                            return Err(format!("P3: {:?} has two hard patches", block.addr));
                        }
                        hard = at;
                    } else if hard != NONE && !self.waits_within(at, hard) {
                        return Err(format!(
                            "P3: {:?} does not wait for the hard patch",
                            self.id_of(at)
                        ));
                    }
                }
                State::Free | State::Moved => {
                    return Err(format!(
                        "P4: the list of {:?} has a freed or merged patch",
                        block.addr
                    ));
                }
            }
            older = at;
            at = patch.newer;
        }
        let mut listed = block.ready.clone();
        listed.sort_unstable();
        ready.sort_unstable();
        let found = (pending, issued, held_back, external, hard, ready);
        let kept = (
            block.pending,
            block.issued,
            block.held_back,
            block.external,
            block.hard,
            listed,
        );
        if older != block.newest || found != kept {
            return Err(format!(
                "P4: {:?} has the counts {kept:?}, a recount gives {found:?}",
                block.addr
            ));
        }
        Ok(())
    }

    /// Whether `after` waits for `before` by a chain of patches on their block.
    fn waits_within(&self, after: u32, before: u32) -> bool {
        let mut todo = vec![after];
        let mut seen = HashSet::new();
        while let Some(slot) = todo.pop() {
            if slot == before {
                return true;
            }
            if seen.insert(slot) {
                let here = &self.patches[slot as usize];
                let within = self.befores(slot).map(|e| e.before);
                todo.extend(within.filter(|&b| is_same_block(here, &self.patches[b as usize])));
            }
        }
        false
    }

    /// As [`Block::is_ready`](super::Block::is_ready), by a search from every patch of the
    /// block. For the switch `ready_lists`, and for tests.
    pub(crate) fn is_ready_by_search(&self, b: BlockSlot) -> bool {
        let block = self.block(b);
        let mut at = block.newest;
        while block.issued == 0 && at != NONE {
            if self.can_go(at) {
                return true;
            }
            at = self.patches[at as usize].older;
        }
        false
    }

    /// Whether a patch waits only for patches of its own block.
    fn can_go(&self, slot: u32) -> bool {
        let block = self.patches[slot as usize].block;
        let mut seen = HashSet::new();
        let mut todo = vec![slot];
        while let Some(slot) = todo.pop() {
            let patch = &self.patches[slot as usize];
            if patch.block != block {
                return false;
            }
            if seen.insert(slot) {
                todo.extend(self.befores(slot).map(|e| e.before));
            }
        }
        true
    }
}
