//! Lets a file system recover from a crash state, and judges what is there then.
//!
//! - C1. Where the promise says so, the checker finds no more than leaks before recovery.
//! - C2. It opens (recovery succeeds, nothing panics).
//! - C3. What callers see is what the promise allows ([`crate::promise`]).
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

/// When recoveries happen: later than anything that a script does, so that a time that
/// recovery stamps is noticed.
const RECOVERY_TIME: Timestamp = Timestamp(4_000_000_000_000_000_000);

/// Most blocks on their way at a time where nothing else is asked for.
pub(super) const WAVE: usize = 1024;

/// Judges crash states of one system against what is allowed at one moment.
pub(super) struct FsJudge<'a, M: Medium> {
    pub system: &'a M::System,
    pub has_cache: bool,
    pub window: Window<'a>,
    /// Handles that callers had, up to a state.
    pub known: (&'a Handles, usize),
    /// Outcomes by what was there once the file system was open, where nothing was wrong:
    /// all that follows is the same.
    pub judged: HashMap<u64, u64>,
}

/// What one evaluation came to, panics apart.
struct Seen<E> {
    outcome: u64,
    recovery: Option<Recovery<E>>,
    /// Hash of what was there when it was open.
    essence: Option<u64>,
}

impl<M: Medium> Judge<M> for FsJudge<'_, M> {
    fn judge(&mut self, medium: &Arc<M>, tail: Policy) -> Verdict<M::Event> {
        let mut seen = Seen {
            outcome: 0,
            recovery: None,
            essence: None,
        };
        let result = caught(|| self.evaluate(medium, tail, &mut seen));
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
        tail: Policy,
        seen: &mut Seen<M::Event>,
    ) -> Result<(), String> {
        let recorder = medium.record();
        let door = M::door(&recorder);
        if self.window.promise.needs_no_recovery() {
            self.checked(&door, "before recovery")?;
        }
        let clock = Arc::new(ManualClock::new(RECOVERY_TIME, 1));
        let opened = self.system.open_still(door.clone(), clock, WAVE);
        let (decisions, trace) = (medium.decisions(), M::stop(&recorder));
        seen.essence = medium.essence();
        // What changes nothing makes no state that a crash could not leave before.
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
        seen.outcome = snapshot.as_ref().map_or(0, |s| s.hash() as u64);
        self.sound(&*fs, &door, "after recovery")?;
        medium.start_tail(tail);
        let (known, newest) = self.known;
        let is_new = |handle| known.refuse(handle, newest);
        match &snapshot {
            Some(snapshot) => use_up(&*fs, snapshot, &is_new)?,
            None => use_world(&*fs, &is_new)?,
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
