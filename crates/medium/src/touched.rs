//! The pages that `msync` has yet to write back.
//!
//! Guarantee: a page that was marked before a call of [`Touched::take`] is returned by that
//! call or an earlier one.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Unit of marking in bytes. Real pages may be larger; the caller rounds.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A bit for each page, and a bit for each group of 64 pages. The second level makes it fast to
/// find the few marked pages of a large region.
pub(crate) struct Touched {
    pages: Box<[AtomicU64]>,
    groups: Box<[AtomicU64]>,
}

impl Touched {
    /// No marks in `len` bytes.
    pub(crate) fn new(len: u64) -> Self {
        let words = len.div_ceil(PAGE_BYTES).div_ceil(64);
        let zeroed = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            pages: zeroed(words),
            groups: zeroed(words.div_ceil(64)),
        }
    }

    /// Marks the pages of `off..off + len`, which must lie inside. To be called after the
    /// stores: an earlier mark may be taken before them.
    pub(crate) fn mark(&self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        for page in off / PAGE_BYTES..=(off + len - 1) / PAGE_BYTES {
            // Always a read-modify-write, even if the bit is set: it orders the earlier stores
            // before a `take` that is clearing the bit.
            set(&self.pages, page);
            set(&self.groups, page / 64);
        }
    }

    /// Clears all marks and calls `each` with the marked runs of bytes.
    pub(crate) fn take(&self, mut each: impl FnMut(Range<u64>)) {
        let mut run: Range<u64> = 0..0;
        for (i, groups) in self.groups.iter().enumerate() {
            // Groups before pages, the reverse of the order in `mark`. If the group of a page
            // is no longer set, the page has been taken or is about to be, below.
            for group in bits(groups.swap(0, SeqCst)) {
                let word = i as u64 * 64 + group;
                for page in bits(self.pages[word as usize].swap(0, SeqCst)) {
                    let start = (word * 64 + page) * PAGE_BYTES;
                    if run.end != start {
                        emit(&run, &mut each);
                        run.start = start;
                    }
                    run.end = start + PAGE_BYTES;
                }
            }
        }
        emit(&run, &mut each);
    }
}

fn set(words: &[AtomicU64], bit: u64) {
    words[(bit / 64) as usize].fetch_or(1 << (bit % 64), SeqCst);
}

/// The positions of the one bits, ascending.
fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| u64::from(word.trailing_zeros()));
        word &= word.wrapping_sub(1);
        bit
    })
}

fn emit(run: &Range<u64>, each: &mut impl FnMut(Range<u64>)) {
    if !run.is_empty() {
        each(run.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(t: &Touched) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        t.take(|run| runs.push(run));
        runs
    }

    #[test]
    fn runs_are_merged_and_taken_once() {
        let t = Touched::new(1 << 30);
        t.mark(0, 1);
        t.mark(4095, 2);
        t.mark(64 * 4096 - 1, 2);
        t.mark((1 << 30) - 1, 1);
        t.mark(5 << 20, 0);
        let page = |n: u64| n * 4096;
        let last = (1 << 30) - 4096;
        assert_eq!(
            taken(&t),
            [0..page(2), page(63)..page(65), last..last + 4096]
        );
        assert_eq!(taken(&t), []);
    }
}
