//! The two kinds of log, Table 3.5: records of several sizes, each flushed by itself.
//!
//! The kinds take turns in batches. Reading and truncating is not timed.

use super::Options;
use super::ground::{self, Mapped};
use crate::error::{Context, Result};
use crate::stats;
use medium::WORD_BYTES;
use serde::Serialize;
use std::time::Instant;
use wordlog::{Appender, Consumer, Kind, Unrecovered};

const LOG_BYTES: u64 = 4 << 20;

/// Records that are timed together.
const BATCH: u64 = 16;

/// One size of records.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Megabytes per second with two fences: the median batch.
    pub base_mb_per_second: f64,
    /// Megabytes per second with a torn bit in each word and one fence: the median batch.
    pub torn_bit_mb_per_second: f64,
}

impl Row {
    /// Ratio of the speed with torn bits to that with two fences.
    pub(super) fn ratio(&self) -> f64 {
        self.torn_bit_mb_per_second / self.base_mb_per_second
    }
}

/// Measures both kinds of log.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut logs = [
        MeasuredLog::make(options, Kind::Base)?,
        MeasuredLog::make(options, Kind::TornBit)?,
    ];
    let mut rows = Vec::new();
    for record_bytes in &options.value_bytes {
        let record = vec![0x5e1f_5e1f_5e1f_5e1f; record_bytes.div_ceil(WORD_BYTES as usize)];
        let mut samples = [const { Vec::new() }; 2];
        for round in 0..=options.batches {
            for (log, samples) in logs.iter_mut().zip(&mut samples) {
                let ns = log.batch(&record)?;
                // The first round warms up.
                if round > 0 {
                    samples.push(ns);
                }
            }
        }
        let rate = |samples: &mut Vec<f64>| {
            let ns = stats::median(samples).unwrap_or(f64::NAN);
            (BATCH * *record_bytes as u64) as f64 * 1e3 / ns
        };
        let [base, torn_bit] = &mut samples;
        rows.push(Row {
            record_bytes: *record_bytes,
            base_mb_per_second: rate(base),
            torn_bit_mb_per_second: rate(torn_bit),
        });
    }
    Ok(rows)
}

/// A log in memory of its own, and the buffer that its records are read into.
struct MeasuredLog {
    appender: Appender<Mapped>,
    consumer: Consumer<Mapped>,
    read: Vec<u64>,
}

impl MeasuredLog {
    fn make(options: &Options, kind: Kind) -> Result<Self> {
        let pm = ground::map(&options.dir, LOG_BYTES)?;
        let what = || "making a log".to_owned();
        wordlog::format(&pm, 0, LOG_BYTES, kind).what(what)?;
        let (appender, consumer) = Unrecovered::open(pm, 0)
            .and_then(Unrecovered::empty)
            .what(what)?;
        Ok(Self {
            appender,
            consumer,
            read: Vec::new(),
        })
    }

    /// Appends a batch of records and returns its nanoseconds.
    fn batch(&mut self, record: &[u64]) -> Result<f64> {
        // Twice what they have: heads, torn bits and whole lines, too.
        let needed = BATCH * 2 * (record.len() as u64 + 8);
        if self.appender.room().is_none_or(|room| room < needed) {
            self.truncate()?;
        }
        let start = Instant::now();
        for _ in 0..BATCH {
            let appended = self.appender.append(record);
            let flushed = appended.and_then(|_| self.appender.flush());
            flushed.what(|| "appending to a log".into())?;
        }
        super::drain();
        Ok(start.elapsed().as_nanos() as f64)
    }

    fn truncate(&mut self) -> Result<()> {
        let what = || "truncating a log".to_owned();
        while self.consumer.next(&mut self.read).what(what)?.is_some() {}
        let position = self.consumer.position();
        self.consumer.truncate(position).what(what)
    }
}
