//! Workloads on mounts: engines beside the in-memory model on the same front end, which
//! is the floor of what FUSE costs, and beside libfuse's own passthrough over tmpfs.
//!
//! Each server is a process of its own, started anew for each repeat, in an order that
//! turns round. Best is compared with best. Once client and server run on one CPU (no
//! wake-up of another CPU in a call), which is where the goals are judged; and once on any.

pub(crate) mod tree;

use crate::detached::{is_installed, run as run_program};
use crate::error::{Context, Result};
use crate::machine::{Machine, Pinned};
use crate::matrix::{Cell, Matrix};
use crate::server::{self, Served, Server};
use crate::table::{self, Grid};
use crate::tree::Directory;
use crate::{Engine, micro, postmark, stats};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tree::Archive;

/// Slices of the single operations in each turn.
const MICRO_ROUNDS: u32 = 2;

/// Size of the images: room for the source tree, several times over.
const IMAGE_BYTES: u64 = 1 << 30;

/// The largest ratio to the model's time that reaches the goal.
const AGAINST_MODEL: f64 = 1.1;

/// The largest ratio to passthrough's time that reaches the goal.
const AGAINST_PASSTHROUGH: f64 = 1.0;

/// libfuse's examples, the one by paths first.
const PASSTHROUGH: [&str; 2] = ["passthrough", "passthrough_ll"];

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `selvedge` program, which makes and mounts the file systems.
    pub program: PathBuf,
    /// Engines to mount; the model is always there, since ratios are to it.
    pub types: Vec<Engine>,
    /// Also libfuse's two passthrough examples over tmpfs, if they can be compiled.
    pub with_passthrough: bool,
    /// Files in the tree that is unpacked.
    pub files: u32,
    /// Number of runs of each workload, each time on a server of its own.
    pub repeats: u32,
}

impl Default for Options {
    /// The usual engine and passthrough, 17,000 files, 5 times, by this program.
    fn default() -> Self {
        Self {
            program: std::env::current_exe().unwrap_or_else(|_| "selvedge".into()),
            types: vec![Engine::usual()],
            with_passthrough: true,
            files: 17_000,
            repeats: 5,
        }
    }
}

/// The CPUs of client and servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cpus {
    /// One CPU for all of them.
    One,
    /// Any CPU, by choice of the kernel.
    Any,
}

impl Cpus {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::One => "on one CPU",
            Self::Any => "on any CPU",
        }
    }
}

/// One workload on one mount.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine, or libfuse's example.
    pub target: String,
    /// The workload.
    pub workload: String,
    /// The CPUs of client and server.
    pub cpus: Cpus,
    /// Seconds of one run, or of one operation: the median of the repeats.
    pub seconds: f64,
    /// The least of the repeats.
    pub best_seconds: f64,
    /// Of these, the server's in user mode; `None` for single operations.
    pub server_user_seconds: Option<f64>,
    /// Of these, the server's in the kernel; `None` for single operations.
    pub server_system_seconds: Option<f64>,
    /// Ratio of the best to the model's best.
    pub to_model: Option<f64>,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.target
    }

    fn line(&self) -> &str {
        &self.workload
    }
}

/// The figures of one run. As JSON, the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// Every workload on every mount.
    pub rows: Vec<Row>,
    /// The machine and the date of the run.
    #[serde(skip)]
    pub machine: Machine,
    /// The conditions, one sentence each.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a file system cannot be mounted or a workload fails on it. Everything is unmounted
/// and removed in any case.
pub fn run(options: &Options) -> Result<Report> {
    let machine = Machine::here();
    let scratch = tempfile::Builder::new()
        .prefix("selvedge-mounted-")
        .tempdir_in("/dev/shm")
        .what(|| "making a directory in /dev/shm".into())?;
    let archive = tree::archive(scratch.path(), options.files)?;
    let (mut served, mut notes) = chosen(options);
    notes.push(format!(
        "untar: {} files, {} MB, by tar(1); postmark: its defaults.",
        archive.files,
        archive.bytes / 1_000_000
    ));
    notes.push(
        "Images are preallocated files in /dev/shm, where no flush instructions are needed \
         (durability: process); single operations are by system calls, reads mostly from the \
         kernel's cache."
            .into(),
    );
    let mut samples = Samples::default();
    for cpus in [Cpus::One, Cpus::Any] {
        let _pinned = (cpus == Cpus::One).then(Pinned::to_one_cpu);
        for _ in 0..options.repeats {
            for served in &served {
                let program = &options.program;
                let server = Server::start(*served, program, scratch.path(), IMAGE_BYTES)?;
                samples.take(&served.name(), cpus, &server, &archive)?;
            }
            served.reverse();
        }
    }
    Ok(Report {
        rows: samples.rows(),
        machine,
        notes,
    })
}

