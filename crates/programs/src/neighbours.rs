//! A transaction must change only the bytes that it writes. Meanwhile plain stores change their
//! neighbours in the same words.

use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crash::program::{Memory, Program};
use medium::{Pmem, Rule};
use mnemosyne::tx::{self, Area, Stop};
use std::cell::Cell;
use std::convert::Infallible;
use wordlog::Kind;

/// Words of two halves: transactions store to the lower ones, plain stores to the upper ones.
pub struct Neighbours {
    pub kind: Kind,
    /// Lines of the log.
    pub lines: u64,
    /// Transactions.
    pub count: usize,
}

const WORDS: usize = 5;
/// A mark: that many plain stores are durable.
const STORED: u64 = 3;

impl Neighbours {
    fn area(&self) -> Area {
        Area {
            start: 0,
            logs: 1,
            log_bytes: (self.lines + 1) * 64,
            kind: self.kind,
        }
    }

    fn recover(pm: Memory) -> Result<tx::Memory<Memory>, String> {
        let options = tx::Options {
            locks: 64,
            ..tx::Options::default()
        };
        Area::recover(pm, 0, options).map_err(text)
    }

    fn lower(&self, word: usize) -> u64 {
        self.area().bytes() + 8 * word as u64
    }

    /// Runs transaction `n`. The plain store comes after its writes, and before its commit.
    fn change(
        &self,
        n: usize,
        memory: &tx::Memory<Memory>,
        mark: &dyn Fn(u64),
    ) -> Result<(), String> {
        let stored = Cell::new(Ok(()));
        let done = memory.session().run(|tx| {
            for word in written(n) {
                tx.write(self.lower(word), &bytes(n))?;
            }
            stored.set(self.store(n, memory));
            mark(mark_of(STORED, n));
            Ok::<_, Stop<Infallible>>(())
        });
        stored.into_inner()?;
        done.map_err(text)
    }

    /// Stores to the neighbour of what transaction `n` writes.
    fn store(&self, n: usize, memory: &tx::Memory<Memory>) -> Result<(), String> {
        let (pm, off) = (memory.space(), self.lower(plain(n)) + 4);
        pm.store(off, &bytes(n));
        pm.flush(off, 4);
        memory.truncate_for(off, 4).map_err(text)?;
        pm.fence(Rule::DurableBeforeReturn).map_err(text)
    }
}

fn bytes(n: usize) -> [u8; 4] {
    (n as u32).to_le_bytes()
}

/// The words that transaction `n` writes to: one or two.
fn written(n: usize) -> impl Iterator<Item = usize> {
    [n % 3, 3 + n % 2].into_iter().take(1 + n % 3)
}

/// The word that the plain store of transaction `n` changes.
fn plain(n: usize) -> usize {
    n % 3
}

/// Lower halves after `count` transactions.
fn lower(count: usize) -> [u32; WORDS] {
    let mut halves = [0; WORDS];
    for n in 1..=count {
        written(n).for_each(|word| halves[word] = n as u32);
    }
    halves
}

/// Upper halves after `count` plain stores.
fn upper(count: usize) -> [u32; WORDS] {
    let mut halves = [0; WORDS];
    (1..=count).for_each(|n| halves[plain(n)] = n as u32);
    halves
}

impl Program for Neighbours {
    type Opened = Memory;

    fn bytes(&self) -> u64 {
        self.lower(WORDS).next_multiple_of(64)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.area().format(&pm).map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let memory = Self::recover(pm)?;
        for n in 1..=self.count {
            mark(mark_of(BEGUN, n));
            self.change(n, &memory, mark)?;
            mark(mark_of(RETURNED, n));
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Memory, String> {
        Self::recover(pm.clone())?;
        Ok(pm)
    }

    fn check(&self, pm: &mut Memory, marks: &[u64]) -> Result<u64, String> {
        let words = (0..WORDS).map(|word| pm.load(self.lower(word)));
        let words = words.collect::<Result<Vec<_>, _>>().map_err(text)?;
        let [returned, stored, begun] = [RETURNED, STORED, BEGUN].map(|what| count_of(marks, what));
        let is_one_of = |from: usize, state: fn(usize) -> [u32; WORDS], shift: u32| {
            let halves = words.iter().map(|word| (word >> shift) as u32);
            (from..=begun).any(|count| halves.clone().eq(state(count)))
        };
        match (is_one_of(returned, lower, 0), is_one_of(stored, upper, 32)) {
            (true, true) => Ok(hash(words)),
            (false, _) => Err(format!(
                "{words:x?}: not the lower halves of {returned}..={begun}"
            )),
            _ => Err(format!(
                "{words:x?}: not the upper halves of {stored}..={begun}"
            )),
        }
    }

    fn go_on(&self, pm: Memory) -> Result<(), String> {
        self.change(1, &Self::recover(pm.clone())?, &|_| ())?;
        Self::recover(pm.clone())?;
        match pm.load(self.lower(1)).map_err(text)? {
            0x1_0000_0001 => Ok(()),
            word => Err(format!("{word:x} after recovery")),
        }
    }
}
