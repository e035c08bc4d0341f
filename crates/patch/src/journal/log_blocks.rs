//! The blocks of a device that hold the log.

use super::JournalError;
use medium::block::Lba;

/// The blocks of a log, in order: runs of a device's blocks, such as those of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBlocks {
    /// For each run, its first block in the log, its first block on the device, and its length
    /// in blocks.
    runs: Vec<(u64, Lba, u64)>,
    blocks: u64,
}

impl LogBlocks {
    /// The place of a log in these runs: first block and length in blocks of each.
    pub fn new(runs: impl IntoIterator<Item = (Lba, u64)>) -> Self {
        let mut place = Self {
            runs: Vec::new(),
            blocks: 0,
        };
        for (lba, len) in runs {
            if len > 0 {
                place.runs.push((place.blocks, lba, len));
                place.blocks += len;
            }
        }
        place
    }

    /// The blocks of the log, in order.
    pub fn lbas(&self) -> impl Iterator<Item = Lba> {
        let runs = self.runs.iter();
        runs.flat_map(|(_, lba, len)| (lba.0..lba.0 + len).map(Lba))
    }

    /// Whether a block of the device is one of the log.
    pub fn contains(&self, lba: Lba) -> bool {
        let mut runs = self.runs.iter();
        runs.any(|(_, first, len)| (first.0..first.0 + len).contains(&lba.0))
    }

    /// Number of blocks of the log.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The place of block `n` of the log on the device.
    ///
    /// # Panics
    /// If the log is shorter.
    pub(super) fn lba(&self, n: u32) -> Lba {
        let n = u64::from(n);
        assert!(n < self.blocks, "block {n} of a log of {}", self.blocks);
        let run = self.runs.partition_point(|(first, _, _)| *first <= n) - 1;
        let (first, lba, _) = self.runs[run];
        Lba(lba.0 + (n - first))
    }

    /// Checks that a device with this number of blocks has all those of the log.
    pub(super) fn check(&self, blocks: u64) -> Result<(), JournalError> {
        let inside = |(_, lba, len): &(u64, Lba, u64)| {
            lba.0.checked_add(*len).is_some_and(|end| end <= blocks)
        };
        if self.blocks == 0 || !self.runs.iter().all(inside) {
            return Err(JournalError::Superblock {
                what: "a log that is not on its device",
            });
        }
        Ok(())
    }
}
