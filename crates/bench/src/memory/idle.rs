//! The time at which truncation is done, Figure 3.8: in every commit, or off its path, with a
//! thread that is idle for some part of the time.
//!
//! The logs are small, so that they fill many times over while it is measured.

use super::Options;
use super::ground;
use super::hash::{Fill, Table};
use super::work::{Entries, key_of};
use crate::error::Result;
use crate::stats;
use mnemosyne::memory::{self, Layout};
use mnemosyne::tx::{self, Truncation};
use serde::Serialize;
use std::time::{Duration, Instant};

const LOG_BYTES: u64 = 256 << 10;

/// Idle shares of the thread, in percent.
const IDLE_PERCENT: [u32; 3] = [10, 50, 90];

/// The thread that makes words durable in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The thread of each commit.
    Eager,
    /// A thread of its own, once a log is half full.
    Thread,
    /// The thread of the commit that finds a log half full.
    Lazy,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Eager, Self::Thread, Self::Lazy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Eager => "in every commit",
            Self::Thread => "by a thread",
            Self::Lazy => "when half full",
        }
    }
}

/// Inserts of one size with one way of truncation at one idle share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The thread that truncates.
    pub truncation: Way,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Idle share of the thread, in percent.
    pub idle_percent: u32,
    /// Microseconds of an insert: the median.
    pub us_median: f64,
    /// Microseconds of an insert: the mean, with all waits for truncation.
    pub us_mean: f64,
    /// Microseconds of an insert: the 99th percentile.
    pub us_p99: f64,
}

/// Measures each way of truncation at each idle share.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for idle_percent in IDLE_PERCENT {
        for value_bytes in &options.value_bytes {
            for way in Way::ALL {
                rows.push(row(options, way, *value_bytes, idle_percent)?);
            }
        }
    }
    Ok(rows)
}

fn row(options: &Options, way: Way, value_bytes: usize, idle_percent: u32) -> Result<Row> {
    let layout = Layout {
        logs: 2,
        log_bytes: LOG_BYTES,
        ..Layout::default()
    };
    let node_bytes = value_bytes as u64 + 128;
    let bytes = layout.bytes() + 4 * options.live * node_bytes + ground::SPARE_BYTES;
    let pm = ground::map(&options.dir, bytes)?;
    let store_options = memory::Options {
        tx: tx::Options {
            truncation: match way {
                Way::Eager => Truncation::Eager,
                Way::Thread | Way::Lazy => Truncation::Lazy,
            },
            ..tx::Options::default()
        },
        ..ground::options()
    };
    let store = ground::make(pm, &layout, &store_options)?;
    let _truncator = match way {
        Way::Thread => store.memory().truncator(),
        Way::Eager | Way::Lazy => None,
    };
    let mut session = store.session();
    let table = Table::make(&mut session, options.live, Fill::Logged)?;
    let value = vec![0x33; value_bytes];
    for n in 0..options.live {
        table.insert(&mut session, key_of(0, n), &value)?;
    }
    let mut samples = Vec::with_capacity(options.operations as usize);
    for n in 0..options.operations {
        let start = Instant::now();
        table.insert(&mut session, key_of(0, options.live + n), &value)?;
        let insert = start.elapsed();
        idle(insert, idle_percent);
        let start = Instant::now();
        table.delete(&mut session, key_of(0, n))?;
        idle(start.elapsed(), idle_percent);
        samples.push(insert.as_nanos() as f64 / 1e3);
    }
    Ok(Row {
        truncation: way,
        value_bytes,
        idle_percent,
        us_mean: samples.iter().sum::<f64>() / samples.len() as f64,
        us_p99: stats::quantile(&mut samples, 0.99).unwrap_or_default(),
        us_median: stats::median(&mut samples).unwrap_or_default(),
    })
}

/// Spins after work of this length until the idle share is reached. No sleep is that short.
fn idle(work: Duration, percent: u32) {
    let from = Instant::now();
    let pause = work * percent / (100 - percent);
    while from.elapsed() < pause {
        std::hint::spin_loop();
    }
}
