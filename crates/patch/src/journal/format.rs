//! The bytes of the log: the format of JBD2, all numbers big-endian.
//!
//! `journal.md` describes it. The parsers accept any bytes.

use super::JournalError;

pub(super) const MAGIC: u32 = 0xC03B_3998;
/// Bytes of the header of every block but copies.
pub(super) const HEADER: usize = 12;
/// Bytes of the superblock, whatever the block size.
pub(super) const SUPER_BYTES: usize = 1024;
/// Bytes of the checksum at the end of descriptors and of revoke blocks.
const TAIL: usize = 4;

pub(super) const DESCRIPTOR: u32 = 1;
pub(super) const COMMIT: u32 = 2;
const SUPER_V1: u32 = 3;
const SUPER_V2: u32 = 4;
pub(super) const REVOKE: u32 = 5;

const COMPAT_CHECKSUM: u32 = 1;
const INCOMPAT_REVOKE: u32 = 1;
const INCOMPAT_64BIT: u32 = 2;
const INCOMPAT_CSUM_V2: u32 = 8;
const INCOMPAT_CSUM_V3: u32 = 0x10;
const INCOMPAT_KNOWN: u32 = INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3;
const CHECKSUM_CRC32C: u8 = 4;

const TAG_ESCAPED: u32 = 1;
const TAG_SAME_UUID: u32 = 2;
const TAG_LAST: u32 = 8;

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Chains CRC-32C as JBD2 does: without inversion before or after.
fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The checksum of a whole block, with the checksum's own field taken as 0.
fn crc_without(seed: u32, bytes: &[u8], at: usize) -> u32 {
    let crc_start = crc(seed, &bytes[..at]);
    crc(crc(crc_start, &[0; 4]), &bytes[at + 4..])
}

/// The log's superblock. Fields without a use here keep their values.
#[derive(Debug, Clone)]
pub(super) struct Super {
    bytes: Box<[u8]>,
}

impl Super {
    const SEQUENCE: usize = 0x18;
    const START: usize = 0x1C;
    const COMPAT: usize = 0x24;
    const INCOMPAT: usize = 0x28;
    const CHECKSUM_TYPE: usize = 0x50;
    const CHECKSUM: usize = 0xFC;

    /// The superblock of an empty log.
    pub(super) fn new(block_bytes: u32, blocks: u32, uuid: [u8; 16]) -> Self {
        let mut new = Self {
            bytes: vec![0; SUPER_BYTES].into(),
        };
        put32(&mut new.bytes, 0, MAGIC);
        put32(&mut new.bytes, 4, SUPER_V2);
        put32(&mut new.bytes, 0x0C, block_bytes);
        put32(&mut new.bytes, 0x10, blocks);
        put32(&mut new.bytes, 0x14, 1);
        put32(&mut new.bytes, Self::SEQUENCE, 1);
        new.bytes[0x30..0x40].copy_from_slice(&uuid);
        put32(&mut new.bytes, 0x40, 1);
        new
    }

    /// Parses a superblock, and checks it against the number of blocks at the log's place.
    pub(super) fn parse(block: &[u8], blocks: u64) -> Result<Self, JournalError> {
        let bad = |what: &'static str| Err(JournalError::Superblock { what });
        if block.len() < SUPER_BYTES || get32(block, 0) != MAGIC {
            return bad("no magic number");
        }
        let this = Self {
            bytes: block[..SUPER_BYTES].into(),
        };
        match get32(block, 4) {
            SUPER_V1 | SUPER_V2 => {}
            _ => return bad("not a superblock"),
        }
        let (compat, incompat) = (this.get(Self::COMPAT), this.get(Self::INCOMPAT));
        let unknown = incompat & !INCOMPAT_KNOWN;
        if unknown != 0 || compat & !COMPAT_CHECKSUM != 0 {
            return Err(JournalError::Features { incompat, compat });
        }
        if this.has(INCOMPAT_CSUM_V2) && this.has(INCOMPAT_CSUM_V3) {
            return bad("two kinds of checksums");
        }
        if this.has_checksums() {
            if this.bytes[Self::CHECKSUM_TYPE] != CHECKSUM_CRC32C {
                return bad("an unknown kind of checksum");
            }
            if this.get(Self::CHECKSUM) != crc_without(!0, &this.bytes, Self::CHECKSUM) {
                return bad("a wrong checksum");
            }
        }
        if this.block_bytes() as usize != block.len() {
            return bad("another block size");
        }
        if u64::from(this.end()) > blocks {
            return bad("longer than the place it is in");
        }
        if this.first() == 0 || this.first().checked_add(8).is_none_or(|n| n > this.end()) {
            return bad("too short");
        }
        let start = this.start();
        if start != 0 && !(this.first()..this.end()).contains(&start) {
            return bad("a start outside the log");
        }
        Ok(this)
    }

