//! The engine whose format the kernel has too, in every mode, through FUSE, beside the kernel's
//! ext2, ext3 and ext4 on the same device, and beside the model in memory on the same server: the
//! time of FUSE itself.
//!
//! Everything runs on two loop devices, over a file on a disk and over one in memory,
//! which count what is written and how often they are flushed: for all targets alike.
//! Each workload has a mount of its own, with nothing cached, and ends with a sync, which
//! is timed with it. Also after an error nothing stays mounted, and no file stays.

mod cpu;
mod device;
mod goals;
mod target;
mod work;

use crate::chart::Chart;
use crate::detached::is_installed;
use crate::error::{Context, Error, Result};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::matrix::{Cell, Matrix};
use crate::stats;
use crate::table::{Grid, count};
use cpu::{Clock, Used};
use device::{Loop, Written};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use target::{Mounted, Target};
use work::Materials;

pub use work::Workload;

/// Directory of the second device's file, and of all files that are not measured.
const MEMORY: &str = "/dev/shm";

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `selvedge` program, which mounts ours.
    pub program: PathBuf,
    /// A directory on a disk, for the first device's file.
    pub dir: PathBuf,
    /// Files in the tree that is unpacked.
    pub files: u32,
    /// Sources in the program that is built.
    pub sources: u32,
    /// PostMark's files, and its transactions.
    pub mails: u32,
    /// Bytes of PostMark's largest file.
    pub max_bytes: u32,
    /// MiB of the file that is overwritten.
    pub large_mib: u32,
    /// Blocks of it that are overwritten, and commits of SQLite.
    pub syncs: u32,
    /// The workloads, in this order; `Delete` needs the files of `Untar`.
    pub workloads: Vec<Workload>,
    /// Number of runs of each workload, each time on a file system of its own.
    pub repeats: u32,
}

impl Default for Options {
    /// 4,000 files (42 MB), 60 sources, 500 mails of up to 100,000 bytes, a file of 1 GiB,
    /// 1,000 syncs, 3 times, by this program, in the directory for temporary files.
    fn default() -> Self {
        Self {
            program: std::env::current_exe().unwrap_or_else(|_| "selvedge".into()),
            dir: std::env::temp_dir(),
            files: 4_000,
            sources: 60,
            mails: 500,
            max_bytes: 100_000,
            large_mib: 1024,
            syncs: 1000,
            workloads: Workload::ALL.into(),
            repeats: 3,
        }
    }
}

/// The kind of device below a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// A loop device over a file on a disk.
    Disk,
    /// A loop device over a file in memory.
    Memory,
    /// Nothing: it is in the server's memory.
    None,
}

impl Backing {
    fn describe(self) -> &'static str {
        match self {
            Self::Disk => "on the disk",
            Self::Memory => "in memory",
            Self::None => "without a device",
        }
    }
}

/// One workload on one target: medians of the repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The file system and its mode.
    pub target: String,
    /// The kind of device below it.
    pub backing: Backing,
    /// The workload.
    pub workload: Workload,
    /// Seconds, the sync included.
    pub seconds: f64,
    /// The least of the repeats.
    pub least_seconds: f64,
    /// CPU time of programs, server and kernel threads, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of the server, in seconds.
    pub server_cpu_seconds: f64,
    /// CPU time of the kernel's threads, in seconds.
    pub kernel_cpu_seconds: f64,
    /// Blocks of 4 KiB that were written to the device; `None` without one.
    pub writes: Option<u64>,
    /// Requests in which they were written.
    pub requests: Option<u64>,
    /// Flushes of the device.
    pub flushes: Option<u64>,
    /// Part of the blocks that the server wrote without some of their changes, and so
    /// wrote again; `None` where nobody counts that.
    pub double_writes: Option<f64>,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.target
    }

    fn line(&self) -> &str {
        self.workload.name()
    }
}

