//! The medium's counters as a meter, in a pass of their own.

use super::ops::{Meter, Op, Slice};
use super::surface;
use crate::{Engine, Result};
use medium::{Counting, MemoryPmem};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operations of each kind in the pass.
const COUNTED: usize = 64;

/// Averages of the counted pass.
pub(super) struct PerOp {
    pub flushes: f64,
    pub fences: f64,
    pub bytes: f64,
}

/// Reads the medium's counters around each operation.
struct Counter {
    pm: Arc<Counting<MemoryPmem>>,
    seen: BTreeMap<Op, PerOp>,
}

impl Meter for Counter {
    fn run(&mut self, op: Op, n: usize, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let before = self.pm.snapshot();
        (0..n).try_for_each(call)?;
        let counts = self.pm.snapshot() - before;
        let per_op = |total: u64| (total as f64 / n as f64 * 100.0).round() / 100.0;
        let average = PerOp {
            flushes: per_op(counts.flushed_lines),
            fences: per_op(counts.fences),
            bytes: per_op(counts.bytes()),
        };
        self.seen.insert(op, average);
        Ok(())
    }
}

/// Counts what each operation does to the medium; nothing where there is none.
pub(super) fn count(engine: Engine) -> Result<BTreeMap<Op, PerOp>> {
    let Some(counted) = engine.counted()? else {
        return Ok(BTreeMap::new());
    };
    let mut counter = Counter {
        pm: counted.pm,
        seen: BTreeMap::new(),
    };
    let mut surface = surface::Engine::new(counted.fs)?;
    Slice::new(COUNTED).run(&mut surface, &mut counter)?;
    Ok(counter.seen)
}