    /// The bytes, with a new checksum.
    pub(super) fn encode(&mut self) -> &[u8] {
        if self.has_checksums() {
            let crc = crc_without(!0, &self.bytes, Self::CHECKSUM);
            put32(&mut self.bytes, Self::CHECKSUM, crc);
        }
        &self.bytes
    }

    fn get(&self, at: usize) -> u32 {
        get32(&self.bytes, at)
    }

    fn has(&self, incompat: u32) -> bool {
        self.get(Self::INCOMPAT) & incompat != 0
    }

    fn has_checksums(&self) -> bool {
        self.has(INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3)
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.get(0x0C)
    }

    /// The first block for records.
    pub(super) fn first(&self) -> u32 {
        self.get(0x14)
    }

    /// The block after the last one for records.
    pub(super) fn end(&self) -> u32 {
        self.get(0x10)
    }

    /// The number of the transaction at `start`; in an empty log, of the next one.
    pub(super) fn sequence(&self) -> u32 {
        self.get(Self::SEQUENCE)
    }

    /// The first block of the oldest transaction; 0: the log is empty.
    pub(super) fn start(&self) -> u32 {
        self.get(Self::START)
    }

    pub(super) fn set_tail(&mut self, start: u32, sequence: u32) {
        put32(&mut self.bytes, Self::START, start);
        put32(&mut self.bytes, Self::SEQUENCE, sequence);
    }

    /// Sets the features that this writer uses. Only for an empty log.
    pub(super) fn use_our_features(&mut self, wide: bool) {
        let wide = if wide { INCOMPAT_64BIT } else { 0 };
        let incompat = INCOMPAT_REVOKE | INCOMPAT_CSUM_V3 | wide;
        put32(&mut self.bytes, 4, SUPER_V2);
        put32(&mut self.bytes, Self::COMPAT, 0);
        put32(&mut self.bytes, Self::INCOMPAT, incompat);
        self.bytes[Self::CHECKSUM_TYPE] = CHECKSUM_CRC32C;
    }

    pub(super) fn codec(&self) -> Codec {
        Codec {
            block_bytes: self.block_bytes() as usize,
            v2: self.has(INCOMPAT_CSUM_V2),
            v3: self.has(INCOMPAT_CSUM_V3),
            wide: self.has(INCOMPAT_64BIT),
            seed: crc(!0, &self.bytes[0x30..0x40]),
        }
    }
}

/// Writes and parses the blocks of one log by its features.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codec {
    pub block_bytes: usize,
    v2: bool,
    v3: bool,
    /// Block numbers have 64 bits.
    wide: bool,
    seed: u32,
}

/// A descriptor's entry for one of the blocks after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    /// Number of the home block.
    pub home: u64,
    /// The block's first four bytes were the magic number, and are 0 in the log.
    pub escaped: bool,
    /// [`Codec::data_crc`], or 0 where the format has none.
    pub crc: u32,
}

/// The header of a block that is not a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: u32,
    pub sequence: u32,
}

impl Header {
    pub(super) fn parse(block: &[u8]) -> Option<Self> {
        (get32(block, 0) == MAGIC).then(|| Self {
            kind: get32(block, 4),
            sequence: get32(block, 8),
        })
    }
}

impl Codec {
    fn has_checksums(&self) -> bool {
        self.v2 || self.v3
    }

    fn tag_bytes(&self) -> usize {
        match (self.v3, self.v2, self.wide) {
            (true, _, _) => 16,
            (false, v2, wide) => 8 + if v2 { 2 } else { 0 } + if wide { 4 } else { 0 },
        }
    }

    fn tail_bytes(&self) -> usize {
        if self.has_checksums() { TAIL } else { 0 }
    }

    /// Most blocks that one descriptor lists.
    pub(super) fn tags_per_descriptor(&self) -> usize {
        (self.block_bytes - HEADER - 16 - self.tail_bytes()) / self.tag_bytes()
    }

    fn revoke_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Most blocks that one revoke block lists.
    pub(super) fn revokes_per_block(&self) -> usize {
        (self.block_bytes - HEADER - 4 - self.tail_bytes()) / self.revoke_bytes()
    }

    fn header(&self, kind: u32, sequence: u32) -> Vec<u8> {
        let mut block = vec![0; self.block_bytes];
        put32(&mut block, 0, MAGIC);
        put32(&mut block, 4, kind);
        put32(&mut block, 8, sequence);
        block
    }

    /// Writes the checksum at the end of the block.
    fn seal(&self, mut block: Vec<u8>) -> Vec<u8> {
        let at = self.block_bytes - TAIL;
        let crc = crc_without(self.seed, &block, at);
        put32(&mut block, at, crc);
        block
    }

    fn is_sealed(&self, block: &[u8]) -> bool {
        let at = self.block_bytes - TAIL;
        !self.has_checksums() || get32(block, at) == crc_without(self.seed, block, at)
    }

