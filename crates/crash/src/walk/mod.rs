//! Visits the crash states of a trace.
//!
//! # Which points in time are enough
//!
//! Between two fences (of a block device: ends of flushes, and completions of writes with
//! force unit access) the set of pending stores only grows. A cell's legal contents are prefixes
//! of its stores. A crash right before the next fence can therefore leave every state that an
//! earlier crash can leave. Two kinds of points suffice: (W1) right before each fence, and (W2)
//! at the end of each operation, where the demands change. Stores that the cache evicted early
//! are among the prefixes. A flush only affects the states that the next fence makes impossible.
//!
//! # Which states are visited at a point
//!
//! All states that the judge can distinguish ([`crate::media`]), up to [`Limits::leaves`].
//! Beyond that: none, all, every single cell applied, every single one dropped, and
//! seeded random subsets. The tail of an evaluation (using the recovered system) is
//! tried with none, all and random choices only.
//!
//! The stores of a recovery are a trace as well. Its points are visited the same way,
//! [`Limits::recovery_depth`] crashes deep.
//!
//! One in a hundred states is checked without lazy choice: all cells are decided at once, at
//! random. An outcome that was not seen before is a bug of the explorer.

use crate::choice::{Policy, mix};
use hashbrown::HashSet;
use std::sync::Arc;

/// A medium with writes that may be lost: the states that a crash can leave of it, one at
/// a time.
pub(crate) trait CrashState {
    /// A step of a trace.
    type Event;
    /// The state that [`enter`](Self::enter) saves.
    type Level;

    /// Whether `event` makes states impossible that were possible before it.
    fn narrows(&self, event: &Self::Event) -> bool;
    /// Applies one step of the trace.
    fn apply(&self, event: &Self::Event);
    /// Makes the present state the one that evaluations start from.
    fn keep(&self);
    /// Key of a point in time. Two points with the same key have the same crash states.
    fn point_key(&self) -> u64;
    /// Whether there are more than `leaves` states, after `depth` crashes before.
    fn is_crowded(&self, _leaves: usize, _depth: usize) -> bool {
        false
    }
    /// Starts a new walk. The next evaluation takes `path`, and `policy` beyond it.
    fn start(&self, path: &[u32], policy: Policy);
    /// Moves on to the next path. Returns whether there is one.
    fn next_path(&self) -> bool;
    /// Decides every cell, on a medium that does so at the start of an evaluation. Returns the hash
    /// of the state; `None` on a medium that decides a cell when it is read.
    fn decide_at_start(&self) -> Option<u64> {
        None
    }
    /// Ends an evaluation: undoes all changes since [`keep`](Self::keep).
    fn rollback(&self);
    /// The decisions taken since the evaluation began: cell and choice.
    fn decisions(&self) -> Vec<(u32, u32)>;
    /// Whether the tail of this evaluation read undecided cells.
    fn tail_chose(&self) -> bool {
        false
    }
    /// Decides every cell at once. For media that decide lazily.
    fn decide_all(&self, _policy: Policy) {}
    /// Hash of the decided part of the crash state.
    fn hash(&self) -> u64;
    /// Makes a crash permanent up to [`leave`](Self::leave).
    fn enter(&self, decisions: &[(u32, u32)]) -> Self::Level;
    /// Undoes [`enter`](Self::enter) and everything since.
    fn leave(&self, level: Self::Level);
    /// Policies for a point with too many states, besides taking no pending store.
    /// `depth`: number of crashes before.
    fn samples(&self, most: usize, depth: usize, seed: u64) -> Vec<Policy>;
}

/// Bounds of the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// States per point up to which all are visited.
    pub leaves: usize,
    /// Further crashes inside recovery.
    pub recovery_depth: usize,
    /// Seeded random subsets at a point with too many states; also the most single
    /// cells that are applied or dropped there.
    pub samples: usize,
    /// Random choices tried for the tail, beside none and all.
    pub tails: u64,
    /// Most moments of a script that are visited, drawn by seed from a longer one.
    pub moments: usize,
    /// Ends of a script after which more calls run and are crashed.
    pub lives: usize,
    /// Seed of everything random.
    pub seed: u64,
}

impl Limits {
    /// Whether moment number `n` of `of` is visited.
    pub(crate) fn takes(&self, n: usize, of: usize) -> bool {
        of <= self.moments || mix(self.seed, n as u64) % (of as u64) < self.moments as u64
    }
}

/// One crash: the event of the trace after it, and the choices, in order of reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CrashAt {
    pub event: usize,
    pub choices: Vec<u32>,
}

/// A crash state that can be visited again: a crash, the crashes in recoveries after it, and the
/// choices of the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CrashPath {
    pub crashes: Vec<CrashAt>,
    pub tail: Tail,
}

/// The policy of an evaluation's tail, in a form that ids can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    None,
    All,
    Random(u64),
}

impl Tail {
    fn policy(self) -> Policy {
        match self {
            Tail::None => Policy::None,
            Tail::All => Policy::All,
            Tail::Random(seed) => Policy::Random(seed),
        }
    }
}

