//! Many scripts on one system, over several threads; failures shrunk and given ids.

use crate::choice::mix;
use crate::id::{FailureId, ScriptRef};
use crate::system::{Failure, PmemSystem, Subject};
use crate::walk::{Limits, Tally};
use crate::{Enumerated, FailureReport, Options, Outcome, Progress};
use oracle::script::generate::{self, Tree};
use oracle::script::{Script, shrink};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

impl ScriptRef {
    fn script(&self) -> Result<Script, String> {
        match self {
            ScriptRef::Enumerated { tree, ops, index } => {
                if *ops == 0 || *ops > 3 || *index >= tree.count(*ops) {
                    return Err(format!("there is no script {self}"));
                }
                Ok(tree.sequence(*ops, *index))
            }
            ScriptRef::Random { seed, index, len } => {
                Ok(generate::random(mix(*seed, *index), (*len).min(MAX_LEN)))
            }
            ScriptRef::Text(text) => text.parse().map_err(|e| format!("script: {e}")),
        }
    }

    /// What the script starts from.
    fn tree(&self) -> Tree {
        match self {
            ScriptRef::Enumerated { tree, .. } => *tree,
            ScriptRef::Random { .. } => Tree::Small,
            ScriptRef::Text(_) => Tree::Empty,
        }
    }

    /// Which operations to crash. Shorter sequences are scripts of their own, so only
    /// the last operation of one is new.
    fn crashed(&self, script: &Script) -> Range<usize> {
        let end = script.ops.len();
        match self {
            ScriptRef::Enumerated { .. } => end.saturating_sub(1)..end,
            _ => 0..end,
        }
    }
}

/// Longest random script.
const MAX_LEN: usize = 100_000;

/// The scripts that `options` ask for, in order, and what part of each length they are.
fn workloads(options: &Options) -> (Vec<ScriptRef>, Vec<Enumerated>) {
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    let longest = options.ops.min(3);
    let trees = options.trees.iter().map(|tree| (*tree, longest));
    let singles = options.singles.iter().map(|tree| (*tree, longest.min(1)));
    let lengths = |(tree, longest)| (1..=longest).map(move |ops| (tree, ops));
    for (tree, ops) in trees.chain(singles).flat_map(lengths) {
        let of = tree.count(ops);
        let sample = options.sample.filter(|n| ops == longest && *n < of);
        let indices = match sample {
            Some(sample) => draw(options.seed, of, sample),
            None => (0..of).collect(),
        };
        parts.push(Enumerated {
            tree,
            ops,
            taken: indices.len() as u64,
            of,
        });
        let scripts = indices.into_iter();
        all.extend(scripts.map(|index| ScriptRef::Enumerated { tree, ops, index }));
    }
    all.extend((0..options.random_scripts).map(|index| ScriptRef::Random {
        seed: options.seed,
        index,
        len: options.random_len,
    }));
    (all, parts)
}

/// `sample` different numbers below `of`, ascending.
fn draw(seed: u64, of: u64, sample: u64) -> Vec<u64> {
    let mut drawn = fastrand::Rng::with_seed(seed).choose_multiple(0..of, sample as usize);
    drawn.sort_unstable();
    drawn
}

/// One thread's part.
struct Worker<'a, S: Subject + ?Sized> {
    system: &'a S,
    options: &'a Options,
    starts: Starts<'a, S>,
    tally: Tally,
    /// Whether the scripts of failures are made shorter.
    shrinks: bool,
}

/// The trees that one thread needed so far.
struct Starts<'a, S: Subject + ?Sized> {
    system: &'a S,
    made: Vec<(Tree, S::Setting, S::Start)>,
}

impl<S: Subject + ?Sized> Starts<'_, S> {
    /// What scripts on `tree` start from.
    fn on(&mut self, tree: Tree, setting: S::Setting) -> Result<&S::Start, String> {
        let same = |(t, s, _): &(Tree, S::Setting, S::Start)| (*t, *s) == (tree, setting);
        let at = match self.made.iter().position(same) {
            Some(at) => at,
            None => {
                let start = self.system.start(setting, &tree.setup())?;
                self.made.push((tree, setting, start));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].2)
    }
}

