//! Heap, regions and roots compared with a table, with power cuts.

use super::*;
use fastrand::Rng;
use medium::{CutAfter, MemoryPmem, PersistModel, PowerCut, Rule};
use wordlog::Kind;

mod growth;
mod long;

const SLOTS: u64 = 12;
/// The number of words of a slot of the table: offset, kind, length, seed, filled.
const WORDS: u64 = 5;
const BYTES: u64 = 512 << 10;

/// The object of a slot of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Thing {
    kind: u64,
    len: u64,
    seed: u64,
    filled: u64,
}

const BLOCK: u64 = 1;
const REGION: u64 = 2;

type Table = [Thing; SLOTS as usize];

fn made(rng: &mut Rng) -> MemoryPmem {
    let pm = MemoryPmem::new(BYTES);
    let layout = Layout {
        slots: 12,
        roots: 3,
        granule: 8192,
        logs: rng.u64(1..3),
        log_bytes: rng.u64(20..150) * 64,
        log_kind: *rng.choice(&[Kind::TornBit, Kind::Base]).unwrap(),
    };
    layout.format(&pm).unwrap();
    pm
}

fn options(rng: &mut Rng) -> Options {
    Options {
        tx: tx::Options {
            truncation: *rng
                .choice(&[tx::Truncation::Lazy, tx::Truncation::Eager])
                .unwrap(),
            locks: 1 << rng.u8(4..8),
            privatise: rng.bool(),
        },
        heap_growth: 64 << 10,
    }
}

/// The contents of a filled object: a word in each line, and in the last one.
fn pattern(start: u64, len: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    let words = (0..len / 8).filter(move |n| n % 8 == 0 || *n == len / 8 - 1);
    words.map(move |n| (start + n * 8, seed ^ n << 32))
}

type Cut<'a> = &'a PowerCut<MemoryPmem>;

/// A program that uses the memory, and the tables that it may find after a power cut.
struct Program<'a> {
    memory: DurableMemory<Flat<Cut<'a>>>,
    session: Session<Flat<Cut<'a>>>,
    table: u64,
    certain: Table,
    possible: Table,
    seed: u64,
}

type Failed = TxError<()>;

impl<'a> Program<'a> {
    fn open(power: Cut<'a>, options: Options) -> Result<Self, MemoryError> {
        let memory = DurableMemory::open(Flat(power), power, options)?;
        Ok(Self {
            session: memory.session(),
            memory,
            table: 0,
            certain: Table::default(),
            possible: Table::default(),
            seed: 0,
        })
    }

    /// Finds the table, or makes it.
    fn find_table(&mut self) -> Result<(), Failed> {
        self.table = self.session.run(|tx| {
            if let Some((_, table)) = tx.root("table")? {
                return Ok(table);
            }
            let table = tx.alloc(SLOTS * WORDS * 8)?;
            for word in 0..SLOTS * WORDS {
                tx.store(table + word * 8, 0)?;
            }
            assert!(tx.set_root("table", 1, table)?);
            Ok(table)
        })?;
        Ok(())
    }

    fn slot(&self, n: usize) -> u64 {
        self.table + n as u64 * WORDS * 8
    }

    /// Loads the table, and compares blocks, regions and their contents with it.
    fn found(&self, power: Cut<'_>) -> Result<Table, String> {
        let mut table = Table::default();
        let load = |at| power.load(at).map_err(|e| e.to_string());
        let mut blocks = vec![self.table];
        let mut regions = vec![];
        for (n, thing) in table.iter_mut().enumerate() {
            let at = self.slot(n);
            let start = load(at)?;
            *thing = Thing {
                kind: load(at + 8)?,
                len: load(at + 16)?,
                seed: load(at + 24)?,
                filled: load(at + 32)?,
            };
            match thing.kind {
                BLOCK => blocks.push(start),
                REGION => regions.push(start),
                _ => continue,
            }
            if thing.filled == 1 {
                for (at, word) in pattern(start, thing.len, thing.seed) {
                    if load(at)? != word {
                        return Err(format!("{thing:?} at {start:#x} has changed at {at:#x}"));
                    }
                }
            }
        }
        let mut allocated = vec![];
        for segment in self.memory.heap().segments() {
            let found = segment.blocks(&power).map_err(|e| e.to_string())?;
            allocated.extend(found.iter().map(|(start, _)| *start));
        }
        let there = self.memory.regions().map_err(|e| e.to_string())?;
        let there = there.iter().filter(|r| r.kind == RegionKind::Program);
        let mut there: Vec<u64> = there.map(|region| region.start).collect();
        for list in [&mut blocks, &mut regions, &mut allocated, &mut there] {
            list.sort_unstable();
        }
        match blocks == allocated && regions == there {
            true => Ok(table),
            false => Err(format!(
                "blocks {blocks:x?}, in the heap {allocated:x?}; regions {regions:x?}, {there:x?}"
            )),
        }
    }

