//! Produces the states of a subject, in sequence.

use super::{Explorer, State, Subject};
use crate::model::{Legal, Model, Modelled, spread};
use crate::play::Player;
use crate::{Node, Tree};
use crash::Schedule;
use crash::observe::{Bounds, Observation, Observed, Seen};

/// Schedules of write-back under which engines run.
const SCHEDULES: [Schedule; 4] = [
    Schedule::Sync,
    Schedule::Each,
    Schedule::Any(1),
    Schedule::Any(2),
];

/// First rounds of each period under which engines on persistent memory also run.
const FIRSTS: usize = 16;

/// Bytes of memory for the recordings under all schedules.
const MEMORY: u64 = 512 << 20;

/// Most points in time of an engine under one schedule.
const POINTS: usize = 2000;

/// Points that are visited under one schedule before it is the turn of the next one.
const PART: usize = 8;

/// States of one point up to which all are visited: on a block device, and on persistent memory, where
/// the words of overwritten contents make far more of them.
const STATES: (usize, usize) = (256, 32);

/// States that a subject produces, equal ones included, for each distinct state that is judged at
/// most: bounds the time of a run with few distinct states.
const PRODUCED: u64 = 50;

impl Explorer<'_> {
    /// Calls `take` with each state until it returns false. Returns whether these were all.
    pub(super) fn produce(
        &self,
        subject: &Subject<'_>,
        take: &mut dyn FnMut(State) -> bool,
    ) -> Result<bool, String> {
        match subject {
            Subject::Model(model) => self.produce_model(*model, take),
            Subject::Engine(name, system) => self.produce_engine(name, *system, take),
        }
    }

    /// The moments take turns, so that a limit cuts all of them alike. Late ones are among the first.
    fn produce_model(
        &self,
        model: Model,
        take: &mut dyn FnMut(State) -> bool,
    ) -> Result<bool, String> {
        let modelled = Modelled::new(self.run, model)?;
        let moments = modelled.moments();
        let moments: Vec<usize> = spread(moments.len()).map(|n| moments[n]).collect();
        let legal: Vec<Legal<'_, '_>> = moments
            .iter()
            .map(|moment| Legal::new(&modelled, *moment))
            .collect();
        let seed = self.options.seed;
        let mut turns: Vec<_> = moments
            .iter()
            .zip(&legal)
            .map(|(moment, legal)| (*moment, legal.states(seed)))
            .collect();
        let complete = legal.iter().all(Legal::is_exhaustive);
        let mut left = self.options.limit.saturating_mul(PRODUCED);
        while !turns.is_empty() {
            let mut is_over = false;
            turns.retain_mut(|(moment, states)| {
                let Some((lost, present)) = states.next().filter(|_| !is_over) else {
                    return false;
                };
                left = left.saturating_sub(1);
                is_over = left == 0
                    || !take(State {
                        id: format!("{model}/{moment}/{lost}"),
                        tree: Ok(modelled.tree(&present)),
                        returned: *moment,
                        lost: Some(lost),
                    });
                true
            });
            if is_over {
                return Ok(false);
            }
        }
        Ok(complete)
    }

    /// Runs the calls under all schedules for which there is memory.
    fn observe<'o>(&self, system: Observed<'o>) -> Result<Vec<Observation<'o>>, String> {
        let calls = self.run.entries.len() - self.run.header.setup;
        let schedules = SCHEDULES.into_iter().chain(match system {
            Observed::Blocks(_) => Vec::new(),
            Observed::Memory(_) => periodic(calls),
        });
        let mut observations = Vec::new();
        let mut bytes = 0;
        for (n, schedule) in schedules.enumerate() {
            let mut player = Player::new(self.run, self.options.order)?;
            let observation = Observation::new(system, &mut player, schedule)?;
            bytes += observation.memory_bytes();
            if n >= SCHEDULES.len() && bytes > MEMORY {
                break;
            }
            observations.push(observation);
        }
        Ok(observations)
    }

    fn produce_engine(
        &self,
        name: &str,
        system: Observed<'_>,
        take: &mut dyn FnMut(State) -> bool,
    ) -> Result<bool, String> {
        let mut left = self.options.limit.saturating_mul(PRODUCED);
        let observations = self.observe(system)?;
        let points = observations.iter().map(Observation::points).max();
        let parts = points.unwrap_or(0).min(POINTS).div_ceil(PART).max(1);
        let states_per_point = match system {
            Observed::Blocks(_) => STATES.0,
            Observed::Memory(_) => STATES.1,
        };
        // The schedules take turns, so that a limit cuts all of them, and all of the run, alike.
        for (part, observation) in (0..parts).flat_map(|n| observations.iter().map(move |o| (n, o)))
        {
            let bounds = Bounds {
                states_per_point,
                samples: 8,
                points: POINTS,
                seed: self.options.seed,
                part: (part, parts),
            };
            let mut is_over = false;
            observation.visit(&bounds, &mut |seen| {
                left = left.saturating_sub(1);
                is_over = left == 0
                    || !take(State {
                        // The place of a state has all that was read.
                        tree: tree_of(seen),
                        id: format!("{name}/{}", seen.spot()),
                        returned: self.run.header.setup + seen.returned,
                        lost: None,
                    });
                !is_over
            })?;
            if is_over {
                return Ok(false);
            }
        }
        // A cache may write back at other times than those of the schedules.
        Ok(false)
    }
}

/// Schedules with a round after some of the calls, at regular distances.
///
/// A round of an engine that keeps changes in memory makes all of them durable. So a crash state
/// depends on the last round before it, and on the calls until the round in which the crash is. Each
/// period is twice the one before it: from rounds after every second call to a single round at any
/// place of the run.
fn periodic(calls: usize) -> Vec<Schedule> {
    let periods = std::iter::successors(Some(2), |period| Some(period * 2));
    let periods: Vec<usize> = periods.take_while(|period| *period < 2 * calls).collect();
    let mut schedules = Vec::new();
    for n in 0..FIRSTS {
        for period in &periods {
            let first = spread(calls.min(*period)).nth(n);
            schedules.extend(first.map(|first| Schedule::Every {
                period: *period as u32,
                first: first as u32,
            }));
        }
    }
    schedules
}

/// The tree of an engine after a crash.
pub(super) fn tree_of(seen: &Seen<'_>) -> Result<Tree, String> {
    let fs = seen.fs.map_err(str::to_owned)?;
    let mut next = Node::ROOT.0;
    let tree = Tree::read(fs, &mut |_| {
        next += 1;
        Node(next)
    });
    tree.map(|mut tree| {
        tree.forget_lost_found();
        tree
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_round_is_tried_after_each_call_of_a_short_run() {
        let schedules = periodic(11);
        for first in 0..11 {
            let period = 16;
            assert!(schedules.contains(&Schedule::Every { period, first }));
        }
        assert!(periodic(0).is_empty() && periodic(1).is_empty());
        assert!(periodic(1_000_000).len() <= 20 * FIRSTS);
    }
}
