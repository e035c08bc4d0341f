//! Transactions compared with a plain array, with power cuts, and of several threads.

use super::locks::State;
use super::*;
use crate::error::HeapError;
use fastrand::Rng;
use medium::MediumError;
use medium::{Counting, CutAfter, Faulty, MemoryPmem, PersistModel, Pmem, PowerCut};
use wordlog::Kind;

mod crashes;
mod failures;
mod isolation;
mod logs;
mod turns;

const DATA: u64 = 32 << 10;
const WORDS: u64 = 64;

/// Formats memory with small logs, and `WORDS` words of data after them.
fn made(rng: &mut Rng, logs: u64) -> MemoryPmem {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let area = Area {
        start: 0,
        logs,
        log_bytes: rng.u64(10..24) * 64,
        kind: *rng.choice(&[Kind::TornBit, Kind::Base]).unwrap(),
    };
    area.format(&pm).unwrap();
    pm
}

fn options(rng: &mut Rng) -> Options {
    Options {
        truncation: *rng.choice(&[Truncation::Lazy, Truncation::Eager]).unwrap(),
        locks: 1 << rng.u8(0..8),
        privatise: rng.bool(),
    }
}

fn all<P: Pmem>(pm: &P) -> Vec<u64> {
    (0..WORDS).map(|n| pm.load(DATA + n * 8).unwrap()).collect()
}
