//! The system region, which describes the other regions. It is the first one.
//!
//! # Format
//!
//! All words are little-endian. The first line holds magic and version, the bytes of the system
//! region, and the granule. Every region starts at a multiple of the granule. The number of slots
//! of the region table, the number of roots, and a CRC32C of these words follow.
//!
//! The *region table* begins at byte 4,096, with a line for each slot. A free slot is zeros. The
//! words of another one are:
//!
//! 1. the state: 1 being made, 2 exists, 3 being removed; from bit 8 on the kind: 1 heap, 2 of a
//!    program, 3 static variables;
//! 2. the start in bytes;
//! 3. the length in bytes;
//! 4. a tag;
//! 5. a CRC32C of the slot's number and the words above.
//!
//! The *roots* follow, two lines each: the layout of the object, its offset, a sealed word, and the
//! name. The sealed word (bit 63 makes the number of ones even) is 0 if the root is free. Otherwise
//! it holds the bytes in the name, and from bit 24 on a CRC32C of layout, offset and name.
//!
//! The logs of transactions follow, from a multiple of 4,096 on.

use super::MemoryError;
use crate::heap::PAGE_BYTES;
use crate::region::{Region, RegionKind};
use crate::tx::Area;
use medium::{LINE_BYTES, Pmem, Rule, WORD_BYTES};
use std::ops::Range;
use wordlog::Kind;
use wordlog::sealed::{self, seal};

/// "SELVMEM" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVMEM\x01");
/// The number of words that the first line uses before its checksum.
const HEAD_WORDS: usize = 5;
const AT_CHECKSUM: u64 = HEAD_WORDS as u64 * WORD_BYTES;
const AT_TABLE: u64 = 4096;

/// The number of words that a slot uses.
pub(super) const SLOT_WORDS: usize = 5;

/// The number of bits for the length of a root's name.
const NAME_BITS: u32 = 24;
/// The bytes of a root.
pub(super) const ROOT_BYTES: u64 = 2 * LINE_BYTES;
/// The bytes in front of a root's name.
pub(super) const ROOT_HEAD: u64 = 3 * WORD_BYTES;
/// The maximum bytes of a root's name.
pub const ROOT_NAME_MAX: usize = (ROOT_BYTES - ROOT_HEAD) as usize;

/// The minimum granule: the bytes of a page of the heap.
const GRANULE_MIN: u64 = PAGE_BYTES;
/// The length of every region is a multiple of this.
pub(super) const LEN_UNIT: u64 = 4096;

/// The maximum number of slots, and of roots.
const COUNT_MAX: u64 = 1 << 16;

/// The properties of a system region, fixed when it is made.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The maximum number of regions.
    pub slots: u64,
    /// The maximum number of named roots.
    pub roots: u64,
    /// The granule in bytes, a power of two of at least 8,192. Every region starts at a multiple of
    /// it.
    pub granule: u64,
    /// The number of logs, and of transactions that can commit at the same time.
    pub logs: u64,
    /// The bytes of each log, a multiple of 64.
    pub log_bytes: u64,
    /// The way in which logs mark their records.
    pub log_kind: Kind,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            slots: 1024,
            roots: 256,
            granule: 2 << 20,
            logs: 8,
            log_bytes: 2 << 20,
            log_kind: Kind::TornBit,
        }
    }
}

impl Layout {
    fn area(&self) -> Area {
        let tables = AT_TABLE + self.slots * LINE_BYTES + self.roots * ROOT_BYTES;
        Area {
            start: tables.next_multiple_of(4096),
            logs: self.logs,
            log_bytes: self.log_bytes,
            kind: self.log_kind,
        }
    }

    /// The bytes of a system region of this layout, a multiple of 4,096.
    pub fn bytes(&self) -> u64 {
        let area = self.area();
        (area.start + area.bytes()).next_multiple_of(4096)
    }

