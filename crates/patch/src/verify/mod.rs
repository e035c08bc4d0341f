//! A check of the graph and of every write, in a live mount.
//!
//! # Guarantees
//! [`Verify`] stands on a cache and keeps a model: each change that is not durable, with the
//! befores that the caller requested. [`Watched`] stands below the cache and receives writes,
//! completions and flushes. Together they check that
//!
//! - **V1** a block is written only if each change in it has its befores durably on the medium
//!   or in the same block;
//! - **V2** a written block equals the old block with the changes of the write, and without
//!   those that must wait;
//! - **V3** a patch is freed only by a durable write, unless its changes have no effect;
//! - **V4** the graph has its invariants (P1 to P6), after a number of operations.
//!
//! A violation is logged and makes the cache read-only. A write that violates V1 to V3 does
//! not reach the device.
//!
//! A log on its own device has a [`Verify`] of its own. Blocks that are changed past the layer
//! are not checked.

mod device;
mod model;
#[cfg(test)]
mod tests;

pub use device::Watched;

use crate::graph::Addr;
use crate::{Before, Cache, Change, Content, Op, PatchId, Patched, Store, StoreError, StoreLayer};
use medium::block::{BlockError, Lba};
use model::Model;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The state that the two halves share. It is made before the cache.
#[derive(Default)]
pub struct Verifier {
    cache: OnceLock<Arc<Cache>>,
    model: Mutex<Model>,
    violation: OnceLock<String>,
}

impl Verifier {
    /// The first violation.
    pub fn violation(&self) -> Option<&str> {
        self.violation.get().map(String::as_str)
    }

    /// Logs a violation. Returns the error for callers.
    fn report(&self, device: &str, lba: Lba, what: String) -> BlockError {
        tracing::error!("verify: {device}: block {lba}: {what}");
        let _ = self.violation.set(what);
        BlockError::Io {
            device: device.into(),
            what: "verifying a write",
            lba,
            error: rustix::io::Errno::IO,
        }
    }
}

/// The upper half: a store that records every change.
pub struct Verify<S> {
    below: S,
    device: u8,
    verifier: Arc<Verifier>,
    /// The graph is checked after this many operations; 0: never.
    every: u64,
    operations: AtomicU64,
}

impl<S: Store> Verify<S> {
    /// Makes a layer on `below`, a store on device `device` of `cache`. The same verifier must
    /// have [`Watched`] all devices of the cache. The graph is checked after each `every`
    /// operations; 0: never.
    pub fn new(
        below: S,
        device: u8,
        cache: Arc<Cache>,
        verifier: Arc<Verifier>,
        every: u64,
    ) -> Self {
        let _ = verifier.cache.set(cache);
        Self {
            below,
            device,
            verifier,
            every,
            operations: AtomicU64::new(0),
        }
    }

    fn addr(&self, lba: Lba) -> Addr {
        Addr {
            device: self.device,
            lba,
        }
    }

    /// Checks V4.
    fn check_graph(&self) {
        if let Some(cache) = self.verifier.cache.get()
            && let Err(what) = cache.verify()
        {
            let what = format!("V4: {what}");
            let error = self.verifier.report("graph", Lba(0), what);
            cache.stop(error);
        }
    }
}

impl<S: Store> StoreLayer for Verify<S> {
    type Below = S;

    fn below(&self) -> &S {
        &self.below
    }

    fn end(&self, op: Op) {
        self.below.end(op);
        let count = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        if self.every > 0 && count.is_multiple_of(self.every) {
            self.check_graph();
        }
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let is_whole = crate::store::check_change(change, self.below.block_bytes());
        // Read before the model is locked: a read may wait for the device.
        let contents = match is_whole {
            true => None,
            false => Some(self.below.read(lba)?),
        };
        let mut model = self.verifier.model.lock();
        let is_known = model.is_known(self.addr(lba));
        // Another thread may have changed the block since.
        let contents = match (is_known, contents) {
            (false, Some(_)) => self.below.cached(lba),
            _ => None,
        };
        let patched = self.below.change(op, lba, content, change, befores)?;
        model.change(self.addr(lba), contents, change, patched.id, befores);
        Ok(patched)
    }

    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        let mut model = self.verifier.model.lock();
        self.below.freed(op, lba, befores, unreachable)?;
        if unreachable {
            model.cancel(self.addr(lba));
        }
        Ok(())
    }

    fn empty(&self, befores: &[Before], held: bool) -> PatchId {
        let mut model = self.verifier.model.lock();
        let empty = self.below.empty(befores, held);
        model.empty(empty, befores, held);
        empty
    }

    fn set_befores(&self, empty: PatchId, befores: &[Before]) {
        let mut model = self.verifier.model.lock();
        self.below.set_befores(empty, befores);
        model.set_befores(empty, befores);
    }

    fn add_before(&self, empty: PatchId, before: Before) {
        let mut model = self.verifier.model.lock();
        self.below.add_before(empty, before);
        model.add_before(empty, before);
    }

    fn release(&self, empty: PatchId) {
        let mut model = self.verifier.model.lock();
        model.release(empty);
        self.below.release(empty);
    }
}
