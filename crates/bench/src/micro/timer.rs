//! The clock as a meter: half of each slice in batches, half one by one.

use super::BATCH;
use super::ops::{Meter, Op};
use crate::Result;
use crate::stats;
use std::collections::BTreeMap;
use std::time::Instant;

/// Samples of one operation, in nanoseconds per operation.
#[derive(Default)]
pub(super) struct Samples {
    pub batches: Vec<f64>,
    pub singles: Vec<f64>,
}

/// Times operations.
pub(super) struct Timer {
    pub samples: BTreeMap<Op, Samples>,
    clock_ns: f64,
    /// Which half comes first.
    pub singles_first: bool,
}

impl Timer {
    pub(super) fn new() -> Self {
        Self {
            samples: BTreeMap::new(),
            clock_ns: clock_cost(),
            singles_first: false,
        }
    }

    /// Starts anew: what was measured warmed the target up.
    pub(super) fn forget(&mut self) {
        self.samples.clear();
    }
}

/// The cost of two readings of the clock with nothing between them.
fn clock_cost() -> f64 {
    let mut samples: Vec<f64> = (0..1000)
        .map(|_| Instant::now().elapsed().as_nanos() as f64)
        .collect();
    stats::median(&mut samples).unwrap_or_default()
}

impl Meter for Timer {
    fn run(&mut self, op: Op, n: usize, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let samples = self.samples.entry(op).or_default();
        let half = n / 2;
        for (part, range) in [0..half, half..n].into_iter().enumerate() {
            if (part == 0) == self.singles_first {
                for i in range {
                    let start = Instant::now();
                    call(i)?;
                    let ns = start.elapsed().as_nanos() as f64 - self.clock_ns;
                    samples.singles.push(ns.max(0.0));
                }
            } else {
                for first in range.clone().step_by(BATCH) {
                    let last = (first + BATCH).min(range.end);
                    let start = Instant::now();
                    for i in first..last {
                        call(i)?;
                    }
                    let ns = start.elapsed().as_nanos() as f64;
                    samples.batches.push(ns / (last - first) as f64);
                }
            }
        }
        Ok(())
    }
}
