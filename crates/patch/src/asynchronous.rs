//! No order at all, as in file systems without soft updates or a journal (2.4.2).

use crate::{Before, Change, Content, Op, PatchId, Patched, Store, StoreError, StoreLayer};
use medium::block::Lba;

/// A store that drops every before. After a crash the file system needs a checker. Crash tests
/// use it as their control.
pub struct Async<S>(pub S);

impl<S: Store> StoreLayer for Async<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.0
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

    fn empty(&self, _befores: &[Before], held: bool) -> PatchId {
        self.0.empty(&[], held)
    }

    fn set_befores(&self, _empty: PatchId, _befores: &[Before]) {}

    fn add_before(&self, _empty: PatchId, _before: Before) {}
}