/// The measurements and the machine. As JSON, the rows.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// One row for each target and workload.
    pub rows: Vec<Row>,
    /// The conditions, one sentence each.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Seconds that it takes to make one block durable on the disk.
    #[serde(skip)]
    disk_flush: f64,
}

/// Runs the benchmark, and reports the next part to `progress`.
///
/// # Errors
/// Without root, without a program that it needs, if a workload fails, or after a signal
/// (SIGINT, SIGTERM, SIGHUP).
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    check_means()?;
    let interrupt = Interrupt::catch()?;
    progress("preparing");
    let scratch = tempfile::Builder::new()
        .prefix(&format!("selvedge-fs-{}-", std::process::id()))
        .tempdir_in(MEMORY)
        .what(|| format!("making a directory in {MEMORY}"))?;
    let bench = Bench {
        program: &options.program,
        materials: Materials::new(scratch.path(), options)?,
        workloads: &options.workloads,
        scratch: scratch.path(),
        interrupt,
    };
    let disk = Loop::new(&options.dir, options.device_bytes(), true)?;
    let memory = Loop::new(Path::new(MEMORY), options.device_bytes(), false)?;
    let flush = [disk.flush_seconds()?, memory.flush_seconds()?];
    let setups = bench.setups(&disk, &memory);
    let mut samples = Vec::new();
    for repeat in 0..options.repeats.max(1) {
        // Another order each time, lest some always come first.
        let mut turn: Vec<usize> = (0..setups.len()).collect();
        turn.rotate_left(repeat as usize * 7 % setups.len());
        for setup in turn {
            let (target, backing, _) = &setups[setup];
            progress(&format!("{target} {}", backing.describe()));
            samples.push((setup, bench.sample(&setups[setup])?));
        }
    }
    let mut notes = vec![format!("{}.", Machine::here())];
    for (backing, device, flush) in [
        (Backing::Disk, &disk, flush[0]),
        (Backing::Memory, &memory, flush[1]),
    ] {
        notes.push(format!(
            "{}: a loop device of {} MiB over a file in {}; a block and a flush take {:.0} us.",
            backing.describe(),
            options.device_bytes() >> 20,
            device.about,
            flush * 1e6
        ));
    }
    notes.extend(bench.materials.notes());
    notes.push(format!(
        "Medians of {}; the goals by the least.",
        options.repeats.max(1)
    ));
    Ok(Report {
        rows: rows(&setups, &options.workloads, &samples),
        notes,
        disk_flush: flush[0],
    })
}

/// Returns an error that names the missing program or right.
fn check_means() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let why = "this makes loop devices and mounts kernel file systems: run it as root";
        return Err(Error::Usage(why.into()));
    }
    let needed = [
        ("losetup", "mount"),
        ("blockdev", "util-linux"),
        ("setpriv", "util-linux"),
        ("mkfs.ext4", "e2fsprogs"),
        ("python3", "python3"),
    ];
    match needed.iter().find(|(program, _)| !is_installed(program)) {
        Some((program, package)) => Err(Error::Program {
            program: (*program).into(),
            why: format!("not installed (Debian: package {package})"),
        }),
        None => Ok(()),
    }
}

impl Options {
    /// Twice what the workloads need, as a power of two, so that blocks are easily found.
    fn device_bytes(&self) -> u64 {
        let tree = u64::from(self.files) * (24 << 10);
        let mail = u64::from(2 * self.mails) * (u64::from(self.max_bytes) + 8192);
        let program = u64::from(self.sources) * (64 << 10);
        // A rollback journal is a new file for each commit.
        let large = (u64::from(self.large_mib) << 20) + u64::from(self.syncs) * (8 << 10);
        (2 * (tree + mail.max(program)) + large + (16 << 20)).next_power_of_two()
    }
}

/// A target, the kind of its device, and the device.
type Setup<'d> = (Target, Backing, &'d Loop);

/// The parts that do not change between targets.
struct Bench<'o> {
    program: &'o Path,
    materials: Materials,
    workloads: &'o [Workload],
    scratch: &'o Path,
    interrupt: Interrupt,
}

