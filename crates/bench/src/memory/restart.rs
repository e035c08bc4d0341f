//! The cost of a restart: recovery of logs that are as full as commits leave them, and the scan
//! of a heap that is full of small blocks, for the only one that is free. The mapping is new
//! each time, so that its page faults count; what a program does before it opens its memory
//! does not.

use super::Options;
use super::ground::{self, Durable};
use crate::error::{Context, Result};
use crate::stats;
use medium::{MapOptions, MappedPmem, Reserve};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::{self, Layout, RegionKind};
use mnemosyne::tx::{Stop, TxError};
use serde::Serialize;
use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// Runs of each measurement.
const REPEATS: usize = 5;

/// Bytes that each transaction in the logs wrote, in one piece.
const WRITE_BYTES: u64 = 64;
/// Bytes of the record of a transaction: the head of the record, the stamp, the head of the run
/// and 8 words, with torn bits, in whole lines.
const RECORD_BYTES: u64 = 128;
/// Bytes of the region that the transactions write to.
const REGION_BYTES: u64 = 64 << 20;

/// Bytes of the blocks that the heap is full of.
const BLOCK_BYTES: u64 = 64;
/// Blocks that one transaction allocates.
const BLOCKS: u64 = 1024;

/// Medians of all runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Transactions in all logs together.
    pub transactions: u64,
    /// Bytes of the records of these transactions.
    pub record_bytes: u64,
    /// Seconds to map the memory and recover it.
    pub recovery_seconds: f64,
    /// Bytes of the heap.
    pub heap_bytes: u64,
    /// Blocks in the heap.
    pub heap_blocks: u64,
    /// Seconds to map the memory and open it, with empty logs.
    pub open_seconds: f64,
    /// Seconds of the first allocation, which scans all of the heap.
    pub scan_seconds: f64,
}

impl Report {
    /// Microseconds of a transaction that is replayed.
    pub fn us_per_transaction(&self) -> f64 {
        self.recovery_seconds * 1e6 / self.transactions as f64
    }

    /// Seconds to recover a GiB of records.
    pub fn recovery_seconds_per_gib(&self) -> f64 {
        per_gib(self.recovery_seconds, self.record_bytes)
    }

    /// Seconds until the first allocation is done, for a GiB of heap.
    pub fn restart_seconds_per_gib(&self) -> f64 {
        per_gib(self.open_seconds + self.scan_seconds, self.heap_bytes)
    }
}

fn per_gib(seconds: f64, bytes: u64) -> f64 {
    seconds * (1_u64 << 30) as f64 / bytes as f64
}

/// Measures recovery and the scan of the heap.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let mut report = Report {
        transactions: 0,
        record_bytes: 0,
        recovery_seconds: 0.0,
        heap_bytes: 0,
        heap_blocks: 0,
        open_seconds: 0.0,
        scan_seconds: 0.0,
    };
    recovery(options, &mut report)?;
    scan(options, &mut report)?;
    Ok(report)
}

/// A file of memory that can be mapped again. It is already unlinked: it is removed with
/// this process, however that ends.
struct Image {
    file: File,
}

impl Image {
    fn new(options: &Options, bytes: u64) -> Result<Self> {
        let what = || format!("making an image in {}", options.dir.display());
        let dir = tempfile::Builder::new()
            .prefix("selvedge-restart-")
            .tempdir_in(&options.dir)
            .what(what)?;
        let path = dir.path().join("image");
        medium::create_file(&path, bytes, Reserve::Whole).what(what)?;
        let file = File::open(path).what(what)?;
        Ok(Self { file })
    }

    fn map(&self) -> Result<Arc<MappedPmem>> {
        let options = MapOptions {
            force_flush: true,
            ..MapOptions::default()
        };
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mapped = MappedPmem::open(path, &options);
        mapped.what(|| "mapping an image".into()).map(Arc::new)
    }

    fn open(&self, options: &memory::Options) -> Result<Durable<Arc<MappedPmem>>> {
        ground::open(self.map()?, options)
    }
}

