//! Masks of the bytes of a word: bit `n` stands for byte `n`, the lowest first.

use medium::WORD_BYTES;
use std::ops::Range;

/// All bytes of a word.
pub(super) const WHOLE: u8 = u8::MAX;

/// The mask of a range of bytes, which is not empty.
#[inline]
pub(super) fn of(in_word: Range<usize>) -> u8 {
    (WHOLE >> (8 - in_word.len())) << in_word.start
}

/// The bits of the bytes in a mask.
#[inline]
pub(super) fn bits(mask: u8) -> u64 {
    BITS[usize::from(mask)]
}

static BITS: [u64; 256] = {
    let (mut table, mut mask) = ([0; 256], 0);
    while mask < table.len() {
        let mut byte = 0;
        while byte < WORD_BYTES {
            if mask & 1 << byte != 0 {
                table[mask] |= 0xff << (8 * byte);
            }
            byte += 1;
        }
        mask += 1;
    }
    table
};

/// The ranges of consecutive bytes in a mask, in ascending order.
pub(super) fn spans(mask: u8) -> impl Iterator<Item = Range<usize>> {
    let mut rest = u32::from(mask);
    std::iter::from_fn(move || {
        let start = rest.trailing_zeros();
        let len = (rest >> start.min(31)).trailing_ones();
        let end = start + len;
        (len > 0).then(|| {
            rest &= !0 << end;
            start as usize..end as usize
        })
    })
}

/// Whether one store changes all bytes of the mask and no others: 1, 2, 4 or 8 consecutive
/// bytes at a multiple of their number.
pub(super) fn is_one_store(mask: u8) -> bool {
    let (start, len) = (mask.trailing_zeros(), mask.count_ones());
    len.is_power_of_two()
        && start.is_multiple_of(len)
        && mask == of(start as usize..(start + len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_their_spans() {
        for mask in 0..=WHOLE {
            let spans: Vec<_> = spans(mask).collect();
            let again = spans.iter().fold(0, |all, span| all | of(span.clone()));
            assert_eq!(again, mask);
            assert!(spans.windows(2).all(|two| two[0].end < two[1].start));
            let is_aligned = |span: &Range<usize>| {
                let len = span.len();
                len.is_power_of_two() && span.start.is_multiple_of(len)
            };
            let one = spans.len() == 1 && is_aligned(&spans[0]);
            assert_eq!(is_one_store(mask), one, "{mask:#b}");
            assert_eq!(bits(mask).count_ones(), 8 * mask.count_ones());
        }
    }
}
