//! Durable memory (Mnemosyne) measured: a hash table and a B+ tree beside other stores on the
//! same memory, and what logs, commits, truncation, slower memory, trees and restarts cost; the
//! figures and tables of section 3.5 of the dissertation.
//!
//! All stores do the same work with the same keys, each in a process or a mapping of its
//! own, and are timed in the same way, call by call. They take turns, and of several rounds
//! each one's best counts: what else the machine does makes no round shorter.

mod commits;
mod goals;
mod ground;
mod hash;
mod idle;
mod library;
mod logs;
mod paging;
mod peers;
mod print;
mod restart;
mod saves;
mod slow;
#[cfg(test)]
mod tests;
mod tree;
mod work;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::matrix::Cell;
use crate::micro::Goal;
use ground::{Mapped, Session};
use hash::{Fill, Table};
use medium::Pmem;
use mnemosyne::memory::Layout;
use peers::Peers;
use serde::Serialize;
use std::path::{Path, PathBuf};
use work::{Entries, Found, Load};

pub(crate) use print::NOTES;

pub use commits::Row as CommitRow;
pub use idle::{Row as IdleRow, Way};
pub use logs::Row as LogRow;
pub use paging::Row as PagingRow;
pub use restart::Report as Restart;
pub use saves::Row as SaveRow;
pub use slow::Row as SlowRow;

/// The names of our hash table, and how it writes values.
const OURS: [(&str, Fill); 2] = [
    ("mnemosyne", Fill::Logged),
    ("mnemosyne, in place", Fill::InPlace),
];
/// The names of the library's structures.
const LIBRARY: [&str; 2] = ["mnemosyne, HashMap", "mnemosyne, B+ tree"];

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The hash table, and the B+ tree, beside other stores.
    Hash,
    /// The cost of a commit beyond the memory.
    Commits,
    /// The two kinds of log.
    Logs,
    /// The time of truncation.
    Truncation,
    /// Slower memory.
    Latency,
    /// A tree that is changed, and one that is saved.
    Trees,
    /// Recovery, and the scan of the heap.
    Restart,
    /// Regions larger than the memory that they are given.
    Paging,
}

impl Part {
    /// All parts, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::Hash,
        Self::Commits,
        Self::Logs,
        Self::Truncation,
        Self::Latency,
        Self::Trees,
        Self::Restart,
        Self::Paging,
    ];

    /// The name of the part, as `--part` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Commits => "commits",
            Self::Logs => "logs",
            Self::Truncation => "truncation",
            Self::Latency => "latency",
            Self::Trees => "trees",
            Self::Restart => "restart",
            Self::Paging => "paging",
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let mut parts = Self::ALL.into_iter();
        let names = || Self::ALL.map(Self::name).join(", ");
        let part = parts.find(|part| part.name() == name);
        part.ok_or_else(|| format!("'{name}' is none of {}", names()))
    }
}

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory on the memory.
    pub dir: PathBuf,
    /// A directory on a disk.
    pub disk: PathBuf,
    /// The parts to measure.
    pub parts: Vec<Part>,
    /// Bytes of values, and of a log's records.
    pub value_bytes: Vec<usize>,
    /// Number of threads.
    pub threads: Vec<usize>,
    /// Entries of each thread that are always there.
    pub live: u64,
    /// Entries that each thread inserts, and deletes, in a round.
    pub operations: u64,
    /// Entries that each thread inserts and deletes in a round, for stores on the disk.
    pub disk_operations: u64,
    /// Rounds of stores, of which the best counts.
    pub rounds: u32,
    /// Batches of commits, and of records.
    pub batches: u32,
    /// Nodes of trees.
    pub tree_nodes: Vec<u64>,
    /// Bytes of the heap that is scanned.
    pub heap_bytes: u64,
    /// Bytes of the pool that pages move through.
    pub pool_bytes: u64,
}

impl Default for Options {
    /// All measurements of the dissertation, in `/dev/shm`; the disk is where this directory
    /// is.
    fn default() -> Self {
        Self {
            dir: "/dev/shm".into(),
            disk: ".".into(),
            parts: Part::ALL.to_vec(),
            value_bytes: vec![8, 64, 256, 1024, 2048, 4096],
            threads: vec![1, 2],
            live: 20_000,
            operations: 10_000,
            disk_operations: 200,
            rounds: 3,
            batches: 1000,
            tree_nodes: vec![1 << 10, 8 << 10, 64 << 10, 256 << 10],
            heap_bytes: 1 << 30,
            pool_bytes: 64 << 20,
        }
    }
}

impl Options {
    /// A short run: 64-byte values, small trees, a small heap.
    #[must_use]
    pub fn quick(self) -> Self {
        Self {
            value_bytes: vec![64],
            live: 2000,
            operations: 2000,
            disk_operations: 200,
            rounds: 1,
            batches: 100,
            tree_nodes: vec![1 << 10, 8 << 10],
            heap_bytes: 64 << 20,
            pool_bytes: 16 << 20,
            ..self
        }
    }

    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn load(&self, value_bytes: usize, threads: usize) -> Load {
        Load {
            value_bytes,
            threads,
            live: self.live,
            operations: self.operations,
        }
    }

