//! A small directory, and a large one.

use super::Row;
use super::calls::name;
use crate::error::{Context, Result};
use crate::singles::{Times, timed};
use crate::{Engine, images};
use engine::{Scratch, ScratchOptions};
use std::ffi::CString;
use vfs::{Ctx, Ino};

/// Memory that is large enough: for the file system, and for each file.
const MEMORY_BYTES: (u64, u64) = (64 << 20, 512);
/// Calls that are timed.
const CALLS: u64 = 10_000;

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
