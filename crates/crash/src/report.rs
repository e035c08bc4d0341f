//! What to explore, and what came out.

use crate::{PersistModel, Schedule};
use oracle::script::generate::Tree;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// What to explore.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest enumerated scripts: 0 (none) to 3 operations.
    pub ops: u32,
    /// How many of the longest enumerated scripts on each tree to draw, each at most once;
    /// `None`: all.
    pub sample: Option<u64>,
    /// What the enumerated scripts start from.
    pub trees: Vec<Tree>,
    /// Further trees, on which enumerated scripts have one operation at most.
    pub singles: Vec<Tree>,
    /// Scripts of the user's, as text; they start from a new file system.
    pub scripts: Vec<String>,
    /// Number of long random scripts.
    pub random_scripts: u64,
    /// Operations in each of them.
    pub random_len: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Persistence model, of memory.
    pub model: PersistModel,
    /// When blocks are written back, on block devices: each script is run with each.
    pub schedules: Vec<Schedule>,
    /// States up to which a point in time is explored exhaustively.
    pub states_per_point: usize,
    /// Random subsets, and single cells, tried at a point with more states.
    pub samples: usize,
    /// Moments of a script at which crashes are explored: calls on persistent memory, ends of
    /// flushes on block devices. Of a longer script a seeded choice of about that many.
    pub moments: usize,
    /// Ends of each script, drawn by seed: a power cut, or a killed server, which leaves what it
    /// has stored to the next one, durable or not. More calls run after recovery, and their
    /// crash states are visited, too.
    pub lives: usize,
    /// Further crashes inside recovery: 0, 1 or 2.
    pub recovery_depth: usize,
    /// Starts no further script after this time.
    pub time_limit: Option<Duration>,
    /// Starts no further script after so many failures.
    pub max_failures: usize,
    /// Threads; one is the caller's own.
    pub threads: usize,
}

impl Default for Options {
    /// All scripts of one and two operations on the small tree, words, seed 1, two threads, no time limit.
    fn default() -> Self {
        Self {
            ops: 2,
            trees: vec![Tree::Small],
            singles: Vec::new(),
            sample: None,
            scripts: Vec::new(),
            random_scripts: 0,
            random_len: 200,
            seed: 1,
            model: PersistModel::Words,
            schedules: Schedule::ALL.to_vec(),
            states_per_point: 4096,
            samples: 64,
            moments: usize::MAX,
            lives: 0,
            recovery_depth: 1,
            time_limit: None,
            max_failures: 10,
            threads: 2,
        }
    }
}

/// How far an exploration is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Scripts done.
    pub workloads: u64,
    /// Scripts in all.
    pub workloads_total: u64,
    /// States visited.
    pub states: u64,
    /// Scripts that failed.
    pub violations: u64,
}

/// What an exploration found. The same for the same seed, but for times and for where
/// limits of time or failures struck.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// [`System::id`](vfs::System::id).
    pub system: String,
    /// Persistence model of memory, or the schedules of write-back.
    pub model: String,
    /// Longest enumerated scripts.
    pub ops: u32,
    /// Seed.
    pub seed: u64,
    /// Scripts run.
    pub workloads: u64,
    /// Scripts asked for.
    pub workloads_total: u64,
    /// Whether that was all of them.
    pub complete: bool,
    /// What part of the scripts of each length was run.
    pub enumerated: Vec<Enumerated>,
    /// Points in time at which crashes were explored.
    pub points: u64,
    /// Those with too many states to visit all.
    pub capped_points: u64,
    /// Crash states recovered from and judged.
    pub states_explored: u64,
    /// Those that differ in what the medium held.
    pub states_distinct: u64,
    /// States checked a second way, to test the explorer itself.
    pub audited: u64,
    /// Stores after which the logical state was read, in program order.
    pub stores_checked: u64,
    /// Operations that found the test image full.
    pub no_space: u64,
    /// Crash states on which more calls ran and were crashed.
    pub lives: u64,
    /// Scripts with a failure.
    pub violations: u64,
    /// Time taken.
    pub seconds: f64,
    /// States visited per second.
    pub states_per_second: f64,
    /// The failures, in order of scripts; the first of each script.
    pub failures: Vec<FailureReport>,
}

/// What part of the scripts of one length on one tree was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enumerated {
    /// What they start from.
    pub tree: Tree,
    /// Operations in each script.
    pub ops: u32,
    /// Scripts run; if less than `of`, a sample, or what a limit let through.
    pub taken: u64,
    /// Scripts there are.
    pub of: u64,
}

/// A failure. Its text is one line that begins with the id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureReport {
    /// Replays it: see [`FailureId`](crate::FailureId).
    pub id: String,
    /// The operation.
    pub op: String,
    /// What is wrong.
    pub what: String,
    /// What the scripts start from.
    pub tree: Tree,
    /// The script, one operation per line.
    pub script: String,
    /// A shorter one that fails in the same way.
    pub shrunk: String,
}

impl Display for FailureReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.id, self.op, self.what)
    }
}
