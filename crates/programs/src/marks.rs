//! Marks of programs, and hashes of the states that they read.

/// A mark: a transaction has begun.
pub const BEGUN: u64 = 1;
/// A mark: a transaction has returned.
pub const RETURNED: u64 = 2;

/// A mark of a kind, with a count.
pub fn mark_of(what: u64, count: usize) -> u64 {
    what << 32 | count as u64
}

/// The largest count of a mark of this kind.
pub fn count_of(marks: &[u64], what: u64) -> usize {
    let of_kind = marks.iter().filter(|mark| **mark >> 32 == what);
    let counts = of_kind.map(|mark| (*mark & 0xffff_ffff) as usize);
    counts.max().unwrap_or(0)
}

/// An error as the explorer takes it.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A hash of words that a program read.
pub fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, w| {
        (h ^ w).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    })
}
