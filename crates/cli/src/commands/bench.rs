//! `selvedge bench`: bytes, nanoseconds, memory.
//!
//! A goal that is missed is printed, and is not a failure: the exit code says only whether all
//! could be measured.

use crate::failure::{Failure, Outcome};
use crate::own_file::{self, OwnFile};
use crate::{output, terminal};
use bench::{
    Engine, aerie, bytes, devices, fs, memory, micro, mounted, names, patches, report, scaling,
    scan, shared, soup, workloads,
};
use clap::Subcommand;
use engine::values::listed;
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measure
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bytes(Bytes),
    Micro(Micro),
    Scaling(Scaling),
    Soup(Soup),
    Workloads(Workloads),
    Aerie(Aerie),
    Scan(Scan),
    Mounted(Mounted),
    Devices(Devices),
    Patches(Patches),
    Fs(Fs),
    Memory(Memory),
    All(All),
}

/// The help text of an option that takes one of these engines; without a mode, all modes.
fn one_of(engines: &[Engine]) -> String {
    format!("An engine: {}; without a mode, all modes", names(engines))
}

/// The help text of an option that takes some of these engines.
fn some_of(engines: &[Engine]) -> String {
    format!("An engine: {}; may be repeated", names(engines))
}

/// Count the bytes that each call writes, in every mode, beside the published figures
#[derive(Debug, clap::Args)]
struct Bytes {
    #[arg(long = "type", short = 't', value_name = "TYPE", default_value_t = Engine::usual(), value_parser = listed::<Engine>(bytes::engines()), help = one_of(&bytes::engines()))]
    engine: Engine,
    /// Instead, count lines, fences and bytes of SoupFS beside BPFS: of a call with a sync, and of
    /// 1,000 calls that share one
    #[arg(long, conflicts_with = "engine")]
    shared: bool,
    /// Print JSON: rows of op, mode, bytes, paper; with --shared, of target, op, calls, lines, fences,
    /// bytes
    #[arg(long)]
    json: bool,
}

/// Time single operations, on engines in this process and on directories
#[derive(Debug, clap::Args)]
struct Micro {
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = listed::<Engine>(Engine::all()), help = some_of(&Engine::all()))]
    types: Vec<Engine>,
    /// A directory to compare with; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Also ext4 on a loop device over tmpfs (root only)
    #[arg(long)]
    ext4: bool,
    /// Slices for each target; more of them are steadier
    #[arg(long, value_name = "N", default_value_t = micro::Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON: rows of target, op, ns_median, ns_p99, flushes, fences, bytes
    #[arg(long)]
    json: bool,
}

/// Count operations per second of several threads, each on files of its own
#[derive(Debug, clap::Args)]
struct Scaling {
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = listed::<Engine>(Engine::all()), help = some_of(&Engine::all()))]
    types: Vec<Engine>,
    /// A directory to compare with, instead of /dev/shm; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// The largest number of threads, instead of one for each CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Slices of each kind, of which the best counts
    #[arg(long, value_name = "N", default_value_t = scaling::Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON: rows of target, op, threads, ops_per_second, speedup
    #[arg(long)]
    json: bool,
}

/// Measure SoupFS beside BPFS and tmpfs, by the microbenchmarks of its paper
///
/// Also on memory with slower flushes, in a large directory, with two threads, and after a crash.
#[derive(Debug, clap::Args)]
struct Soup {
    /// Rounds of both tests; more of them are steadier
    #[arg(long, value_name = "N", default_value_t = soup::Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Names in the large directory; the small one has 1,000
    #[arg(long, value_name = "N", default_value_t = soup::Options::default().directories[1], value_parser = clap::value_parser!(u64).range(1_001..=2_000_000))]
    names: u64,
    /// Files in the image that is mounted after a crash
    #[arg(long, value_name = "N", default_value_t = soup::Options::default().files, value_parser = clap::value_parser!(u64).range(1..=3_000_000))]
    files: u64,
    /// Print JSON: rows of target, op, threads, flush_ns, ns_median, ns_p99, ops_per_second
    #[arg(long)]
    json: bool,
}

