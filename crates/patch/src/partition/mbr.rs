//! MBR: four entries in the first sector, and a chain of records for logical partitions.

use super::{Disk, Partition, PartitionError, number};

/// A sector with entries: the MBR, or a record of the chain.
pub(super) struct BootRecord {
    entries: [Entry; 4],
}

#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    /// First sector, counted from a sector that depends on the record.
    start: u64,
    /// Length in sectors.
    len: u64,
}

/// Types of entries that hold a chain.
const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// The type of the entry that protects a GPT.
const PROTECTIVE: u8 = 0xEE;
/// Most logical partitions.
const MAX_LOGICAL: u32 = 256;

impl BootRecord {
    /// Parses a sector of 512 bytes; `None` if it has no table.
    pub(super) fn parse(sector: &[u8]) -> Option<Self> {
        let entry = |index: usize| {
            let bytes = &sector[446 + 16 * index..][..16];
            let entry = Entry {
                kind: bytes[4],
                start: number::<4>(bytes, 8),
                len: number::<4>(bytes, 12),
            };
            // Boot sectors of file systems have the same signature, but code in these bytes.
            matches!(bytes[0], 0 | 0x80).then_some(entry)
        };
        if sector[510..512] != [0x55, 0xAA] {
            return None;
        }
        let entries = [entry(0)?, entry(1)?, entry(2)?, entry(3)?];
        Some(Self { entries })
    }

    pub(super) fn is_protective(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == PROTECTIVE)
    }
}

impl Entry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.len > 0
    }

    fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }

    /// The partition of an entry that counts from sector `from`.
    fn partition(&self, number: u32, from: u64, sector: u32) -> Partition {
        Partition {
            number,
            start: (from + self.start) * u64::from(sector),
            len_bytes: self.len * u64::from(sector),
        }
    }
}

pub(super) fn partitions(
    disk: &Disk<'_>,
    record: &BootRecord,
    sector: u32,
) -> Result<Vec<Partition>, PartitionError> {
    let mut found = Vec::new();
    let used = (1..)
        .zip(record.entries)
        .filter(|(_, entry)| entry.is_used());
    for (number, entry) in used.clone().filter(|(_, entry)| !entry.is_extended()) {
        found.push(entry.partition(number, 0, sector));
    }
    for (_, extended) in used.filter(|(_, entry)| entry.is_extended()) {
        let next = 5 + found.iter().filter(|p| p.number > 4).count() as u32;
        found.extend(logical(disk, extended, next, sector)?);
    }
    Ok(found)
}

/// Follows the chain of an extended partition. Each record has a partition, counted from the
/// record, and the place of the next record, counted from the extended partition.
fn logical(
    disk: &Disk<'_>,
    extended: Entry,
    first: u32,
    sector: u32,
) -> Result<Vec<Partition>, PartitionError> {
    let mut found = Vec::new();
    let mut at = 0;
    for _ in 0..MAX_LOGICAL {
        let here = extended.start + at;
        let bytes = disk.sector(here, sector)?;
        let Some(record) = bytes.as_deref().and_then(BootRecord::parse) else {
            return Err(disk.damaged(format_args!(
                "sector {here} should have the record of a logical partition"
            )));
        };
        let is_data = |entry: &&Entry| entry.is_used() && !entry.is_extended();
        if let Some(entry) = record.entries.iter().find(is_data) {
            let number = first + found.len() as u32;
            if at + entry.start + entry.len > extended.len {
                return Err(disk.damaged(format_args!(
                    "partition {number} ends beyond the extended partition"
                )));
            }
            found.push(entry.partition(number, here, sector));
        }
        match record
            .entries
            .iter()
            .find(|entry| entry.is_used() && entry.is_extended())
        {
            None => return Ok(found),
            Some(next) if next.start < extended.len => at = next.start,
            Some(_) => {
                let what = "a record lies beyond the extended partition";
                return Err(disk.damaged(what));
            }
        }
    }
    Err(disk.damaged("the chain of logical partitions has no end"))
}
