//! Failures: shrunk, and described by calls.

use super::explain::explain;
use super::workers::kind_of;
use super::{Explorer, State, Subject};
use crate::Difference;
use crate::checker::{Bench, Verdict};
use crate::model::{Legal, Model, Modelled, Subset};
use serde::Serialize;
use std::collections::BTreeSet;

/// Most checks that shrink one failure.
const TRIES: usize = 100;

/// Most differences that are reported.
const DIFFERENCES: usize = 20;

/// A call of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallRef {
    /// Number of its entry.
    pub number: usize,
    /// The call as text.
    pub text: String,
    /// The process.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// A state that the checker refuses, for all of its kind.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// Id of the state.
    pub id: String,
    /// Name of the subject.
    pub model: String,
    /// The checker's message.
    pub message: String,
    /// Number of states with such a message.
    pub states: u64,
    /// The newest call that has an effect in the state.
    pub after: Option<CallRef>,
    /// The first call that had not returned.
    pub before: Option<CallRef>,
    /// Calls that are lost in whole or in part although a later one is there. On an engine: those
    /// whose loss explains the state best.
    pub lost: Vec<CallRef>,
    /// Differences from the tree that the program saw.
    pub differences: Vec<Difference>,
    /// Differences that are not listed.
    pub more_differences: usize,
}

impl Failure {
    /// Describes a state that failed, after it has been shrunk.
    pub(super) fn new(
        explorer: &Explorer<'_>,
        subject: &Subject<'_>,
        state: State,
        message: String,
        states: u64,
    ) -> Result<Self, String> {
        let mut failure = Self {
            id: state.id.clone(),
            model: subject.name(),
            message,
            states,
            after: None,
            before: explorer.call(state.returned),
            lost: Vec::new(),
            differences: Vec::new(),
            more_differences: 0,
        };
        match (subject, &state.lost) {
            (Subject::Model(model), Some(lost)) => {
                failure.of_model(explorer, *model, &state, lost)?;
            }
            _ => failure.of_engine(explorer, &state)?,
        }
        let newest = failure.after.as_ref().map_or(0, |call| call.number + 1);
        failure.compare(explorer, &state, newest.max(explorer.run.header.setup))?;
        Ok(failure)
    }

    fn of_model(
        &mut self,
        explorer: &Explorer<'_>,
        model: Model,
        state: &State,
        lost: &Subset,
    ) -> Result<(), String> {
        let modelled = Modelled::new(explorer.run, model)?;
        let mut shrink = Shrink {
            explorer,
            bench: explorer.bench()?,
            modelled: &modelled,
            legal: Legal::new(&modelled, state.returned),
            entry: state.returned,
            kind: kind_of(&self.message),
        };
        let present = shrink.legal.present(lost).unwrap_or_default();
        let (present, message) = shrink.shrunk(present, self.message.clone())?;
        self.message = message;
        self.name_calls(explorer, &modelled, &present, &[]);
        let lost = Subset {
            lost: (0..present.len()).filter(|n| !present[*n]).collect(),
        };
        self.id = format!("{model}/{}/{lost}", state.returned);
        Ok(())
    }

    /// Names the calls whose loss explains the state of an engine. One that it cannot open has none.
    fn of_engine(&mut self, explorer: &Explorer<'_>, state: &State) -> Result<(), String> {
        let Ok(tree) = &state.tree else {
            self.after = state.returned.checked_sub(1).and_then(|n| explorer.call(n));
            return Ok(());
        };
        let modelled = Modelled::new(explorer.run, Model::Posix)?;
        let end = (state.returned + 1).min(explorer.run.entries.len());
        let found = explain(&modelled, modelled.before[end], tree);
        self.name_calls(explorer, &modelled, &found.present, &found.torn);
        Ok(())
    }