/// Run file servers, a web proxy and mail servers on engines, directories and mounts
///
/// The workloads are those of Filebench with the parameters of the SoupFS paper, by 1, 2, 4 and more
/// threads, and PostMark. Times are those of a pass, in which a thread makes each operation of the
/// workload once, or of a transaction of PostMark. Ext4, on a loop device over tmpfs, needs root.
#[derive(Debug, clap::Args)]
struct Workloads {
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = listed::<Engine>(Engine::all()), help = some_of(&Engine::all()))]
    types: Vec<Engine>,
    /// A directory to compare with, instead of /dev/shm; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Leave ext4 out
    #[arg(long)]
    no_ext4: bool,
    /// Also the engines on FUSE mounts
    #[arg(long)]
    mounts: bool,
    /// Run only this workload; may be repeated
    #[arg(long = "workload", value_name = "NAME", value_parser = listed::<workloads::Workload>(workloads::Workload::ALL.map(workloads::Workload::name)))]
    workloads: Vec<workloads::Workload>,
    /// The largest number of threads, instead of one for each CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Seconds of one run
    #[arg(long, value_name = "N", default_value_t = workloads::Options::default().time.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Runs of each number of threads, of which the median counts
    #[arg(long, value_name = "N", default_value_t = workloads::Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Transactions of PostMark, which runs once
    #[arg(long, value_name = "N", default_value_t = workloads::Options::default().transactions, value_parser = clap::value_parser!(u32).range(1..))]
    transactions: u32,
    /// A short run: few files, one round, few transactions
    #[arg(long, conflicts_with_all = ["seconds", "rounds", "transactions"])]
    quick: bool,
    /// Print JSON: rows of target, op, threads, flush_ns, ns_median, ns_p99, ops_per_second, or of
    /// target, op, unavailable
    #[arg(long)]
    json: bool,
}

/// Measure PXFS by its clients, beside other file systems
///
/// The measurements are those of the paper on Aerie: single calls, clients that share a file, servers,
/// and several clients. BPFS, SoupFS, tmpfs, ext4, a FUSE mount of PXFS, a program under `selvedge run` and
/// KVFS take part. Ext4, on a loop device over tmpfs, needs root. `selvedge run` needs its library.
#[derive(Debug, clap::Args)]
struct Aerie {
    /// Measure only this part; may be repeated
    #[arg(long = "part", value_name = "PART", value_parser = listed::<aerie::Part>(aerie::Part::ALL.map(aerie::Part::name)))]
    parts: Vec<aerie::Part>,
    /// Measure only this file system; may be repeated
    #[arg(long = "target", value_name = "TARGET", value_parser = listed::<aerie::Target>(aerie::Target::ALL.map(aerie::Target::name)))]
    targets: Vec<aerie::Target>,
    /// Instead of them, measure single calls in this directory, by system calls
    #[arg(long, value_name = "DIR", conflicts_with_all = ["targets", "parts"])]
    dir: Option<PathBuf>,
    /// MiB of the file of which blocks are read and written, instead of 1,024, or 128 where memory is
    /// short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    file_mib: Option<u32>,
    /// Rounds of single calls; more of them are steadier
    #[arg(long, value_name = "N", default_value_t = aerie::Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The largest number of clients
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    clients: u8,
    /// A short run: a small file, few files, one round
    #[arg(long, conflicts_with_all = ["file_mib", "rounds", "clients"])]
    quick: bool,
    /// Print JSON: rows of target, op, clients, threads, ns_median, ns_p95, ns_p99, ops_per_second, or of
    /// target, op, unavailable
    #[arg(long)]
    json: bool,
}

/// Time a mount of a file system full of small files, and weigh its memory
#[derive(Debug, clap::Args)]
struct Scan {
    /// Measure this image, in this process, instead of making one
    #[arg(long, value_name = "PATH")]
    image: Option<PathBuf>,
    /// How many files to make
    #[arg(long, value_name = "N", default_value_t = scan::Options::default().files, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Run workloads on mounts, and compare with the in-memory model's mount
#[derive(Debug, clap::Args)]
struct Mounted {
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = listed::<Engine>(Engine::stored()), help = some_of(&Engine::stored()))]
    types: Vec<Engine>,
    /// Leave libfuse's passthrough examples out
    #[arg(long)]
    no_passthrough: bool,
    /// Files in the tree that is unpacked
    #[arg(long, value_name = "N", default_value_t = mounted::Options::default().files, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// How often each workload runs, each time on a server of its own
    #[arg(long, value_name = "N", default_value_t = mounted::Options::default().repeats, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Time waves of scattered blocks until they are durable, by FUA and by one flush
