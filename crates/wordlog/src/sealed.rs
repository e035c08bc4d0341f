//! Words that detect a flipped bit: the top bit makes the number of ones even. They are for
//! words that change one by one, each by one store, with which no checksum could change. 0 is
//! sealed.

/// The bit that a value must not have.
const SEAL: u64 = 1 << 63;

/// Seals a value.
#[inline]
pub fn seal(value: u64) -> u64 {
    debug_assert!(value & SEAL == 0, "a value has 63 bits");
    value | u64::from(value.count_ones()) << 63
}

/// The value of a sealed word; `None`: a bit has flipped.
#[inline]
pub fn open(word: u64) -> Option<u64> {
    word.count_ones().is_multiple_of(2).then_some(word & !SEAL)
}
