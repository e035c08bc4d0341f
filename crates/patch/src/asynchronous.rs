//! No order at all: what file systems without soft updates or journal promise (2.4.2).

use crate::{Before, Change, Content, Op, PatchId, Patched, Store, StoreError};
use medium::block::{BlockError, Buffer, Lba};
use std::sync::Arc;

/// A store that forgets every before. After a crash the file system needs a checker; it is
/// the control in crash tests, and the fastest.
pub struct Async<S>(pub S);

impl<S: Store> Store for Async<S> {
    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        self.0.read(lba)
    }
    fn cached(&self, lba: Lba) -> Option<Arc<Buffer>> {
        self.0.cached(lba)
    }
    fn prefetch(&self, lba: Lba, blocks: u64) {
        self.0.prefetch(lba, blocks);
    }
    fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError> {
        self.0.ready(blocks)
    }
    fn max_op_blocks(&self) -> u32 {
        self.0.max_op_blocks()
    }
    fn is_atomic(&self) -> bool {
        self.0.is_atomic()
    }
    fn begin(&self, blocks: u32) -> Result<Op, StoreError> {
        self.0.begin(blocks)
    }
    fn end(&self, op: Op) {
        self.0.end(op);
    }
    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        _befores: &[Before],
    ) -> Result<Patched, StoreError> {
        self.0.change(op, lba, content, change, &[])
    }
    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        _befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        self.0.freed(op, lba, &[], unreachable)
    }
    fn is_pending(&self, patch: PatchId) -> bool {
        self.0.is_pending(patch)
    }
    fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        self.0.sync(patches)
    }
    fn sync_all(&self) -> Result<(), StoreError> {
        self.0.sync_all()
    }
    fn failure(&self) -> Option<Arc<BlockError>> {
        self.0.failure()
    }
}