/// The cost of one run of one workload.
#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    cpu: Used,
    written: Written,
    /// Blocks that the server wrote, and those of them that it wrote twice.
    double: Option<(u64, u64)>,
}

impl Bench<'_> {
    fn setups<'d>(&self, disk: &'d Loop, memory: &'d Loop) -> Vec<Setup<'d>> {
        // A target without a device is measured beside the one in memory.
        let mut setups = vec![(Target::Floor, Backing::None, memory)];
        for (backing, device) in [(Backing::Disk, disk), (Backing::Memory, memory)] {
            let on = |target| (target, backing, device);
            setups.extend(Target::on_devices().into_iter().map(on));
        }
        setups
    }

    /// Runs every workload once on a new file system.
    fn sample(&self, (target, backing, device): &Setup) -> Result<Vec<Sample>> {
        let mount = || target.mount(self.program, device, self.scratch);
        if *backing == Backing::None {
            // A second mount of it would be empty.
            let mounted = mount()?;
            let measure = |w: &Workload| {
                self.materials.prepare(*w, &mounted.dir())?;
                self.measure(*w, *target, &mounted, device)
            };
            return self.workloads.iter().map(measure).collect();
        }
        target.format(device)?;
        let measure = |w: &Workload| {
            let mut mounted = mount()?;
            if self.materials.prepare(*w, &mounted.dir())? {
                target.sync(&mounted, device)?;
                drop(mounted);
                mounted = mount()?;
            }
            self.measure(*w, *target, &mounted, device)
        };
        self.workloads.iter().map(measure).collect()
    }

    fn measure(
        &self,
        workload: Workload,
        target: Target,
        mounted: &Mounted,
        device: &Loop,
    ) -> Result<Sample> {
        self.interrupt.check()?;
        let server = mounted.server.as_ref();
        let double = mounted.double_writes();
        let (written, clock) = (device.written()?, Clock::now(server));
        let start = Instant::now();
        self.materials.run(workload, &mounted.dir())?;
        target.sync(mounted, device)?;
        let seconds = start.elapsed().as_secs_f64();
        let now = mounted.double_writes();
        Ok(Sample {
            seconds,
            cpu: Clock::now(server).since(&clock),
            written: device.written()? - written,
            double: now.zip(double).map(|(n, was)| (n.0 - was.0, n.1 - was.1)),
        })
    }
}

fn rows(setups: &[Setup], workloads: &[Workload], samples: &[(usize, Vec<Sample>)]) -> Vec<Row> {
    let row = |(setup, workload): (usize, usize)| {
        let of_setup = samples.iter().filter(|(p, _)| *p == setup);
        let runs: Vec<&Sample> = of_setup.map(|(_, all)| &all[workload]).collect();
        let (target, backing, _) = &setups[setup];
        Row::new(target, *backing, workloads[workload], &runs)
    };
    let all = (0..setups.len()).flat_map(|p| (0..workloads.len()).map(move |w| (p, w)));
    all.map(row).collect()
}

impl Row {
    fn new(target: &Target, backing: Backing, workload: Workload, runs: &[&Sample]) -> Self {
        let median = |pick: &dyn Fn(&Sample) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(|run| pick(run)).collect();
            stats::median(&mut all).unwrap_or_default()
        };
        let counted = |pick: &dyn Fn(&Written) -> u64| {
            (backing != Backing::None).then(|| median(&|run| pick(&run.written) as f64) as u64)
        };
        let counts_double = runs.iter().all(|run| run.double.is_some());
        let double = |run: &Sample| {
            let (issued, partial) = run.double.unwrap_or_default();
            partial as f64 / issued.max(1) as f64
        };
        Self {
            target: target.to_string(),
            backing,
            workload,
            seconds: median(&|run| run.seconds),
            least_seconds: runs.iter().map(|run| run.seconds).fold(f64::MAX, f64::min),
            cpu_seconds: median(&|run| run.cpu.total()),
            server_cpu_seconds: median(&|run| run.cpu.server),
            kernel_cpu_seconds: median(&|run| run.cpu.kernel),
            writes: counted(&|written| written.blocks),
            requests: counted(&|written| written.requests),
            flushes: counted(&|written| written.flushes),
            double_writes: counts_double.then(|| median(&double)),
        }
    }
}

