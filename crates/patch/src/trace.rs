//! Every change and every sync as a line of the log, for debugging.

use crate::{Before, Caller, Change, Content, Op, PatchId, Patched, Store, StoreError, StoreLayer};
use medium::block::Lba;

/// A store that reports its changes and syncs as `tracing` events of level `TRACE` with the
/// target `patch::trace`. It changes nothing.
pub struct Trace<S>(pub S);

/// A change without its bytes: offset and length, or the mask.
fn shape(change: Change<'_>) -> String {
    match change {
        Change::Bytes { at, bytes } => format!("{at}+{}", bytes.len()),
        Change::Flip { at, mask } => format!("{at}^{mask:#x}"),
    }
}

impl<S: Store> StoreLayer for Trace<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.0
    }

    fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError> {
        let begun = self.0.begin(blocks, caller.clone());
        tracing::trace!(target: "patch::trace", blocks, ?caller, ok = begun.is_ok(), "begin");
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

    fn empty(&self, befores: &[Before], held: bool) -> PatchId {
        let empty = self.0.empty(befores, held);
        tracing::trace!(target: "patch::trace", ?befores, held, ?empty, "empty");
        empty
    }
    fn set_befores(&self, empty: PatchId, befores: &[Before]) {
        tracing::trace!(target: "patch::trace", ?empty, ?befores, "set_befores");
        self.0.set_befores(empty, befores);
    }
    fn add_before(&self, empty: PatchId, before: Before) {
        tracing::trace!(target: "patch::trace", ?empty, ?before, "add_before");
        self.0.add_before(empty, before);
    }
    fn release(&self, empty: PatchId) {
        tracing::trace!(target: "patch::trace", ?empty, "release");
        self.0.release(empty);
    }
}
