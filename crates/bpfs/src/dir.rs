//! Directories: entries in blocks, and the volatile index that finds them.
//!
//! An entry is valid if its inode number is not 0. A new entry takes one of these places:
//! - a hole of the right size, and its inode number commits;
//! - the unused end of a block, and the word with its length commits, an append inside the
//!   block;
//! - a new block, and the size of the directory commits.
//!
//! Valid entries do not move, so that their positions serve as cookies.

use crate::edit::What;
use crate::error::{Fault, Res};
use crate::format::{BLOCK, DIRENT_HEAD, DIRENT_MAX, DIRENT_MIN, DirentHead, at, rec_len};
use crate::seeded::{Bug, hit};
use crate::tx::Tx;
use crate::volume::{Tree, Volume};
use hashbrown::HashTable;
use medium::Pmem;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::{FileType, Ino};
use zerocopy::FromBytes;

/// A directory entry, as parsed from its block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'b> {
    /// Byte position in the directory.
    pub pos: u64,
    /// 0: a hole.
    pub ino: u64,
    pub rec_len: u16,
    pub kind: u8,
    pub name: &'b [u8],
}

/// Calls `each` for every entry of a block, holes included, and returns where the unused
/// rest begins ([`BLOCK`]: none). `base`: position of the block in the directory.
pub(crate) fn parse<'b>(
    block: &'b [u8],
    base: u64,
    each: &mut dyn FnMut(Entry<'b>) -> Res<()>,
) -> Res<u64> {
    let mut off = 0;
    while off + DIRENT_MIN <= block.len() {
        let bad =
            |why: &str| Fault::Corrupt(format!("directory entry at {}: {why}", base + off as u64));
        let (head, rest) =
            DirentHead::read_from_prefix(&block[off..]).map_err(|_| bad("is cut off"))?;
        let len = usize::from(head.rec_len.get());
        if len == 0 {
            if off == 0 && is_blank(block) {
                return Err(bad("the block is all zeros, and its names are lost"));
            }
            return Ok(off as u64);
        }
        let size_ok = (DIRENT_MIN..=DIRENT_MAX).contains(&len) && len.is_multiple_of(8);
        if !size_ok || off + len > block.len() {
            return Err(bad("its length is wrong"));
        }
        let name_len = usize::from(head.name_len);
        if head.ino.get() != 0 && (name_len == 0 || DIRENT_HEAD + name_len > len) {
            return Err(bad("its name does not fit"));
        }
        let name = &rest[..name_len.min(len - DIRENT_HEAD)];
        let (ino, kind) = (head.ino.get(), head.kind);
        each(Entry {
            pos: base + off as u64,
            ino,
            rec_len: len as u16,
            kind,
            name,
        })?;
        off += len;
    }
    Ok(BLOCK)
}

/// Whether nothing was ever stored in a block of a directory. A block is added for its first
/// entry, and a restart keeps that entry's type and name.
fn is_blank(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Largest directory: positions / 8 are kept in 32 bits.
pub(crate) const MAX_BYTES: u64 = 8 << 32;

/// An entry of the index: a hash, and the position of the directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    hash: u32,
    /// Position / 8.
    at: u32,
}

/// A hole, valid while its block has the same epoch.
#[derive(Debug, Clone, Copy)]
struct Hole {
    at: u32,
    epoch: u32,
}

/// The use of a block of the directory.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// Entries that are not holes.
    live: u32,
    /// Byte in the block where the unused rest begins.
    tail: u32,
    /// Number of resets: holes of an earlier epoch are no longer there.
    epoch: u32,
}

/// The volatile index of one directory: 8 bytes a name, and the free places by size.
pub(crate) struct DirIndex {
    names: HashTable<Name>,
    /// Keyed at random for each index, so that nobody can choose names that collide.
    hasher: RandomState,
    blocks: Vec<Block>,
    /// Holes by entry length / 8.
    holes: Vec<Vec<Hole>>,
    /// Blocks that may have an unused rest.
    tails: Vec<u32>,
    /// Blocks in which only holes remain.
    empty: Vec<u32>,
    /// Used since the last call of [`was_touched`](Self::was_touched).
    touched: AtomicBool,
    /// [`bytes`](Self::bytes) as it was counted last for the limit of all indexes.
    pub counted: u64,
}

/// Space for a new entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntrySpace {
    /// A hole of `rec_len` bytes.
    Hole { pos: u64, rec_len: u16 },
    /// The unused rest of a block.
    Tail { pos: u64 },
    /// The start of a block after the last.
    NewBlock { pos: u64 },
    /// A block of holes only: its first length must be set to 0; it is a `Tail` then.
    Reset { pos: u64 },
}

