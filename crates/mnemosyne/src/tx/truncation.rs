//! Truncation: making what was committed durable in place, and giving back its records.
//!
//! One round, for all logs:
//!
//! 1. Find a stamp, the new low water, such that all commits up to it are over, of those that
//!    have records.
//! 2. Write back the words of all records that are in place; fence.
//! 3. DurableMemory the low water; fence. Records up to it mean nothing any more.
//! 4. DurableMemory where the logs begin now; fence. Their room can be used again.
//!
//! The fence between 3 and 4 is why the low water is there: logs begin in different lines,
//! and a crash between two of them would leave an older record without a newer one.

use super::{Core, IDLE, Memory, Slot, Space, record};
use crate::seeded::{Bug, hit};
use crossbeam_utils::CachePadded;
use medium::{LINE_BYTES, Pmem, Rule};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use wordlog::{Consumer, LogError};

/// Runs for which memory is kept after a round.
const MANY_RUNS: usize = 1 << 16;

/// Commits whose words are in place, and perhaps not durably. The log tells that, too, but to
/// read it takes as long as to write it. Two words for each record and each run: at most a few
/// times the bytes of the log.
#[derive(Debug, Default)]
pub(super) struct Home {
    /// Of each its stamp, and where its record ends.
    records: Vec<(u64, u64)>,
    /// Where their words are: offsets and bytes.
    runs: Vec<(u64, u64)>,
}

impl Home {
    /// Adds what has just been stored in place.
    pub fn add(&mut self, stamp: u64, end: u64, record: &[u64]) {
        self.records.push((stamp, end));
        let runs = record::runs(record);
        self.runs.extend(runs.map(|run| (run.off, run.bytes())));
    }
}

/// How far the records of a log are done with.
#[derive(Debug)]
struct Truncated<P> {
    consumer: Consumer<P>,
    /// Records whose words are durable in place after this round's fence: stamp, and where
    /// they end.
    done: VecDeque<(u64, u64)>,
    /// Being written back.
    home: Home,
}

impl<P> Truncated<P> {
    /// Nothing was committed.
    fn new(consumer: Consumer<P>) -> Self {
        Self {
            consumer,
            done: VecDeque::new(),
            home: Home::default(),
        }
    }
}

impl<P: Pmem> Truncated<P> {
    /// Takes what was committed so far.
    fn take(&mut self, home: &Mutex<Home>) {
        std::mem::swap(&mut self.home, &mut *home.lock());
    }

    /// Starts to write back the words of all that was taken.
    fn write_back(&mut self, pm: &P, recent: &mut Recent) {
        for (off, bytes) in self.home.runs.drain(..) {
            let lines = off / LINE_BYTES..(off + bytes).div_ceil(LINE_BYTES);
            for line in lines.filter(|line| recent.is_new(*line)) {
                pm.flush(line * LINE_BYTES, LINE_BYTES);
            }
        }
        // An overflow may have had more than a log.
        self.home.runs.shrink_to(MANY_RUNS);
        self.done.extend(self.home.records.drain(..));
    }

    /// Takes out records up to the low water; where the last of them ends.
    fn drop_until(&mut self, low_water: u64) -> Option<u64> {
        let mut end = None;
        while let Some((_, at)) = self.done.pop_front_if(|(stamp, _)| *stamp <= low_water) {
            end = Some(at);
        }
        end
    }
}

/// Lines that were written back in this round, the last of each place. Many commits change
/// the same few lines: descriptors, roots, counts. Who writes one back takes it from the
/// processor that is about to change it again.
#[derive(Debug)]
struct Recent([u64; 64]);

impl Recent {
    fn new() -> Self {
        Self([u64::MAX; 64])
    }

    fn is_new(&mut self, line: u64) -> bool {
        let place = &mut self.0[line as usize % 64];
        std::mem::replace(place, line) != line
    }
}

/// What truncating needs.
#[derive(Debug)]
pub(super) struct Truncating<P> {
    logs: Vec<Truncated<P>>,
    recent: Recent,
}

impl<P> Truncating<P> {
    /// Of logs in which nothing is.
    pub fn new(consumers: Vec<Consumer<P>>) -> Self {
        Self {
            logs: consumers.into_iter().map(Truncated::new).collect(),
            recent: Recent::new(),
        }
    }
}

impl<S: Space> Core<S> {
    /// One round.
    pub(super) fn truncate(&self) -> Result<(), Arc<LogError>> {
        self.check()?;
        self.round().map_err(|error| self.fail(error))
    }

