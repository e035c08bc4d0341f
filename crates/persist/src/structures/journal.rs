//! A journal: consecutive records of bytes, up to a truncation, in blocks that form a chain.
//!
//! A record is its length as a word, its bytes, and undefined bytes up to a whole word. At the
//! end of a block it continues in the next.

use super::{Circle, damaged, headed, until_over};
use crate::tx::write_fresh;
use crate::{Persist, Ptr, TypedTx};
use medium::WORD_BYTES;
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use std::marker::PhantomData;

/// The description of a valid journal in errors about a damaged one.
const WHAT: &str = "sound journal";

/// A journal of records, which are numbered from 0 on, in blocks of `BLOCK` bytes.
pub struct Journal<const BLOCK: usize = 4088> {
    head: Head,
    of: PhantomData<()>,
}

#[derive(Debug, Persist)]
struct Head {
    first: Option<Ptr<Block>>,
    last: Option<Ptr<Block>>,
    /// Offsets of the first record in the first block, and of the end in the last block.
    begins: u64,
    ends: u64,
    /// The numbers of the first record, and of the next one.
    from: u64,
    until: u64,
}

/// The head of a block, before its bytes.
#[derive(Debug, Persist)]
struct Block {
    next: Option<Ptr<Block>>,
}

/// The position of a reader in a [`Journal`]: before a record, initially the first one. It
/// stays valid whatever changes in the journal.
#[derive(Debug, Clone, Copy, Default, Persist)]
#[persist(name = "Place")] // once called so: data that hold one can still be opened
pub struct Cursor {
    /// The number of the record after it.
    number: u64,
    block: Option<Ptr<Block>>,
    at: u64,
}

impl Cursor {
    /// The number of the next record.
    pub fn number(&self) -> u64 {
        self.number
    }
}

headed!([const BLOCK: usize] Journal<BLOCK>, layout => layout.word(&format!("log/{BLOCK}")));

impl<const BLOCK: usize> Journal<BLOCK> {
    const HAS_ROOM: () = assert!(
        BLOCK > 0 && BLOCK.is_multiple_of(8),
        "a block has room for words"
    );

    /// An empty journal.
    pub const fn new() -> Self {
        let () = Self::HAS_ROOM;
        Self {
            head: Head {
                first: None,
                last: None,
                begins: 0,
                ends: 0,
                from: 0,
                until: 0,
            },
            of: PhantomData,
        }
    }
}

impl<const BLOCK: usize> Default for Journal<BLOCK> {
    fn default() -> Self {
        Self::new()
    }
}

/// Operations on a [`Journal`].
impl<const BLOCK: usize> Ptr<Journal<BLOCK>> {
    fn head(self) -> Ptr<Head> {
        self.at(Journal::HEAD)
    }

    fn damaged(self) -> Interrupted {
        damaged(self.off(), WHAT)
    }

    /// The numbers of the present records, with O(1) steps.
    ///
    /// # Errors
    /// [`Interrupted`], as for all other operations.
    pub fn numbers<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> Result<std::ops::Range<u64>, Interrupted> {
        let Head { from, until, .. } = tx.get(self.head())?;
        match from <= until {
            true => Ok(from..until),
            false => Err(self.damaged()),
        }
    }