    /// The checksum of a block as it stands in the log.
    pub(super) fn data_crc(&self, sequence: u32, block: &[u8]) -> u32 {
        crc(crc(self.seed, &sequence.to_be_bytes()), block)
    }

    /// Whether a logged block has the checksum of its tag.
    pub(super) fn is_whole(&self, tag: &Tag, sequence: u32, block: &[u8]) -> bool {
        let crc = self.data_crc(sequence, block);
        match (self.v3, self.v2) {
            (true, _) => tag.crc == crc,
            (_, true) => tag.crc == crc & 0xFFFF,
            _ => true,
        }
    }

    /// A descriptor for 1 to [`tags_per_descriptor`](Self::tags_per_descriptor) blocks, in the
    /// newest form (checksums v3).
    pub(super) fn descriptor(&self, sequence: u32, tags: &[Tag]) -> Vec<u8> {
        let mut block = self.header(DESCRIPTOR, sequence);
        let mut at = HEADER;
        for (i, tag) in tags.iter().enumerate() {
            let first = if i == 0 { 0 } else { TAG_SAME_UUID };
            let last = if i + 1 == tags.len() { TAG_LAST } else { 0 };
            let escaped = if tag.escaped { TAG_ESCAPED } else { 0 };
            put32(&mut block, at, tag.home as u32);
            put32(&mut block, at + 4, first | last | escaped);
            put32(&mut block, at + 8, (tag.home >> 32) as u32);
            put32(&mut block, at + 12, tag.crc);
            at += self.tag_bytes() + if i == 0 { 16 } else { 0 };
        }
        self.seal(block)
    }

    /// The tags of a descriptor; `None` if it is torn.
    pub(super) fn parse_descriptor(&self, block: &[u8]) -> Option<Vec<Tag>> {
        if !self.is_sealed(block) {
            return None;
        }
        let end = self.block_bytes - self.tail_bytes();
        let mut tags = Vec::new();
        let mut at = HEADER;
        while at + self.tag_bytes() <= end {
            let low = u64::from(get32(block, at));
            let (flags, crc, high_at) = if self.v3 {
                (get32(block, at + 4), get32(block, at + 12), Some(at + 8))
            } else {
                let crc_and_flags = get32(block, at + 4);
                (crc_and_flags & 0xFFFF, crc_and_flags >> 16, Some(at + 8))
            };
            let high = high_at
                .filter(|_| self.wide)
                .map_or(0, |at| get32(block, at));
            tags.push(Tag {
                home: u64::from(high) << 32 | low,
                escaped: flags & TAG_ESCAPED != 0,
                crc,
            });
            at += self.tag_bytes();
            if flags & TAG_SAME_UUID == 0 {
                at += 16;
            }
            if flags & TAG_LAST != 0 {
                return Some(tags);
            }
        }
        Some(tags)
    }

    /// A revoke block for at most [`revokes_per_block`](Self::revokes_per_block) blocks.
    pub(super) fn revoke(&self, sequence: u32, homes: &[u64]) -> Vec<u8> {
        let mut block = self.header(REVOKE, sequence);
        let mut at = HEADER + 4;
        for &home in homes {
            if self.wide {
                block[at..at + 8].copy_from_slice(&home.to_be_bytes());
            } else {
                put32(&mut block, at, home as u32);
            }
            at += self.revoke_bytes();
        }
        put32(&mut block, HEADER, at as u32);
        self.seal(block)
    }

    /// The blocks that a revoke block lists; `None` if it is torn.
    pub(super) fn parse_revoke(&self, block: &[u8]) -> Option<Vec<u64>> {
        let used = get32(block, HEADER) as usize;
        let fits = (HEADER + 4..=self.block_bytes - self.tail_bytes()).contains(&used);
        if !self.is_sealed(block) || !fits {
            return None;
        }
        let records = block[HEADER + 4..used].chunks_exact(self.revoke_bytes());
        Some(
            records
                .map(|r| r.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
                .collect(),
        )
    }

    /// The commit block of a transaction. `seconds`: the time since 1970.
    pub(super) fn commit(&self, sequence: u32, seconds: u64) -> Vec<u8> {
        let mut block = self.header(COMMIT, sequence);
        block[48..56].copy_from_slice(&seconds.to_be_bytes());
        let crc = crc_without(self.seed, &block, 16);
        put32(&mut block, 16, crc);
        block
    }

    /// Whether a commit block has its checksum.
    pub(super) fn is_commit(&self, block: &[u8]) -> bool {
        !self.has_checksums() || get32(block, 16) == crc_without(self.seed, block, 16)
    }
}

/// Clears the magic number at the start of a block to be logged. Returns whether it was there.
pub(super) fn escape(block: &mut [u8]) -> bool {
    let escaped = get32(block, 0) == MAGIC;
    if escaped {
        put32(block, 0, 0);
    }
    escaped
}

/// Undoes [`escape`].
pub(super) fn unescape(block: &mut [u8]) {
    put32(block, 0, MAGIC);
}
