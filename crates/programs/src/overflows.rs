//! A transaction that is longer than a log, while another one is in its commit.
//!
//! The low water does not pass a commit that is under way. The record of the long transaction
//! therefore stays in its log, and a recovery reads the pages of the heap that the record names.
//! These pages must not be allocated yet.

use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crate::threads::Stopping;
use crash::program::{Memory, Program};
use medium::Pmem;
use mnemosyne::memory::{Backing, DurableMemory, Flat, Layout, Options, Session, Tx};
use mnemosyne::tx::{self, Interrupted, Stop};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use wordlog::Kind;

/// One thread is stopped in its commit. Another runs a long transaction, one that fills a new
/// block, and a second long one.
pub struct Overflows {
    pub kind: Kind,
    /// The step of its commit at which the first one is stopped.
    pub stop_after: u64,
    /// Runs first in each thread.
    pub prepare: fn(),
    /// Whether the commit has such a step.
    pub was_stopped: AtomicBool,
}

/// Words that a long transaction writes: more than fit into a log of [`LOG_LINES`].
const LONG: u64 = 200;
const LOG_LINES: u64 = 16;
/// Words of the block that is filled: a page of the heap.
const FILLED: u64 = 1000;

// Lines of the table. The first thread stores to two of them.
const FIRST: [u64; 2] = [0, 64];
/// Line with the place that the long transactions write to.
const AT_LONG: u64 = 128;
/// Line with the block that is filled.
const AT_FILLED: u64 = 192;
const TABLE_BYTES: u64 = 256;

/// A mark: the first thread has begun.
const FIRST_BEGUN: u64 = 11;
/// A mark: the first thread has returned.
const FIRST_RETURNED: u64 = 12;

impl Overflows {
    fn layout(&self) -> Layout {
        Layout {
            slots: 4,
            roots: 1,
            granule: 8192,
            logs: 2,
            log_bytes: (LOG_LINES + 1) * 64,
            log_kind: self.kind,
        }
    }

    fn run_with(&self, pm: Arc<Stopping>, mark: &dyn Fn(u64)) -> Result<(), String> {
        let store = open(pm.clone())?;
        let (mut first, mut second) = (store.session(), store.session());
        let table = run(&mut second, table)?;
        mark(mark_of(FIRST_BEGUN, 1));
        let ready = Barrier::new(2);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                (self.prepare)();
                pm.stop_after(self.stop_after);
                ready.wait();
                let done = run(&mut first, |tx| {
                    FIRST.iter().try_for_each(|at| tx.store(table + at, 1))
                });
                pm.go_on();
                done
            });
            ready.wait();
            self.was_stopped
                .store(pm.wait_until_stopped(), Ordering::Relaxed);
            let mut done = Ok(());
            for step in 1..=3 {
                mark(mark_of(BEGUN, step));
                done = done.and(run(&mut second, |tx| do_step(tx, table, step as u64)));
                mark(mark_of(RETURNED, step));
            }
            pm.go_on();
            done.and(first.join().expect("no panic"))
        })?;
        mark(mark_of(FIRST_RETURNED, 1));
        Ok(())
    }
}

fn open<P: Pmem + Clone>(pm: P) -> Result<DurableMemory<Flat<P>>, String> {
    let options = Options {
        tx: tx::Options {
            locks: 4096,
            ..tx::Options::default()
        },
        heap_growth: 64 << 10,
    };
    DurableMemory::open(Flat(pm.clone()), pm, options).map_err(text)
}

fn run<B: Backing, T>(
    session: &mut Session<B>,
    mut body: impl FnMut(&mut Tx<'_, B::Pmem>) -> Result<T, Interrupted>,
) -> Result<T, String> {
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(body(tx)?));
    done.map_err(text)
}

fn table<P: Pmem + Clone>(tx: &mut Tx<'_, P>) -> Result<u64, Interrupted> {
    Ok(tx.root("table")?.map_or(0, |(_, table)| table))
}

fn do_step<P: Pmem + Clone>(tx: &mut Tx<'_, P>, table: u64, step: u64) -> Result<(), Interrupted> {
    if step == 2 {
        let block = tx.alloc(FILLED * 8)?;
        tx.fill(block, &step.to_le_bytes().repeat(FILLED as usize))?;
        return tx.store(table + AT_FILLED, block);
    }
    let long = tx.load(table + AT_LONG)?;
    (0..LONG).try_for_each(|word| tx.store(long + word * 8, step))
}

impl Program for Overflows {
    type Opened = Memory;

    fn bytes(&self) -> u64 {
        self.layout().bytes().next_multiple_of(8192) + (128 << 10)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.layout().format(&pm).map_err(text)?;
        let store = open(pm)?;
        run(&mut store.session(), |tx| {
            let (table, long) = (tx.alloc(TABLE_BYTES)?, tx.alloc(LONG * 8)?);
            tx.fill(table, &[0; TABLE_BYTES as usize])?;
            tx.fill(long, &[0; LONG as usize * 8])?;
            tx.store(table + AT_LONG, long)?;
            tx.set_root("table", 1, table).map(drop)
        })
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        self.run_with(Arc::new(Stopping::new(pm)), mark)
    }

    fn open(&self, pm: Memory) -> Result<Memory, String> {
        open(pm.clone())?;
        Ok(pm)
    }

    fn check(&self, pm: &mut Memory, marks: &[u64]) -> Result<u64, String> {
        let table = run(&mut open(pm.clone())?.session(), table)?;
        let load = |at| pm.load(at).map_err(text);
        let all_are = |at: u64, words: u64, value: u64| {
            let mut words = (0..words).map(|word| pm.load(at + word * 8));
            words.all(|word| word == Ok(value))
        };
        let first = load(table + FIRST[0])?;
        let is_allowed = count_of(marks, FIRST_RETURNED) as u64 <= first
            && first <= count_of(marks, FIRST_BEGUN) as u64;
        if !is_allowed || first != load(table + FIRST[1])? {
            return Err(format!("the stopped transaction is there in part: {first}"));
        }
        let (long, filled) = (load(table + AT_LONG)?, load(table + AT_FILLED)?);
        let is_state = |step: usize| {
            let value = [0, 1, 1, 3][step];
            let fits = (filled != 0) == (step >= 2) && all_are(long, LONG, value);
            fits && (filled == 0 || all_are(filled, FILLED, 2))
        };
        let mut allowed = count_of(marks, RETURNED)..=count_of(marks, BEGUN);
        match allowed.find(|step| is_state(*step)) {
            Some(step) => Ok(hash([first, step as u64])),
            None => Err("none of the states that are allowed".into()),
        }
    }
}
