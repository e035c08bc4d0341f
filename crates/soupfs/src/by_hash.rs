//! Values that are found by the hash of a name; several may have the same.
//!
//! The values are in memory in the order of their insertion. The table of hashes has only their places.
//! So a search, which reads memory at random, mostly reads a cache, and what follows it reads in order.

use crate::format::{HASH_BITS, Hash};
use hashbrown::HashTable;
use slab::Slab;

/// Bits of a hash, and the place of a value.
#[derive(Clone, Copy)]
struct Place {
    bits: u32,
    at: u32,
}

/// Values by hash.
pub(crate) struct ByHash<T> {
    values: Slab<T>,
    places: HashTable<Place>,
    /// The place at which a sweep goes on.
    next: usize,
}

impl<T> Default for ByHash<T> {
    fn default() -> Self {
        Self {
            values: Slab::new(),
            places: HashTable::new(),
            next: 0,
        }
    }
}

/// The bits of a hash in a place: first ones and last ones.
fn bits(hash: Hash) -> u32 {
    (hash.0 >> (HASH_BITS - u32::BITS)) as u32 ^ hash.0 as u32
}

/// The hash of a place for the table, which looks at the first bits and at the last ones.
fn spread(bits: u32) -> u64 {
    u64::from(bits) << u32::BITS | u64::from(bits)
}

impl<T> ByHash<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().map(|(_, value)| value)
    }

    /// The values, mostly in the order of their insertion.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.values.into_iter().map(|(_, value)| value)
    }

    /// Goes on with a sweep over all values, which removes those for which `wanted` returns their hash, at
    /// most this many now. Returns them, and whether the sweep is over.
    pub(crate) fn sweep(
        &mut self,
        most: usize,
        wanted: impl Fn(&T) -> Option<Hash>,
    ) -> (Vec<T>, bool) {
        let mut taken = Vec::new();
        while taken.len() < most {
            if self.next >= self.values.capacity() {
                self.next = 0;
                if self.is_empty() {
                    *self = Self::default();
                }
                return (taken, true);
            }
            let at = self.next;
            self.next += 1;
            if let Some(hash) = self.values.get(at).and_then(&wanted) {
                taken.push(self.remove(hash, at));
            }
        }
        (taken, false)
    }

    pub(crate) fn insert(&mut self, hash: Hash, value: T) {
        let (bits, at) = (bits(hash), self.values.insert(value) as u32);
        let place = Place { bits, at };
        let spread_of = |place: &Place| spread(place.bits);
        self.places.insert_unique(spread(bits), place, spread_of);
    }

    /// All values with this hash, and perhaps others, each with its place.
    pub(crate) fn of_hash(&self, hash: Hash) -> impl Iterator<Item = (usize, &T)> {
        let places = self.places.iter_hash(spread(bits(hash)));
        places.map(|place| (place.at as usize, &self.values[place.at as usize]))
    }

    /// The value at a place of [`of_hash`](Self::of_hash).
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.values[at]
    }

    /// Removes the value with this hash at a place of [`of_hash`](Self::of_hash).
    pub(crate) fn remove(&mut self, hash: Hash, at: usize) -> T {
        let is_it = |place: &Place| place.at as usize == at;
        if let Ok(place) = self.places.find_entry(spread(bits(hash)), is_it) {
            place.remove();
        }
        self.values.remove(at)
    }
}
