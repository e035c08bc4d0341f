//! Copies of the chains of large directories: their links alone.
//!
//! A search in a chain reads one dentry after the other, and in a large directory each of them misses
//! the caches of the processor. A link repeats the first bits of its dentry's hash. So a search in a
//! copy reads only the dentry that it finds.
//!
//! Guarantee: a copy has the links of the chain in the latest view, in their order. The view changes
//! it with the chain, and forgets it when the chain is split. So a search that finds a copy need not read
//! the slot of the chain, which mostly misses the caches, too.

use crate::format::{FANOUT, Hash, Line, Link};
use memmap2::{Advice, MmapMut};
use zerocopy::FromBytes;

/// Tables above the chains that have copies. A directory with fewer fits into a cache, and the chains
/// of one with more are short. So the copies of a directory take at most 16 MiB.
pub(crate) const DEPTH: u32 = 2;
/// Most links of a copy: a line of the caches.
const LINKS: usize = 8;
/// Bytes of the copies of a directory.
const BYTES: usize = (FANOUT * FANOUT) as usize * size_of::<Chain>();
/// Dentries that a search must have read in vain before a directory gets its first copy.
const MANY: usize = 5;

/// The copy of a chain: its links, up to [`Link::NONE`]. Or one of these in place of the first link.
type Chain = [Link; LINKS];

/// No copy yet: new memory is zero.
const UNKNOWN: Link = Link(0);
/// No copy, since the chain has too many links.
const LONG: Link = Link(u64::MAX);
/// A chain without links.
const EMPTY: Link = Link(u64::MAX - 1);

/// The copy of a chain with these links.
fn copy_of(links: impl Iterator<Item = Link>) -> Chain {
    let mut chain = [Link::NONE; LINKS];
    chain[0] = EMPTY;
    for (n, link) in links.enumerate() {
        match chain.get_mut(n) {
            Some(place) => *place = link,
            None => {
                chain[0] = LONG;
                break;
            }
        }
    }
    chain
}

fn links_of(chain: &Chain) -> Option<&[Link]> {
    match chain[0] {
        UNKNOWN | LONG => None,
        EMPTY => Some(&[]),
        _ => {
            let end = chain.iter().position(|link| *link == Link::NONE);
            Some(&chain[..end.unwrap_or(LINKS)])
        }
    }
}

/// The copies of a directory: the kernel's memory, which takes no page before it is stored to, and is zero.
/// In pages of 4 KiB a search would wait for the entry of the page, too, which is in no cache.
#[derive(Default)]
pub(crate) struct Copies {
    map: Option<MmapMut>,
    /// The kernel had no memory for them.
    is_refused: bool,
}

/// The place of a copy.
fn place(hash: Hash) -> usize {
    (hash.index(0) * FANOUT + hash.index(1)) as usize
}

impl Copies {
    fn chain(&self, hash: Hash) -> Option<&Chain> {
        <[Chain]>::ref_from_bytes(self.map.as_ref()?)
            .ok()?
            .get(place(hash))
    }

    fn chain_mut(&mut self, hash: Hash) -> Option<&mut Chain> {
        <[Chain]>::mut_from_bytes(self.map.as_mut()?)
            .ok()?
            .get_mut(place(hash))
    }

    /// Fetches the copy of a chain. Returns whether there may be one.
    pub(crate) fn prefetch(&self, hash: Hash) -> bool {
        self.chain(hash).map(medium::prefetch).is_some()
    }

    /// The links of a chain, if it has a copy. It is below [`DEPTH`] tables then.
    pub(crate) fn get(&self, hash: Hash) -> Option<&[Link]> {
        links_of(self.chain(hash)?)
    }

    /// Forgets the copy of a chain that is split.
    pub(crate) fn forget(&mut self, hash: Hash) {
        // A store takes memory.
        if let Some(chain) = self.chain_mut(hash)
            && chain[0] != UNKNOWN
        {
            chain[0] = UNKNOWN;
        }
    }

    /// Whether to copy a chain, in which a search has read this many dentries in vain.
    pub(crate) fn wants(&self, hash: Hash, depth: u32, read: usize) -> bool {
        let is_due = match self.chain(hash) {
            Some(chain) => chain[0] == UNKNOWN && read > 0,
            None => read >= MANY && !self.is_refused,
        };
        is_due && depth == DEPTH
    }

    /// Makes a copy of a chain with these links, unless there are too many, or the kernel has no memory.
    pub(crate) fn set(&mut self, hash: Hash, links: impl Iterator<Item = Link>) {
        if self.map.is_none() {
            self.map = MmapMut::map_anon(BYTES).ok();
            self.is_refused = self.map.is_none();
            // Without it, searches are slower.
            let _ = self.map.as_ref().map(|map| map.advise(Advice::HugePage));
        }
        if let Some(chain) = self.chain_mut(hash) {
            *chain = copy_of(links);
        }
    }

    /// Adds a link after that of the dentry `before`.
    pub(crate) fn insert(&mut self, hash: Hash, before: Option<Line>, new: Link) {
        if let Some(chain) = self.chain_mut(hash)
            && let Some(links) = links_of(chain)
        {
            let is_before = |link: &Link| Some(link.line()) == before;
            let at = links.iter().position(is_before).map_or(0, |at| at + 1);
            let (head, tail) = links.split_at(at);
            *chain = copy_of(head.iter().chain([&new]).chain(tail).copied());
        }
    }

    /// Removes the link of a dentry.
    pub(crate) fn remove(&mut self, hash: Hash, line: Line) {
        if let Some(chain) = self.chain_mut(hash) {
            let rest = |links: &[Link]| {
                let rest = links.iter().filter(|link| link.line() != line);
                copy_of(rest.copied())
            };
            match links_of(chain).map(rest) {
                Some(copy) => *chain = copy,
                None if chain[0] == LONG => chain[0] = UNKNOWN,
                None => {}
            }
        }
    }
}
