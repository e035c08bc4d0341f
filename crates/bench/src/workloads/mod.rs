//! Macrobenchmarks, those of section 4.3 of the SoupFS paper: four workloads after Filebench's
//! (Table 4), with several threads, and PostMark.
//!
//! Engines are called in this process, on memory in `/dev/shm` that is really flushed; directories
//! and mounts by system calls. The image of a mount is in ordinary memory, so its server flushes
//! nothing. All targets take turns, round by round, each on a new file system. A target that this
//! machine cannot have has one row for each workload, which gives the reason.
//!
//! A run takes a fixed time. Persisters and caches write back meanwhile, at their own times and on
//! any CPU. A sync after each run is not timed, so that no run begins with changes of the last one.

pub(crate) mod filebench;
mod files;

use crate::chart::Chart;
use crate::error::{Context, Error, Result};
use crate::interrupt::Interrupt;
use crate::machine::{self, Machine};
use crate::matrix::{Cell, Matrix};
use crate::postmark;
use crate::scaling::thread_counts;
use crate::table::{self, Grid};
use crate::target::{Making, Target};
use crate::tree::Tree;
use crate::{Engine, stats};
use filebench::{Profile, Work};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Bytes of an image for PostMark. The number of its files is a random walk, by few thousands in a
/// million transactions.
const POSTMARK_BYTES: u64 = 256 << 20;

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Files are made, appended to, read and deleted.
    FileServer,
    /// The same with small files.
    FileServer1K,
    /// Objects are replaced and read.
    WebProxy,
    /// Mails are deleted, delivered, answered and read, with fsyncs.
    VarMail,
    /// The life of a mail server's small files, by one thread.
    PostMark,
    /// Pages are read and logged.
    WebServer,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 6] = [
        Self::FileServer,
        Self::FileServer1K,
        Self::WebProxy,
        Self::VarMail,
        Self::PostMark,
        Self::WebServer,
    ];

    /// Those that run unless the user chooses, in this order.
    const USUAL: [Self; 5] = [
        Self::FileServer,
        Self::FileServer1K,
        Self::WebProxy,
        Self::VarMail,
        Self::PostMark,
    ];

    /// Its name on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::FileServer => "fileserver",
            Self::FileServer1K => "fileserver-1k",
            Self::WebProxy => "webproxy",
            Self::VarMail => "varmail",
            Self::PostMark => "postmark",
            Self::WebServer => "webserver",
        }
    }

    /// The parameters of Filebench's.
    pub(crate) fn profile(self) -> Option<&'static Profile> {
        match self {
            Self::FileServer => Some(&filebench::FILE_SERVER),
            Self::FileServer1K => Some(&filebench::FILE_SERVER_1K),
            Self::WebProxy => Some(&filebench::WEB_PROXY),
            Self::VarMail => Some(&filebench::VAR_MAIL),
            Self::PostMark => None,
            Self::WebServer => Some(&filebench::WEB_SERVER),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        let known = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("there is no workload '{name}'; there are {}", known()))
    }
}

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Engines.
    pub types: Vec<Engine>,
    /// Directories, used through system calls.
    pub dirs: Vec<PathBuf>,
    /// Also ext4 on a loop device over a file on tmpfs; needs root.
    pub with_ext4: bool,
    /// Also the engines on FUSE mounts.
    pub with_mounts: bool,
    /// The `selvedge` program, which mounts.
    pub program: PathBuf,
    /// The workloads to run.
    pub workloads: Vec<Workload>,
    /// The largest number of threads; `None`: one for each CPU.
    pub threads: Option<usize>,
    /// Files of each workload of Filebench, instead of those of the paper.
    pub files: Option<usize>,
    /// The time of one run.
    pub time: Duration,
    /// Runs of each number of threads; the median rate counts.
    pub rounds: u32,
    /// Transactions of PostMark, which runs once.
    pub transactions: u32,
}

impl Default for Options {
    /// SoupFS, BPFS and the model beside tmpfs and ext4; three runs of a second.
    fn default() -> Self {
        let types = ["soupfs", "bpfs", "model"];
        Self {
            types: types.iter().filter_map(|name| name.parse().ok()).collect(),
            dirs: vec!["/dev/shm".into()],
            with_ext4: true,
            with_mounts: false,
            program: std::env::current_exe().unwrap_or_else(|_| "selvedge".into()),
            workloads: Workload::USUAL.to_vec(),
            threads: None,
            files: None,
            time: Duration::from_secs(1),
            rounds: 3,
            transactions: 1_000_000,
        }
    }
}

impl Options {
    /// The same in a few seconds: few files, short runs.
    pub fn quick(self) -> Self {
        Self {
            files: Some(200),
            time: Duration::from_millis(20),
            rounds: 1,
            transactions: 1_000,
            ..self
        }
    }
}

