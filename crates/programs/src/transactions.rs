//! Transactions on words, by one session or by several.

use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crash::program::{Memory, Program};
use medium::{Pmem, Rule, WORD_BYTES};
use mnemosyne::tx::{self, Area, Stop, Truncation};
use std::convert::Infallible;
use std::ops::Range;
use wordlog::Kind;

/// Sessions that change words in turn, each with its log.
pub struct Transactions {
    pub kind: Kind,
    pub truncation: Truncation,
    pub sessions: usize,
    /// Lines of each log.
    pub lines: u64,
    /// The words that each transaction writes, repeated.
    pub writes: &'static [&'static [u64]],
    /// Whether a single word is written without a transaction.
    pub by_hand: bool,
    /// Number of transactions.
    pub count: usize,
    /// Number of transactions before the run, which begins with a recovery.
    pub before: usize,
}

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

    /// The words after `count` transactions.
    fn state(&self, count: usize) -> Vec<u64> {
        let mut words = vec![0; WORDS as usize];
        for n in 0..count {
            for word in self.writes(n) {
                words[*word as usize] = n as u64 + 1;
            }
        }
        words
    }

    fn change(&self, n: usize, session: &mut tx::TxSession<Memory>) -> Result<(), String> {
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
