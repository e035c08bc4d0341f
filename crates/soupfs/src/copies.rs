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

/// Tables above the chains that have copies. A directory with fewer fits into a cache, and the chains
/// of one with more are short. So the copies of a directory take at most 16 MiB.
pub(crate) const DEPTH: u32 = 2;
/// Most links of a copy: a line of the caches.
const LINKS: usize = 8;
/// Dentries that a search must have read in vain before a table gets its first copy.
const MANY: usize = 3;

/// The copy of a chain. Its links end at `Link::NONE`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
struct Chain([Link; LINKS]);

impl Chain {
    /// No copy yet.
    const UNKNOWN: Self = Self([Link(u64::MAX); LINKS]);
    /// No copy, since the chain has too many links.
    const LONG: Self = Self([Link(u64::MAX - 1); LINKS]);

    /// The copy of a chain with these links.
    fn of(links: impl Iterator<Item = Link>) -> Self {
        let mut chain = [Link::NONE; LINKS];
        for (n, link) in links.enumerate() {
            match chain.get_mut(n) {
                Some(place) => *place = link,
                None => return Self::LONG,
            }
        }
        Self(chain)
    }

    fn links(&self) -> Option<&[Link]> {
        let end = self.0.iter().position(|link| *link == Link::NONE);
        let is_copy = *self != Self::UNKNOWN && *self != Self::LONG;
        is_copy.then(|| &self.0[..end.unwrap_or(LINKS)])
    }
}

/// The copies for one table.
type Table = [Chain; FANOUT as usize];

/// The copies of a directory, made on demand.
#[derive(Default)]
pub(crate) struct Copies(Vec<Option<Box<Table>>>);

impl Copies {
    fn chain(&self, hash: Hash) -> Option<&Chain> {
        let table = self.0.get(hash.index(0) as usize)?.as_ref()?;
        Some(&table[hash.index(1) as usize])
    }

    fn chain_mut(&mut self, hash: Hash) -> Option<&mut Chain> {
        let table = self.0.get_mut(hash.index(0) as usize)?.as_mut()?;
        Some(&mut table[hash.index(1) as usize])
    }

    /// Fetches the copy of a chain. Returns whether there may be one.
    pub(crate) fn prefetch(&self, hash: Hash) -> bool {
        self.chain(hash).map(medium::prefetch).is_some()
    }

    /// The links of a chain, if it has a copy. It is below [`DEPTH`] tables then.
    pub(crate) fn get(&self, hash: Hash) -> Option<&[Link]> {
        self.chain(hash)?.links()
    }

    /// Forgets the copy of a chain that is split.
    pub(crate) fn forget(&mut self, hash: Hash) {
        if let Some(chain) = self.chain_mut(hash) {
            *chain = Chain::UNKNOWN;
        }
    }

    /// Whether to copy a chain, in which a search has read this many dentries in vain.
    pub(crate) fn wants(&self, hash: Hash, depth: u32, read: usize) -> bool {
        let is_due = match self.chain(hash) {
            Some(chain) => *chain == Chain::UNKNOWN && read > 0,
            None => read >= MANY,
        };
        is_due && depth == DEPTH
    }

    /// Makes a copy of a chain with these links, unless there are too many.
    pub(crate) fn set(&mut self, hash: Hash, links: impl Iterator<Item = Link>) {
        if self.0.is_empty() {
            self.0.resize_with(FANOUT as usize, || None);
        }
        let table = &mut self.0[hash.index(0) as usize];
        let table = table.get_or_insert_with(|| Box::new([Chain::UNKNOWN; FANOUT as usize]));
        table[hash.index(1) as usize] = Chain::of(links);
    }

    /// Adds a link after that of the dentry `before`.
    pub(crate) fn insert(&mut self, hash: Hash, before: Option<Line>, new: Link) {
        if let Some(chain) = self.chain_mut(hash)
            && let Some(links) = chain.links()
        {
            let is_before = |link: &Link| Some(link.line()) == before;
            let at = links.iter().position(is_before).map_or(0, |at| at + 1);
            let (head, tail) = links.split_at(at);
            *chain = Chain::of(head.iter().chain([&new]).chain(tail).copied());
        }
    }

    /// Removes the link of a dentry.
    pub(crate) fn remove(&mut self, hash: Hash, line: Line) {
        if let Some(chain) = self.chain_mut(hash) {
            let rest = |links: &[Link]| {
                let rest = links.iter().filter(|link| link.line() != line);
                Chain::of(rest.copied())
            };
            *chain = chain.links().map_or(Chain::UNKNOWN, rest);
        }
    }
}
