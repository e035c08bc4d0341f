//! A trace of everything that is done to a block device.
//!
//! Guarantees: an event stands in the trace where it is certain. A write is `Issued`
//! before the device has it and `Completed` after the device said so; a flush begins
//! before the device hears of it and ends after it returned. So a write that the trace
//! has as completed when a flush begins was completed; the reverse may be off by what
//! other threads did in that moment, which only makes the crash states more.

use super::{BlockDevice, BlockError, Buffer, Completion, Lba, Write};
use crate::Rule;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of a write, or of a flush, in a trace: each has its own series from 0.
pub type EventId = u64;

/// One step of a trace.
#[derive(Debug, Clone)]
pub enum BlockEvent {
    /// A write was handed to the device.
    Issued {
        /// Its number.
        id: EventId,
        /// Where it goes.
        lba: Lba,
        /// The block; shared with whoever wrote it.
        data: Arc<Buffer>,
        /// Whether it has force unit access.
        durable: bool,
    },
    /// A write has ended.
    Completed {
        /// Its number.
        id: EventId,
        /// Whether it was written. If not, the block is old, new or torn.
        ok: bool,
    },
    /// A flush begins.
    FlushBegun {
        /// Its number.
        id: EventId,
    },
    /// A flush has ended.
    FlushEnded {
        /// Its number.
        id: EventId,
        /// Whether what had completed when it began is durable.
        ok: bool,
        /// Why it was there.
        rule: Rule,
    },
    /// What these blocks hold may change at any time from here on.
    Discarded {
        /// The first.
        lba: Lba,
        /// How many.
        blocks: u64,
    },
    /// A caller's mark, such as the boundary between two operations.
    Mark(u64),
}

/// Passes everything on to `D` and writes it down.
pub struct RecordingDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: Vec<BlockEvent>,
    writes: EventId,
    flushes: EventId,
    /// The callers' tags of the writes under way, whose own tags are their numbers.
    tags: HashMap<EventId, u64>,
}

impl<D: BlockDevice> RecordingDevice<D> {
    /// Starts with an empty trace.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            state: Mutex::default(),
        }
    }

    /// The device underneath. What is done to it directly is not recorded.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a mark to the trace.
    pub fn mark(&self, id: u64) {
        self.state.lock().trace.push(BlockEvent::Mark(id));
    }

    /// Takes the trace; recording goes on with an empty one, and with the next numbers.
    pub fn take(&self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.state.lock().trace)
    }

    /// Looks at the trace in place; the device waits meanwhile.
    pub fn with_trace<R>(&self, look: impl FnOnce(&[BlockEvent]) -> R) -> R {
        look(&self.state.lock().trace)
    }
}

impl State {
    /// Writes down a write, and gives it its number as its tag.
    fn issue(&mut self, write: &mut Write) {
        let id = self.writes;
        self.writes += 1;
        self.tags.insert(id, std::mem::replace(&mut write.tag, id));
        self.trace.push(BlockEvent::Issued {
            id,
            lba: write.lba,
            data: write.data.clone(),
            durable: write.durable,
        });
    }
}

impl<D: BlockDevice> crate::block::layer::DeviceLayer for RecordingDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn submit(&self, mut writes: Vec<Write>) {
        let mut state = self.state.lock();
        writes.iter_mut().for_each(|write| state.issue(write));
        drop(state);
        self.inner.submit(writes);
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = self.inner.reap(min);
        let mut state = self.state.lock();
        for completion in &mut done {
            let (id, ok) = (completion.tag, completion.result.is_ok());
            state.trace.push(BlockEvent::Completed { id, ok });
            completion.tag = state.tags.remove(&id).unwrap_or(id);
        }
        done
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        let id = {
            let mut state = self.state.lock();
            let id = state.flushes;
            state.flushes += 1;
            state.trace.push(BlockEvent::FlushBegun { id });
            id
        };
        let result = self.inner.flush(rule);
        let ok = result.is_ok();
        self.state
            .lock()
            .trace
            .push(BlockEvent::FlushEnded { id, ok, rule });
        result
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        let event = BlockEvent::Discarded { lba, blocks };
        self.state.lock().trace.push(event);
        self.inner.discard(lba, blocks)
    }
}
