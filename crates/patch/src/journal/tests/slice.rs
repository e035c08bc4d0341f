//! A layer with a range of the blocks of the store below.

use crate::{Before, Change, Content, Op, Patched, Store, StoreError, StoreLayer};
use medium::block::{Buffer, Lba};
use std::ops::Range;
use std::sync::Arc;

/// A range of blocks, counted from 0.
pub(super) struct Slice<S> {
    below: S,
    blocks: Range<u64>,
}

impl<S: Store> Slice<S> {
    pub(super) fn new(below: S, blocks: Range<u64>) -> Self {
        assert!(blocks.end <= below.blocks());
        Self { below, blocks }
    }

    fn at(&self, lba: Lba) -> Lba {
        let below = self.blocks.start + lba.0;
        assert!(self.blocks.contains(&below), "{lba} of {:?}", self.blocks);
        Lba(below)
    }
}

impl<S: Store> StoreLayer for Slice<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.below
    }

    fn blocks(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        self.below.read(self.at(lba))
    }

    fn cached(&self, lba: Lba) -> Option<Arc<Buffer>> {
        self.below.cached(self.at(lba))
    }

    fn prefetch(&self, lba: Lba, blocks: u64) {
        self.below.prefetch(self.at(lba), blocks);
    }

    fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError> {
        let blocks: Vec<Lba> = blocks.iter().map(|lba| self.at(*lba)).collect();
        self.below.ready(&blocks)
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        self.below
            .change(op, self.at(lba), content, change, befores)
    }

    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        self.below.freed(op, self.at(lba), befores, unreachable)
    }
}
