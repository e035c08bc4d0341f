//! The bytes of an image; `format.md` describes them.

use vfs::FileType;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of the larger unit of allocation.
pub const PAGE: u64 = 4096;
/// Bytes of the smaller unit of allocation: a cache line.
pub const LINE: u64 = 64;
/// Lines of a page: the bits of its word in the bitmap.
pub const LINES: u64 = PAGE / LINE;
/// Words of a page of pointers or heads.
pub const FANOUT: u64 = PAGE / 8;
const _: () = assert!(LINES == u64::BITS as u64 && FANOUT == 1 << TABLE_BITS);

/// The first bytes of an image.
pub const MAGIC: [u8; 8] = *b"SELVSOUP";
/// Version of the format.
pub const VERSION: u32 = 1;
/// The least number of pages.
pub const MIN_PAGES: u64 = (1 << 20) / PAGE;
/// The greatest number of pages: a link holds 36 bits of a line number.
pub const MAX_PAGES: u64 = (1 << 36) / LINES;

/// Mark of an image that was unmounted: nothing is left of a crash.
pub const UNMOUNTED: u64 = 1;
/// Mark of an image that was unmounted, but may have leaks, or blocks past the end of a file: nobody
/// has removed what an earlier crash left.
pub const WITH_REMAINS: u64 = 2;

/// Offsets in the superblock.
pub mod at {
    /// Format version.
    pub const VERSION: u64 = 8;
    /// UUID, 16 bytes.
    pub const UUID: u64 = 16;
    /// Pages of the file system.
    pub const PAGES: u64 = 32;
    /// Time of mkfs.
    pub const MADE: u64 = 40;
    /// CRC-32 of the 48 bytes before it.
    pub const CRC: u64 = 48;
    /// The root inode: line 1.
    pub const ROOT: u64 = 64;
    /// Number of the present epoch: of mounts that wrote.
    pub const EPOCH: u64 = 128;
    /// [`UNMOUNTED`](super::UNMOUNTED), [`WITH_REMAINS`](super::WITH_REMAINS), or 0.
    pub const CLEAN: u64 = 136;
    /// The boot of the machine at the last mount or repair that wrote, 16 bytes; 0 if it is not known.
    pub const BOOT: u64 = 144;
}

/// Words of an inode, by their number in its line.
pub mod inode {
    /// `mode` (16 bits), generation (16), link count (32).
    pub const MODE: u64 = 0;
    /// User id (32 bits), group id (32).
    pub const OWNER: u64 = 1;
    /// Size of a file or link in bytes; the inode number of a directory's parent.
    pub const SIZE: u64 = 2;
    /// The root of a file's tree, the slot of a directory, the first line of a link's target, or
    /// the device number.
    pub const ROOT: u64 = 3;
    /// Page of extended attributes (32 bits), pages of contents and tree (32).
    pub const PAGES: u64 = 4;
    /// Time of the last access.
    pub const ATIME: u64 = 5;
    /// Time of the last change of the contents.
    pub const MTIME: u64 = 6;
    /// Time of the last change of the inode.
    pub const CTIME: u64 = 7;
}

/// Words of a dentry.
pub mod dentry {
    /// Inode number (56 bits), type (8).
    pub const INODE: u64 = 0;
    /// Link to the next dentry in the consistent view.
    pub const NEXT: u64 = 1;
    /// Link to the next dentry in the latest view.
    pub const LATEST: u64 = 2;
    /// The epoch in which the word before it has a meaning.
    pub const EPOCH: u64 = 3;
    /// Hash of the name (56 bits), length (8).
    pub const HASH: u64 = 4;
    /// The name, if it has at most 24 bytes. Otherwise the first of its lines, and 16 bytes of it.
    pub const NAME: u64 = 5;
}

/// Longest name without lines of its own.
pub const INLINE_NAME: usize = 24;
/// Bytes of a longer name that are in the dentry.
pub const NAME_START: usize = 16;
/// Bytes of text in a line of text: all but a word, the number of the next line.
pub const TEXT: usize = (LINE - 8) as usize;

/// Bits of a hash.
pub const HASH_BITS: u32 = 56;
/// Bits of a hash that a link repeats.
pub const TAG_BITS: u32 = 27;
/// Bits of a hash that one table decides.
pub const TABLE_BITS: u32 = 9;
/// Most tables between an inode and a chain.
pub const MAX_DEPTH: u32 = TAG_BITS / TABLE_BITS;

const LINE_MASK: u64 = (1 << 36) - 1;
const TABLE_FLAG: u64 = 1 << 36;
const TAG_SHIFT: u32 = 37;

/// A line of the image, by its number: its offset divided by 64. An inode's is its inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64);

impl Line {
    /// Offset of word `word`.
    pub fn word(self, word: u64) -> u64 {
        self.0 * LINE + word * 8
    }

    /// Offset.
    pub fn addr(self) -> u64 {
        self.0 * LINE
    }
}

/// A page of the image, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u64);

impl Page {
    /// Offset.
    pub fn addr(self) -> u64 {
        self.0 * PAGE
    }

    /// Offset of word `word`.
    pub fn word(self, word: u64) -> u64 {
        self.addr() + word * 8
    }
}

/// The hash of a name: 56 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub u64);

impl Hash {
    /// The hash of `name` in the image with this seed.
    pub fn of(name: &[u8], seed: u64) -> Self {
        Self(xxh3_64_with_seed(name, seed) >> (64 - HASH_BITS))
    }

