//! Every change and every wait as a line of the log, for debugging.

use crate::{Before, Change, Content, Op, PatchId, Patched, Store, StoreError};
use medium::block::{BlockError, Buffer, Lba};
use std::sync::Arc;

/// A store that tells what is done to it, as `tracing` events of level `TRACE` with the
/// target `patch::trace`. Adds and changes nothing.
pub struct Trace<S>(pub S);

/// A change without its bytes: offset and length, or the mask.
fn shape(change: Change<'_>) -> String {
    match change {
        Change::Bytes { at, bytes } => format!("{at}+{}", bytes.len()),
        Change::Flip { at, mask } => format!("{at}^{mask:#x}"),
    }
}

impl<S: Store> Store for Trace<S> {
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
        let begun = self.0.begin(blocks);
        tracing::trace!(target: "patch::trace", blocks, ok = begun.is_ok(), "begin");
        begun
    }
    fn end(&self, op: Op) {
        tracing::trace!(target: "patch::trace", "end");
        self.0.end(op);
    }
    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let patched = self.0.change(op, lba, content, change, befores);
        let shape =
            tracing::enabled!(target: "patch::trace", tracing::Level::TRACE).then(|| shape(change));
        tracing::trace!(
            target: "patch::trace", %lba, ?content, shape, ?befores, ?patched, "change"
        );
        patched
    }
    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        tracing::trace!(target: "patch::trace", %lba, ?befores, unreachable, "freed");
        self.0.freed(op, lba, befores, unreachable)
    }
    fn is_pending(&self, patch: PatchId) -> bool {
        self.0.is_pending(patch)
    }
    fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        let synced = self.0.sync(patches);
        tracing::trace!(target: "patch::trace", ?patches, ?synced, "sync");
        synced
    }
    fn sync_all(&self) -> Result<(), StoreError> {
        let synced = self.0.sync_all();
        tracing::trace!(target: "patch::trace", ?synced, "sync_all");
        synced
    }
    fn failure(&self) -> Option<Arc<BlockError>> {
        self.0.failure()
    }
}
