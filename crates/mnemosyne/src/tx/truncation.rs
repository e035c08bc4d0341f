//! Truncation makes committed words durable at their addresses, and gives back their records.
//!
//! A round covers all logs:
//!
//! 1. Find the new low water: a stamp up to which all commits with records are over.
//! 2. Write back the words of all records that were stored at their addresses; fence.
//! 3. Store the low water; fence. Records up to it are no longer replayed.
//! 4. Store the new heads of the logs; fence. The room of these records can be reused.
//!
//! The low water exists because of the fence between 3 and 4. The heads are in different lines, and
//! a crash between two of them would leave an older record without a newer one.

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

/// Commits whose words are stored at their addresses, perhaps not durably. The log has them, too,
/// but reading it takes as long as writing it. Each record and each run takes two words: at most a
/// few times the bytes of the log.
#[derive(Debug, Default)]
pub(super) struct Home {
    /// Stamps of the records, and the positions at which they end.
    records: Vec<(u64, u64)>,
    /// Offsets and lengths in bytes of the runs.
    runs: Vec<(u64, u64)>,
}

impl Home {
    /// Adds a record whose words have just been stored at their addresses.
    pub(super) fn add(&mut self, stamp: u64, end: u64, record: &[u64]) {
        self.records.push((stamp, end));
        let runs = record::runs(record);
        self.runs.extend(runs.map(|run| (run.off, run.bytes())));
    }
}

/// The state of truncation of a log.
#[derive(Debug)]
struct Truncated<P> {
    consumer: Consumer<P>,
    /// Records whose words are durable at their addresses after this round's fence: stamp and end.
    done: VecDeque<(u64, u64)>,
    /// Commits that are being written back.
    home: Home,
}

impl<P> Truncated<P> {
    /// A log without commits.
    fn new(consumer: Consumer<P>) -> Self {
        Self {
            consumer,
            done: VecDeque::new(),
            home: Home::default(),
        }
    }
}

impl<P: Pmem> Truncated<P> {
    /// Takes the commits since the last round.
    fn take(&mut self, home: &Mutex<Home>) {
        std::mem::swap(&mut self.home, &mut *home.lock());
    }

    /// Starts to write back the words of all commits that were taken.
    fn write_back(&mut self, pm: &P, recent: &mut Recent) {
        for (off, bytes) in self.home.runs.drain(..) {
            let lines = off / LINE_BYTES..(off + bytes).div_ceil(LINE_BYTES);
            for line in lines.filter(|line| recent.is_new(*line)) {
                pm.flush(line * LINE_BYTES, LINE_BYTES);
            }
        }
        // An overflow may have had more runs than a log.
        self.home.runs.shrink_to(MANY_RUNS);
        self.done.extend(self.home.records.drain(..));
    }

    /// Removes records up to the low water. Returns the end of the last one.
    fn drop_until(&mut self, low_water: u64) -> Option<u64> {
        let mut end = None;
        while let Some((_, at)) = self.done.pop_front_if(|(stamp, _)| *stamp <= low_water) {
            end = Some(at);
        }
        end
    }
}

/// Lines that were written back in this round, the last one of each entry. Many commits change the
/// same few lines: descriptors, roots, counts. Writing one back takes it from the processor that is
/// about to change it again.
#[derive(Debug)]
struct Recent([u64; 64]);

impl Recent {
    fn new() -> Self {
        Self([u64::MAX; 64])
    }

    fn is_new(&mut self, line: u64) -> bool {
        let last = &mut self.0[line as usize % 64];
        std::mem::replace(last, line) != line
    }
}

/// The state of truncation of all logs.
#[derive(Debug)]
pub(super) struct Truncating<P> {
    logs: Vec<Truncated<P>>,
    recent: Recent,
}

impl<P> Truncating<P> {
    /// The state for logs without records.
    pub(super) fn new(consumers: Vec<Consumer<P>>) -> Self {
        Self {
            logs: consumers.into_iter().map(Truncated::new).collect(),
            recent: Recent::new(),
        }
    }
}

impl<S: Space> Core<S> {
    /// Runs one round.
    pub(super) fn truncate(&self) -> Result<(), Arc<LogError>> {
        self.check()?;
        self.round().map_err(|error| self.fail(error))
    }

    fn round(&self) -> Result<(), LogError> {
        let pm = self.space.pmem();
        let mut truncating = self.truncating.lock();
        let Truncating { logs, recent } = &mut *truncating;
        // The low water must pass `logged`, too: no commit draws the stamps up to it.
        let logged = self.logged.load(Ordering::SeqCst);
        if self.clock.load(Ordering::SeqCst) < logged {
            self.clock.fetch_max(logged, Ordering::SeqCst);
        }
        let next = self.completed_stamp();
        let is_stuck = next <= self.low_water.load(Ordering::Relaxed);
        if is_stuck && !hit(Bug::UnfencedWriteBack) {
            return Ok(());
        }
        for (log, slot) in logs.iter_mut().zip(&self.slots) {
            log.take(&slot.home);
        }
        // Write back a line once, after all stores that were taken.
        if !hit(Bug::WrittenBackBefore) {
            *recent = Recent::new();
        }
        logs.iter_mut().for_each(|log| log.write_back(pm, recent));
        if is_stuck {
            return Ok(());
        }
        // Before the low water. The thread that wrote lines back must fence: the fence of another
        // thread does not cover them.
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
        // Heads are durable before the records are overwritten.
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

    /// A stamp up to which all commits with records are over: stored at their addresses, or failed.
    ///
    /// A commit sets `active` before it draws its stamp. If the stamp is at most the clock that is
    /// read here, it drew it before this read. So it is active now, with no larger a value, or
    /// over.
    fn completed_stamp(&self) -> u64 {
        let now = self.clock.load(Ordering::SeqCst);
        let active = |slot: &CachePadded<Slot<S::Pmem>>| match slot.active.load(Ordering::SeqCst) {
            IDLE => now,
            least => least - 1,
        };
        self.slots.iter().map(active).fold(now, u64::min)
    }
}

/// The thread that truncates for commits.
#[derive(Debug, Default)]
pub(super) struct Helper {
    /// Whether a thread has ever been started.
    is_taken: AtomicBool,
    thread: OnceLock<Thread>,
    is_gone: AtomicBool,
}

impl Helper {
    /// Asks for a round. Returns false if there is no thread.
    pub(super) fn call(&self) -> bool {
        let Some(thread) = self.thread.get() else {
            return false;
        };
        thread.unpark();
        !self.is_gone.load(Ordering::Relaxed)
    }
}

/// A thread that truncates, so that commits need not. It ends when this is dropped.
pub struct Truncator<S: Space> {
    memory: Memory<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Space + 'static> Memory<S>
where
    S::Pmem: 'static,
{
    /// Starts the thread, at most once for a memory. Returns `None` if it was started before, or
    /// the system has no thread. Then commits truncate.
    pub fn truncator(&self) -> Option<Truncator<S>> {
        let memory = self.clone();
        let work = move || {
            let core = &memory.core;
            while !core.helper.is_gone.load(Ordering::Relaxed) {
                std::thread::park();
                if core.truncate().is_err() {
                    return; // every commit fails as well
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