#[derive(Debug, clap::Args)]
struct Devices {
    /// A directory, for a file that is the device; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Also a loop device over a file on tmpfs (root only)
    #[arg(long = "loop")]
    with_loop: bool,
    /// Waves of each size and kind; more of them are steadier
    #[arg(long, value_name = "N", default_value_t = devices::Options::default().rounds)]
    rounds: u32,
    /// Print JSON: rows of target, blocks, fua_us, flush_us, fua_us_p90, flush_us_p90
    #[arg(long)]
    json: bool,
}

/// Count patches, undo data and CPU time of ext2 with soft updates, by optimisation
#[derive(Debug, clap::Args)]
struct Patches {
    /// Files in the tree that is unpacked and deleted
    #[arg(long, value_name = "N", default_value_t = patches::Options::default().files, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Bytes of PostMark's largest file
    #[arg(long, value_name = "N", default_value_t = patches::Options::default().max_bytes, value_parser = clap::value_parser!(u32).range(500..=16_000_000))]
    max_bytes: u32,
    /// How often each workload runs; the least CPU time counts
    #[arg(long, value_name = "N", default_value_t = patches::Options::default().repeats, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Instead, time single operations with 1,000 to 1,000,000 dirty blocks
    #[arg(long, conflicts_with_all = ["files", "max_bytes", "repeats"])]
    scale: bool,
    /// With --scale, also write the chart to this file
    #[arg(long, value_name = "PATH", requires = "scale")]
    svg: Option<PathBuf>,
    /// Print JSON: rows of workload, optimisations, patches, undo_bytes, cpu_seconds,
    /// patch_memory_bytes, data_bytes; with --scale, of dirty_blocks, create_ns, merge_ns,
    /// write_ns, touch_ns
    #[arg(long)]
    json: bool,
}

/// Run workloads on ext2 in every mode and on the kernel's ext2, ext3 and ext4
///
/// All of them on the same loop devices, over a file on a disk and over one in memory,
/// which count writes and flushes. Needs root.
#[derive(Debug, clap::Args)]
struct Fs {
    /// A directory on a disk, instead of that for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Files in the tree that is unpacked and deleted
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().files, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
    /// Sources in the program that is built
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().sources, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sources: u32,
    /// PostMark's files, and its transactions
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().mails, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    mails: u32,
    /// Bytes of PostMark's largest file
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().max_bytes, value_parser = clap::value_parser!(u32).range(500..=4_000_000))]
    max_bytes: u32,
    /// MiB of the file of which random blocks are overwritten, each with an fsync
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().large_mib, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    large_mib: u32,
    /// Blocks that are overwritten, and transactions of SQLite in each of its modes
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().syncs, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    syncs: u32,
    /// Run only this workload; may be repeated
    #[arg(long = "workload", value_name = "NAME", value_parser = listed::<fs::Workload>(fs::Workload::ALL.map(fs::Workload::key)))]
    workloads: Vec<fs::Workload>,
    /// How often each workload runs, each time on a new file system
    #[arg(long, value_name = "N", default_value_t = fs::Options::default().repeats, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Print JSON: rows of target, backing, workload, seconds, cpu_seconds, writes, flushes
    /// and more
    #[arg(long)]
    json: bool,
}

/// Measure durable memory, beside other stores on the same memory
///
/// Berkeley DB, Tokyo Cabinet, LMDB, SQLite, RocksDB and PMDK's libpmemobj take part as far
/// as their headers are installed (on Debian libdb5.3-dev, libtokyocabinet-dev, liblmdb-dev,
/// libsqlite3-dev, librocksdb-dev, libpmemobj-dev), by C programs that this builds.
#[derive(Debug, clap::Args)]
struct Memory {
    /// A directory on the memory
    #[arg(long, value_name = "DIR", default_value_os_t = memory::Options::default().dir)]
    dir: PathBuf,
    /// A directory on a disk, for what is synced there
    #[arg(long, value_name = "DIR", default_value_os_t = memory::Options::default().disk)]
    disk: PathBuf,
    /// Measure only this part; may be repeated
    #[arg(long = "part", value_name = "PART", value_parser = listed::<memory::Part>(memory::Part::ALL))]
    parts: Vec<memory::Part>,
    /// Rounds of the hash table, of which the best counts
    #[arg(long, value_name = "N", default_value_t = memory::Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A short run: values of 64 bytes, one round, small trees and a small heap
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Print JSON: machine and notes, rows of store, op, value_bytes, threads, us_median,
    /// ops_per_second, and the other parts
    #[arg(long)]
    json: bool,
}

