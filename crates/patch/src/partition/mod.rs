//! Partitions of a device: tables of MBR (with logical partitions) and GPT.
//!
//! # Guarantees
//! - A partition lies within its device and overlaps no other. No access leaves it.
//! - A GPT is used only if header and entries have valid checksums. If the first GPT is
//!   damaged, the backup at the end of the device is used.
//! - Tables are untrusted: any contents give a partition or an error, in bounded time.
//! - A partition begins at a block of the device. Devices address whole blocks of the file
//!   system's size, so one that begins inside a block is refused.
//!
//! Numbers are those of Linux. In an MBR, 1 to 4 are primary partitions, and logical ones begin
//! at 5. In a GPT, they are the entries of the table, from 1.

mod device;
mod gpt;
mod mbr;
#[cfg(test)]
mod tests;

pub use device::PartitionDevice;

use medium::block::{BlockDevice, BlockError, Buffer, Lba};

/// A partition: its number, and its place on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Number of the partition, from 1.
    pub number: u32,
    /// Offset of the first byte on the device.
    pub start: u64,
    /// Length in bytes; not 0.
    pub len_bytes: u64,
}

impl Partition {
    fn end(&self) -> u64 {
        self.start + self.len_bytes
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// Why a partition cannot be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PartitionError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// The device has neither MBR nor GPT.
    #[error("{device}: it has no partition table")]
    NoTable {
        /// The device.
        device: String,
    },
    /// The table contradicts itself.
    #[error("{device}: the partition table is damaged: {what}")]
    Damaged {
        /// The device.
        device: String,
        /// The defect.
        what: String,
    },
    /// The table does not have this partition.
    #[error("{device}: there is no partition {number}; the table has {known}")]
    Missing {
        /// The device.
        device: String,
        /// The requested number.
        number: u32,
        /// The numbers in the table.
        known: String,
    },
    /// The partition begins inside a block of the device.
    #[error(
        "{device}: partition {number} begins at byte {start}, inside a block of {block_bytes} \
         bytes, and the layer below addresses whole blocks; replace the layer partition by \
         the mount option offset={start}"
    )]
    Misaligned {
        /// The device.
        device: String,
        /// Number of the partition.
        number: u32,
        /// Offset of the partition's first byte.
        start: u64,
        /// Bytes in a block of the device.
        block_bytes: u32,
    },
}

/// All partitions of a device. `sector` is the size of its logical sectors in bytes, which an
/// MBR uses as its unit; the place of a GPT's header shows the size.
///
/// # Errors
/// [`PartitionError`].
pub fn partitions(device: &dyn BlockDevice, sector: u32) -> Result<Vec<Partition>, PartitionError> {
    let disk = Disk { device };
    let first = disk.sector(0, 512)?.ok_or_else(|| disk.no_table())?;
    match mbr::BootRecord::parse(&first) {
        Some(record) if record.is_protective() => gpt::partitions(&disk),
        Some(record) => mbr::partitions(&disk, &record, sector),
        None => Err(disk.no_table()),
    }
}

/// The partition with this number, within the device and without overlaps.
///
/// # Errors
/// [`PartitionError`].
pub fn find(
    device: &dyn BlockDevice,
    sector: u32,
    number: u32,
) -> Result<Partition, PartitionError> {
    let all = partitions(device, sector)?;
    let disk = Disk { device };
    let Some(found) = all.iter().find(|partition| partition.number == number) else {
        let numbers: Vec<String> = all.iter().map(|p| p.number.to_string()).collect();
        return Err(PartitionError::Missing {
            device: device.name().into(),
            number,
            known: match numbers.is_empty() {
                true => "none".into(),
                false => numbers.join(", "),
            },
        });
    };
    if found.end() > disk.bytes() {
        return Err(disk.damaged(format_args!("partition {number} ends beyond the device")));
    }
    let other = all
        .iter()
        .find(|other| *other != found && other.overlaps(found));
    match other {
        None => Ok(*found),
        Some(other) => Err(disk.damaged(format_args!(
            "partitions {number} and {} overlap",
            other.number
        ))),
    }
}

/// A device that is read at offsets in bytes.
struct Disk<'a> {
    device: &'a dyn BlockDevice,
}

impl Disk<'_> {
    fn bytes(&self) -> u64 {
        self.device.geometry().bytes()
    }

    /// Reads bytes; `None` if they are not on the device.
    fn read(&self, start: u64, len: usize) -> Result<Option<Vec<u8>>, BlockError> {
        let Some(end) = start
            .checked_add(len as u64)
            .filter(|end| *end <= self.bytes())
        else {
            return Ok(None);
        };
        if len == 0 {
            return Ok(Some(Vec::new()));
        }
        let block = u64::from(self.device.geometry().block_bytes);
        let first = start / block;
        let blocks = end.div_ceil(block) - first;
        let mut buffer = Buffer::zeroed((blocks * block) as usize);
        self.device.read(Lba(first), &mut buffer)?;
        let skip = (start - first * block) as usize;
        Ok(Some(buffer[skip..skip + len].to_vec()))
    }

    /// Reads the first 512 bytes of a sector; `None` if it is not on the device.
    fn sector(&self, number: u64, sector: u32) -> Result<Option<Vec<u8>>, BlockError> {
        match number.checked_mul(u64::from(sector)) {
            Some(start) => self.read(start, 512),
            None => Ok(None),
        }
    }

    fn no_table(&self) -> PartitionError {
        PartitionError::NoTable {
            device: self.device.name().into(),
        }
    }

    fn damaged(&self, what: impl std::fmt::Display) -> PartitionError {
        PartitionError::Damaged {
            device: self.device.name().into(),
            what: what.to_string(),
        }
    }
}

/// The little-endian number at `at`, of at most 8 bytes.
fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number[..BYTES].copy_from_slice(&bytes[at..at + BYTES]);
    u64::from_le_bytes(number)
}