    /// Makes a system region at the start of memory. It is durable when this returns.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn format<P: Pmem>(&self, pm: &P) -> Result<(), MemoryError> {
        let granule_fits = self.granule.is_power_of_two() && self.granule >= GRANULE_MIN;
        if self.slots > COUNT_MAX || self.roots > COUNT_MAX || !granule_fits {
            return Err(MemoryError::Layout);
        }
        pm.store_word(0, 0);
        pm.flush(0, LINE_BYTES);
        // An old system region must not be found while it is overwritten.
        pm.fence(Rule::NullifyBeforeReuse)?;
        let area = self.area();
        for line in (AT_TABLE..area.start).step_by(LINE_BYTES as usize) {
            pm.store_nt(line, &[0; LINE_BYTES as usize]);
        }
        // This ends with a fence.
        area.format(pm)?;
        let head = [MAGIC, self.bytes(), self.granule, self.slots, self.roots];
        for (n, word) in head.iter().enumerate().skip(1) {
            pm.store_word(n as u64 * WORD_BYTES, *word);
        }
        pm.store_word(AT_CHECKSUM, checksum(&head));
        pm.flush(0, LINE_BYTES);
        pm.fence(Rule::InitialiseBeforePoint)?;
        pm.store_word(0, MAGIC);
        pm.flush(0, LINE_BYTES);
        Ok(pm.fence(Rule::DurableBeforeReturn)?)
    }
}

fn checksum(words: &[u64; HEAD_WORDS]) -> u64 {
    let add = |crc, word: &u64| crc32c::crc32c_append(crc, &word.to_le_bytes());
    words.iter().fold(0, add).into()
}

/// The error for a system region of another version or program.
pub(super) const FOREIGN: &str = "the magic is missing, or of another version";

/// The parts of the system region.
#[derive(Debug, Clone, Copy)]
pub(super) struct System {
    /// The length of the whole system region.
    pub bytes: u64,
    pub granule: u64,
    pub slots: u64,
    pub roots: u64,
}

impl System {
    pub(super) fn open<P: Pmem>(pm: &P) -> Result<Self, MemoryError> {
        let mut head = [0; HEAD_WORDS];
        for (n, word) in head.iter_mut().enumerate() {
            *word = pm.load(n as u64 * WORD_BYTES)?;
        }
        if head[0] != MAGIC {
            return Err(MemoryError::NotDurableMemory { what: FOREIGN });
        }
        if checksum(&head) != pm.load(AT_CHECKSUM)? {
            let what = "its first line is damaged";
            return Err(MemoryError::NotDurableMemory { what });
        }
        let [_, bytes, granule, slots, roots] = head;
        let granule_fits = granule.is_power_of_two() && granule >= GRANULE_MIN;
        let counts_fit = slots <= COUNT_MAX && roots <= COUNT_MAX;
        let fits = counts_fit && granule_fits && bytes.is_multiple_of(LEN_UNIT);
        let system = Self {
            bytes,
            granule,
            slots,
            roots,
        };
        if !fits || bytes > pm.len() || system.area() > bytes {
            let what = "its first line has impossible values";
            return Err(MemoryError::NotDurableMemory { what });
        }
        Ok(system)
    }

    /// The offset of the logs.
    pub(super) fn area(&self) -> u64 {
        (self.root(self.roots)).next_multiple_of(4096)
    }

    /// The range of the first line and the region table.
    pub(super) fn table(&self) -> Range<u64> {
        0..self.slot(self.slots)
    }

    /// The offset of the line of a slot.
    pub(super) fn slot(&self, slot: u64) -> u64 {
        AT_TABLE + slot * LINE_BYTES
    }

    /// The offset of a root.
    pub(super) fn root(&self, root: u64) -> u64 {
        self.slot(self.slots) + root * ROOT_BYTES
    }

    /// Reads a root: its name and words, or `None` if it is free.
    pub(super) fn root_of<P: Pmem>(
        &self,
        pm: &P,
        root: u64,
    ) -> Result<Option<(Vec<u8>, RootWords)>, MemoryError> {
        let at = self.root(root);
        let sealed = pm.load(at + 2 * WORD_BYTES)?;
        let len = name_len(sealed).ok_or(MemoryError::Root { root })?;
        if len == 0 {
            return Ok(None);
        }
        let mut name = vec![0; len];
        pm.read(at + ROOT_HEAD, &mut name)?;
        let words = RootWords {
            layout: pm.load(at)?,
            off: pm.load(at + WORD_BYTES)?,
        };
        match words.seal(&name) == sealed {
            true => Ok(Some((name, words))),
            false => Err(MemoryError::Root { root }),
        }
    }

    /// The bytes of a damaged root's name up to the first 0.
    pub(super) fn remains_of_name<P: Pmem>(
        &self,
        pm: &P,
        root: u64,
    ) -> Result<Vec<u8>, MemoryError> {
        let mut name = vec![0; ROOT_NAME_MAX];
        pm.read(self.root(root) + ROOT_HEAD, &mut name)?;
        let len = name.iter().position(|byte| *byte == 0);
        name.truncate(len.unwrap_or(ROOT_NAME_MAX));
        Ok(name)
    }

