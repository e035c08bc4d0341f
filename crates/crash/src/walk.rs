//! Visits the crash states of a trace.
//!
//! # Which points in time are enough
//!
//! Between two fences the set of pending stores only grows, and a cell's legal contents
//! are prefixes of its stores: whatever a crash can leave at a moment, a crash right
//! before the next fence can leave too. So it suffices to look (W1) right before each
//! fence and (W2) at the end of each operation, where what is demanded changes. Stores
//! that the cache evicted early are among the prefixes; flushes matter only for what
//! the next fence makes impossible.
//!
//! # Which states are visited at a point
//!
//! All that the judge can tell apart ([`crate::state`]), up to [`Limits::leaves`].
//! Beyond that: none, all, every single cell applied, every single one dropped, and
//! seeded random subsets. The tail of an evaluation (using the recovered system) is
//! tried with none, all and random choices only.
//!
//! Stores that recovery makes are a trace themselves, and its points are visited the
//! same way, [`Limits::recovery_depth`] crashes deep.
//!
//! Of every hundred states one is checked without lazy choice: all cells decided at
//! once, at random. What comes out must be among the outcomes seen; else the explorer
//! itself is wrong.

use crate::state::{Policy, StatePmem, mix};
use hashbrown::HashSet;
use medium::recording::Event;
use std::sync::Arc;

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
    /// Seed of everything random.
    pub seed: u64,
}

/// One crash: before which event of the trace, and what was chosen, in order of reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CrashAt {
    pub event: usize,
    pub choices: Vec<u32>,
}

/// A crash state that can be visited again: a crash, the crashes in recoveries after
/// it, and how the tail chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub crashes: Vec<CrashAt>,
    pub tail: Tail,
}

/// How the tail of an evaluation decides, in a form that ids can carry.
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

/// What the judge says about one crash state.
pub(crate) struct Verdict {
    /// What is wrong, if anything.
    pub wrong: Option<String>,
    /// Hash of all that the judge saw of the recovered system.
    pub outcome: u64,
    /// What recovery read to decide, and what it stored.
    pub recovery: Option<Recovery>,
}

/// A recovery that stored something.
pub(crate) struct Recovery {
    pub decisions: Vec<(u32, u32)>,
    pub trace: Vec<Event>,
}

/// Recovers from a crash state and judges the result. Must be deterministic, and must
/// reach the state only through `pm`.
pub(crate) trait Judge {
    /// Judges; `tail` decides what is read after the recovered system was examined.
    fn judge(&mut self, pm: &Arc<StatePmem>, tail: Policy) -> Verdict;
    /// Hash of what is demanded at this point.
    fn demands(&self) -> u64;
}

/// What was visited.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub states: u64,
    pub distinct: HashSet<u64>,
    pub points: u64,
    pub capped_points: u64,
    pub audited: u64,
    /// Points already visited, by state and demand.
    pub known_points: HashSet<u64>,
}

/// A failure and where it is.
pub(crate) struct Found {
    pub place: Place,
    pub what: String,
}

/// One walk; ends at the first failure.
pub(crate) struct Walk<'a> {
    pub pm: &'a Arc<StatePmem>,
    pub judge: &'a mut dyn Judge,
    pub limits: Limits,
    pub tally: &'a mut Tally,
    /// Crashes that led here, when inside a recovery.
    pub crashes: Vec<CrashAt>,
}

