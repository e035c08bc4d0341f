//! Lists of programs, explored like scripts: with counts, and with ids that replay.

use super::{Explored, Failure, Program, explore, replay};
use crate::explore::in_threads;
use crate::id::{FailureId, ScriptRef, Spot};
use crate::setting::Setting;
use crate::{FailureReport, Options, Outcome, Progress};
use oracle::script::generate::Tree;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// A [`Program`] without its type of opened memory.
pub trait AnyProgram: Send + Sync {
    /// As [`explore`].
    ///
    /// # Errors
    /// As [`explore`].
    fn explore(&self, options: &Options) -> Result<Explored, String>;

    /// As [`replay`].
    ///
    /// # Errors
    /// As [`replay`].
    fn replay(&self, options: &Options, failure: &Failure) -> Result<Option<String>, String>;
}

impl<P: Program + Send + Sync> AnyProgram for P {
    fn explore(&self, options: &Options) -> Result<Explored, String> {
        explore(self, options)
    }

    fn replay(&self, options: &Options, failure: &Failure) -> Result<Option<String>, String> {
        replay(self, options, failure)
    }
}

/// A program in a list.
pub struct Named {
    /// The name in ids: letters, digits and `-` only.
    pub name: String,
    program: Box<dyn AnyProgram>,
}

/// Prefix of the ids of programs.
const PREFIX: &str = "memory-";

impl Named {
    /// A program with its name.
    pub fn new(name: impl Into<String>, program: impl AnyProgram + 'static) -> Self {
        Self {
            name: name.into(),
            program: Box::new(program),
        }
    }

    fn report(&self, options: &Options, failure: &Failure) -> FailureReport {
        let setting = Setting {
            model: Some(options.model),
            schedule: None,
        };
        let id = FailureId {
            system: format!("{PREFIX}{}", self.name),
            setting: setting.to_string(),
            script: ScriptRef::Text(String::new()),
            op: failure.marks,
            spot: Spot::In(failure.place.clone()),
        };
        FailureReport {
            id: id.to_string(),
            op: format!("after mark {}", failure.marks),
            what: failure.what.replace('\n', "; "),
            tree: Tree::Empty,
            script: String::new(),
            shrunk: String::new(),
        }
    }
}

/// Explores each program. `progress` is called after each, from several threads.
///
/// # Errors
/// A program does not run without a crash.
pub fn explore_all(
    programs: &[Named],
    options: &Options,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Outcome, String> {
    let begin = Instant::now();
    let (next, states, violations) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let all = Mutex::new(Vec::new());
    let run = || {
        while let Some(at) = Some(next.fetch_add(1, Relaxed)).filter(|at| *at < programs.len()) {
            let late = options.time_limit.is_some_and(|t| begin.elapsed() > t);
            if late || violations.load(Relaxed) >= options.max_failures as u64 {
                return Ok(());
            }
            let program = &programs[at];
            let explored = program.program.explore(options);
            let explored = explored.map_err(|e| format!("{}: {e}", program.name))?;
            let failed = u64::from(explored.failure.is_some());
            violations.fetch_add(failed, Relaxed);
            states.fetch_add(explored.states, Relaxed);
            let mut all = all.lock();
            all.push((at, explored));
            progress(&Progress {
                workloads: all.len() as u64,
                workloads_total: programs.len() as u64,
                states: states.load(Relaxed),
                violations: violations.load(Relaxed),
            });
        }
        Ok(())
    };
    match options.threads {
        0 | 1 => run()?,
        threads => in_threads(threads, run).map(drop)?,
    }
    let mut all = all.into_inner();
    all.sort_by_key(|(at, _)| *at);
    Ok(outcome(
        programs,
        options,
        &all,
        begin.elapsed().as_secs_f64(),
    ))
}

fn outcome(
    programs: &[Named],
    options: &Options,
    all: &[(usize, Explored)],
    seconds: f64,
) -> Outcome {
    let sum = |of: fn(&Explored) -> u64| all.iter().map(|(_, explored)| of(explored)).sum::<u64>();
    let failed = all.iter().filter_map(|(at, explored)| {
        let failure = explored.failure.as_ref()?;
        Some(programs[*at].report(options, failure))
    });
    let failures: Vec<FailureReport> = failed.collect();
    let states = sum(|e| e.states);
    Outcome {
        system: "memory".to_string(),
        model: options.model.to_string(),
        ops: 0,
        seed: options.seed,
        workloads: all.len() as u64,
        workloads_total: programs.len() as u64,
        complete: all.len() == programs.len(),
        enumerated: Vec::new(),
        points: sum(|e| e.points),
        capped_points: sum(|e| e.capped_points),
        states_explored: states,
        states_distinct: sum(|e| e.distinct),
        audited: 0,
        stores_checked: 0,
        no_space: 0,
        lives: 0,
        violations: failures.len() as u64,
        seconds,
        states_per_second: states as f64 / seconds.max(1e-9),
        failures,
    }
}

/// Visits the state of one failure again. Returns the failure if it is still there; `None`: the
/// id belongs to none of these programs.
///
/// # Errors
/// The state of `id` no longer exists.
pub fn replay_id(
    programs: &[Named],
    id: &FailureId,
) -> Option<Result<Option<FailureReport>, String>> {
    let name = id.system.strip_prefix(PREFIX)?;
    let program = programs.iter().find(|program| program.name == name)?;
    Some(replay_one(program, id))
}

fn replay_one(program: &Named, id: &FailureId) -> Result<Option<FailureReport>, String> {
    let setting: Setting = id.setting.parse()?;
    let model = setting.model;
    let options = Options {
        model: model.ok_or_else(|| format!("{id}: `{setting}` names no persistence model"))?,
        ..Options::default()
    };
    let Spot::In(place) = &id.spot else {
        return Err(format!("{id} names no crash of a program"));
    };
    let failure = Failure {
        what: String::new(),
        marks: id.op,
        place: place.clone(),
    };
    let wrong = program.program.replay(&options, &failure)?;
    let failed = |what| program.report(&options, &Failure { what, ..failure });
    Ok(wrong.map(failed))
}
