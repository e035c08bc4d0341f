//! Heap, regions and roots against a table of what should be there, with power cuts.

use super::*;
use fastrand::Rng;
use medium::{CutAfter, MemoryPmem, PersistModel, PowerCut};
use wordlog::Kind;

const SLOTS: u64 = 12;
/// Words of a slot of the table: where, what, how long, seed, filled.
const WORDS: u64 = 5;
const BYTES: u64 = 512 << 10;

/// What a slot of the table stands for.
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

/// What is in a filled thing: a word in each line, and in the last.
fn pattern(start: u64, len: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    let words = (0..len / 8).filter(move |n| n % 8 == 0 || *n == len / 8 - 1);
    words.map(move |n| (start + n * 8, seed ^ n << 32))
}

type Cut<'a> = &'a PowerCut<MemoryPmem>;

/// A program that uses the store, and what it knows.
struct Program<'a> {
    store: Store<Flat<Cut<'a>>>,
    session: Session<Flat<Cut<'a>>>,
    table: u64,
    certain: Table,
    possible: Table,
    seed: u64,
}

type Failed = TxError<()>;

impl<'a> Program<'a> {
    fn open(power: Cut<'a>, options: Options) -> Result<Self, StoreError> {
        let store = Store::open(Flat(power), power, options)?;
        Ok(Self {
            session: store.session(),
            store,
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

    /// What is there, by plain loads.
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
        for segment in self.store.heap().segments() {
            let found = segment.blocks(&power).map_err(|e| e.to_string())?;
            allocated.extend(found.iter().map(|(start, _)| *start));
        }
        let there = self.store.regions().map_err(|e| e.to_string())?;
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

    /// One step of any kind. `Err`: the power is gone, as far as this can tell.
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
                // Likely in the same place.
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

    /// Fills what is new by plain stores, and says so.
    fn fill(&mut self, n: usize, start: u64) -> Result<(), Failed> {
        self.certain = self.possible;
        let pm = *self.store.memory().space();
        let thing = self.certain[n];
        for (at, word) in pattern(start, thing.len, thing.seed) {
            pm.store_word(at, word);
            pm.flush(at, 8);
        }
        pm.fence()?;
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

    /// Fills a thing anew, as far as a transaction may.
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
        match self.store.map(RegionKind::Program, thing.len, 0, link) {
            Ok(region) => self.fill(n, region.start),
            Err(StoreError::NoRoom { .. }) => {
                self.possible[n] = Thing::default();
                Ok(())
            }
            Err(_) => Err(TxError::Cancelled(())),
        }
    }

    fn unmap(&mut self, n: usize) -> Result<(), Failed> {
        let slot = self.slot(n);
        self.possible[n] = Thing::default();
        let pm = *self.store.memory().space();
        let start = pm.load(slot)?;
        let unlink = |tx: &mut Transaction<'_, Cut<'a>>| {
            (0..WORDS).try_for_each(|word| tx.store(slot + word * 8, 0))
        };
        let removed = self.store.unmap(start, unlink);
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

/// Memory of some kind, and some power cuts.
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
            Err(error) if power.fence().is_ok() => return Err(format!("{context}: {error}")),
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

/// A transaction that needs more room than is left, a block at a time: what it gives back
/// when it fails is not enough for it.
#[test]
fn a_transaction_of_many_blocks_makes_the_heap_grow() {
    let pm = std::sync::Arc::new(MemoryPmem::new(BYTES));
    let layout = Layout {
        slots: 12,
        roots: 3,
        granule: 8192,
        logs: 1,
        log_bytes: 8 << 10,
        log_kind: Kind::TornBit,
    };
    layout.format(&pm).unwrap();
    let options = Options {
        heap_growth: 32 << 10,
        ..Options::default()
    };
    let mut session = Store::open(Flat(pm.clone()), pm, options)
        .unwrap()
        .session();
    for (blocks, bytes) in [(10, 5000), (40, 1000), (3, 12_000)] {
        let made = session.run(|tx| {
            let blocks = (0..blocks).map(|_| tx.alloc(bytes));
            Ok::<_, Stop<Infallible>>(blocks.collect::<Result<Vec<_>, _>>()?)
        });
        let made = made.unwrap();
        let freed = session.run(|tx| {
            made.iter().try_for_each(|off| tx.free(*off))?;
            Ok::<_, Stop<Infallible>>(())
        });
        freed.unwrap();
    }
    let too_many = session.run(|tx| {
        (0..100).try_for_each(|_| tx.alloc(8000).map(drop))?;
        Ok::<_, Stop<Infallible>>(())
    });
    assert!(
        matches!(too_many, Err(TxError::Heap(HeapError::NoSpace { .. }))),
        "{too_many:?}"
    );
}

/// Memory that was never used: regions need no zeroing, and pages that nobody touches are not
/// there.
#[derive(Clone)]
struct Untouched(Arc<MemoryPmem>);

impl Backing for Untouched {
    type Pmem = Arc<MemoryPmem>;

    fn pmem(&self) -> &Self::Pmem {
        &self.0
    }

    fn create(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        Flat(self.0.clone()).open(region)
    }

    fn remove(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }
}

#[test]
fn a_block_of_gigabytes_is_like_any_other() {
    const BLOCK_BYTES: u64 = (4 << 30) + 4096;
    let ends = |at| [at, at + (4 << 30), at + BLOCK_BYTES - WORD_BYTES];
    let layout = Layout::default();
    // Of which few pages are touched.
    let pm = Arc::new(MemoryPmem::new(layout.bytes() + BLOCK_BYTES + (64 << 20)));
    layout.format(&pm).unwrap();
    let options = Options {
        heap_growth: 8 << 20,
        ..Options::default()
    };
    let open = || Store::open(Untouched(pm.clone()), pm.clone(), options.clone()).unwrap();
    let make = |tx: &mut Tx<'_, Arc<MemoryPmem>>| {
        let small = tx.alloc(64)?;
        let at = tx.alloc(BLOCK_BYTES)?;
        ends(at)
            .into_iter()
            .try_for_each(|end| tx.store(end, end))?;
        tx.set_root("block", 1, at)?;
        tx.free(small)?;
        Ok::<_, Stop<Infallible>>(at)
    };
    let at = open().session().run(make).unwrap();
    let mut session = open().session();
    let found = session.run(|tx| {
        let found: Vec<_> = ends(at).into_iter().map(|end| tx.load(end)).collect();
        tx.free(at)?;
        Ok::<_, Stop<Infallible>>(found.into_iter().collect::<Result<Vec<_>, _>>()?)
    });
    assert_eq!(found.unwrap(), ends(at));
    // There is no room for two.
    let again = session.run(make).unwrap();
    let second = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.alloc(BLOCK_BYTES)?));
    assert_eq!(again, at);
    assert!(
        matches!(second, Err(TxError::Heap(HeapError::NoSpace { .. }))),
        "{second:?}"
    );
}

#[test]
fn a_region_that_cannot_be_linked_is_not_there() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng);
    let store = Store::open(Flat(&pm), &pm, options(&mut rng)).unwrap();
    for _ in 0..2 * SLOTS {
        let made = store.map(RegionKind::Program, 4096, 0, |tx, _| tx.store(BYTES, 1));
        assert!(matches!(made, Err(StoreError::Refused(_))), "{made:?}");
    }
    store
        .map(RegionKind::Program, 4096, 0, |_, _| Ok(()))
        .unwrap();
}

