//! The store that a program uses, and its steps.

use super::{SLOT_WORDS, SLOTS, Step, Table, Whole};
use crate::marks::text;
use medium::{Pmem, Rule, WORD_BYTES};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::{Backing, DurableMemory, MemoryError, RegionKind, Session, Tx};
use mnemosyne::tx::{Interrupted, Space, Stop, Transaction, TxError};
use std::cell::Cell;
use std::convert::Infallible;

/// Words of a block or region that are filled: the first, and one in each KiB.
fn pattern(start: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes / 1024 + 1).map(move |n| start + n * 1024)
}

fn set<S: Space>(tx: &mut Tx<'_, S>, at: u64, words: [u64; 3]) -> Result<(), Interrupted> {
    for (n, word) in words.into_iter().enumerate() {
        tx.store(at + n as u64 * WORD_BYTES, word)?;
    }
    Ok(())
}

/// A store in use.
pub struct Using<B: Backing> {
    pub store: DurableMemory<B>,
    session: Session<B>,
    table: u64,
}

impl<B: Backing> Using<B> {
    pub fn open(program: &Whole, backing: B) -> Result<Self, MemoryError> {
        let space = backing.pmem().clone();
        let store = DurableMemory::open(backing, space, program.options())?;
        let session = store.session();
        let table = 0;
        let mut using = Self {
            store,
            session,
            table,
        };
        using.table = using.session.run(find_table)?;
        Ok(using)
    }

    fn pm(&self) -> B::Pmem {
        self.store.memory().space().clone()
    }

    fn slot(&self, slot: u64) -> u64 {
        self.table + slot * SLOT_WORDS * WORD_BYTES
    }

