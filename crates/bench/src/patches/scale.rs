//! Whether the patch graph is as quick with a full cache as with an empty one: time to
//! make a patch, to merge a change into one and to write one block back, with ever more
//! dirty blocks.
//!
//! The blocks are half data and half pointers, and each pointer's change comes after a
//! datum's. Half of them are there when the making of the others is timed; then as many
//! changes as there are blocks merge into random ones; then a tenth of the blocks is
//! written, in waves. Blocks are small, so that the graph and not the memory's bandwidth
//! is measured.
//!
//! Work that no graph can avoid is measured beside it: to find random blocks in a hash table
//! and to change four bytes of each, in memory that is ever larger than the caches.

use super::mount::cpu_seconds;
use crate::chart::Chart;
use crate::error::{Context, Result};
use crate::machine::Machine;
use crate::stats::median;
use crate::table::{Grid, count, figure};
use medium::block::{Geometry, Lba, MemoryDevice};
use patch::{
    Before, Cache, CacheOptions, Change, Content, DeviceStore, Op, PatchId, Rule, Store, StoreError,
};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

const BLOCK_BYTES: u32 = 512;

/// Blocks in a wave.
const WAVE: usize = 64;

/// The most that the largest cache may take, in times of the smallest.
const FLAT: f64 = 2.0;

/// Figures for each size.
const KINDS: usize = 4;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Numbers of dirty blocks.
    pub sizes: Vec<u32>,
    /// Patches made in all runs of one size, at least: small caches are measured more
    /// often, and none less than three times.
    pub patches: u32,
}

impl Default for Options {
    /// Up to a million dirty blocks.
    fn default() -> Self {
        Self {
            sizes: vec![1000, 10_000, 100_000, 1_000_000],
            patches: 100_000,
        }
    }
}

/// Times of one number of dirty blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Dirty blocks.
    pub dirty_blocks: u32,
    /// Nanoseconds of CPU time to make a patch with one before; the median run.
    pub create_ns: f64,
    /// Nanoseconds of CPU time to merge a change into a patch.
    pub merge_ns: f64,
    /// Nanoseconds of CPU time to choose a block, write it to memory and commit it.
    pub write_ns: f64,
    /// Nanoseconds of CPU time to find a random block in a hash table and change it, without a
    /// graph.
    pub touch_ns: f64,
}

/// The column of the work without a graph.
const TOUCH: &str = "touch a block without a graph";

/// The measurements and the machine. As JSON, the rows.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// One row for each size.
    pub rows: Vec<Row>,
    /// The conditions.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// If the cache refuses something.
pub fn run(options: &Options) -> Result<Report> {
    let mut times: Vec<[Vec<f64>; KINDS]> = vec![Default::default(); options.sizes.len()];
    let runs = |size: u32| (options.patches / size.max(1)).clamp(3, 100);
    let most = options.sizes.iter().map(|size| runs(*size)).max();
    // Sizes take turns, so that what else the machine does strikes all.
    for turn in 0..most.unwrap_or(0) {
        for (size, times) in options.sizes.iter().zip(&mut times) {
            if turn < runs(*size) {
                let taken = measure(*size).map_err(std::io::Error::other);
                let taken = taken.what(|| format!("measuring {size} blocks"))?;
                times
                    .iter_mut()
                    .zip(taken)
                    .for_each(|(all, ns)| all.push(ns));
            }
        }
    }
    let row = |(size, times): (&u32, &mut [Vec<f64>; KINDS])| {
        let [create_ns, merge_ns, write_ns, touch_ns] =
            times.each_mut().map(|ns| median(ns).unwrap_or(f64::NAN));
        Row {
            dirty_blocks: *size,
            create_ns,
            merge_ns,
            write_ns,
            touch_ns,
        }
    };
    Ok(Report {
        rows: options.sizes.iter().zip(&mut times).map(row).collect(),
        notes: vec![
            format!("{}.", Machine::here()),
            format!("Blocks of {BLOCK_BYTES} bytes, waves of {WAVE}, CPU time, medians."),
        ],
    })
}

