//! Explores the crash states of a run and has a checker judge each.
//!
//! # Guarantees
//! - A state is legal under its model, or was left by the engine itself.
//! - The checker accepts the tree without a crash; otherwise there is no exploration.
//! - Every failure has an id, which [`Explorer::state`] visits again.
//! - A report says of each model whether all states were visited, or how many.
//!
//! Equal trees with an equal output so far are judged once, also under several models.

mod explain;
mod failure;
mod produce;
mod workers;

pub use failure::{CallRef, Failure};

use crate::checker::{Bench, Checker, Verdict};
use crate::model::{Legal, Model, Modelled, Subset};
use crate::play::Player;
use crate::{Call, Run, Tree};
use crash::observe::{Observation, Observed, Spot};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// A kind of file system that the run is explored on.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// A model.
    Model(Model),
    /// An engine of this program, by the name of its system.
    Engine(&'a str, Observed<'a>),
}

impl Subject<'_> {
    /// Its name, which begins the ids of its states.
    pub fn name(&self) -> String {
        match self {
            Self::Model(model) => model.to_string(),
            Self::Engine(name, _) => (*name).to_owned(),
        }
    }
}

/// Options of an exploration.
#[derive(Debug, Clone)]
pub struct Options {
    /// The checker.
    pub checker: Checker,
    /// Most distinct states of each subject that are judged.
    pub limit: u64,
    /// Checkers that run at once.
    pub jobs: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Most failures that are shrunk and reported.
    pub max_failures: usize,
    /// Whether engines take requests of durability as barriers, as under `selvedge order`.
    pub order: bool,
    /// Directory for the states; in memory, if possible.
    pub scratch: PathBuf,
}

/// Result of the exploration of one subject.
#[derive(Debug, Clone, Serialize)]
pub struct Explored {
    /// Name of the subject.
    pub model: String,
    /// States that were produced, equal ones included.
    pub states: u64,
    /// Distinct states that were judged.
    pub judged: u64,
    /// Judged states that failed.
    pub failed: u64,
    /// Whether these were all states that the subject can leave, at the granularity of its model.
    pub complete: bool,
    /// The reason why the subject was not explored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Seconds.
    pub seconds: f64,
}

/// Result of an exploration.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The command that was recorded.
    pub command: String,
    /// Number of its calls.
    pub calls: usize,
    /// The subjects.
    pub models: Vec<Explored>,
    /// Distinct failures.
    pub failures: Vec<Failure>,
    /// Failures that are not in the list.
    pub more_failures: u64,
    /// Effects that the recording or the exploration cannot see.
    pub unseen: Vec<String>,
}

/// A state of an exploration.
#[derive(Debug, Clone)]
pub struct State {
    /// Its id.
    pub id: String,
    /// The files. `Err`: the engine cannot open its image.
    pub tree: Result<Tree, String>,
    /// Number of entries that had returned.
    pub returned: usize,
    /// The effects that a model has lost.
    pub lost: Option<Subset>,
}

/// A run that is explored.
pub struct Explorer<'a> {
    run: &'a Run,
    options: &'a Options,
    output: Vec<u8>,
    /// Length of the output when that many entries had returned.
    output_lens: Vec<usize>,
}

impl<'a> Explorer<'a> {
    /// An exploration of a run.
    pub fn new(run: &'a Run, options: &'a Options) -> Self {
        let (mut output, mut output_lens) = (Vec::new(), vec![0]);
        for entry in &run.entries {
            if let Call::Output { data } = entry.call {
                output.extend_from_slice(run.bytes(data));
            }
            output_lens.push(output.len());
        }
        Self {
            run,
            options,
            output,
            output_lens,
        }
    }

    /// The tree after the first `entries` entries.
    ///
    /// # Errors
    /// A call of the run does not fit.
    pub fn tree_after(&self, entries: usize) -> Result<Tree, String> {
        let mut tree = Tree::default();
        for (n, entry) in self.run.entries[..entries].iter().enumerate() {
            let applied = tree.apply(&entry.call, &self.run.data);
            applied.map_err(|e| format!("call {n}: {}: {e}", entry.text))?;
        }
        Ok(tree)
    }

    /// The output of the program when the first `entries` entries had returned.
    pub fn output(&self, entries: usize) -> &[u8] {
        &self.output[..self.output_lens[entries]]
    }