impl EntrySpace {
    pub(crate) fn pos(self) -> u64 {
        match self {
            EntrySpace::Hole { pos, .. }
            | EntrySpace::Tail { pos }
            | EntrySpace::NewBlock { pos }
            | EntrySpace::Reset { pos } => pos,
        }
    }
}

const CLASSES: usize = DIRENT_MAX / 8 + 1;

impl DirIndex {
    /// Reads a directory.
    pub(crate) fn build<P: Pmem>(vol: &Volume<P>, tree: &Tree) -> Res<Self> {
        let mut index = Self {
            names: HashTable::new(),
            hasher: RandomState::new(),
            blocks: Vec::new(),
            holes: Vec::new(),
            tails: Vec::new(),
            empty: Vec::new(),
            touched: AtomicBool::new(true),
            counted: 0,
        };
        for_blocks(vol, tree, 0, &mut |base, bytes| {
            index.blocks.push(Block::default());
            let tail = parse(bytes, base, &mut |e| {
                if e.ino == 0 {
                    index.add_hole(e.pos, e.rec_len);
                } else {
                    let hash = index.hash_of(e.name);
                    index.add_name(hash, e.pos);
                }
                Ok(())
            })?;
            index.set_tail(base, tail);
            if index.block(base).live == 0 && tail != 0 {
                index.empty.push((base / BLOCK) as u32);
            }
            Ok(true)
        })?;
        Ok(index)
    }

    /// Records that the index is used.
    pub(crate) fn touch(&self) {
        // Stored only once, since many threads may read the same line.
        if !self.touched.load(Relaxed) {
            self.touched.store(true, Relaxed);
        }
    }

    /// Whether the index was used since the last call.
    pub(crate) fn was_touched(&self) -> bool {
        self.touched.swap(false, Relaxed)
    }

    /// Memory that the index takes.
    pub(crate) fn bytes(&self) -> u64 {
        let holes = self.holes.iter().map(Vec::capacity).sum::<usize>();
        let lists = self.tails.capacity() + self.empty.capacity();
        let bytes = size_of::<Self>()
            + self.names.allocation_size()
            + self.blocks.capacity() * size_of::<Block>()
            + self.holes.capacity() * size_of::<Vec<Hole>>()
            + holes * size_of::<Hole>()
            + lists * size_of::<u32>();
        bytes as u64
    }

    /// Number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn block(&mut self, pos: u64) -> &mut Block {
        &mut self.blocks[(pos / BLOCK) as usize]
    }

    fn hash_of(&self, name: &[u8]) -> u32 {
        self.hasher.hash_one(name) as u32
    }

    fn add_name(&mut self, hash: u32, pos: u64) {
        let name = Name {
            hash,
            at: (pos / 8) as u32,
        };
        self.names.insert_unique(key(hash), name, rehash);
        self.block(pos).live += 1;
    }

    fn add_hole(&mut self, pos: u64, rec_len: u16) {
        let class = usize::from(rec_len / 8).min(CLASSES - 1);
        if self.holes.is_empty() {
            self.holes.resize(CLASSES, Vec::new());
        }
        let epoch = self.block(pos).epoch;
        self.holes[class].push(Hole {
            at: (pos / 8) as u32,
            epoch,
        });
    }

    fn set_tail(&mut self, pos: u64, tail: u64) {
        self.block(pos).tail = tail as u32;
        let block = (pos / BLOCK) as u32;
        if tail + DIRENT_MIN as u64 <= BLOCK && self.tails.last() != Some(&block) {
            self.tails.push(block);
        }
    }

    /// Finds a name: its entry's position, inode number and type.
    pub(crate) fn find<P: Pmem>(
        &self,
        vol: &Volume<P>,
        tree: &Tree,
        name: &[u8],
    ) -> Res<Option<(u64, Ino, FileType)>> {
        let hash = self.hash_of(name);
        let mut found = Ok(None);
        self.names.find(key(hash), |n| {
            n.hash == hash
                && match matches(vol, tree, u64::from(n.at) * 8, name) {
                    Ok(None) => false,
                    other => {
                        found = other;
                        true
                    }
                }
        });
        found
    }

    /// Chooses the space for an entry of `need` bytes. Nothing is taken until
    /// [`placed`](Self::placed).
    pub(crate) fn choose(&mut self, need: usize) -> EntrySpace {
        for class in need / 8..self.holes.len() {
            while let Some(hole) = self.holes[class].last().copied() {
                let pos = u64::from(hole.at) * 8;
                if self.block(pos).epoch == hole.epoch {
                    return EntrySpace::Hole {
                        pos,
                        rec_len: class as u16 * 8,
                    };
                }
                self.holes[class].pop();
            }
        }
        while let Some(block) = self.tails.last().copied() {
            let tail = u64::from(self.blocks[block as usize].tail);
            if tail + need as u64 <= BLOCK {
                return EntrySpace::Tail {
                    pos: u64::from(block) * BLOCK + tail,
                };
            }
            if self.tails.len() > 1 && tail + 64 <= BLOCK {
                // Room for shorter names: keep the block findable after the others.
                self.tails.pop();
                self.tails.insert(0, block);
                break;
            }
            self.tails.pop();
        }
        while let Some(block) = self.empty.last().copied() {
            if self.blocks[block as usize].live == 0 {
                return EntrySpace::Reset {
                    pos: u64::from(block) * BLOCK,
                };
            }
            self.empty.pop();
        }
        EntrySpace::NewBlock {
            pos: self.blocks.len() as u64 * BLOCK,
        }
    }

    /// Records that a block was reset: all of it is unused.
    pub(crate) fn was_reset(&mut self, pos: u64) {
        self.block(pos).epoch += 1;
        self.set_tail(pos, 0);
        self.empty.retain(|b| u64::from(*b) != pos / BLOCK);
    }

    /// Records that the entry in `space` is committed.
    pub(crate) fn placed(&mut self, space: EntrySpace, name: &[u8]) {
        let pos = space.pos();
        match space {
            EntrySpace::Hole { rec_len, .. } => {
                self.holes[usize::from(rec_len / 8)].pop();
            }
            EntrySpace::NewBlock { .. } => self.blocks.push(Block::default()),
            EntrySpace::Tail { .. } | EntrySpace::Reset { .. } => {}
        }
        self.add_name(self.hash_of(name), pos);
        if !matches!(space, EntrySpace::Hole { .. }) {
            let tail = pos % BLOCK + rec_len(name.len()) as u64;
            self.set_tail(pos, tail);
        }
    }

    /// Records that the entry at `pos` was removed.
    pub(crate) fn removed(&mut self, pos: u64, entry_len: u16, name: &[u8]) {
        let hash = self.hash_of(name);
        let at = (pos / 8) as u32;
        let key = key(hash);
        if let Ok(found) = self.names.find_entry(key, |n| n.at == at) {
            found.remove();
        }
        self.add_hole(pos, entry_len);
        let block = self.block(pos);
        block.live -= 1;
        if block.live == 0 {
            self.empty.push((pos / BLOCK) as u32);
        }
    }
}

