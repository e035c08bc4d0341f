//! The inodes in memory, by number, and what uses each of them.
//!
//! Guarantee: uses are counted under the lock of a shard. So of several callers that end the last uses of
//! a node, one finds it unused, and nobody gets a use of a node that was taken out.

use crate::error::Res;
use crate::format::LINES;
use crate::node::Node;
use crate::sync::{Mutex, MutexGuard};
use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use vfs::Ino;

/// Parts of the table. Those that hold few nodes fit into the first caches.
const SHARDS: u64 = 128;
/// Parts for the nodes of a page.
const SHARDS_OF_PAGE: u64 = 8;
/// Room for nodes in a shard that stays when they are gone.
const SMALL: usize = 32;

/// The uses of a node, or a change of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Uses {
    /// References of callers.
    pub refs: i64,
    /// Changes of names, and rounds of a persister, that will still use the node.
    pub pins: i64,
}

impl Uses {
    /// A reference.
    pub(crate) const REF: Self = Self { refs: 1, pins: 0 };
    pub(crate) const LOST_REF: Self = Self { refs: -1, pins: 0 };
    /// A change or a round.
    pub(crate) const PIN: Self = Self { refs: 0, pins: 1 };
    pub(crate) const LOST_PIN: Self = Self { refs: 0, pins: -1 };

    /// This many references less.
    fn lost_refs(count: u64) -> Self {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            refs: -count,
            pins: 0,
        }
    }

    /// Callers of the file system may give back more references than they have.
    fn change(&mut self, by: Self) {
        debug_assert!(self.pins + by.pins >= 0, "a use ends twice");
        self.refs = self.refs.saturating_add(by.refs).max(0);
        self.pins = self.pins.saturating_add(by.pins).max(0);
    }

    fn are_none(self) -> bool {
        self.refs == 0 && self.pins == 0
    }
}

struct Entry {
    node: Arc<Node>,
    uses: Uses,
}

type Shard = HashMap<u64, Entry, Neighbours>;

/// Puts some inodes that were made in sequence next to each other in a shard, since they are mostly used in
/// sequence, too. Such groups are scattered: long runs of them would overlap in a large table.
#[derive(Clone, Copy, Default)]
struct Neighbours(u64);

/// Bits of the place in a group: what a table searches at once.
const GROUP_BITS: u32 = 4;
/// An odd number without a pattern.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Neighbours {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    /// The low bits are a place in the table. The high ones are compared among inodes that share a place.
    fn write_u64(&mut self, ino: u64) {
        // A shard has two of each sixteen lines, in each sixteenth page.
        let (page, inode) = (ino / LINES, ino % LINES / (2 * SHARDS_OF_PAGE));
        let page = page / (SHARDS / SHARDS_OF_PAGE);
        let place = page * (LINES / (2 * SHARDS_OF_PAGE)) + inode;
        let group = (place >> GROUP_BITS).wrapping_mul(SCATTER) >> 32;
        let place = (group << GROUP_BITS) | (place % (1 << GROUP_BITS));
        self.0 = place ^ (ino.wrapping_mul(SCATTER) & (!0 << 57));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl BuildHasher for Neighbours {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

pub(crate) struct Nodes(Box<[CachePadded<Mutex<Shard>>]>);

impl Default for Nodes {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| CachePadded::default()).collect())
    }
}

/// The shard of a node. The nodes of a page are in few shards, since a thread makes inodes in pages of its
/// own. Those that were made in sequence are in several: they can be directories of several threads.
fn shard(ino: Ino) -> usize {
    // Mostly each second line of a page is an inode, and its dentry comes after it.
    let (page, inode) = (ino.0 / LINES, ino.0 / 2);
    ((page * SHARDS_OF_PAGE + inode % SHARDS_OF_PAGE) % SHARDS) as usize
}

