//! The goals of PXFS, judged by the figures of one run.

use super::calls::Op;
use super::run::MEMORY;
use super::sharing::{Case, Role};
use super::{Options, Row, Target, clients, untar};
use crate::micro::{Bound, Goal};

/// Calls that are compared with those on the mount.
const BESIDE_FUSE: [Op; 5] = [Op::ReadSeq, Op::ReadRand, Op::Open, Op::Stat, Op::ReadSmall];
/// Number of goals of a run without the mount and `selvedge run`.
#[cfg(test)]
pub(super) const COUNT: usize = Op::PUBLISHED.len() + 4 + 1;

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

    /// The rate of clients.
    fn rate(&self, target: &str, op: &str, clients: usize) -> Option<f64> {
        self.row(target, op, clients)?.ops_per_second
    }

    /// Work of clients in one file, beside the same in files of their own. A copy from and to memory alone may
    /// be slower, too.
    fn sharing(&self, role: Role, cases: [Case; 2], clients: usize) -> Option<Goal> {
        let [own, shared] = cases.map(|case| role.op(case));
        let to_own = |target| {
            let [own, shared] = [&own, &shared].map(|op| self.rate(target, op, clients));
            Some(shared? / own?)
        };
        let alone = to_own(MEMORY)?;
        Some(Goal {
            what: format!("{OURS} {shared} (memory alone: {alone:.2}x), to own files"),
            figure: to_own(OURS)?,
            bound: Bound::AtLeast(0.8),
        })
    }

    /// The work of two clients, in directories of their own.
    fn scaling(&self) -> Option<Goal> {
        let group = clients::GROUPS[0].name;
        let op = clients::op(group);
        let [one, two] = [1, 2].map(|clients| self.rate(OURS, &op, clients));
        let [cpu, more] = [1, 2].map(|n| self.row(OURS, &clients::cpu(group), n)?.ns_median);
        let more = more? / cpu?;
        Some(Goal {
            what: format!("{OURS} {op}, two clients ({more:.2}x the CPU time), to one"),
            figure: two? / one?,
            bound: Bound::AtLeast(1.7),
        })
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
    let shared = Case::one_writer().into_iter().flat_map(|cases| {
        let clients = options.clients.max(2);
        [Role::Reader, Role::Writer].map(|role| found.sharing(role, cases, clients))
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
        .chain(shared.flatten())
        .chain(found.scaling())
        .collect()
}
