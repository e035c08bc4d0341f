//! Produces the states of a subject, in sequence.

use super::{Explorer, State, Subject};
use crate::model::{Legal, Model, Modelled, spread};
use crate::play::Player;
use crate::{Node, Tree};
use crash::observe::{Bounds, Observation, Seen};
use crash::{BlockSystem, Schedule};

/// Schedules of write-back under which engines run.
const SCHEDULES: [Schedule; 4] = [
    Schedule::Sync,
    Schedule::Each,
    Schedule::Any(1),
    Schedule::Any(2),
];

/// Most points in time of an engine under one schedule.
const POINTS: usize = 2000;

/// Points that are visited under one schedule before it is the turn of the next one.
const PART: usize = 8;

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

    fn produce_engine(
        &self,
        name: &str,
        system: &BlockSystem,
        take: &mut dyn FnMut(State) -> bool,
    ) -> Result<bool, String> {
        let mut left = self.options.limit.saturating_mul(PRODUCED);
        let observe = |schedule| {
            let mut player = Player::new(self.run, self.options.order)?;
            Observation::new(system, &mut player, schedule)
        };
        let observations: Vec<_> = SCHEDULES
            .into_iter()
            .map(observe)
            .collect::<Result<_, _>>()?;
        let points = observations.iter().map(Observation::points).max();
        let parts = points.unwrap_or(0).min(POINTS).div_ceil(PART).max(1);
        // The schedules take turns, so that a limit cuts all of them, and all of the run, alike.
        for (part, observation) in (0..parts).flat_map(|n| observations.iter().map(move |o| (n, o)))
        {
            let bounds = Bounds {
                states_per_point: 256,
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
                        id: format!("{name}/{}", seen.spot),
                        tree: tree_of(seen),
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
