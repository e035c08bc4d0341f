//! The format of the heap: pages of blocks, and the descriptors of their allocation.
//!
//! # Format
//!
//! A segment is a region. It begins with a line that identifies it, and a descriptor of one line
//! for each page. From the next multiple of [`PAGE_BYTES`] on are the pages, which hold only
//! blocks. The first line has two little-endian words: magic and version, and the number of pages.
//! The latter and all words of descriptors are sealed: bit 63 makes the number of ones even.
//!
//! The first word of a descriptor is the kind of its page:
//!
//! - free: 0;
//! - a *superblock* of small blocks: 1, with the class from bit 8 on;
//! - the first page of an *extent*, a block of whole pages: 2, with their number from bit 8 on.
//!
//! The other words have a bit for each block of a superblock, set if it is allocated. The
//! descriptors of an extent's other pages are ignored, but their bits are 0. So are those of an
//! extent and of a free page: a superblock without blocks is equivalent to a free page.

use super::classes::{BIT_WORDS, BITS, Class, PAGE_BYTES, WORD_BITS};
use crate::error::HeapError;
use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use wordlog::sealed::{self, seal};

/// "SELVHEAP" without a vowel, and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVHEP\x01");

const AT_MAGIC: u64 = 0;
const AT_PAGES: u64 = 8;

const FREE: u64 = 0;
const SMALL: u64 = 1;
const LARGE: u64 = 2;
const KIND_BITS: u32 = 8;

/// Kinds of damage to a descriptor.
pub(super) const UNKNOWN: &str = "a page of no known kind";
pub(super) const FLIPPED: &str = "a word of bits has changed";
pub(super) const TOO_LONG: &str = "an extent leaves its segment";
const TOO_MANY: &str = "a superblock has more blocks than fit";

/// Damage to the descriptor of a page.
#[derive(Debug)]
pub(crate) struct Damage {
    /// The offset of the page in bytes.
    pub page: u64,
    /// The offset of its descriptor in bytes.
    pub descriptor: u64,
    /// The kind of damage.
    pub what: &'static str,
    /// Offsets and words whose stores repair the descriptor and free no block. `None`: the kind of
    /// the page is lost.
    pub mend: Option<Vec<(u64, u64)>>,
}

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Free,
    /// Small blocks.
    Superblock(Class),
    /// The first page of a block of that many pages.
    Extent(u64),
}

impl Page {
    pub(super) fn encode(self) -> u64 {
        seal(match self {
            Self::Free => FREE,
            Self::Superblock(class) => SMALL | (class.number() as u64) << KIND_BITS,
            Self::Extent(pages) => LARGE | pages << KIND_BITS,
        })
    }

    /// The number of pages in the block that begins here, or 1.
    pub(super) fn pages(self) -> u64 {
        match self {
            Self::Extent(pages) => pages,
            Self::Free | Self::Superblock(_) => 1,
        }
    }

    /// Decodes the first word of a descriptor. `None`: this version writes no such word.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let word = sealed::open(word)?;
        let what = word >> KIND_BITS;
        match word & ((1 << KIND_BITS) - 1) {
            FREE if what == 0 => Some(Self::Free),
            SMALL => Class::new(what).map(Self::Superblock),
            LARGE if what > 0 => Some(Self::Extent(what)),
            _ => None,
        }
    }
}

/// A part of the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The offset of its first line in bytes.
    pub start: u64,
    /// The number of its pages.
    pub pages: u64,
}

/// The bytes from the start of a segment to its first page.
fn head_bytes(pages: u64) -> u64 {
    ((pages + 1) * LINE_BYTES).next_multiple_of(PAGE_BYTES)
}

impl Segment {
    /// The largest segment in a region of `len` bytes.
    fn within(start: u64, len: u64) -> Self {
        let mut pages = len / (PAGE_BYTES + LINE_BYTES);
        while pages > 0 && head_bytes(pages) + pages * PAGE_BYTES > len {
            pages -= 1;
        }
        Self { start, pages }
    }

