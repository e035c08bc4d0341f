//! The goals of the engine, judged by the figures of one run.

use super::ops::Op;
use super::{Kind, Row};
use crate::table;

/// One goal: an engine's median beside another target's.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// The property that is aimed at.
    pub what: String,
    /// The two medians, the one divided by the other.
    pub figure: f64,
    /// The bound of the goal.
    pub bound: Bound,
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Our time divided by the other's: the largest that will do.
    AtMost(f64),
    /// The other's time divided by ours, how many times faster we are: the least that will do.
    AtLeast(f64),
}

impl Goal {
    /// Whether the figure is within the bound.
    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(limit) => self.figure <= limit,
            Bound::AtLeast(limit) => self.figure >= limit,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, figure, .. } = self;
        let met = if self.is_met() { "met" } else { "missed" };
        write!(f, "{met:6}  {what}: ")?;
        match self.bound {
            Bound::AtMost(limit) => write!(f, "{figure:.2} (goal: at most {limit})"),
            Bound::AtLeast(limit) => {
                let times = table::figure(Some(*figure));
                write!(f, "{times}x as fast (goal: at least {limit}x)")
            }
        }
    }
}

/// Against the same system call on tmpfs, which promises nothing: the largest ratio.
const AGAINST_TMPFS: [(Op, f64); 10] = [
    (Op::Create, 1.0),
    (Op::Unlink, 1.0),
    (Op::Mkdir, 1.0),
    (Op::Rmdir, 1.0),
    (Op::ReadSeq, 1.0),
    (Op::ReadRand, 1.0),
    (Op::Overwrite8, 1.0),
    (Op::WriteSeq, 2.5),
    (Op::WriteRand, 2.5),
    (Op::Overwrite4k, 2.5),
];

/// Against write + fsync on ext4, which promises durability as we do: the least factor.
const AGAINST_FSYNC: f64 = 10.0;

/// Judges every engine that promises durability at return, where the run has the targets
/// to compare with.
pub(super) fn judge(rows: &[Row], targets: &[(String, Kind)]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let median = |target: &str, op: Op| {
        let row = rows
            .iter()
            .find(|r| r.target == target && r.op == op.name())?;
        (row.ns_median > 0.0).then_some(row.ns_median)
    };
    let first = |kind| {
        targets
            .iter()
            .find(|(_, k)| *k == kind)
            .map(|(name, _)| name)
    };
    for (ours, _) in targets.iter().filter(|(_, kind)| has_goals(*kind)) {
        if let Some(tmpfs) = first(Kind::Tmpfs) {
            goals.extend(AGAINST_TMPFS.iter().filter_map(|(op, limit)| {
                Some(Goal {
                    what: format!("{ours} {} / tmpfs", op.name()),
                    figure: median(ours, *op)? / median(tmpfs, *op)?,
                    bound: Bound::AtMost(*limit),
                })
            }));
        }
        let fsync = first(Kind::Ext4OnTmpfs).and_then(|ext4| median(ext4, Op::WriteFsync));
        let slowest = Op::ALL
            .into_iter()
            .filter_map(|op| Some((op, median(ours, op)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some(fsync), Some((op, ns))) = (fsync, slowest) {
            goals.push(Goal {
                what: format!("{ours} slowest ({}), to ext4 write+fsync", op.name()),
                figure: fsync / ns,
                bound: Bound::AtLeast(AGAINST_FSYNC),
            });
        }
    }
    goals
}

/// The ablation modes exist to be slower.
fn has_goals(kind: Kind) -> bool {
    let Kind::Engine(engine) = kind else {
        return false;
    };
    engine.has_medium() && matches!(engine.mode(), None | Some("other" | "log"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    fn row(target: &str, op: Op, ns_median: f64) -> Row {
        Row {
            target: target.into(),
            op: op.name(),
            ns_median,
            ns_p99: ns_median,
            flushes: None,
            fences: None,
            bytes: None,
        }
    }

    #[test]
    fn goals_compare_medians_of_one_run() {
        let targets = [
            ("bpfs".to_owned(), Kind::Engine(Engine::usual())),
            ("model".to_owned(), Kind::Engine(Engine::baseline())),
            ("/dev/shm".to_owned(), Kind::Tmpfs),
            // The goal does not concern other directories.
            ("/home".to_owned(), Kind::OtherDirectory),
            ("ext4".to_owned(), Kind::Ext4OnTmpfs),
        ];
        let rows = [
            row("bpfs", Op::Create, 900.0),
            row("bpfs", Op::Overwrite4k, 2600.0),
            row("model", Op::Create, 100.0),
            row("/dev/shm", Op::Create, 1000.0),
            row("/dev/shm", Op::Overwrite4k, 1000.0),
            row("/home", Op::WriteFsync, 1.0),
            row("ext4", Op::WriteFsync, 26_000.0),
        ];
        let goals = judge(&rows, &targets);
        let seen: Vec<_> = goals
            .iter()
            .map(|g| (g.what.as_str(), g.is_met()))
            .collect();
        assert_eq!(
            seen,
            [
                ("bpfs create / tmpfs", true),
                ("bpfs overwrite-4k / tmpfs", false),
                ("bpfs slowest (overwrite-4k), to ext4 write+fsync", true),
            ]
        );
        let text = goals[2].to_string();
        assert!(
            text.ends_with("10.0x as fast (goal: at least 10x)"),
            "{text}"
        );
        let goals = judge(&rows[..rows.len() - 1], &targets);
        assert_eq!(goals.len(), 2, "without that ext4 no such goal: {goals:?}");
    }

    #[test]
    fn no_goals_without_a_target_to_compare_with() {
        let targets = [("bpfs".to_owned(), Kind::Engine(Engine::usual()))];
        assert_eq!(judge(&[row("bpfs", Op::Create, 9.0)], &targets), []);
    }
}
