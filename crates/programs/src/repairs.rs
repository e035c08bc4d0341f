//! Repair of damaged memory: records of a log, bits of blocks and a root.

use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crash::program::{Memory, Program};
use medium::{LINE_BYTES, Overlay, Pmem, Rule};
use mnemosyne::memory::{
    DurableMemory, Flat, Layout, Options, Session, Tx, check_regions, repair_regions,
};
use mnemosyne::tx::{self, Interrupted, Stop};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use wordlog::Kind;

/// Repairs memory that was damaged while no program ran.
pub struct Repairs {
    kind: Kind,
    /// Losses reported by the repair that a crash interrupts.
    losses: Mutex<Vec<String>>,
}

const SLOTS: u64 = 4;
const LOG_BYTES: u64 = 20 * LINE_BYTES;
/// Offset of the table of regions.
const TABLE: u64 = 4096;
/// Offset of the roots, after the table.
const ROOTS: u64 = TABLE + SLOTS * LINE_BYTES;
const FIRST_LOG: u64 = 8192 + LINE_BYTES;
/// Value that the last transactions store to words of a block.
const LAST: u64 = 3;

impl Repairs {
    pub fn new(kind: Kind) -> Self {
        let losses = Mutex::default();
        Self { kind, losses }
    }

    fn layout(&self) -> Layout {
        Layout {
            slots: SLOTS,
            roots: 4,
            granule: 8192,
            logs: 2,
            log_bytes: LOG_BYTES,
            log_kind: self.kind,
        }
    }

    /// Repairs, and returns the losses.
    fn repair(pm: &Memory) -> Result<Vec<String>, String> {
        let losses = repair_regions(Flat(pm.clone())).map_err(text)?;
        Ok(losses.iter().map(text).collect())
    }
}

fn open(pm: &Memory) -> Result<DurableMemory<Flat<Memory>>, String> {
    let options = Options {
        tx: tx::Options {
            locks: 64,
            ..tx::Options::default()
        },
        heap_growth: 40 << 10,
    };
    DurableMemory::open(Flat(pm.clone()), pm.clone(), options).map_err(text)
}

fn run<T>(
    session: &mut Session<Flat<Memory>>,
    mut body: impl FnMut(&mut Tx<'_, Memory>) -> Result<T, Interrupted>,
) -> Result<T, String> {
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(body(tx)?));
    done.map_err(text)
}

/// Makes two blocks with roots, and records in both logs. Returns the start of the heap's first
/// segment.
fn fill(pm: &Memory) -> Result<u64, String> {
    let store = open(pm)?;
    let heap = run(&mut store.session(), |tx| {
        let (one, two) = (tx.alloc(64)?, tx.alloc(64)?);
        (0..8).try_for_each(|word| tx.store(one + word * 8, 0))?;
        tx.set_root("one", 1, one)?;
        tx.set_root("two", 1, two)?;
        Ok(one)
    })?;
    drop(store);
    let store = open(pm)?;
    let mut sessions = [store.session(), store.session()];
    for value in 1..=LAST {
        for (n, session) in sessions.iter_mut().enumerate() {
            run(session, |tx| {
                let at = heap + n as u64 * 16;
                tx.store(at, value)?;
                tx.store(at + 8, value)
            })?;
        }
    }
    Ok(store.heap().segments()[0].start)
}

/// Whether the checker finds damage.
fn is_damaged(pm: &Memory) -> bool {
    let seen = Arc::new(Overlay::new(pm.clone()));
    !check_regions(&Flat(seen), &[]).is_clean()
}

fn flip(pm: &Memory, at: u64, bit: u32) -> Result<(), String> {
    pm.store_word(at, pm.load(at).map_err(text)? ^ 1 << bit);
    Ok(())
}

impl Program for Repairs {
    type Opened = (DurableMemory<Flat<Memory>>, bool);

    fn bytes(&self) -> u64 {
        (self.layout().bytes().next_multiple_of(8192) + (96 << 10)).next_multiple_of(64)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.layout().format(&pm).map_err(text)?;
        let segment = fill(&pm)?;
        // The first record, the layout of the second root, and the bits of the first page.
        let word = |at: u64| Ok::<_, String>(pm.load(FIRST_LOG + at).map_err(text)? & !(1 << 63));
        let first = FIRST_LOG + LINE_BYTES + word(24)? % word(16)? * 8;
        flip(&pm, first + 24, 7)?;
        flip(&pm, ROOTS + 128, 0)?;
        flip(&pm, segment + LINE_BYTES + 8, 63)?;
        pm.fence(Rule::DurableBeforeReturn).map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        mark(mark_of(BEGUN, 1));
        let losses = Self::repair(&pm)?;
        let invariants: Vec<_> = losses
            .iter()
            .filter_map(|loss| loss.split(':').next())
            .collect();
        if invariants != ["M10", "M13", "M6"] {
            return Err(format!("given up: {losses:?}"));
        }
        *self.losses.lock() = losses;
        mark(mark_of(RETURNED, 1));
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        let was_damaged = is_damaged(&pm);
        if was_damaged {
            let named = self.losses.lock();
            let more = Self::repair(&pm)?;
            if let Some(loss) = more.iter().find(|loss| !named.contains(loss)) {
                return Err(format!("lost besides: {loss}"));
            }
        }
        Ok((open(&pm)?, was_damaged))
    }

    fn check(&self, (store, was_damaged): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let pm = store.memory().space().clone();
        if *was_damaged && count_of(marks, RETURNED) > 0 {
            return Err("it was repaired, and is damaged".into());
        }
        if is_damaged(&pm) {
            return Err("a second repair leaves damage".into());
        }
        let (one, two) = run(&mut store.session(), |tx| {
            Ok((tx.root("one")?, tx.root("two")?))
        })?;
        let (_, at) = one.ok_or("a sound root is lost")?;
        let words = (0..4).map(|word| pm.load(at + word * 8));
        let words = words.collect::<Result<Vec<_>, _>>().map_err(text)?;
        match two.is_none() && words == [LAST; 4] {
            true => Ok(hash(words)),
            false => Err(format!("root {two:?}, words {words:?}")),
        }
    }

    fn go_on(&self, (store, _): Self::Opened) -> Result<(), String> {
        let pm = store.memory().space().clone();
        run(&mut store.session(), |tx| {
            let made = tx.alloc(64)?;
            tx.store(made, 1)?;
            tx.store(made + 8, 1)?;
            tx.set_root("two", 1, made)
        })?;
        drop(store);
        open(&pm)?;
        match is_damaged(&pm) {
            true => Err("what is used after the repair is damaged".into()),
            false => Ok(()),
        }
    }
}
