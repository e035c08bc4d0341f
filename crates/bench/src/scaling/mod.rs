//! Several threads at once, each in a directory and on a file of its own.
//!
//! In each slice every thread does the same number of operations; the clock runs from the
//! moment the first starts to the moment the last is done. Targets and numbers of threads
//! take turns. The best slice counts and not the median: other programs slow the slices of
//! many threads, which need all CPUs at once, more often than those of one.

use crate::Engine;
use crate::error::{Error, Result};
use crate::machine::{self, Machine, Pinned};
use crate::matrix::{Cell, Matrix};
use crate::micro::ops::{BLOCK, FILE_BLOCKS};
use crate::micro::surface::{self, Directory, Surface, WorkDir};
use crate::table::{self, Grid};
use serde::Serialize;
use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::thread;
use std::time::Instant;

/// Operations of each thread in one slice.
const SLICE: usize = 2000;

/// Rounds that warm the targets up and are not counted.
const WARM_UP: u32 = 1;

/// The least part of a perfect speed-up that reaches the goal.
const GOAL: f64 = 0.8;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Engines, called in this process.
    pub types: Vec<Engine>,
    /// Directories, used through system calls.
    pub dirs: Vec<PathBuf>,
    /// The largest number of threads; `None`: one for each CPU.
    pub threads: Option<usize>,
    /// Slices of each kind, of which the best counts.
    pub rounds: u32,
}

impl Default for Options {
    /// BPFS beside tmpfs, up to as many threads as CPUs, 50 rounds.
    fn default() -> Self {
        Self {
            types: vec![Engine::usual()],
            dirs: vec!["/dev/shm".into()],
            threads: None,
            rounds: 50,
        }
    }
}

/// The work of each thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    CreateUnlink,
    Write4k,
    Overwrite8,
    Read4k,
}

impl Work {
    const ALL: [Work; 4] = [
        Work::CreateUnlink,
        Work::Write4k,
        Work::Overwrite8,
        Work::Read4k,
    ];

    fn name(self) -> &'static str {
        match self {
            Work::CreateUnlink => "create+unlink",
            Work::Write4k => "write-4k",
            Work::Overwrite8 => "overwrite-8b",
            Work::Read4k => "read-4k",
        }
    }

    /// Runs the `i`-th operation.
    fn once(self, surface: &mut dyn Surface, i: usize, buf: &mut [u8; BLOCK]) -> Result<()> {
        const NAME: &CStr = c"file";
        let off = i as u64 % FILE_BLOCKS * BLOCK as u64;
        match self {
            Work::CreateUnlink => {
                surface.create(WorkDir::A, NAME)?;
                surface.unlink(WorkDir::A, NAME)
            }
            Work::Write4k => surface.write(off, buf),
            Work::Overwrite8 => surface.write(off + i as u64 * 8 % BLOCK as u64, &buf[..8]),
            Work::Read4k => surface.read(off, buf),
        }
    }
}

/// One kind of work by some threads on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine's name or the directory.
    pub target: String,
    /// The work of each thread.
    pub op: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// Operations per second of all threads together, in the best slice.
    pub ops_per_second: f64,
    /// Ratio to one thread's.
    pub speedup: f64,
    /// The name of the series in a chart.
    #[serde(skip)]
    series: String,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.series
    }

    fn line(&self) -> &str {
        self.op
    }
}

/// The figures of one run. As JSON, the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// Every work, target and number of threads.
    pub rows: Vec<Row>,
    /// The machine and the date of the run.
    #[serde(skip)]
    pub machine: Machine,
}

/// Runs the benchmark.
///
/// # Errors
/// If a target cannot be made or one of its operations fails.
pub fn run(options: &Options) -> Result<Report> {
    let machine = Machine::here();
    let counts = thread_counts(options.threads.unwrap_or(machine.cores));
    let most = counts.last().copied().unwrap_or(1);
    let mut targets = Vec::new();
    for engine in &options.types {
        targets.push(Target::engine(*engine, most)?);
    }
    for dir in &options.dirs {
        targets.push(Target::directory(dir, most)?);
    }
    if targets.is_empty() {
        let why = "nothing to measure: name a type or a directory";
        return Err(Error::Usage(why.into()));
    }
    let slots = counts.len() * Work::ALL.len();
    let mut best = vec![vec![0.0_f64; slots]; targets.len()];
    for round in 0..options.rounds + WARM_UP {
        for slot in 0..slots {
            let work = Work::ALL[slot / counts.len()];
            let threads = counts[slot % counts.len()];
            for (target, best) in targets.iter_mut().zip(&mut best) {
                let rate = slice(&mut target.surfaces[..threads], work)?;
                if round >= WARM_UP {
                    best[slot] = best[slot].max(rate);
                }
            }
        }
    }
    let mut rows = Vec::new();
    for (target, best) in targets.iter().zip(best) {
        rows.extend(target.rows(&counts, &best));
    }
    Ok(Report { rows, machine })
}

/// 1, 2, 4 and so on up to `most`, which is the last.
pub(crate) fn thread_counts(most: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|n| 1 << n);
    let mut counts: Vec<_> = powers.take_while(|n| *n < most).collect();
    counts.push(most.max(1));
    counts
}

/// One file system, with a directory for each thread.
struct Target {
    name: String,
    surfaces: Vec<Box<dyn Surface + Send>>,
}