fn rehash(n: &Name) -> u64 {
    key(n.hash)
}

/// The position, inode number and type of the entry at `pos`, if it has this name.
fn matches<P: Pmem>(
    vol: &Volume<P>,
    tree: &Tree,
    pos: u64,
    name: &[u8],
) -> Res<Option<(u64, Ino, FileType)>> {
    let mut buf = [0; DIRENT_HEAD + vfs::NAME_MAX];
    let len = DIRENT_HEAD + name.len();
    if pos % BLOCK + len as u64 > BLOCK {
        return Ok(None);
    }
    let addr = vol.leaf(tree, pos / BLOCK)?.addr() + pos % BLOCK;
    vol.pm.read(addr, &mut buf[..len])?;
    if usize::from(buf[at::DIRENT_NAME_LEN as usize]) != name.len()
        || buf[DIRENT_HEAD..len] != *name
    {
        return Ok(None);
    }
    let head = DirentHead::read_from_bytes(&buf[..DIRENT_HEAD])
        .map_err(|_| Fault::Corrupt("directory entry is cut off".into()))?;
    if head.ino.get() == 0 {
        return Ok(None); // removed by a failed commit
    }
    let kind = FileType::from_code(head.kind)
        .ok_or_else(|| Fault::Corrupt(format!("directory entry at {pos}: type {}", head.kind)))?;
    Ok(Some((pos, Ino(head.ino.get()), kind)))
}

/// Length of the entry at `pos`.
pub(crate) fn entry_len<P: Pmem>(vol: &Volume<P>, tree: &Tree, pos: u64) -> Res<u16> {
    Ok(len_word(vol, tree, pos)? as u16)
}

/// The word of the entry at `pos` that starts with its length.
pub(crate) fn len_word<P: Pmem>(vol: &Volume<P>, tree: &Tree, pos: u64) -> Res<u64> {
    let addr = vol.leaf(tree, pos / BLOCK)?.addr() + pos % BLOCK;
    Ok(vol.pm.load(addr + at::DIRENT_LEN)?)
}