    /// The bytes of a segment that can hold a block of `bytes`.
    pub fn bytes_for(bytes: u64) -> Option<u64> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        pages
            .checked_mul(PAGE_BYTES)?
            .checked_add(head_bytes(pages))
    }

    /// Formats an empty segment of `len` bytes at byte `start`, a multiple of [`PAGE_BYTES`], over
    /// zeros. It is durable when this returns.
    ///
    /// # Errors
    /// [`MediumError`] of the memory.
    pub fn format<P: Pmem>(pm: &P, start: u64, len: u64) -> Result<Self, MediumError> {
        let made = Self::within(start, len);
        pm.store_word(start + AT_PAGES, seal(made.pages));
        pm.store_word(start + AT_MAGIC, MAGIC);
        pm.flush(start, LINE_BYTES);
        // The region table names the segment next.
        if !hit(Bug::UnfencedSegment) {
            pm.fence(Rule::InitialiseBeforePoint)?;
        }
        Ok(made)
    }

    /// Opens the segment in the region of `len` bytes at byte `start`, if there is one.
    ///
    /// # Errors
    /// [`MediumError`] of the memory.
    pub fn open<P: Pmem>(pm: &P, start: u64, len: u64) -> Result<Option<Self>, MediumError> {
        let whole = Self::within(start, len);
        let is_one = pm.load(start + AT_MAGIC)? == MAGIC;
        let pages = sealed::open(pm.load(start + AT_PAGES)?);
        let pages = pages.filter(|pages| is_one && (1..=whole.pages).contains(pages));
        Ok(pages.map(|pages| Self { start, pages }))
    }

    /// The offset of the first page.
    pub fn data(&self) -> u64 {
        self.start + head_bytes(self.pages)
    }

    /// The offset of the end of the last page.
    pub fn end(&self) -> u64 {
        self.data() + self.pages * PAGE_BYTES
    }

    /// Whether byte `off` lies in one of the pages.
    pub fn has_byte(&self, off: u64) -> bool {
        (self.data()..self.end()).contains(&off)
    }

    /// Calls `each` with every page that is not inside an extent: its offset, its descriptor, its
    /// kind, and the allocated blocks of a superblock.
    pub(super) fn each_page<P: Pmem>(
        &self,
        pm: &P,
        mut each: impl FnMut((u64, u64, Page, Bits)),
    ) -> Result<(), HeapError> {
        let mut page = self.data();
        while page < self.end() {
            let (what, allocated) = self.page(pm, page)?;
            each((page, self.descriptor(page), what, allocated));
            page += what.pages() * PAGE_BYTES;
        }
        Ok(())
    }

    /// The kind of the page at `page`, and the allocated blocks of a superblock.
    fn page<P: Pmem>(&self, pm: &P, page: u64) -> Result<(Page, Bits), HeapError> {
        let descriptor = self.descriptor(page);
        let damaged = |what| Err(HeapError::Damaged { descriptor, what });
        match Page::decode(pm.load(descriptor)?) {
            None => damaged(UNKNOWN),
            Some(Page::Extent(pages)) if !self.has_pages(page, pages) => damaged(TOO_LONG),
            Some(Page::Superblock(class)) => {
                let allocated = bits(pm, descriptor)?;
                match allocated.without(&Bits::first(class.capacity())).is_empty() {
                    true => Ok((Page::Superblock(class), allocated)),
                    false => damaged(TOO_MANY),
                }
            }
            Some(what) => Ok((what, Bits::default())),
        }
    }

    /// Whether a block of that many pages can begin at this page.
    pub(super) fn has_pages(&self, page: u64, pages: u64) -> bool {
        pages <= (self.end() - page) / PAGE_BYTES
    }

    /// Finds damage of all descriptors, also in words that only a checker reads.
    ///
    /// # Errors
    /// [`MediumError`] of the memory.
    pub(crate) fn damage<P: Pmem>(&self, pm: &P) -> Result<Vec<Damage>, MediumError> {
        let mut found = Vec::new();
        let mut page = self.data();
        while page < self.end() {
            let pages = match Page::decode(pm.load(self.descriptor(page))?) {
                None => {
                    found.push(self.unmendable(page, UNKNOWN));
                    1
                }
                Some(what) if !self.has_pages(page, what.pages()) => {
                    found.push(self.unmendable(page, TOO_LONG));
                    1
                }
                Some(what) => {
                    let most = match what {
                        Page::Superblock(class) => class.capacity(),
                        Page::Free | Page::Extent(_) => 0,
                    };
                    found.extend(self.damaged_bits(pm, page, &Bits::first(most))?);
                    for inner in (1..what.pages()).map(|n| page + n * PAGE_BYTES) {
                        found.extend(self.damaged_inside(pm, inner)?);
                    }
                    what.pages()
                }
            };
            page += pages * PAGE_BYTES;
        }
        Ok(found)
    }

    fn unmendable(&self, page: u64, what: &'static str) -> Damage {
        let descriptor = self.descriptor(page);
        let mend = None;
        Damage {
            page,
            descriptor,
            what,
            mend,
        }
    }

    /// Finds words of bits that have flipped, or have bits that are not in `all`.
    fn damaged_bits<P: Pmem>(
        &self,
        pm: &P,
        page: u64,
        all: &Bits,
    ) -> Result<Option<Damage>, MediumError> {
        let descriptor = self.descriptor(page);
        let (mut what, mut mend) = ("", Vec::new());
        for (n, fit) in all.0.iter().enumerate() {
            let at = descriptor + (n as u64 + 1) * WORD_BYTES;
            what = match sealed::open(pm.load(at)?) {
                Some(bits) if bits & !fit == 0 => continue,
                None if what.is_empty() => FLIPPED,
                None => what,
                Some(_) if all.is_empty() => "a page without small blocks has some",
                Some(_) => TOO_MANY,
            };
            mend.push((at, seal(*fit)));
        }
        Ok((!mend.is_empty()).then_some(Damage {
            page,
            descriptor,
            what,
            mend: Some(mend),
        }))
    }

    /// Finds damage of the descriptor of a page inside an extent. It is ignored, so it can be
    /// cleared, unless its kind contradicts the extent.
    fn damaged_inside<P: Pmem>(&self, pm: &P, page: u64) -> Result<Option<Damage>, MediumError> {
        let descriptor = self.descriptor(page);
        let bits = self.damaged_bits(pm, page, &Bits::default())?;
        match Page::decode(pm.load(descriptor)?) {
            Some(Page::Extent(_)) => Ok(Some(
                self.unmendable(page, "an extent begins inside another"),
            )),
            Some(Page::Superblock(_)) => Ok(bits.map(|bits| match bits.what {
                FLIPPED => bits,
                what => self.unmendable(page, what),
            })),
            Some(Page::Free) => Ok(bits),
            None => {
                let mut mend = bits.and_then(|bits| bits.mend).unwrap_or_default();
                mend.push((descriptor, Page::Free.encode()));
                Ok(Some(Damage {
                    mend: Some(mend),
                    ..self.unmendable(page, UNKNOWN)
                }))
            }
        }
    }

    /// All allocated blocks by offset, with their lengths in bytes.
    ///
    /// # Errors
    /// [`HeapError::Damaged`], and [`MediumError`] of the memory.
    pub fn blocks<P: Pmem>(&self, pm: &P) -> Result<Vec<(u64, u64)>, HeapError> {
        let mut blocks = Vec::new();
        self.each_page(pm, |(page, _, what, allocated)| match what {
            Page::Free => {}
            Page::Extent(pages) => blocks.push((page, pages * PAGE_BYTES)),
            Page::Superblock(class) => {
                let size = class.size();
                let small = allocated.iter();
                blocks.extend(small.map(|block| (page + u64::from(block) * size, size)));
            }
        })?;
        Ok(blocks)
    }

    /// The offset of the descriptor of the page that holds byte `off`.
    pub(super) fn descriptor(&self, off: u64) -> u64 {
        self.start + LINE_BYTES * (1 + (off - self.data()) / PAGE_BYTES)
    }

    /// The start of the page that holds byte `off`.
    pub(super) fn page_start(&self, off: u64) -> u64 {
        off - (off - self.data()) % PAGE_BYTES
    }
}

