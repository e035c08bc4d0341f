//! Records as words of the ring: 63 bits of a stream and a torn bit each, or plain.

use super::{Kind, LINE, RECORD_HEAD, Result, Ring, checksum};
use medium::{Pmem, WORD_BYTES};
use zerocopy::IntoBytes;

// Words are stored in the byte order of memory.
const _: () = assert!(cfg!(target_endian = "little"), "logs are little-endian");

/// Bits of a word that are not the torn bit.
const BITS: u64 = u64::MAX >> 1;

/// Turns the words of a record into words of a ring, without torn bits: whole lines, which
/// replace the contents of `packed`.
pub(super) fn pack(kind: Kind, record: [&[u64]; 2], packed: &mut Vec<u64>) {
    packed.clear();
    match kind {
        Kind::Base => record
            .iter()
            .for_each(|words| packed.extend_from_slice(words)),
        Kind::TornBit => shift(record, packed),
    }
    packed.resize(packed.len().next_multiple_of(LINE as usize), 0);
}

/// Spreads the bits of a record over words whose highest bit is free.
fn shift(record: [&[u64]; 2], packed: &mut Vec<u64>) {
    let words: usize = record.iter().map(|words| words.len()).sum();
    packed.resize(words + words.div_ceil(63), 0);
    let mut out = packed.iter_mut();
    let mut put = |word| {
        if let Some(next) = out.next() {
            *next = word;
        }
    };
    // The lowest `count` bits of `rest` belong to the next word.
    let (mut rest, mut count) = (0, 0);
    for word in record.into_iter().flatten() {
        put((rest | word << count) & BITS);
        rest = word >> (63 - count);
        count += 1;
        if count == 63 {
            put(rest);
            (rest, count) = (0, 0);
        }
    }
    if count > 0 {
        put(rest);
    }
}

/// Sets the torn bits of words and stores them from `position` on, a multiple of a line's
/// words. They are durable after the next fence.
pub(super) fn store<P: Pmem>(pm: &P, ring: Ring, position: u64, packed: &mut [u64]) {
    // One division for all words, since divisions take half of the time.
    let (pass, first) = (position / ring.words, position % ring.words);
    let until_wrap = packed.len().min((ring.words - first) as usize);
    let (before, wrapped) = packed.split_at_mut(until_wrap);
    for (pass, at, words) in [(pass, first, before), (pass + 1, 0, wrapped)] {
        if words.is_empty() {
            continue;
        }
        let torn_bit = ring.torn_bit_of(pass);
        words.iter_mut().for_each(|word| *word |= torn_bit);
        pm.store_nt(ring.byte_of(at), words.as_bytes());
    }
}

/// The inverse of [`store`]: reads the words of a stream while the torn bits are right, with
/// one exception.
struct Unpacker<'a, P> {
    pm: &'a P,
    ring: Ring,
    position: u64,
    /// Byte offset of `position`. Like the torn bit of the line, it costs a division for each
    /// line.
    at: u64,
    torn_bit: u64,
    /// A torn bit was wrong: the word is missing, or the bit has flipped.
    is_torn: bool,
    /// The word before `position`, and the number of its bits that were used.
    word: u64,
    used: u32,
}

impl<'a, P: Pmem> Unpacker<'a, P> {
    /// A reader that starts at `position`, a multiple of a line's words.
    fn new(pm: &'a P, ring: Ring, position: u64) -> Self {
        Self {
            pm,
            ring,
            position,
            at: ring.byte(position),
            torn_bit: ring.torn_bit(position),
            is_torn: false,
            word: 0,
            used: 63,
        }
    }

