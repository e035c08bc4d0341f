//! A trace of all changes of a block device.
//!
//! Guarantees: the trace has an event when it is certain. A write is `Issued` before the device
//! receives it and `Completed` after the device reported so. A flush begins before the device
//! receives it and ends after it returned.
//!
//! So a write that is `Completed` in the trace when a flush begins was completed. The reverse
//! may be off by the calls of other threads at that moment, which only adds crash states.

use super::{BlockDevice, BlockError, Buffer, Completion, Lba, Write};
use crate::Rule;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of a write or flush in a trace. Each of both has its own series from 0.
pub type EventId = u64;

/// One step of a trace.
#[derive(Debug, Clone)]
pub enum BlockEvent {
    /// A write was handed to the device.
    Issued {
        /// The number of the write.
        id: EventId,
        /// The block that is written.
        lba: Lba,
        /// The new contents, shared with the caller.
        data: Arc<Buffer>,
        /// The rule, if it has force unit access.
        durable: Option<Rule>,
    },
    /// A write ended.
    Completed {
        /// The number of the write.
        id: EventId,
        /// Whether the block was written. If not, it is old, new or torn.
        ok: bool,
    },
    /// A flush begins.
    FlushBegun {
        /// The number of the flush.
        id: EventId,
    },
    /// A flush ended.
    FlushEnded {
        /// The number of the flush.
        id: EventId,
        /// Whether the writes that had completed when it began are durable.
        ok: bool,
        /// The rule of the flush.
        rule: Rule,
    },
    /// The contents of these blocks may change at any time from here on.
    Discarded {
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        blocks: u64,
    },
    /// A caller's mark, such as the boundary between two operations.
    Mark(u64),
}

/// Forwards everything to `D` and records it.
pub struct RecordingDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: Vec<BlockEvent>,
    writes: EventId,
    flushes: EventId,
    /// The callers' tags of the writes under way, by number. The device has the number as the
    /// tag.
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

    /// The device below. Accesses to it directly are not recorded.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a mark to the trace.
    pub fn mark(&self, id: u64) {
        self.state.lock().trace.push(BlockEvent::Mark(id));
    }

    /// Takes the trace; recording continues with an empty one and with the next numbers.
    pub fn take(&self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.state.lock().trace)
    }

    /// Calls `look` with the trace in place; the device waits meanwhile.
    pub fn with_trace<R>(&self, look: impl FnOnce(&[BlockEvent]) -> R) -> R {
        look(&self.state.lock().trace)
    }
}

impl State {
    /// Records a write, and replaces its tag by its number.
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
