//! GPT: a header and a table, both with checksums, and a backup of both at the device's end.

use super::{Disk, Partition, PartitionError, number};

/// Sector sizes to try.
const SECTORS: [u32; 2] = [512, 4096];
/// Most bytes of a table; the usual size is 16 KiB.
const MAX_TABLE: u64 = 1 << 20;
const SIGNATURE: &[u8] = b"EFI PART";

/// A header with a valid checksum.
struct Header {
    first_usable: u64,
    last_usable: u64,
    table: u64,
    entries: u64,
    entry_bytes: u64,
    table_crc: u32,
}

/// Why a header and its table cannot be used.
type Unusable = String;

pub(super) fn partitions(disk: &Disk<'_>) -> Result<Vec<Partition>, PartitionError> {
    let mut reasons = Vec::new();
    for sector in SECTORS {
        let sectors = disk.bytes() / u64::from(sector);
        for (place, at) in [("first", 1), ("backup", sectors.saturating_sub(1))] {
            match table(disk, at, sector)? {
                Ok(partitions) => {
                    if place == "backup" {
                        let device = disk.device.name();
                        tracing::warn!("{device}: the backup of its partition table is in use");
                    }
                    return Ok(partitions);
                }
                Err(Some(what)) => reasons.push(format!("{place} header: {what}")),
                Err(None) => {}
            }
        }
    }
    Err(disk.damaged(match reasons.is_empty() {
        true => "it has no GPT, although its first sector says so".into(),
        false => reasons.join("; "),
    }))
}

/// The partitions of a header; the inner error is `None` if there is no header.
type Table = Result<Vec<Partition>, Option<Unusable>>;

fn table(disk: &Disk<'_>, at: u64, sector: u32) -> Result<Table, PartitionError> {
    let Some(bytes) = disk
        .sector(at, sector)?
        .filter(|bytes| bytes.starts_with(SIGNATURE))
    else {
        return Ok(Err(None));
    };
    let header = match Header::parse(&bytes, at) {
        Ok(header) => header,
        Err(what) => return Ok(Err(Some(what))),
    };
    let len = header.entries * header.entry_bytes;
    let start = header.table.checked_mul(u64::from(sector));
    let bytes = match start {
        Some(start) => disk.read(start, len as usize)?,
        None => None,
    };
    let Some(bytes) = bytes else {
        return Ok(Err(Some("its table lies beyond the device".into())));
    };
    if crc32fast::hash(&bytes) != header.table_crc {
        return Ok(Err(Some("its table has a wrong checksum".into())));
    }
    Ok(header.partitions(&bytes, sector).map_err(Some))
}

impl Header {
    /// Parses the header in `sector`, of at least 512 bytes.
    fn parse(sector: &[u8], at: u64) -> Result<Self, Unusable> {
        let len = number::<4>(sector, 12);
        if !(92..=512).contains(&len) {
            return Err(format!("a length of {len} bytes"));
        }
        let mut covered = sector[..len as usize].to_vec();
        covered[16..20].fill(0);
        if u64::from(crc32fast::hash(&covered)) != number::<4>(sector, 16) {
            return Err("a wrong checksum".into());
        }
        if number::<8>(sector, 24) != at {
            return Err("it belongs to another place".into());
        }
        let header = Self {
            first_usable: number::<8>(sector, 40),
            last_usable: number::<8>(sector, 48),
            table: number::<8>(sector, 72),
            entries: number::<4>(sector, 80),
            entry_bytes: number::<4>(sector, 84),
            table_crc: number::<4>(sector, 88) as u32,
        };
        let bytes = header.entry_bytes;
        if bytes < 128 || !bytes.is_power_of_two() {
            return Err(format!("entries of {bytes} bytes"));
        }
        match header.entries.checked_mul(bytes) {
            Some(len) if len <= MAX_TABLE => Ok(header),
            _ => Err(format!("a table of {} entries", header.entries)),
        }
    }

    fn partitions(&self, table: &[u8], sector: u32) -> Result<Vec<Partition>, Unusable> {
        let mut found = Vec::new();
        for (number_of, entry) in (1..).zip(table.chunks(self.entry_bytes as usize)) {
            if entry[..16] == [0; 16] {
                continue;
            }
            let (first, last) = (number::<8>(entry, 32), number::<8>(entry, 40));
            if first > last || first < self.first_usable || last > self.last_usable {
                return Err(format!(
                    "partition {number_of} from sector {first} to {last}"
                ));
            }
            let bytes = |sectors: u64| sectors.checked_mul(u64::from(sector));
            let ends = bytes(first).zip((last - first).checked_add(1).and_then(bytes));
            match ends.filter(|(start, len)| start.checked_add(*len).is_some()) {
                Some((start, len_bytes)) => found.push(Partition {
                    number: number_of,
                    start,
                    len_bytes,
                }),
                None => return Err(format!("partition {number_of} beyond any device")),
            }
        }
        Ok(found)
    }
}
