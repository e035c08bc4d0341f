//! Single calls of one client (Table 4.5).
//!
//! A round reads and writes blocks of a large file, appends to a log, and makes, uses and removes small
//! files of 4 KiB in one directory. After each kind of change comes a sync, whose time counts in the
//! rate, and not in the times of the calls.

use super::Row;
use crate::error::Result;
use crate::singles::{Times, timed};
use crate::tree::{OpenFile, Tree};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::time::Instant;

/// Bytes of a block, and of a small file.
const BLOCK: usize = 4096;
/// Bytes of the calls that make the large file.
const FILL: usize = 1 << 20;
/// Small files, and calls of each kind in a round.
const CALLS: u64 = 1024;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Op {
    ReadSeq,
    ReadRand,
    WriteSeq,
    WriteRand,
    Append,
    Create,
    Stat,
    Open,
    ReadSmall,
    Chmod,
    Delete,
}

impl Op {
    /// All of them, in the order of the table.
    pub(super) const ALL: [Self; 11] = [
        Self::ReadSeq,
        Self::WriteSeq,
        Self::ReadRand,
        Self::WriteRand,
        Self::Open,
        Self::Create,
        Self::Delete,
        Self::Append,
        Self::Stat,
        Self::ReadSmall,
        Self::Chmod,
    ];

    /// The rows of Table 4.5.
    pub(super) const PUBLISHED: [Self; 8] = [
        Self::ReadSeq,
        Self::WriteSeq,
        Self::ReadRand,
        Self::WriteRand,
        Self::Open,
        Self::Create,
        Self::Delete,
        Self::Append,
    ];

    /// The name in tables and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReadSeq => "read-seq-4k",
            Self::ReadRand => "read-rand-4k",
            Self::WriteSeq => "write-seq-4k",
            Self::WriteRand => "write-rand-4k",
            Self::Append => "append-4k",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Open => "open",
            Self::ReadSmall => "open+read+close",
            Self::Chmod => "chmod",
            Self::Delete => "delete",
        }
    }

    fn changes(self) -> bool {
        let reads = [
            Self::ReadSeq,
            Self::ReadRand,
            Self::Stat,
            Self::Open,
            Self::ReadSmall,
        ];
        !reads.contains(&self)
    }
}

/// Times of one kind of call.
#[derive(Default)]
struct Samples {
    times: Times,
    /// Nanoseconds of the syncs.
    syncs: f64,
}

/// Names and places, made beforehand so that they cost nothing in a round.
struct Places {
    names: Vec<CString>,
    blocks: u64,
    next: u64,
    random: fastrand::Rng,
}

impl Places {
    /// The offsets of the next blocks.
    fn following(&mut self) -> Vec<u64> {
        let (first, blocks) = (self.next, self.blocks);
        self.next = (first + CALLS) % blocks;
        let block = |n| (first + n) % blocks * BLOCK as u64;
        (0..CALLS).map(block).collect()
    }

    /// The offsets of random blocks.
    fn scattered(&mut self) -> Vec<u64> {
        let blocks = self.blocks;
        let block = |_| self.random.u64(..blocks) * BLOCK as u64;
        (0..CALLS).map(block).collect()
    }
}

/// Calls of a client, and their times.
pub(super) struct Calls<'t> {
    tree: &'t dyn Tree,
    large: Box<dyn OpenFile + 't>,
    places: Places,
    samples: BTreeMap<Op, Samples>,
}

const LOG: &CStr = c"log";

impl<'t> Calls<'t> {
    /// Makes a file of this size.
    pub(super) fn new(tree: &'t dyn Tree, file_bytes: u64) -> Result<Self> {
        tree.mkdir(c"d")?;
        let large = tree.create(c"large")?;
        large.write_bytes(0, file_bytes as usize, FILL)?;
        tree.sync()?;
        let name = |n| CString::new(format!("d/file{n:04}")).unwrap_or_default();
        let places = Places {
            names: (0..CALLS).map(name).collect(),
            blocks: (file_bytes / BLOCK as u64).max(1),
            next: 0,
            random: fastrand::Rng::with_seed(1),
        };
        Ok(Self {
            tree,
            large,
            places,
            samples: BTreeMap::new(),
        })
    }

