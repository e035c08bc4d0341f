//! Explores many scripts on one system in several threads; shrinks failures and gives them ids.

use crate::id::{FailureId, ScriptRef};
use crate::media::Medium;
use crate::media::memory::StatePmem;
use crate::setting::Setting;
use crate::system::{Failure, PmemSystem};
use crate::trial::{self, Start};
use crate::walk::{Limits, Tally};
use crate::workloads::workloads;
use crate::{Enumerated, FailureReport, Options, Outcome, Progress};
use oracle::script::generate::Tree;
use oracle::script::{Script, shrink};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vfs::System;

/// The part of one thread.
struct Worker<'a, M: Medium> {
    system: &'a M::System,
    options: &'a Options,
    starts: Starts<'a, M>,
    tally: Tally,
    /// Whether the scripts of failures are made shorter.
    shrinks: bool,
}

/// The trees that one thread needed so far.
struct Starts<'a, M: Medium> {
    system: &'a M::System,
    made: Vec<(Tree, Setting, Start<M>)>,
}

impl<M: Medium> Starts<'_, M> {
    /// The start of scripts on `tree`.
    fn on(&mut self, tree: Tree, setting: Setting) -> Result<&Start<M>, String> {
        let same = |(t, s, _): &(Tree, Setting, Start<M>)| (*t, *s) == (tree, setting);
        let at = match self.made.iter().position(same) {
            Some(at) => at,
            None => {
                let start = Start::new(self.system, setting, &tree.setup())?;
                self.made.push((tree, setting, start));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].2)
    }
}

impl<'a, M: Medium> Worker<'a, M> {
    fn new(system: &'a M::System, options: &'a Options) -> Self {
        Self {
            system,
            options,
            starts: Starts {
                system,
                made: Vec::new(),
            },
            tally: Tally::default(),
            shrinks: options.shrunk > 0,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            leaves: self.options.states_per_point,
            recovery_depth: self.options.recovery_depth,
            samples: self.options.samples,
            tails: 2,
            moments: self.options.moments,
            lives: self.options.lives,
            seed: self.options.seed,
        }
    }

    /// Runs and crashes one script.
    ///
    /// # Errors
    /// The tree cannot be made.
    fn trial(
        &mut self,
        tree: Tree,
        setting: Setting,
        script: &Script,
        ops: Range<usize>,
    ) -> Result<Option<Failure>, String> {
        let limits = self.limits();
        let start = self.starts.on(tree, setting)?;
        self.tally.begin();
        let system = self.system;
        let crashed = trial::crash(system, start, script, ops, limits, &mut self.tally);
        Ok(crashed.err())
    }

    fn report(
        &self,
        from: &ScriptRef,
        setting: Setting,
        script: &Script,
        failure: &Failure,
    ) -> FailureReport {
        let id = FailureId {
            system: self.system.id(),
            setting: setting.to_string(),
            script: from.clone(),
            op: failure.op,
            spot: failure.spot.clone(),
        };
        let op = script.ops.get(failure.op).map(ToString::to_string);
        let shrunk = self.shrunk(from.tree(), setting, script, failure);
        FailureReport {
            id: id.to_string(),
            op: op.unwrap_or_else(|| "after the last".to_string()),
            what: failure.what.replace('\n', "; "),
            tree: from.tree(),
            script: script.to_string(),
            shrunk: shrunk.to_string(),
        }
    }

    /// A shorter script that fails in the same way.
    fn shrunk(&self, tree: Tree, setting: Setting, script: &Script, failure: &Failure) -> Script {
        if !self.shrinks {
            return script.clone();
        }
        let deadline = Instant::now() + SHRINK_TIME;
        let same = std::mem::discriminant(&failure.spot);
        let mut worker = Worker::<M>::new(self.system, self.options);
        shrink(script, &mut |candidate| {
            let ops = 0..candidate.ops.len();
            Instant::now() < deadline
                && worker
                    .trial(tree, setting, candidate, ops)
                    .is_ok_and(|f| f.is_some_and(|f| std::mem::discriminant(&f.spot) == same))
        })
    }
}