/// A cache whose blocks are all clean and in memory.
struct Bed {
    cache: Arc<Cache>,
    volume: DeviceStore,
    op: Op,
    /// The patches of data, by number.
    data: Vec<PatchId>,
    blocks: u32,
}

fn measure(blocks: u32) -> std::result::Result<[f64; KINDS], StoreError> {
    let mut bed = Bed::new(blocks)?;
    let mut random = fastrand::Rng::with_seed(1);
    bed.make(0, blocks / 2)?;
    let create = bed.timed(blocks - blocks / 2, |bed| bed.make(blocks / 2, blocks))?;
    let merge = bed.timed(blocks, |bed| {
        (0..blocks).try_for_each(|_| bed.change(random.u32(..blocks), 64, &[]).map(drop))
    })?;
    let to_write = (blocks / 10).max(1) as usize;
    let start = cpu_seconds();
    let mut written = 0;
    while written < to_write {
        match bed.cache.write_some()? {
            0 => break,
            some => written += some,
        }
    }
    let write = per_operation(start, written);
    bed.volume.end(bed.op);
    drop(bed.cache);
    Ok([create, merge, write, touch(blocks)])
}

fn touch(blocks: u32) -> f64 {
    let block = || vec![0_u8; BLOCK_BYTES as usize].into_boxed_slice();
    let mut all: HashMap<u32, Box<[u8]>> = (0..blocks).map(|lba| (lba, block())).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let start = cpu_seconds();
    for n in 0..blocks {
        if let Some(block) = all.get_mut(&random.u32(..blocks)) {
            block[64..68].copy_from_slice(&n.to_le_bytes());
        }
    }
    std::hint::black_box(&all);
    per_operation(start, blocks as usize)
}

fn per_operation(start: f64, count: usize) -> f64 {
    (cpu_seconds() - start) * 1e9 / count.max(1) as f64
}

impl Bed {
    fn new(blocks: u32) -> std::result::Result<Self, StoreError> {
        let device = MemoryDevice::new(Geometry {
            block_bytes: BLOCK_BYTES,
            blocks: blocks.into(),
        });
        let options = CacheOptions {
            blocks: blocks as usize + 1,
            dirty_limit: blocks as usize + 1,
            wave: WAVE,
            interval: None,
            ..CacheOptions::default()
        };
        let cache = Arc::new(Cache::new(vec![Box::new(device)], options));
        let volume = cache.store(0);
        for lba in 0..blocks {
            volume.read(Lba(lba.into()))?;
        }
        Ok(Self {
            op: volume.begin(1, patch::Caller::SYSTEM)?,
            cache,
            volume,
            data: Vec::new(),
            blocks,
        })
    }

    fn timed(
        &mut self,
        count: u32,
        work: impl FnOnce(&mut Self) -> std::result::Result<(), StoreError>,
    ) -> std::result::Result<f64, StoreError> {
        let start = cpu_seconds();
        work(self)?;
        Ok(per_operation(start, count as usize))
    }

    /// Makes blocks dirty: a datum, and then a pointer to it, far away.
    fn make(&mut self, from: u32, to: u32) -> std::result::Result<(), StoreError> {
        for number in from..to {
            let datum = (number / 2) as usize;
            if number % 2 == 0 {
                let patch = self.change(number / 2, 0, &[])?;
                self.data.push(patch);
            } else {
                let before = Before {
                    patch: self.data[datum],
                    rule: Rule::InitialiseBeforePoint,
                };
                self.change(self.blocks.div_ceil(2) + number / 2, 0, &[before])?;
            }
        }
        Ok(())
    }

    fn change(
        &self,
        lba: u32,
        at: u32,
        befores: &[Before],
    ) -> std::result::Result<PatchId, StoreError> {
        let bytes = &(lba + at + 1).to_le_bytes();
        let change = Change::Bytes { at, bytes };
        let lba = Lba(lba.into());
        let made = self
            .volume
            .change(&self.op, lba, Content::Metadata, change, befores)?;
        Ok(made.id)
    }
}

