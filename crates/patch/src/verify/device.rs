//! The lower half: a device that checks each write before it submits it.

use super::Verifier;
use crate::graph::Addr;
use medium::Rule;
use medium::block::layer::DeviceLayer;
use medium::block::{BlockDevice, BlockError, Completion, Lba, Write};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A device below a cache that checks its writes.
pub struct Watched<D> {
    below: D,
    device: u8,
    verifier: Arc<Verifier>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Writes under way by their number: the caller's tag, the block, and whether completion
    /// makes it durable.
    under_way: HashMap<u64, (u64, Lba, bool)>,
    next: u64,
    /// Completions of writes that violate a rule.
    refused: Vec<Completion>,
}

impl<D: BlockDevice> Watched<D> {
    /// Makes device number `device` of the cache that `verifier` checks.
    pub fn new(below: D, device: u8, verifier: Arc<Verifier>) -> Self {
        Self {
            below,
            device,
            verifier,
            state: Mutex::default(),
        }
    }

    fn addr(&self, lba: Lba) -> Addr {
        Addr {
            device: self.device,
            lba,
        }
    }

    fn check(&self, write: &Write) -> Result<(), BlockError> {
        let Some(cache) = self.verifier.cache.get() else {
            return Ok(());
        };
        let mut model = self.verifier.model.lock();
        let state = |patch| cache.patch_state(patch);
        let checked = model.send(self.addr(write.lba), &write.data, state);
        checked.map_err(|what| self.verifier.report(self.below.name(), write.lba, what))
    }
}

impl<D: BlockDevice> DeviceLayer for Watched<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.below
    }

    fn submit(&self, writes: Vec<Write>) {
        let is_volatile = self.below.persistence().volatile_cache;
        let mut passed = Vec::with_capacity(writes.len());
        for write in writes {
            let checked = self.check(&write);
            let mut state = self.state.lock();
            match checked {
                Err(error) => state.refused.push(Completion {
                    tag: write.tag,
                    result: Err(error),
                }),
                Ok(()) => {
                    let tag = state.next;
                    state.next += 1;
                    let is_durable = write.is_durable() || !is_volatile;
                    state
                        .under_way
                        .insert(tag, (write.tag, write.lba, is_durable));
                    passed.push(Write { tag, ..write });
                }
            }
        }
        self.below.submit(passed);
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = std::mem::take(&mut self.state.lock().refused);
        for mut end in self.below.reap(min.saturating_sub(done.len())) {
            if let Some((tag, lba, is_durable)) = self.state.lock().under_way.remove(&end.tag) {
                end.tag = tag;
                if end.result.is_ok() {
                    let mut model = self.verifier.model.lock();
                    model.completed(self.addr(lba), is_durable);
                }
            }
            done.push(end);
        }
        done
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        let written = self.verifier.model.lock().written(self.device);
        self.below.flush(rule)?;
        self.verifier.model.lock().flushed(&written);
        Ok(())
    }
}
