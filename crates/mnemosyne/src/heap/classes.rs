//! Sizes: of pages, descriptors, and small blocks.

use medium::{LINE_BYTES, WORD_BYTES};

/// Bytes in a page.
pub const PAGE_BYTES: u64 = 8192;
/// The number of bits in a descriptor.
pub(super) const BITS: u32 = BIT_WORDS as u32 * WORD_BITS;
/// The number of words of a descriptor that have bits.
pub(super) const BIT_WORDS: usize = (LINE_BYTES / WORD_BYTES - 1) as usize;
/// The number of bits in each of these words, which are sealed.
pub(super) const WORD_BITS: u32 = 63;

/// The sizes of small blocks in bytes. Up to 768 they differ by about a quarter; two to eight of
/// the larger ones fit in a page. A request for a multiple of 64 gets one.
const SIZES: [u16; 24] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1344,
    1600, 2048, 2688, 4096,
];

/// The number of sizes.
pub(super) const CLASSES: usize = SIZES.len();

/// A size of small blocks, by its index in [`SIZES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// The class of that number, if there is one.
    pub(super) fn new(number: u64) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        (usize::from(number) < CLASSES).then_some(Self(number))
    }

    /// The smallest class for that many bytes. `None`: the block takes whole pages.
    pub(super) fn of(bytes: u64) -> Option<Self> {
        let number = SIZES.partition_point(|size| u64::from(*size) < bytes);
        (number < CLASSES).then_some(Self(number as u8))
    }

    pub(super) fn number(self) -> usize {
        self.0.into()
    }

    /// The bytes of a block.
    pub(super) fn size(self) -> u64 {
        SIZES[self.number()].into()
    }

    /// The number of blocks in a superblock: those that fit and have a bit.
    pub(super) fn capacity(self) -> u32 {
        ((PAGE_BYTES / self.size()) as u32).min(BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_promised() {
        assert!(SIZES.is_sorted());
        for bytes in 1..=4096 {
            let size = Class::of(bytes).unwrap().size();
            assert!(size >= bytes && size.is_multiple_of(16));
            assert!(
                !bytes.is_multiple_of(64) || size.is_multiple_of(64),
                "{bytes}: {size}"
            );
        }
        assert_eq!(Class::of(4097), None);
    }

    #[test]
    fn the_format_has_the_same_sizes() {
        let lines = include_str!("../../format.md").lines();
        let rows = lines.filter_map(|line| line.strip_prefix("| bytes |"));
        let cells = rows.flat_map(|row| row.split('|'));
        let numbers = cells.map(|cell| cell.trim().replace(',', ""));
        let said: Vec<u16> = numbers.filter_map(|number| number.parse().ok()).collect();
        assert_eq!(said, SIZES);
    }
}
