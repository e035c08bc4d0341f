//! A region beside the pool that its pages move through: 64 bytes anywhere in a working set
//! that fits, and in ones that do not.
//!
//! Pages that are not in the pool come from a file on the disk, which the system caches too, as
//! far as it has memory: what is measured is the moving of pages, and the disk where they are
//! written back. Flushes, fences and `fdatasync` are executed as for persistent memory.

use super::{Options, Report};
use crate::error::{Context, Error, Result};
use crate::stats;
use ::paging::{PageCounts, Pool, PoolError};
use medium::{Arena, MapOptions, Pmem, Rule};
use mnemosyne::memory::{
    Backing, BackingError, Directory, DirectoryOptions, DurableMemory, MemoryError, PoolOptions,
    RegionKind,
};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Working sets, in halves of the pool.
const HALVES: [u64; 4] = [1, 2, 4, 8];
const LINE: u64 = 64;

/// Calls of one kind in one working set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `read`, or `update`: stored, flushed and fenced.
    pub op: &'static str,
    /// The working set, in pools.
    pub pools: f64,
    /// Microseconds of a call: the mean, since few calls take nearly all the time.
    pub us_mean: f64,
    /// Microseconds of a call: the median.
    pub us_median: f64,
    /// Microseconds of a call: the 99th percentile.
    pub us_p99: f64,
    /// Pages that came from the file, for each call.
    pub loaded_per_op: f64,
    /// Pages that were written to the file, for each call.
    pub written_per_op: f64,
}

/// Measures all working sets. Appends the conditions to the notes, or the reason why this user
/// may not move pages.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for halves in HALVES {
        let bytes = options.pool_bytes * halves / 2;
        let region = match PagedRegion::make(options, bytes) {
            Err(error) if is_refused(&error) => {
                report.missing.push(format!("paging: {error}"));
                return Ok(());
            }
            made => made?,
        };
        if halves == HALVES[0] {
            report.notes.push(format!(
                "Paging: a pool of {} MiB, {} frames of {} KiB, files in {} ({}).",
                options.pool_bytes >> 20,
                region.pool.frames(),
                region.pool.page_bytes() >> 10,
                options.disk.display(),
                super::file_system(&options.disk),
            ));
        }
        for op in ["read", "update"] {
            let row = region.row(options, op, halves)?;
            report.paging.push(row);
        }
    }
    Ok(())
}

/// Whether the system delivers no page faults to this user.
fn is_refused(error: &Error) -> bool {
    let Error::Store { source, .. } = error else {
        return false;
    };
    matches!(
        source,
        MemoryError::Backing(BackingError::Pool(PoolError::NoFaults { .. }))
    )
}

/// A region and its pool, in directories that are removed with it.
struct PagedRegion {
    pm: Arc<Arena>,
    pool: Arc<Pool>,
    start: u64,
    bytes: u64,
    _store: DurableMemory<Directory>,
    _dirs: [tempfile::TempDir; 2],
}

impl PagedRegion {
    fn make(options: &Options, bytes: u64) -> Result<Self> {
        let what = || "making a region with a pool".into();
        let dir = |parent| {
            let mut builder = tempfile::Builder::new();
            builder.prefix("selvedge-bench-").tempdir_in(parent)
        };
        let dirs = [
            dir(&options.disk).what(what)?,
            dir(&options.dir).what(what)?,
        ];
        let directory = DirectoryOptions {
            map: MapOptions {
                force_flush: true,
                ..MapOptions::default()
            },
            pool: Some(PoolOptions {
                path: dirs[1].path().to_owned(),
                bytes: options.pool_bytes,
                page_bytes: None,
            }),
            ..DirectoryOptions::default()
        };
        let store =
            DurableMemory::open_directory(dirs[0].path(), &directory, super::ground::options());
        let store = store.what(what)?;
        let region = store.map(RegionKind::Program, bytes, 0, |_, _| Ok(()));
        let start = region.what(what)?.start;
        let pm = store.backing().pmem().clone();
        let pool = store.backing().pool().cloned();
        let paged = Self {
            pool: pool.expect("it was opened with one"),
            pm,
            start,
            bytes,
            _store: store,
            _dirs: dirs,
        };
        // All of it once, so that no page is a hole in the file.
        for page in (0..bytes).step_by(4096) {
            paged.pm.store_word(start + page, page);
        }
        paged.pm.fence(Rule::DurableBeforeReturn).what(what)?;
        Ok(paged)
    }

    fn row(&self, options: &Options, op: &'static str, halves: u64) -> Result<Row> {
        let mut samples = Vec::with_capacity(options.operations as usize);
        let mut rng = fastrand::Rng::with_seed(halves);
        let mut before = PageCounts::default();
        // The first half warms up.
        for n in 0..2 * options.operations {
            if n == options.operations {
                samples.clear();
                before = self.pool.counts();
            }
            let at = self.start + rng.u64(..self.bytes / LINE) * LINE;
            let begun = Instant::now();
            self.call(op, at, n).what(|| format!("a paged {op}"))?;
            samples.push(begun.elapsed().as_nanos() as f64 / 1e3);
        }
        let after = self.pool.counts();
        let count = samples.len() as f64;
        Ok(Row {
            op,
            pools: halves as f64 / 2.0,
            us_mean: samples.iter().sum::<f64>() / count,
            us_p99: stats::quantile(&mut samples, 0.99).unwrap_or_default(),
            us_median: stats::median(&mut samples).unwrap_or_default(),
            loaded_per_op: (after.loaded - before.loaded) as f64 / count,
            written_per_op: (after.written - before.written) as f64 / count,
        })
    }

    fn call(&self, op: &str, at: u64, n: u64) -> std::result::Result<(), medium::MediumError> {
        let mut line = [n as u8; LINE as usize];
        if op == "read" {
            return self.pm.read(at, &mut line);
        }
        self.pm.store(at, &line);
        self.pm.flush(at, LINE);
        self.pm.fence(Rule::DurableBeforeReturn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_but_a_refusal_of_page_faults_is_a_failure() {
        let of = |why: PoolError| {
            let opened: std::result::Result<(), MemoryError> = Err(why.into());
            opened.what(|| "making a region".into()).unwrap_err()
        };
        let (path, source) = ("pool".into(), std::io::Error::other("not for you"));
        assert!(is_refused(&of(PoolError::NoFaults { path, source })));
        let (path, source) = ("pool".into(), std::io::Error::other("no room"));
        let doing = "make";
        assert!(!is_refused(&of(PoolError::System {
            doing,
            path,
            source
        })));
    }
}
