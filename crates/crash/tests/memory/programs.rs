//! Programs on durable memory: logs, transactions, and all of it together.

use crash::program::{Memory, Program};
use medium::{Pmem, Rule, WORD_BYTES};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::{
    Backing, DurableMemory, Flat, Layout, MemoryError, Options, RegionKind, Session, Tx,
};
use mnemosyne::tx::{self, Area, Interrupted, Space, Stop, Transaction, Truncation, TxError};
use std::cell::Cell;
use std::convert::Infallible;
use std::ops::Range;
use wordlog::{Kind, LogError, Unrecovered};

/// A mark: what, and of how many.
pub fn mark_of(what: u64, count: usize) -> u64 {
    what << 32 | count as u64
}

/// The largest count of a mark of this kind.
pub fn count_of(marks: &[u64], what: u64) -> usize {
    let of_kind = marks.iter().filter(|mark| **mark >> 32 == what);
    let counts = of_kind.map(|mark| (*mark & 0xffff_ffff) as usize);
    counts.max().unwrap_or(0)
}

pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, w| {
        (h ^ w).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    })
}

// --- a log --------------------------------------------------------------------------

/// Appends records, several to a flush, and truncates; round the ring at least twice.
pub struct Logs {
    pub kind: Kind,
    /// Lines of the ring.
    pub lines: u64,
    /// Words in the records, again and again.
    pub lengths: &'static [usize],
    /// Records in all.
    pub count: usize,
    /// How many of them are there before: the program begins with a recovery.
    pub before: usize,
    /// Which gives them up.
    pub empties: bool,
}

const APPENDING: u64 = 1;
const FLUSHED: u64 = 2;
const TRUNCATING: u64 = 3;
const TRUNCATED: u64 = 4;

impl Logs {
    fn record(&self, n: usize) -> Vec<u64> {
        let len = self.lengths[n % self.lengths.len()];
        // All ones, all zeros and others: torn bits must not depend on them.
        (0..len)
            .map(|word| match (n + word) % 3 {
                0 => 0,
                1 => u64::MAX,
                _ => hash([n as u64, word as u64]),
            })
            .collect()
    }

    fn bytes_of_log(&self) -> u64 {
        (self.lines + 1) * 64
    }
}

impl Program for Logs {
    type Opened = (Unrecovered<Memory>, Memory);

    fn bytes(&self) -> u64 {
        self.bytes_of_log()
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        wordlog::format(&pm, 0, self.bytes_of_log(), self.kind).map_err(text)?;
        let (mut log, _) = Unrecovered::open(pm, 0)
            .and_then(Unrecovered::keep)
            .map_err(text)?;
        for n in 0..self.before {
            log.append(&self.record(n)).map_err(text)?;
        }
        log.flush().map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let log = Unrecovered::open(pm, 0).map_err(text)?;
        let mut read = 0;
        let halves = match self.empties {
            true => {
                read = self.before;
                mark(mark_of(TRUNCATING, read));
                log.empty()
            }
            false => log.keep(),
        };
        let (mut log, mut reader) = halves.map_err(text)?;
        mark(mark_of(TRUNCATED, read));
        let mut words = Vec::new();
        for n in self.before..self.count {
            mark(mark_of(APPENDING, n + 1));
            while let Err(error) = log.append(&self.record(n)) {
                if !matches!(error, LogError::Full { .. }) {
                    return Err(text(error));
                }
                log.flush().map_err(text)?;
                mark(mark_of(FLUSHED, n));
                let end = reader.next(&mut words).map_err(text)?.ok_or("no room")?;
                read += 1;
                mark(mark_of(TRUNCATING, read));
                reader.truncate(end).map_err(text)?;
                mark(mark_of(TRUNCATED, read));
            }
            // Now and then, so that several records are in flight.
            if n % 3 != 1 {
                log.flush().map_err(text)?;
                mark(mark_of(FLUSHED, n + 1));
            }
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        // Recovery stores only when the log is used again; crashes in it are visited.
        let log = Unrecovered::open(pm.clone(), 0).map_err(text)?;
        drop(log.keep().map_err(text)?);
        let log = Unrecovered::open(pm.clone(), 0).map_err(text)?;
        Ok((log, pm))
    }

    fn check(&self, (log, _): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let (mut found, mut words) = (Vec::new(), Vec::new());
        while log.next(&mut words).map_err(text)?.is_some() {
            found.push(words.clone());
        }
        let truncated = count_of(marks, TRUNCATED)..=count_of(marks, TRUNCATING);
        let appended = [FLUSHED, APPENDING].map(|what| self.before.max(count_of(marks, what)));
        let appended = appended[0]..=appended[1];
        let fits = |first: usize| {
            let records = found.iter().enumerate();
            appended.contains(&(first + found.len()))
                && records
                    .into_iter()
                    .all(|(n, words)| *words == self.record(first + n))
        };
        match truncated.clone().any(fits) {
            true => Ok(hash(found.concat())),
            false => Err(format!(
                "{} records; from {truncated:?} to {appended:?} should be there",
                found.len()
            )),
        }
    }

    fn go_on(&self, (log, pm): Self::Opened) -> Result<(), String> {
        let (mut log, _) = log.empty().map_err(text)?;
        for n in 0..2 {
            log.append(&self.record(n)).map_err(text)?;
            log.flush().map_err(text)?;
        }
        let mut again = Unrecovered::open(pm, 0).map_err(text)?;
        let mut words = Vec::new();
        for n in 0..2 {
            again.next(&mut words).map_err(text)?;
            if words != self.record(n) {
                return Err(format!("record {n} after recovery holds {words:x?}"));
            }
        }
        match again.next(&mut words).map_err(text)? {
            None => Ok(()),
            Some(_) => Err("a record that was never appended".into()),
        }
    }
}

// --- transactions -------------------------------------------------------------------

/// Sessions that change words in turn, each with its log.
pub struct Transactions {
    pub kind: Kind,
    pub truncation: Truncation,
    pub sessions: usize,
    /// Lines of each log.
    pub lines: u64,
    /// The words that each transaction writes, again and again.
    pub writes: &'static [&'static [u64]],
    /// A single word is written without a transaction.
    pub by_hand: bool,
    /// Transactions in all.
    pub count: usize,
    /// How many of them are over before: the program begins with a recovery.
    pub before: usize,
}