/// Longest time spent on making one failure's script shorter.
const SHRINK_TIME: Duration = Duration::from_secs(10);

/// State shared by the threads.
struct Shared {
    next: AtomicUsize,
    done: AtomicU64,
    states: AtomicU64,
    violations: AtomicU64,
    failures: Mutex<Vec<(usize, FailureReport)>>,
    enumerated: Mutex<Vec<Enumerated>>,
}

impl Shared {
    /// Counts a script that was run.
    fn took(&self, script: &ScriptRef) {
        if let ScriptRef::Enumerated { tree, ops, .. } = script {
            let mut parts = self.enumerated.lock();
            let part = parts.iter_mut().find(|p| (p.tree, p.ops) == (*tree, *ops));
            part.into_iter().for_each(|part| part.taken += 1);
        }
    }
}

/// Explores the crash states of every script that `options` ask for. `progress` is called after
/// each script, from several threads.
///
/// # Errors
/// The system cannot even be formatted, opened, or set up.
pub fn explore(
    system: &PmemSystem,
    options: &Options,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Outcome, String> {
    explore_all::<StatePmem>(system, options, progress)
}

/// [`explore`] on any medium.
pub(crate) fn explore_all<M: Medium>(
    system: &M::System,
    options: &Options,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Outcome, String> {
    let begin = Instant::now();
    let (scripts, planned) = workloads(options);
    let nothing_yet = planned.iter().map(|part| Enumerated { taken: 0, ..*part });
    let settings = M::settings(system, options);
    let in_all =
        |script: &ScriptRef| -> Vec<_> { settings.iter().map(|s| (script.clone(), *s)).collect() };
    let work: Vec<(ScriptRef, Setting)> = scripts.iter().flat_map(in_all).collect();
    let shared = Shared {
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        states: AtomicU64::new(0),
        violations: AtomicU64::new(0),
        failures: Mutex::default(),
        enumerated: Mutex::new(nothing_yet.collect()),
    };
    let run = || drain::<M>(system, options, &work, &shared, begin, progress);
    let workers = match options.threads {
        0 | 1 => vec![run()?],
        threads => in_threads(threads, run)?,
    };
    let seconds = begin.elapsed().as_secs_f64();
    let mut outcome = outcome::<M>(system, options, shared, workers, seconds);
    outcome.workloads_total = work.len() as u64;
    outcome.complete = outcome.workloads == outcome.workloads_total;
    Ok(outcome)
}

pub(crate) fn in_threads<T: Send>(
    threads: usize,
    run: impl Fn() -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(&run)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| done.unwrap_or_else(|_| Err("a thread of the explorer died".into())))
            .collect()
    })
}

fn drain<'a, M: Medium>(
    system: &'a M::System,
    options: &'a Options,
    work: &[(ScriptRef, Setting)],
    shared: &Shared,
    begin: Instant,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Worker<'a, M>, String> {
    let mut worker = Worker::<M>::new(system, options);
    loop {
        let late = options.time_limit.is_some_and(|t| begin.elapsed() > t);
        let enough = shared.violations.load(Relaxed) >= options.max_failures as u64;
        let at = shared.next.fetch_add(1, Relaxed);
        let (Some((from, setting)), false) = (work.get(at), late || enough) else {
            return Ok(worker);
        };
        let script = from.script()?;
        let before = worker.tally.states;
        let ops = from.crashed(&script);
        if let Some(failure) = worker.trial(from.tree(), *setting, &script, ops)? {
            let earlier = shared.violations.fetch_add(1, Relaxed);
            worker.shrinks = earlier < options.shrunk;
            let report = worker.report(from, *setting, &script, &failure);
            shared.failures.lock().push((at, report));
        }
        if M::settings(system, options).last() == Some(setting) {
            shared.took(from); // in each setting, that is
        }
        let states = worker.tally.states - before;
        progress(&Progress {
            workloads: shared.done.fetch_add(1, Relaxed) + 1,
            workloads_total: work.len() as u64,
            states: shared.states.fetch_add(states, Relaxed) + states,
            violations: shared.violations.load(Relaxed),
        });
    }
}