// --- transactions longer than a log ---------------------------------------------------

/// Words of the block that long transactions write as a whole.
const LONG: u64 = 1000;

/// Memory with logs that hold a tenth of such a transaction, and with that block, of zeros.
fn with_long_block(log_kind: Kind, bytes: u64) -> (MemoryPmem, u64) {
    let pm = MemoryPmem::new(bytes);
    let layout = Layout {
        slots: 6,
        roots: 2,
        granule: 8192,
        logs: 2,
        log_bytes: 1024,
        log_kind,
    };
    layout.format(&pm).unwrap();
    let store = open_small(&pm);
    let block = store.session().run(|tx| {
        let block = tx.alloc(LONG * 8)?;
        tx.fill(block, &[0; LONG as usize * 8])?;
        assert!(tx.set_root("long", 1, block)?);
        Ok::<_, Stop<Infallible>>(block)
    });
    drop(store);
    (pm, block.unwrap())
}

fn open_small<P: Pmem + Clone>(pm: P) -> Store<Flat<P>> {
    let options = Options {
        tx: tx::Options {
            locks: 64,
            ..tx::Options::default()
        },
        heap_growth: 32 << 10,
    };
    Store::open(Flat(pm.clone()), pm, options).unwrap()
}

fn write_long<S: Space>(tx: &mut Tx<'_, S>, block: u64, with: u64) -> Result<(), Interrupted> {
    (0..LONG).try_for_each(|n| tx.store(tx.address(block + n * 8), with + n))
}

/// What a long transaction stored, as a whole.
fn read_long<P: Pmem>(pm: &P, block: u64) -> u64 {
    let word = |n: u64| pm.load(block + n * 8).unwrap().wrapping_sub(n);
    let first = word(0);
    let is_zero = first == 0 && pm.load(block + 8).unwrap() == 0;
    match is_zero {
        true => (0..LONG).for_each(|n| assert_eq!(pm.load(block + n * 8).unwrap(), 0)),
        false => (0..LONG).for_each(|n| assert_eq!(word(n), first)),
    }
    first
}

