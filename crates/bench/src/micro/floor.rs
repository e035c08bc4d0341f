//! The time of the memory itself: no call that is durable at return can be faster.

use super::BATCH;
use crate::error::{Context, Result};
use crate::{images, stats};
use medium::{MediumError, Pmem, Rule};
use std::time::Instant;

/// Bytes of the region: as large as the file that engines read and overwrite.
const REGION_BYTES: u64 = 4 << 20;

/// Batches of each kind.
const BATCHES: usize = 200;

/// Returns a sentence with the cost of the primitives on memory like the engines'.
pub(super) fn measure() -> Result<String> {
    let pm = images::flushing_memory(REGION_BYTES)?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut word = |is_same: bool| {
        let off = if is_same {
            0
        } else {
            random.u64(..REGION_BYTES / 8) * 8
        };
        pm.store_word(off, off + 1);
        pm.flush(off, 8);
        pm.fence(Rule::DurableBeforeReturn)
    };
    let anywhere = median_ns(|| word(false))?;
    let same = median_ns(|| word(true))?;
    let block = vec![1; 4096];
    let mut next = 0;
    let stream = median_ns(|| {
        pm.store_nt(next % REGION_BYTES, &block);
        next += 4096;
        pm.fence(Rule::DurableBeforeReturn)
    })?;
    let instruction = pm.flush_instruction().unwrap_or("nothing");
    Ok(format!(
        "The memory's own floor ({instruction}): {anywhere:.0} ns to store, flush and fence a word \
         anywhere in 4 MiB, {same:.0} ns in the same line each time; {stream:.0} ns to stream and \
         fence 4 KiB."
    ))
}

fn median_ns(mut work: impl FnMut() -> std::result::Result<(), MediumError>) -> Result<f64> {
    let mut samples = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..BATCH {
            work().what(|| "storing to shared memory".into())?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    Ok(stats::median(&mut samples).unwrap_or_default())
}