    /// Forgets the times so far.
    pub(super) fn forget(&mut self) {
        self.samples.clear();
    }

    /// One round.
    pub(super) fn round(&mut self) -> Result<()> {
        self.large_file()?;
        self.log()?;
        self.small_files()
    }

    fn large_file(&mut self) -> Result<()> {
        let buf = &mut [0; BLOCK];
        let read = |calls: &Self, off, buf: &mut [u8]| calls.large.read(off, buf).map(drop);
        let offs = self.places.following();
        self.timed(Op::ReadSeq, offs, |calls, off| read(calls, off, buf))?;
        let offs = self.places.scattered();
        self.timed(Op::ReadRand, offs, |calls, off| read(calls, off, buf))?;
        let data = &[1; BLOCK];
        let offs = self.places.following();
        self.timed(Op::WriteSeq, offs, |calls, off| {
            calls.large.write(off, data)
        })?;
        let offs = self.places.scattered();
        self.timed(Op::WriteRand, offs, |calls, off| {
            calls.large.write(off, data)
        })
    }

    fn log(&mut self) -> Result<()> {
        let data = &[2; BLOCK];
        let tree = self.tree;
        let log = tree.create(LOG)?;
        let offs = (0..CALLS).map(|n| n * BLOCK as u64);
        self.timed(Op::Append, offs, |_, off| log.write(off, data))?;
        drop(log);
        tree.unlink(LOG)?;
        tree.sync()
    }

    fn small_files(&mut self) -> Result<()> {
        let (tree, buf, data) = (self.tree, &mut [0; BLOCK], &[3; BLOCK]);
        self.named(Op::Create, |name| tree.create(name).map(drop))?;
        for name in &self.places.names {
            tree.open(name)?.write(0, data)?;
        }
        tree.sync()?;
        self.named(Op::Stat, |name| tree.stat(name))?;
        self.named(Op::Open, |name| tree.open(name).map(drop))?;
        self.named(Op::ReadSmall, |name| {
            tree.open(name)?.read(0, buf).map(drop)
        })?;
        self.named(Op::Chmod, |name| tree.chmod(name, 0o600))?;
        self.named(Op::Delete, |name| tree.unlink(name))
    }

    /// Makes a call for the name of each small file.
    fn named(&mut self, op: Op, mut call: impl FnMut(&CStr) -> Result<()>) -> Result<()> {
        let names = std::mem::take(&mut self.places.names);
        let done = self.timed(op, &names, |_, name| call(name));
        self.places.names = names;
        done
    }

    fn timed<T>(
        &mut self,
        op: Op,
        items: impl IntoIterator<Item = T>,
        mut call: impl FnMut(&Self, T) -> Result<()>,
    ) -> Result<()> {
        let mut samples = self.samples.remove(&op).unwrap_or_default();
        timed(items, &mut samples.times, |item| call(self, item))?;
        if op.changes() {
            let begun = Instant::now();
            self.tree.sync()?;
            samples.syncs += begun.elapsed().as_nanos() as f64;
        }
        self.samples.insert(op, samples);
        Ok(())
    }

    /// The figures.
    pub(super) fn rows(mut self, target: &str) -> Vec<Row> {
        let row = |op: Op| {
            let Samples { times, syncs } = self.samples.remove(&op)?;
            let seconds = (times.iter().sum::<f64>() + syncs) / 1e9;
            let rate = times.len() as f64 / seconds.max(1e-9);
            Some(Row::of(target, op.name(), [1, 1], times, rate))
        };
        Op::ALL.into_iter().filter_map(row).collect()
    }
}