/// One workload on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine, the directory or the mount.
    pub target: String,
    /// The workload.
    pub op: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// Extra nanoseconds after each flushed line: none.
    pub flush_ns: u64,
    /// Nanoseconds of a pass, in which a thread makes each operation of the workload once; of
    /// PostMark, those of a transaction. The median.
    pub ns_median: Option<f64>,
    /// The same: the 95th percentile.
    #[serde(skip)]
    pub ns_p95: Option<f64>,
    /// The same: the 99th percentile.
    pub ns_p99: Option<f64>,
    /// Operations per second of all threads together; of PostMark, transactions. A pass has several
    /// operations.
    pub ops_per_second: Option<f64>,
    /// The reason why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.target
    }

    fn line(&self) -> &str {
        self.op
    }
}

/// The figures of one run. As JSON, the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// All workloads, targets and numbers of threads.
    pub rows: Vec<Row>,
    /// The machine and the date of the run.
    #[serde(skip)]
    pub machine: Machine,
}

/// The figures of some threads in some time.
#[derive(Default)]
pub(crate) struct Slice {
    /// Nanoseconds of each pass, or transaction.
    pub(crate) times: Vec<f64>,
    /// Operations per second of all threads together.
    pub(crate) rate: f64,
}

/// Runs the benchmark, and reports the next workload to `progress`.
///
/// # Errors
/// If an operation of a target fails, or there is nothing to measure.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let machine = Machine::here();
    let rows = measure(&targets(options), options, progress)?;
    Ok(Report { rows, machine })
}

/// The targets of a run, in the order of its table.
fn targets(options: &Options) -> Vec<Target> {
    let types = options.types.iter().copied();
    let mounted = types.clone().filter(|_| options.with_mounts);
    types
        .map(Target::Engine)
        .chain(options.dirs.iter().cloned().map(Target::Directory))
        .chain(options.with_ext4.then_some(Target::Ext4))
        .chain(mounted.map(Target::Mounted))
        .collect()
}

/// Runs the workloads on these targets, instead of those of the options.
pub(crate) fn measure(
    targets: &[Target],
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    if targets.is_empty() {
        let why = "nothing to measure: name a type or a directory";
        return Err(Error::Usage(why.into()));
    }
    let cores = machine::cpus().len();
    let interrupt = Interrupt::catch()?;
    let mut rows = Vec::new();
    for workload in &options.workloads {
        let mut all: Vec<_> = targets.iter().map(Measured::new).collect();
        let rounds = workload.profile().map_or(1, |_| options.rounds);
        for _ in 0..rounds {
            for measured in &mut all {
                interrupt.check()?;
                let what = format!("{} on {}", workload.name(), measured.target);
                progress(&what);
                let done = measured.run(*workload, options, cores);
                done.what(|| what)?;
            }
            all.rotate_left(1);
        }
        all.rotate_right(rounds as usize % targets.len());
        rows.extend(all.into_iter().flat_map(|one| one.rows(workload.name())));
    }
    Ok(rows)
}

/// A target, and what its runs of one workload gave.
struct Measured<'a> {
    target: &'a Target,
    /// Runs, each with its number of threads.
    slices: Vec<(usize, Slice)>,
    unavailable: Option<String>,
}

impl<'a> Measured<'a> {
    fn new(target: &'a Target) -> Self {
        Self {
            target,
            slices: Vec::new(),
            unavailable: None,
        }
    }

