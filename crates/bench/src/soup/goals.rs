//! The goals of SoupFS, judged by the figures of one run.

use super::calls::{CALLS, CPU};
use super::{Options, Row, large, mount};
use crate::micro::{Bound, Goal};

/// The engines of the goals.
pub(super) const TYPES: [&str; 2] = ["soupfs", "bpfs"];
/// Number of goals of a run with all figures.
#[cfg(test)]
pub(super) const COUNT: usize = 4 * 2 + 2 + 2 + 1 + 2 + 2;

/// A call on memory with delays.
pub(super) fn delayed(op: &str) -> String {
    format!("{op}, delayed")
}

/// The figures, and the name of tmpfs.
struct Found<'r> {
    rows: &'r [Row],
    tmpfs: String,
}

impl Found<'_> {
    fn row(&self, target: &str, op: &str, flush_ns: u64, threads: usize) -> Option<&Row> {
        let is_it = |row: &&Row| {
            (&*row.target, &*row.op) == (target, op)
                && (row.flush_ns, row.threads) == (flush_ns, threads)
        };
        self.rows.iter().find(is_it)
    }

    fn ns(&self, target: &str, op: &str) -> Option<f64> {
        self.row(target, op, 0, 1).map(|row| row.ns_median)
    }

    /// Our time divided by that of others.
    fn ratio(&self, other: &str, op: &str, most: f64) -> Option<Goal> {
        let [ours, _] = TYPES;
        Some(Goal {
            what: format!("{ours} {op} / {other}"),
            figure: self.ns(ours, op)? / self.ns(other, op)?,
            bound: Bound::AtMost(most),
        })
    }

    fn calls(&self) -> Vec<Option<Goal>> {
        let [_, bpfs] = TYPES;
        let each = CALLS.into_iter();
        each.flat_map(|op| [self.ratio(&self.tmpfs, op, 0.4), self.ratio(bpfs, op, 0.7)])
            .chain([
                self.ratio(&self.tmpfs, CPU, 1.0),
                self.ratio(bpfs, CPU, 1.0),
            ])
            .collect()
    }

    /// Whether slow flushes leave calls as fast.
    fn flat(&self, op: &str) -> Option<Goal> {
        let [ours, _] = TYPES;
        let at = |ns| self.row(ours, &delayed(op), ns, 1).map(|row| row.ns_median);
        Some(Goal {
            what: format!("{ours} {op}, 800 ns after each flush / 0 ns"),
            figure: at(800)? / at(0)?,
            bound: Bound::AtMost(1.05),
        })
    }

    fn threads(&self) -> Option<Goal> {
        let [ours, _] = TYPES;
        let rate = |threads| {
            let row = self.row(ours, "create+unlink", 0, threads);
            row.map(|row| row.ops_per_second)
        };
        Some(Goal {
            what: format!("{ours} create+unlink, two threads, to one"),
            figure: rate(2)? / rate(1)?,
            bound: Bound::AtLeast(1.8),
        })
    }

    /// "With memory alone": if a call waited only for the reads of a lookup longer than in the small directory.
    fn large(&self, call: &str, [small, large]: [u64; 2]) -> Option<Goal> {
        let [ours, _] = TYPES;
        let ns = |names| self.ns(ours, &large::op(call, names));
        let read = |names| self.ns(large::MEMORY, &large::op("lookup", names));
        let alone = (ns(small)? + read(large)? - read(small)?) / ns(small)?;
        Some(Goal {
            what: format!(
                "{ours} {call} in {large} names (with memory alone: {alone:.2}) / in {small}"
            ),
            figure: ns(large)? / ns(small)?,
            bound: Bound::AtMost(2.0),
        })
    }

    fn milliseconds(&self, op: &str, most: f64) -> Option<Goal> {
        let [ours, _] = TYPES;
        Some(Goal {
            what: format!("{ours} {op}, ms"),
            figure: self.ns(ours, op)? / 1e6,
            bound: Bound::AtMost(most),
        })
    }
}

pub(super) fn judge(rows: &[Row], options: &Options) -> Vec<Goal> {
    let found = Found {
        rows,
        tmpfs: options.dir.display().to_string(),
    };
    let goals = found.calls().into_iter().chain([
        found.flat("create"),
        found.flat("unlink"),
        found.threads(),
        found.large("lookup", options.directories),
        found.large("create", options.directories),
        found.milliseconds(mount::MOUNT, 10.0),
        found.milliseconds(mount::FIRST, 1.0),
    ]);
    goals.flatten().collect()
}
