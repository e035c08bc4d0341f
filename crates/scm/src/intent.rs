//! The record of the change that is being made.
//!
//! Guarantees: after a crash the record is absent, or complete and in a phase. A change in the
//! phase [`Prepare`](Phase::Prepare) has not happened and is undone; one in the phase
//! [`Commit`](Phase::Commit) has happened and is finished.

use crate::error::{Finding, ScmError};
use crate::files::Run;
use crate::format::{INTENT_OFF, IntentLine};
use crate::identity::Identity;
use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use zerocopy::{FromZeros, IntoBytes};

/// A change of the identity of a run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intent {
    /// The number of the partition.
    pub(crate) partition: u32,
    pub(crate) run: Run,
    pub(crate) from: Identity,
    pub(crate) to: Identity,
}

/// The phase of a change, and its value on the medium. No flipped bit makes another phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Phase {
    /// Room and contents of the new place are being made.
    Prepare = u64::from_le_bytes(*b"PREPARE\0"),
    /// The new identity is in force.
    Commit = u64::from_le_bytes(*b"COMMIT\0\0"),
}

impl Intent {
    /// Records the change, durably. No other change may be recorded.
    pub(crate) fn begin(&self, table: &impl Pmem, phase: Phase) -> Result<(), ScmError> {
        let place = (self.run.first, self.run.pages);
        let line = IntentLine::new(self.partition, place, self.from.raw(), self.to.raw());
        let fields = &line.as_bytes()[WORD_BYTES as usize..];
        table.store(INTENT_OFF + WORD_BYTES, fields);
        table.flush(INTENT_OFF, LINE_BYTES);
        if !hit(Bug::PhaseBeforeFields) {
            table.fence(Rule::InitialiseBeforePoint)?;
        }
        store_phase(table, phase as u64);
        if !hit(Bug::RoomBeforeIntent) {
            table.fence(Rule::LogBeforeHome)?;
        }
        Ok(())
    }

    /// Commits the change, durably.
    pub(crate) fn commit(table: &impl Pmem) -> Result<(), ScmError> {
        store_phase(table, Phase::Commit as u64);
        if !hit(Bug::PunchBeforeCommit) {
            table.fence(Rule::LinkBeforeUnlink)?;
        }
        Ok(())
    }

    /// Removes the record, durably: the next change overwrites it.
    pub(crate) fn clear(table: &impl Pmem) -> Result<(), ScmError> {
        store_phase(table, 0);
        if !hit(Bug::ReuseBeforeClear) {
            table.fence(Rule::NullifyBeforeReuse)?;
        }
        Ok(())
    }

    /// Reads the record (S2). The caller checks that the partition has the run.
    pub(crate) fn load(
        table: &impl Pmem,
    ) -> Result<Result<Option<(Phase, Self)>, Finding>, MediumError> {
        let mut line = IntentLine::new_zeroed();
        table.read(INTENT_OFF, line.as_mut_bytes())?;
        Ok(Self::of(&line))
    }

    /// The finding of an intent that no partition has.
    pub(crate) fn no_such_run(&self) -> Finding {
        let number = self.partition;
        let what = format!("the intent is for pages that partition {number} does not have");
        Finding::new("S2", what)
    }

    fn of(line: &IntentLine) -> Result<Option<(Phase, Self)>, Finding> {
        let phase = match line.phase.get() {
            0 => return Ok(None),
            phase if phase == Phase::Prepare as u64 => Phase::Prepare,
            phase if phase == Phase::Commit as u64 => Phase::Commit,
            phase => {
                let what = format!("the intent has the phase {phase:#x}, which does not exist");
                return Err(Finding::new("S2", what));
            }
        };
        if !line.is_sound() {
            return Err(Finding::new("S2", "the checksum of the intent is wrong"));
        }
        let run = Run {
            first: line.first.get(),
            pages: line.pages.get(),
        };
        let [from, to] = [line.from, line.to].map(|raw| Identity::from_raw(raw.get()));
        let is_identity = |one: Identity| one == Identity::FREE || one.is_valid();
        if from == to || !is_identity(from) || !is_identity(to) {
            return Err(Finding::new("S2", "the intent has impossible identities"));
        }
        let partition = line.partition.get();
        let intent = Self {
            partition,
            run,
            from,
            to,
        };
        Ok(Some((phase, intent)))
    }
}

fn store_phase(table: &impl Pmem, phase: u64) {
    table.store_word(INTENT_OFF, phase);
    table.flush(INTENT_OFF, WORD_BYTES);
}
