//! Words that tell when one of their bits has flipped: the top one makes the number of ones
//! even. For words that are changed one by one, each by one store, so that no checksum could
//! go with them. 0 is sealed.

/// The bit that a value must not have.
const SEAL: u64 = 1 << 63;

/// Seals a value.
#[inline]
pub fn seal(value: u64) -> u64 {
    debug_assert!(value & SEAL == 0, "a value has 63 bits");
    value | u64::from(value.count_ones()) << 63
}

/// The value; `None`: a bit has flipped.
#[inline]
pub fn open(word: u64) -> Option<u64> {
    word.count_ones().is_multiple_of(2).then_some(word & !SEAL)
}