/// The servers to mount, and the missing ones.
fn chosen(options: &Options) -> (Vec<Served>, Vec<String>) {
    let mut notes = Vec::new();
    let mut served = vec![Served::Engine(Engine::baseline())];
    served.extend(options.types.iter().map(|engine| Served::Engine(*engine)));
    served.dedup();
    if options.with_passthrough && server::can_compile_examples() {
        served.extend(PASSTHROUGH.map(Served::Passthrough));
    } else if options.with_passthrough {
        notes.push("No passthrough: install libfuse3-dev, pkg-config and a C compiler.".into());
    }
    if !is_installed("postmark") {
        notes.push("No Debian postmark: install the package postmark.".into());
    }
    (served, notes)
}

/// One run of one workload.
struct Sample {
    seconds: f64,
    /// The server's CPU time: user, system.
    server: Option<(f64, f64)>,
}

/// All runs, in the order of their first turn.
#[derive(Default)]
struct Samples {
    order: Vec<(String, String, Cpus)>,
    runs: BTreeMap<(String, String, bool), Vec<Sample>>,
}

impl Samples {
    /// Runs every workload once on one mount.
    fn take(&mut self, name: &str, cpus: Cpus, server: &Server, archive: &Archive) -> Result<()> {
        let dir = &server.dir;
        let tree = dir.join("tree");
        fs::create_dir(&tree).what(|| format!("mkdir on {name}"))?;
        let mut timed = |workload: &str, work: &mut dyn FnMut() -> Result<()>| {
            let before = server.cpu_seconds();
            let start = Instant::now();
            work()?;
            let seconds = start.elapsed().as_secs_f64();
            let after = server.cpu_seconds();
            let server = Some((after.0 - before.0, after.1 - before.1));
            self.add(name, workload, cpus, Sample { seconds, server });
            Ok(())
        };
        timed("untar", &mut || {
            run_program(
                Command::new("tar")
                    .arg("-xf")
                    .arg(&archive.path)
                    .arg("-C")
                    .arg(&tree),
            )
        })?;
        timed("rm -rf", &mut || {
            run_program(Command::new("rm").arg("-rf").arg(&tree))
        })?;
        let mail = dir.join("mail");
        fs::create_dir(&mail).what(|| format!("mkdir on {name}"))?;
        timed("postmark (ours)", &mut || {
            let mail = Directory::open(&mail)?;
            let done = postmark::run(&mail, &postmark::Config::default());
            done.map(drop).what(|| format!("postmark on {name}"))
        })?;
        if is_installed("postmark") {
            timed("postmark (Debian)", &mut || {
                debian_postmark(&mail, &archive.path)
            })?;
        }
        fs::remove_dir(&mail).what(|| format!("rmdir on {name}"))?;
        for (op, ns) in micro::medians(dir, MICRO_ROUNDS)? {
            let seconds = ns * 1e-9;
            let server = None;
            self.add(name, op, cpus, Sample { seconds, server });
        }
        Ok(())
    }

    fn add(&mut self, target: &str, workload: &str, cpus: Cpus, sample: Sample) {
        let key = (target.to_owned(), workload.to_owned(), cpus == Cpus::One);
        let runs = self.runs.entry(key).or_default();
        if runs.is_empty() {
            self.order.push((target.into(), workload.into(), cpus));
        }
        runs.push(sample);
    }