    /// Runs a random step. An error is taken for the power cut.
    fn step(&mut self, rng: &mut Rng) -> Result<(), Failed> {
        self.seed += 1;
        let n = rng.usize(..SLOTS as usize);
        self.possible = self.certain;
        match self.certain[n].kind {
            0 if rng.u8(..4) == 0 => self.map(n, rng)?,
            0 => self.alloc(n, rng)?,
            BLOCK if rng.bool() => {
                self.free(n, rng)?;
                self.certain = self.possible;
                if self.certain[n].kind == 0 && rng.bool() {
                    self.alloc(n, rng)?;
                }
            }
            REGION if rng.u8(..3) == 0 => {
                self.unmap(n)?;
                self.certain = self.possible;
                // Probably at the same offset.
                self.map(n, rng)?;
            }
            _ => self.write(n, rng)?,
        }
        self.certain = self.possible;
        Ok(())
    }

    fn alloc(&mut self, n: usize, rng: &mut Rng) -> Result<(), Failed> {
        let longest = *rng.choice(&[100, 5000, 12_000, 30_000]).unwrap();
        let thing = Thing {
            kind: BLOCK,
            len: rng.u64(8..longest),
            seed: self.seed,
            filled: 0,
        };
        let cancels = rng.u8(..8) == 0;
        let slot = self.slot(n);
        self.possible[n] = thing;
        let fills = rng.bool();
        let thing = Thing {
            filled: fills.into(),
            ..thing
        };
        self.possible[n] = thing;
        let made = self.session.run(|tx| {
            let start = tx.alloc(thing.len)?;
            assert!(tx.size_of(start)? >= thing.len);
            if fills {
                let mut bytes = vec![0; thing.len as usize];
                for (at, word) in pattern(0, thing.len, thing.seed) {
                    bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
                }
                let from = rng.usize(..bytes.len());
                tx.fill(start + from as u64, &bytes[from..])?;
                tx.fill(start, &bytes[..from])?;
                let last = start + tx.size_of(start)? - 1;
                let outside = tx.fill(last, &[0; 2]);
                assert!(matches!(outside, Err(Interrupted::Heap(_))));
            }
            set(tx, slot, start, thing)?;
            match cancels {
                true => Err(Stop::Cancel(())),
                false => Ok(start),
            }
        });
        match made {
            Ok(_) if fills => Ok(()),
            Ok(start) => self.fill(n, start),
            Err(TxError::Cancelled(()) | TxError::Heap(HeapError::NoSpace { .. })) => {
                self.possible[n] = Thing::default();
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    /// Fills a new object by plain stores, and sets its word in the table.
    fn fill(&mut self, n: usize, start: u64) -> Result<(), Failed> {
        self.certain = self.possible;
        let pm = *self.memory.memory().space();
        let thing = self.certain[n];
        for (at, word) in pattern(start, thing.len, thing.seed) {
            pm.store_word(at, word);
            pm.flush(at, 8);
        }
        pm.fence(Rule::DurableBeforeReturn)?;
        self.possible[n].filled = 1;
        let at = self.slot(n) + 32;
        self.session.run(|tx| Ok(tx.store(at, 1)?))
    }

    fn free(&mut self, n: usize, rng: &mut Rng) -> Result<(), Failed> {
        let slot = self.slot(n);
        let twice = rng.u8(..8) == 0;
        self.possible[n] = Thing::default();
        let freed = self.session.run(|tx| {
            let start = tx.load(slot)?;
            tx.free(start)?;
            if twice {
                tx.free(start)?;
            }
            Ok(set(tx, slot, 0, Thing::default())?)
        });
        match freed {
            Err(TxError::Heap(HeapError::NotAllocated { .. })) if twice => {
                self.possible = self.certain;
                Ok(())
            }
            other => other,
        }
    }

    /// Fills an object again in a transaction.
    fn write(&mut self, n: usize, rng: &mut Rng) -> Result<(), Failed> {
        let slot = self.slot(n);
        let thing = Thing {
            seed: self.seed,
            filled: 1,
            ..self.certain[n]
        };
        self.possible[n] = thing;
        let as_bytes = rng.bool();
        let written = self.session.run(|tx| {
            let start = tx.load(slot)?;
            for (at, word) in pattern(start, thing.len, thing.seed) {
                match as_bytes {
                    true => tx.write(at, &word.to_le_bytes())?,
                    false => tx.store(at, word)?,
                }
            }
            Ok(set(tx, slot, start, thing)?)
        });
        match written {
            Err(TxError::Heap(HeapError::NoSpace { .. })) => {
                self.possible = self.certain;
                Ok(())
            }
            other => other,
        }
    }

    fn map(&mut self, n: usize, rng: &mut Rng) -> Result<(), Failed> {
        let thing = Thing {
            kind: REGION,
            len: rng.u64(1..3) * 4096,
            seed: self.seed,
            filled: 0,
        };
        let slot = self.slot(n);
        self.possible[n] = thing;
        let link = |tx: &mut Transaction<'_, Cut<'a>>, start| {
            for (word, value) in words(start, thing).into_iter().enumerate() {
                tx.store(slot + word as u64 * 8, value)?;
            }
            Ok(())
        };
        match self.memory.map(RegionKind::Program, thing.len, 0, link) {
            Ok(region) => self.fill(n, region.start),
            Err(MemoryError::NoRoom { .. }) => {
                self.possible[n] = Thing::default();
                Ok(())
            }
            Err(_) => Err(TxError::Cancelled(())),
        }
    }

    fn unmap(&mut self, n: usize) -> Result<(), Failed> {
        let slot = self.slot(n);
        self.possible[n] = Thing::default();
        let pm = *self.memory.memory().space();
        let start = pm.load(slot)?;
        let unlink = |tx: &mut Transaction<'_, Cut<'a>>| {
            (0..WORDS).try_for_each(|word| tx.store(slot + word * 8, 0))
        };
        let removed = self.memory.unmap(start, unlink);
        removed.map_err(|_| TxError::Cancelled(()))
    }
}

fn words(start: u64, thing: Thing) -> [u64; WORDS as usize] {
    [start, thing.kind, thing.len, thing.seed, thing.filled]
}

fn set<S: Space>(
    tx: &mut Tx<'_, S>,
    slot: u64,
    start: u64,
    thing: Thing,
) -> Result<(), Interrupted> {
    for (word, value) in words(start, thing).into_iter().enumerate() {
        tx.store(slot + word as u64 * 8, value)?;
    }
    Ok(())
}

/// Cuts the power several times, in memory of a random layout.
fn cut(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut pm = made(&mut rng);
    let (mut certain, mut possible) = (Table::default(), Table::default());
    for cut in 0..4 {
        let context = format!("seed {seed}, cut {cut}");
        let power = PowerCut::new(pm);
        let model = *rng
            .choice(&[PersistModel::Words, PersistModel::Lines])
            .unwrap();
        let when = match rng.bool() {
            true => CutAfter::Stores(rng.u64(1..20_000)),
            false => CutAfter::Fences(rng.u64(1..400)),
        };
        power.cut_after(when, rng.u64(..), model);
        match Program::open(&power, options(&mut rng)) {
            Ok(mut program) => {
                let found = program.find_table().map(|()| program.found(&power));
                if let Ok(found) = found
                    && power.load(0).is_ok()
                {
                    let found = found.map_err(|e| format!("{context}: {e}"))?;
                    if found != certain && found != possible {
                        return Err(format!(
                            "{context}: {found:?}, not {certain:?} nor {possible:?}"
                        ));
                    }
                    program.certain = found;
                    program.possible = found;
                    program.seed = cut << 32;
                    while program.step(&mut rng).is_ok() {}
                    (certain, possible) = (program.certain, program.possible);
                }
            }
            Err(error) if power.fence(Rule::DurableBeforeReturn).is_ok() => {
                return Err(format!("{context}: {error}"));
            }
            Err(_) => {}
        }
        power.outcome().unwrap().unwrap();
        pm = power.into_inner();
    }
    Ok(())
}

#[test]
fn power_cuts_lose_and_leak_nothing() {
    for seed in 0..250 {
        cut(seed).unwrap();
    }
}

#[test]
fn seeded_bugs_are_found() {
    use crate::seeded::{Bug, arm, fired};
    let bugs = [Bug::BlockWithoutBit, Bug::FreshBlockInLog, Bug::RegionInLog];
    for bug in bugs {
        arm(Some(bug));
        let found = (0..2000).find_map(|seed| cut(seed).err());
        assert!(fired() > 0, "{bug:?} is never reached");
        arm(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