    /// Runs the workload on a new file system, if the machine has the target.
    fn run(&mut self, workload: Workload, options: &Options, cores: usize) -> Result<()> {
        if self.unavailable.is_some() {
            return Ok(());
        }
        let profile = workload.profile();
        let making = Making {
            image_bytes: profile
                .map_or(POSTMARK_BYTES, |profile| profile.image_bytes(options.files)),
            program: &options.program,
            latency: None,
        };
        let made = self.target.make(making);
        match made.and_then(|made| made.client()) {
            Ok(tree) => match profile {
                Some(profile) => self.filebench(&*tree, profile, options, cores),
                None => self.postmark(&*tree, options.transactions),
            },
            Err(error) if self.target.is_optional() => {
                self.unavailable = Some(error.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn filebench(
        &mut self,
        tree: &dyn Tree,
        profile: &Profile,
        options: &Options,
        cores: usize,
    ) -> Result<()> {
        let set = &profile.file_set("", options.files);
        filebench::fill(tree, set)?;
        for threads in thread_counts(options.threads.unwrap_or(cores)) {
            let work = vec![Work { tree, set, profile }; threads];
            let slice = filebench::slice(&work, options.time)?;
            self.slices.push((threads, slice));
            tree.sync()?;
        }
        Ok(())
    }

    fn postmark(&mut self, tree: &dyn Tree, transactions: u32) -> Result<()> {
        let config = postmark::Config {
            transactions,
            ..postmark::Config::default()
        };
        let (_, times) = postmark::run(tree, &config)?;
        let seconds = times.iter().sum::<f64>() / 1e9;
        let rate = times.len() as f64 / seconds.max(1e-9);
        self.slices.push((1, Slice { times, rate }));
        Ok(())
    }

    /// A row for each number of threads, or one with the reason why there are none.
    fn rows(self, op: &'static str) -> Vec<Row> {
        let mut counts: Vec<_> = self.slices.iter().map(|(threads, _)| *threads).collect();
        counts.extend(self.unavailable.as_ref().map(|_| 1));
        counts.sort_unstable();
        counts.dedup();
        let row = |threads| {
            let slices = self.slices.iter().filter(|(count, _)| *count == threads);
            let (mut times, mut rates) = (Vec::new(), Vec::new());
            for (_, slice) in slices {
                times.extend_from_slice(&slice.times);
                rates.push(slice.rate);
            }
            Row {
                target: self.target.to_string(),
                op,
                threads,
                flush_ns: 0,
                ns_median: stats::median(&mut times),
                ns_p95: stats::quantile(&mut times, 0.95),
                ns_p99: stats::quantile(&mut times, 0.99),
                ops_per_second: stats::median(&mut rates).map(f64::round),
                unavailable: self.unavailable.clone(),
            }
        };
        counts.into_iter().map(row).collect()
    }
}

/// Notes for readers of the table.
pub(crate) const NOTES: &str = "\
Workloads after Filebench's, and PostMark. ops/s: operations of all threads together (PostMark:
transactions). A pass has 11 operations of fileserver, 19 of webproxy, 13 of varmail (PostMark: one
transaction). Engines in this process over flushed memory in /dev/shm; others by system calls. The
servers of mounts flush nothing.";

impl Report {
    /// The rates of one thread on the targets that could be measured.
    pub(crate) fn chart(&self) -> Chart {
        let rows = self.rows.iter();
        let measured = rows.filter(|row| row.threads == 1 && row.unavailable.is_none());
        let title = "Operations per second of one thread (more is better)".into();
        Matrix::of(measured).chart(title, |row| row.ops_per_second.unwrap_or_default())
    }

    /// A line for each workload, target and number of threads.
    pub(crate) fn grid(&self) -> Grid {
        let microseconds = |ns: Option<f64>| table::figure(ns.map(|ns| ns / 1e3));
        let cells = |row: &Row| {
            vec![
                row.op.to_owned(),
                row.target.clone(),
                row.threads.to_string(),
                table::count(row.ops_per_second.map(|rate| rate as u64)),
                microseconds(row.ns_median),
                microseconds(row.ns_p99),
            ]
        };
        let heads = [
            "workload",
            "target",
            "threads",
            "ops/s",
            "pass, median us",
            "p99 us",
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
        writeln!(f, "{}\n{NOTES}\n\n{}", self.machine, self.grid().text())?;
        let mut missing = self.missing().into_iter();
        missing.try_for_each(|line| writeln!(f, "not measured: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_every_workload_and_number_of_threads() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = Options {
            dirs: vec![dir.path().into()],
            with_ext4: false,
            threads: Some(2),
            rounds: 2,
            ..Options::default().quick()
        };
        let report = run(&options, &mut |_| ()).unwrap();
        // Four workloads with one and two threads, and PostMark, each on four targets.
        assert_eq!(report.rows.len(), (4 * 2 + 1) * 4);
        for row in &report.rows {
            assert!(row.ops_per_second.unwrap() > 0.0, "{row:?}");
            assert!(row.ns_median.unwrap() <= row.ns_p99.unwrap(), "{row:?}");
        }
        let place = |row: &Row| (row.op, row.target.clone(), row.threads);
        assert_eq!(
            place(&report.rows[3]),
            ("fileserver", "bpfs".into(), 2),
            "in the order of the options"
        );
        assert_eq!(report.missing(), [""; 0]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_mount_that_cannot_be_made_is_a_row_with_a_reason() {
        let options = Options {
            types: vec![Engine::baseline()],
            dirs: Vec::new(),
            with_ext4: false,
            with_mounts: true,
            program: "/bin/false".into(),
            workloads: vec![Workload::VarMail, Workload::PostMark],
            threads: Some(1),
            ..Options::default().quick()
        };
        let report = run(&options, &mut |_| ()).unwrap();
        assert_eq!(report.rows.len(), 4);
        for row in &report.rows {
            let why = row.unavailable.as_deref().unwrap_or_default();
            let is_mount = row.target == "model, mounted";
            assert_eq!(why.contains("exit status"), is_mount, "{row:?}");
            assert_eq!(row.ops_per_second.is_none(), is_mount, "{row:?}");
        }
        let text = report.to_string();
        assert!(text.contains("not measured: model, mounted: "), "{text}");
    }

    #[test]
    fn workloads_have_names() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
        let error = "dhcp".parse::<Workload>().unwrap_err();
        assert!(error.contains("varmail, postmark"), "{error}");
    }
}
