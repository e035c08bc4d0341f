//! SoupFS beside BPFS and tmpfs: the microbenchmarks of the SoupFS paper (section 5.2), and what a
//! large directory, a second thread, the persister and a mount after a crash cost.
//!
//! *filetest* creates files in one directory and removes them again; *dirtest* does that with
//! directories (Table 3). Engines are called in this process, on memory in `/dev/shm` that is really
//! flushed; tmpfs by system calls. All targets take turns, round by round. A call is timed by
//! itself, less the cost of the clock.

mod calls;
mod goals;
mod large;
mod mount;

use crate::chart::Chart;
use crate::error::Result;
use crate::machine::{Machine, Pinned};
use crate::matrix::{Cell, Matrix};
use crate::micro::Goal;
use crate::micro::surface::{self, Directory};
use crate::singles::Times;
use crate::table::{self, Grid};
use crate::{Engine, images, scaling, stats};
use calls::Calls;
use engine::{Scratch, ScratchOptions};
use medium::{Latency, LatencyModel};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use vfs::FileSystem;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Engines on persistent memory.
    pub types: Vec<Engine>,
    /// A directory on tmpfs.
    pub dir: PathBuf,
    /// Rounds of both tests.
    pub rounds: u32,
    /// Names in one round.
    pub names: usize,
    /// Nanoseconds after each flushed line.
    pub flush_ns: Vec<u64>,
    /// Names in the small and in the large directory.
    pub directories: [u64; 2],
    /// Files of the image that is mounted after a crash.
    pub files: u64,
    /// Bytes of that image, most of which are holes.
    pub image_bytes: u64,
}

impl Default for Options {
    /// SoupFS and BPFS beside tmpfs; 20 rounds of 10,000 names. The delays are those of
    /// Figure 13.
    fn default() -> Self {
        Self {
            types: goals::TYPES.iter().filter_map(|t| t.parse().ok()).collect(),
            dir: "/dev/shm".into(),
            rounds: 20,
            names: 10_000,
            flush_ns: vec![0, 100, 200, 400, 800],
            directories: [1_000, 1_000_000],
            files: 300_000,
            image_bytes: 20 << 30,
        }
    }
}

/// One kind of call on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine's name, or the directory.
    pub target: String,
    /// The call, and where it was made.
    pub op: String,
    /// Number of threads.
    pub threads: usize,
    /// Extra nanoseconds after each flushed line.
    pub flush_ns: u64,
    /// Nanoseconds of a call: the median, or a mean of all.
    pub ns_median: f64,
    /// Nanoseconds: the 99th percentile. `None` for a mean.
    pub ns_p99: Option<f64>,
    /// Calls per second.
    pub ops_per_second: f64,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.target
    }

    fn line(&self) -> &str {
        &self.op
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
    /// The goals for which the run has figures.
    #[serde(skip)]
    pub goals: Vec<Goal>,
}

impl Row {
    /// A row of calls that were timed one by one.
    fn of(target: &str, op: &str, flush_ns: u64, mut times: Times) -> Option<Self> {
        let count = times.len() as f64;
        let seconds = times.iter().sum::<f64>() / 1e9;
        Some(Self {
            target: target.into(),
            op: op.into(),
            threads: 1,
            flush_ns,
            ns_median: stats::median(&mut times)?,
            ns_p99: stats::quantile(&mut times, 0.99),
            ops_per_second: (count / seconds.max(1e-9)).round(),
        })
    }

