//! PXFS as programs use it, beside other file systems: the measurements of section 4.4 of the
//! dissertation.
//!
//! A client of PXFS is called in this process, and its service runs in threads of this process, over a
//! file in `/dev/shm` that is really flushed. So are BPFS and SoupFS, which have no clients. tmpfs, ext4
//! and a FUSE mount of PXFS are used by system calls. Targets that single calls measure take turns, round by
//! round. Another process measures a directory under `selvedge run` after that. A target that this machine cannot have has a row with the reason.

mod calls;
mod clients;
mod goals;
mod options;
mod protection;
mod run;
mod sharing;
mod under_run;
mod untar;

pub use options::{Options, Part, Target};

use crate::chart::Chart;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::matrix::{Cell, Matrix};
use crate::micro::Goal;
use crate::table::{self, Grid};
use crate::{stats, workloads};
use run::Run;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One kind of work on one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The engine, the directory or the mount.
    pub target: String,
    /// The call or the workload.
    pub op: String,
    /// Number of clients.
    pub clients: usize,
    /// Number of threads of each client.
    pub threads: usize,
    /// Nanoseconds of a call, or of a pass through a workload: the median, or the mean of
    /// CPU time.
    pub ns_median: Option<f64>,
    /// The same: the 95th percentile.
    pub ns_p95: Option<f64>,
    /// The same: the 99th percentile.
    pub ns_p99: Option<f64>,
    /// Calls per second of all clients together, or operations of a workload. The time of a sync after
    /// the calls counts.
    pub ops_per_second: Option<f64>,
    /// The reason why there are no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.target
    }

    fn line(&self) -> &str {
        &self.op
    }
}

impl Row {
    fn of(
        target: &str,
        op: &str,
        [clients, threads]: [usize; 2],
        mut times: Vec<f64>,
        rate: f64,
    ) -> Self {
        Self {
            target: target.into(),
            op: op.into(),
            clients,
            threads,
            ns_median: stats::median(&mut times),
            ns_p95: stats::quantile(&mut times, 0.95),
            ns_p99: stats::quantile(&mut times, 0.99),
            ops_per_second: Some(rate.round()),
            unavailable: None,
        }
    }

    /// The mean time of all CPUs for an operation.
    fn cpu(target: &str, op: &str, clients: usize, ns: f64) -> Self {
        Self {
            target: target.into(),
            op: op.into(),
            clients,
            threads: 1,
            ns_median: Some(ns),
            ns_p95: None,
            ns_p99: None,
            ops_per_second: Some((1e9 / ns.max(1e-9)).round()),
            unavailable: None,
        }
    }

    fn missing(target: &str, why: &Error) -> Self {
        Self {
            target: target.into(),
            op: "single calls".into(),
            clients: 1,
            threads: 1,
            ns_median: None,
            ns_p95: None,
            ns_p99: None,
            ops_per_second: None,
            unavailable: Some(why.to_string()),
        }
    }
}

impl From<workloads::Row> for Row {
    fn from(row: workloads::Row) -> Self {
        Self {
            target: row.target,
            op: row.op.into(),
            clients: 1,
            threads: row.threads,
            ns_median: row.ns_median,
            ns_p95: row.ns_p95,
            ns_p99: row.ns_p99,
            ops_per_second: row.ops_per_second,
            unavailable: row.unavailable,
        }
    }
}

/// The figures of one run. As JSON, the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// All figures.
    pub rows: Vec<Row>,
    /// The machine and the date of the run.
    #[serde(skip)]
    pub machine: Machine,
    /// The conditions, one sentence each.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// The goals for which the run has figures.
    #[serde(skip)]
    pub goals: Vec<Goal>,
}

/// Runs the benchmark, and reports the next step to `progress`.
///
/// # Errors
/// If a target cannot be made or one of its operations fails.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let machine = Machine::here();
    let mut run = Run {
        options,
        interrupt: Interrupt::catch()?,
        progress,
        rows: Vec::new(),
    };
    for part in &options.parts {
        run.part(*part)?;
    }
    Ok(Report {
        goals: goals::judge(&run.rows, options),
        rows: run.rows,
        machine,
        notes: notes(options),
    })
}

