//! One script on one system: run, recorded, compared with the model, and crashed. Any medium
//! meets any promise here.

mod judge;
mod life;
mod record;
mod switch;

use crate::handles::Handles;
use crate::id::Spot;
use crate::media::{Medium, crash_between};
use crate::past::Past;
use crate::promise::{Floors, Promise, Window};
use crate::sabotage::{Sabotage, hit};
use crate::setting::Setting;
use crate::system::Failure;
use crate::walk::{Limits, Tally, Walk, revisit};
use hashbrown::HashMap;
use judge::FsJudge;
use oracle::ModelFs;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use vfs::{ManualClock, Timestamp};

/// What scripts start from: an image, and the model in the same state. One thread's own:
/// its media and its clock are used by one run at a time.
pub(crate) struct Start<M: Medium> {
    /// Where scripts run, and where their crash states are visited. Each run begins by
    /// undoing what the one before it did.
    live: Arc<M>,
    crashed: Arc<M>,
    setting: Setting,
    /// What a killed server did to `crashed`, and the medium after that.
    before: Vec<M::Event>,
    model: ModelFs,
    clock: Arc<ManualClock>,
    /// When it is opened.
    opened_at: Timestamp,
    /// A crash came before: what the promise allows the checker to find may be there.
    recovered: bool,
}

impl<M: Medium> Start<M> {
    fn time_of(&self, op: usize) -> Timestamp {
        Timestamp(self.opened_at.0 + 1_000_000_000_000 + op as i64 * 1_000_000_000)
    }
}

/// A call with the write-back that followed it, or the write-back at the end.
struct Phase {
    /// Where in the trace it ends.
    end: usize,
    /// The newest state that it can have brought about.
    newest: usize,
    /// What was durable before it, and after its return.
    before: Floors,
    after: Floors,
}

/// A script as it ran.
pub(crate) struct Run<'a, M: Medium> {
    system: &'a M::System,
    start: &'a Start<M>,
    promise: Promise,
    trace: Vec<M::Event>,
    /// Where in the trace the first phase begins. What is before that, the opening, is judged
    /// by itself after the end of another life, and else not at all.
    opened: usize,
    phases: Vec<Phase>,
    /// `past[i]` is the state before operation `i`.
    past: Vec<Past>,
    /// The states in which the cache was asked to write.
    written: BTreeSet<usize>,
    /// Operations that found no space.
    full: u64,
    /// Whose handles callers had.
    handles: Handles,
}

/// At which moments of a script crashes are visited.
enum Moments {
    /// Without a cache, what a call does comes in the call: in some calls.
    Calls(Range<usize>),
    /// Anywhere, since what a call does comes later; there are that many moments.
    Anywhere(usize),
}

impl Moments {
    fn take_phase(&self, phase: usize, limits: Limits) -> bool {
        match self {
            Self::Calls(calls) => calls.contains(&phase) && limits.takes(phase, calls.len()),
            Self::Anywhere(_) => true,
        }
    }

    fn take_event(&self, event: usize, limits: Limits) -> bool {
        match self {
            Self::Calls(_) => true,
            Self::Anywhere(of) => limits.takes(event, *of),
        }
    }
}

/// Runs `script` and visits the crash states of the operations in `ops` (or more, where what
/// an operation does comes later).
pub(crate) fn crash<M: Medium>(
    system: &M::System,
    start: &Start<M>,
    script: &oracle::script::Script,
    ops: Range<usize>,
    limits: Limits,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let run = Run::record(system, start, script)?;
    tally.full += run.full;
    if run.promise.is_atomic_at_return() && run.start.setting.schedule.is_none() {
        for op in ops.clone().filter(|op| limits.takes(*op, ops.len())) {
            tally.looked += M::switches_once(&run, op)?;
        }
    }
    run.crash(&run.moments(ops.clone()), limits, tally)?;
    run.live_again(ops, limits, tally)
}

/// Visits one failure again; returns what is wrong there now.
///
/// # Errors
/// There is no such place.
pub(crate) fn again<M: Medium>(
    system: &M::System,
    start: &Start<M>,
    script: &oracle::script::Script,
    op: usize,
    spot: &Spot,
) -> Result<Option<Failure>, String> {
    let run = match Run::record(system, start, script) {
        Err(failure) => return Ok(Some(failure)),
        Ok(run) => run,
    };
    let what = match spot {
        Spot::Again(again) => run.life_again(again)?,
        _ => run.again(op, spot)?,
    };
    let spot = spot.clone();
    Ok(what.map(|what| Failure { op, spot, what }))
}