impl<'a, S: Subject + ?Sized> Worker<'a, S> {
    fn new(system: &'a S, options: &'a Options) -> Self {
        Self {
            system,
            options,
            starts: Starts {
                system,
                made: Vec::new(),
            },
            tally: Tally::default(),
            shrinks: true,
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
        setting: S::Setting,
        script: &Script,
        ops: Range<usize>,
    ) -> Result<Option<Failure>, String> {
        let limits = self.limits();
        let start = self.starts.on(tree, setting)?;
        self.tally.begin();
        let system = self.system;
        let crashed = system.trial(start, setting, script, ops, limits, &mut self.tally);
        Ok(crashed.err())
    }

    fn report(
        &self,
        from: &ScriptRef,
        setting: S::Setting,
        script: &Script,
        failure: &Failure,
    ) -> FailureReport {
        let id = FailureId {
            system: self.system.name(),
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
    fn shrunk(
        &self,
        tree: Tree,
        setting: S::Setting,
        script: &Script,
        failure: &Failure,
    ) -> Script {
        if !self.shrinks {
            return script.clone();
        }
        let deadline = Instant::now() + SHRINK_TIME;
        let same = std::mem::discriminant(&failure.spot);
        let mut worker = Worker::new(self.system, self.options);
        shrink(script, &mut |candidate| {
            let ops = 0..candidate.ops.len();
            Instant::now() < deadline
                && worker
                    .trial(tree, setting, candidate, ops)
                    .is_ok_and(|f| f.is_some_and(|f| std::mem::discriminant(&f.spot) == same))
        })
    }
}

/// So many failures have their scripts made shorter.
const SHRUNK: u64 = 10;

/// Longest time that is spent on making one failure's script shorter.
const SHRINK_TIME: Duration = Duration::from_secs(10);

/// What the threads share.
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

/// Explores the crash states of every script that `options` ask for. `progress` is told
/// now and then; it is called from several threads.
///
/// # Errors
/// The system cannot even be formatted, opened, or set up.
pub fn explore(
    system: &PmemSystem,
    options: &Options,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Outcome, String> {
    explore_all(system, options, progress)
}

/// [`explore`] on any medium.
pub(crate) fn explore_all<S: Subject + ?Sized>(
    system: &S,
    options: &Options,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Outcome, String> {
    let begin = Instant::now();
    let (scripts, planned) = workloads(options);
    let nothing_yet = planned.iter().map(|part| Enumerated { taken: 0, ..*part });
    let settings = S::settings(options);
    let in_all =
        |script: &ScriptRef| -> Vec<_> { settings.iter().map(|s| (script.clone(), *s)).collect() };
    let work: Vec<(ScriptRef, S::Setting)> = scripts.iter().flat_map(in_all).collect();
    let shared = Shared {
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        states: AtomicU64::new(0),
        violations: AtomicU64::new(0),
        failures: Mutex::default(),
        enumerated: Mutex::new(nothing_yet.collect()),
    };
    let run = || drain(system, options, &work, &shared, begin, progress);
    let workers = match options.threads {
        0 | 1 => vec![run()?],
        threads => in_threads(threads, run)?,
    };
    let seconds = begin.elapsed().as_secs_f64();
    let mut outcome = outcome(system, options, shared, workers, seconds);
    outcome.workloads_total = work.len() as u64;
    outcome.complete = outcome.workloads == outcome.workloads_total;
    Ok(outcome)
}

fn in_threads<T: Send>(
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

fn drain<'a, S: Subject + ?Sized>(
    system: &'a S,
    options: &'a Options,
    work: &[(ScriptRef, S::Setting)],
    shared: &Shared,
    begin: Instant,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Worker<'a, S>, String> {
    let mut worker = Worker::new(system, options);
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
            worker.shrinks = earlier < SHRUNK;
            let report = worker.report(from, *setting, &script, &failure);
            shared.failures.lock().push((at, report));
        }
        if S::settings(options).last() == Some(setting) {
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

fn outcome<S: Subject + ?Sized>(
    system: &S,
    options: &Options,
    shared: Shared,
    workers: Vec<Worker<'_, S>>,
    seconds: f64,
) -> Outcome {
    let sum = |of: fn(&Worker<'_, S>) -> u64| workers.iter().map(of).sum::<u64>();
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
    let settings = S::settings(options);
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let mut failures = shared.failures.into_inner();
    failures.sort_by_key(|(at, _)| *at);
    Outcome {
        system: system.name(),
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
/// As [`explore`], and if `script` is no script.
pub fn explore_script(
    system: &PmemSystem,
    script: &str,
    options: &Options,
) -> Result<Option<FailureReport>, String> {
    explore_text(system, script, options)
}

/// [`explore_script`] on any medium.
pub(crate) fn explore_text<S: Subject + ?Sized>(
    system: &S,
    script: &str,
    options: &Options,
) -> Result<Option<FailureReport>, String> {
    let script: Script = script.parse().map_err(|e| format!("script: {e}"))?;
    let from = ScriptRef::Text(script.to_string());
    let mut worker = Worker::new(system, options);
    for setting in S::settings(options) {
        let failure = worker.trial(from.tree(), setting, &script, 0..script.ops.len())?;
        if let Some(failure) = failure {
            return Ok(Some(worker.report(&from, setting, &script, &failure)));
        }
    }
    Ok(None)
}

/// Visits again what `id` names. Returns what is wrong there, if it still is.
///
/// # Errors
/// `id` is of another system, or names nothing that exists.
pub fn replay(system: &PmemSystem, id: &FailureId) -> Result<Option<FailureReport>, String> {
    replay_on(system, id)
}

/// [`replay`] on any medium.
pub(crate) fn replay_on<S: Subject + ?Sized>(
    system: &S,
    id: &FailureId,
) -> Result<Option<FailureReport>, String> {
    let name = system.name();
    if name != id.system {
        return Err(format!("{id} is of the system {}, not {name}", id.system));
    }
    let setting = id.setting.parse::<S::Setting>();
    let setting = setting.map_err(|e| e.to_string())?;
    let options = Options::default();
    let mut worker = Worker::new(system, &options);
    let script = id.script.script()?;
    let start = worker.starts.on(id.script.tree(), setting)?;
    let failure = system.again(start, setting, &script, id.op, &id.spot)?;
    Ok(failure.map(|f| worker.report(&id.script, setting, &script, &f)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn distinct(options: &Options) -> (HashSet<ScriptRef>, Vec<Enumerated>) {
        let (all, parts) = workloads(options);
        let len = all.len();
        let all: HashSet<_> = all.into_iter().collect();
        assert_eq!(all.len(), len, "no script twice");
        (all, parts)
    }

    const BOTH: [Tree; 2] = [Tree::Small, Tree::Crowded];

    fn all_of(ops: u32) -> u64 {
        BOTH.iter().map(|tree| tree.count(ops)).sum()
    }

    #[test]
    fn scripts_of_one_and_two_operations_are_all_taken() {
        let mut enumerated = 0;
        for ops in 1..=2 {
            enumerated += all_of(ops);
            let (all, parts) = distinct(&Options {
                ops,
                trees: BOTH.to_vec(),
                random_scripts: 7,
                ..Options::default()
            });
            assert_eq!(all.len() as u64, enumerated + 7);
            assert!(parts.iter().all(|part| part.taken == part.of));
        }
    }

    #[test]
    fn trees_for_singles_give_scripts_of_one_operation() {
        for ops in 0..=2 {
            let options = Options {
                ops,
                singles: vec![Tree::Crowded],
                ..Options::default()
            };
            let small = (1..=ops).map(|ops| Tree::Small.count(ops)).sum::<u64>();
            let crowded = if ops == 0 { 0 } else { Tree::Crowded.count(1) };
            assert_eq!(distinct(&options).0.len() as u64, small + crowded);
        }
    }

    #[test]
    fn a_sample_limits_the_longest_only_and_depends_on_the_seed() {
        let sample = |seed| {
            distinct(&Options {
                ops: 2,
                trees: BOTH.to_vec(),
                sample: Some(500),
                seed,
                ..Options::default()
            })
        };
        let (all, parts) = sample(1);
        assert_eq!(all.len() as u64, all_of(1) + 1000);
        let part = |tree: Tree, ops, taken| Enumerated {
            tree,
            ops,
            taken,
            of: tree.count(ops),
        };
        let expected = BOTH.map(|tree| [part(tree, 1, tree.count(1)), part(tree, 2, 500)]);
        assert_eq!(parts, expected.concat());
        assert_eq!(all, sample(1).0);
        assert_ne!(all, sample(2).0);
    }
}