impl Walk<'_> {
    /// Visits the states that a crash before `event` can leave.
    pub(crate) fn point(&mut self, event: usize) -> Result<(), Found> {
        self.pm.keep();
        // How deep we are decides whether crashes of the recovery are visited as well.
        let depth = self.crashes.len() as u64;
        let key = mix(mix(self.pm.point_key(), self.judge.demands()), depth);
        if !self.tally.known_points.insert(key) {
            return Ok(());
        }
        self.tally.points += 1;
        self.pm.start(&[], Policy::None);
        let mut outcomes = HashSet::new();
        for visited in 1..=self.limits.leaves as u64 {
            outcomes.insert(self.leaf(event)?);
            if !self.pm.next_path() {
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

    fn visit(&mut self, tail: Tail) -> (Verdict, Vec<u32>, bool) {
        let verdict = self.judge.judge(self.pm, tail.policy());
        self.tally.states += 1;
        self.tally.distinct.insert(self.pm.hash());
        let decisions = self.pm.decisions();
        let choices = decisions.into_iter().map(|(_, choice)| choice).collect();
        let tail_chose = self.pm.tail_chose();
        self.pm.rollback();
        (verdict, choices, tail_chose)
    }

    fn fail(
        &self,
        verdict: &Verdict,
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
        let place = Place { crashes, tail };
        Err(Found { place, what })
    }

    fn second_crash(&mut self, event: usize, recovery: &Recovery) -> Result<(), Found> {
        if self.crashes.len() >= self.limits.recovery_depth {
            return Ok(());
        }
        let choices = recovery.decisions.iter().map(|(_, c)| *c).collect();
        self.crashes.push(CrashAt { event, choices });
        let level = self.pm.enter(&recovery.decisions);
        let result = self.events(&recovery.trace);
        self.pm.leave(level);
        self.crashes.pop();
        result
    }

    fn events(&mut self, trace: &[Event]) -> Result<(), Found> {
        for (i, event) in trace.iter().enumerate() {
            if *event == Event::Fence {
                self.point(i)?;
            }
            self.pm.apply(event);
        }
        self.point(trace.len())
    }

    /// A point with too many states.
    fn sample(&mut self, event: usize) -> Result<(), Found> {
        let seed = mix(self.limits.seed, mix(event as u64, self.pm.point_key()));
        let mut cells = self.pm.pending_cells();
        // Keep a seeded choice of the cells, spread over all of them.
        cells.sort_by_key(|cell| mix(seed, u64::from(*cell)));
        cells.truncate(self.limits.samples);
        let single = cells
            .iter()
            .flat_map(|cell| [Policy::Only(*cell), Policy::AllBut(*cell)]);
        let random = (0..self.limits.samples as u64).map(|i| Policy::Random(mix(seed, i)));
        for policy in [Policy::All].into_iter().chain(single).chain(random) {
            self.pm.start(&[], policy);
            self.leaf(event)?;
        }
        Ok(())
    }

    /// Checks the lazy choice itself on one in a hundred of the states `visited`.
    fn audit(&mut self, event: usize, visited: u64, outcomes: &HashSet<u64>) -> Result<(), Found> {
        let seed = mix(self.limits.seed, self.pm.point_key());
        let audits = visited / 100 + u64::from(seed % 100 < visited % 100);
        for seed in (0..audits).map(|i| mix(seed, i) >> 32) {
            self.tally.audited += 1;
            self.pm.start(&[], Policy::None);
            self.pm.decide_all(Policy::Random(seed));
            let full = self.judge.judge(self.pm, Policy::None);
            self.pm.rollback();
            if full.wrong.is_none() && outcomes.contains(&full.outcome) {
                continue;
            }
            // The same state by lazy choice, for its place.
            self.pm.start(&[], Policy::Random(seed));
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

/// Brings `pm`, which holds the state before `trace`, to `place`, and judges it.
pub(crate) fn revisit(
    pm: &Arc<StatePmem>,
    trace: &[Event],
    place: &Place,
    judge: &mut dyn Judge,
) -> Result<Verdict, String> {
    let mut trace = trace.to_vec();
    for (i, crash) in place.crashes.iter().enumerate() {
        let before = trace.get(..crash.event);
        let before = before.ok_or_else(|| format!("the trace has no event {}", crash.event))?;
        before.iter().for_each(|event| pm.apply(event));
        pm.keep();
        let last = i + 1 == place.crashes.len();
        let tail = if last { place.tail } else { Tail::None };
        pm.start(&crash.choices, Policy::None);
        let verdict = judge.judge(pm, tail.policy());
        pm.rollback();
        if last {
            return Ok(verdict);
        }
        let recovery = verdict.recovery;
        let recovery = recovery.ok_or("recovery stored nothing, so it cannot crash")?;
        pm.enter(&recovery.decisions);
        trace = recovery.trace;
    }
    Err("the id names no crash".to_string())
}

#[cfg(test)]
mod tests;