fn recovery(options: &Options, report: &mut Report) -> Result<()> {
    let layout = Layout::default();
    let image = Image::new(options, layout.bytes() + 2 * REGION_BYTES)?;
    let store_options = ground::options();
    layout
        .format(&image.map()?)
        .what(|| "making durable memory".into())?;
    // As many as leave a log less than half full: one more round, and a commit truncates.
    let each = layout.log_bytes / 2 / RECORD_BYTES * 15 / 16;
    let mut samples = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        fill_logs(&image.open(&store_options)?, &layout, each)?;
        let start = Instant::now();
        let store = image.open(&store_options)?;
        samples.push(start.elapsed().as_secs_f64());
        drop(store);
    }
    report.transactions = each * layout.logs;
    report.record_bytes = report.transactions * RECORD_BYTES;
    report.recovery_seconds = stats::median(&mut samples).unwrap_or_default();
    Ok(())
}

/// Leaves that many transactions in each log.
fn fill_logs(store: &Durable<Arc<MappedPmem>>, layout: &Layout, each: u64) -> Result<()> {
    let there = store.regions().what(|| "finding a region".into())?;
    let start = match there.first() {
        Some(region) => region.start,
        None => {
            let made = store.map(RegionKind::Program, REGION_BYTES, 0, |_, _| Ok(()));
            made.what(|| "making a region".into())?.start
        }
    };
    let low_water = store.memory().low_water();
    let mut random = fastrand::Rng::with_seed(4);
    // In sequence: sessions spread over the logs.
    let mut sessions: Vec<_> = (0..layout.logs).map(|_| store.session()).collect();
    for _ in 0..each {
        for session in &mut sessions {
            let at = start + random.u64(..REGION_BYTES / WRITE_BYTES) * WRITE_BYTES;
            let value = [random.u8(..); WRITE_BYTES as usize];
            let done = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.write(at, &value)?));
            done.what(|| "filling a log".into())?;
        }
    }
    debug_assert_eq!(
        store.memory().low_water(),
        low_water,
        "nothing was truncated"
    );
    Ok(())
}

fn scan(options: &Options, report: &mut Report) -> Result<()> {
    let layout = Layout::default();
    let room = layout.bytes().next_multiple_of(layout.granule);
    let image = Image::new(options, room + options.heap_bytes)?;
    let store_options = memory::Options::default();
    layout
        .format(&image.map()?)
        .what(|| "making durable memory".into())?;
    (report.heap_blocks, report.heap_bytes) = fill_heap(&image.open(&store_options)?)?;
    let (mut opens, mut scans) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let start = Instant::now();
        let store = image.open(&store_options)?;
        let opened = start.elapsed();
        let mut session = store.session();
        let block = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.alloc(BLOCK_BYTES)?));
        let done = start.elapsed();
        let block = block.what(|| "allocating".into())?;
        opens.push(opened.as_secs_f64());
        scans.push((done - opened).as_secs_f64());
        let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(block)?));
        freed.what(|| "freeing".into())?;
        truncate(&store)?;
    }
    report.open_seconds = stats::median(&mut opens).unwrap_or_default();
    report.scan_seconds = stats::median(&mut scans).unwrap_or_default();
    Ok(())
}

/// Fills the heap, as far as it grows, and frees the last block. Returns the number of blocks and
/// the bytes of the heap.
fn fill_heap(store: &Durable<Arc<MappedPmem>>) -> Result<(u64, u64)> {
    let mut session = store.session();
    let (mut blocks, mut last) = (0, 0);
    let mut some = BLOCKS;
    while some > 0 {
        let done = session.run(|tx| {
            let mut off = 0;
            for _ in 0..some {
                off = tx.alloc(BLOCK_BYTES)?;
            }
            Ok::<_, Stop<Infallible>>(off)
        });
        match done {
            Ok(off) => (blocks, last) = (blocks + some, off),
            // The last ones go one by one.
            Err(TxError::Heap(HeapError::NoSpace { .. })) => some /= 2,
            Err(error) => return Err(error).what(|| "filling the heap".into()),
        }
    }
    let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(last)?));
    freed.what(|| "freeing a block".into())?;
    truncate(store)?;
    let segments = store.heap().segments();
    let bytes = segments.iter().map(|s| s.end() - s.start).sum();
    Ok((blocks - 1, bytes))
}

fn truncate(store: &Durable<Arc<MappedPmem>>) -> Result<()> {
    let truncated = store.memory().truncate();
    truncated
        .map_err(memory::MemoryError::from)
        .what(|| "truncating".into())
}