    fn rows(&self) -> Vec<Row> {
        let row = |(target, workload, cpus): &(String, String, Cpus)| Row {
            target: target.clone(),
            workload: workload.clone(),
            cpus: *cpus,
            seconds: self
                .median(target, workload, *cpus, |s| Some(s.seconds))
                .unwrap_or_default(),
            best_seconds: self
                .runs_of(target, workload, *cpus)
                .map(|s| s.seconds)
                .min_by(f64::total_cmp)
                .unwrap_or_default(),
            server_user_seconds: self.median(target, workload, *cpus, |s| Some(s.server?.0)),
            server_system_seconds: self.median(target, workload, *cpus, |s| Some(s.server?.1)),
            to_model: None,
        };
        with_ratios(self.order.iter().map(row).collect())
    }

    fn runs_of(&self, target: &str, workload: &str, cpus: Cpus) -> impl Iterator<Item = &Sample> {
        let key = (target.to_owned(), workload.to_owned(), cpus == Cpus::One);
        self.runs.get(&key).into_iter().flatten()
    }

    fn median(
        &self,
        target: &str,
        workload: &str,
        cpus: Cpus,
        pick: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<f64> {
        let runs = self.runs_of(target, workload, cpus);
        let mut picked: Vec<_> = runs.filter_map(pick).collect();
        stats::median(&mut picked)
    }
}

fn find<'a>(rows: &'a [Row], target: &str, like: &Row) -> Option<&'a Row> {
    rows.iter()
        .find(|r| r.target == target && r.workload == like.workload && r.cpus == like.cpus)
}

fn with_ratios(rows: Vec<Row>) -> Vec<Row> {
    let ratio = |row: &Row| {
        let model = find(&rows, Engine::baseline().name(), row)?.best_seconds;
        (model > 0.0).then(|| row.best_seconds / model)
    };
    let ratios: Vec<_> = rows.iter().map(ratio).collect();
    let pairs = rows.into_iter().zip(ratios);
    pairs
        .map(|(row, to_model)| Row { to_model, ..row })
        .collect()
}

/// Runs the original with its defaults in `dir`.
fn debian_postmark(dir: &Path, beside: &Path) -> Result<()> {
    let script = beside.with_extension("postmark");
    fs::write(&script, "run\nquit\n").what(|| "writing PostMark's commands".into())?;
    // Not by its command `set location`, which overruns its buffer with a long path.
    run_program(Command::new("postmark").arg(&script).current_dir(dir))
}

impl Report {
    /// One line for each goal, judged on one CPU: how many workloads meet it, and the worst.
    pub fn goals(&self) -> Vec<String> {
        let model = (Engine::baseline().name(), AGAINST_MODEL);
        let passthrough = PASSTHROUGH.map(|example| (example, AGAINST_PASSTHROUGH));
        let judged = std::iter::once(model).chain(passthrough);
        judged
            .filter_map(|(other, limit)| self.goal(other, limit))
            .collect()
    }

    fn goal(&self, other: &str, limit: f64) -> Option<String> {
        let engine = Engine::usual().name();
        let ours = self
            .rows
            .iter()
            .filter(|r| r.target == engine && r.cpus == Cpus::One);
        let ratio = |row: &Row| {
            let ratio = row.best_seconds / find(&self.rows, other, row)?.best_seconds;
            Some((ratio, row.workload.clone()))
        };
        let ratios: Vec<_> = ours.filter_map(ratio).collect();
        let met = ratios.iter().filter(|(ratio, _)| *ratio <= limit).count();
        let (worst, workload) = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let verdict = if met == ratios.len() { "met" } else { "missed" };
        Some(format!(
            "{verdict:6}  {engine} / {other}, {}: at most {limit} in {met} of {} workloads; \
             worst {worst:.2} ({workload})",
            Cpus::One.describe(),
            ratios.len()
        ))
    }

    /// The rows of one placement of CPUs by workload and target, the model first.
    pub(crate) fn matrix(&self, cpus: Cpus) -> Matrix<'_, Row> {
        let mut matrix = Matrix::of(self.rows.iter().filter(|r| r.cpus == cpus));
        matrix
            .targets
            .sort_by_key(|t| *t != Engine::baseline().name());
        matrix
    }

    /// A row for each workload: the median and the best of each target, and the ratio of
    /// its best to the model's.
    pub(crate) fn grid(&self, cpus: Cpus) -> Grid {
        let is_model = |target: &str| target == Engine::baseline().name();
        self.matrix(cpus).grid(
            cpus.describe(),
            |target| match is_model(target) {
                true => vec![target.into(), "best".into()],
                false => vec![target.into(), "best".into(), "ratio".into()],
            },
            |target, row| {
                let mut cells = vec![row.map_or("-".into(), time), row.map_or("-".into(), best)];
                if !is_model(target) {
                    let ratio = row.and_then(|r| r.to_model);
                    cells.push(ratio.map_or("-".into(), |x| format!("{x:.2}")));
                }
                cells
            },
        )
    }
}