    /// Returns the load that takes a store on the disk about the same time.
    fn disk_load(&self, load: Load) -> Load {
        Load {
            live: self.disk_operations,
            operations: self.disk_operations,
            ..load
        }
    }

    fn check(&self) -> Result<()> {
        let sizes = self.value_bytes.iter();
        let wrong = if !sizes.clone().all(|size| (8..=4096).contains(size)) {
            "values have 8 to 4096 bytes"
        } else if self.threads.contains(&0) || self.live == 0 || self.operations == 0 {
            "threads, entries and operations: one at least"
        } else if self.disk_operations == 0 || self.rounds == 0 || self.batches == 0 {
            "operations on the disk, rounds and batches: one at least"
        } else if self.heap_bytes < 16 << 20 || self.tree_nodes.contains(&0) {
            "a heap has 16 MiB at least, a tree one node"
        } else if self.pool_bytes < 2 << 20 {
            "a pool has 2 MiB at least"
        } else {
            return Ok(());
        };
        Err(Error::Usage(wrong.into()))
    }
}

/// One kind of call on one store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The store, and how it is set up.
    pub store: String,
    /// `insert`, `delete`, or `update`: both.
    pub op: &'static str,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Number of threads.
    pub threads: usize,
    /// Microseconds of a call: the median of the best round.
    pub us_median: f64,
    /// Calls of all threads in a second, in the best round.
    pub ops_per_second: f64,
    /// The title of the column.
    #[serde(skip)]
    column: String,
}

impl Cell for Row {
    fn column(&self) -> &str {
        &self.column
    }

    fn line(&self) -> &str {
        &self.store
    }
}

/// The measurements and the machine. Parts that were not asked for are empty.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// The conditions, one sentence each.
    pub notes: Vec<String>,
    /// Parts that could not be measured here, and the packages that they need.
    pub missing: Vec<String>,
    /// Our stores and others.
    pub rows: Vec<Row>,
    /// The costs of commits.
    pub commits: Vec<CommitRow>,
    /// The kinds of log.
    pub logs: Vec<LogRow>,
    /// The time of truncation.
    pub truncation: Vec<IdleRow>,
    /// Slower memory.
    pub latency: Vec<SlowRow>,
    /// Trees.
    pub trees: Vec<SaveRow>,
    /// Restarts.
    pub restart: Option<Restart>,
    /// Paging.
    pub paging: Vec<PagingRow>,
}

/// Runs the benchmark; reports the next part to `progress`.
///
/// # Errors
/// If a directory cannot be used, a store fails, or the options make no sense.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    options.check()?;
    let mut report = Report::new(Machine::here());
    report.note_places(options)?;
    for part in Part::ALL.into_iter().filter(|part| options.has(*part)) {
        progress(part.name());
        match part {
            Part::Hash => report.measure_stores(options, progress)?,
            Part::Commits => report.commits = commits::measure(options)?,
            Part::Logs => report.logs = logs::measure(options)?,
            Part::Truncation => report.truncation = idle::measure(options)?,
            Part::Latency => report.latency = slow::measure(options)?,
            Part::Trees => report.trees = saves::measure(options)?,
            Part::Restart => report.restart = Some(restart::measure(options)?),
            Part::Paging => paging::measure(options, &mut report)?,
        }
    }
    Ok(report)
}

impl Report {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            notes: Vec::new(),
            missing: Vec::new(),
            rows: Vec::new(),
            commits: Vec::new(),
            logs: Vec::new(),
            truncation: Vec::new(),
            latency: Vec::new(),
            trees: Vec::new(),
            restart: None,
            paging: Vec::new(),
        }
    }

    /// Returns the goals for which the run has figures.
    pub fn goals(&self) -> Vec<Goal> {
        goals::judge(self)
    }

    /// Returns notes on the file systems of the directories and on the flush instruction.
    fn note_places(&mut self, options: &Options) -> Result<()> {
        let pm = ground::map(&options.dir, 4096)?;
        self.notes.push(format!(
            "Memory: a mapped file in {} ({}, durability {}), flushed by {}. Disk: {} ({}).",
            options.dir.display(),
            file_system(&options.dir),
            pm.durability(),
            pm.flush_instruction().unwrap_or("nothing"),
            options.disk.display(),
            file_system(&options.disk),
        ));
        if let Some(load) = load_average() {
            let note = format!("Other programs ran: load average {load} at the start.");
            self.notes.push(note);
        }
        Ok(())
    }

    /// Measures our stores beside others.
    fn measure_stores(&mut self, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<()> {
        let peers = Peers::build()?;
        self.notes.push(format!(
            "Each thread keeps {} entries ({} on the disk); {} times ({}) it inserts one and \
             deletes its oldest. Every call is timed; best of {} rounds. Ours has a thread more, \
             which truncates the logs.",
            options.live,
            options.disk_operations,
            options.operations,
            options.disk_operations,
            options.rounds,
        ));
        let settings = peers.there.iter();
        let settings = settings.map(|peer| format!("{}: {}.", peer.name, peer.setting));
        self.notes.extend(settings);
        for value_bytes in &options.value_bytes {
            for threads in &options.threads {
                let load = options.load(*value_bytes, *threads);
                progress(&format!("hash, {value_bytes} bytes, {threads} threads"));
                for (store, found) in measure_load(options, &peers, load)? {
                    self.rows.extend(rows(store, load, found));
                }
            }
        }
        self.missing.extend(peers.missing);
        Ok(())
    }
}

