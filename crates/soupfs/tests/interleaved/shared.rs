//! A memory at whose stores and fences threads change, and what a power failure leaves of it.

use medium::layer::PmemLayer;
use medium::{MediumError, MemoryPmem, Pmem, Rule};
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread::{self, ThreadId};
use std::collections::HashMap;
use std::sync::Mutex;

const LINE: usize = 64;

/// The memory. A line is durable when the thread that has flushed it has fenced.
pub(crate) struct Shared {
    memory: MemoryPmem,
    lines: Mutex<Lines>,
    turn: AtomicBool,
}

#[derive(Default)]
struct Lines {
    /// The flushes so far.
    count: u64,
    /// The lines that each thread has flushed since its last fence.
    flushed: HashMap<ThreadId, Vec<(u64, Line)>>,
    /// The durable lines, by address. All others are zeros.
    durable: HashMap<u64, Line>,
}

/// The bytes of a line when it was flushed, and the number of that flush.
#[derive(Clone, Copy)]
struct Line {
    flush: u64,
    bytes: [u8; LINE],
}

impl Shared {
    pub(crate) fn new(len: u64) -> Self {
        Self {
            memory: MemoryPmem::new(len),
            lines: Mutex::default(),
            turn: AtomicBool::new(false),
        }
    }

    /// The scheduler may choose another thread at each use of an atomic. With a `yield` it would have to.
    fn may_change_thread(&self) {
        self.turn.load(SeqCst);
    }

    /// The memory after a power failure, if no line was written back that need not be.
    pub(crate) fn durable(&self) -> MemoryPmem {
        let left = MemoryPmem::new(self.memory.len());
        let lines = self.lines.lock().expect("no thread panics with it");
        for (at, line) in &lines.durable {
            left.store(*at, &line.bytes);
        }
        left
    }
}

impl PmemLayer for Shared {
    type Below = MemoryPmem;

    fn below(&self) -> &MemoryPmem {
        &self.memory
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.may_change_thread();
        Pmem::store(&self.memory, off, bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        Pmem::store_nt(&self.memory, off, bytes);
        PmemLayer::flush(self, off, bytes.len() as u64);
    }

    fn flush(&self, off: u64, len: u64) {
        let mut lines = self.lines.lock().expect("no thread panics with it");
        let first = off / LINE as u64 * LINE as u64;
        for at in (first..off + len).step_by(LINE) {
            let mut bytes = [0; LINE];
            let read = Pmem::read(&self.memory, at, &mut bytes);
            read.expect("memory does not fail");
            lines.count += 1;
            let flush = lines.count;
            let own = lines.flushed.entry(thread::current().id()).or_default();
            own.push((at, Line { flush, bytes }));
        }
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.may_change_thread();
        let mut lines = self.lines.lock().expect("no thread panics with it");
        let own = lines.flushed.remove(&thread::current().id());
        for (at, line) in own.into_iter().flatten() {
            let durable = lines.durable.entry(at).or_insert(line);
            // Another thread may have flushed it later, and fenced before.
            if durable.flush < line.flush {
                *durable = line;
            }
        }
        drop(lines);
        Pmem::fence(&self.memory, rule)
    }
}