/// Whole runs in seconds with the server's share, single operations in microseconds.
fn time(row: &Row) -> String {
    match (row.server_user_seconds, row.server_system_seconds) {
        (Some(user), Some(system)) => format!("{:.3} s ({user:.2}+{system:.2})", row.seconds),
        _ => format!("{} us", table::figure(Some(row.seconds * 1e6))),
    }
}

fn best(row: &Row) -> String {
    match row.server_user_seconds {
        Some(_) => format!("{:.3} s", row.best_seconds),
        None => format!("{} us", table::figure(Some(row.best_seconds * 1e6))),
    }
}

/// The division of the time, and how to read the tables.
pub(crate) const NOTES: &str = "\
Each repeat has a server of its own. First the median of the repeats, then the best;
ratios are of best to the model's best. In parentheses: CPU seconds of the server in
user mode (the file system and the FUSE library) and in the kernel (copying and waking);
the rest is the client and, on several CPUs, waiting for another one to wake up. There a
server tends to stay, while it runs, on its client's CPU or on another one, and a
call takes several times as long in the one case as in the other: a ratio may compare
unlike cases even at the best of a few repeats. So the goals are judged on one CPU only.";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "{note}"))?;
        writeln!(f, "{NOTES}")?;
        for cpus in [Cpus::One, Cpus::Any] {
            writeln!(f, "\n{}", self.grid(cpus).text())?;
        }
        writeln!(f)?;
        self.goals()
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut samples = Samples::default();
        for (target, seconds) in [("bpfs", 2.1), ("model", 2.0), ("passthrough", 3.0)] {
            for cpus in [Cpus::One, Cpus::Any] {
                for noise in [0.0, 0.5, -0.1] {
                    let seconds = seconds + noise;
                    let server = Some((0.5, 0.25));
                    samples.add(target, "untar", cpus, Sample { seconds, server });
                    let server = None;
                    let seconds = seconds * 1e-5;
                    samples.add(target, "create", cpus, Sample { seconds, server });
                }
            }
        }
        Report {
            rows: samples.rows(),
            machine: Machine::here(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn medians_and_ratios_of_the_best() {
        let report = report();
        assert_eq!(report.rows.len(), 12);
        let row = report.rows.iter().find(|r| r.target == "bpfs").unwrap();
        assert_eq!((row.seconds, row.best_seconds), (2.1, 2.0));
        assert!((row.to_model.unwrap() - 2.0 / 1.9).abs() < 1e-9);
        let goals = report.goals();
        assert_eq!(goals.len(), 2, "on one CPU, by target: {goals:?}");
        assert!(
            goals
                .iter()
                .all(|g| g.starts_with("met") && g.contains("2 of 2")),
            "{goals:?}"
        );
    }

    #[test]
    fn tables_start_with_the_model() {
        let grid = report().grid(Cpus::One);
        let heads = [
            "on one CPU",
            "model",
            "best",
            "bpfs",
            "best",
            "ratio",
            "passthrough",
            "best",
            "ratio",
        ];
        assert_eq!(grid.heads, heads);
        let create = [
            "create", "20.0 us", "19.0 us", "21.0 us", "20.0 us", "1.05", "30.0 us", "29.0 us",
            "1.53",
        ];
        assert_eq!(grid.rows[1], create);
        assert_eq!(grid.rows[0][1..3], ["2.000 s (0.50+0.25)", "1.900 s"]);
    }

    #[test]
    fn json_is_rows() {
        let json = serde_json::to_value(report()).unwrap();
        let row = &json.as_array().unwrap()[0];
        assert_eq!(
            (row["target"].as_str(), row["cpus"].as_str()),
            (Some("bpfs"), Some("one"))
        );
    }
}
