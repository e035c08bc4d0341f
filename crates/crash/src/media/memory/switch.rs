//! The logical state after each store of an operation, in program order. It must change from old
//! to new in one step (the "bpfsatomic" check of the BPFS paper, 3.6.5).

use super::StatePmem;
use crate::media::Replay;
use crate::panics::caught;
use crate::past::same_content;
use crate::walk::CrashState;
use medium::Unit;
use medium::recording::Event;
use oracle::snapshot::Snapshot;
use std::ops::Range;
use std::sync::Arc;
use vfs::{ManualClock, Timestamp};

impl Replay<'_, StatePmem> {
    /// Replays each store of the operation. The state that callers would see is read again only
    /// when a store changes a word that was last read. Returns how often it was read.
    ///
    /// # Errors
    /// The first event with a wrong state, and what is wrong.
    pub(super) fn in_program_order(&self, pm: &Arc<StatePmem>) -> Result<u64, (usize, String)> {
        let fail = |event: usize| move |what: String| (event, format!("in program order: {what}"));
        let events = self.events.clone();
        for (_, unit) in self.stores(0..events.start) {
            pm.apply_now(&unit);
        }
        let mut switch = Switch {
            old: self.old,
            new: self.new,
            done: false,
        };
        let mut looked = 1;
        let first = self.look(pm).and_then(|seen| switch.starts(&seen));
        first.map_err(fail(events.start))?;
        for (i, unit) in self.stores(events.clone()) {
            let changed = pm.apply_now(&unit);
            if changed && pm.was_read(unit.off) {
                looked += 1;
                let step = self.look(pm).and_then(|seen| switch.step(&seen));
                step.map_err(fail(i))?;
            }
        }
        switch.ends().map_err(fail(events.end))?;
        Ok(looked)
    }

    fn stores(&self, events: Range<usize>) -> impl Iterator<Item = (usize, Unit)> {
        let numbered = events.clone().zip(&self.trace[events]);
        numbered.filter_map(|(i, event)| match event {
            Event::Store(unit) | Event::StoreNt(unit) => Some((i, *unit)),
            Event::Flush { .. } | Event::Fence(_) | Event::Mark(_) | Event::Thread(_) => None,
        })
    }

    /// The state after opening the present memory. Tracks the words that are read.
    fn look(&self, pm: &Arc<StatePmem>) -> Result<Snapshot, String> {
        pm.keep();
        pm.track_reads(true);
        let seen = caught(|| {
            let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
            let fs = self.system.open(pm.clone(), clock);
            let fs = fs.map_err(|e| format!("does not open: {e}"))?;
            Snapshot::take(&*fs).map_err(|e| format!("cannot be read: {e}"))
        });
        pm.track_reads(false);
        pm.rollback();
        seen
    }
}

/// The one step from old to new, times apart.
struct Switch<'a> {
    old: &'a Snapshot,
    new: &'a Snapshot,
    done: bool,
}

impl Switch<'_> {
    fn starts(&mut self, seen: &Snapshot) -> Result<(), String> {
        match same_content(seen, self.old) {
            true => Ok(()),
            false => Err(format!("differs: {}", self.old.diff(seen).join("; "))),
        }
    }

    fn step(&mut self, seen: &Snapshot) -> Result<(), String> {
        let now = if self.done { self.new } else { self.old };
        if same_content(seen, now) {
            return Ok(());
        }
        if !self.done && same_content(seen, self.new) {
            self.done = true;
            return Ok(());
        }
        if same_content(seen, self.old) {
            return Err("old again after it was new".to_string());
        }
        let (old, new) = (self.old.diff(seen), self.new.diff(seen));
        let (old, new) = (old.join("; "), new.join("; "));
        Err(format!(
            "neither old nor new: from old: {old}; from new: {new}"
        ))
    }

    fn ends(&self) -> Result<(), String> {
        match self.done || same_content(self.old, self.new) {
            true => Ok(()),
            false => Err("the new state never shows".to_string()),
        }
    }
}
