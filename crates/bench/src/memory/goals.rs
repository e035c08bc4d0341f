//! The goals of durable memory, judged by the figures of one run.

use super::peers::{BERKELEY_ON_DISK, BERKELEY_RELAXED, PMEMOBJ};
use super::{OURS, Report, Row, commits};
use crate::micro::{Bound, Goal};

/// Bytes of values in the judged rows.
const VALUE_BYTES: usize = 64;

/// How many times faster than other stores, for an insert and for a delete.
const AGAINST: [(&str, f64); 3] = [
    (PMEMOBJ, 2.0),
    (BERKELEY_RELAXED, 4.0),
    (BERKELEY_ON_DISK, 40.0),
];

/// Ratio of the updates per second of two threads to those of one.
const TWO_THREADS: f64 = 1.8;

/// The torn bit's advantage over two fences.
const TORN_BIT: f64 = 1.8;

/// Nanoseconds of a transaction of one word beyond those of a line.
const BEYOND_A_LINE_NS: f64 = 250.0;

/// Seconds until a program whose heap is full can allocate, for a GiB.
const RESTART_SECONDS: f64 = 1.0;

pub(super) fn judge(report: &Report) -> Vec<Goal> {
    let (ours, _) = OURS[0];
    let mut goals = Vec::new();
    for (peer, factor) in AGAINST {
        for op in ["insert", "delete"] {
            let row = |store| find(&report.rows, store, op, 1);
            goals.extend(row(ours).zip(row(peer)).map(|(ours, peer)| Goal {
                what: format!("{VALUE_BYTES}-byte {op}, to {}", peer.store),
                figure: peer.us_median / ours.us_median,
                bound: Bound::AtLeast(factor),
            }));
        }
    }
    let updates = |threads| find(&report.rows, ours, "update", threads);
    goals.extend(updates(1).zip(updates(2)).map(|(one, two)| Goal {
        what: format!("{VALUE_BYTES}-byte updates of two threads, to one"),
        figure: two.ops_per_second / one.ops_per_second,
        bound: Bound::AtLeast(TWO_THREADS),
    }));
    let sizes = report.logs.iter();
    let mut sizes = sizes.filter(|row| row.record_bytes == VALUE_BYTES);
    goals.extend(sizes.next().map(|row| Goal {
        what: format!("torn bits at {VALUE_BYTES} bytes, to two fences"),
        figure: row.ratio(),
        bound: Bound::AtLeast(TORN_BIT),
    }));
    let commit = |what| report.commits.iter().find(|row| row.what == what);
    let beyond = commit(commits::ONE_WORD).zip(commit(commits::LINE));
    goals.extend(beyond.map(|(word, line)| Goal {
        what: "transaction of one word, ns beyond a line streamed and fenced".into(),
        figure: word.ns_median - line.ns_median,
        bound: Bound::AtMost(BEYOND_A_LINE_NS),
    }));
    goals.extend(report.restart.iter().map(|restart| Goal {
        what: "restart with a full heap, s per GiB".into(),
        figure: restart.restart_seconds_per_gib(),
        bound: Bound::AtMost(RESTART_SECONDS),
    }));
    goals
}

fn find<'r>(rows: &'r [Row], store: &str, op: &str, threads: usize) -> Option<&'r Row> {
    rows.iter().find(|row| {
        row.store == store
            && row.op == op
            && row.value_bytes == VALUE_BYTES
            && row.threads == threads
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn row(store: &str, op: &'static str, threads: usize, us: f64) -> Row {
        Row {
            store: store.into(),
            op,
            value_bytes: VALUE_BYTES,
            threads,
            us_median: us,
            ops_per_second: threads as f64 * 1e6 / us,
            column: String::new(),
        }
    }

    #[test]
    fn goals_are_judged_if_both_figures_exist() {
        let (ours, _) = OURS[0];
        let mut report = Report::new(Machine::here());
        assert_eq!(judge(&report), []);
        report.rows = vec![
            row(ours, "insert", 1, 1.0),
            row(ours, "update", 1, 1.0),
            row(ours, "update", 2, 1.25),
            row(PMEMOBJ, "insert", 1, 2.5),
            row(BERKELEY_RELAXED, "insert", 1, 3.0),
        ];
        let met: Vec<_> = judge(&report).iter().map(Goal::is_met).collect();
        assert_eq!(met, [true, false, false]);
    }
}