/// Measures every store at one load. The stores take turns, and the best round counts.
fn measure_load(
    options: &Options,
    peers: &Peers,
    load: Load,
) -> Result<Vec<(&'static str, Found)>> {
    let mut best: Vec<(&'static str, Found)> = Vec::new();
    let mut keep = |store, found: Found| match best.iter_mut().find(|(name, _)| *name == store) {
        Some((_, best)) => *best = best.or_better(found),
        None => best.push((store, found)),
    };
    for _ in 0..options.rounds {
        for (store, fill) in OURS {
            keep(store, run_ours(options, load, fill)?);
        }
        let [map, tree] = LIBRARY;
        keep(map, run_library(options, load, library::Map::make)?);
        keep(tree, run_library(options, load, library::Tree::make)?);
        for peer in &peers.there {
            let found = match peer.on_disk {
                true => peers.run(peer, &options.disk, options.disk_load(load))?,
                false => peers.run(peer, &options.dir, load)?,
            };
            keep(peer.name, found);
        }
    }
    Ok(best)
}

/// Measures one of our stores in memory of its own.
fn run_ours(options: &Options, load: Load, fill: Fill) -> Result<Found> {
    let layout = Layout::default();
    let pm = ground::map(&options.dir, hash_bytes(&layout, load))?;
    work_on(pm, &layout, load, fill)
}

/// Runs the structure of `make` in memory of its own.
fn run_library<E: Entries<Mapped>>(
    options: &Options,
    load: Load,
    make: impl FnOnce(&mut Session<Mapped>) -> Result<E>,
) -> Result<Found> {
    let layout = Layout::default();
    let pm = ground::map(&options.dir, hash_bytes(&layout, load))?;
    let store = ground::make(pm, &layout, &ground::options())?;
    store.truncate_in_background();
    let entries = make(&mut store.session())?;
    work::run(&store, &entries, load)
}

/// Makes durable memory with a hash table and runs the load on it.
fn work_on<P: Pmem + Clone + 'static>(
    pm: P,
    layout: &Layout,
    load: Load,
    fill: Fill,
) -> Result<Found> {
    let store = ground::make(pm, layout, &ground::options())?;
    store.truncate_in_background();
    let entries = load.threads as u64 * load.live;
    let table = Table::make(&mut store.session(), entries, fill)?;
    work::run(&store, &table, load)
}

/// Memory that has room for a load: blocks are rounded up to a page, and those that were
/// freed rest for a while.
fn hash_bytes(layout: &Layout, load: Load) -> u64 {
    let node_bytes = (load.value_bytes as u64 + 128).next_power_of_two();
    let entries = load.threads as u64 * (load.live + load.operations);
    layout.bytes() + ground::SPARE_BYTES + 2 * entries * node_bytes
}

fn rows(store: &'static str, load: Load, found: Found) -> [Row; 3] {
    let calls = [
        ("insert", found.insert),
        ("delete", found.delete),
        ("update", found.update),
    ];
    calls.map(|(op, calls)| Row {
        store: store.into(),
        op,
        value_bytes: load.value_bytes,
        threads: load.threads,
        us_median: calls.us_median,
        ops_per_second: calls.ops_per_second,
        column: format!("{} B x{}", load.value_bytes, load.threads),
    })
}

/// Waits until all stores have left the processor. The fence of persistent memory only keeps
/// later stores after earlier ones: without this, a batch would leave its last waits to the
/// next.
fn drain() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Returns the kind of file system that a directory is on.
fn file_system(dir: &Path) -> String {
    match rustix::fs::statfs(dir).map(|stat| stat.f_type) {
        Ok(0x0102_1994) => "tmpfs".into(),
        Ok(0xef53) => "ext4".into(),
        Ok(0x5846_5342) => "xfs".into(),
        Ok(0x9123_683e) => "btrfs".into(),
        Ok(other) => format!("file system {other:#x}"),
        Err(error) => error.to_string(),
    }
}

/// Returns the system's load average of the last minute.
fn load_average() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split(' ').next()?.to_owned())
}
