//! The same operations on engines in this process and, by system calls, on directories.
//!
//! All targets take turns in short slices, in an order that rotates, so that noise of the
//! machine falls on all of them alike. Half of each slice is timed in batches of
//! [`BATCH`] operations, which gives the median without the clock's own cost; the other
//! half one by one, less the clock's cost, which gives the tail. The medium's counters
//! come from a pass of their own, so that counting does not slow the timed one.

mod counted;
mod floor;
mod goals;
pub(crate) mod ops;
pub(crate) mod surface;
mod timer;

use crate::error::{Context, Error, Result};
use crate::machine::{Machine, Pinned};
use crate::matrix::{Cell, Matrix};
use crate::table::{self, Grid};
use crate::{Engine, detached, stats};
pub use goals::{Bound, Goal};
use ops::{Op, Slice};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use surface::{Directory, Surface};
use timer::Timer;

/// Operations timed together for the median.
pub const BATCH: usize = 16;

/// Operations of each kind in one slice; half of them timed in batches.
const SLICE: usize = 128;

/// Size of the ext4 file system.
const EXT4_BYTES: u64 = 512 << 20;

/// Slices that warm the targets up and are not counted.
const WARM_UP: u32 = 2;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Engines, called in this process.
    pub types: Vec<Engine>,
    /// Directories, used through system calls; each gets a directory that is removed at
    /// the end.
    pub dirs: Vec<PathBuf>,
    /// Also a directory on the tmpfs at `/dev/shm`.
    pub with_tmpfs: bool,
    /// Also an ext4 file system on a loop device over a file on tmpfs; needs root.
    pub with_ext4: bool,
    /// Slices per target: more of them give steadier figures.
    pub rounds: u32,
}

impl Default for Options {
    /// BPFS beside tmpfs, 100 rounds.
    fn default() -> Self {
        Self {
            types: vec![Engine::usual()],
            dirs: Vec::new(),
            with_tmpfs: true,
            with_ext4: false,
            rounds: 100,
        }
    }
}

/// One operation on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine's name or the directory.
    pub target: String,
    /// The operation.
    pub op: &'static str,
    /// Nanoseconds per operation: the median of batches.
    pub ns_median: f64,
    /// Nanoseconds: the 99th percentile of single operations.
    pub ns_p99: f64,
    /// Cache lines flushed per operation; `None` for a directory.
    pub flushes: Option<f64>,
    /// Fences per operation; `None` for a directory.
    pub fences: Option<f64>,
    /// Bytes stored per operation; `None` for a directory.
    pub bytes: Option<f64>,
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
    /// Every operation on every target.
    pub rows: Vec<Row>,
    /// The machine and the date of the run.
    #[serde(skip)]
    pub machine: Machine,
    /// The conditions, one sentence each.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// The goals for which the run has the targets.
    #[serde(skip)]
    pub goals: Vec<Goal>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a target cannot be made or one of its operations fails. All that was mounted or
/// written is removed in any case.
pub fn run(options: &Options) -> Result<Report> {
    let machine = Machine::here();
    let _pinned = Pinned::to_one_cpu();
    let mut targets = targets(options)?;
    if targets.is_empty() {
        return Err(Error::Usage(
            "nothing to measure: name a type or a directory".into(),
        ));
    }
    let mut slice = Slice::new(SLICE);
    for round in 0..options.rounds + WARM_UP {
        if round == WARM_UP {
            targets.iter_mut().for_each(|t| t.timer.forget());
        }
        for i in 0..targets.len() {
            let turn = (i + round as usize) % targets.len();
            let Target { surface, timer, .. } = &mut targets[turn];
            timer.singles_first = round % 2 == 1;
            slice.run(surface.as_mut(), timer)?;
        }
    }
    let mut report = report(targets, options, machine)?;
    report.notes.push(floor::measure()?);
    Ok(report)
}

/// Medians in nanoseconds of all operations, by system calls on a directory.
pub(crate) fn medians(dir: &Path, rounds: u32) -> Result<Vec<(&'static str, f64)>> {
    let mut surface = Directory::below(dir)?;
    let mut slice = Slice::new(SLICE);
    let mut timer = Timer::new();
    for round in 0..rounds + WARM_UP {
        if round == WARM_UP {
            timer.forget();
        }
        slice.run(&mut surface, &mut timer)?;
    }
    let samples = timer.samples.into_iter();
    let median =
        samples.filter_map(|(op, mut s)| Some((op.name(), stats::median(&mut s.batches)?)));
    Ok(median.collect())
}

/// A measured engine or directory.
struct Target {
    name: String,
    kind: Kind,
    surface: Box<dyn Surface>,
    timer: Timer,
}

/// The properties of a target that goals depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Engine(Engine),
    Tmpfs,
    /// The one that we made on a loop device over a file on tmpfs, where the device costs
    /// nothing; not whatever ext4 a directory lies on.
    Ext4OnTmpfs,
    OtherDirectory,
}

