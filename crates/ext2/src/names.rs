//! The blocks of names in large directories. The format does not order names, so a search without
//! this index would read all blocks.
//!
//! # Guarantee
//! The index of a directory agrees with its blocks: the block of each name, and the longest entry
//! that fits into each block. Memory is bounded: the least recently used directories are forgotten,
//! and too large ones are not indexed.

use hashbrown::{DefaultHashBuilder, HashTable};
use lru::LruCache;
use std::hash::BuildHasher;

/// Approximate limit for the names of all directories, at about 40 bytes each.
const MOST_NAMES: usize = 1 << 20;

#[derive(Debug)]
struct Entry {
    hash: u64,
    block: u32,
}

/// The index of one directory.
#[derive(Debug, Default)]
pub(crate) struct Names {
    hashes: DefaultHashBuilder,
    /// The number of a name's block within the directory, by the hash of the name.
    entries: HashTable<Entry>,
    /// The longest entry that fits into each block.
    room: Vec<usize>,
}

impl Names {
    /// Adds a name. Returns false if there are too many.
    pub(crate) fn add(&mut self, name: &[u8], block: u64) -> bool {
        let Ok(block) = u32::try_from(block) else {
            return false;
        };
        let hash = self.hashes.hash_one(name);
        self.entries
            .insert_unique(hash, Entry { hash, block }, |e| e.hash);
        self.entries.len() <= MOST_NAMES
    }

    pub(crate) fn remove(&mut self, name: &[u8], block: u64) {
        let hash = self.hashes.hash_one(name);
        let is_it = |e: &Entry| e.hash == hash && u64::from(e.block) == block;
        if let Ok(entry) = self.entries.find_entry(hash, is_it) {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All blocks that may hold a name.
    pub(crate) fn blocks_of(&self, name: &[u8]) -> Vec<u64> {
        let hash = self.hashes.hash_one(name);
        let same = self.entries.iter_hash(hash).filter(|e| e.hash == hash);
        same.map(|e| e.block.into()).collect()
    }

    pub(crate) fn set_room(&mut self, block: u64, room: usize) {
        let block = block as usize;
        if self.room.len() <= block {
            self.room.resize(block + 1, 0);
        }
        self.room[block] = room;
    }

    /// The first block with room for an entry.
    pub(crate) fn block_for(&self, bytes: usize) -> Option<u64> {
        let found = self.room.iter().position(|room| *room >= bytes)?;
        Some(found as u64)
    }
}

/// All known directories. `None` stands for one that is too large.
#[derive(Debug)]
pub(crate) struct AllNames {
    known: LruCache<u32, Option<Names>>,
}

impl Default for AllNames {
    fn default() -> Self {
        let known = LruCache::unbounded();
        Self { known }
    }
}

impl AllNames {
    /// The index of a directory. The outer `None` stands for an unknown one.
    pub(crate) fn get(&mut self, dir: u32) -> Option<Option<&mut Names>> {
        self.known.get_mut(&dir).map(Option::as_mut)
    }

    pub(crate) fn put(&mut self, dir: u32, names: Option<Names>) {
        self.known.put(dir, names);
        self.limit();
    }

    /// Forgets the least recently used directories if there are too many names. Few directories are
    /// large enough to be indexed.
    pub(crate) fn limit(&mut self) {
        let size = |names: &Option<Names>| 1 + names.as_ref().map_or(0, Names::len);
        let mut all: usize = self.known.iter().map(|(_, names)| size(names)).sum();
        while all > MOST_NAMES + 1
            && let Some((_, names)) = self.known.pop_lru()
        {
            all -= size(&names);
        }
    }

    pub(crate) fn forget(&mut self, dir: u32) {
        self.known.pop(&dir);
    }
}
