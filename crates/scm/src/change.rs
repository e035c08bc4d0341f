//! The steps of a change of identity, and what a crash between them requires.
//!
//! Guarantees: a change happens at the commit of its intent. Before it, only the new place has
//! changed, and [`settle`](Change::settle) punches that. After it, `settle` repeats the rest. All
//! steps can be repeated.

use crate::error::ScmError;
use crate::files::{Files, Place};
use crate::identity::Identity;
use crate::intent::{Intent, Phase};
use crate::seeded::{Bug, hit};
use crate::table;
use medium::{Pmem, Rule};

/// A partition whose extents change.
pub(crate) struct Change<'a, F: Files> {
    pub(crate) files: &'a F,
    pub(crate) place: Place,
    pub(crate) identities: &'a F::Memory,
}

impl<F: Files> Change<'_, F> {
    /// Makes a change. After a failure, `unfinished` is the change that must be settled.
    pub(crate) fn make(
        &self,
        unfinished: &mut Option<(Phase, Intent)>,
        intent: Intent,
    ) -> Result<(), ScmError> {
        let table = self.files.table();
        let first = match intent.to == Identity::FREE {
            true => Phase::Commit,
            false => Phase::Prepare,
        };
        *unfinished = Some((first, intent));
        intent.begin(table, first)?;
        if first == Phase::Prepare {
            if let Err(e) = self.prepare(&intent) {
                self.undo(&intent)?;
                *unfinished = None;
                return Err(e);
            }
            *unfinished = Some((Phase::Commit, intent));
            Intent::commit(table)?;
        }
        self.finish(&intent)?;
        *unfinished = None;
        Ok(())
    }

    /// Finishes or undoes a change that was interrupted.
    pub(crate) fn settle(&self, phase: Phase, intent: &Intent) -> Result<(), ScmError> {
        match phase {
            Phase::Prepare => self.undo(intent),
            Phase::Commit => self.finish(intent),
        }
    }

    fn undo(&self, intent: &Intent) -> Result<(), ScmError> {
        let to = self.place.class(intent.to);
        self.files.punch(to, intent.run)?;
        self.files.sync(to, Rule::HomeBeforeReclaim)?;
        Intent::clear(self.files.table())
    }

    /// Makes room and contents of the new place, durably.
    fn prepare(&self, intent: &Intent) -> Result<(), ScmError> {
        let to = self.place.class(intent.to);
        self.files.allocate(to, intent.run)?;
        if intent.from != Identity::FREE {
            let from = self.place.class(intent.from);
            self.files.copy(from, to, intent.run)?;
        }
        match hit(Bug::CommitBeforeContents) {
            true => Ok(()),
            false => self.files.sync(to, Rule::DataBeforeCommit),
        }
    }

    /// Does what the commit promises. Clients see the new identity before the old place is empty.
    fn finish(&self, intent: &Intent) -> Result<(), ScmError> {
        table::count_change(self.identities, self.place.pages)?;
        table::set(self.identities, intent.run, intent.to);
        if !hit(Bug::ClearBeforeIdentities) {
            self.identities.fence(Rule::HomeBeforeReclaim)?;
        }
        if intent.from != Identity::FREE {
            let from = self.place.class(intent.from);
            self.files.punch(from, intent.run)?;
            if !hit(Bug::ClearBeforePunch) {
                self.files.sync(from, Rule::HomeBeforeReclaim)?;
            }
        }
        Intent::clear(self.files.table())
    }
}
