//! Options and results of an exploration.

use crate::{PersistModel, Schedule};
use oracle::script::generate::Tree;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Options of an exploration.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest enumerated scripts: 0 (none) to 3 operations.
    pub ops: u32,
    /// Number of the longest enumerated scripts on each tree that are drawn, each at most once;
    /// `None`: all.
    pub sample: Option<u64>,
    /// Trees that the enumerated scripts start from.
    pub trees: Vec<Tree>,
    /// Further trees, on which enumerated scripts have one operation at most.
    pub singles: Vec<Tree>,
    /// The user's scripts, as text; they start from a new file system.
    pub scripts: Vec<String>,
    /// Number of long random scripts.
    pub random_scripts: u64,
    /// Operations in each of them.
    pub random_len: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Persistence model, of memory.
    pub model: PersistModel,
    /// Schedules of write-back, on systems with a cache. Each script runs with each of them.
    pub schedules: Vec<Schedule>,
    /// States up to which a point in time is explored exhaustively.
    pub states_per_point: usize,
    /// Random subsets, and single cells, tried at a point with more states.
    pub samples: usize,
    /// Most moments of a script at which crashes are explored: calls on persistent memory, ends
    /// of flushes on block devices. From a longer script about that many are drawn by seed.
    pub moments: usize,
    /// Ends of each script, drawn by seed: a power cut or a killed server. A killed server leaves
    /// all its stores to the next one, durable or not. More calls run after recovery, and their
    /// crash states are visited as well.
    pub lives: usize,
    /// Further crashes inside recovery: 0, 1 or 2.
    pub recovery_depth: usize,
    /// Time after which no further script starts.
    pub time_limit: Option<Duration>,
    /// Number of failures after which no further script starts.
    pub max_failures: usize,
    /// Failures whose scripts are made shorter, the first ones.
    pub shrunk: u64,
    /// Threads; one is the caller's own.
    pub threads: usize,
}

impl Default for Options {
    /// All scripts of one and two operations on the small tree, words, seed 1, two threads, no
    /// time limit.
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
            shrunk: 10,
            threads: 2,
        }
    }
}

/// Progress of an exploration.
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

/// Result of an exploration. It is the same for the same seed, apart from times and from the
/// effects of limits of time or failures.
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
    /// Whether all scripts were run.
    pub complete: bool,
    /// By tree and length: the part of the scripts that was run.
    pub enumerated: Vec<Enumerated>,
    /// Points in time at which crashes were explored.
    pub points: u64,
    /// Points with too many states to visit all.
    pub capped_points: u64,
    /// Crash states recovered from and judged.
    pub states_explored: u64,
    /// Crash states with distinct contents of the medium.
    pub states_distinct: u64,
    /// States checked a second time without lazy choice, to test the explorer itself.
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

/// The part of the scripts of one length on one tree that was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enumerated {
    /// The tree that they start from.
    pub tree: Tree,
    /// Operations in each script.
    pub ops: u32,
    /// Scripts run. Fewer than `of` are a sample, or were cut off by a limit.
    pub taken: u64,
    /// Scripts in all.
    pub of: u64,
}

/// A failure. Its text is one line that begins with the id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureReport {
    /// The id that replays it: see [`FailureId`](crate::FailureId).
    pub id: String,
    /// The operation.
    pub op: String,
    /// The finding.
    pub what: String,
    /// The tree that the scripts start from.
    pub tree: Tree,
    /// The script, one operation per line.
    pub script: String,
    /// A shorter one that fails in the same way, or the same ([`Options::shrunk`]).
    pub shrunk: String,
}

impl Display for FailureReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.id, self.op, self.what)
    }
}