impl Target {
    fn engine(engine: Engine, threads: usize) -> Result<Self> {
        let fs = engine.fresh()?;
        let surface = |n| -> Result<Box<dyn Surface + Send>> {
            let home = format!("thread{n}");
            Ok(Box::new(surface::Engine::below(fs.clone(), &home)?))
        };
        Ok(Self {
            name: engine.to_string(),
            surfaces: (0..threads).map(surface).collect::<Result<_>>()?,
        })
    }

    fn directory(dir: &Path, threads: usize) -> Result<Self> {
        let surface =
            |_| -> Result<Box<dyn Surface + Send>> { Ok(Box::new(Directory::below(dir)?)) };
        Ok(Self {
            name: dir.display().to_string(),
            surfaces: (0..threads).map(surface).collect::<Result<_>>()?,
        })
    }

    fn rows(&self, counts: &[usize], rates: &[f64]) -> Vec<Row> {
        let row = |(slot, rate): (usize, &f64)| {
            let alone = rates[slot / counts.len() * counts.len()];
            let threads = counts[slot % counts.len()];
            Row {
                target: self.name.clone(),
                op: Work::ALL[slot / counts.len()].name(),
                threads,
                ops_per_second: rate.round(),
                speedup: if alone > 0.0 { rate / alone } else { 0.0 },
                series: format!("{} x{threads}", self.name),
            }
        };
        rates.iter().enumerate().map(row).collect()
    }
}

/// One slice by as many threads as there are surfaces, each on a CPU of its own as far as
/// there are; operations per second.
fn slice(surfaces: &mut [Box<dyn Surface + Send>], work: Work) -> Result<f64> {
    let cpus = machine::cpus();
    let threads = surfaces.len();
    let ready = AtomicUsize::new(0);
    let times = thread::scope(|scope| {
        let mut running = Vec::with_capacity(threads);
        for (n, surface) in surfaces.iter_mut().enumerate() {
            let cpu = cpus.get(n % cpus.len().max(1)).copied();
            let ready = &ready;
            running.push(scope.spawn(move || {
                let _pinned = cpu.map(Pinned::to);
                let mut buf = [0x5a; BLOCK];
                // Not asleep, so that all start at once.
                ready.fetch_add(1, AcqRel);
                while ready.load(Acquire) < threads {
                    thread::yield_now();
                }
                let from = Instant::now();
                (0..SLICE).try_for_each(|i| work.once(surface.as_mut(), i, &mut buf))?;
                Ok((from, Instant::now()))
            }));
        }
        let done = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|e| std::panic::resume_unwind(e))
        });
        done.collect::<Result<Vec<_>>>()
    })?;
    let first = times.iter().map(|t| t.0).min();
    let last = times.iter().map(|t| t.1).max();
    let seconds = first.zip(last).map_or(0.0, |(a, b)| (b - a).as_secs_f64());
    Ok((threads * SLICE) as f64 / seconds.max(1e-9))
}

/// Notes for readers of the table.
pub(crate) const NOTES: &str = "\
Operations per second of all threads together in the best slice, each thread on its own
CPU, in its own directory and file (4 MiB); x: ratio to one thread. Engines in this process over flushed
memory in /dev/shm, durable at return; directories by system calls.";

impl Report {
    /// A line for each work; for each target and number of threads the rate and the ratio.
    pub(crate) fn grid(&self) -> Grid {
        Matrix::of(&self.rows).grid(
            "op",
            |series| vec![series.to_owned(), "x".into()],
            |_, row| match row {
                Some(row) => vec![
                    table::count(Some(row.ops_per_second as u64)),
                    format!("{:.2}", row.speedup),
                ],
                None => vec!["-".into(), "-".into()],
            },
        )
    }

    /// For each engine and work at the most threads, whether it reaches the goal.
    pub fn goals(&self) -> Vec<String> {
        let most = self.rows.iter().map(|r| r.threads).max().unwrap_or(1);
        let goal = GOAL * most as f64;
        let rows = self.rows.iter().filter(|r| r.threads == most && most > 1);
        rows.map(|r| {
            let verdict = if r.speedup >= goal { "met" } else { "missed" };
            let (target, op, speedup) = (&r.target, r.op, r.speedup);
            format!("{verdict:6}  {target} {op}, {most} threads: {speedup:.2} times one (goal: at least {goal:.1})")
        })
        .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{NOTES}\n\n{}\n", self.machine, self.grid().text())?;
        let mut goals = self.goals().into_iter();
        goals.try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_and_all() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(6), [1, 2, 4, 6]);
        assert_eq!(thread_counts(0), [1]);
    }

    #[test]
    fn every_target_has_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            types: vec![Engine::usual(), Engine::baseline()],
            dirs: vec![dir.path().into()],
            threads: Some(3),
            rounds: 1,
        };
        let report = run(&options).unwrap();
        assert_eq!(report.rows.len(), 3 * 4 * 3);
        for row in &report.rows {
            assert!(row.ops_per_second > 0.0 && row.speedup > 0.0, "{row:?}");
            assert!(row.threads > 1 || row.speedup == 1.0, "{row:?}");
        }
        assert_eq!(report.grid().rows.len(), 4);
        assert_eq!(report.goals().len(), 3 * 4);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let json = serde_json::to_value(&report).unwrap();
        assert!(json[0]["ops_per_second"].is_number() && json[0]["series"].is_null());
    }

    #[test]
    fn nothing_to_measure_is_an_error() {
        let options = Options {
            types: Vec::new(),
            dirs: Vec::new(),
            ..Options::default()
        };
        assert!(matches!(run(&options), Err(Error::Usage(_))));
    }
}
