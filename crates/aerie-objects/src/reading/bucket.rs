//! Buckets: a head of two words, slots that grow upwards, and records that grow downwards.

use crate::ObjectId;
use crate::error::{Result, damaged};
use crate::layout::{BUCKET, PAGE};
use crate::load::Load;
use std::ops::Range;

/// Bytes of the head: slots (16 bits) and bytes of records (16); the page of the next bucket of the
/// chain, or 0.
pub(crate) const HEAD: u64 = 16;
/// Most buckets of a chain. More keys with the same hash are refused.
pub(crate) const CHAIN_MAX: usize = 256;
const LIVE: u64 = 1 << 63;
/// Slots that a search loads at a time.
const PART: usize = 8;

/// A bucket of a table, or a page that continues one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// An entry, and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Byte offset of the slot: the upper half of the hash (32 bits), the offset of the record in the
    /// bucket (16), the bytes of the key (8), and the highest bit. 0: the entry was removed.
    pub(crate) slot: u64,
    pub(crate) object: ObjectId,
    key_at: u64,
    key_len: usize,
}

impl Entry {
    /// The bytes of the record.
    pub(crate) fn record(&self) -> Range<u64> {
        let start = self.key_at - 8;
        start..start + 8 + self.key_len.next_multiple_of(8) as u64
    }

    pub(crate) fn key<M: Load + ?Sized>(self, memory: &M) -> Result<Vec<u8>> {
        let mut key = vec![0; self.key_len];
        memory.read(self.key_at, &mut key)?;
        Ok(key)
    }

    /// Whether the slot has this hash.
    pub(crate) fn has_hash<M: Load + ?Sized>(self, memory: &M, hash: u64) -> Result<bool> {
        Ok(memory.load(self.slot)? & u64::from(u32::MAX) == hash >> 32)
    }
}

/// Bytes that a record takes.
pub(crate) fn record_bytes(key: &[u8]) -> u64 {
    8 + key.len().next_multiple_of(8) as u64
}

impl Bucket {
    pub(crate) fn of_table(at: u64) -> Self {
        Self { at, bytes: BUCKET }
    }

    pub(crate) fn of_page(at: u64) -> Self {
        Self { at, bytes: PAGE }
    }

    /// The page that continues the bucket.
    pub(crate) fn page(self) -> Option<u64> {
        (self.bytes == PAGE).then_some(self.at)
    }

    /// Number of slots, and bytes of records.
    pub(crate) fn head<M: Load + ?Sized>(self, memory: &M) -> Result<(u64, u64)> {
        let head = memory.load(self.at)?;
        let (slots, records) = (head & 0xffff, head >> 16 & 0xffff);
        match HEAD + slots * 8 + records <= self.bytes && head >> 32 == 0 {
            true => Ok((slots, records)),
            false => Err(damaged("bucket", self.at, format!("its head is {head:#x}"))),
        }
    }

    fn next<M: Load + ?Sized>(self, memory: &M) -> Result<Option<Self>> {
        match memory.load(self.at + 8)? {
            0 => Ok(None),
            page => Ok(Some(Self::of_page(memory.page(page, self.at + 8)?))),
        }
    }

    fn entry<M: Load + ?Sized>(self, memory: &M, at: u64, slot: u64) -> Result<Entry> {
        let (record, key_len) = (slot >> 32 & 0xffff, (slot >> 48 & 0xff) as usize);
        let end = record + 8 + key_len as u64;
        if !record.is_multiple_of(8) || record < HEAD || end > self.bytes || key_len == 0 {
            return Err(damaged("slot", at, format!("{slot:#x} denotes no record")));
        }
        let record = self.at + record;
        let bits = memory.load(record)?;
        let object = ObjectId::from_bits(bits).filter(|id| id.header() < memory.len_bytes());
        Ok(Entry {
            slot: at,
            object: object
                .ok_or_else(|| damaged("record", record, format!("{bits:#x} denotes no object")))?,
            key_at: record + 8,
            key_len,
        })
    }

    pub(crate) fn entries<M: Load + ?Sized>(self, memory: &M) -> Result<Vec<Entry>> {
        let (slots, _) = self.head(memory)?;
        let mut entries = Vec::with_capacity(slots as usize);
        for at in (0..slots).map(|n| self.at + HEAD + n * 8) {
            let slot = memory.load(at)?;
            if slot & LIVE != 0 {
                entries.push(self.entry(memory, at, slot)?);
            }
        }
        Ok(entries)
    }

    pub(crate) fn find<M: Load + ?Sized>(
        self,
        memory: &M,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Entry>> {
        let (slots, _) = self.head(memory)?;
        let wanted = slot_of(hash, 0, key);
        let mut found = [0; u8::MAX as usize];
        let mut part = [0; PART];
        for first in (0..slots).step_by(PART) {
            let part = &mut part[..PART.min((slots - first) as usize)];
            let start = self.at + HEAD + first * 8;
            memory.load_words(start, part)?;
            for (n, slot) in (0..).zip(&*part) {
                if slot & !(0xffff << 32) != wanted {
                    continue;
                }
                let entry = self.entry(memory, start + n * 8, *slot)?;
                let found = &mut found[..key.len()];
                memory.read(entry.key_at, found)?;
                if found == key {
                    return Ok(Some(entry));
                }
            }
        }
        Ok(None)
    }
}

/// The slot of a key whose record begins `record` bytes after its bucket.
pub(crate) fn slot_of(hash: u64, record: u64, key: &[u8]) -> u64 {
    LIVE | hash >> 32 | record << 32 | (key.len() as u64) << 48
}

/// A bucket and those that continue it.
pub(crate) fn chain<M: Load + ?Sized>(
    memory: &M,
    first: Bucket,
) -> impl Iterator<Item = Result<Bucket>> {
    let mut next = Ok(Some(first));
    let mut length = 0;
    std::iter::from_fn(move || {
        let bucket = match std::mem::replace(&mut next, Ok(None)) {
            Ok(bucket) => bucket?,
            Err(error) => return Some(Err(error)),
        };
        length += 1;
        next = match length > CHAIN_MAX {
            true => Err(damaged("bucket", bucket.at, "its chain has no end")),
            false => bucket.next(memory),
        };
        Some(Ok(bucket))
    })
}
