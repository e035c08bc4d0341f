//! The options of the benchmark: targets, parts and sizes.

use crate::error::{Error, Result};
use crate::{machine, target};
use std::path::PathBuf;
use std::time::Duration;

/// Memory beyond that of the large file, for the small ones and the logs of file systems.
pub(super) const ROOM: u64 = 64 << 20;

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
    /// PXFS by system calls of a program under `selvedge run`.
    Run,
    /// Clients of KVFS that are called in this process, for one workload.
    Kvfs,
}

impl Target {
    /// All targets, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::Pxfs,
        Self::Bpfs,
        Self::Soupfs,
        Self::Tmpfs,
        Self::Ext4,
        Self::Fuse,
        Self::Run,
        Self::Kvfs,
    ];

    /// Those whose files this process can use.
    pub(super) const CALLED: [Self; 6] = [
        Self::Pxfs,
        Self::Bpfs,
        Self::Soupfs,
        Self::Tmpfs,
        Self::Ext4,
        Self::Fuse,
    ];

    /// Those whose memory can have delays.
    pub(super) const DELAYED: [Self; 3] = [Self::Pxfs, Self::Bpfs, Self::Soupfs];

    /// Its name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pxfs => "pxfs",
            Self::Bpfs => "bpfs",
            Self::Soupfs => "soupfs",
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
            Self::Fuse => "fuse",
            Self::Run => "run",
            Self::Kvfs => "kvfs",
        }
    }

    /// The way to make it for calls of this process. `None` if it needs another process.
    pub(super) fn to_make(self) -> Result<Option<target::Target>> {
        Ok(Some(match self {
            Self::Pxfs => target::Target::Pxfs,
            Self::Bpfs | Self::Soupfs => {
                target::Target::Engine(self.name().parse().map_err(Error::Usage)?)
            }
            Self::Tmpfs => target::Target::Directory("/dev/shm".into()),
            Self::Ext4 => target::Target::Ext4,
            Self::Fuse => target::Target::Fuse,
            Self::Kvfs => target::Target::Kvfs,
            Self::Run => return Ok(None),
        }))
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
    /// Changes of protection.
    Protection,
    /// Programs that make and remove a tree of files.
    Untar,
}

impl Part {
    /// All parts, in the order of the report.
    pub const ALL: [Self; 7] = [
        Self::Calls,
        Self::Sharing,
        Self::Workloads,
        Self::Clients,
        Self::Batches,
        Self::Protection,
        Self::Untar,
    ];

    /// The name of the part, as `--part` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Sharing => "sharing",
            Self::Workloads => "workloads",
            Self::Clients => "clients",
            Self::Batches => "batches",
            Self::Protection => "protection",
            Self::Untar => "untar",
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
    /// Instead of them a directory, by system calls. It has single calls only.
    pub dir: Option<PathBuf>,
    /// The `selvedge` program, which mounts.
    pub program: PathBuf,
    /// Bytes of the large file.
    pub file_bytes: u64,
    /// Rounds of single calls.
    pub rounds: u32,
    /// Files of each workload.
    pub files: usize,
    /// Files of the tree that programs unpack.
    pub tree_files: u32,
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
            dir: None,
            program: std::env::current_exe().unwrap_or_else(|_| "selvedge".into()),
            file_bytes: usual_file_bytes(),
            rounds: 30,
            files: 1000,
            tree_files: 17_000,
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
            tree_files: 200,
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