impl Target {
    fn new(name: String, kind: Kind, surface: impl Surface + 'static) -> Self {
        Self {
            name,
            kind,
            surface: Box::new(surface),
            timer: Timer::new(),
        }
    }
}

fn targets(options: &Options) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for engine in &options.types {
        let surface = surface::Engine::new(engine.fresh()?)?;
        targets.push(Target::new(
            engine.to_string(),
            Kind::Engine(*engine),
            surface,
        ));
    }
    let shm = PathBuf::from("/dev/shm");
    for dir in options
        .dirs
        .iter()
        .chain(options.with_tmpfs.then_some(&shm))
    {
        let kind = kind_of(dir)?;
        let surface = Directory::below(dir)?;
        targets.push(Target::new(dir.display().to_string(), kind, surface));
    }
    if options.with_ext4 {
        let root = detached::ext4_on_loop(EXT4_BYTES)?;
        let surface = Directory::owned(&root)?;
        targets.push(Target::new("ext4".into(), Kind::Ext4OnTmpfs, surface));
    }
    Ok(targets)
}

/// Whether a directory is on tmpfs, by its magic number (statfs(2)).
fn kind_of(dir: &Path) -> Result<Kind> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let stat = rustix::fs::statfs(dir).what(|| format!("statfs {}", dir.display()))?;
    Ok(match stat.f_type as u64 {
        TMPFS_MAGIC => Kind::Tmpfs,
        _ => Kind::OtherDirectory,
    })
}

fn report(targets: Vec<Target>, options: &Options, machine: Machine) -> Result<Report> {
    let mut rows = Vec::new();
    let mut kinds = Vec::new();
    for mut target in targets {
        let counts = match target.kind {
            Kind::Engine(engine) => counted::count(engine)?,
            Kind::Tmpfs | Kind::Ext4OnTmpfs | Kind::OtherDirectory => BTreeMap::new(),
        };
        for op in Op::ALL {
            let samples = target.timer.samples.entry(op).or_default();
            let count = counts.get(&op);
            rows.push(Row {
                target: target.name.clone(),
                op: op.name(),
                ns_median: tenths(stats::median(&mut samples.batches).unwrap_or_default()),
                ns_p99: tenths(stats::quantile(&mut samples.singles, 0.99).unwrap_or_default()),
                flushes: count.map(|c| c.flushes),
                fences: count.map(|c| c.fences),
                bytes: count.map(|c| c.bytes),
            });
        }
        kinds.push((target.name, target.kind));
    }
    Ok(Report {
        goals: goals::judge(&rows, &kinds),
        rows,
        machine,
        notes: notes(options),
    })
}

/// Rounds for printing: finer digits are noise.
fn tenths(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![
        format!(
            "Targets take turns: {} rounds of {SLICE} operations of each kind, one thread on one CPU.",
            options.rounds
        ),
        format!(
            "ns: median of batches of {BATCH} operations; p99: 99th percentile of single \
             operations, less the cost of reading the clock."
        ),
        "Engines are called in this process, over a file of 256 MiB in /dev/shm that is mapped, \
         preallocated and touched beforehand, with real flush and fence instructions."
            .into(),
        "Reads and overwrites go to a file of 4 MiB; directories hold at most the names of one slice."
            .into(),
        "Directories are used by system calls: create is open(O_CREAT) and close, open is open \
         and close."
            .into(),
        "lines, fences, bytes: per operation, counted at the medium in a pass of its own.".into(),
    ];
    if options.with_ext4 {
        notes.push("ext4: default options, on a loop device over a file on tmpfs.".into());
    }
    notes
}

impl Report {
    /// The rows by operation and target.
    pub(crate) fn matrix(&self) -> Matrix<'_, Row> {
        Matrix::of(&self.rows)
    }

    /// Medians and tails, a row for each operation, a pair of columns for each target;
    /// then the counters of the engines.
    pub(crate) fn grid(&self) -> Grid {
        let times = self.matrix().grid(
            "op",
            |target| vec![format!("{target} ns"), "p99".into()],
            |_, row| {
                [row.map(|r| r.ns_median), row.map(|r| r.ns_p99)]
                    .map(table::figure)
                    .to_vec()
            },
        );
        let counted = self.rows.iter().filter(|r| r.bytes.is_some());
        let counters = Matrix::of(counted).grid(
            "op",
            |target| vec![format!("{target} lines"), "fences".into(), "bytes".into()],
            |_, row| {
                let counters = row.map_or([None; 3], |r| [r.flushes, r.fences, r.bytes]);
                counters.map(table::figure).to_vec()
            },
        );
        times.beside(counters)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "{note}"))?;
        writeln!(f, "\n{}", self.grid().text())?;
        if !self.goals.is_empty() {
            writeln!(f, "\nMedians of this run against the goals:")?;
        }
        self.goals.iter().try_for_each(|goal| writeln!(f, "{goal}"))
    }
}

#[cfg(test)]
mod tests;