/// Notes for readers of the tables.
pub(crate) const NOTES: &str = "\
Seconds until a sync made everything durable, and in brackets CPU seconds, user and system: \
those of the programs, of the server, and of the kernel's threads (write-back, journal, loop \
device; a thread that ended meanwhile is missing). Then blocks of 4 KiB written and flushes, \
as the loop device counts them. The kernel's ext2 does not flush devices at a sync: a flush \
is added. Every workload begins with a new mount that has nothing cached, except that of the \
FUSE floor, which is the in-memory model on our server.";

impl Report {
    fn row(&self, target: Target, backing: Backing, workload: Workload) -> Option<&Row> {
        let name = target.to_string();
        let mut rows = self.rows.iter();
        rows.find(|r| r.target == name && r.backing == backing && r.workload == workload)
    }

    /// Returns a line for each goal.
    pub fn goals(&self) -> Vec<String> {
        goals::judge(self)
    }

    /// Seconds on the disk.
    pub(crate) fn chart(&self) -> Chart {
        let rows = self.rows.iter().filter(|r| r.backing != Backing::Memory);
        let title = "Seconds on the disk, sync included (less is better)".into();
        Matrix::of(rows).chart(title, |row| row.seconds)
    }

    /// Returns two tables for each device, of the measured workloads.
    pub(crate) fn grids(&self) -> Vec<Grid> {
        let measured = |all: &[Workload]| -> Vec<Workload> {
            let is_there = |w: &Workload| self.rows.iter().any(|row| row.workload == *w);
            all.iter().copied().filter(is_there).collect()
        };
        let kinds = [Workload::LAZY, Workload::SYNCED].map(measured);
        let backings = [Backing::Disk, Backing::Memory];
        let tables = backings
            .iter()
            .flat_map(|b| kinds.iter().map(|kind| (*b, kind)));
        let tables = tables.filter(|(_, kind)| !kind.is_empty());
        tables
            .map(|(backing, kind)| self.grid(backing, kind))
            .collect()
    }

    /// Makes a table with a line for each target.
    fn grid(&self, backing: Backing, workloads: &[Workload]) -> Grid {
        let mut targets = vec![(Target::Floor, Backing::None)];
        targets.extend(Target::on_devices().into_iter().map(|t| (t, backing)));
        let line = |(target, backing): (Target, Backing)| {
            let cells = |workload| match self.row(target, backing, workload) {
                Some(row) => [time(row), count(row.writes), count(row.flushes)],
                None => [(); 3].map(|()| "-".into()),
            };
            let first = std::iter::once(target.to_string());
            first
                .chain(workloads.iter().copied().flat_map(cells))
                .collect()
        };
        let heads = |w: Workload| {
            [
                format!("{} s (CPU)", w.name()),
                "blocks".into(),
                "flushes".into(),
            ]
        };
        let first = std::iter::once(backing.describe().to_owned());
        Grid {
            heads: first
                .chain(workloads.iter().copied().flat_map(heads))
                .collect(),
            rows: targets.into_iter().map(line).collect(),
        }
    }
}

fn time(row: &Row) -> String {
    format!("{:.2} ({:.2})", row.seconds, row.cpu_seconds)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in self.notes.iter().map(String::as_str).chain([NOTES]) {
            writeln!(f, "{note}")?;
        }
        for grid in self.grids() {
            writeln!(f, "\n{}", grid.text())?;
        }
        write!(f, "\n{}", self.goals().join("\n"))
    }
}
