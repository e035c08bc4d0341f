//! One script on one system: run, recorded, compared with the model, and crashed. This module
//! combines any medium with any promise.

mod judge;
mod life;
mod record;

use crate::handles::Handles;
use crate::id::Spot;
use crate::media::{Medium, Replay, crash_between};
use crate::past::Past;
use crate::promise::{Floors, Ordered, Promise, Window};
use crate::sabotage::{Sabotage, hit};
use crate::setting::Setting;
use crate::system::Failure;
use crate::walk::{Limits, Tally, Walk, revisit};
use hashbrown::HashMap;
use judge::FsJudge;
use oracle::ModelFs;
pub(crate) use record::Drawn;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use vfs::{ManualClock, Timestamp};

/// The start of scripts: an image, and the model in the same state. It belongs to one thread: one
/// run at a time uses its media and its clock.
pub(crate) struct Start<M: Medium> {
    /// The medium that scripts run on. Each run begins by undoing the one before it.
    live: Arc<M>,
    /// The medium of the crash states.
    crashed: Arc<M>,
    setting: Setting,
    /// Events of a killed server on `crashed`, and of the medium after the kill.
    before: Vec<M::Event>,
    model: ModelFs,
    clock: Arc<ManualClock>,
    /// Time at which it is opened.
    opened_at: Timestamp,
    /// Number of the boot of the machine in which it is opened.
    boot: u128,
    /// Whether a crash came before, so that damage allowed by the promise may be there.
    recovered: bool,
}

impl<M: Medium> Start<M> {
    fn time_of(&self, op: usize) -> Timestamp {
        Timestamp(self.opened_at.0 + 1_000_000_000_000 + op as i64 * 1_000_000_000)
    }
}

/// A call with the write-back that followed it, or the write-back at the end.
struct Phase {
    /// Its end in the trace.
    end: usize,
    /// The newest state that it can have reached.
    newest: usize,
    /// The floors before it.
    before: Floors,
    /// The floors after its return.
    after: Floors,
}

/// A recorded run of a script.
pub(crate) struct Run<'a, M: Medium> {
    system: &'a M::System,
    start: &'a Start<M>,
    promise: Promise,
    trace: Vec<M::Event>,
    /// Begin of the first phase in the trace. The opening before it is judged by itself after the
    /// end of another life, and otherwise not at all.
    opened: usize,
    phases: Vec<Phase>,
    /// `past[i]` is the state before operation `i`.
    past: Vec<Past>,
    /// The states in which the cache was asked to write.
    written: BTreeSet<usize>,
    /// The states after barriers, oldest first.
    barriers: Vec<usize>,
    /// The order of groups or barriers, if the script has any.
    ordered: Option<Ordered>,
    /// Operations that found no space.
    full: u64,
    /// The handles that callers had.
    handles: Handles,
}

/// The moments of a script at which crashes are visited.
enum Moments {
    /// Within these calls: without a cache, a call writes before it returns.
    Calls(Range<usize>),
    /// Anywhere, since a cache writes after calls return. The number of moments.
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

/// Runs `script` and visits the crash states of the operations in `ops`. With a cache, which
/// writes later, it visits those of the whole script.
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
            tally.looked += run.switches_once(op)?;
        }
    }
    run.crash(&run.moments(ops.clone()), limits, tally)?;
    run.live_again(ops, limits, tally)
}

/// Visits the state of one failure again. Returns the present failure there.
///
/// # Errors
/// The state does not exist.
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
    /// The medium for crash states, in the state before the script.
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

    /// The phase of an event.
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
            barriers: &self.barriers,
            ordered: self.ordered.as_ref(),
            now,
        }
    }

    /// Visits the crash states at the moments, up to the first failure.
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

    /// Replays an operation in program order. Returns how many states were read.
    fn switches_once(&self, op: usize) -> Result<u64, Failure> {
        let replay = Replay {
            system: self.system,
            trace: &self.trace,
            events: self.events(op),
            old: &self.past[op].expected.snapshot,
            new: &self.past[op + 1].expected.snapshot,
        };
        let switched = self.medium().switches_once(&replay);
        switched.map_err(|(event, what)| Failure {
            op,
            spot: Spot::Store(event),
            what,
        })
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
            return Ok(()); // the demands are those before the next event
        }
        let mut judge = self.judge(phase, true);
        walk.judge = &mut judge;
        walk.point(events.end).map_err(|found| Failure {
            op: phase,
            what: found.what + &crash_between::<M>(&self.trace, &found.place),
            spot: Spot::End(found.place),
        })
    }

    /// Visits the state of one failure again. Returns the present finding there.
    fn again(&self, phase: usize, spot: &Spot) -> Result<Option<String>, String> {
        if phase >= self.phases.len() {
            return Err(format!("the script has no operation {phase}"));
        }
        let (place, returned) = match spot {
            Spot::Live | Spot::Again(_) => return Ok(None),
            Spot::Store(_) => return Ok(self.switches_once(phase).err().map(|f| f.what)),
            Spot::In(place) => (place, false),
            Spot::End(place) => (place, true),
        };
        let events = self.events(phase);
        let mut place = place.clone();
        let first = place.crashes.first_mut().ok_or("the id names no crash")?;
        if returned {
            // Changed code may have moved the end of the operation.
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
