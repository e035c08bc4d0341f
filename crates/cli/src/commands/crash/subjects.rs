//! The file systems on which a run is explored.

use crate::failure::{Failure, code};
use crash::observe::Observed;
use engine::Explored;
use runs::explore::Subject;
use runs::model::Model;
use runs::{Run, Tree};

/// Engines with room for a run.
pub(super) struct Subjects {
    engines: Vec<(String, Explored)>,
}

impl Subjects {
    /// All engines that can replay a run of this size.
    pub(super) fn of(run: &Run) -> Self {
        let made = run
            .entries
            .iter()
            .filter(|entry| matches!(entry.call, runs::Call::Make { .. }));
        let (bytes, inodes) = (run.data.len() as u64, made.count() as u64);
        let engines = engines::all().iter();
        let explored = engines.flat_map(|engine| engine.with_room(bytes, inodes));
        Self {
            engines: explored.map(|system| (system.id(), system)).collect(),
        }
    }

    /// All models and engines.
    pub(super) fn all(&self) -> Vec<Subject<'_>> {
        let models = Model::ALL.into_iter().map(Subject::Model);
        let engines = self.engines.iter().map(|(name, system)| {
            let system = match system {
                Explored::Blocks(system) => Observed::Blocks(&**system),
                Explored::Memory(system) => Observed::Memory(&**system),
            };
            Subject::Engine(name, system)
        });
        models.chain(engines).collect()
    }

    /// Those of these names, or all.
    ///
    /// # Errors
    /// A name is unknown.
    pub(super) fn named(&self, names: &[String]) -> Result<Vec<Subject<'_>>, Failure> {
        let all = self.all();
        if names.is_empty() {
            return Ok(all);
        }
        let find = |name: &String| {
            let found = all.iter().find(|subject| subject.name() == *name).copied();
            found.ok_or_else(|| {
                let known: Vec<String> = all.iter().map(Subject::name).collect();
                let why = format_args!("--model {name}: use {}", known.join(", "));
                Failure::new(why).with_code(code::USAGE)
            })
        };
        names.iter().map(find).collect()
    }
}

/// The names of all models and engines, for help texts.
pub(super) fn names() -> Vec<String> {
    let empty = Run::new(runs::Header::new(runs::Source::Mount, ""));
    let subjects = Subjects::of(&empty);
    subjects.all().iter().map(Subject::name).collect()
}

/// Loads a run.
///
/// # Errors
/// It is missing or damaged.
pub(super) fn load(dir: &std::path::Path) -> Result<Run, Failure> {
    Run::load(dir).map_err(Failure::new)
}

/// A file system in memory that holds a tree.
///
/// # Errors
/// The tree cannot be made.
pub(super) fn in_memory(tree: &Tree) -> Result<oracle::ModelFs, Failure> {
    let fs = oracle::ModelFs::new(oracle::ModelOptions::default());
    tree.make_on(&fs).map_err(Failure::new)?;
    Ok(fs)
}