    /// The position in a table that `depth` tables are above.
    pub fn index(self, depth: u32) -> u64 {
        (self.0 >> (HASH_BITS - TABLE_BITS * (depth + 1))) & (FANOUT - 1)
    }

    /// The least hash of the next chain, if this one's is below `depth` tables.
    pub fn after(self, depth: u32) -> Option<Self> {
        let shift = HASH_BITS - TABLE_BITS * depth;
        let next = ((self.0 >> shift) + 1) << shift;
        (next >> HASH_BITS == 0).then_some(Self(next))
    }

    /// The first bits, as a link repeats them.
    pub(crate) fn tag(self) -> u64 {
        self.0 >> (HASH_BITS - TAG_BITS)
    }
}

/// A link: nothing, a dentry with the first bits of its hash, or (in a slot only) a table.
///
/// The bits of the hash say whether a dentry belongs to a chain, without a look at it. So a chain
/// that was split need not be cut: its parts end at links to dentries of other parts, which nobody
/// follows, even if these dentries are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Link(pub u64);

impl Link {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// A dentry.
    pub fn dentry(line: Line, hash: Hash) -> Self {
        Self(line.0 | hash.tag() << TAG_SHIFT)
    }

    /// A table.
    pub fn table(page: Page) -> Self {
        Self((page.0 * LINES) | TABLE_FLAG)
    }

    /// The table.
    pub fn as_table(self) -> Option<Page> {
        (self.0 & TABLE_FLAG != 0).then_some(Page((self.0 & LINE_MASK) / LINES))
    }

    /// The line of a dentry.
    pub(crate) fn line(self) -> Line {
        Line(self.0 & LINE_MASK)
    }

    /// The first bits of the dentry's hash.
    pub(crate) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// As [`in_chain`](Self::in_chain), unless the first bits of the dentry's hash are greater.
    pub(crate) fn in_chain_up_to(self, hash: Hash, depth: u32) -> Option<Line> {
        let is_after = self.tag() > hash.tag();
        self.in_chain(hash, depth).filter(|_| !is_after)
    }

    /// The link, if a slot for `hash` below `depth` tables may hold it as the head of a chain. Links out of
    /// the chain are at its end only.
    pub(crate) fn head(self, hash: Hash, depth: u32) -> Option<Self> {
        let is_head = self == Self::NONE || self.in_chain(hash, depth).is_some();
        is_head.then_some(self)
    }

    /// The dentry, if it belongs to the chain of `hash` below `depth` tables.
    pub fn in_chain(self, hash: Hash, depth: u32) -> Option<Line> {
        let rest = TAG_BITS - TABLE_BITS * depth;
        let belongs = self.tag() >> rest == hash.tag() >> rest;
        let line = self.line();
        (line.0 != 0 && self.0 & TABLE_FLAG == 0 && belongs).then_some(line)
    }
}

/// The root of a file's tree. A tree of height 0 is one page of data; each level above has 512
/// pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root(pub u64);

impl Root {
    /// A root; `None` is an empty tree.
    pub fn new(page: Option<Page>, height: u32) -> Self {
        Self(page.map_or(0, |page| page.0 << 8 | u64::from(height)))
    }

    /// The page.
    pub fn page(self) -> Option<Page> {
        (self.0 >> 8 != 0).then_some(Page(self.0 >> 8))
    }

    /// The height.
    pub fn height(self) -> u32 {
        (self.0 & 0xff) as u32
    }

    /// Blocks that a tree of some height has room for.
    pub fn span(height: u32) -> u64 {
        1_u64.checked_shl(TABLE_BITS * height).unwrap_or(u64::MAX)
    }

    /// The least height of a tree that has room for a block.
    pub fn height_for(block: u64) -> Option<u32> {
        (0..=MAX_HEIGHT).find(|height| block < Self::span(*height))
    }
}

/// The greatest height: blocks of 63 bits of bytes.
pub const MAX_HEIGHT: u32 = 6;

/// Pages of the bitmap.
pub fn bitmap_pages(pages: u64) -> u64 {
    pages.div_ceil(FANOUT)
}

/// The word of the bitmap with the bits of a page's lines.
pub fn bitmap_word(page: Page) -> u64 {
    PAGE + page.0 * 8
}

/// The words of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode(pub [u64; 8]);

impl Inode {
    /// The whole `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0[0] as u16 as u32
    }
    /// The type, unless the inode is damaged.
    pub fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.mode())
    }
    /// Generation.
    pub fn generation(&self) -> u16 {
        (self.0[0] >> 16) as u16
    }
    /// Link count.
    pub fn links(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }
    /// User id.
    pub fn uid(&self) -> u32 {
        self.0[1] as u32
    }
    /// Group id.
    pub fn gid(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }
    /// Page of extended attributes.
    pub fn xattr(&self) -> Option<Page> {
        let page = self.0[4] & 0xffff_ffff;
        (page != 0).then_some(Page(page))
    }
    /// Pages of contents and tree.
    pub fn pages(&self) -> u32 {
        (self.0[4] >> 32) as u32
    }
}

/// The word with mode, generation and link count.
pub fn mode_word(mode: u32, generation: u16, links: u32) -> u64 {
    u64::from(mode as u16) | u64::from(generation) << 16 | u64::from(links) << 32
}

/// A word of two halves.
pub fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
