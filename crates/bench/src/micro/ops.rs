//! The operations, and the order in which a slice performs them.
//!
//! A slice leaves the target as it found it, so that slices can repeat and interleave.

use super::surface::{Surface, WorkDir};
use crate::Result;
use std::ffi::CString;

/// Bytes of a block: the size of most reads and writes here.
pub(crate) const BLOCK: usize = 4096;

/// Blocks of the file that is read and overwritten: 4 MiB, more than a core's own caches
/// and less than its TLB reaches.
pub(crate) const FILE_BLOCKS: u64 = 1024;

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Op {
    Create,
    Unlink,
    Mkdir,
    Rmdir,
    Open,
    ReadSeq,
    ReadRand,
    WriteSeq,
    WriteRand,
    Append,
    Overwrite8,
    Overwrite4k,
    Rename,
    RenameCross,
    WriteFsync,
}

impl Op {
    pub(super) const ALL: [Op; 15] = [
        Op::Create,
        Op::Unlink,
        Op::Mkdir,
        Op::Rmdir,
        Op::Open,
        Op::ReadSeq,
        Op::ReadRand,
        Op::WriteSeq,
        Op::WriteRand,
        Op::Append,
        Op::Overwrite8,
        Op::Overwrite4k,
        Op::Rename,
        Op::RenameCross,
        Op::WriteFsync,
    ];

    /// The name in tables and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Create => "create",
            Op::Unlink => "unlink",
            Op::Mkdir => "mkdir",
            Op::Rmdir => "rmdir",
            Op::Open => "open",
            Op::ReadSeq => "read-seq-4k",
            Op::ReadRand => "read-rand-4k",
            Op::WriteSeq => "write-seq-4k",
            Op::WriteRand => "write-rand-4k",
            Op::Append => "append-4k",
            Op::Overwrite8 => "overwrite-8b",
            Op::Overwrite4k => "overwrite-4k",
            Op::Rename => "rename",
            Op::RenameCross => "rename-cross",
            Op::WriteFsync => "write-fsync-4k",
        }
    }
}

/// A meter of the operations: the clock, or the counters of the medium.
pub(super) trait Meter {
    /// Performs `call(0)` to `call(n - 1)`, each one `op`.
    fn run(&mut self, op: Op, n: usize, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()>;
}

/// Names and offsets of one slice, made beforehand so that they cost nothing in it.
pub(super) struct Slice {
    names: Vec<CString>,
    moved: Vec<CString>,
    blocks: Vec<u64>,
    data: Vec<u8>,
    buf: Vec<u8>,
    random: fastrand::Rng,
}

impl Slice {
    /// Slices of `len` operations of each kind.
    pub(super) fn new(len: usize) -> Self {
        let name = |prefix: &str, i: usize| {
            CString::new(format!("{prefix}{i:04}")).expect("no NUL in a formatted number")
        };
        Self {
            names: (0..len).map(|i| name("file", i)).collect(),
            moved: (0..len).map(|i| name("moved", i)).collect(),
            blocks: Vec::new(),
            data: vec![0x5a; BLOCK],
            buf: vec![0; BLOCK],
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// One slice of every operation on one target.
    pub(super) fn run(&mut self, target: &mut dyn Surface, meter: &mut dyn Meter) -> Result<()> {
        self.names(target, meter)?;
        self.directories(target, meter)?;
        self.reads(target, meter)?;
        self.overwrites(target, meter)?;
        self.appends(target, meter)
    }

    fn names(&self, target: &mut dyn Surface, meter: &mut dyn Meter) -> Result<()> {
        use WorkDir::{A, B};
        let (names, moved, n) = (&self.names, &self.moved, self.names.len());
        meter.run(Op::Create, n, &mut |i| target.create(A, &names[i]))?;
        meter.run(Op::Open, n, &mut |i| target.open(A, &names[i]))?;
        meter.run(Op::Rename, n, &mut |i| {
            target.rename(A, &names[i], A, &moved[i])
        })?;
        meter.run(Op::RenameCross, n, &mut |i| {
            target.rename(A, &moved[i], B, &names[i])
        })?;
        meter.run(Op::Unlink, n, &mut |i| target.unlink(B, &names[i]))
    }

    fn directories(&self, target: &mut dyn Surface, meter: &mut dyn Meter) -> Result<()> {
        let (names, n) = (&self.names, self.names.len());
        meter.run(Op::Mkdir, n, &mut |i| target.mkdir(WorkDir::A, &names[i]))?;
        meter.run(Op::Rmdir, n, &mut |i| target.rmdir(WorkDir::A, &names[i]))
    }

    fn reads(&mut self, target: &mut dyn Surface, meter: &mut dyn Meter) -> Result<()> {
        self.choose_blocks();
        let n = self.names.len();
        let (blocks, buf) = (&self.blocks, &mut self.buf);
        let first = blocks[0];
        meter.run(Op::ReadSeq, n, &mut |i| {
            target.read((first + i as u64) % FILE_BLOCKS * BLOCK as u64, buf)
        })?;
        meter.run(Op::ReadRand, n, &mut |i| {
            target.read(blocks[i] * BLOCK as u64, buf)
        })
    }

    fn overwrites(&mut self, target: &mut dyn Surface, meter: &mut dyn Meter) -> Result<()> {
        self.choose_blocks();
        let n = self.names.len();
        let (blocks, data) = (&self.blocks, &self.data);
        let first = blocks[0];
        let mut stamp = self.random.u64(..);
        meter.run(Op::WriteSeq, n, &mut |i| {
            target.write((first + i as u64) % FILE_BLOCKS * BLOCK as u64, data)
        })?;
        meter.run(Op::WriteRand, n, &mut |i| {
            target.write(blocks[i] * BLOCK as u64, data)
        })?;
        meter.run(Op::Overwrite8, n, &mut |i| {
            // Another word in each block, so that all cache sets take part.
            let word = (blocks[i] * 8) % BLOCK as u64;
            // And other bytes each time: an engine need not store what is there already.
            stamp = stamp.wrapping_add(0x0101_0101_0101_0101);
            target.write(blocks[i] * BLOCK as u64 + word, &stamp.to_le_bytes())
        })?;
        meter.run(Op::Overwrite4k, n, &mut |_| target.write(0, data))?;
        meter.run(Op::WriteFsync, n, &mut |i| {
            target.write_fsync(blocks[i] * BLOCK as u64, data)
        })
    }

    fn appends(&self, target: &mut dyn Surface, meter: &mut dyn Meter) -> Result<()> {
        let data = &self.data;
        meter.run(Op::Append, self.names.len(), &mut |i| {
            target.append((i * BLOCK) as u64, data)
        })?;
        target.empty_log()
    }

    /// Takes other random blocks for each slice; the same ones in every run.
    fn choose_blocks(&mut self) {
        let random = &mut self.random;
        self.blocks = (0..self.names.len())
            .map(|_| random.u64(..FILE_BLOCKS))
            .collect();
    }
}