    /// Appends a record, with steps in proportion to its length. Returns its number, which is
    /// never reused.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn append<S: Space>(self, tx: &mut Tx<'_, S>, record: &[u8]) -> Result<u64, Interrupted> {
        let head = tx.get(self.head())?;
        let mut end = End {
            log: self,
            block: head.last,
            at: head.ends,
            is_fresh: false,
        };
        end.write(tx, &(record.len() as u64).to_le_bytes())?;
        end.write(tx, record)?;
        let number = head.until;
        tx.set(self.head().at(Head::ENDS), &end.at)?;
        tx.set(self.head().at(Head::UNTIL), &number.wrapping_add(1))?;
        Ok(number)
    }

    /// Removes all records before this number, with O(1) steps for each, and for each block.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn truncate<S: Space>(self, tx: &mut Tx<'_, S>, number: u64) -> Result<(), Interrupted> {
        let head = tx.get(self.head())?;
        let number = number.min(head.until);
        if number <= head.from {
            return Ok(());
        }
        let mut reader = Reader::new(self, &head);
        reader.frees = true;
        for _ in head.from..number {
            reader.next(tx, None)?;
        }
        tx.set(self.head().at(Head::FIRST), &reader.block)?;
        tx.set(self.head().at(Head::BEGINS), &reader.at)?;
        tx.set(self.head().at(Head::FROM), &number)
    }

    /// Removes all records, with O(1) steps for each block. Their numbers are not reused.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        for block in self.blocks(tx)? {
            tx.free(block)?;
        }
        let until = tx.get(self.head().at(Head::UNTIL))?;
        let mut head = Journal::<BLOCK>::new().head;
        (head.from, head.until) = (until, until);
        tx.set(self.head(), &head)
    }

    /// Removes the first records, at most `most` of them. Returns whether no record, and no
    /// block in the heap, is left.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear_some<S: Space>(self, tx: &mut Tx<'_, S>, most: u64) -> Result<bool, Interrupted> {
        let numbers = self.numbers(tx)?;
        self.truncate(tx, numbers.start.saturating_add(most))?;
        if numbers.end - numbers.start > most {
            return Ok(false);
        }
        self.clear(tx)?;
        Ok(true)
    }

    /// The records from this number on, with their numbers. Each record before it takes O(1)
    /// steps.
    pub fn iter<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        from: u64,
    ) -> impl Iterator<Item = Result<(u64, Vec<u8>), Interrupted>> {
        let mut reading = None;
        until_over(move || {
            let (reader, number, end) = match &mut reading {
                Some(reading) => reading,
                start => {
                    let head = tx.get(self.head())?;
                    start.insert((Reader::new(self, &head), head.from, head.until))
                }
            };
            while *number < from.min(*end) {
                reader.next(tx, None)?;
                *number += 1;
            }
            if *number >= *end {
                return Ok(None);
            }
            let mut record = Vec::new();
            reader.next(tx, Some(&mut record))?;
            *number += 1;
            Ok(Some((*number - 1, record)))
        })
    }

    /// The record at a cursor, which moves to the next one, with steps in proportion to its
    /// length. If that record was removed, it is the first one; `None`: there is none yet.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn read<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        cursor: &mut Cursor,
    ) -> Result<Option<Vec<u8>>, Interrupted> {
        let head = tx.get(self.head())?;
        let mut reader = Reader::new(self, &head);
        // While the record before a cursor exists, so does the block in which it ends.
        if cursor.number > head.from {
            (reader.block, reader.at) = (cursor.block, cursor.at);
        }
        let number = cursor.number.max(head.from);
        if number >= head.until {
            return Ok(None);
        }
        let mut record = Vec::new();
        reader.next(tx, Some(&mut record))?;
        *cursor = Cursor {
            number: number + 1,
            block: reader.block,
            at: reader.at,
        };
        Ok(Some(record))
    }

    /// The blocks of the heap that the journal has, with O(1) steps for each, to account for
    /// all allocated ones.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn blocks<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Vec<u64>, Interrupted> {
        let mut blocks = Vec::new();
        let (mut next, mut circle) = (tx.get(self.head().at(Head::FIRST))?, Circle::default());
        while let Some(block) = next {
            circle.step(block.off())?;
            blocks.push(block.off());
            next = tx.get(block.at(Block::NEXT))?;
        }
        Ok(blocks)
    }
}

/// Offset of a byte of a block.
fn inside(block: Ptr<Block>, at: u64) -> u64 {
    // A damaged pointer may lead to the largest offset, where the next access fails.
    block.off().saturating_add(Block::SIZE + at)
}

/// The end of a journal.
struct End<const BLOCK: usize> {
    log: Ptr<Journal<BLOCK>>,
    block: Option<Ptr<Block>>,
    at: u64,
    /// Whether this call made the block: then it can be filled without a log.
    is_fresh: bool,
}

