//! A second life on blocks.

use super::Schedule;
use super::device::StateDevice;
use super::trial::{Run, Start};
use crate::choice::{Policy, mix};
use crate::id::{Again, Spot};
use crate::life::{End, limits_of, script_of, seed_of};
use crate::system::Failure;
use crate::walk::{CrashAt, CrashState, Limits, Tally, Walk, revisit};
use medium::block::{BlockDevice, BlockEvent, Lba};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Run<'_> {
    /// Lives on after some ends.
    pub(super) fn live_again(
        &self,
        schedule: Schedule,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        for life in 0..limits.lives as u64 {
            let seed = seed_of(limits, life, self.trace.len());
            let crash = self.draw(seed);
            tally.begin();
            let lived = self.life(schedule, &crash, seed, |run| {
                tally.lives += 1;
                run.crash_after_end((self, crash.event), limits_of(limits), tally)
            });
            lived.map_err(|failure| Failure {
                op: self.phase_of(crash.event),
                spot: Spot::Again(Box::new(Again {
                    seed,
                    crash,
                    op: failure.op,
                    spot: failure.spot,
                })),
                what: format!("after {}: {}", End::of(seed), failure.what),
            })?;
        }
        Ok(())
    }

    /// Visits a failure of a second life again; returns what is wrong there now.
    pub(super) fn life_again(
        &self,
        schedule: Schedule,
        again: &Again,
    ) -> Result<Option<String>, String> {
        let mut result = Ok(None);
        let lived = self.life(schedule, &again.crash, again.seed, |run| {
            result = match &again.spot {
                Spot::In(place) if place.crashes.first().is_some_and(|c| c.event < run.opened) => {
                    let mut judge = self.judge(self.phase_of(again.crash.event), false);
                    revisit(run.device(), &run.trace, place, &mut judge).map(|v| v.wrong)
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

    /// The end of a life; a kill loses nothing that was written.
    fn draw(&self, seed: u64) -> CrashAt {
        let event = (mix(seed, 1) % (self.trace.len() as u64 + 1)) as usize;
        let policy = match End::of(seed) {
            End::Kill => Policy::All,
            End::Cut(policy) => policy,
        };
        let device = self.device();
        self.trace[..event].iter().for_each(|e| device.apply(e));
        device.keep();
        device.start(&[], policy);
        let _ = device.settle();
        let choices = device.decisions().into_iter().map(|(_, choice)| choice);
        let choices = choices.collect();
        device.rollback();
        CrashAt { event, choices }
    }

    /// Runs the calls that `seed` selects on what is left by `crash`, and then `f`.
    fn life(
        &self,
        schedule: Schedule,
        crash: &CrashAt,
        seed: u64,
        f: impl FnOnce(&Run<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let fail = |what| Failure {
            op: 0,
            spot: Spot::Live,
            what,
        };
        let image = self.image(crash).map_err(fail)?;
        let later = match End::of(seed) {
            End::Cut(_) => (image.clone(), Vec::new()),
            End::Kill => (
                bytes_of(self.device()).map_err(fail)?,
                killed(&self.trace[..crash.event]),
            ),
        };
        let later = (&later.0[..], later.1);
        let start = Start::of_end(self.system, &image, later, &self.start.scratch);
        let Some(start) = start.map_err(fail)? else {
            return Ok(());
        };
        let script = script_of(seed, &start.model).map_err(fail)?;
        let mut run = Run::record(self.system, &start, schedule, &script)?;
        let handles = std::mem::take(&mut run.handles);
        let returned = self.phase_of(crash.event);
        run.handles = handles.after(&self.handles, returned).map_err(fail)?;
        f(&run)
    }

    /// All blocks, as the crash leaves them.
    fn image(&self, crash: &CrashAt) -> Result<Vec<u8>, String> {
        let device = self.device();
        let before = self.trace.get(..crash.event);
        let before = before.ok_or_else(|| format!("the trace has no event {}", crash.event))?;
        before.iter().for_each(|event| device.apply(event));
        device.keep();
        device.start(&crash.choices, Policy::None);
        let _ = device.settle();
        let image = bytes_of(device);
        device.rollback();
        image
    }

    /// Visits the crash states of the opening, in which what the life before it has promised
    /// holds, and of all calls, in which what was found when it was open is there.
    fn crash_after_end(
        &self,
        (earlier, event): (&Run<'_>, usize),
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let device = self.device();
        let mut walk = Walk {
            medium: device,
            judge: &mut earlier.judge(earlier.phase_of(event), false),
            limits,
            tally,
            crashes: Vec::new(),
        };
        for (i, event) in self.trace[..self.opened].iter().enumerate() {
            if device.narrows(event) && limits.takes(i, self.moments()) {
                walk.point(i).map_err(|found| Failure {
                    op: 0,
                    what: format!("while it opens: {}", found.what),
                    spot: Spot::In(found.place),
                })?;
            }
            device.apply(event);
        }
        self.crash(limits, tally)
    }
}

fn bytes_of(device: &Arc<StateDevice>) -> Result<Vec<u8>, String> {
    let mut image = vec![0; device.geometry().bytes() as usize];
    let read = device.read(Lba(0), &mut image);
    read.map(|()| image).map_err(|e| e.to_string())
}

/// What a server that is killed after `trace` has done: the device goes on with its writes, but
/// no one flushes them.
fn killed(trace: &[BlockEvent]) -> Vec<BlockEvent> {
    let mut open = BTreeSet::new();
    for event in trace {
        match event {
            BlockEvent::Issued { id, .. } => drop(open.insert(*id)),
            BlockEvent::Completed { id, .. } => drop(open.remove(id)),
            _ => {}
        }
    }
    let ends = open.into_iter();
    let ends = ends.map(|id| BlockEvent::Completed { id, ok: true });
    trace.iter().cloned().chain(ends).collect()
}