    fn run(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_, B::Pmem>) -> Result<(), Interrupted>,
    ) -> Result<(), String> {
        let done = self.session.run(|tx| Ok::<_, Stop<Infallible>>(body(tx)?));
        done.map_err(text)
    }

    /// Runs a step. `next` is called where the state changes within it.
    pub fn step(&mut self, step: Step, seed: u64, next: &dyn Fn()) -> Result<(), String> {
        match step {
            Step::Alloc { slot, bytes } => {
                let at = self.slot(slot);
                self.run(|tx| {
                    let start = alloc_filled(tx, bytes, seed)?;
                    set(tx, at, [start, bytes, seed])
                })
            }
            Step::Shadow { slot, bytes } => {
                let at = self.slot(slot);
                let made = Cell::new(0);
                self.run(|tx| {
                    made.set(tx.alloc(bytes)?);
                    set(tx, at, [made.get(), bytes, 0])
                })?;
                next();
                self.fill(made.get(), bytes, seed)?;
                self.run(|tx| tx.store(at + 2 * WORD_BYTES, seed))
            }
            Step::Write { slot } => {
                let at = self.slot(slot);
                self.run(|tx| {
                    let (start, bytes) = (tx.load(at)?, tx.load(at + WORD_BYTES)?);
                    pattern(start, bytes - 8).try_for_each(|word| tx.store(word, seed))?;
                    tx.store(at + 2 * WORD_BYTES, seed)
                })
            }
            Step::Rewrite { slot } => {
                let at = self.slot(slot);
                self.run(|tx| {
                    let (start, bytes) = (tx.load(at)?, tx.load(at + WORD_BYTES)?);
                    let mut words = (start..start + bytes / 8 * 8).step_by(8);
                    words.try_for_each(|word| tx.store(word, seed))?;
                    tx.store(at + 2 * WORD_BYTES, seed)
                })
            }
            Step::Free { slot } => {
                let at = self.slot(slot);
                self.run(|tx| {
                    let start = tx.load(at)?;
                    tx.free(start)?;
                    set(tx, at, [0; 3])
                })
            }
            Step::Cancel { slot, bytes } => self.cancel(slot, bytes, seed),
            Step::Undo { slot, bytes } => self.undo(slot, bytes, seed),
            Step::Map { slot } => self.map(slot, seed, next),
            Step::FailMap => self.fail_map(),
            Step::Unmap { slot } => self.unmap(slot),
            Step::Replace { slot, other, bytes } => {
                let (at, other) = (self.slot(slot), self.slot(other));
                self.run(|tx| {
                    let old = tx.load(at)?;
                    tx.free(old)?;
                    for at in [at, other] {
                        let start = alloc_filled(tx, bytes, seed)?;
                        set(tx, at, [start, bytes, seed])?;
                    }
                    Ok(())
                })
            }
        }
    }

    fn cancel(&mut self, slot: u64, bytes: u64, seed: u64) -> Result<(), String> {
        let at = self.slot(slot);
        let done = self.session.run(|tx| {
            let old = tx.load(at)?;
            tx.free(old)?;
            let start = alloc_filled(tx, bytes, seed)?;
            set(tx, at, [start, bytes, seed])?;
            Err::<(), _>(Stop::Cancel("as it should be"))
        });
        match done {
            Err(TxError::Cancelled(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn undo(&mut self, slot: u64, bytes: u64, seed: u64) -> Result<(), String> {
        let (at, pm) = (self.slot(slot), self.pm());
        self.run(|tx| {
            let start = tx.alloc(bytes)?;
            tx.may_fill()?;
            tx.store_in_own(start, &contents(bytes, seed), false);
            tx.store_in_own(start, &contents(bytes, seed + 100), true);
            pm.store(start, &contents(bytes, seed));
            set(tx, at, [start, bytes, seed])
        })
    }

    fn map(&mut self, slot: u64, seed: u64, next: &dyn Fn()) -> Result<(), String> {
        let at = self.slot(slot);
        let link = |tx: &mut Transaction<'_, B::Pmem>, start| {
            for (n, word) in [start, 4096, 0].into_iter().enumerate() {
                tx.store(at + n as u64 * WORD_BYTES, word)?;
            }
            Ok(())
        };
        let region = self.store.map(RegionKind::Program, 4096, 0, link);
        let region = region.map_err(|e: MemoryError| text(e))?;
        next();
        self.fill(region.start, region.len, seed)?;
        self.run(|tx| tx.store(at + 2 * WORD_BYTES, seed))
    }

    fn fail_map(&mut self) -> Result<(), String> {
        let what = "link";
        let fail = |_: &mut Transaction<'_, B::Pmem>, off| Err(Interrupted::NoValue { off, what });
        match self.store.map(RegionKind::Program, 4096, 0, fail) {
            Err(MemoryError::Refused(TxError::NoValue { .. })) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn unmap(&mut self, slot: u64) -> Result<(), String> {
        let at = self.slot(slot);
        let start = self.pm().load(at).map_err(text)?;
        let unlink = |tx: &mut Transaction<'_, B::Pmem>| {
            (0..3).try_for_each(|n| tx.store(at + n * WORD_BYTES, 0))
        };
        self.store.unmap(start, unlink).map_err(text)
    }

    /// Fills a new block or region by plain stores.
    fn fill(&self, start: u64, bytes: u64, seed: u64) -> Result<(), String> {
        let pm = self.pm();
        for word in pattern(start, bytes - 8) {
            pm.store_word(word, seed);
            pm.flush(word, WORD_BYTES);
        }
        pm.fence(Rule::DurableBeforeReturn).map_err(text)
    }

    /// Frees each block or region, and allocates a block for each empty slot.
    pub fn turn_over(&mut self) -> Result<(), String> {
        let regions = self.store.regions().map_err(text)?;
        for slot in 0..SLOTS {
            let start = self.pm().load(self.slot(slot)).map_err(text)?;
            let is_region = regions.iter().any(|region| region.start == start);
            match (start, is_region) {
                (0, _) => self.step(Step::Alloc { slot, bytes: 100 }, 99, &|| {})?,
                (_, true) => self.step(Step::Unmap { slot }, 99, &|| {})?,
                (_, false) => self.step(Step::Free { slot }, 99, &|| {})?,
            }
        }
        self.found(0).map(drop)
    }

    /// The slots. Demands that there are no leaks and no losses, and that a new region holds zeros
    /// or `filling`.
    pub fn found(&self, filling: u64) -> Result<Table, String> {
        let pm = self.pm();
        let load = |at: u64| pm.load(at).map_err(text);
        let mut table = Table::default();
        let (mut blocks, mut regions) = (vec![self.table], Vec::new());
        let there = self.store.regions().map_err(text)?;
        let programs = there
            .iter()
            .filter(|region| region.kind == RegionKind::Program);
        let programs: Vec<u64> = programs.map(|region| region.start).collect();
        for slot in 0..SLOTS {
            let at = self.slot(slot);
            let (start, bytes, seed) = (load(at)?, load(at + 8)?, load(at + 16)?);
            table[slot as usize] = (bytes, seed);
            if start == 0 {
                continue;
            }
            let is_region = programs.contains(&start);
            match is_region {
                true => regions.push(start),
                false => blocks.push(start),
            }
            for word in pattern(start, bytes - 8) {
                let holds = load(word)?;
                let fits = match (seed, is_region) {
                    (0, true) => [0, filling].contains(&holds),
                    (0, false) => true,
                    _ => holds == seed,
                };
                if !fits {
                    return Err(format!("slot {slot}: {word:#x} holds {holds}, not {seed}"));
                }
            }
        }
        let mut allocated = Vec::new();
        for segment in self.store.heap().segments() {
            let found = segment.blocks(&pm).map_err(|e: HeapError| text(e))?;
            allocated.extend(found.iter().map(|(start, _)| *start));
        }
        for list in [&mut blocks, &mut regions, &mut allocated] {
            list.sort_unstable();
        }
        match blocks == allocated && regions.len() == programs.len() {
            true => Ok(table),
            false => Err(format!(
                "blocks {blocks:x?}, in the heap {allocated:x?}; regions {regions:x?}, in the table {programs:x?}"
            )),
        }
    }
}

/// The contents of a filled block.
fn contents(bytes: u64, seed: u64) -> Vec<u8> {
    let mut contents = vec![0; bytes as usize];
    for word in pattern(0, bytes - 8) {
        contents[word as usize..][..8].copy_from_slice(&seed.to_le_bytes());
    }
    contents
}

fn alloc_filled<S: Space>(tx: &mut Tx<'_, S>, bytes: u64, seed: u64) -> Result<u64, Interrupted> {
    let start = tx.alloc(bytes)?;
    tx.fill(start, &contents(bytes, seed))?;
    Ok(start)
}

fn find_table<S: Space>(tx: &mut Tx<'_, S>) -> Result<u64, Stop<Infallible>> {
    if let Some((_, table)) = tx.root("table")? {
        return Ok(table);
    }
    let table = tx.alloc(SLOTS * SLOT_WORDS * WORD_BYTES)?;
    for word in 0..SLOTS * SLOT_WORDS {
        tx.store(table + word * WORD_BYTES, 0)?;
    }
    tx.set_root("table", 1, table)?;
    Ok(table)
}
