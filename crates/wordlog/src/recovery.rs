//! Recovery: reads the records after a crash.

use super::bits::{self, Found, Head};
use super::{
    AT_HEAD, AT_KIND, AT_MAGIC, AT_TAIL, AT_WORDS, Appender, Consumer, Kind, LINE, LogError, MAGIC,
    POSITION_MAX, Result, Ring, Shared,
};
use crate::sealed::{self, seal};
use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, Pmem, Rule, WORD_BYTES};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A log after a crash. Read its records, then use it by [`keep`](Self::keep) or
/// [`empty`](Self::empty).
#[derive(Debug)]
pub struct Unrecovered<P> {
    pm: P,
    ring: Ring,
    head: u64,
    /// Position of the next record.
    next: u64,
    /// Position after the last record of a base log.
    tail: Option<u64>,
    /// Position at which [`cut`](Self::cut) ended the log.
    cut: Option<u64>,
}

impl<P: Pmem> Unrecovered<P> {
    /// Reads the first line of the log at byte `start`.
    ///
    /// # Errors
    /// [`LogError::NotALog`], and errors of the memory.
    pub fn open(pm: P, start: u64) -> Result<Self> {
        let wrong = |what: String| LogError::NotALog { start, what };
        let limit = pm.len();
        if !start.is_multiple_of(LINE_BYTES) || start.saturating_add(3 * LINE_BYTES) > limit {
            return Err(wrong("there is no room for one".into()));
        }
        if pm.load(start + AT_MAGIC)? != MAGIC {
            return Err(wrong("its magic is missing, or of another version".into()));
        }
        let word = |at| {
            let word = sealed::open(pm.load(start + at)?);
            word.ok_or_else(|| wrong(format!("its word at byte {at} has changed")))
        };
        let kind = match word(AT_KIND)? {
            0 => Kind::Base,
            1 => Kind::TornBit,
            other => return Err(wrong(format!("kind {other} is unknown"))),
        };
        let words = word(AT_WORDS)?;
        let room = (limit - start - LINE_BYTES) / WORD_BYTES;
        if !words.is_multiple_of(LINE) || words < 2 * LINE || words > room {
            return Err(wrong(format!("a ring of {words} words")));
        }
        let head = word(AT_HEAD)?;
        let tail = match kind {
            Kind::Base => Some(word(AT_TAIL)?),
            Kind::TornBit => None,
        };
        let used = tail.map_or(Some(0), |tail| tail.checked_sub(head));
        let is_one = |at: u64| at.is_multiple_of(LINE) && at <= POSITION_MAX;
        let fits = used.is_some_and(|used| used <= words - LINE);
        if !fits || !is_one(head) || !is_one(tail.unwrap_or(0)) {
            let what = format!("records from position {head} to {tail:?}");
            return Err(wrong(what));
        }
        let ring = Ring { start, kind, words };
        Ok(Self {
            pm,
            ring,
            head,
            next: head,
            tail,
            cut: None,
        })
    }

    /// The kind of the log.
    pub fn kind(&self) -> Kind {
        self.ring.kind
    }

    /// The position of the next record that [`next`](Self::next) reads.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Bytes that the log takes.
    pub fn bytes(&self) -> u64 {
        LINE_BYTES + self.ring.words * WORD_BYTES
    }

    /// Reads the next record into `words`, which it replaces. Returns the position of its end,
    /// or `None` if there are no more.
    ///
    /// # Errors
    /// [`LogError::Damaged`], and errors of the memory.
    pub fn next(&mut self, words: &mut Vec<u64>) -> Result<Option<u64>> {
        let limit = self.limit();
        if self.next == limit {
            return Ok(None);
        }
        match bits::record(&self.pm, self.ring, self.next, words)? {
            Found::Record { end } if end <= limit => {
                self.next = end;
                Ok(Some(end))
            }
            Found::Missing if self.tail.is_none() && !self.was_flushed(self.next)? => Ok(None),
            Found::Record { .. } | Found::Missing | Found::Damaged => {
                Err(self.ring.damaged(self.next))
            }
        }
    }

    /// Drops the record at `position`, which [`next`](Self::next) has reached or read, and all
    /// that follow. Only [`empty`](Self::empty) makes this durable.
    pub fn cut(&mut self, position: u64) {
        // A base log skips to its tail.
        self.next = self.tail.unwrap_or(position);
        self.cut = Some(self.next);
    }

    /// The position after which no record ends.
    fn limit(&self) -> u64 {
        let full = self.head + self.ring.words - LINE;
        self.cut.or(self.tail).unwrap_or(full)
    }