pub const BEGUN: u64 = 1;
pub const RETURNED: u64 = 2;
/// Words that transactions change.
const WORDS: u64 = 24;

impl Transactions {
    fn area(&self) -> Area {
        Area {
            start: 0,
            logs: self.sessions as u64,
            log_bytes: (self.lines + 1) * 64,
            kind: self.kind,
        }
    }

    fn options(&self) -> tx::Options {
        tx::Options {
            truncation: self.truncation,
            locks: 64,
            ..tx::Options::default()
        }
    }

    fn data(&self) -> u64 {
        self.area().bytes()
    }

    fn writes(&self, n: usize) -> &'static [u64] {
        self.writes[n % self.writes.len()]
    }

    /// The words after so many transactions.
    fn state(&self, count: usize) -> Vec<u64> {
        let mut words = vec![0; WORDS as usize];
        for n in 0..count {
            for word in self.writes(n) {
                words[*word as usize] = n as u64 + 1;
            }
        }
        words
    }

    fn change(&self, n: usize, session: &mut tx::Session<Memory>) -> Result<(), String> {
        let done = session.run(|tx| {
            for word in self.writes(n) {
                tx.store(self.data() + word * WORD_BYTES, n as u64 + 1)?;
            }
            Ok::<_, Stop<Infallible>>(())
        });
        done.map_err(text)
    }

    fn run_some(&self, some: Range<usize>, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let memory = Area::recover(pm, 0, self.options()).map_err(text)?;
        let mut sessions: Vec<_> = (0..self.sessions).map(|_| memory.session()).collect();
        for n in some {
            mark(mark_of(BEGUN, n + 1));
            match *self.writes(n) {
                [word] if self.by_hand => self.store(n, word, &memory)?,
                _ => self.change(n, &mut sessions[n % self.sessions])?,
            }
            mark(mark_of(RETURNED, n + 1));
        }
        Ok(())
    }

    /// Stores a word, and makes it durable.
    fn store(&self, n: usize, word: u64, memory: &tx::Memory<Memory>) -> Result<(), String> {
        let (pm, off) = (memory.space(), self.data() + word * WORD_BYTES);
        pm.store_word(off, n as u64 + 1);
        pm.flush(off, WORD_BYTES);
        memory.truncate_for(off, WORD_BYTES).map_err(text)?;
        pm.fence(Rule::DurableBeforeReturn).map_err(text)
    }
}

impl Program for Transactions {
    type Opened = (tx::Memory<Memory>, Memory);

