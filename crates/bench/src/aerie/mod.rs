//! PXFS as programs use it, beside other file systems: the measurements of section 4.4 of the
//! dissertation.
//!
//! A client of PXFS is called in this process, and its service runs in threads of this process, over a
//! file in `/dev/shm` that is really flushed. So are BPFS and SoupFS, which have no clients. tmpfs, ext4
//! and a FUSE mount of PXFS are used by system calls. Targets that single calls measure take turns, round by
//! round. A target that this machine cannot have has a row with the reason.

mod calls;
mod clients;
mod goals;
mod sharing;

use crate::chart::Chart;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::machine::{self, Machine, Pinned};
use crate::matrix::{Cell, Matrix};
use crate::micro::Goal;
use crate::stats;
use crate::table::{self, Grid};
use crate::target::{self, Made, Making};
use crate::tree::Tree;
use crate::workloads::{self, Workload};
use calls::Calls;
use medium::LatencyModel;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A file system of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Clients of PXFS that are called in this process.
    Pxfs,
    /// BPFS in this process.
    Bpfs,
    /// SoupFS in this process.
    Soupfs,
    /// A directory in `/dev/shm`.
    Tmpfs,
    /// Ext4 on a loop device over a file on tmpfs; needs root.
    Ext4,
    /// A FUSE mount of a client of PXFS.
    Fuse,
}

impl Target {
    /// All targets, in the order of the report.
    pub const ALL: [Self; 6] = [
        Self::Pxfs,
        Self::Bpfs,
        Self::Soupfs,
        Self::Tmpfs,
        Self::Ext4,
        Self::Fuse,
    ];

    /// Its name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pxfs => "pxfs",
            Self::Bpfs => "bpfs",
            Self::Soupfs => "soupfs",
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
            Self::Fuse => "fuse",
        }
    }

    /// The way to make it.
    fn to_make(self) -> Result<target::Target> {
        Ok(match self {
            Self::Pxfs => target::Target::Pxfs,
            Self::Bpfs | Self::Soupfs => {
                target::Target::Engine(self.name().parse().map_err(Error::Usage)?)
            }
            Self::Tmpfs => target::Target::Directory("/dev/shm".into()),
            Self::Ext4 => target::Target::Ext4,
            Self::Fuse => target::Target::Fuse,
        })
    }

    /// Whether its memory can have delays.
    fn has_delays(self) -> bool {
        matches!(self, Self::Pxfs | Self::Bpfs | Self::Soupfs)
    }
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        named(name, Self::ALL, Self::name)
    }
}

/// Finds the value with a name.
fn named<T: Copy, const N: usize>(
    name: &str,
    all: [T; N],
    name_of: fn(T) -> &'static str,
) -> std::result::Result<T, String> {
    let found = all.into_iter().find(|one| name_of(*one) == name);
    found.ok_or_else(|| format!("'{name}' is none of {}", all.map(name_of).join(", ")))
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Single calls.
    Calls,
    /// Clients that read and write one block.
    Sharing,
    /// Servers, by one client.
    Workloads,
    /// Several clients in their own directories.
    Clients,
    /// Batches of several sizes.
    Batches,
}

impl Part {
    /// All parts, in the order of the report.
    pub const ALL: [Self; 5] = [
        Self::Calls,
        Self::Sharing,
        Self::Workloads,
        Self::Clients,
        Self::Batches,
    ];

    /// The name of the part, as `--part` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Sharing => "sharing",
            Self::Workloads => "workloads",
            Self::Clients => "clients",
            Self::Batches => "batches",
        }
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        named(name, Self::ALL, Self::name)
    }
}

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The parts to measure.
    pub parts: Vec<Part>,
    /// The file systems to measure.
    pub targets: Vec<Target>,
    /// The `selvedge` program, which mounts.
    pub program: PathBuf,
    /// Bytes of the large file.
    pub file_bytes: u64,
    /// Rounds of single calls.
    pub rounds: u32,
    /// Files of each workload.
    pub files: usize,
    /// The time of one run of clients or of a workload.
    pub time: Duration,
    /// The largest number of clients.
    pub clients: usize,
}

