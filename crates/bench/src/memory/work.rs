//! The work of every store, and its timing. `tools/peers/driver.h` does the same for the stores
//! that are C programs.

use super::ground::{Durable, Session};
use crate::error::{Error, Result};
use crate::machine::{self, Pinned};
use crate::stats;
use medium::Pmem;
use serde::Deserialize;
use std::sync::Barrier;
use std::time::Instant;

/// The amount of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// Bytes of each value: 8 at least.
    pub value_bytes: usize,
    /// Threads, each with entries of its own.
    pub threads: usize,
    /// Entries of each thread that are always there.
    pub live: u64,
    /// Entries that each thread inserts, and then deletes.
    pub operations: u64,
}

/// Times of one kind of call. The names are those in the output of the peers.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Calls {
    /// Microseconds of a call.
    pub us_median: f64,
    /// Calls of all threads in a second.
    pub ops_per_second: f64,
}

impl Calls {
    fn or_better(self, other: Self) -> Self {
        Self {
            us_median: self.us_median.min(other.us_median),
            ops_per_second: self.ops_per_second.max(other.ops_per_second),
        }
    }
}

/// The results of a run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Found {
    /// Inserts alone, by the time that threads spent in them.
    pub insert: Calls,
    /// Deletes alone.
    pub delete: Calls,
    /// Inserts and deletes together, by elapsed time.
    pub update: Calls,
}

impl Found {
    /// Returns the better figures of two runs.
    pub(super) fn or_better(self, other: Self) -> Self {
        Self {
            insert: self.insert.or_better(other.insert),
            delete: self.delete.or_better(other.delete),
            update: self.update.or_better(other.update),
        }
    }
}

/// A store of entries in durable memory; each call is a transaction.
pub(super) trait Entries<P: Pmem + Clone>: Sync {
    /// Returns whether there is an entry of this key.
    fn has(&self, session: &mut Session<P>, key: u64) -> Result<bool>;
    /// Inserts an entry. Returns `false` if the key has one already.
    fn insert(&self, session: &mut Session<P>, key: u64, value: &[u8]) -> Result<bool>;
    /// Deletes an entry. Returns `false` if there is none.
    fn delete(&self, session: &mut Session<P>, key: u64) -> Result<bool>;
}

/// One thread's samples, in nanoseconds.
struct Samples {
    inserts: Vec<f64>,
    deletes: Vec<f64>,
    from: Instant,
    to: Instant,
}

/// The key of a thread's `n`-th entry: all different, in no order (splitmix64's last step).
pub(super) fn key_of(thread: usize, n: u64) -> u64 {
    let z = ((thread as u64) << 40).wrapping_add(n);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Runs the threads of a load on a store.
pub(super) fn run<P: Pmem + Clone>(
    store: &Durable<P>,
    entries: &impl Entries<P>,
    load: Load,
) -> Result<Found> {
    let cpus = machine::cpus();
    let start = Barrier::new(load.threads);
    let samples = std::thread::scope(|scope| {
        let work = |number: usize| {
            let cpu = cpus.get(number % cpus.len().max(1)).copied();
            let start = &start;
            scope.spawn(move || {
                let _pinned = cpu.map(Pinned::to);
                thread(&mut store.session(), entries, load, number, start)
            })
        };
        let running: Vec<_> = (0..load.threads).map(work).collect();
        let done = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|e| std::panic::resume_unwind(e))
        });
        done.collect::<Result<Vec<_>>>()
    })?;
    Ok(found(&samples))
}

/// The work of one thread.
fn thread<P: Pmem + Clone>(
    session: &mut Session<P>,
    entries: &impl Entries<P>,
    load: Load,
    number: usize,
    start: &Barrier,
) -> Result<Samples> {
    let mut value = vec![0; load.value_bytes];
    let filled = fill(session, entries, load, number, &mut value);
    // Whether or not: the others wait.
    start.wait();
    filled?;
    // Written to, so that no page is fetched while calls are timed.
    let mut inserts = vec![f64::NAN; load.operations as usize];
    let mut deletes = inserts.clone();
    let from = Instant::now();
    for n in 0..load.operations {
        value[..8].copy_from_slice(&n.to_le_bytes());
        let before = Instant::now();
        entries.insert(session, key_of(number, load.live + n), &value)?;
        let between = Instant::now();
        entries.delete(session, key_of(number, n))?;
        let after = Instant::now();
        inserts[n as usize] = (between - before).as_nanos() as f64;
        deletes[n as usize] = (after - between).as_nanos() as f64;
    }
    let to = Instant::now();
    let newest = key_of(number, load.live + load.operations - 1);
    let deleted = key_of(number, load.operations - 1);
    if !entries.has(session, newest)? || entries.has(session, deleted)? {
        let what = "durable memory lost an insert or a delete";
        return Err(Error::Wrong { what });
    }
    Ok(Samples {
        inserts,
        deletes,
        from,
        to,
    })
}

/// The entries that are there before anything is timed.
fn fill<P: Pmem + Clone>(
    session: &mut Session<P>,
    entries: &impl Entries<P>,
    load: Load,
    number: usize,
    value: &mut [u8],
) -> Result<()> {
    for n in 0..load.live {
        value[..8].copy_from_slice(&n.to_le_bytes());
        entries.insert(session, key_of(number, n), value)?;
    }
    Ok(())
}

fn found(samples: &[Samples]) -> Found {
    let calls = |of: fn(&Samples) -> &Vec<f64>| {
        let rate = |ns: &Vec<f64>| ns.len() as f64 * 1e9 / ns.iter().sum::<f64>();
        let mut all: Vec<f64> = samples.iter().flat_map(of).copied().collect();
        Calls {
            us_median: stats::median(&mut all).unwrap_or_default() / 1e3,
            ops_per_second: samples.iter().map(of).map(rate).sum(),
        }
    };
    let both = |s: &Samples| {
        s.inserts
            .iter()
            .chain(&s.deletes)
            .copied()
            .collect::<Vec<_>>()
    };
    let mut all: Vec<f64> = samples.iter().flat_map(both).collect();
    let from = samples.iter().map(|s| s.from).min();
    let to = samples.iter().map(|s| s.to).max();
    let seconds = from.zip(to).map_or(0.0, |(a, b)| (b - a).as_secs_f64());
    Found {
        insert: calls(|s| &s.inserts),
        delete: calls(|s| &s.deletes),
        update: Calls {
            us_median: stats::median(&mut all).unwrap_or_default() / 1e3,
            ops_per_second: all.len() as f64 / seconds.max(1e-9),
        },
    }
}
