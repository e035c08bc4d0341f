//! Calls after a recovery, and a crash in them.
//!
//! A crash state of a script is drawn: what a power cut left, or all that was written, which
//! is what a killed server leaves. More calls run on what is recovered from it, beside a
//! model of that, and the states that a crash can leave of them are judged as those of any
//! script. So a recovery must not only look right: what it left in place (log records, blocks
//! past the end of a file, orphans) must not come to light later.

use super::Schedule;
use super::trial::{Run, Start};
use crate::choice::{Policy, mix};
use crate::id::{Again, Spot};
use crate::system::Failure;
use crate::walk::{CrashAt, CrashState, Limits, Tally};
use medium::block::{BlockDevice, Lba};
use std::fmt::Write;
use vfs::script::{Script, generate};
use vfs::{FileType, ModelFs, Snapshot};

/// Random calls of a second life.
const CALLS: usize = 4;

/// Moments of a second life at which crashes are explored, and bounds of each.
fn limits_of(limits: Limits) -> Limits {
    Limits {
        lives: 0,
        moments: 8,
        leaves: limits.leaves.min(16),
        samples: limits.samples.min(4),
        recovery_depth: 0,
        ..limits
    }
}

/// The calls: every file grows, so that what was left past its end shows, a new one takes
/// space, and random ones follow.
fn script_of(seed: u64, found: &ModelFs) -> Result<Script, String> {
    let snapshot = Snapshot::take(found).map_err(|e| e.to_string())?;
    let mut text = String::new();
    for (path, node, _) in snapshot.iter() {
        let path = String::from_utf8_lossy(path);
        if node.kind == FileType::Regular && node.nlink == 1 {
            let size = node.size + 20_000;
            let _ = writeln!(text, "truncate {path} {size}"); // a string takes it
        }
    }
    text.push_str("create n 644\nwrite n 0 2500 7\n");
    let calls: Script = text.parse().map_err(|e| format!("calls: {e}"))?;
    Ok(calls.then(&generate::random(seed, CALLS)))
}

impl Run<'_> {
    /// Lives on after some crashes.
    pub(super) fn live_again(
        &self,
        schedule: Schedule,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        for life in 0..limits.lives as u64 {
            let seed = mix(mix(limits.seed, life), self.trace.len() as u64) >> 32;
            let crash = self.draw(seed);
            tally.begin();
            let lived = self.life(schedule, &crash, seed, |run| {
                tally.lives += 1;
                run.crash(limits_of(limits), tally)
            });
            lived.map_err(|failure| Failure {
                op: self.phase_of(crash.event),
                spot: Spot::Again(Box::new(Again {
                    seed,
                    crash,
                    op: failure.op,
                    spot: failure.spot,
                })),
                what: format!("after a recovery: {}", failure.what),
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
            result = run.again(again.op, &again.spot);
            Ok(())
        });
        match lived {
            Err(failure) => Ok(Some(failure.what)),
            Ok(()) => result,
        }
    }

    /// A crash of the script: half of the time nothing that was written is lost.
    fn draw(&self, seed: u64) -> CrashAt {
        let event = (mix(seed, 1) % (self.trace.len() as u64 + 1)) as usize;
        let policy = match seed % 2 {
            0 => Policy::All,
            _ => Policy::Random(seed),
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

    /// Runs the calls that `seed` selects on what `crash` leaves, and then `f`.
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
        let start = Start::of_image(self.system, &image, &self.start.scratch);
        let Some(start) = start.map_err(fail)? else {
            return Ok(());
        };
        let script = script_of(seed, &start.model).map_err(fail)?;
        f(&Run::record(self.system, &start, schedule, &script)?)
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
        let mut image = vec![0; device.geometry().bytes() as usize];
        let read = device.read(Lba(0), &mut image);
        device.rollback();
        read.map(|()| image).map_err(|e| e.to_string())
    }
}