    /// Explores on all subjects. `progress` gets the subject, and the states judged so far.
    ///
    /// # Errors
    /// The run does not fit together, the checker cannot run, or it refuses the tree without a
    /// crash.
    pub fn explore(
        &self,
        subjects: &[Subject<'_>],
        progress: &(dyn Fn(&str, u64) + Sync),
    ) -> Result<Report, String> {
        self.accepts_the_end()?;
        let mut report = Report {
            command: self.run.header.command.clone(),
            calls: self.run.entries.len() - self.run.header.setup,
            models: Vec::new(),
            failures: Vec::new(),
            more_failures: 0,
            unseen: self.unseen(),
        };
        let known = workers::Known::default();
        for subject in subjects {
            let begun = Instant::now();
            let mut explored = workers::explore(self, subject, &known, progress, &mut report)?;
            explored.seconds = begun.elapsed().as_secs_f64();
            report.models.push(explored);
        }
        report.failures.sort_by_key(|failure| failure.lost.len());
        Ok(report)
    }

    /// Runs the checker on the tree without a crash.
    fn accepts_the_end(&self) -> Result<(), String> {
        let tree = self.tree_after(self.run.entries.len())?;
        match self.judge(&mut self.bench()?, &tree, self.run.entries.len())? {
            Verdict::Fine => Ok(()),
            Verdict::Wrong(why) => Err(format!(
                "the checker fails on the directory as the program left it, without a crash: {why}"
            )),
        }
    }

    /// A checker at work.
    fn bench(&self) -> Result<Bench, String> {
        let scratch = &self.options.scratch;
        let bench = Bench::new(&self.options.checker, scratch);
        bench.map_err(|e| format!("{}: {e}", scratch.display()))
    }

    /// Has a checker judge the tree of a crash after that many entries had returned.
    fn judge(&self, bench: &mut Bench, tree: &Tree, returned: usize) -> Result<Verdict, String> {
        let failed = |e: std::io::Error| format!("cannot run the checker: {e}");
        let state = bench.clear().map_err(failed)?;
        tree.write_to(&state)?;
        bench.judge(self.output(returned)).map_err(failed)
    }

    fn unseen(&self) -> Vec<String> {
        let pages = self.run.entries.iter().filter(|e| e.is_write_back).count();
        let mapped = (pages > 0).then(|| {
            format!(
                "{pages} writes came from shared mappings: their order is that of the kernel's \
                 write-back in this run"
            )
        });
        self.run
            .header
            .unseen
            .iter()
            .cloned()
            .chain(mapped)
            .collect()
    }

    /// Visits the state of an id again.
    ///
    /// # Errors
    /// The id names no state of these subjects.
    pub fn state(&self, id: &str, subjects: &[Subject<'_>]) -> Result<State, String> {
        let (name, place) = id.split_once('/').ok_or("an id has the form MODEL/...")?;
        let subject = subjects.iter().find(|subject| subject.name() == name);
        match subject.ok_or_else(|| format!("there is no model `{name}`"))? {
            Subject::Model(model) => self.of_model(*model, id, place),
            Subject::Engine(_, system) => self.of_engine(*system, id, place),
        }
    }

    fn of_model(&self, model: Model, id: &str, place: &str) -> Result<State, String> {
        let (entry, lost) = place
            .split_once('/')
            .ok_or("an id has the form MODEL/CALL/LOST")?;
        let entry: usize = entry.parse().map_err(|e| format!("`{entry}`: {e}"))?;
        let lost: Subset = lost.parse()?;
        let modelled = Modelled::new(self.run, model)?;
        if entry > self.run.entries.len() || entry < self.run.header.setup {
            return Err(format!("{id}: the run has no call {entry}"));
        }
        let legal = Legal::new(&modelled, entry);
        let present = legal.present(&lost);
        let present = present.ok_or_else(|| format!("{id}: not a state that {model} allows"))?;
        Ok(State {
            id: id.to_owned(),
            tree: Ok(modelled.tree(&present)),
            returned: entry,
            lost: Some(lost),
        })
    }

    fn of_engine(&self, system: Observed<'_>, id: &str, place: &str) -> Result<State, String> {
        let spot: Spot = place.parse()?;
        let mut player = Player::new(self.run, self.options.order)?;
        let observation = Observation::new(system, &mut player, spot.schedule)?;
        let mut state = None;
        observation.again(&spot, &mut |seen| {
            state = Some(State {
                id: id.to_owned(),
                tree: produce::tree_of(seen),
                returned: self.run.header.setup + seen.returned,
                lost: None,
            });
            true
        })?;
        state.ok_or_else(|| format!("{id}: there is no such state"))
    }
}

#[cfg(test)]
mod tests;