fn outcome<M: Medium>(
    system: &M::System,
    options: &Options,
    shared: Shared,
    workers: Vec<Worker<'_, M>>,
    seconds: f64,
) -> Outcome {
    let sum = |of: fn(&Worker<'_, M>) -> u64| workers.iter().map(of).sum::<u64>();
    let states_explored = sum(|w| w.tally.states);
    let (points, capped_points) = (sum(|w| w.tally.points), sum(|w| w.tally.capped_points));
    let (audited, stores_checked) = (sum(|w| w.tally.audited), sum(|w| w.tally.looked));
    let no_space = sum(|w| w.tally.full);
    let lives = sum(|w| w.tally.lives);
    let distinct = workers.into_iter().map(|w| w.tally.distinct);
    let distinct = distinct.reduce(|mut all, more| {
        all.extend(more);
        all
    });
    let settings = M::settings(system, options);
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let mut failures = shared.failures.into_inner();
    failures.sort_by_key(|(at, _)| *at);
    Outcome {
        system: system.id(),
        model: settings.join("+"),
        ops: options.ops,
        seed: options.seed,
        workloads: shared.done.into_inner(),
        workloads_total: 0,
        complete: false,
        enumerated: shared.enumerated.into_inner(),
        points,
        capped_points,
        states_explored,
        states_distinct: distinct.map_or(0, |d| d.len() as u64),
        audited,
        stores_checked,
        no_space,
        lives,
        violations: shared.violations.into_inner(),
        seconds,
        states_per_second: states_explored as f64 / seconds.max(1e-9),
        failures: failures.into_iter().map(|(_, report)| report).collect(),
    }
}

/// Explores the crash states of one script, given as text, on a new file system.
///
/// # Errors
/// As [`explore`], and if `script` cannot be parsed.
pub fn explore_script(
    system: &PmemSystem,
    script: &str,
    options: &Options,
) -> Result<Option<FailureReport>, String> {
    explore_text::<StatePmem>(system, script, options)
}

/// [`explore_script`] on any medium.
pub(crate) fn explore_text<M: Medium>(
    system: &M::System,
    script: &str,
    options: &Options,
) -> Result<Option<FailureReport>, String> {
    let script: Script = script.parse().map_err(|e| format!("script: {e}"))?;
    let from = ScriptRef::Text(script.to_string());
    let mut worker = Worker::<M>::new(system, options);
    for setting in M::settings(system, options) {
        let failure = worker.trial(from.tree(), setting, &script, 0..script.ops.len())?;
        if let Some(failure) = failure {
            return Ok(Some(worker.report(&from, setting, &script, &failure)));
        }
    }
    Ok(None)
}

/// Visits the state of one failure again. Returns the failure if it is still there.
///
/// # Errors
/// `id` is of another system, or its state no longer exists.
pub fn replay(system: &PmemSystem, id: &FailureId) -> Result<Option<FailureReport>, String> {
    replay_on::<StatePmem>(system, id, true)
}

/// As [`replay`], but the script is not made shorter, which can take some seconds.
///
/// # Errors
/// As [`replay`].
pub fn revisit(system: &PmemSystem, id: &FailureId) -> Result<Option<FailureReport>, String> {
    replay_on::<StatePmem>(system, id, false)
}

/// [`replay`] or [`revisit`] on any medium.
pub(crate) fn replay_on<M: Medium>(
    system: &M::System,
    id: &FailureId,
    shrinks: bool,
) -> Result<Option<FailureReport>, String> {
    let name = system.id();
    if name != id.system {
        return Err(format!("{id} is of the system {}, not {name}", id.system));
    }
    let setting = id.setting.parse::<Setting>();
    let setting = setting.map_err(|e| e.to_string())?;
    let options = Options::default();
    let mut worker = Worker::<M>::new(system, &options);
    worker.shrinks = shrinks;
    let script = id.script.script()?;
    let start = worker.starts.on(id.script.tree(), setting)?;
    let failure = trial::again(system, start, &script, id.op, &id.spot)?;
    Ok(failure.map(|f| worker.report(&id.script, setting, &script, &f)))
}