/// The word of a descriptor that holds a block's bit, and the bit.
pub(super) fn bit_of(descriptor: u64, block: u32) -> (u64, u64) {
    let word = u64::from(block / WORD_BITS + 1);
    (descriptor + word * WORD_BYTES, 1 << (block % WORD_BITS))
}

/// Reads the bits of a superblock.
fn bits<P: Pmem>(pm: &P, descriptor: u64) -> Result<Bits, HeapError> {
    let mut bits = Bits::default();
    for (n, word) in bits.0.iter_mut().enumerate() {
        let sealed = pm.load(descriptor + (n as u64 + 1) * WORD_BYTES)?;
        *word = sealed::open(sealed).ok_or(HeapError::Damaged {
            descriptor,
            what: FLIPPED,
        })?;
    }
    Ok(bits)
}

/// A bit for each block of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bits([u64; BIT_WORDS]);

impl Bits {
    /// The first `count` bits.
    pub(super) fn first(count: u32) -> Self {
        let mut bits = Self::default();
        (0..count).for_each(|n| bits.set(n));
        bits
    }

    pub(super) fn set(&mut self, n: u32) {
        self.0[(n / WORD_BITS) as usize] |= 1 << (n % WORD_BITS);
    }

    /// Removes the first bit that is set.
    pub(super) fn take(&mut self) -> Option<u32> {
        let n = self.0.iter().position(|word| *word != 0)?;
        let bit = self.0[n].trailing_zeros();
        self.0[n] &= self.0[n] - 1;
        Some(n as u32 * WORD_BITS + bit)
    }

    pub(super) fn has(&self, n: u32) -> bool {
        self.0[(n / WORD_BITS) as usize] & 1 << (n % WORD_BITS) != 0
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The bits that are not set in `others`.
    pub(super) fn without(&self, others: &Self) -> Self {
        let mut left = *self;
        for (word, other) in left.0.iter_mut().zip(others.0) {
            *word &= !other;
        }
        left
    }

    /// The indices of the bits that are set, ascending.
    pub(super) fn iter(self) -> impl Iterator<Item = u32> {
        (0..BITS).filter(move |n| self.has(*n))
    }
}