    /// Whether a later record states that the words at `position` were durable. No record does
    /// so after a crash, which loses words after the last flush only.
    fn was_flushed(&self, position: u64) -> Result<bool> {
        let mut words = Vec::new();
        // Words of records may look like heads of long records: the number of words that are
        // read is bounded.
        let mut left = 4 * self.ring.words;
        for later in (position + LINE..self.limit()).step_by(LINE as usize) {
            let Some(head) = Head::at(&self.pm, self.ring, later)? else {
                continue;
            };
            if head.flushed <= position || head.flushed > later || head.len > left {
                continue;
            }
            left -= head.len;
            let found = bits::record(&self.pm, self.ring, later, &mut words)?;
            if matches!(found, Found::Record { .. }) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Uses the log with its records, which are durable and can be read again.
    ///
    /// # Errors
    /// [`LogError::Damaged`], and errors of the memory.
    pub fn keep(mut self) -> Result<(Appender<P>, Consumer<P>)>
    where
        P: Clone,
    {
        self.skip()?;
        for line in (self.head..self.next).step_by(LINE as usize) {
            self.set_torn_bits(line, self.ring.torn_bit(line))?;
            // A killed program may have left the line in the caches only.
            self.pm.flush(self.ring.byte(line), LINE_BYTES);
        }
        self.scrub()?;
        let head = self.head;
        Ok(self.halves(head))
    }

    /// Uses the log without its records, which are freed durably.
    ///
    /// # Errors
    /// [`LogError::Damaged`], and errors of the memory.
    pub fn empty(mut self) -> Result<(Appender<P>, Consumer<P>)>
    where
        P: Clone,
    {
        self.skip()?;
        let start = self.ring.start;
        self.pm.store_word(start + AT_HEAD, seal(self.next));
        if !hit(Bug::UnflushedHead) {
            self.pm.flush(start + AT_HEAD, WORD_BYTES);
        }
        let head = self.next;
        if !hit(Bug::ScrubbedToOldHead) {
            self.head = head;
        }
        self.scrub()?;
        Ok(self.halves(head))
    }

    fn skip(&mut self) -> Result<()> {
        let mut words = Vec::new();
        while self.next(&mut words)?.is_some() {}
        Ok(())
    }

    /// Gives all words after the last record, up to the next pass over the head, the torn bit of words that are missing.
    /// A later append could take them for its own otherwise. An append that a crash cut off leaves such words. A freed
    /// record has one if a crash lost a word of which only the torn bit had changed. Fences.
    fn scrub(&self) -> Result<()> {
        if self.ring.kind == Kind::TornBit && !hit(Bug::Unscrubbed) {
            let mut end = self.head + self.ring.words;
            if hit(Bug::ScrubbedToEnd) {
                end = end.min((self.next + 1).next_multiple_of(self.ring.words));
            }
            for line in (self.next..end).step_by(LINE as usize) {
                self.set_torn_bits(line, self.ring.torn_bit(line) ^ 1 << 63)?;
            }
        }
        // Otherwise the words of an append that a crash cut off could become a part of a later
        // record.
        if !hit(Bug::UnfencedScrub) {
            self.pm.fence(Rule::NullifyBeforeReuse)?;
        }
        Ok(())
    }

    /// Sets the torn bit of all words of the line at position `line`.
    fn set_torn_bits(&self, line: u64, torn_bit: u64) -> Result<()> {
        if self.ring.kind == Kind::Base {
            return Ok(());
        }
        let at = self.ring.byte(line);
        let mut bytes = [0; LINE_BYTES as usize];
        self.pm.read(at, &mut bytes)?;
        let (words, _) = bytes.as_chunks();
        let mut is_changed = false;
        for (n, word) in words
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .enumerate()
        {
            if word & 1 << 63 != torn_bit {
                self.pm
                    .store_word(at + n as u64 * WORD_BYTES, word ^ 1 << 63);
                is_changed = true;
            }
        }
        if is_changed {
            self.pm.flush(at, LINE_BYTES);
        }
        Ok(())
    }

    fn halves(self, head: u64) -> (Appender<P>, Consumer<P>)
    where
        P: Clone,
    {
        let shared = Arc::new(Shared {
            head: AtomicU64::new(head),
            flushed: AtomicU64::new(self.next),
        });
        let (ring, tail) = (self.ring, self.next);
        let appender = Appender {
            pm: self.pm.clone(),
            ring,
            shared: shared.clone(),
            tail,
            packed: Vec::new(),
        };
        let consumer = Consumer {
            pm: self.pm,
            ring,
            shared,
            next: head,
        };
        (appender, consumer)
    }
}