    fn bytes(&self) -> u64 {
        self.data() + WORDS * WORD_BYTES
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.area().format(&pm).map_err(text)?;
        self.run_some(0..self.before, pm, &|_| ())
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        self.run_some(self.before..self.count, pm, mark)
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        let memory = Area::recover(pm.clone(), 0, self.options()).map_err(text)?;
        Ok((memory, pm))
    }

    fn check(&self, (_, pm): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let words = (0..WORDS).map(|word| pm.load(self.data() + word * WORD_BYTES));
        let words = words.collect::<Result<Vec<_>, _>>().map_err(text)?;
        let allowed = [RETURNED, BEGUN].map(|what| self.before.max(count_of(marks, what)));
        let allowed = allowed[0]..=allowed[1];
        match allowed.clone().any(|count| words == self.state(count)) {
            true => Ok(hash(words)),
            false => Err(format!("{words:?} is none of the states {allowed:?}")),
        }
    }

    fn go_on(&self, (memory, pm): Self::Opened) -> Result<(), String> {
        let mut session = memory.session();
        for n in 0..3 {
            self.change(n, &mut session)?;
        }
        drop(session);
        drop(memory);
        Area::recover(pm.clone(), 0, self.options()).map_err(text)?;
        for word in self.writes(2) {
            if pm.load(self.data() + word * WORD_BYTES).map_err(text)? != 3 {
                return Err(format!("word {word} was not changed after recovery"));
            }
        }
        Ok(())
    }
}

// --- all of it ----------------------------------------------------------------------

/// A step of a program on a store. A slot is a pointer to a thing, and says what it is.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Allocates a block, filled inside the transaction.
    Alloc {
        slot: u64,
        bytes: u64,
    },
    /// Allocates a block, and fills it by plain stores before another transaction says so.
    Shadow {
        slot: u64,
        bytes: u64,
    },
    /// Writes to a thing by a transaction.
    Write {
        slot: u64,
    },
    /// Writes all words of a thing by one transaction.
    Rewrite {
        slot: u64,
    },
    Free {
        slot: u64,
    },
    /// Replaces a block and cancels that: frees it, and allocates and fills another one.
    Cancel {
        slot: u64,
        bytes: u64,
    },
    /// Allocates a block and fills it in place. What an inner transaction stores over that is put
    /// back when it is cancelled.
    Undo {
        slot: u64,
        bytes: u64,
    },
    Map {
        slot: u64,
    },
    /// Makes a region that nobody gets to know: the transaction that would say so fails.
    FailMap,
    Unmap {
        slot: u64,
    },
    /// Allocates, frees and moves in one transaction: the block of one slot goes, another
    /// takes its place, and a third slot gets a block of its own.
    Replace {
        slot: u64,
        other: u64,
        bytes: u64,
    },
}

/// Transactions that are longer than a log of a few lines, and blocks where their overflows were.
pub const OVERFLOWS: &[Step] = &[
    Step::Alloc {
        slot: 0,
        bytes: 320,
    },
    Step::Rewrite { slot: 0 },
    Step::Shadow {
        slot: 1,
        bytes: 5000,
    },
    Step::Rewrite { slot: 0 },
    Step::Free { slot: 1 },
    Step::Rewrite { slot: 0 },
];

/// Inner transactions are cancelled that have stored to blocks of the outer ones: to one that was
/// streamed, and to one that was not.
pub const UNDONE: &[Step] = &[
    Step::Undo {
        slot: 0,
        bytes: 1024,
    },
    Step::Undo {
        slot: 1,
        bytes: 128,
    },
    Step::Free { slot: 0 },
    Step::Undo {
        slot: 2,
        bytes: 1024,
    },
];

pub struct Whole {
    pub kind: Kind,
    pub truncation: Truncation,
    pub log_lines: u64,
    pub steps: &'static [Step],
}

const SLOTS: u64 = 4;
/// Words of a slot: where, how long in bytes, what it holds; 0, nothing yet.
const SLOT_WORDS: u64 = 3;

/// What each slot's thing is long, and holds.
pub type Table = [(u64, u64); SLOTS as usize];

impl Whole {
    pub fn layout(&self) -> Layout {
        Layout {
            slots: 6,
            roots: 2,
            granule: 8192,
            logs: 1,
            log_bytes: (self.log_lines + 1) * 64,
            log_kind: self.kind,
        }
    }

    fn options(&self) -> Options {
        Options {
            tx: tx::Options {
                truncation: self.truncation,
                locks: 256,
                ..tx::Options::default()
            },
            heap_growth: 40 << 10,
        }
    }