impl<const BLOCK: usize> End<BLOCK> {
    /// Appends bytes, up to a whole word.
    fn write<S: Space>(&mut self, tx: &mut Tx<'_, S>, bytes: &[u8]) -> Result<(), Interrupted> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (block, room) = self.room(tx)?;
            let (part, more) = rest.split_at(rest.len().min(room));
            let off = inside(block, self.at);
            match self.is_fresh {
                true => write_fresh(tx, off, part)?,
                false => tx.write(tx.address(off), part)?,
            }
            self.at += (part.len() as u64).next_multiple_of(WORD_BYTES);
            rest = more;
        }
        Ok(())
    }

    /// A block with room, and the number of free bytes.
    fn room<S: Space>(&mut self, tx: &mut Tx<'_, S>) -> Result<(Ptr<Block>, usize), Interrupted> {
        match self.block {
            Some(block) if self.at < BLOCK as u64 => {
                if self.at.is_multiple_of(WORD_BYTES) {
                    Ok((block, BLOCK - self.at as usize))
                } else {
                    Err(self.log.damaged())
                }
            }
            _ => Ok((self.append(tx)?, BLOCK)),
        }
    }

    fn append<S: Space>(&mut self, tx: &mut Tx<'_, S>) -> Result<Ptr<Block>, Interrupted> {
        let off = tx.alloc(Block::SIZE + BLOCK as u64)?;
        let block = Ptr::new(off).ok_or(HeapError::NotAllocated { off })?;
        tx.set(block, &Block { next: None })?;
        let link = match self.block {
            Some(last) => last.at(Block::NEXT),
            None => self.log.head().at(Head::FIRST),
        };
        tx.set(link, &Some(block))?;
        tx.set(self.log.head().at(Head::LAST), &Some(block))?;
        (self.block, self.at, self.is_fresh) = (Some(block), 0, true);
        Ok(block)
    }
}

/// A walk along the records.
struct Reader<const BLOCK: usize> {
    log: Ptr<Journal<BLOCK>>,
    block: Option<Ptr<Block>>,
    at: u64,
    circle: Circle,
    /// Whether the walk frees the blocks that it leaves.
    frees: bool,
}

impl<const BLOCK: usize> Reader<BLOCK> {
    fn new(log: Ptr<Journal<BLOCK>>, head: &Head) -> Self {
        Self {
            log,
            block: head.first,
            at: head.begins,
            circle: Circle::default(),
            frees: false,
        }
    }

    /// Reads the next record, or skips it.
    fn next<S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
        record: Option<&mut Vec<u8>>,
    ) -> Result<(), Interrupted> {
        // A word is never split between blocks.
        let (block, _) = self.rest_of_block(tx)?;
        let word = Ptr::<u64>::new(inside(block, self.at)).ok_or_else(|| self.log.damaged())?;
        let len = tx.get(word)?;
        self.at += WORD_BYTES;
        self.read(tx, len, record)
    }

    /// Reads `len` bytes, or skips them, and then up to a whole word.
    fn read<S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
        len: u64,
        mut bytes: Option<&mut Vec<u8>>,
    ) -> Result<(), Interrupted> {
        let mut left = len;
        while left > 0 {
            let (block, room) = self.rest_of_block(tx)?;
            let part = left.min(room);
            if let Some(bytes) = &mut bytes {
                // The buffer grows block by block: a damaged length has no blocks.
                let start = bytes.len();
                bytes.resize(start + part as usize, 0);
                let at = tx.address(inside(block, self.at));
                tx.read(at, &mut bytes[start..])?;
            }
            self.at += part.next_multiple_of(WORD_BYTES);
            left -= part;
        }
        Ok(())
    }

    /// The block with the next bytes, and the number of bytes left in it.
    fn rest_of_block<S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
    ) -> Result<(Ptr<Block>, u64), Interrupted> {
        let wrong = || damaged(self.log.off(), WHAT);
        let block = self.block.ok_or_else(wrong)?;
        if self.at < BLOCK as u64 {
            return Ok((block, BLOCK as u64 - self.at));
        }
        let next = tx.get(block.at(Block::NEXT))?.ok_or_else(wrong)?;
        self.circle.step(next.off())?;
        if self.frees {
            tx.delete(block)?;
        }
        (self.block, self.at) = (Some(next), 0);
        Ok((next, BLOCK as u64))
    }
}