    /// A row with one figure.
    fn mean(target: &str, op: &str, ns: f64) -> Self {
        Self {
            target: target.into(),
            op: op.into(),
            threads: 1,
            flush_ns: 0,
            ns_median: ns,
            ns_p99: None,
            ops_per_second: (1e9 / ns.max(1e-9)).round(),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// If a target cannot be made or one of its operations fails.
pub fn run(options: &Options) -> Result<Report> {
    let machine = Machine::here();
    let mut rows = tests(options)?;
    rows.extend(slow(options)?);
    rows.extend(threads(options)?);
    rows.extend(large::measure_reads(options.directories)?);
    for engine in &options.types {
        rows.extend(large::measure(*engine, options.directories)?);
        rows.extend(mount::measure(*engine, options)?);
    }
    Ok(Report {
        goals: goals::judge(&rows, options),
        rows,
        machine,
    })
}

/// Bytes of each slow memory. All of them are there at once.
const SLOW_BYTES: u64 = images::IMAGE_BYTES / 4;

/// A target: its name, nanoseconds after each flushed line, and its calls.
type Target = (String, u64, Calls);

/// Both tests on all targets, and the time of all CPUs for them.
fn tests(options: &Options) -> Result<Vec<Row>> {
    let mut targets: Vec<Target> = Vec::new();
    for engine in &options.types {
        targets.push((engine.to_string(), 0, calls_on(options, engine.fresh()?)?));
    }
    let dir = Directory::below(&options.dir)?;
    let calls = Calls::new(Box::new(dir), options.names);
    targets.push((options.dir.display().to_string(), 0, calls));
    in_turn(targets, options.rounds)
}

fn calls_on(options: &Options, fs: Arc<dyn FileSystem>) -> Result<Calls> {
    let surface = surface::Engine::new(fs.clone())?;
    Ok(Calls::new(Box::new(surface), options.names).with_fs(fs))
}

/// Runs both tests on the targets in turn, so that other work on the machine falls on all of them. The
/// first round is not counted.
fn in_turn(mut targets: Vec<Target>, rounds: u32) -> Result<Vec<Row>> {
    // After the targets, so that the threads of engines have all CPUs.
    let _pinned = Pinned::to_one_cpu();
    for round in 0..=rounds {
        let count = targets.len();
        for turn in 0..count {
            targets[(turn + round as usize) % count].2.round()?;
        }
        if round == 0 {
            targets.iter_mut().for_each(|(_, _, calls)| calls.forget());
        }
    }
    let rows = targets
        .into_iter()
        .flat_map(|(name, flush_ns, calls)| calls.rows(&name, flush_ns));
    Ok(rows.collect())
}

/// Both tests on slower memory.
fn slow(options: &Options) -> Result<Vec<Row>> {
    let mut targets: Vec<Target> = Vec::new();
    for flush_ns in &options.flush_ns {
        let model = LatencyModel {
            flush_line_ns: *flush_ns,
            stream_line_ns: 0,
            stream_bytes_per_s: 0,
            fence_ns: 0,
        };
        for engine in &options.types {
            let pm = Latency::new(images::flushing_memory(SLOW_BYTES)?, model);
            let fs = engine.fresh_on(Scratch::Any(Arc::new(pm)), &ScratchOptions::default())?;
            targets.push((engine.to_string(), *flush_ns, calls_on(options, fs)?));
        }
    }
    let rows = in_turn(targets, (options.rounds / 4).max(1))?;
    let timed = rows.into_iter().filter(|row| row.ns_p99.is_some());
    Ok(timed.map(delayed).collect())
}

/// A row of memory with the layer that delays, also by 0 ns.
fn delayed(row: Row) -> Row {
    let op = goals::delayed(&row.op);
    Row { op, ..row }
}

/// Two threads in two directories.
fn threads(options: &Options) -> Result<Vec<Row>> {
    let scaling = scaling::Options {
        types: options.types.clone(),
        dirs: vec![options.dir.clone()],
        threads: Some(2),
        rounds: options.rounds,
    };
    let report = scaling::run(&scaling)?;
    let rows = report
        .rows
        .into_iter()
        .filter(|row| row.op == "create+unlink");
    Ok(rows
        .map(|row| Row {
            threads: row.threads,
            ops_per_second: row.ops_per_second,
            ..Row::mean(&row.target, row.op, 1e9 / row.ops_per_second)
        })
        .collect())
}

/// Notes for readers of the tables.
pub(crate) const NOTES: &str = "\
Nanoseconds of a call. p99: the 99th percentile. \"CPU\": the time of all CPUs, the persister's
included, for a create and an unlink; \"kept\": with a sync between them. \"delayed\": with extra time
after each flushed line. \"in N\": in a directory of N names. \"memory\": only the reads that a lookup
waits for at least, of a word in an index and then of a record of two lines.";

impl Report {
    /// The calls that were timed one by one, on memory without delays.
    pub(crate) fn chart(&self) -> Chart {
        let rows = self.rows.iter();
        let timed = rows.filter(|row| row.ns_p99.is_some() && row.flush_ns == 0);
        let title = "Nanoseconds of a call, median (less is better)".into();
        Matrix::of(timed).chart(title, |row| row.ns_median)
    }

    /// A line for each call; for each target the median and the 99th percentile.
    pub(crate) fn grid(&self) -> Grid {
        let cells = |row: &Row| {
            vec![
                row.target.clone(),
                row.op.clone(),
                row.threads.to_string(),
                row.flush_ns.to_string(),
                table::figure(Some(row.ns_median)),
                table::figure(row.ns_p99),
                table::count(Some(row.ops_per_second as u64)),
            ]
        };
        let heads = [
            "target",
            "call",
            "threads",
            "flush ns",
            "median ns",
            "p99 ns",
            "calls/s",
        ];
        Grid {
            heads: heads.map(str::to_owned).to_vec(),
            rows: self.rows.iter().map(cells).collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{NOTES}\n\n{}\n", self.machine, self.grid().text())?;
        self.goals.iter().try_for_each(|goal| writeln!(f, "{goal}"))
    }
}

#[cfg(test)]
mod tests {
    use super::calls::CALLS;
    use super::*;

    #[test]
    fn every_target_has_every_figure() {
        let options = Options {
            rounds: 1,
            names: 50,
            flush_ns: vec![0, 800],
            directories: [10, 100],
            files: 20,
            image_bytes: 64 << 20,
            ..Options::default()
        };
        let report = run(&options).unwrap();
        for target in ["soupfs", "bpfs", "/dev/shm"] {
            for op in CALLS {
                let row = report
                    .rows
                    .iter()
                    .find(|r| r.target == target && r.op == op);
                assert!(row.is_some_and(|row| row.ns_median > 0.0), "{target} {op}");
            }
        }
        assert!(report.rows.iter().all(|row| row.ns_median.is_finite()));
        let wanted = goals::COUNT;
        assert_eq!(report.goals.len(), wanted, "{:#?}", report.goals);
        let json = serde_json::to_value(&report).unwrap();
        assert!(json[0]["ns_median"].is_number() && json[0]["flush_ns"] == 0);
    }
}