/// The judgement of one crash state.
pub(crate) struct Verdict<E> {
    /// The finding, if the state is wrong.
    pub wrong: Option<String>,
    /// Hash of all that the judge read of the recovered system.
    pub outcome: u64,
    /// The recovery, if it stored something.
    pub recovery: Option<Recovery<E>>,
}

impl<E> Verdict<E> {
    /// The verdict on a state that was judged before and is sound.
    fn known() -> Self {
        Self {
            wrong: None,
            outcome: 0,
            recovery: None,
        }
    }
}

/// A recovery that stored something.
pub(crate) struct Recovery<E> {
    pub decisions: Vec<(u32, u32)>,
    pub trace: Vec<E>,
    /// Key of the recovery. Crashes in recoveries of the same key leave equivalent states.
    pub key: Option<u64>,
}

/// Recovers from a crash state and judges the result. It must be deterministic, and must
/// reach the state only through `medium`.
pub(crate) trait Judge<S: CrashState> {
    /// Judges, after `crashes` crashes of recoveries. `tail` decides cells that are first read after
    /// the recovered system was examined.
    fn judge(&mut self, medium: &Arc<S>, tail: Policy, crashes: usize) -> Verdict<S::Event>;
    /// Hash of the demands at this point.
    fn demands(&self) -> u64;
    /// Whether the lazy choice is checked on some states, without their places.
    fn is_audited(&self) -> bool {
        true
    }
}

/// Counts of the visited states, and keys of the known ones.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub states: u64,
    pub distinct: HashSet<u64>,
    pub points: u64,
    pub capped_points: u64,
    pub audited: u64,
    /// Points already visited, by state and demand.
    pub known_points: HashSet<u64>,
    /// States already judged, of media that decide a state at once.
    pub known_states: HashSet<u64>,
    /// Recoveries whose crashes were visited, by key and demand.
    pub known_recoveries: HashSet<u64>,
    /// Stores after which the logical state was read, in program order.
    pub looked: u64,
    /// Operations that found no space.
    pub full: u64,
    /// Crash states on which more calls ran.
    pub lives: u64,
}

impl Tally {
    /// Clears the known keys, since another script or another image begins.
    pub(crate) fn begin(&mut self) {
        self.known_points.clear();
        self.known_states.clear();
        self.known_recoveries.clear();
    }
}

/// A failure and where it is.
pub(crate) struct Found {
    pub place: CrashPath,
    pub what: String,
}

/// One walk; ends at the first failure.
pub(crate) struct Walk<'a, S: CrashState> {
    pub medium: &'a Arc<S>,
    pub judge: &'a mut dyn Judge<S>,
    pub limits: Limits,
    pub tally: &'a mut Tally,
    /// The crashes before, inside a recovery.
    pub crashes: Vec<CrashAt>,
}