    fn round(&self) -> Result<(), LogError> {
        let pm = self.space.pmem();
        let mut truncating = self.truncating.lock();
        let Truncating { logs, recent } = &mut *truncating;
        // The low water is to pass what counts as logged, too: nobody draws those stamps.
        let logged = self.logged.load(Ordering::SeqCst);
        if self.clock.load(Ordering::SeqCst) < logged {
            self.clock.fetch_max(logged, Ordering::SeqCst);
        }
        let next = self.settled();
        let is_stuck = next <= self.low_water.load(Ordering::Relaxed);
        if is_stuck && !hit(Bug::UnfencedWriteBack) {
            return Ok(());
        }
        for (log, slot) in logs.iter_mut().zip(&self.slots) {
            log.take(&slot.home);
        }
        // A line is written back once, after all that was taken was stored to it.
        if !hit(Bug::WrittenBackBefore) {
            *recent = Recent::new();
        }
        logs.iter_mut().for_each(|log| log.write_back(pm, recent));
        if is_stuck {
            return Ok(());
        }
        // Before the low water. The thread that starts to write back fences: no other thread's
        // fence is good for it.
        if !hit(Bug::ReclaimBeforeHome) {
            pm.fence(Rule::HomeBeforeReclaim)?;
        }
        if !hit(Bug::NoLowWater) {
            self.area.store_low_water(pm, next)?;
        }
        self.low_water.store(next, Ordering::Release);
        let mut ends = Vec::with_capacity(logs.len());
        for log in logs.iter_mut() {
            let end = log.drop_until(next);
            if let Some(end) = end {
                log.consumer.note_head(end);
            }
            ends.push(end);
        }
        // Heads before their words are overwritten.
        if !hit(Bug::ReuseBeforeTruncated) {
            pm.fence(Rule::NullifyBeforeReuse)?;
        }
        for (log, end) in logs.iter_mut().zip(ends) {
            if let Some(end) = end {
                log.consumer.release(end);
            }
        }
        Ok(())
    }

    /// A stamp such that all commits with records up to it are over: in place, or none.
    ///
    /// Whoever drew a stamp for a record no larger than the clock read here announced itself
    /// before it drew, hence before the read: it is active now, with no larger a stamp, or over.
    fn settled(&self) -> u64 {
        let now = self.clock.load(Ordering::SeqCst);
        let active = |slot: &CachePadded<Slot<S::Pmem>>| match slot.active.load(Ordering::SeqCst) {
            IDLE => now,
            least => least - 1,
        };
        self.slots.iter().map(active).fold(now, u64::min)
    }
}

/// Whom commits ask to truncate.
#[derive(Debug, Default)]
pub(super) struct Helper {
    /// Whether there is or was one.
    is_taken: AtomicBool,
    thread: OnceLock<Thread>,
    is_gone: AtomicBool,
}

impl Helper {
    /// Asks for a round. `false`: there is nobody to ask.
    pub fn call(&self) -> bool {
        let Some(thread) = self.thread.get() else {
            return false;
        };
        thread.unpark();
        !self.is_gone.load(Ordering::Relaxed)
    }
}

/// The thread that truncates, off the path of commits. Ends with this.
pub struct Truncator<S: Space> {
    memory: Memory<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Space + 'static> Memory<S>
where
    S::Pmem: 'static,
{
    /// Starts the thread, at most one for a memory: `None`, there is or was one, or the
    /// system gives no thread. Then commits truncate.
    pub fn truncator(&self) -> Option<Truncator<S>> {
        let memory = self.clone();
        let work = move || {
            let core = &memory.core;
            while !core.helper.is_gone.load(Ordering::Relaxed) {
                std::thread::park();
                if core.truncate().is_err() {
                    return; // and so says every commit
                }
            }
        };
        let helper = &self.core.helper;
        if helper.is_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let named = std::thread::Builder::new().name("truncation".into());
        let thread = named.spawn(work).ok()?;
        helper.thread.get_or_init(|| thread.thread().clone());
        Some(Truncator {
            memory: self.clone(),
            thread: Some(thread),
        })
    }
}

impl<S: Space> Drop for Truncator<S> {
    fn drop(&mut self) {
        let helper = &self.memory.core.helper;
        helper.is_gone.store(true, Ordering::Relaxed);
        helper.call();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