/// Whichever store or fence is the last one before the power fails.
#[test]
fn a_long_transaction_is_whole_after_every_power_cut() {
    for (kind, model) in [
        (Kind::TornBit, PersistModel::Words),
        (Kind::TornBit, PersistModel::Lines),
        (Kind::Base, PersistModel::Words),
        (Kind::Base, PersistModel::Lines),
    ] {
        let (mut replayed, mut fences) = (0, 1);
        loop {
            let (pm, block) = with_long_block(kind, BYTES);
            let power = PowerCut::new(pm);
            // Recovery has fences of its own.
            let mut session = open_small(&power).session();
            power.cut_after(CutAfter::Fences(fences), fences, model);
            let done = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
            drop(session);
            let was_cut = power.outcome().is_some();
            let pm = power.into_inner();
            let in_place = read_in_part(&pm, block);
            let store = open_small(&pm);
            let found = read_long(&pm, block);
            assert!(
                found == 7 || found == 0 && done.is_err(),
                "{fences}: {done:?}"
            );
            replayed += u64::from(found == 7 && !in_place);
            let segments = store.heap().segments();
            let blocks: Vec<_> = segments
                .iter()
                .map(|one| one.blocks(&pm).unwrap())
                .collect();
            assert_eq!(blocks.concat().len(), 1, "{fences}");
            if !was_cut {
                break;
            }
            fences += 1;
        }
        assert!(
            replayed > 0,
            "{kind:?}, {model}: no crash left an overflow to be replayed"
        );
    }
}

/// Whether a long transaction is in place.
fn read_in_part(pm: &MemoryPmem, block: u64) -> bool {
    (0..LONG).all(|n| pm.load(block + n * 8).unwrap() == 7 + n)
}

#[test]
fn a_long_transaction_without_room_fails_and_leaves_nothing() {
    let (pm, block) = with_long_block(Kind::TornBit, 128 << 10);
    let store = open_small(&pm);
    let mut session = store.session();
    let mut blocks = Vec::new();
    let full = loop {
        match session.run(|tx| Ok::<_, Stop<Infallible>>(tx.alloc(8192)?)) {
            Ok(block) => blocks.push(block),
            Err(full) => break full,
        }
    };
    assert!(matches!(full, TxError::Heap(HeapError::NoSpace { .. })));
    let refused = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
    let why = refused.unwrap_err();
    assert!(
        matches!(why, TxError::Heap(HeapError::NoSpace { .. })),
        "{why}"
    );
    assert!(why.to_string().contains("more than a log holds"), "{why}");
    assert_eq!(read_long(&pm, block), 0);
    // As a part of what fails: of the pages that it frees it can have none.
    let refused = session.run(|tx| {
        tx.free(blocks[0])?;
        Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?)
    });
    assert!(refused.is_err(), "{refused:?}");
    // Short ones go on, and with some room the long one does.
    for at in &blocks[..2] {
        let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(*at)?));
        freed.unwrap();
    }
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
    done.unwrap();
    assert_eq!(read_long(&pm, block), 7);
}

// --- and in a heap whose free pages are apart ------------------------------------------

/// A page of the heap, and its words.
const PAGE: u64 = 8192;
const PAGE_WORDS: u64 = PAGE / 8;

/// With a heap that takes all there is.
fn open_growing<P: Pmem + Clone>(pm: P) -> Store<Flat<P>> {
    let options = Options {
        tx: tx::Options {
            locks: 1 << 16,
            ..tx::Options::default()
        },
        heap_growth: 1 << 40,
    };
    Store::open(Flat(pm.clone()), pm, options).unwrap()
}

/// Memory whose heap is full, and every other page of it free again. Where the others are, which
/// are zeros.
fn with_free_pages_apart(bytes: u64, log_bytes: u64, log_kind: Kind) -> (MemoryPmem, Vec<u64>) {
    let pm = MemoryPmem::new(bytes);
    let layout = Layout {
        slots: 64,
        roots: 2,
        granule: PAGE,
        logs: 2,
        log_bytes,
        log_kind,
    };
    layout.format(&pm).unwrap();
    let store = open_growing(&pm);
    let (mut session, mut blocks) = (store.session(), Vec::new());
    let full = loop {
        let block = session.run(|tx| {
            let block = tx.alloc(PAGE)?;
            tx.fill(block, &[0; PAGE as usize])?;
            Ok::<_, Stop<Infallible>>(block)
        });
        match block {
            Ok(block) => blocks.push(block),
            Err(full) => break full,
        }
    };
    assert!(matches!(full, TxError::Heap(HeapError::NoSpace { .. })));
    blocks.sort_unstable();
    for block in blocks.iter().step_by(2) {
        let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(*block)?));
        freed.unwrap();
    }
    drop(session);
    drop(store);
    (pm, blocks.into_iter().skip(1).step_by(2).collect())
}

