//! The records of the table: partitions and access lists.
//!
//! Guarantees: a crash during [`Records::put`] leaves the old record or the new one, and during
//! [`Records::remove`] the record or none. Both are durable when they return. Loading reads each
//! slot once, whatever its bytes are.

use crate::error::{Finding, ScmError};
use crate::format::{Geometry, Key, Record, SLOT_BYTES, SLOTS_OFF, Slot};
use crate::seeded::{Bug, hit};
use medium::{MediumError, Pmem, Rule, WORD_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::{FromZeros, IntoBytes};

/// The highest sequence number that a table may have: others follow it.
const LAST_SEQUENCE: u64 = 1 << 62;

/// The records in memory, and the slots that have them.
pub(crate) struct Records {
    map: BTreeMap<Key, Stored>,
    free: BTreeSet<u64>,
    /// Slots with an older version of a record, which a crash left.
    remnants: Vec<u64>,
    next_sequence: u64,
}

struct Stored {
    slot: u64,
    sequence: u64,
    record: Record,
}

impl Records {
    /// Reads all records. The findings are the violations; a broken record is left out.
    pub(crate) fn load(
        table: &impl Pmem,
        geometry: &Geometry,
    ) -> Result<(Self, Vec<Finding>), MediumError> {
        let mut records = Self {
            map: BTreeMap::new(),
            free: BTreeSet::new(),
            remnants: Vec::new(),
            next_sequence: 1,
        };
        let mut findings = Vec::new();
        for number in 0..geometry.slots {
            let mut slot = Slot::new_zeroed();
            table.read(slot_off(number), slot.as_mut_bytes())?;
            match slot.record() {
                Ok(None) => {
                    records.free.insert(number);
                }
                Ok(Some((key, record))) => {
                    let sequence = slot.sequence.get();
                    let new = Stored {
                        slot: number,
                        sequence,
                        record,
                    };
                    findings.extend(records.add(key, new));
                }
                Err(mut finding) => {
                    finding.what = format!("slot {number}: {}", finding.what);
                    findings.push(finding);
                }
            }
        }
        Ok((records, findings))
    }

    /// Adds a record that was read. Of two versions the newer one counts (S4).
    fn add(&mut self, key: Key, new: Stored) -> Option<Finding> {
        let (slot, sequence) = (new.slot, new.sequence);
        let broken = |what: &str| Some(Finding::new("S4", format!("slot {slot}: {what}")));
        if sequence == 0 || sequence > LAST_SEQUENCE {
            return broken("its sequence number is impossible");
        }
        self.next_sequence = self.next_sequence.max(sequence + 1);
        let Some(other) = self.map.get(&key) else {
            self.map.insert(key, new);
            return None;
        };
        if other.sequence == sequence {
            return broken("another slot has the same record with the same sequence number");
        }
        match other.sequence < sequence {
            true => self.remnants.push(other.slot),
            false => self.remnants.push(slot),
        }
        if other.sequence < sequence {
            self.map.insert(key, new);
        }
        match self.remnants.len() {
            0 | 1 => None,
            _ => broken("more than one record has two versions"),
        }
    }

    /// Removes what a crash left.
    pub(crate) fn tidy(&mut self, table: &impl Pmem) -> Result<(), ScmError> {
        while let Some(slot) = self.remnants.pop() {
            self.clear(table, slot)?;
        }
        Ok(())
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Record> {
        self.map.get(&key).map(|stored| &stored.record)
    }

    /// All records, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Record)> {
        self.map.iter().map(|(key, stored)| (*key, &stored.record))
    }

    /// Adds a record, or replaces that with the same key.
    pub(crate) fn put(
        &mut self,
        table: &impl Pmem,
        key: Key,
        record: Record,
    ) -> Result<(), ScmError> {
        let old = self.map.get(&key).map(|stored| stored.slot);
        // One slot stays free, so that records can always be replaced.
        let needed = if old.is_some() { 1 } else { 2 };
        let slot = self.free.first().copied();
        let Some(slot) = slot.filter(|_| self.free.len() >= needed) else {
            return Err(ScmError::TableFull);
        };
        let sequence = self.next_sequence;
        let bytes = Slot::new(key, sequence, record.body());
        let off = slot_off(slot);
        table.store(off + WORD_BYTES, &bytes.as_bytes()[WORD_BYTES as usize..]);
        table.flush(off, SLOT_BYTES);
        if !hit(Bug::SealBeforeRecord) {
            table.fence(Rule::InitialiseBeforePoint)?;
        }
        table.store_word(off, bytes.seal.get());
        table.flush(off, WORD_BYTES);
        if old.is_none() || !hit(Bug::RemoveBeforeReplaced) {
            table.fence(Rule::LinkBeforeUnlink)?;
        }
        self.free.remove(&slot);
        self.next_sequence += 1;
        let new = Stored {
            slot,
            sequence,
            record,
        };
        self.map.insert(key, new);
        match old {
            Some(old) => self.clear(table, old),
            None => Ok(()),
        }
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, table: &impl Pmem, key: Key) -> Result<(), ScmError> {
        match self.map.remove(&key) {
            Some(stored) => self.clear(table, stored.slot),
            None => Ok(()),
        }
    }

    /// Frees a slot, durably: its bytes are overwritten later.
    fn clear(&mut self, table: &impl Pmem, slot: u64) -> Result<(), ScmError> {
        table.store_word(slot_off(slot), 0);
        table.flush(slot_off(slot), WORD_BYTES);
        table.fence(Rule::NullifyBeforeReuse)?;
        self.free.insert(slot);
        Ok(())
    }
}

fn slot_off(slot: u64) -> u64 {
    SLOTS_OFF + slot * SLOT_BYTES
}