    /// All regions except the system region, with their states.
    pub(super) fn regions<P: Pmem>(&self, pm: &P) -> Result<Vec<(State, Region)>, MemoryError> {
        let mut found = Vec::new();
        for slot in 0..self.slots {
            found.extend(self.region(pm, slot)?);
        }
        match overlap(&found) {
            None => Ok(found),
            Some((_, second)) => Err(MemoryError::Slot {
                slot: second.slot,
                what: OVERLAP,
            }),
        }
    }

    /// Reads a slot of the region table, or `None` if it is free.
    pub(super) fn region<P: Pmem>(
        &self,
        pm: &P,
        slot: u64,
    ) -> Result<Option<(State, Region)>, MemoryError> {
        let at = self.slot(slot);
        let mut words = [0; SLOT_WORDS];
        for (n, word) in words.iter_mut().enumerate() {
            *word = pm.load(at + n as u64 * WORD_BYTES)?;
        }
        if words == [0; SLOT_WORDS] {
            return Ok(None);
        }
        let [what, start, len, tag, crc] = words;
        let wrong = |what| MemoryError::Slot { slot, what };
        if crc != checksum(&[slot, what, start, len, tag]) {
            return Err(wrong("its checksum does not match"));
        }
        let what = decode(what).ok_or_else(|| wrong("its state or kind is unknown"))?;
        let (state, kind) = what;
        let region = Region {
            slot,
            kind,
            start,
            len,
            tag,
        };
        let end = region.start.checked_add(region.len);
        let is_inside = end.is_some() && region.start >= self.bytes;
        let is_whole = region.len > 0 && region.len.is_multiple_of(LEN_UNIT);
        if !is_inside || !is_whole || !region.start.is_multiple_of(self.granule) {
            return Err(wrong("no region can be there"));
        }
        match end.filter(|end| *end > pm.len()) {
            Some(end) => Err(MemoryError::Beyond {
                slot,
                end,
                len: pm.len(),
            }),
            None => Ok(Some((state, region))),
        }
    }
}

/// The error for two regions that overlap.
pub(super) const OVERLAP: &str = "its region overlaps with another";

/// Finds two regions that overlap.
pub(super) fn overlap(regions: &[(State, Region)]) -> Option<(Region, Region)> {
    let mut sorted: Vec<_> = regions.iter().map(|(_, region)| *region).collect();
    sorted.sort_by_key(|region| region.start);
    let mut pairs = sorted.windows(2);
    pairs
        .find(|pair| pair[0].start + pair[0].len > pair[1].start)
        .map(|pair| (pair[0], pair[1]))
}

/// The state of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Creating = 1,
    There = 2,
    Removing = 3,
}

/// The words of a region's slot.
pub(super) fn encode(state: State, region: &Region) -> [u64; SLOT_WORDS] {
    let Region {
        slot,
        kind,
        start,
        len,
        tag,
    } = *region;
    let what = state as u64 | (kind as u64) << 8;
    let crc = checksum(&[slot, what, start, len, tag]);
    [what, start, len, tag, crc]
}

/// Decodes the first word of a used slot. `None`: this version writes no such word.
fn decode(word: u64) -> Option<(State, RegionKind)> {
    let state = match word & 0xff {
        1 => State::Creating,
        2 => State::There,
        3 => State::Removing,
        _ => return None,
    };
    let kind = match word >> 8 {
        1 => RegionKind::Heap,
        2 => RegionKind::Program,
        3 => RegionKind::Static,
        _ => return None,
    };
    Some((state, kind))
}

/// The words of a root apart from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RootWords {
    /// The layout of the object.
    pub layout: u64,
    /// The offset of the object.
    pub off: u64,
}

impl RootWords {
    /// The sealed word of a root with this name.
    pub(super) fn seal(self, name: &[u8]) -> u64 {
        let words = [self.layout, self.off].map(u64::to_le_bytes);
        let crc = crc32c::crc32c_append(crc32c::crc32c(words.as_flattened()), name);
        seal(name.len() as u64 | u64::from(crc) << NAME_BITS)
    }
}

/// The bytes in a root's name, by its sealed word. `None`: the word is damaged.
pub(super) fn name_len(sealed: u64) -> Option<usize> {
    let len = sealed::open(sealed)? as usize & ((1 << NAME_BITS) - 1);
    (len <= ROOT_NAME_MAX && (len > 0 || sealed == 0)).then_some(len)
}