/// Run everything, and write tables and plots to a directory
#[derive(Debug, clap::Args)]
struct All {
    /// The directory; made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        match &self.command {
            Command::Bytes(args) if args.shared => {
                let options = shared::Options::default();
                show(waiting("counting", || shared::run(&options)), args.json)
            }
            Command::Bytes(args) => {
                let options = bytes::Options::of(args.engine).map_err(Failure::new)?;
                show(waiting("counting", || bytes::run(&options)), args.json)
            }
            Command::Micro(args) => show(
                waiting("measuring", || micro::run(&args.options())),
                args.json,
            ),
            Command::Scaling(args) => show(
                waiting("measuring", || scaling::run(&args.options())),
                args.json,
            ),
            Command::Soup(args) => show(
                waiting("measuring", || soup::run(&args.options())),
                args.json,
            ),
            Command::Workloads(args) => args.run(),
            Command::Aerie(args) => args.run(),
            Command::Scan(args) => show(
                waiting("measuring", || scan::run(&args.options())),
                args.json,
            ),
            Command::Mounted(args) => show(
                waiting("measuring", || mounted::run(&args.options())),
                args.json,
            ),
            Command::Devices(args) => show(
                waiting("measuring", || devices::run(&args.options())),
                args.json,
            ),
            Command::Patches(args) => args.run(),
            Command::Fs(args) => args.run(),
            Command::Memory(args) => args.run(),
            Command::All(args) => args.run(),
        }
    }
}

fn waiting<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let spinner = terminal::spinner(what);
    let done = work();
    spinner.finish_and_clear();
    done
}

