//! A small directory, and a large one.

use super::Row;
use super::calls::Times;
use crate::error::{Context, Result};
use crate::{Engine, images};
use engine::{Scratch, ScratchOptions};
use std::time::Instant;
use vfs::{Ctx, FileSystem, Ino};

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
        let name = format!("directory-{size}");
        let dir = fs
            .mkdir(&cx, Ino::ROOT, name.as_bytes(), 0o755)
            .what(what)?
            .ino;
        (0..size).try_for_each(|n| make(&*fs, dir, n)).what(what)?;
        fs.sync().what(what)?;
        let mut random = fastrand::Rng::with_seed(1);
        let find = |_| {
            let name = format!("name-{}", random.u64(..size));
            let found = fs.lookup(&cx, dir, name.as_bytes())?;
            fs.forget(found.ino, 1);
            Ok(())
        };
        let looked = timed(0..CALLS, find).what(what)?;
        let made = timed(size..size + CALLS, |n| make(&*fs, dir, n)).what(what)?;
        for (call, times) in [("lookup", looked), ("create", made)] {
            rows.extend(Row::of(&engine.to_string(), &op(call, size), 0, times));
        }
    }
    Ok(rows)
}

fn make(fs: &dyn FileSystem, dir: Ino, n: u64) -> vfs::Result<()> {
    let made = fs.create(&Ctx::root(), dir, format!("name-{n}").as_bytes(), 0o644)?;
    fs.forget(made.ino, 1);
    Ok(())
}

/// Times of single calls.
fn timed(
    range: std::ops::Range<u64>,
    mut call: impl FnMut(u64) -> vfs::Result<()>,
) -> vfs::Result<Times> {
    let mut times = Times::new();
    for n in range {
        let begun = Instant::now();
        call(n)?;
        times.push(begun.elapsed().as_nanos() as f64);
    }
    Ok(times)
}
