//! A raw word log: appends, truncations, wraps.

use crate::marks::{count_of, hash, mark_of, text};
use crash::program::{Memory, Program};
use wordlog::{Kind, LogError, Unrecovered};

/// Appends records, several to a flush, and truncates. The records fill the ring at least twice.
pub struct Logs {
    pub kind: Kind,
    /// Lines of the ring.
    pub lines: u64,
    /// Lengths of the records in words, repeated.
    pub lengths: &'static [usize],
    /// Number of records.
    pub count: usize,
    /// Number of records before the run, which begins with a recovery.
    pub before: usize,
    /// Whether this recovery drops them.
    pub empties: bool,
}

const APPENDING: u64 = 1;
const FLUSHED: u64 = 2;
const TRUNCATING: u64 = 3;
const TRUNCATED: u64 = 4;

impl Logs {
    fn record(&self, n: usize) -> Vec<u64> {
        let len = self.lengths[n % self.lengths.len()];
        // All ones, all zeros, and others: torn bits must not depend on the values.
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
            // Not after each record, so that several are in flight.
            if n % 3 != 1 {
                log.flush().map_err(text)?;
                mark(mark_of(FLUSHED, n + 1));
            }
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        // Recovery stores only when the log is used again. Do that here, so that crashes in it
        // are visited.
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
