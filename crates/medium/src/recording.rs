//! A trace of all accesses that change a region.
//!
//! Guarantees: the trace lists the calls in the order in which the region received them, one
//! event for each atomic store and each flushed line. The initial contents with all stores of
//! the trace applied are the present contents. A call that fails before it reaches the region
//! (out of range) leaves no event.

use crate::units::{lines, units};
use crate::{MediumError, Pmem, Rule, Unit};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// One step of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A store through the cache.
    Store(Unit),
    /// A streaming store around the cache.
    StoreNt(Unit),
    /// A flush of one line.
    Flush {
        /// Offset in bytes of the line's first byte.
        line: u64,
    },
    /// A fence that returned `Ok`, and its rule.
    Fence(Rule),
    /// A caller's mark, such as the boundary between two operations.
    Mark(u64),
    /// The following events are those of another thread. Threads are numbered in the order of
    /// their first events, and the recording begins with the first thread.
    Thread(u32),
}

/// Forwards everything to `P` and records it.
///
/// Events of several threads share one trace; a fence covers its own thread only.
pub struct Recording<P> {
    inner: P,
    trace: Mutex<Trace>,
}

#[derive(Debug, Default)]
struct Trace {
    events: Vec<Event>,
    /// The threads by their numbers.
    threads: Vec<ThreadId>,
    /// The number of the last event's thread.
    last: u32,
}

impl Trace {
    /// Returns the events, after recording a change of thread if there is one.
    fn of_this_thread(&mut self) -> &mut Vec<Event> {
        let me = thread::current().id();
        let number = self.threads.iter().position(|thread| *thread == me);
        let number = number.unwrap_or_else(|| {
            self.threads.push(me);
            self.threads.len() - 1
        }) as u32;
        if number != self.last {
            self.last = number;
            self.events.push(Event::Thread(number));
        }
        &mut self.events
    }
}

impl<P: Pmem> Recording<P> {
    /// Starts with an empty trace.
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            trace: Mutex::default(),
        }
    }

    /// The region below. Stores to it directly are not recorded.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Adds a mark to the trace.
    pub fn mark(&self, id: u64) {
        self.trace().events.push(Event::Mark(id));
    }

    /// Takes the trace; recording continues with an empty one.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.trace().events)
    }

    /// Empties the trace and keeps its memory for the next one.
    pub fn clear(&self) {
        self.trace().events.clear();
    }

    /// Calls `look` with the trace in place; stores to the region wait meanwhile.
    pub fn with_trace<R>(&self, look: impl FnOnce(&[Event]) -> R) -> R {
        look(&self.trace().events)
    }

    /// Ends the recording.
    pub fn into_parts(self) -> (P, Vec<Event>) {
        let trace = self.trace.into_inner();
        let trace = trace.unwrap_or_else(PoisonError::into_inner);
        (self.inner, trace.events)
    }

    fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_in_range(&self, off: u64, len: u64) -> bool {
        off.checked_add(len).is_some_and(|end| end <= self.len())
    }
}

impl<P: Pmem> crate::layer::PmemLayer for Recording<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        let mut trace = self.trace();
        if self.is_in_range(off, bytes.len() as u64) {
            let events = trace.of_this_thread();
            events.extend(units(off, bytes).map(Event::Store));
        }
        self.inner.store(off, bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        let mut trace = self.trace();
        if self.is_in_range(off, bytes.len() as u64) {
            let events = trace.of_this_thread();
            events.extend(units(off, bytes).map(Event::StoreNt));
        }
        self.inner.store_nt(off, bytes);
    }

    fn flush(&self, off: u64, len: u64) {
        let mut trace = self.trace();
        if self.is_in_range(off, len) {
            let events = trace.of_this_thread();
            events.extend(lines(off, len).map(|line| Event::Flush { line }));
        }
        self.inner.flush(off, len);
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let mut trace = self.trace();
        self.inner.fence(rule)?;
        trace.of_this_thread().push(Event::Fence(rule));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPmem;
    use proptest::prelude::*;

    fn unit(off: u64, bytes: &[u8]) -> Unit {
        units(off, bytes).next().unwrap()
    }

    #[test]
    fn trace_holds_units_lines_fences_and_marks_in_order() {
        let pm = Recording::new(MemoryPmem::new(4096));
        pm.mark(7);
        pm.store(6, &[1, 2, 3]);
        pm.store_nt(64, &[9; 16]);
        pm.flush(60, 8);
        pm.fence(Rule::DataBeforeCommit).unwrap();
        let expected = [
            Event::Mark(7),
            Event::Store(unit(6, &[1, 2])),
            Event::Store(unit(8, &[3])),
            Event::StoreNt(unit(64, &[9; 8])),
            Event::StoreNt(unit(72, &[9; 8])),
            Event::Flush { line: 0 },
            Event::Flush { line: 64 },
            Event::Fence(Rule::DataBeforeCommit),
        ];
        assert_eq!(pm.take(), expected);
        assert_eq!(pm.take(), []);
    }

    #[test]
    fn failed_calls_leave_no_event() {
        let pm = Recording::new(MemoryPmem::new(64));
        pm.store(60, &[1; 8]);
        pm.flush(u64::MAX, 2);
        assert!(pm.fence(Rule::DataBeforeCommit).is_err());
        assert_eq!(pm.take(), []);
    }

    #[test]
    fn fences_are_recorded_with_their_thread() {
        let pm = Recording::new(MemoryPmem::new(64));
        pm.fence(Rule::DataBeforeCommit).unwrap();
        let other = thread::scope(|scope| {
            scope
                .spawn(|| pm.fence(Rule::DataBeforeCommit).unwrap())
                .join()
        });
        other.unwrap();
        pm.fence(Rule::DataBeforeCommit).unwrap();
        let fence = Event::Fence(Rule::DataBeforeCommit);
        let expected = [fence, Event::Thread(1), fence, Event::Thread(0), fence];
        assert_eq!(pm.take(), expected);
    }

    proptest! {
        #[test]
        fn replaying_the_trace_gives_the_region(
            stores in prop::collection::vec((0u64..200, prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..20),
        ) {
            let pm = Recording::new(MemoryPmem::new(256));
            for (off, bytes, streaming) in &stores {
                if *streaming { pm.store_nt(*off, bytes) } else { pm.store(*off, bytes) }
            }
            let copy = MemoryPmem::new(256);
            for event in pm.take() {
                if let Event::Store(u) | Event::StoreNt(u) = event {
                    let old = copy.load(u.word_off()).unwrap();
                    copy.store_word(u.word_off(), u.apply(old));
                }
            }
            let (mut a, mut b) = ([0; 256], [0; 256]);
            pm.read(0, &mut a).unwrap();
            copy.read(0, &mut b).unwrap();
            prop_assert_eq!(a, b);
        }
    }
}
