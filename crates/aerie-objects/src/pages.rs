//! Sets of pages.

use crate::layout::PAGE;

/// A set of pages, by their byte offsets.
pub(crate) struct Pages(Vec<u64>);

impl Pages {
    /// None of the pages of a store with this number of bytes.
    pub(crate) fn none_of(bytes: u64) -> Self {
        Self(vec![0; bytes.div_ceil(PAGE * 64) as usize])
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        let number = page / PAGE;
        self.0[(number / 64) as usize] & 1 << (number % 64) != 0
    }

    pub(crate) fn insert(&mut self, page: u64) {
        let number = page / PAGE;
        self.0[(number / 64) as usize] |= 1 << (number % 64);
    }
}
