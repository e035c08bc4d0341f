//! Lets a file system recover from a crash state, and judges the result.
//!
//! - C1. If the promise needs no recovery, the checker finds no more than leaks before it.
//! - C2. It opens (recovery succeeds, nothing panics).
//! - C3. Callers see a state that the promise allows ([`crate::promise`]).
//! - C4. Volatile state agrees with what is stored (`audit`), and the checker finds no more
//!   than the promise allows.
//! - C5. It is fit for use ([`crate::fitness`]), and C4 holds again.

use crate::choice::Policy;
use crate::fitness::{use_up, use_world};
use crate::handles::Handles;
use crate::media::Medium;
use crate::panics::caught;
use crate::promise::Window;
use crate::walk::{Judge, Recovery, Verdict};
use hashbrown::HashMap;
use std::sync::Arc;
use vfs::{FileSystem, ManualClock, System, Timestamp};

/// Time of recoveries. It is later than all calls of a script, so that a time that recovery stamps
/// is found.
const RECOVERY_TIME: Timestamp = Timestamp(4_000_000_000_000_000_000);

/// Number of the first boot after a crash state. Boots of runs have smaller numbers.
const FIRST_BOOT_AFTER: u128 = 1 << 64;

/// Most blocks in one wave, unless a schedule sets another number.
pub(super) const WAVE: usize = 1024;

/// Judges crash states of one system by the states allowed at one moment.
pub(super) struct FsJudge<'a, M: Medium> {
    pub system: &'a M::System,
    pub has_cache: bool,
    pub window: Window<'a>,
    /// Handles that callers had, up to a state.
    pub known: (&'a Handles, usize),
    /// Outcomes of sound states, by hash of the state after the opening. The rest of an evaluation
    /// depends on that state alone.
    pub judged: HashMap<u64, u64>,
}

/// The result of one evaluation, kept if it panics.
struct Seen<E> {
    outcome: u64,
    recovery: Option<Recovery<E>>,
    /// Hash of the state after the opening.
    essence: Option<u64>,
}

impl<M: Medium> Judge<M> for FsJudge<'_, M> {
    fn judge(&mut self, medium: &Arc<M>, tail: Policy, crashes: usize) -> Verdict<M::Event> {
        let mut seen = Seen {
            outcome: 0,
            recovery: None,
            essence: None,
        };
        let result = caught(|| self.evaluate(medium, (tail, crashes), &mut seen));
        if let (Ok(()), Some(essence)) = (&result, seen.essence) {
            self.judged.insert(essence, seen.outcome);
        }
        Verdict {
            wrong: result.err(),
            outcome: seen.outcome,
            recovery: seen.recovery,
        }
    }

    fn demands(&self) -> u64 {
        self.window.demands()
    }
}

impl<M: Medium> FsJudge<'_, M> {
    fn evaluate(
        &self,
        medium: &Arc<M>,
        (tail, crashes): (Policy, usize),
        seen: &mut Seen<M::Event>,
    ) -> Result<(), String> {
        let recorder = medium.record();
        let door = M::door(&recorder);
        let is_only_order = self.window.is_only_order();
        if self.window.promise.needs_no_recovery() && !is_only_order {
            self.checked(&door, "before recovery")?;
        }
        let clock = Arc::new(ManualClock::new(RECOVERY_TIME, 1));
        // The power was cut, again for each crash of a recovery: no boot of a run, nor an earlier one.
        let boot = FIRST_BOOT_AFTER + crashes as u128;
        let opened = self.system.open_in_boot(door.clone(), clock, WAVE, boot);
        let (decisions, trace) = (medium.decisions(), M::stop(&recorder));
        seen.essence = medium.essence();
        // A recovery without changes leaves no new state after a crash in it.
        if trace.iter().any(M::is_change) {
            seen.recovery = Some(Recovery {
                decisions,
                key: medium.key_of_recovery(&trace),
                trace,
            });
        }
        let fs = opened.map_err(|e| format!("does not open: {e}"))?.fs;
        if let Some(outcome) = seen.essence.and_then(|essence| self.judged.get(&essence)) {
            seen.outcome = *outcome;
            return Ok(());
        }
        let snapshot = self.window.judge(&*fs)?;
        if is_only_order {
            return Ok(());
        }
        seen.outcome = snapshot.as_ref().map_or(0, |s| s.hash() as u64);
        self.sound(&*fs, &door, "after recovery")?;
        medium.start_tail(tail);
        let (known, newest) = self.known;
        let is_new = |handle| known.refuse(handle, newest);
        match &snapshot {
            Some(snapshot) => use_up(&*fs, snapshot, &is_new)?,
            None => use_world(&*fs, &is_new, &|| {
                self.sound(&*fs, &door, "after the removal of one of two names")
            })?,
        }
        self.sound(&*fs, &door, "after deleting everything")
    }

    /// C4.
    fn sound(&self, fs: &dyn FileSystem, door: &Arc<M::Door>, when: &str) -> Result<(), String> {
        audit(fs, when)?;
        if self.has_cache {
            fs.sync().map_err(|e| format!("sync {when}: {e}"))?;
        }
        self.checked(door, when)
    }

    fn checked(&self, door: &Arc<M::Door>, when: &str) -> Result<(), String> {
        let report = self.system.check(door);
        let worst = self.window.promise.worst();
        match report.findings.iter().find(|f| Some(f.severity) > worst) {
            Some(finding) => Err(format!("checker {when}: {finding}")),
            None => Ok(()),
        }
    }
}

pub(super) fn audit(fs: &dyn FileSystem, when: &str) -> Result<(), String> {
    match fs.audit().first() {
        Some(first) => Err(format!("audit {when}: {first}")),
        None => Ok(()),
    }
}