/// Calls `each` with the position and bytes of every block from the one that holds `from`;
/// `each` returns false to stop. Directories have no holes, whose number would be unbounded.
pub(crate) fn for_blocks<P: Pmem>(
    vol: &Volume<P>,
    tree: &Tree,
    from: u64,
    each: &mut dyn FnMut(u64, &[u8]) -> Res<bool>,
) -> Res<()> {
    let mut bytes = [0; BLOCK as usize];
    for leaf in from / BLOCK..tree.valid_leaves() {
        let block = vol.leaf(tree, leaf)?;
        if block.is_null() {
            return Err(Fault::Corrupt(format!("directory block {leaf} is missing")));
        }
        vol.pm.read(block.addr(), &mut bytes)?;
        if !each(leaf * BLOCK, &bytes)? {
            break;
        }
    }
    Ok(())
}

/// Byte in an entry of the word with its length, its type and the start of its name.
const LEN_WORD: usize = at::DIRENT_LEN as usize;
/// Byte in an entry after that word: the rest of the name.
const NAME_REST: usize = LEN_WORD + 8;
/// Bytes of the next entry's head up to its length, which is 0 if there is none.
const CHAIN_END: usize = LEN_WORD + 2;

/// The bytes of a new entry. Lives until its transaction ends.
pub(crate) struct NewEntry {
    /// Head, name and padding; then zeros, which end the chain if the block has room left.
    bytes: Vec<u8>,
    len: usize,
}

impl NewEntry {
    pub(crate) fn new(ino: Ino, kind: FileType, name: &[u8], space: EntrySpace) -> Self {
        let need = rec_len(name.len());
        let stored_len = match space {
            EntrySpace::Hole { rec_len, .. } => rec_len,
            EntrySpace::Tail { .. } | EntrySpace::NewBlock { .. } | EntrySpace::Reset { .. } => {
                need as u16
            }
        };
        let mut bytes = Vec::with_capacity(need + CHAIN_END);
        bytes.extend(ino.0.to_le_bytes());
        bytes.extend(stored_len.to_le_bytes());
        bytes.extend([kind as u8, name.len() as u8]);
        bytes.extend(name);
        bytes.resize(need + CHAIN_END, 0);
        Self { bytes, len: need }
    }

    /// Adds the entry to a transaction. `hidden`: store invisible bytes in place, and leave one
    /// visible word (rule: initialise before point).
    pub(crate) fn put<'a, P: Pmem>(
        &'a self,
        tx: &mut Tx<'_, 'a, P>,
        dir: Ino,
        tree: &Tree,
        space: EntrySpace,
        hidden: bool,
    ) -> Res<()> {
        let pos = space.pos();
        let is_new = matches!(space, EntrySpace::NewBlock { .. });
        if hidden && !is_new {
            let addr = tx.vol.leaf(tree, pos / BLOCK)?.addr() + pos % BLOCK;
            let commit = self.hide(tx, addr, space);
            let at = pos + commit as u64;
            tx.edit(dir, at, at + 8, What::Word(self.word(commit)));
            return Ok(());
        }
        let len = match space {
            EntrySpace::Hole { .. } => self.name_end(),
            EntrySpace::Tail { .. } | EntrySpace::NewBlock { .. } | EntrySpace::Reset { .. } => {
                match self.has_room_after(pos) {
                    true => self.len + CHAIN_END,
                    false => self.len,
                }
            }
        };
        tx.edit(dir, pos, pos + len as u64, What::Bytes(&self.bytes[..len]));
        if is_new {
            tx.set(dir, at::SIZE, pos + BLOCK);
        }
        Ok(())
    }

    /// Stores all of the entry except the word that makes it valid, in a block that exists.
    /// Returns where in the entry that word is.
    fn hide<P: Pmem>(&self, tx: &mut Tx<'_, '_, P>, addr: u64, space: EntrySpace) -> usize {
        let name_end = self.name_end();
        if matches!(space, EntrySpace::Hole { .. }) {
            let rest = &self.bytes[LEN_WORD..name_end];
            tx.hide(addr + LEN_WORD as u64, rest);
            return 0;
        }
        if hit(Bug::ReclenBeforeIno) {
            tx.hide(addr + LEN_WORD as u64, &self.bytes[LEN_WORD..NAME_REST]);
        }
        tx.hide(addr, &self.bytes[..LEN_WORD]);
        if name_end > NAME_REST {
            tx.hide(addr + NAME_REST as u64, &self.bytes[NAME_REST..name_end]);
        }
        if self.has_room_after(space.pos()) {
            tx.hide(addr + (self.len + LEN_WORD) as u64, &[0; 2]);
        }
        LEN_WORD
    }

    /// Whether another entry fits after this one in its block.
    fn has_room_after(&self, pos: u64) -> bool {
        pos % BLOCK + (self.len + DIRENT_MIN) as u64 <= BLOCK
    }

    fn name_end(&self) -> usize {
        DIRENT_HEAD + usize::from(self.bytes[at::DIRENT_NAME_LEN as usize])
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

/// The key for the hash table, which needs 64 bits with entropy at both ends.
fn key(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