fn notes(options: &Options) -> Vec<String> {
    vec![
        format!(
            "Single calls: {} rounds, a file of {} MiB, files of 4 KiB. The calls of a target are those \
             of one thread on one CPU; targets take turns.",
            options.rounds,
            options.file_bytes >> 20
        ),
        "Times are those of calls, less the cost of the clock. The rate also counts the time of a sync \
         after the calls of a round, which on PXFS ships them."
            .into(),
        "PXFS: a client that is called in this process, by the paths of its library; its service runs in threads of this process. \
         PXFS, BPFS and SoupFS are over flushed memory in /dev/shm; the others are used by system calls."
            .into(),
        "\"150 ns\": with delays for each flushed line and each fence, where the memory permits that. A \
         client of PXFS stores contents without these delays; its service has them."
            .into(),
        format!(
            "Clients are threads of this process, each with its own connection. Each runs for {:.1} s; \
             workloads have {} files.",
            options.time.as_secs_f64(),
            options.files
        ),
        format!(
            "untar and rm -rf: tar(1) and rm(1) on a tree of {} files, from the start of the command to its end.",
            options.tree_files
        ),
    ]
}

impl Report {
    /// Single calls, without delays.
    pub(crate) fn chart(&self) -> Chart {
        let names = calls::Op::ALL.map(calls::Op::name);
        let rows = self.rows.iter();
        let single = rows.filter(|row| names.contains(&&*row.op));
        let title = "Nanoseconds of a call, median (less is better)".into();
        Matrix::of(single).chart(title, |row| row.ns_median.unwrap_or_default())
    }

    /// A line for each kind of work, target and number of clients.
    pub(crate) fn grid(&self) -> Grid {
        let cells = |row: &Row| {
            vec![
                row.target.clone(),
                row.op.clone(),
                row.clients.to_string(),
                row.threads.to_string(),
                table::figure(row.ns_median),
                table::figure(row.ns_p95),
                table::figure(row.ns_p99),
                table::count(row.ops_per_second.map(|rate| rate as u64)),
            ]
        };
        let heads = [
            "target",
            "operation",
            "clients",
            "threads",
            "median ns",
            "p95 ns",
            "p99 ns",
            "ops/s",
        ];
        Grid {
            heads: heads.map(str::to_owned).to_vec(),
            rows: self.rows.iter().map(cells).collect(),
        }
    }

    /// The targets that could not be measured, each with its reason.
    pub(crate) fn missing(&self) -> Vec<String> {
        let why = |row: &Row| Some(format!("{}: {}", row.target, row.unavailable.as_ref()?));
        let mut missing: Vec<_> = self.rows.iter().filter_map(why).collect();
        missing.sort();
        missing.dedup();
        missing
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        let mut notes = self.notes.iter();
        notes.try_for_each(|note| writeln!(f, "{note}"))?;
        writeln!(f, "\n{}\n", self.grid().text())?;
        let mut missing = self.missing().into_iter();
        missing.try_for_each(|line| writeln!(f, "not measured: {line}"))?;
        self.goals.iter().try_for_each(|goal| writeln!(f, "{goal}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [Target; 4] = [Target::Pxfs, Target::Bpfs, Target::Soupfs, Target::Tmpfs];

    #[test]
    fn every_target_has_every_figure() {
        let options = Options {
            targets: [&FILES[..], &[Target::Kvfs]].concat(),
            ..Options::default().quick()
        };
        let report = run(&options, &mut |_| ()).unwrap();
        for target in FILES.map(Target::name) {
            for op in calls::Op::ALL {
                let mut rows = report.rows.iter();
                let row = rows.find(|row| row.target == target && row.op == op.name());
                let row = row.unwrap_or_else(|| panic!("{target} {}", op.name()));
                assert!(
                    row.ns_median <= row.ns_p99 && row.ops_per_second > Some(0.0),
                    "{row:?}"
                );
            }
        }
        let count = |op: &str| {
            report
                .rows
                .iter()
                .filter(|row| row.op.ends_with(op))
                .count()
        };
        assert_eq!(count(", 150 ns"), 3 * calls::Op::ALL.len());
        // For memory and each target readers, writers and two kinds of a mix, alone and with others.
        // That with one block of a file, and with several.
        assert_eq!(count(", one file"), 2 * 3 * (3 + 4));
        assert_eq!(count(", own directories"), 2 * 3);
        assert_eq!(count(", own directories, CPU"), 2 * 3);
        // An image and a protected store.
        assert_eq!(
            count(" 1,000 files") + count("sync, 4 KiB") + count("sync, 1 MiB"),
            2 * protection::COUNT
        );
        assert_eq!(report.missing(), [""; 0]);
        // Without those of the mount and of other processes.
        let of_values = |goal: &&Goal| goal.what.starts_with("kvfs");
        let goals = report.goals.iter();
        assert_eq!(goals.filter(|goal| !of_values(goal)).count(), goals::COUNT);
        assert!(report.goals.iter().any(|goal| of_values(&goal)));
        let json = serde_json::to_value(&report).unwrap();
        assert!(json[0]["ns_p95"].is_number() && json[0]["clients"] == 1);
    }
}