    /// Names the newest call that is there, the ones before it that are not, and those that are there
    /// in part.
    fn name_calls(
        &mut self,
        explorer: &Explorer<'_>,
        modelled: &Modelled<'_>,
        present: &[bool],
        torn: &[usize],
    ) {
        let newest = present.iter().rposition(|is| *is);
        let effects = &modelled.effects;
        self.after = newest.and_then(|n| explorer.call(effects[n].entry));
        let lost = (0..newest.unwrap_or(0)).filter(|n| !present[*n]);
        let entries: BTreeSet<usize> = lost
            .chain(torn.iter().copied())
            .map(|n| effects[n].entry)
            .collect();
        self.lost = entries
            .into_iter()
            .filter_map(|n| explorer.call(n))
            .collect();
    }

    /// The differences of the state from the tree after `newest` entries.
    fn compare(
        &mut self,
        explorer: &Explorer<'_>,
        state: &State,
        newest: usize,
    ) -> Result<(), String> {
        let expected = explorer.tree_after(newest)?;
        let tree = match (&state.lost, &state.tree) {
            (Some(_), _) => self.model.parse().map(|model: Model| {
                let place = self.id.split_once('/').map_or("", |(_, place)| place);
                explorer.of_model(model, &self.id, place)
            })??,
            (None, _) => state.clone(),
        }
        .tree;
        if let Ok(tree) = tree {
            self.differences = tree.differences(&expected);
            self.more_differences = self.differences.len().saturating_sub(DIFFERENCES);
            self.differences.truncate(DIFFERENCES);
        }
        Ok(())
    }
}

impl Explorer<'_> {
    /// A call of the run; `None` for one of the setup, or past the end.
    fn call(&self, number: usize) -> Option<CallRef> {
        let entry = self.run.entries.get(number)?;
        (number >= self.run.header.setup).then(|| CallRef {
            number,
            text: entry.text.clone(),
            by: entry.by.clone(),
        })
    }
}

/// Shrinks a failure of a model: the newest effects are removed while the state still fails in the
/// same way, then the lost ones come back, the newest first.
struct Shrink<'a, 'r> {
    explorer: &'a Explorer<'a>,
    bench: Bench,
    modelled: &'a Modelled<'r>,
    legal: Legal<'a, 'r>,
    entry: usize,
    /// Kind of the message: a state with another message is another failure.
    kind: String,
}

impl Shrink<'_, '_> {
    fn shrunk(
        &mut self,
        mut present: Vec<bool>,
        message: String,
    ) -> Result<(Vec<bool>, String), String> {
        let mut message = message;
        let mut tries = TRIES;
        while let Some(newest) = present.iter().rposition(|is| *is).filter(|_| tries > 0) {
            let mut fewer = present.clone();
            fewer[newest] = false;
            tries -= 1;
            match self.fails(&fewer)? {
                Some(why) => (present, message) = (fewer, why),
                None => break,
            }
        }
        let newest = present.iter().rposition(|is| *is).unwrap_or(0);
        for n in (0..newest).rev() {
            if present[n] || tries == 0 {
                continue;
            }
            let mut more = present.clone();
            self.add(&mut more, n);
            tries -= 1;
            if let Some(why) = self.fails(&more)? {
                (present, message) = (more, why);
            }
        }
        Ok((present, message))
    }

    /// Adds an effect and all that it needs.
    fn add(&self, present: &mut [bool], n: usize) {
        let mut left = vec![n];
        while let Some(n) = left.pop() {
            if !std::mem::replace(&mut present[n], true) {
                left.extend(self.modelled.effects[n].needs(present));
            }
        }
    }

    /// The message of the checker, if the state is legal and fails in the same way.
    fn fails(&mut self, present: &[bool]) -> Result<Option<String>, String> {
        let lost = (0..present.len()).filter(|n| !present[*n]).collect();
        if self.legal.present(&Subset { lost }).is_none() {
            return Ok(None);
        }
        let tree = self.modelled.tree(present);
        Ok(
            match self.explorer.judge(&mut self.bench, &tree, self.entry)? {
                Verdict::Fine => None,
                Verdict::Wrong(why) => Some(why).filter(|why| kind_of(why) == self.kind),
            },
        )
    }
}
