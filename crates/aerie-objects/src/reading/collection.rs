//! Collections: linear hash tables from keys to objects.
//!
//! The pages of a collection hold buckets. A table of `n` buckets grows by one bucket at a time, into
//! which a part of one other bucket moves, so that no insertion takes long. It shrinks by a new table
//! that replaces the old one with one word.
//!
//! The order of a listing is that of the reversed hashes. A bucket holds a contiguous range of them,
//! at any number of buckets, so that a listing goes on at the same place after the table has changed.

use crate::error::{Error, Result, damaged};
use crate::layout::{BUCKET, BUCKETS, KEY_MAX, header};
use crate::load::Load;
use crate::reading::bucket::{Bucket, Entry, chain};
use crate::reading::object::{generation, word};
use crate::reading::tree;
use crate::{Kind, ObjectId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// An entry of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The place in the order of listings, above 0.
    pub cookie: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The object.
    pub object: ObjectId,
}

/// A collection of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    pub(crate) id: ObjectId,
    /// Number of buckets; 0 for a collection that has never had an entry.
    pub(crate) buckets: u64,
    pub(crate) seed: u64,
}

impl Table {
    pub(crate) fn load<M: Load + ?Sized>(memory: &M, id: ObjectId, seed: u64) -> Result<Self> {
        if id.kind() != Kind::Collection {
            return Err(Error::NoObject(id));
        }
        generation(memory, id)?;
        let buckets = word(memory, id, header::SIZE)?;
        if buckets > memory.len_bytes() / BUCKET {
            let why = format!("{buckets} buckets are more than there can be");
            return Err(damaged("header", id.header() + header::SIZE * 8, why));
        }
        Ok(Self { id, buckets, seed })
    }

    pub(crate) fn hash(self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    /// Hash bits that the number of every bucket has. Those below [`split`](Self::split) have one more,
    /// and so do those that they were split into.
    fn level(self) -> u32 {
        self.buckets.ilog2()
    }

    /// The bucket that is split next.
    pub(crate) fn split(self) -> u64 {
        self.buckets - (1 << self.level())
    }

    /// The number of the bucket for a hash.
    pub(crate) fn number(self, hash: u64) -> u64 {
        let low = |bits| hash & ((1u64 << bits) - 1);
        match low(self.level() + 1) {
            number if number < self.buckets => number,
            _ => low(self.level()),
        }
    }

    /// Low bits of the hash that are equal for all entries of a bucket.
    fn bits(self, number: u64) -> u32 {
        let is_split = number < self.split() || number >= 1 << self.level();
        self.level() + u32::from(is_split)
    }

    /// Byte offset of a bucket.
    pub(crate) fn bucket<M: Load + ?Sized>(self, memory: &M, number: u64) -> Result<Bucket> {
        let page = tree::page(memory, self.id, number / BUCKETS)?;
        let page = page.ok_or_else(|| {
            let why = format!("{} has no page for bucket {number}", self.id);
            damaged("header", self.id.header(), why)
        })?;
        Ok(Bucket::of_table(page + number % BUCKETS * BUCKET))
    }

    /// The pages that continue buckets.
    pub(crate) fn chained<M: Load + ?Sized>(self, memory: &M) -> Result<Vec<u64>> {
        let mut pages = Vec::new();
        for number in 0..self.buckets {
            for bucket in chain(memory, self.bucket(memory, number)?) {
                pages.extend(bucket?.page());
            }
        }
        Ok(pages)
    }

    /// The objects of all entries.
    pub(crate) fn objects<M: Load + ?Sized>(self, memory: &M) -> Result<Vec<ObjectId>> {
        let mut objects = Vec::new();
        for number in 0..self.buckets {
            for bucket in chain(memory, self.bucket(memory, number)?) {
                let entries = bucket?.entries(memory)?;
                objects.extend(entries.iter().map(|entry| entry.object));
            }
        }
        Ok(objects)
    }

    pub(crate) fn find<M: Load + ?Sized>(self, memory: &M, key: &[u8]) -> Result<Option<Entry>> {
        if self.buckets == 0 {
            return Ok(None);
        }
        let hash = self.hash(key);
        for bucket in chain(memory, self.bucket(memory, self.number(hash))?) {
            if let Some(entry) = bucket?.find(memory, hash, key)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// The place of a hash in the order of listings.
fn cookie(hash: u64) -> u64 {
    (hash.reverse_bits() >> 2) + 1
}

/// Finds a key.
///
/// # Errors
/// [`Error::NoObject`], [`Error::KeyLength`], errors of the memory and of a damaged table.
pub fn lookup<M: Load + ?Sized>(
    memory: &M,
    collection: ObjectId,
    seed: u64,
    key: &[u8],
) -> Result<Option<ObjectId>> {
    check_key(key)?;
    let found = Table::load(memory, collection, seed)?.find(memory, key)?;
    Ok(found.map(|entry| entry.object))
}

/// Number of entries.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn entries<M: Load + ?Sized>(memory: &M, collection: ObjectId) -> Result<u64> {
    Table::load(memory, collection, 0)?;
    word(memory, collection, header::ENTRIES)
}

/// The entries of the next bucket that has any after the cookie `after` (0: the start), in the order
/// of their cookies. Empty at the end.
///
/// # Errors
/// [`Error::NoObject`], errors of the memory and of a damaged table.
pub fn list<M: Load + ?Sized>(
    memory: &M,
    collection: ObjectId,
    seed: u64,
    after: u64,
) -> Result<Vec<Listed>> {
    let table = Table::load(memory, collection, seed)?;
    let mut next = Some(after);
    while let Some(place) = next.filter(|place| table.buckets > 0 && *place < 1 << 62) {
        let reversed = place << 2;
        let number = table.number(reversed.reverse_bits());
        let mut listed = Vec::new();
        for bucket in chain(memory, table.bucket(memory, number)?) {
            for entry in bucket?.entries(memory)? {
                let key = entry.key(memory)?;
                let cookie = cookie(table.hash(&key));
                let object = entry.object;
                listed.push(Listed {
                    cookie,
                    key,
                    object,
                });
            }
        }
        listed.retain(|entry| entry.cookie > after);
        if !listed.is_empty() {
            listed.sort_unstable_by(|a, b| (a.cookie, &a.key).cmp(&(b.cookie, &b.key)));
            return Ok(listed);
        }
        // The first reversed hash after those of this bucket; none after the last bucket.
        let shift = u64::BITS - table.bits(number);
        let range = reversed.checked_shr(shift).unwrap_or(0) + 1;
        next = range
            .checked_shl(shift)
            .filter(|start| start >> shift == range);
        next = next.map(|start| start >> 2);
    }
    Ok(Vec::new())
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    match (1..=KEY_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err(Error::KeyLength(key.len())),
    }
}
