//! Truncation: making what was committed durable in place, and giving back its records.
//!
//! One round, for all logs:
//!
//! 1. Find a stamp, the new low water, such that all commits up to it are over.
//! 2. Write back the words of all records that are in place; fence.
//! 3. Store the low water; fence. Records up to it mean nothing any more.
//! 4. Store where the logs begin now; fence. Their room can be used again.
//!
//! The fence between 3 and 4 is why the low water is there: logs begin in different lines,
//! and a crash between two of them would leave an older record without a newer one.

use super::record::Transaction;
use super::{Core, IDLE};
use crate::log::{Consumer, LogError};
use crate::seeded::{Bug, hit};
use medium::{Pmem, WORD_BYTES};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far the records of a log are done with.
#[derive(Debug)]
pub(super) struct Truncated<P> {
    pub consumer: Consumer<P>,
    /// Up to here records were written back.
    pub position: u64,
    /// Records whose words are durable in place: stamp, and where they end.
    pub done: VecDeque<(u64, u64)>,
    pub record: Vec<u64>,
}

impl<P: Pmem> Truncated<P> {
    /// Starts to write back the words of all records up to `home`.
    fn write_back(&mut self, pm: &P, home: u64) -> Result<(), LogError> {
        while self.position < home {
            let Some(end) = self.consumer.next(&mut self.record)? else {
                break;
            };
            self.position = end;
            if let Some(transaction) = Transaction::decode(&self.record) {
                for (off, words) in transaction.runs() {
                    pm.flush(off, words.len() as u64 * WORD_BYTES);
                }
                self.done.push_back((transaction.stamp, end));
            }
        }
        Ok(())
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

impl<P: Pmem> Core<P> {
    /// One round.
    pub(super) fn truncate(&self) -> Result<(), Arc<LogError>> {
        self.check()?;
        self.round().map_err(|error| self.fail(error))
    }

    fn round(&self) -> Result<(), LogError> {
        let mut low_water = self.low_water.lock();
        let next = self.settled();
        for slot in &self.slots {
            // Acquire: the words that are stored there are seen, and written back.
            let home = slot.home.load(Ordering::Acquire);
            slot.truncated.lock().write_back(&self.pm, home)?;
        }
        if next == *low_water {
            return Ok(());
        }
        // Home before low water.
        if !hit(Bug::ReclaimBeforeHome) {
            self.pm.fence()?;
        }
        if !hit(Bug::NoLowWater) {
            self.area.store_low_water(&self.pm, next)?;
        }
        *low_water = next;
        let mut ends = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let mut truncated = slot.truncated.lock();
            let end = truncated.drop_until(next);
            if let Some(end) = end {
                truncated.consumer.note_head(end);
            }
            ends.push(end);
        }
        // Heads before reuse.
        if !hit(Bug::ReuseBeforeTruncated) {
            self.pm.fence()?;
        }
        for (slot, end) in self.slots.iter().zip(ends) {
            if let Some(end) = end {
                slot.truncated.lock().consumer.release(end);
            }
        }
        Ok(())
    }

    /// A stamp such that all commits up to it are over: in place, or none.
    ///
    /// Whoever drew a stamp no larger than the clock read here announced itself before it
    /// drew, hence before the read: it is active now, with no larger a stamp, or over.
    fn settled(&self) -> u64 {
        let now = self.clock.load(Ordering::SeqCst);
        let active = |slot: &super::Slot<P>| match slot.active.load(Ordering::SeqCst) {
            IDLE => now,
            least => least - 1,
        };
        self.slots.iter().map(active).fold(now, u64::min)
    }
}
