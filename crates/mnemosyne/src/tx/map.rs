//! A map that is often small and sometimes large, and keeps the order of insertion. It holds the
//! words that a transaction wrote, and the locks that it took.

use hashbrown::HashTable;

/// Up to that many entries a linear search is faster than a table.
const FEW: usize = 16;
/// A map of that many entries frees its memory when it is cleared.
const MANY: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Map<V> {
    entries: Vec<(u64, V)>,
    /// The index in `entries` of a key; empty if there are only a few entries.
    index: HashTable<usize>,
}

fn hash(key: u64) -> u64 {
    (key >> 3 ^ key << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<V: Copy> Map<V> {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            index: HashTable::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        if self.entries.len() >= MANY {
            return *self = Self::new();
        }
        self.entries.clear();
        self.index.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        if self.entries.len() <= FEW {
            return self.entries.iter().position(|(k, _)| *k == key);
        }
        let same = |slot: &usize| self.entries[*slot].0 == key;
        self.index.find(hash(key), same).copied()
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<V> {
        self.find(key).map(|slot| self.entries[slot].1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.find(key).map(|slot| &mut self.entries[slot].1)
    }

    /// Adds an entry for a key that has none.
    #[inline]
    pub(super) fn insert(&mut self, key: u64, value: V) {
        self.entries.push((key, value));
        match self.entries.len() - 1 {
            last if last < FEW => {}
            FEW => (0..=FEW).for_each(|slot| self.add(slot)),
            last => self.add(last),
        }
    }

    /// A copy of all entries, for [`restore`](Self::restore).
    pub(super) fn snapshot(&self) -> Vec<(u64, V)> {
        self.entries.clone()
    }

    /// Restores the entries of a snapshot. No entry was removed since.
    pub(super) fn restore(&mut self, snapshot: &[(u64, V)]) {
        let len = snapshot.len();
        match len {
            ..=FEW => self.index.clear(),
            _ => self.index.retain(|slot| *slot < len),
        }
        self.entries.truncate(len);
        self.entries.copy_from_slice(snapshot);
    }

    fn add(&mut self, slot: usize) {
        let entries = &self.entries;
        let rehash = |slot: &usize| hash(entries[*slot].0);
        let of = hash(entries[slot].0);
        self.index.insert_unique(of, slot, rehash);
    }

    /// All entries, in the order of their first insertion.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, V)> + '_ {
        self.entries.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_comes_back_to_a_snapshot() {
        for before in 0..40 {
            for after in [0, 1, FEW as u64, FEW as u64 + 1, 100] {
                let mut map = Map::new();
                (0..before).for_each(|key| map.insert(key, key));
                let snapshot = map.snapshot();
                (before..before + after).for_each(|key| map.insert(key, key));
                (0..before + after)
                    .step_by(3)
                    .for_each(|key| *map.get_mut(key).unwrap() = 0);
                map.restore(&snapshot);
                assert_eq!(map.iter().collect::<Vec<_>>(), snapshot);
                assert_eq!(map.get(before), None);
                for key in 0..100 {
                    match map.get_mut(key) {
                        Some(value) => *value = key + 1,
                        None => map.insert(key, key + 1),
                    }
                }
                assert!((0..100).all(|key| map.get(key) == Some(key + 1)));
            }
        }
    }
}
