//! A small directory, and a large one. Beside them, the reads of memory that a lookup waits for at least.

use super::Row;
use super::calls::name;
use crate::error::{Context, Result};
use crate::singles::{Times, timed};
use crate::{Engine, images};
use engine::{Scratch, ScratchOptions};
use medium::{LINE_BYTES, MappedPmem, MediumError, Pmem, WORD_BYTES};
use std::ffi::CString;
use std::hint::black_box;
use vfs::{Ctx, Ino};

/// Memory that is large enough: for the file system, and for each file.
const MEMORY_BYTES: (u64, u64) = (64 << 20, 512);
/// Calls that are timed.
const CALLS: u64 = 10_000;

/// The target of rows of reads alone.
pub(super) const MEMORY: &str = "memory";
/// Bytes to which a name leads: a line for the name, and one for its inode.
const RECORD_BYTES: u64 = 2 * LINE_BYTES;

/// The name of a row.
pub(super) fn op(call: &str, names: u64) -> String {
    format!("{call} in {names}")
}

/// Times lookups and creates in directories of these sizes.
pub(super) fn measure(engine: Engine, sizes: [u64; 2]) -> Result<Vec<Row>> {
    let what = || "a large directory".to_owned();
    let bytes = MEMORY_BYTES.0 + MEMORY_BYTES.1 * sizes.iter().sum::<u64>();
    let bytes = bytes.next_multiple_of(4096);
    let medium = Scratch::Mapped(images::flushing_memory(bytes)?.into());
    let fs = engine.fresh_on(medium, &ScratchOptions::default())?;
    let cx = Ctx::root();
    let mut rows = Vec::new();
    for size in sizes {
        let dir = format!("directory-{size}");
        let dir = fs
            .mkdir(&cx, Ino::ROOT, dir.as_bytes(), 0o755)
            .what(what)?
            .ino;
        let make = |name: &CString| -> vfs::Result<()> {
            let made = fs.create(&cx, dir, name.as_bytes(), 0o644)?;
            fs.forget(made.ino, 1);
            Ok(())
        };
        let find = |name: &CString| -> vfs::Result<()> {
            let found = fs.lookup(&cx, dir, name.as_bytes())?;
            fs.forget(found.ino, 1);
            Ok(())
        };
        (0..size).try_for_each(|n| make(&name(n))).what(what)?;
        fs.sync().what(what)?;
        let mut random = fastrand::Rng::with_seed(1);
        let some: Vec<CString> = (0..CALLS).map(|_| name(random.u64(..size))).collect();
        let new: Vec<CString> = (size..size + CALLS).map(name).collect();
        let (mut looked, mut made) = (Times::new(), Times::new());
        timed(&some, &mut looked, find).what(what)?;
        timed(&new, &mut made, make).what(what)?;
        for (call, times) in [("lookup", looked), ("create", made)] {
            rows.extend(Row::of(&engine.to_string(), &op(call, size), 0, times));
        }
    }
    Ok(rows)
}

/// Memory with a word for each name, as an index has at least. The word leads to a record, in no order.
fn index(names: u64) -> Result<MappedPmem> {
    let first = (names * WORD_BYTES).next_multiple_of(LINE_BYTES);
    let bytes = first + names * RECORD_BYTES;
    let memory = images::flushing_memory(bytes.next_multiple_of(4096))?;
    let mut records: Vec<u64> = (0..names).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut records);
    for (name, record) in (0..).zip(records) {
        memory.store_word(name * WORD_BYTES, first + record * RECORD_BYTES);
    }
    Ok(memory)
}

/// Reads what belongs to a name: the word, and then both lines at once.
fn read(memory: &MappedPmem, name: u64) -> std::result::Result<(), MediumError> {
    let record = memory.load(name * WORD_BYTES)?;
    let lines = [record, record + LINE_BYTES].map(|line| memory.load(line));
    let [name, inode] = black_box(lines);
    name.and(inode).map(drop)
}

/// Times the reads without which no lookup in directories of these sizes finds an inode by its name.
pub(super) fn measure_reads(sizes: [u64; 2]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for size in sizes {
        let memory = index(size)?;
        let mut random = fastrand::Rng::with_seed(1);
        let some: Vec<u64> = (0..CALLS).map(|_| random.u64(..size)).collect();
        let mut times = Times::new();
        timed(some, &mut times, |name| read(&memory, name)).what(|| "reads of memory".into())?;
        rows.extend(Row::of(MEMORY, &op("lookup", size), 0, times));
    }
    Ok(rows)
}
