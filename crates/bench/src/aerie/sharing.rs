//! Several clients that read and write blocks of one file, or of a file each (Figure 4.6): the same block, or
//! one at random in each call. Beside them threads do the same with blocks of memory alone: a processor that
//! reads what another one has just written waits for it, and no file system can be faster than that. How long
//! depends on where a virtual machine's processors are at the moment, so that all take turns in each case.

use super::Row;
use crate::error::{Context, Result};
use crate::singles::clock_ns;
use crate::target::Made;
use crate::tree::{OpenFile, Tree};
use medium::{MemoryPmem, Pmem};
use std::ffi::CString;
use std::fmt;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
/// Blocks of a file: for calls that share one, and for those at random. The latter are more than the cache of
/// a processor holds.
const BLOCKS: [u64; 2] = [1, 2048];

/// The work of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Reader,
    Writer,
}

impl Role {
    /// The name of its rows.
    pub(super) fn op(self, case: Case) -> String {
        let what = match self {
            Self::Reader => "read",
            Self::Writer => "write",
        };
        let (at_random, mix, files) = (case.at_random(), case.mix.name(), case.files());
        format!("{what}{at_random}, {mix}, {files}")
    }
}

/// Some clients at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mix {
    Readers,
    OneWriter,
    Writers,
}

impl Mix {
    pub(super) const ALL: [Self; 3] = [Self::Readers, Self::OneWriter, Self::Writers];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Readers => "readers",
            Self::OneWriter => "a writer and readers",
            Self::Writers => "writers",
        }
    }

    fn role(self, client: usize) -> Role {
        match (self, client) {
            (Self::Writers, _) | (Self::OneWriter, 0) => Role::Writer,
            _ => Role::Reader,
        }
    }
}

/// The work of some clients, and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) mix: Mix,
    pub(super) is_shared: bool,
    /// Blocks of a file, of which each call takes one.
    pub(super) blocks: u64,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let mixes = Mix::ALL.into_iter();
        mixes.flat_map(|mix| {
            BLOCKS
                .into_iter()
                .flat_map(move |blocks| Self::of(mix, blocks))
        })
    }

    /// The clients in files of their own, and in one.
    pub(super) fn of(mix: Mix, blocks: u64) -> [Self; 2] {
        [false, true].map(|is_shared| Self {
            mix,
            is_shared,
            blocks,
        })
    }

    fn at_random(self) -> &'static str {
        if self.blocks > 1 { " at random" } else { "" }
    }

    fn files(self) -> &'static str {
        match self.is_shared {
            true => "one file",
            false => "own files",
        }
    }

    /// One writer beside readers, for each number of blocks: in files of their own, and in one.
    pub(super) fn one_writer() -> [[Self; 2]; 2] {
        BLOCKS.map(|blocks| Self::of(Mix::OneWriter, blocks))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mix, at_random, files) = (self.mix.name(), self.at_random(), self.files());
        write!(f, "{mix}{at_random}, {files}")
    }
}

/// Nanoseconds of calls.
type Figures = (Role, Vec<f64>);

/// The blocks of a client, by offset.
trait Blocks {
    fn load(&self, at: u64, buf: &mut [u8]) -> Result<()>;
    fn store(&self, at: u64, data: &[u8]) -> Result<()>;
}

impl Blocks for Box<dyn OpenFile + '_> {
    fn load(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.read(at, buf).map(drop)
    }

    fn store(&self, at: u64, data: &[u8]) -> Result<()> {
        self.write(at, data)
    }
}

/// Blocks of memory, from an offset on.
struct Bare<'a>(&'a MemoryPmem, u64);

impl Blocks for Bare<'_> {
    fn load(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.0
            .read(self.1 + at, buf)
            .what(|| "read of memory".into())
    }

    fn store(&self, at: u64, data: &[u8]) -> Result<()> {
        self.0.store(self.1 + at, data);
        Ok(())
    }
}

/// Bytes of a file.
const FILE: usize = BLOCK * BLOCKS[1] as usize;

/// Bytes of the files of this number of clients.
fn bytes(clients: usize) -> u64 {
    (clients * FILE) as u64
}