fn write_pages<P: Pmem + Clone>(
    session: &mut Session<Flat<P>>,
    pages: &[u64],
) -> Result<(), TxError<Infallible>> {
    session.run(|tx| {
        for page in pages {
            for n in 0..PAGE_WORDS {
                tx.store(tx.address(page + n * 8), page + n)?;
            }
        }
        Ok::<_, Stop<Infallible>>(())
    })
}

/// Whether all was written; if not, nothing was.
fn are_written(pm: &MemoryPmem, pages: &[u64]) -> bool {
    let mut written = 0;
    for page in pages {
        let word = |n| pm.load(page + n * 8).unwrap();
        let whole = (0..PAGE_WORDS).all(|n| word(n) == page + n);
        assert!(whole || (0..PAGE_WORDS).all(|n| word(n) == 0), "{page:#x}");
        written += usize::from(whole);
    }
    assert!(written == 0 || written == pages.len(), "{written}");
    written > 0
}

#[test]
fn a_long_transaction_takes_free_pages_that_are_apart() {
    // Of 2 MiB in 256 free pages, and of 2 KiB logs that name 36 parts.
    let (pm, pages) = with_free_pages_apart(5 << 20, 2048, Kind::TornBit);
    let mut session = open_growing(&pm).session();
    for _ in 0..3 {
        write_pages(&mut session, &pages[..20]).unwrap();
    }
    assert!(are_written(&pm, &pages[..20]));
    let why = write_pages(&mut session, &pages[20..120]).unwrap_err();
    assert!(why.to_string().contains("parts"), "{why}");
    assert!(!are_written(&pm, &pages[20..]));
}

#[test]
fn a_transaction_of_tens_of_mebibytes_takes_free_pages_that_are_apart() {
    let (pm, pages) = with_free_pages_apart(64 << 20, 256 << 10, Kind::TornBit);
    let pages = &pages[..3000];
    write_pages(&mut open_growing(&pm).session(), pages).unwrap();
    assert!(are_written(&pm, pages));
}

/// All parts are durable before the record that names them, and recovery finds them.
#[test]
fn parts_that_are_apart_are_whole_after_every_power_cut() {
    for (kind, model) in [
        (Kind::TornBit, PersistModel::Lines),
        (Kind::Base, PersistModel::Words),
    ] {
        let (mut replayed, mut fences) = (0, 1);
        loop {
            let (pm, pages) = with_free_pages_apart(512 << 10, 2048, kind);
            let pages = &pages[..6];
            let power = PowerCut::new(pm);
            let mut session = open_growing(&power).session();
            power.cut_after(CutAfter::Fences(fences), fences, model);
            let done = write_pages(&mut session, pages);
            drop(session);
            let was_cut = power.outcome().is_some();
            let pm = power.into_inner();
            let word = pages[5] + PAGE - 8;
            let in_place = pm.load(word).unwrap() != 0;
            drop(open_growing(&pm));
            let written = are_written(&pm, pages);
            assert!(written || done.is_err(), "{fences}: {done:?}");
            replayed += u64::from(written && !in_place);
            if !was_cut {
                done.unwrap();
                break;
            }
            fences += 1;
        }
        assert!(replayed > 0, "{kind:?}, {model}: nothing was replayed");
    }
}

#[test]
fn pages_of_overflows_are_used_again() {
    let (pm, block) = with_long_block(Kind::Base, BYTES);
    let store = open_small(&pm);
    let mut session = store.session();
    let regions = |store: &Store<_>| store.regions().unwrap().len();
    for n in 1..100 {
        let done = session.run(|tx| {
            write_long(tx, block, n)?;
            match n % 5 {
                0 => Err(Stop::Cancel(())),
                _ => Ok(()),
            }
        });
        assert_eq!(done.is_err(), n % 5 == 0, "{done:?}");
        assert_eq!(read_long(&pm, block), n - u64::from(n % 5 == 0));
    }
    assert_eq!(regions(&store), 1, "the heap has grown");
}

#[test]
fn threads_commit_long_transactions() {
    let (pm, block) = with_long_block(Kind::TornBit, 4 << 20);
    let pm = Arc::new(pm);
    let store = open_small(pm.clone());
    store.truncate_in_background();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut session = store.session();
                for _ in 0..20 {
                    let added = session.run(|tx| {
                        let now = tx.load(block)?;
                        Ok::<_, Stop<Infallible>>(write_long(tx, block, now + 1)?)
                    });
                    added.unwrap();
                }
            });
        }
    });
    assert_eq!(read_long(&pm, block), 60);
    drop(store);
    drop(open_small(pm.clone()));
    assert_eq!(read_long(&pm, block), 60);
}
