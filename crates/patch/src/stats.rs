//! Counters of the graph, defined as in the papers.

use crate::graph::{EDGE_BYTES, PATCH_BYTES};

/// Counters of the graph since the mount; fields named `now` are current values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Changes that stores requested.
    pub changes: u64,
    /// Patches made for them (a change that merges makes none).
    pub patches: u64,
    /// Of these, hard ones.
    pub hard: u64,
    /// Empty patches made.
    pub empties: u64,
    /// Changes that joined a block's hard patch.
    pub merged_hard: u64,
    /// Soft patches that became hard (2.2.2, soft-to-hard).
    pub hardened: u64,
    /// Changes that joined a patch which they overlap.
    pub merged_overlap: u64,
    /// Edges made.
    pub edges: u64,
    /// Bytes of undo data ever allocated.
    pub undo_bytes: u64,
    /// Blocks issued to be written.
    pub blocks_issued: u64,
    /// Of these, blocks rolled back: some patches were left out, so the block is written
    /// again (double writes).
    pub blocks_partial: u64,
    /// Patches that syncs requested, or visited while they searched for blocks to write.
    pub visited: u64,
    /// Patches now.
    pub patches_now: u64,
    /// Edges now.
    pub edges_now: u64,
    /// Undo bytes now.
    pub undo_now: u64,
    /// Most bytes that patches, edges and undo data took at once.
    pub memory_peak: u64,
    /// Bytes that patches, edges and undo data have taken in all, frees not counted.
    pub memory_total: u64,
}

impl Stats {
    /// Bytes that patches, edges and undo data take now.
    pub fn memory_now(&self) -> u64 {
        self.patches_now * PATCH_BYTES + self.edges_now * EDGE_BYTES + self.undo_now
    }

    pub(crate) fn made(&mut self, undo_bytes: usize, hard: bool, empty: bool) {
        if empty {
            self.empties += 1;
        } else {
            self.patches += 1;
            self.hard += u64::from(hard);
        }
        self.patches_now += 1;
        self.memory_total += PATCH_BYTES;
        self.undo_grown(undo_bytes);
    }

    pub(crate) fn freed(&mut self) {
        self.patches_now -= 1;
    }

    pub(crate) fn undo_grown(&mut self, bytes: usize) {
        self.undo_bytes += bytes as u64;
        self.undo_now += bytes as u64;
        self.memory_total += bytes as u64;
        self.memory_peak = self.memory_peak.max(self.memory_now());
    }

    pub(crate) fn undo_shrunk(&mut self, bytes: usize) {
        self.undo_now -= bytes as u64;
    }

    pub(crate) fn linked(&mut self) {
        self.edges += 1;
        self.edges_now += 1;
        self.memory_total += EDGE_BYTES;
        self.memory_peak = self.memory_peak.max(self.memory_now());
    }

    pub(crate) fn unlinked(&mut self) {
        self.edges_now -= 1;
    }

    pub(crate) fn issued(&mut self, whole: bool) {
        self.blocks_issued += 1;
        self.blocks_partial += u64::from(!whole);
    }
}
