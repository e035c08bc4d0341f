//! The goals of PXFS, judged by the figures of one run.

use super::calls::Op;
use super::sharing::{Mix, Role};
use super::{Options, Row, Target, clients, untar};
use crate::micro::{Bound, Goal};

/// Calls that are compared with those on the mount.
const BESIDE_FUSE: [Op; 5] = [Op::ReadSeq, Op::ReadRand, Op::Open, Op::Stat, Op::ReadSmall];
/// Number of goals of a run without the mount and `selvedge run`.
#[cfg(test)]
pub(super) const COUNT: usize = Op::PUBLISHED.len() + 2 + 1;

const OURS: &str = "pxfs";

struct Found<'r>(&'r [Row]);

impl Found<'_> {
    fn row(&self, target: &str, op: &str, clients: usize) -> Option<&Row> {
        let is_it = |row: &&Row| {
            (&*row.target, &*row.op, row.clients, row.threads) == (target, op, clients, 1)
        };
        self.0.iter().find(is_it)
    }

    /// The median of another target, and ours.
    fn beside(&self, other: Target, op: Op) -> Option<[f64; 2]> {
        let ns = |target| self.row(target, op.name(), 1)?.ns_median;
        Some([ns(other.name())?, ns(OURS)?])
    }

    /// Work of an unmodified program.
    fn under_run(&self, op: &str, most: f64) -> Option<Goal> {
        let ns = |target: Target| self.row(target.name(), op, 1)?.ns_median;
        Some(Goal {
            what: format!("{op} under run / tmpfs"),
            figure: ns(Target::Run)? / ns(Target::Tmpfs)?,
            bound: Bound::AtMost(most),
        })
    }

    /// The web proxy on keys and values.
    fn values(&self, threads: usize, least: f64) -> Option<Goal> {
        let rate = |target: Target| {
            let is_it = |row: &&Row| {
                (&*row.target, &*row.op, row.threads) == (target.name(), "webproxy", threads)
            };
            self.0.iter().find(is_it)?.ops_per_second
        };
        Some(Goal {
            what: format!("kvfs webproxy, threads: {threads}, to tmpfs"),
            figure: rate(Target::Kvfs)? / rate(Target::Tmpfs)?,
            bound: Bound::AtLeast(least),
        })
    }

    /// Our rates of two kinds of work.
    fn rates(&self, works: [(&str, usize); 2]) -> Option<[f64; 2]> {
        let rate = |(op, clients)| self.row(OURS, op, clients)?.ops_per_second;
        Some([rate(works[0])?, rate(works[1])?])
    }
}

pub(super) fn judge(rows: &[Row], options: &Options) -> Vec<Goal> {
    let found = Found(rows);
    let with_tmpfs = Op::PUBLISHED.into_iter().filter_map(|op| {
        let [theirs, ours] = found.beside(Target::Tmpfs, op)?;
        Some(Goal {
            what: format!("{OURS} {} / tmpfs", op.name()),
            figure: ours / theirs,
            bound: Bound::AtMost(1.0),
        })
    });
    let with_fuse = BESIDE_FUSE.into_iter().filter_map(|op| {
        let [theirs, ours] = found.beside(Target::Fuse, op)?;
        Some(Goal {
            what: format!("{OURS} {}, to the mount", op.name()),
            figure: theirs / ours,
            bound: Bound::AtLeast(10.0),
        })
    });
    let clients = options.clients.max(2);
    let shared = [Role::Reader, Role::Writer].into_iter().filter_map(|role| {
        let [shared, own] = [true, false].map(|is_shared| role.op(Mix::OneWriter, is_shared));
        let [shared, own] = found.rates([(&shared, clients), (&own, clients)])?;
        Some(Goal {
            what: format!("{OURS} {}, to own files", role.op(Mix::OneWriter, true)),
            figure: shared / own,
            bound: Bound::AtLeast(0.8),
        })
    });
    let op = clients::op(clients::GROUPS[0].name);
    let scaling = found.rates([(&op, 2), (&op, 1)]);
    let scaling = scaling.map(|[two, one]| Goal {
        what: format!("{OURS} {op}, two clients, to one"),
        figure: two / one,
        bound: Bound::AtLeast(1.7),
    });
    with_tmpfs
        .chain(with_fuse)
        .chain(found.under_run(Op::ReadSmall.name(), 1.0))
        .chain(found.under_run(untar::OPS[0], 1.3))
        .chain(
            [(1, 1.86), (2, 1.3)]
                .into_iter()
                .filter_map(|(threads, least)| found.values(threads, least)),
        )
        .chain(shared)
        .chain(scaling)
        .collect()
}