impl<M: Medium> Run<'_, M> {
    /// The medium for crash states, as it was before the script.
    fn medium(&self) -> &Arc<M> {
        let Start {
            crashed, before, ..
        } = self.start;
        crashed.reset();
        before.iter().for_each(|event| crashed.apply(event));
        crashed
    }

    fn has_cache(&self) -> bool {
        self.start.setting.schedule.is_some()
    }

    fn moments(&self, ops: Range<usize>) -> Moments {
        match self.has_cache() {
            false => Moments::Calls(ops),
            true => Moments::Anywhere(self.trace.iter().filter(|e| M::is_moment(e)).count()),
        }
    }

    /// The events of a phase.
    fn events(&self, phase: usize) -> Range<usize> {
        let before = phase.checked_sub(1);
        let start = before.map_or(self.opened, |before| self.phases[before].end);
        start..self.phases[phase].end
    }

    /// The phase in which an event is.
    fn phase_of(&self, event: usize) -> usize {
        let is_later = |phase: &Phase| event < phase.end;
        let last = self.phases.len().saturating_sub(1);
        self.phases.iter().position(is_later).unwrap_or(last)
    }

    fn judge(&self, phase: usize, returned: bool) -> FsJudge<'_, M> {
        let Phase {
            newest,
            before,
            after,
            ..
        } = &self.phases[phase];
        let floors = if returned { after } else { before };
        FsJudge {
            system: self.system,
            has_cache: self.has_cache(),
            window: self.window(floors, *newest, self.start.time_of(phase)),
            known: (&self.handles, phase + usize::from(returned)),
            judged: HashMap::new(),
        }
    }

    fn window<'s>(&'s self, floors: &'s Floors, newest: usize, now: Timestamp) -> Window<'s> {
        Window {
            promise: self.promise,
            past: &self.past,
            floors,
            newest,
            written: &self.written,
            now,
        }
    }

    /// Visits the crash states at the moments, up to the first that is wrong.
    fn crash(&self, moments: &Moments, limits: Limits, tally: &mut Tally) -> Result<(), Failure> {
        let medium = self.medium();
        let apply = |events: Range<usize>| self.trace[events].iter().for_each(|e| medium.apply(e));
        apply(0..self.opened);
        for phase in 0..self.phases.len() {
            if moments.take_phase(phase, limits) {
                self.crash_in(phase, medium, moments, limits, tally)?;
            } else {
                apply(self.events(phase));
            }
        }
        Ok(())
    }

    fn crash_in(
        &self,
        phase: usize,
        medium: &Arc<M>,
        moments: &Moments,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let events = self.events(phase);
        let last_change = events.clone().rev().find(|i| M::is_change(&self.trace[*i]));
        let mut walk = Walk {
            medium,
            judge: &mut self.judge(phase, false),
            limits,
            tally,
            crashes: Vec::new(),
        };
        for i in events.clone() {
            let event = &self.trace[i];
            if medium.narrows(event) && moments.take_event(i, limits) {
                walk.point(i).map_err(|found| Failure {
                    op: phase,
                    what: found.what + &crash_between::<M>(&self.trace, &found.place),
                    spot: Spot::In(found.place),
                })?;
            }
            if last_change != Some(i) || !hit(Sabotage::LastChangeDropped) {
                medium.apply(event);
            }
        }
        let Phase { before, after, .. } = &self.phases[phase];
        let is_skipped = !moments.take_event(events.end, limits);
        if before == after || is_skipped || hit(Sabotage::FinalStateSkipped) {
            return Ok(()); // nothing more is demanded than before the next event
        }
        let mut judge = self.judge(phase, true);
        walk.judge = &mut judge;
        walk.point(events.end).map_err(|found| Failure {
            op: phase,
            what: found.what + &crash_between::<M>(&self.trace, &found.place),
            spot: Spot::End(found.place),
        })
    }

    /// Visits one failure again; returns what is wrong there now.
    fn again(&self, phase: usize, spot: &Spot) -> Result<Option<String>, String> {
        if phase >= self.phases.len() {
            return Err(format!("the script has no operation {phase}"));
        }
        let (place, returned) = match spot {
            Spot::Live | Spot::Again(_) => return Ok(None),
            Spot::Store(_) => return Ok(M::switches_once(self, phase).err().map(|f| f.what)),
            Spot::In(place) => (place, false),
            Spot::End(place) => (place, true),
        };
        let events = self.events(phase);
        let mut place = place.clone();
        let first = place.crashes.first_mut().ok_or("the id names no crash")?;
        if returned {
            // The end of the operation, wherever changed code has moved it.
            first.event = events.end;
        }
        if !(events.start..=events.end).contains(&first.event) {
            let event = first.event;
            return Err(format!(
                "event {event} is not in operation {phase} any more"
            ));
        }
        let mut judge = self.judge(phase, returned);
        let verdict = revisit(self.medium(), &self.trace, &place, &mut judge)?;
        let between = crash_between::<M>(&self.trace, &place);
        Ok(verdict.wrong.map(|what| what + &between))
    }
}