impl<S: CrashState> Walk<'_, S> {
    /// Visits the states that a crash before `event` can leave.
    pub(crate) fn point(&mut self, event: usize) -> Result<(), Found> {
        self.medium.keep();
        // The depth decides whether crashes of the recovery are visited as well.
        let depth = self.crashes.len() as u64;
        let key = mix(mix(self.medium.point_key(), self.judge.demands()), depth);
        if !self.tally.known_points.insert(key) {
            return Ok(());
        }
        self.tally.points += 1;
        self.medium.start(&[], Policy::None);
        let mut outcomes = HashSet::new();
        if self
            .medium
            .is_crowded(self.limits.leaves, self.crashes.len())
        {
            self.leaf(event)?;
            self.tally.capped_points += 1;
            return self.sample(event);
        }
        for visited in 1..=self.limits.leaves as u64 {
            outcomes.insert(self.leaf(event)?);
            if !self.medium.next_path() {
                return self.audit(event, visited, &outcomes);
            }
        }
        self.tally.capped_points += 1;
        self.sample(event)
    }

    /// Visits the state that the path selects, and the crashes of its recovery.
    /// Returns the outcome.
    fn leaf(&mut self, event: usize) -> Result<u64, Found> {
        let (verdict, choices, tail_chose) = self.visit(Tail::None);
        self.fail(&verdict, event, &choices, Tail::None)?;
        if tail_chose {
            let seed = mix(self.limits.seed, event as u64);
            let random = (0..self.limits.tails).map(|i| Tail::Random(mix(seed, i) >> 32));
            for tail in [Tail::All].into_iter().chain(random) {
                let (verdict, choices, _) = self.visit(tail);
                self.fail(&verdict, event, &choices, tail)?;
            }
        }
        if let Some(recovery) = verdict.recovery {
            self.second_crash(event, &recovery)?;
        }
        Ok(verdict.outcome)
    }

    fn visit(&mut self, tail: Tail) -> (Verdict<S::Event>, Vec<u32>, bool) {
        if let Some(state) = self.medium.decide_at_start() {
            // After fewer crashes before the state, more were tried after it.
            let key = mix(state, self.judge.demands());
            let at_depth = |depth: usize| mix(key, depth as u64);
            let depth = self.crashes.len();
            let known = (0..=depth).any(|d| self.tally.known_states.contains(&at_depth(d)));
            self.tally.known_states.insert(at_depth(depth));
            if known {
                self.medium.rollback();
                return (Verdict::known(), Vec::new(), false);
            }
        }
        let verdict = self
            .judge
            .judge(self.medium, tail.policy(), self.crashes.len());
        self.tally.states += 1;
        self.tally.distinct.insert(self.medium.hash());
        let decisions = self.medium.decisions();
        let choices = decisions.into_iter().map(|(_, choice)| choice).collect();
        let tail_chose = self.medium.tail_chose();
        self.medium.rollback();
        (verdict, choices, tail_chose)
    }

    fn fail(
        &self,
        verdict: &Verdict<S::Event>,
        event: usize,
        choices: &[u32],
        tail: Tail,
    ) -> Result<(), Found> {
        let Some(what) = verdict.wrong.clone() else {
            return Ok(());
        };
        let mut crashes = self.crashes.clone();
        let choices = choices.to_vec();
        crashes.push(CrashAt { event, choices });
        let place = CrashPath { crashes, tail };
        Err(Found { place, what })
    }

    fn second_crash(&mut self, event: usize, recovery: &Recovery<S::Event>) -> Result<(), Found> {
        if self.crashes.len() >= self.limits.recovery_depth {
            return Ok(());
        }
        if let Some(key) = recovery.key {
            let key = mix(key, mix(self.judge.demands(), self.crashes.len() as u64));
            if !self.tally.known_recoveries.insert(key) {
                return Ok(());
            }
        }
        let choices = recovery.decisions.iter().map(|(_, c)| *c).collect();
        self.crashes.push(CrashAt { event, choices });
        let level = self.medium.enter(&recovery.decisions);
        let result = self.events(&recovery.trace);
        self.medium.leave(level);
        self.crashes.pop();
        result
    }

    fn events(&mut self, trace: &[S::Event]) -> Result<(), Found> {
        for (i, event) in trace.iter().enumerate() {
            if self.medium.narrows(event) {
                self.point(i)?;
            }
            self.medium.apply(event);
        }
        self.point(trace.len())
    }

    /// Samples a point with too many states.
    fn sample(&mut self, event: usize) -> Result<(), Found> {
        let seed = mix(self.limits.seed, mix(event as u64, self.medium.point_key()));
        for policy in self
            .medium
            .samples(self.limits.samples, self.crashes.len(), seed)
        {
            self.medium.start(&[], policy);
            self.leaf(event)?;
        }
        Ok(())
    }

    /// Checks the lazy choice itself on one in a hundred of the states `visited`.
    fn audit(&mut self, event: usize, visited: u64, outcomes: &HashSet<u64>) -> Result<(), Found> {
        if !self.judge.is_audited() {
            return Ok(());
        }
        if self.medium.decide_at_start().is_some() {
            self.medium.rollback();
            return Ok(()); // there is no lazy choice
        }
        let seed = mix(self.limits.seed, self.medium.point_key());
        let audits = visited / 100 + u64::from(seed % 100 < visited % 100);
        for seed in (0..audits).map(|i| mix(seed, i) >> 32) {
            self.tally.audited += 1;
            self.medium.start(&[], Policy::None);
            self.medium.decide_all(Policy::Random(seed));
            let full = self
                .judge
                .judge(self.medium, Policy::None, self.crashes.len());
            self.medium.rollback();
            if full.wrong.is_none() && outcomes.contains(&full.outcome) {
                continue;
            }
            // The same state by lazy choice, for its place.
            self.medium.start(&[], Policy::Random(seed));
            let (_, choices, _) = self.visit(Tail::Random(seed));
            let missed = "audit: the explorer missed this state".to_string();
            let wrong = Some(full.wrong.unwrap_or(missed));
            let verdict = Verdict {
                wrong,
                outcome: full.outcome,
                recovery: None,
            };
            self.fail(&verdict, event, &choices, Tail::Random(seed))?;
        }
        Ok(())
    }
}

/// Moves `medium`, which holds the state before `trace`, to `place`, and judges that state.
pub(crate) fn revisit<S: CrashState<Event: Clone>>(
    medium: &Arc<S>,
    trace: &[S::Event],
    place: &CrashPath,
    judge: &mut dyn Judge<S>,
) -> Result<Verdict<S::Event>, String> {
    let mut trace = trace.to_vec();
    for (i, crash) in place.crashes.iter().enumerate() {
        let before = trace.get(..crash.event);
        let before = before.ok_or_else(|| format!("the trace has no event {}", crash.event))?;
        before.iter().for_each(|event| medium.apply(event));
        medium.keep();
        let last = i + 1 == place.crashes.len();
        let tail = if last { place.tail } else { Tail::None };
        medium.start(&crash.choices, Policy::None);
        let _ = medium.decide_at_start();
        let verdict = judge.judge(medium, tail.policy(), i);
        medium.rollback();
        if last {
            return Ok(verdict);
        }
        let recovery = verdict.recovery;
        let recovery = recovery.ok_or("recovery stored nothing, so it cannot crash")?;
        medium.enter(&recovery.decisions);
        trace = recovery.trace;
    }
    Err("the id names no crash".to_string())
}

#[cfg(test)]
mod tests;