/// Bytes of all files of a target.
pub(super) fn all_bytes(numbers: [usize; 2]) -> u64 {
    numbers.into_iter().map(bytes).sum()
}

/// A file for each client.
pub(super) enum Files {
    /// Those of a target. The clients open them by name.
    Of(Vec<Arc<dyn Tree>>, Vec<CString>),
    /// Memory alone.
    Memory(MemoryPmem),
}

impl Files {
    pub(super) fn of(made: &Made, clients: usize) -> Result<Self> {
        let trees: Result<Vec<_>> = (0..clients).map(|_| made.client()).collect();
        let trees = trees?;
        let name = |n| CString::new(format!("block{clients}-{n}")).unwrap_or_default();
        let names: Vec<_> = (0..clients).map(name).collect();
        for name in &names {
            trees[0].create(name)?.write(0, &vec![0; FILE])?;
        }
        trees[0].sync()?;
        Ok(Self::Of(trees, names))
    }

    pub(super) fn memory(clients: usize) -> Self {
        Self::Memory(MemoryPmem::new(bytes(clients)))
    }

    /// The blocks of a file, for a client.
    fn open(&self, client: usize, file: usize) -> Result<Box<dyn Blocks + '_>> {
        Ok(match self {
            Self::Of(trees, names) => Box::new(trees[client].open(&names[file])?),
            Self::Memory(memory) => Box::new(Bare(memory, (file * FILE) as u64)),
        })
    }
}

/// Times of this number of clients on some targets, which take turns in each case.
pub(super) fn measure(
    targets: &[(String, Files)],
    clients: usize,
    time: Duration,
    next: &mut dyn FnMut(Case) -> Result<()>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in Case::all() {
        next(case)?;
        for (target, files) in targets {
            let figures = run(clients, files, case, time)?;
            rows.extend([Role::Reader, Role::Writer].into_iter().filter_map(|role| {
                let own = figures.iter().filter(|(of, _)| *of == role);
                row(target, &role.op(case), clients, own.map(|(_, times)| times))
            }));
        }
    }
    Ok(rows)
}

/// The row of the clients with these times.
fn row<'t>(
    target: &str,
    op: &str,
    clients: usize,
    all: impl Iterator<Item = &'t Vec<f64>>,
) -> Option<Row> {
    let (mut times, mut rate) = (Vec::new(), 0.0);
    for one in all {
        let seconds = one.iter().sum::<f64>() / 1e9;
        rate += one.len() as f64 / seconds.max(1e-9);
        times.extend_from_slice(one);
    }
    (!times.is_empty()).then(|| Row::of(target, op, [clients, 1], times, rate))
}

fn run(clients: usize, files: &Files, case: Case, time: Duration) -> Result<Vec<Figures>> {
    let start = Barrier::new(clients);
    let start = &start;
    thread::scope(|scope| {
        let spawn = |client: usize| {
            let file = if case.is_shared { 0 } else { client };
            let role = case.mix.role(client);
            scope.spawn(move || {
                start.wait();
                let blocks = files.open(client, file)?;
                let random = fastrand::Rng::with_seed(client as u64);
                Ok((role, one(&*blocks, (case.blocks, random), role, time)?))
            })
        };
        let running: Vec<_> = (0..clients).map(spawn).collect();
        let joined = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|e| std::panic::resume_unwind(e))
        });
        joined.collect()
    })
}

/// Nanoseconds of each call of a client that begins in this time.
fn one(
    blocks: &dyn Blocks,
    (count, mut random): (u64, fastrand::Rng),
    role: Role,
    time: Duration,
) -> Result<Vec<f64>> {
    let clock_ns = clock_ns();
    let (buf, data) = (&mut [0; BLOCK], &[1; BLOCK]);
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < time {
        let at = random.u64(..count) * BLOCK as u64;
        match role {
            Role::Reader => blocks.load(at, buf)?,
            Role::Writer => blocks.store(at, data)?,
        }
        let now = Instant::now();
        times.push(((now - last).as_nanos() as f64 - clock_ns).max(0.0));
        last = now;
    }
    Ok(times)
}
