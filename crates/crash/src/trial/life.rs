//! A second life: the end of a run, more calls on what it left, and their crash states.

use super::judge::FsJudge;
use super::{Moments, Run, Start};
use crate::choice::{Policy, mix};
use crate::id::{Again, Spot};
use crate::life::{End, limits_of, script_of, seed_of};
use crate::media::Medium;
use crate::past::same_but_contents;
use crate::promise::Floors;
use crate::system::Failure;
use crate::walk::{CrashAt, Found, Limits, Tally, Walk, revisit};
use hashbrown::HashMap;
use std::ops::Range;

/// The place where a life ends: before an event, in a phase.
#[derive(Clone, Copy)]
struct Last {
    event: usize,
    phase: usize,
}

/// The finding of a failure in the life after the end that `seed` draws.
fn after_end(seed: u64, what: &str) -> String {
    format!("after {}: {what}", End::of(seed))
}

/// The finding of a crash state of the opening.
fn in_opening(what: &str) -> String {
    format!("while it opens: {what}")
}

impl<M: Medium> Run<'_, M> {
    /// Runs second lives after some ends of the calls in `ops`. With a cache, which writes later,
    /// the ends are those of the whole script.
    pub(super) fn live_again(
        &self,
        ops: Range<usize>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let is_empty = !self.has_cache() && ops.is_empty();
        let lives = if is_empty { 0 } else { limits.lives };
        for life in 0..lives as u64 {
            let seed = seed_of(limits, life, self.trace.len());
            let event = self.draw(&ops, seed);
            let phase = self.phase_of(event);
            tally.begin();
            let lived = self.life(Last { event, phase }, seed, |run| {
                tally.lives += 1;
                run.crash_after_end(self, phase, limits_of(limits), tally)
            });
            lived.map_err(|failure| Failure {
                op: phase,
                spot: Spot::Again(Box::new(Again {
                    seed,
                    crash: CrashAt {
                        event,
                        choices: Vec::new(),
                    },
                    op: failure.op,
                    spot: failure.spot,
                })),
                what: after_end(seed, &failure.what),
            })?;
        }
        Ok(())
    }

    /// Visits the state of a failure of a second life again. Returns the present finding there.
    pub(super) fn life_again(&self, again: &Again) -> Result<Option<String>, String> {
        let event = again.crash.event;
        if self.phases.is_empty() || event > self.trace.len() {
            return Err(format!("the trace has no event {event} any more"));
        }
        let phase = self.phase_of(event);
        let mut result = Ok(None);
        let lived = self.life(Last { event, phase }, again.seed, |run| {
            let first = match &again.spot {
                Spot::In(place) => place.crashes.first().map(|crash| (place, crash.event)),
                _ => None,
            };
            result = match first {
                Some((place, first)) if run.is_opening(first) => {
                    let floors = Floors::default();
                    let mut judge = match first == run.opened {
                        true => run.judge_of_opened(self, phase, &floors),
                        false => self.judge(phase, false),
                    };
                    let verdict = revisit(run.medium(), &run.trace, place, &mut judge);
                    verdict.map(|v| v.wrong.map(|what| in_opening(&what)))
                }
                _ => run.again(again.op, &again.spot),
            };
            Ok(())
        });
        let found = match lived {
            Err(failure) => Some(failure.what),
            Ok(()) => result?,
        };
        Ok(found.map(|what| after_end(again.seed, &what)))
    }

    /// The event before which the life ends. Without a cache it is in `ops`, half of the time
    /// right before a fence: there the most stores are visible and not durable.
    fn draw(&self, ops: &Range<usize>, seed: u64) -> usize {
        if self.has_cache() {
            return (mix(seed, 1) % (self.trace.len() as u64 + 1)) as usize;
        }
        let range = self.events(ops.start).start..self.events(ops.end - 1).end;
        let is_moment = |n: &usize| M::is_moment(&self.trace[*n]);
        let moments: Vec<usize> = range.clone().filter(is_moment).collect();
        let (kind, drawn) = (mix(seed, 1) % 2, mix(seed, 2) as usize);
        match moments.len() {
            len if kind == 0 && len > 0 => moments[drawn % len],
            _ => range.start + drawn % (range.len() + 1),
        }
    }

    /// Runs the calls that `seed` selects on the state that the end of the life leaves, and then
    /// `f`.
    fn life(
        &self,
        last: Last,
        seed: u64,
        f: impl FnOnce(&Run<'_, M>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let fail = |what| Failure {
            op: 0,
            spot: Spot::Live,
            what,
        };
        let Some(start) = self.end(last, End::of(seed)).map_err(fail)? else {
            return Ok(());
        };
        let script = script_of(seed, &start.model).map_err(fail)?;
        let mut run = Run::record(self.system, &start, &script)?;
        let handles = std::mem::take(&mut run.handles);
        run.handles = handles.after(&self.handles, last.phase).map_err(fail)?;
        let window = self.judge(last.phase, false).window;
        let found = window.allows(&run.past[0].expected.snapshot);
        found.map_err(fail)?;
        f(&run)
    }

    /// The start of the next life: the state that the end of this one leaves.
    fn end(&self, last: Last, end: End) -> Result<Option<Start<M>>, String> {
        let medium = self.medium();
        let durable = medium.image();
        let trace = &self.trace[..last.event];
        trace.iter().for_each(|event| medium.apply(event));
        // A kill loses no store.
        let boot = self.start.boot;
        let (policy, later, boot) = match end {
            End::Cut(policy) => (policy, None, boot + 1),
            End::Kill => {
                let after = M::after_kill(trace, self.is_only_data_change(last.phase));
                (Policy::All, Some([trace, &after].concat()), boot)
            }
        };
        medium.cut(policy);
        let image = medium.image();
        let later = match later {
            Some(events) => (&durable, events),
            None => (&image, Vec::new()),
        };
        Start::of_end(self.system, (self.start.setting, boot), &image, later)
    }

    /// Whether a call changes only the contents of files.
    fn is_only_data_change(&self, phase: usize) -> bool {
        let newest = self.phases[phase].newest;
        let Some(before) = newest.checked_sub(1) else {
            return false;
        };
        let [old, new] = [before, newest].map(|n| &self.past[n].expected.snapshot);
        same_but_contents(old, new) && !old.is_same_except_times(new)
    }

    /// Whether a crash before `event` was judged as one of the opening.
    fn is_opening(&self, event: usize) -> bool {
        event < self.opened || (event == self.opened && !self.has_cache())
    }

    /// The judge right after the opening. Without a cache, the state that the opening found is
    /// durable. Files made later may not have the handles of the `earlier` life.
    fn judge_of_opened<'s>(
        &'s self,
        earlier: &'s Run<'_, M>,
        phase: usize,
        floors: &'s Floors,
    ) -> FsJudge<'s, M> {
        FsJudge {
            system: self.system,
            has_cache: self.has_cache(),
            window: self.window(floors, 0, earlier.start.time_of(phase)),
            known: (&earlier.handles, phase),
            judged: HashMap::new(),
        }
    }

    /// Visits the crash states of the opening and of all calls. During the opening the promises of
    /// the earlier life hold; after it, the state that it found must be there.
    fn crash_after_end(
        &self,
        earlier: &Run<'_, M>,
        phase: usize,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let failed = |found: Found| Failure {
            op: 0,
            spot: Spot::In(found.place),
            what: in_opening(&found.what),
        };
        let medium = self.medium();
        let moments = self.moments(0..self.phases.len());
        let mut walk = Walk {
            medium,
            judge: &mut earlier.judge(phase, false),
            limits,
            tally,
            crashes: Vec::new(),
        };
        for (i, event) in self.trace[..self.opened].iter().enumerate() {
            if medium.narrows(event) && moments.take_event(i, limits) {
                walk.point(i).map_err(failed)?;
            }
            medium.apply(event);
        }
        let floors = Floors::default();
        let mut judge = self.judge_of_opened(earlier, phase, &floors);
        if matches!(moments, Moments::Calls(_)) {
            walk.judge = &mut judge;
            walk.point(self.opened).map_err(failed)?;
        }
        self.crash(&moments, limits, tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PersistModel;
    use crate::media::blocks::StateDevice;
    use crate::media::memory::StatePmem;
    use crate::toy::ToyBug;
    use crate::toy::blocks::{BlockBug, BlockToy};
    use crate::toy::memory::Toy;
    use oracle::script::Script;
    use oracle::script::generate::Tree;

    const LIMITS: Limits = Limits {
        leaves: 64,
        recovery_depth: 1,
        samples: 8,
        tails: 1,
        moments: usize::MAX,
        lives: 8,
        seed: 1,
    };

    /// The findings in second lives, each of which a replay returns as well.
    fn findings<M: Medium>(system: &M::System, options: &crate::Options) -> Vec<String> {
        let script = "create f 644\nwrite f 0 100 1\ncreate g 644\nrename f h replace\n";
        let script: Script = script.parse().expect("a script");
        let mut findings = Vec::new();
        for setting in M::settings(system, options) {
            let start = Start::<M>::new(system, setting, &Tree::Empty.setup()).expect("a start");
            let run = Run::record(system, &start, &script).expect("it runs without a crash");
            for seed in 0..16 {
                let limits = Limits { seed, ..LIMITS };
                let lived = run.live_again(0..script.ops.len(), limits, &mut Tally::default());
                let Err(failure) = lived else { continue };
                let Spot::Again(again) = &failure.spot else {
                    panic!("{failure:?} is not of a second life");
                };
                let replayed = run.life_again(again).expect("the place is there");
                assert_eq!(replayed.as_ref(), Some(&failure.what));
                findings.push(failure.what);
            }
        }
        findings
    }

    #[test]
    fn a_replay_of_a_second_life_returns_the_reported_finding() {
        let mut all = Vec::new();
        for model in PersistModel::ALL {
            let options = crate::Options {
                model,
                ..crate::Options::default()
            };
            for bug in [
                ToyBug::NotDurable,
                ToyBug::MissingFence,
                ToyBug::ReplayDrift,
                ToyBug::RecoveryUnordered,
            ] {
                all.extend(findings::<StatePmem>(&Toy(bug), &options));
            }
        }
        for bug in [BlockBug::CommitWithLog, BlockBug::NotDurable] {
            let options = crate::Options::default();
            all.extend(findings::<StateDevice>(&BlockToy(bug), &options));
        }
        for part in [
            "after a kill: ",
            "after a power cut: ",
            ": while it opens: ",
            "; crashed between ",
        ] {
            assert!(
                all.iter().any(|what| what.contains(part)),
                "{part}: {all:#?}"
            );
        }
    }
}