impl Nodes {
    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        self.0[shard(ino)].lock()
    }

    /// The node with a number.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Node>> {
        let shard = self.shard(ino);
        shard.get(&ino.0).map(|entry| Arc::clone(&entry.node))
    }

    /// The node with a number, with a reference for the caller; of one that `read` makes if it is not there.
    pub(crate) fn referenced_or(
        &self,
        ino: Ino,
        read: impl FnOnce() -> Res<Arc<Node>>,
    ) -> Res<Arc<Node>> {
        let mut shard = self.shard(ino);
        if let Some(entry) = shard.get_mut(&ino.0) {
            entry.uses.change(Uses::REF);
            return Ok(Arc::clone(&entry.node));
        }
        let node = read()?;
        let entry = Entry {
            node: Arc::clone(&node),
            uses: Uses::REF,
        };
        shard.insert(ino.0, entry);
        Ok(node)
    }

    /// Adds a new node with these uses. In a damaged image a dentry may have led to its line before: the node
    /// takes the place of that one.
    pub(crate) fn add(&self, node: Arc<Node>, uses: Uses) {
        let ino = node.ino;
        self.shard(ino).insert(ino.0, Entry { node, uses });
    }

    /// Changes the uses of a node. Returns whether it is unused now.
    pub(crate) fn count(&self, node: &Arc<Node>, change: Uses) -> bool {
        let mut shard = self.shard(node.ino);
        let entry = own_entry(&mut shard, node);
        entry.is_some_and(|entry| {
            entry.uses.change(change);
            entry.uses.are_none()
        })
    }

    /// Takes references from the node with a number. Returns it if it is unused now.
    pub(crate) fn lose_refs(&self, ino: Ino, count: u64) -> Option<Arc<Node>> {
        let mut shard = self.shard(ino);
        let entry = shard.get_mut(&ino.0)?;
        entry.uses.change(Uses::lost_refs(count));
        entry.uses.are_none().then(|| Arc::clone(&entry.node))
    }

    /// Takes all references from a node.
    pub(crate) fn lose_all_refs(&self, node: &Arc<Node>) {
        let lost = Uses::lost_refs(u64::MAX);
        self.count(node, lost);
    }

    /// Changes the uses of a node. If it is unused then, takes it out, unless it has to stay. Returns
    /// whether it was taken out.
    pub(crate) fn leave(&self, node: &Arc<Node>, change: Uses, may_go: bool) -> bool {
        let mut shard = self.shard(node.ino);
        let EntryRef::Occupied(mut entry) = shard.entry_ref(&node.ino.0) else {
            return false;
        };
        if !Arc::ptr_eq(&entry.get().node, node) {
            return false;
        }
        let uses = &mut entry.get_mut().uses;
        uses.change(change);
        if !uses.are_none() || !may_go {
            return false;
        }
        entry.remove();
        // The tables of all shards fit into the caches again when a round has let go of many nodes.
        if shard.capacity() > SMALL && shard.len() < shard.capacity() / 8 {
            let least = 2 * shard.len();
            shard.shrink_to(least);
        }
        true
    }

    /// All nodes that are there, shard by shard.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Node>> {
        self.0.iter().flat_map(|shard| {
            let shard = shard.lock();
            let nodes: Vec<_> = shard.values().map(|e| Arc::clone(&e.node)).collect();
            nodes
        })
    }
}

/// The entry of a node, unless another node has its number now.
fn own_entry<'s>(shard: &'s mut Shard, node: &Arc<Node>) -> Option<&'s mut Entry> {
    let entry = shard.get_mut(&node.ino.0);
    entry.filter(|entry| Arc::ptr_eq(&entry.node, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn inodes_made_in_turn_are_in_different_shards_and_a_page_is_in_few() {
        let first = 5 * LINES;
        let shards = |lines: std::ops::Range<u64>| -> HashSet<usize> {
            lines.step_by(2).map(|line| shard(Ino(line))).collect()
        };
        assert_eq!(shards(first..first + 16).len(), 8);
        assert_eq!(shards(first..first + LINES).len(), 8);
        assert!(shards(0..100 * LINES).len() == SHARDS as usize);
    }

    /// The mean number of groups of places that are looked at until one has room, in a table of `places` for
    /// the inodes with these numbers that are in one shard.
    fn probes(places: usize, inodes: impl Iterator<Item = u64>) -> f64 {
        let groups = places >> GROUP_BITS;
        let (mut used, mut all, mut count) = (vec![false; places], 0, 0);
        for ino in inodes.filter(|ino| shard(Ino(*ino)) == 0) {
            let mut at = Neighbours(0).hash_one(ino) as usize % places;
            for step in 1..=groups {
                all += 1;
                let free = (0..16).map(|n| (at + n) % places).find(|at| !used[*at]);
                if let Some(free) = free {
                    used[free] = true;
                    break;
                }
                at = (at + step * 16) % places;
            }
            count += 1;
        }
        f64::from(all) / f64::from(count)
    }

    #[test]
    fn runs_of_inodes_do_not_make_long_searches() {
        let run = |first: u64, pages: u64| (first * LINES..(first + pages) * LINES).step_by(2);
        // A shard has four inodes of each sixteenth page.
        let one = probes(1 << 13, run(16, 16_000));
        assert!(one < 1.1, "{one}");
        let beside = probes(1 << 13, run(16, 16_000).chain(run(16 + (1 << 15), 12_000)));
        assert!(beside < 2.0, "{beside}");
        let many = (0..64).flat_map(|n| run(n * 100_003, 400));
        let many = probes(1 << 13, many);
        assert!(many < 2.5, "{many}");
    }
}