    /// The word of the ring at `position`, without its torn bit. `None` from the second wrong
    /// torn bit on.
    fn take(&mut self) -> Result<Option<u64>> {
        let word = self.pm.load(self.at)?;
        let torn_bit = self.torn_bit;
        self.position += 1;
        self.at += WORD_BYTES;
        if self.position.is_multiple_of(LINE) {
            self.at = self.ring.byte(self.position);
            self.torn_bit = self.ring.torn_bit(self.position);
        }
        if self.ring.kind == Kind::Base {
            return Ok(Some(word));
        }
        let is_wrong = word & !BITS != torn_bit;
        if is_wrong && self.is_torn {
            return Ok(None);
        }
        self.is_torn |= is_wrong;
        Ok(Some(word & BITS))
    }

    /// The result for words that are not a record.
    fn none(&self) -> Found {
        match self.is_torn {
            true => Found::Missing,
            false => Found::Damaged,
        }
    }

    fn next(&mut self) -> Result<Option<u64>> {
        if self.ring.kind == Kind::Base {
            return self.take();
        }
        if self.used == 63 {
            let Some(word) = self.take()? else {
                return Ok(None);
            };
            (self.word, self.used) = (word, 0);
        }
        let low = self.word >> self.used;
        let Some(word) = self.take()? else {
            return Ok(None);
        };
        let whole = low | word << (63 - self.used);
        (self.word, self.used) = (word, self.used + 1);
        Ok(Some(whole))
    }

    /// Whether the rest of the last line is present.
    fn has_line_end(&mut self) -> Result<bool> {
        while !self.position.is_multiple_of(LINE) {
            if self.take()?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The contents of the ring at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A whole record.
    Record {
        /// The position after the record.
        end: u64,
    },
    /// Words are missing: nothing was appended here, or an append was cut off.
    Missing,
    /// All words are present, but are not a record.
    Damaged,
}

/// The head of a record.
pub(super) struct Head {
    /// Words that follow.
    pub len: u64,
    pub crc: u64,
    /// The position up to which all records were flushed when this one was appended.
    pub flushed: u64,
}

impl Head {
    /// The largest length that a head can hold.
    pub(crate) const LEN_MAX: u64 = (1 << 31) - 1;

    /// Reads the head at `position`, a multiple of a line's words; `None`: words are missing.
    pub(crate) fn at<P: Pmem>(pm: &P, ring: Ring, position: u64) -> Result<Option<Self>> {
        Self::read(&mut Unpacker::new(pm, ring, position))
    }

    fn read<P: Pmem>(stream: &mut Unpacker<'_, P>) -> Result<Option<Self>> {
        let (Some(first), Some(flushed)) = (stream.next()?, stream.next()?) else {
            return Ok(None);
        };
        let is_sealed = (first as u32).count_ones().is_multiple_of(2);
        Ok(Some(Self {
            // A length that has changed becomes longer than any record.
            len: if is_sealed {
                first & Self::LEN_MAX
            } else {
                u64::MAX
            },
            crc: first >> 32,
            flushed,
        }))
    }

    /// Encodes the head as two words.
    pub(crate) fn encode(&self) -> [u64; RECORD_HEAD as usize] {
        let is_odd = u64::from(self.len.count_ones() % 2);
        [self.len | is_odd << 31 | self.crc << 32, self.flushed]
    }
}

/// Reads the record at `position`, a multiple of a line's words, into `words`.
pub(super) fn record<P: Pmem>(
    pm: &P,
    ring: Ring,
    position: u64,
    words: &mut Vec<u64>,
) -> Result<Found> {
    words.clear();
    let mut stream = Unpacker::new(pm, ring, position);
    let Some(Head { len, crc, flushed }) = Head::read(&mut stream)? else {
        return Ok(Found::Missing);
    };
    if len > ring.longest() || flushed > position {
        return Ok(stream.none());
    }
    for _ in 0..len {
        match stream.next()? {
            Some(word) => words.push(word),
            None => return Ok(Found::Missing),
        }
    }
    if !stream.has_line_end()? {
        return Ok(Found::Missing);
    }
    if crc != checksum(position, len, flushed, words) {
        return Ok(stream.none());
    }
    debug_assert_eq!(stream.position - position, ring.taken(len));
    let end = stream.position;
    Ok(Found::Record { end })
}