impl Report {
    fn columns(row: &Row) -> [(&'static str, f64); KINDS] {
        [
            ("create", row.create_ns),
            ("merge", row.merge_ns),
            ("select and write", row.write_ns),
            (TOUCH, row.touch_ns),
        ]
    }

    /// A line for each size.
    pub(crate) fn grid(&self) -> Grid {
        let heads = [
            "dirty blocks",
            "create ns",
            "merge ns",
            "select and write ns",
            "touch ns",
        ];
        let cells = |row: &Row| {
            let mut line = vec![count(Some(row.dirty_blocks.into()))];
            line.extend(Self::columns(row).map(|(_, ns)| figure(Some(ns))));
            line
        };
        Grid {
            heads: heads.map(String::from).to_vec(),
            rows: self.rows.iter().map(cells).collect(),
        }
    }

    /// Returns a line for each operation: its time with the largest cache in that with the
    /// smallest.
    pub fn goals(&self) -> Vec<String> {
        let (Some(least), Some(most)) = (self.rows.first(), self.rows.last()) else {
            return Vec::new();
        };
        let pairs = Self::columns(least).into_iter().zip(Self::columns(most));
        let line = |((what, small), (_, large)): ((&str, f64), (&str, f64))| {
            let times = large / small;
            let met = match what {
                TOUCH => "none",
                _ if times <= FLAT => "met",
                _ => "missed",
            };
            let (from, to) = (
                count(Some(least.dirty_blocks.into())),
                count(Some(most.dirty_blocks.into())),
            );
            format!(
                "{met:6}  {what}: {times:.2} times from {from} to {to} blocks (goal: at most {FLAT})"
            )
        };
        pairs.map(line).collect()
    }

    /// The figures as bars.
    pub fn svg(&self) -> String {
        let group = |row: &Row| {
            let name = format!("{} dirty blocks", count(Some(row.dirty_blocks.into())));
            (name, Self::columns(row).map(|(_, ns)| Some(ns)).to_vec())
        };
        let series = [
            "create a patch",
            "merge a change",
            "select and write a block",
            TOUCH,
        ];
        Chart {
            title: "Nanoseconds per operation with a filling cache (less is better)".into(),
            series: series.map(String::from).to_vec(),
            groups: self.rows.iter().map(group).collect(),
        }
        .svg()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n\n{}\n", self.notes.join("\n"), self.grid().text())?;
        write!(f, "{}", self.goals().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timed_calls_make_merge_and_write_patches() {
        let mut bed = Bed::new(101).unwrap();
        bed.make(0, 101).unwrap();
        let stats = bed.cache.stats();
        assert_eq!(
            (stats.dirty, stats.graph.patches, stats.graph.edges),
            (101, 101, 50)
        );
        bed.change(7, 64, &[]).unwrap();
        let merged = bed.cache.stats().graph;
        assert_eq!(merged.patches, 101);
        assert_eq!(merged.merged_hard + merged.merged_overlap, 1);
        assert_eq!(bed.cache.write_some().unwrap(), WAVE.min(51));
        assert_eq!(bed.cache.dirty(), 50);
    }

    #[test]
    fn every_size_has_a_row_and_flatness_is_judged() {
        let options = Options {
            sizes: vec![10, 200],
            patches: 100,
        };
        let report = run(&options).unwrap();
        assert!(
            report
                .rows
                .iter()
                .all(|r| r.create_ns > 0.0 && r.merge_ns > 0.0 && r.write_ns > 0.0)
        );
        assert_eq!(report.goals().len(), KINDS);
        assert_eq!(report.svg().matches("dirty blocks").count(), 2);
        let row = |dirty_blocks, ns| Row {
            dirty_blocks,
            create_ns: ns,
            merge_ns: ns,
            write_ns: 1.0,
            touch_ns: 1.0,
        };
        let rows = vec![row(1000, 100.0), row(1_000_000, 201.0)];
        let goals = Report {
            rows,
            notes: Vec::new(),
        }
        .goals();
        assert!(
            goals[0].starts_with("missed  create") && goals[2].starts_with("met "),
            "{goals:?}"
        );
    }
}