    /// The states that the steps go through: what each slot's thing is long, and holds; and what
    /// the step fills things with.
    fn states(&self) -> Vec<(Table, u64)> {
        let mut states = vec![(Table::default(), 0)];
        for (step, seed) in self.steps.iter().zip(1..) {
            let (now, _) = *states.last().expect("there is a first one");
            states.extend(
                step.states(now, seed)
                    .into_iter()
                    .map(|state| (state, seed)),
            );
        }
        states
    }
}

impl Step {
    /// The states that it goes through from this one on.
    pub fn states(self, mut now: Table, seed: u64) -> Vec<Table> {
        let mut states = Vec::new();
        match self {
            Self::Alloc { slot, bytes } | Self::Undo { slot, bytes } => {
                now[slot as usize] = (bytes, seed);
            }
            Self::Shadow { slot, bytes } => {
                now[slot as usize] = (bytes, 0);
                states.push(now);
                now[slot as usize] = (bytes, seed);
            }
            Self::Write { slot } | Self::Rewrite { slot } => now[slot as usize].1 = seed,
            Self::Free { slot } | Self::Unmap { slot } => now[slot as usize] = (0, 0),
            Self::Cancel { .. } | Self::FailMap => {}
            Self::Map { slot } => {
                now[slot as usize] = (4096, 0);
                states.push(now);
                now[slot as usize] = (4096, seed);
            }
            Self::Replace { slot, other, bytes } => {
                now[slot as usize] = (bytes, seed);
                now[other as usize] = (bytes, seed);
            }
        }
        states.push(now);
        states
    }
}

/// Words of a thing that hold something: its first, and one in each KiB.
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

    /// Does a step; `next` is called where the state changes within it.
    #[expect(clippy::too_many_lines, reason = "one short arm for each step")]
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
            Step::Cancel { slot, bytes } => {
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
            Step::Undo { slot, bytes } => {
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
            Step::Map { slot } => self.map(slot, seed, next),
            Step::FailMap => {
                let what = "link";
                let fail =
                    |_: &mut Transaction<'_, B::Pmem>, off| Err(Interrupted::NoValue { off, what });
                match self.store.map(RegionKind::Program, 4096, 0, fail) {
                    Err(MemoryError::Refused(TxError::NoValue { .. })) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
            Step::Unmap { slot } => {
                let at = self.slot(slot);
                let start = self.pm().load(at).map_err(text)?;
                let unlink = |tx: &mut Transaction<'_, B::Pmem>| {
                    (0..3).try_for_each(|n| tx.store(at + n * WORD_BYTES, 0))
                };
                self.store.unmap(start, unlink).map_err(text)
            }
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

    /// Fills a thing that is new by plain stores.
    fn fill(&self, start: u64, bytes: u64, seed: u64) -> Result<(), String> {
        let pm = self.pm();
        for word in pattern(start, bytes - 8) {
            pm.store_word(word, seed);
            pm.flush(word, WORD_BYTES);
        }
        pm.fence(Rule::DurableBeforeReturn).map_err(text)
    }

    /// Removes what is there, and makes what is not.
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

    /// What is there; leaks and losses are wrong. A new region is zeros, besides what is being
    /// filled in.
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

/// What a block holds that was filled.
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

impl Program for Whole {
    type Opened = Using<Flat<Memory>>;

    fn bytes(&self) -> u64 {
        (self.layout().bytes() + (96 << 10)).next_multiple_of(64)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.layout().format(&pm).map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mut using = Using::open(self, Flat(pm)).map_err(text)?;
        let states = Cell::new(0);
        for (n, step) in self.steps.iter().enumerate() {
            let next = || {
                states.set(states.get() + 1);
                mark(mark_of(RETURNED, states.get()));
                mark(mark_of(BEGUN, states.get() + 1));
            };
            mark(mark_of(BEGUN, states.get() + 1));
            using.step(*step, n as u64 + 1, &next)?;
            states.set(states.get() + 1);
            mark(mark_of(RETURNED, states.get()));
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        Using::open(self, Flat(pm)).map_err(text)
    }

    fn check(&self, using: &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let states = self.states();
        let allowed = count_of(marks, RETURNED)..=count_of(marks, BEGUN);
        let (_, filling) = states[*allowed.end()];
        let found = using.found(filling)?;
        match allowed.clone().any(|n| states[n].0 == found) {
            true => Ok(hash(found.iter().flat_map(|(a, b)| [*a, *b]))),
            false => Err(format!("{found:?} is none of the states {allowed:?}")),
        }
    }

    fn go_on(&self, mut using: Self::Opened) -> Result<(), String> {
        using.turn_over()
    }
}
