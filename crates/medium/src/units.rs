//! Division of a run of bytes into atomic stores.
//!
//! Guarantees: the units of a run are naturally aligned, ascend, do not overlap, cover the run,
//! and are as few as possible.

use crate::WORD_BYTES;

/// One store of 1, 2, 4 or 8 bytes at a naturally aligned offset: a crash leaves all of it or
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit {
    /// First byte, a multiple of `len`.
    pub off: u64,
    /// 1, 2, 4 or 8 bytes.
    pub len: u8,
    /// The new bytes; those from `len` on are zero.
    pub bytes: [u8; 8],
}

impl Unit {
    /// Offset of the aligned word that holds the unit.
    pub fn word_off(&self) -> u64 {
        self.off - self.off % WORD_BYTES
    }

    /// The value (little-endian) of that word once the unit is stored over `old`.
    pub fn apply(&self, old: u64) -> u64 {
        let skip = (self.off % WORD_BYTES) as usize;
        let len = self.len as usize;
        let mut word = old.to_le_bytes();
        word[skip..skip + len].copy_from_slice(&self.bytes[..len]);
        u64::from_le_bytes(word)
    }
}

/// The atomic stores that [`Pmem::store`](crate::Pmem::store) of `bytes` at `off` makes.
pub fn units(off: u64, bytes: &[u8]) -> impl Iterator<Item = Unit> + '_ {
    let mut at = off;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = unit_len(at, rest.len())?;
        let (head, tail) = rest.split_at(len);
        let mut unit = Unit {
            off: at,
            len: len as u8,
            bytes: [0; 8],
        };
        unit.bytes[..len].copy_from_slice(head);
        at += len as u64;
        rest = tail;
        Some(unit)
    })
}

/// Number of units that [`units`] yields for `len` bytes at `off`.
pub fn unit_count(off: u64, len: u64) -> u64 {
    let head = (off.wrapping_neg() % WORD_BYTES).min(len);
    let words = (len - head) / WORD_BYTES;
    let tail = (len - head) % WORD_BYTES;
    let narrow = if words == 0 && tail == 0 {
        narrow_count(off, head)
    } else {
        // A head that ends on a word boundary and a tail that begins on one take
        // one unit per binary digit.
        u64::from(head.count_ones() + tail.count_ones())
    };
    words + narrow
}

fn narrow_count(mut off: u64, mut len: u64) -> u64 {
    let mut count = 0;
    while let Some(step) = unit_len(off, len as usize) {
        off += step as u64;
        len -= step as u64;
        count += 1;
    }
    count
}

/// Bytes of the widest unit that may start at `off` with `len` bytes left.
fn unit_len(off: u64, len: usize) -> Option<usize> {
    let aligned = 1usize << off.trailing_zeros().min(3);
    let fits = 1usize << len.checked_ilog2()?.min(3);
    Some(aligned.min(fits))
}

/// The offsets of the lines that `off..off + len` touches.
pub(crate) fn lines(off: u64, len: u64) -> impl Iterator<Item = u64> {
    let first = off - off % crate::LINE_BYTES;
    let end = if len == 0 {
        first
    } else {
        off.saturating_add(len)
    };
    (first..end).step_by(crate::LINE_BYTES as usize)
}

/// Number of lines that `off..off + len` touches.
pub(crate) fn line_count(off: u64, len: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    let last = off.saturating_add(len - 1) / crate::LINE_BYTES;
    last - off / crate::LINE_BYTES + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_aligned_word_is_one_unit() {
        for (off, len) in [(0, 8), (8, 8), (4, 4), (6, 2), (7, 1)] {
            assert_eq!(units(off, &vec![1; len]).count(), 1, "{len} at {off}");
        }
    }

    proptest! {
        #[test]
        fn units_cover_aligned_and_counted(
            off in 0u64..64,
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut at = off;
            for unit in units(off, &bytes) {
                prop_assert_eq!(unit.off, at);
                prop_assert_eq!(unit.off % u64::from(unit.len), 0);
                let from = (at - off) as usize;
                let len = unit.len as usize;
                prop_assert_eq!(&unit.bytes[..len], &bytes[from..from + len]);
                at += u64::from(unit.len);
            }
            prop_assert_eq!(at, off + bytes.len() as u64);
            let len = bytes.len() as u64;
            prop_assert_eq!(units(off, &bytes).count() as u64, unit_count(off, len));
            prop_assert_eq!(lines(off, len).count() as u64, line_count(off, len));
        }
    }
}