fn show<R: Serialize + Display>(report: bench::Result<R>, json: bool) -> Outcome {
    let report = report.map_err(Failure::new)?;
    if json {
        output::print_json(&report)?;
    } else {
        output::print(format!("{report}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Soup {
    fn options(&self) -> soup::Options {
        let options = soup::Options::default();
        soup::Options {
            rounds: self.rounds,
            directories: [options.directories[0], self.names],
            files: self.files,
            ..options
        }
    }
}

impl Workloads {
    fn run(&self) -> Outcome {
        let spinner = terminal::spinner("measuring");
        let report = workloads::run(&self.options(), &mut |next| {
            spinner.set_message(next.to_owned());
        });
        spinner.finish_and_clear();
        show(report, self.json)
    }

    fn options(&self) -> workloads::Options {
        let mut options = workloads::Options {
            with_ext4: !self.no_ext4,
            with_mounts: self.mounts,
            threads: self.threads.map(usize::from),
            time: Duration::from_secs(self.seconds),
            rounds: self.rounds,
            transactions: self.transactions,
            ..workloads::Options::default()
        };
        if !self.types.is_empty() {
            options.types.clone_from(&self.types);
        }
        if !self.dirs.is_empty() {
            options.dirs.clone_from(&self.dirs);
        }
        if !self.workloads.is_empty() {
            options.workloads.clone_from(&self.workloads);
        }
        match self.quick {
            true => options.quick(),
            false => options,
        }
    }
}

impl Aerie {
    fn run(&self) -> Outcome {
        let spinner = terminal::spinner("measuring");
        let report = aerie::run(&self.options(), &mut |next| {
            spinner.set_message(next.to_owned());
        });
        spinner.finish_and_clear();
        show(report, self.json)
    }

    fn options(&self) -> aerie::Options {
        let mut options = aerie::Options {
            rounds: self.rounds,
            clients: self.clients.into(),
            ..aerie::Options::default()
        };
        if !self.parts.is_empty() {
            options.parts.clone_from(&self.parts);
        }
        if !self.targets.is_empty() {
            options.targets.clone_from(&self.targets);
        }
        if self.dir.is_some() {
            options.parts = vec![aerie::Part::Calls];
            options.dir.clone_from(&self.dir);
        }
        if let Some(mib) = self.file_mib {
            options.file_bytes = u64::from(mib) << 20;
        }
        match self.quick {
            true => options.quick(),
            false => options,
        }
    }
}

impl Devices {
    fn options(&self) -> devices::Options {
        let mut options = devices::Options {
            with_loop: self.with_loop,
            rounds: self.rounds,
            ..devices::Options::default()
        };
        if !self.dirs.is_empty() {
            options.dirs.clone_from(&self.dirs);
        }
        options
    }
}

impl Patches {
    fn run(&self) -> Outcome {
        if !self.scale {
            let options = patches::Options {
                files: self.files,
                max_bytes: self.max_bytes,
                repeats: self.repeats,
                ..patches::Options::default()
            };
            return show(waiting("measuring", || patches::run(&options)), self.json);
        }
        let options = patches::scale::Options::default();
        // Measuring takes long: what is wrong with the name is said before.
        let svg = self.svg.as_deref().map(drawing).transpose()?;
        let report = waiting("measuring", || patches::scale::run(&options));
        if let (Some(file), Ok(report)) = (svg, &report) {
            let written = file.write(report.svg(), own_file::PRIVATE);
            written.map_err(|e| Failure::about(file.path(), e))?;
        }
        show(report, self.json)
    }
}

fn drawing(path: &Path) -> Result<OwnFile, Failure> {
    OwnFile::chosen(path)
        .map_err(|e| Failure::about(path, format_args!("cannot be the drawing: {e}")))
}

impl Fs {
    fn run(&self) -> Outcome {
        let defaults = fs::Options::default();
        let options = fs::Options {
            dir: self.dir.clone().unwrap_or(defaults.dir),
            files: self.files,
            sources: self.sources,
            mails: self.mails,
            max_bytes: self.max_bytes,
            large_mib: self.large_mib,
            syncs: self.syncs,
            workloads: match &self.workloads[..] {
                [] => defaults.workloads,
                some => some.to_vec(),
            },
            repeats: self.repeats,
            ..defaults
        };
        let spinner = terminal::spinner("measuring");
        let report = fs::run(&options, &mut |next| spinner.set_message(next.to_owned()));
        spinner.finish_and_clear();
        show(report, self.json)
    }
}

impl Memory {
    fn run(&self) -> Outcome {
        let mut options = memory::Options {
            dir: self.dir.clone(),
            disk: self.disk.clone(),
            rounds: self.rounds,
            ..memory::Options::default()
        };
        if !self.parts.is_empty() {
            options.parts.clone_from(&self.parts);
        }
        if self.quick {
            options = options.quick();
        }
        let spinner = terminal::spinner("measuring");
        let report = memory::run(&options, &mut |next| spinner.set_message(next.to_owned()));
        spinner.finish_and_clear();
        show(report, self.json)
    }
}

impl Micro {
    fn options(&self) -> micro::Options {
        let mut options = micro::Options {
            dirs: self.dirs.clone(),
            with_ext4: self.ext4,
            rounds: self.rounds,
            ..micro::Options::default()
        };
        if !self.types.is_empty() {
            options.types.clone_from(&self.types);
        }
        options
    }
}

impl Scaling {
    fn options(&self) -> scaling::Options {
        let mut options = scaling::Options {
            threads: self.threads.map(usize::from),
            rounds: self.rounds,
            ..scaling::Options::default()
        };
        if !self.types.is_empty() {
            options.types.clone_from(&self.types);
        }
        if !self.dirs.is_empty() {
            options.dirs.clone_from(&self.dirs);
        }
        options
    }
}

impl Scan {
    fn options(&self) -> scan::Options {
        scan::Options {
            image: self.image.clone(),
            files: self.files,
            // The measured process must not be the one that built the image.
            program: std::env::current_exe()
                .ok()
                .filter(|_| self.image.is_none()),
            ..scan::Options::default()
        }
    }
}

impl Mounted {
    fn options(&self) -> mounted::Options {
        let mut options = mounted::Options {
            with_passthrough: !self.no_passthrough,
            files: self.files,
            repeats: self.repeats,
            ..mounted::Options::default()
        };
        if !self.types.is_empty() {
            options.types.clone_from(&self.types);
        }
        options
    }
}

impl All {
    fn run(&self) -> Outcome {
        let spinner = terminal::spinner("measuring");
        let mut progress = |next: &str| spinner.set_message(next.to_owned());
        let done = report::run_all(&self.dir, &report::Options::default(), &mut progress);
        spinner.finish_and_clear();
        done.map_err(Failure::new)?;
        output::print(format!("tables and plots are in {}\n", self.dir.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