impl Default for Options {
    /// All of the benchmark: 30 rounds, runs of a second.
    fn default() -> Self {
        Self {
            parts: Part::ALL.to_vec(),
            targets: Target::ALL.to_vec(),
            program: std::env::current_exe().unwrap_or_else(|_| "selvedge".into()),
            file_bytes: usual_file_bytes(),
            rounds: 30,
            files: 1000,
            time: Duration::from_secs(1),
            clients: 4,
        }
    }
}

impl Options {
    /// The same in a few seconds: a small file, few files, short runs.
    pub fn quick(self) -> Self {
        Self {
            file_bytes: 4 << 20,
            rounds: 1,
            files: 50,
            time: Duration::from_millis(20),
            clients: 2,
            ..self
        }
    }
}

/// 1 GiB, as in the dissertation; less where all targets together would not have that much memory.
fn usual_file_bytes() -> u64 {
    const MOST: u64 = 1 << 30;
    /// The targets, and both the image and the cache of ext4.
    const COPIES: u64 = 9;
    match machine::available_memory() >= COPIES * MOST {
        true => MOST,
        false => MOST / 8,
    }
}

/// One kind of work on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine, the directory or the mount.
    pub target: String,
    /// The call or the workload.
    pub op: String,
    /// Number of clients.
    pub clients: usize,
    /// Number of threads of each client.
    pub threads: usize,
    /// Nanoseconds of a call, or of a pass through a workload: the median.
    pub ns_median: Option<f64>,
    /// The same: the 95th percentile.
    pub ns_p95: Option<f64>,
    /// The same: the 99th percentile.
    pub ns_p99: Option<f64>,
    /// Calls per second of all clients together, or operations of a workload. The time of a sync after
    /// the calls counts.
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

    fn missing(target: Target, why: &Error) -> Self {
        Self {
            target: target.name().into(),
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

/// Memory beyond that of the large file, for the small ones and the logs of file systems.
const ROOM: u64 = 64 << 20;
/// Sizes of batches in bytes.
const BATCHES: [u64; 5] = [64 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20];

/// A run, so far.
struct Run<'a> {
    options: &'a Options,
    interrupt: Interrupt,
    progress: &'a mut dyn FnMut(&str),
    rows: Vec<Row>,
}

impl Run<'_> {
    fn part(&mut self, part: Part) -> Result<()> {
        match part {
            Part::Calls => {
                self.calls(None)?;
                self.calls(Some(LatencyModel::PHASE_CHANGE))
            }
            Part::Sharing => self.sharing(),
            Part::Workloads => self.workloads(),
            Part::Clients => self.clients(),
            Part::Batches => self.batches(),
        }
    }

    fn next(&mut self, what: &str) -> Result<()> {
        (self.progress)(what);
        self.interrupt.check()
    }

    /// Those of some targets that are to be measured.
    fn some(&self, some: &[Target]) -> Vec<Target> {
        let chosen = |target: &&Target| self.options.targets.contains(target);
        some.iter().filter(chosen).copied().collect()
    }

    fn make(
        &self,
        target: Target,
        image_bytes: u64,
        latency: Option<LatencyModel>,
    ) -> Result<Made> {
        target.to_make()?.make(Making {
            image_bytes,
            program: &self.options.program,
            latency,
        })
    }

    /// Single calls on all targets, or on those whose memory can be slower.
    fn calls(&mut self, latency: Option<LatencyModel>) -> Result<()> {
        let delayed = |op: &str| match latency {
            None => op.to_owned(),
            Some(model) => format!("{op}, {} ns", model.flush_line_ns),
        };
        let mut targets = self.some(&Target::ALL);
        targets.retain(|target| latency.is_none() || target.has_delays());
        let mut trees: Vec<(Target, Arc<dyn Tree>)> = Vec::new();
        for target in targets {
            self.next(&format!("single calls: preparing {}", target.name()))?;
            let bytes = self.options.file_bytes + ROOM;
            match self
                .make(target, bytes, latency)
                .and_then(|made| made.client())
            {
                Ok(tree) => trees.push((target, tree)),
                Err(why) if target.to_make()?.is_optional() => {
                    self.rows.push(Row::missing(target, &why));
                }
                Err(why) => return Err(why),
            }
        }
        // After the targets, so that the threads of services and engines have all CPUs.
        let _pinned = Pinned::to_one_cpu();
        let all = trees.iter();
        let all = all.map(|(_, tree)| Calls::new(&**tree, self.options.file_bytes));
        let mut all: Vec<_> = all.collect::<Result<_>>()?;
        for round in 0..=self.options.rounds {
            self.next(&delayed("single calls"))?;
            let count = all.len();
            for turn in 0..count {
                all[(turn + round as usize) % count].round()?;
            }
            if round == 0 {
                all.iter_mut().for_each(Calls::forget);
            }
        }
        for ((target, _), calls) in trees.iter().zip(all) {
            let rows = calls.rows(target.name());
            let rows = rows.into_iter().map(|row| Row {
                op: delayed(&row.op),
                ..row
            });
            self.rows.extend(rows);
        }
        Ok(())
    }

    /// Clients that share a block; on tmpfs, threads.
    fn sharing(&mut self) -> Result<()> {
        for target in self.some(&[Target::Pxfs, Target::Tmpfs]) {
            let made = self.make(target, ROOM, None)?;
            for clients in [1, self.options.clients.max(2)] {
                self.next(&format!(
                    "{clients} clients share a block of {}",
                    target.name()
                ))?;
                let time = self.options.time;
                let rows = sharing::measure(target.name(), &made, clients, time)?;
                self.rows.extend(rows);
            }
        }
        Ok(())
    }

    fn workloads(&mut self) -> Result<()> {
        let options = workloads::Options {
            program: self.options.program.clone(),
            workloads: vec![
                Workload::FileServer,
                Workload::WebServer,
                Workload::WebProxy,
            ],
            threads: Some(1),
            files: Some(self.options.files),
            time: self.options.time,
            rounds: self.options.rounds.min(3),
            ..workloads::Options::default()
        };
        let targets = self.some(&Target::ALL);
        let to_make: Vec<_> = targets
            .iter()
            .map(|one| one.to_make())
            .collect::<Result<_>>()?;
        let rows = workloads::measure(&to_make, &options, self.progress)?;
        for row in rows {
            let at = to_make.iter().position(|one| one.to_string() == row.target);
            let target = at.map_or(row.target.clone(), |at| targets[at].name().into());
            self.rows.push(Row {
                target,
                ..Row::from(row)
            });
        }
        Ok(())
    }

    fn clients(&mut self) -> Result<()> {
        let files = self.options.files;
        for target in self.some(&[Target::Pxfs, Target::Tmpfs]) {
            for group in &clients::GROUPS {
                for clients in crate::scaling::thread_counts(self.options.clients) {
                    self.next(&format!(
                        "{}: {clients} clients of {}",
                        group.name,
                        target.name()
                    ))?;
                    let each = Workload::FileServer.profile();
                    let each = each.map_or(0, |profile| profile.image_bytes(Some(files)));
                    let made = self.make(target, each * clients as u64, None)?;
                    let sizes = (files, self.options.time);
                    let row = clients::measure(target.name(), &made, group, clients, sizes)?;
                    self.rows.extend(row);
                }
            }
        }
        Ok(())
    }

    fn batches(&mut self) -> Result<()> {
        if self.some(&[Target::Pxfs]).is_empty() {
            return Ok(());
        }
        let files = self.options.files * 20;
        let room = ROOM + files as u64 * BATCHES.len() as u64 * 3 * 4096;
        let made = self.make(Target::Pxfs, room, None)?;
        for bytes in BATCHES {
            self.next(&format!("batches of {bytes} bytes"))?;
            let row = clients::batches(Target::Pxfs.name(), &made, bytes, files)?;
            self.rows.push(row);
        }
        Ok(())
    }
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
        "PXFS: a client that is called in this process; its service runs in threads of this process. \
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

    #[test]
    fn every_target_has_every_figure() {
        let options = Options {
            targets: vec![Target::Pxfs, Target::Bpfs, Target::Soupfs, Target::Tmpfs],
            ..Options::default().quick()
        };
        let report = run(&options, &mut |_| ()).unwrap();
        for target in options.targets.iter().map(|target| target.name()) {
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
        // For each target readers, writers and two kinds of a mix, alone and with others.
        assert_eq!(count(", one file"), 2 * (3 + 4));
        assert_eq!(count(", own directories"), 2 * 3);
        assert_eq!(report.missing(), [""; 0]);
        // Without the mount.
        assert_eq!(report.goals.len(), goals::COUNT - goals::BESIDE_FUSE.len());
        let json = serde_json::to_value(&report).unwrap();
        assert!(json[0]["ns_p95"].is_number() && json[0]["clients"] == 1);
    }
}
