//! A second life on persistent memory.

use super::{Run, Start};
use crate::choice::mix;
use crate::id::{Again, Spot};
use crate::life::{End, limits_of, script_of, seed_of};
use crate::oracle::{Demand, FsJudge, same_but_contents};
use crate::system::Failure;
use crate::walk::{CrashAt, Found, Limits, Tally, Walk, revisit};
use medium::recording::Event;
use medium::{LINE_BYTES, Rule};
use oracle::Snapshot;
use std::ops::Range;

/// The run before the end of its server or its power, and the operation in which that was.
pub(super) type Earlier<'a> = (&'a Run<'a>, usize);

/// Whose events follow a kill: the dead server's flushes are not covered by fences of the next.
const NEXT_SERVER: Event = Event::Thread(1);

impl Run<'_> {
    /// Lives on after some ends of the calls in `ops`.
    pub(super) fn live_again(
        &self,
        ops: Range<usize>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let lives = if ops.is_empty() { 0 } else { limits.lives };
        for life in 0..lives as u64 {
            let seed = seed_of(limits, life, self.trace.len());
            let event = self.draw(&ops, seed);
            let op = self.op_of(event);
            tally.begin();
            let lived = self.life(op, event, seed, |run| {
                tally.lives += 1;
                run.crash_after_end((self, op), limits_of(limits), tally)
            });
            lived.map_err(|failure| Failure {
                op,
                spot: Spot::Again(Box::new(Again {
                    seed,
                    crash: CrashAt {
                        event,
                        choices: Vec::new(),
                    },
                    op: failure.op,
                    spot: failure.spot,
                })),
                what: format!("after {}: {}", End::of(seed), failure.what),
            })?;
        }
        Ok(())
    }

    /// Visits a failure of a second life again; returns what is wrong there now.
    pub(super) fn life_again(&self, op: usize, again: &Again) -> Result<Option<String>, String> {
        let event = again.crash.event;
        if op >= self.ends.len() || event > self.trace.len() {
            return Err(format!("operation {op} has no event {event} any more"));
        }
        let mut result = Ok(None);
        let lived = self.life(op, event, again.seed, |run| {
            result = match &again.spot {
                Spot::In(place) if place.crashes.first().is_some_and(|c| c.event <= run.opened) => {
                    let settled = place.crashes[0].event == run.opened;
                    let mut judge = run.judge_of_opening((self, op), settled);
                    revisit(run.memory(), &run.trace, place, &mut judge).map(|v| v.wrong)
                }
                spot => run.again(again.op, spot),
            };
            Ok(())
        });
        match lived {
            Err(failure) => Ok(Some(failure.what)),
            Ok(()) => result,
        }
    }

    /// Where the life ends. Half of the time it is right before a fence, where most is seen that
    /// is not durable.
    fn draw(&self, ops: &Range<usize>, seed: u64) -> usize {
        let range = self.events(ops.start).start..self.events(ops.end - 1).end;
        let is_fence = |n: &usize| matches!(self.trace[*n], Event::Fence(_));
        let fences: Vec<usize> = range.clone().filter(is_fence).collect();
        let (kind, drawn) = (mix(seed, 1) % 2, mix(seed, 2) as usize);
        match fences.len() {
            len if kind == 0 && len > 0 => fences[drawn % len],
            _ => range.start + drawn % (range.len() + 1),
        }
    }

    fn op_of(&self, event: usize) -> usize {
        let last = self.ends.len().saturating_sub(1);
        self.ends
            .iter()
            .position(|end| event < *end)
            .unwrap_or(last)
    }

    /// Runs the calls that `seed` selects on what is left when the life ends before `event`,
    /// and then `f`.
    fn life(
        &self,
        op: usize,
        event: usize,
        seed: u64,
        f: impl FnOnce(&Run<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let fail = |what| Failure {
            op: 0,
            spot: Spot::Live,
            what,
        };
        let start = self.end(op, event, End::of(seed)).map_err(fail)?;
        let script = script_of(seed, &start.model).map_err(fail)?;
        let mut run = Run::record(self.system, &start, &script)?;
        let handles = std::mem::take(&mut run.handles);
        run.handles = handles.after(&self.handles, op).map_err(fail)?;
        self.allows(op, &run.expected[0].snapshot).map_err(fail)?;
        f(&run)
    }

    /// What the end of the life before `event` of `op` leaves.
    fn end(&self, op: usize, event: usize, end: End) -> Result<Start, String> {
        let model = self.start.live.model();
        match end {
            End::Cut(policy) => {
                let pm = self.memory();
                self.trace[..event].iter().for_each(|e| pm.apply(e));
                pm.decide_all(policy);
                let words = pm.words();
                Start::of_end(self.system, model, &words, &words, Vec::new())
            }
            End::Kill => {
                let pm = self.memory();
                let durable = pm.words();
                for (_, unit) in self.stores(0..event) {
                    pm.apply_now(&unit);
                }
                let mut before = self.trace[..event].to_vec();
                before.push(NEXT_SERVER);
                if self.only_data_change(op) {
                    before.extend(self.written_back(event));
                }
                Start::of_end(self.system, model, &pm.words(), &durable, before)
            }
        }
    }

    /// Whether a call changes nothing but the contents of files. A mount does not read these:
    /// that they do not change any more when they have been seen is for the medium to see to,
    /// which makes durable what is there when it is opened.
    fn only_data_change(&self, op: usize) -> bool {
        let [old, new] = [op, op + 1].map(|n| &self.expected[n].snapshot);
        same_but_contents(old, new) && !old.is_same_except_times(new)
    }

    /// What the medium does when it is opened.
    fn written_back(&self, event: usize) -> impl Iterator<Item = Event> {
        let lines = self.stores(0..event).map(|(_, unit)| unit.off / LINE_BYTES);
        let lines = lines.map(|line| Event::Flush {
            line: line * LINE_BYTES,
        });
        lines.chain([Event::Fence(Rule::DurableBeforeUse)])
    }

    /// What the next server sees first is a state before or after the operation.
    fn allows(&self, op: usize, seen: &Snapshot) -> Result<(), String> {
        let demand = Demand {
            states: &self.expected[op..op + 2],
            times_atomic: self.guarantees.times_atomic,
            now: self.start.time_of(op),
        };
        demand.violated_by(seen).map_or(Ok(()), Err)
    }

    /// What a power cut may show while the memory is opened again; once it is open
    /// (`settled`), what was found is durable.
    fn judge_of_opening<'s>(&'s self, (run, op): Earlier<'s>, settled: bool) -> FsJudge<'s> {
        let states = match settled {
            true => &self.expected[..1],
            false => &run.expected[op..op + 2],
        };
        FsJudge {
            system: self.system,
            demand: Demand {
                states,
                times_atomic: self.guarantees.times_atomic || settled,
                now: run.start.time_of(op),
            },
            known: (&run.handles, op),
        }
    }

    /// Visits the crash states of the opening and of all calls.
    fn crash_after_end(
        &self,
        earlier: Earlier<'_>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let in_opening = |found: Found| Failure {
            op: 0,
            spot: Spot::In(found.place),
            what: format!("while it opens: {}", found.what),
        };
        let pm = self.memory();
        let mut walk = Walk {
            medium: pm,
            judge: &mut self.judge_of_opening(earlier, false),
            limits,
            tally,
            crashes: Vec::new(),
        };
        for (i, event) in self.trace[..self.opened].iter().enumerate() {
            if matches!(event, Event::Fence(_)) {
                walk.point(i).map_err(in_opening)?;
            }
            pm.apply(event);
        }
        let mut judge = self.judge_of_opening(earlier, true);
        walk.judge = &mut judge;
        walk.point(self.opened).map_err(in_opening)?;
        self.crash(0..self.ends.len(), limits, tally)
    }
}
