//! Slower memory, Figure 3.9: the hash table with extra time for each line that is flushed and
//! for each fence, and a cap on what is streamed.

use super::Options;
use super::ground;
use super::hash::Fill;
use super::work::{self, Load};
use crate::error::Result;
use medium::{Latency, LatencyModel};
use mnemosyne::memory::Layout;
use serde::Serialize;
use std::sync::Arc;

/// Extra nanoseconds for each line and each fence.
const LATENCIES_NS: [u64; 3] = [150, 1000, 2000];

/// One kind of call at one latency.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Nanoseconds more for each line and each fence.
    pub latency_ns: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How values are written: through the log or not.
    pub store: &'static str,
    /// `insert`, `delete` or `update`.
    pub op: &'static str,
    /// Microseconds of a call: the median.
    pub us_median: f64,
}

/// Measures the hash table at each latency.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for latency_ns in LATENCIES_NS {
        let model = LatencyModel {
            flush_line_ns: latency_ns,
            fence_ns: latency_ns,
            ..LatencyModel::PHASE_CHANGE
        };
        for value_bytes in &options.value_bytes {
            for (store, fill) in super::OURS {
                let load = options.load(*value_bytes, 1);
                let found = run(options, model, load, fill)?;
                for (op, calls) in [("insert", found.insert), ("delete", found.delete)] {
                    rows.push(Row {
                        latency_ns,
                        value_bytes: *value_bytes,
                        store,
                        op,
                        us_median: calls.us_median,
                    });
                }
            }
        }
    }
    Ok(rows)
}

fn run(options: &Options, model: LatencyModel, load: Load, fill: Fill) -> Result<work::Found> {
    let layout = Layout::default();
    let pm = ground::map(&options.dir, super::hash_bytes(&layout, load))?;
    super::work_on(Arc::new(Latency::new(pm, model)), &layout, load, fill)
}
