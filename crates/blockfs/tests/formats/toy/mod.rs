//! A format for tests, as small as its properties allow: fragments, and blocks that move.
//!
//! # Layout
//! Block 0 is the superblock, block 1 the bitmap, then each inode has a block. The rest are
//! fragments. An inode points to *runs* of 1 to [`Kind::fragments`] neighbouring fragments. All
//! runs of a file are full but the last one, which grows in place or moves, as in UFS. With
//! [`Kind::moves`] no block of a file is overwritten: each write moves its run.
//!
//! # Order
//! The order is that of `Format` and `BlockFs`. Bit and contents come before the pointer. The
//! pointer's removal comes before the clearing of the bit and before new contents.

mod bytes;
mod names;
mod runs;
mod steps;

use blockfs::{Befores, Heads, InodeChange, NewInode, Result, after};
use bytes::{Inode, field};
use medium::block::{Geometry, Lba, MemoryDevice};
use parking_lot::Mutex;
use patch::{Before, Change, Content, Op, PatchId, Rule, Store};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use vfs::{Errno, FileType, Ino};

pub const BLOCK: u32 = 1024;
/// Blocks of an image.
pub const BLOCKS: u64 = 640;
/// Inodes of an image. The first two are not used.
const INODES: u64 = 40;
const ROOT: u64 = 2;
const BITMAP: Lba = Lba(1);
const INODE_TABLE: u64 = 2;
const FIRST_FRAGMENT: u64 = INODE_TABLE + INODES;
/// Fragments that are reserved for the super-user.
const RESERVE: u64 = 8;

/// Bytes of the superblock.
mod sup {
    pub const MAGIC: u32 = 0;
    pub const CLEAN: u32 = 4;
    pub const FREE: u32 = 8;
    pub const MOUNTS: u32 = 12;
    pub const DAMAGED: u32 = 16;
}

/// A mistake in a format. The conformance suite must find each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A step that fails for lack of room keeps the fragments that it took.
    KeepsOnFailure,
    /// A pointer does not wait for the contents.
    PointsBeforeContents,
    /// New contents do not wait for the removal of old pointers.
    ReusesAtOnce,
    /// The old place of a moved run stays marked as used.
    LeaksOldRun,
    /// The rest of a new fragment is not zeroed.
    DirtyPadding,
    /// A run grows over fragments of others.
    GrowsIntoNeighbour,
    /// Free counts are not stored when everything is made durable.
    ForgetsCounts,
    /// Cookies count entries, so that they shift when a name is removed.
    ShiftingCookies,
    /// The returned patch of a new name is not the one that makes it.
    WrongPatch,
    /// A reused inode number keeps its generation.
    SameGeneration,
    /// A step counts an inode before it reads the blocks that it needs.
    CountsBeforeReads,
}

impl Fault {
    pub const ALL: [Self; 11] = [
        Self::KeepsOnFailure,
        Self::PointsBeforeContents,
        Self::ReusesAtOnce,
        Self::LeaksOldRun,
        Self::DirtyPadding,
        Self::GrowsIntoNeighbour,
        Self::ForgetsCounts,
        Self::ShiftingCookies,
        Self::WrongPatch,
        Self::SameGeneration,
        Self::CountsBeforeReads,
    ];

    /// Whether a journal that keeps all contents hides it: such a journal makes the changes of
    /// a call durable together.
    pub fn is_hidden_by_journal(self) -> bool {
        match self {
            Self::PointsBeforeContents | Self::ReusesAtOnce | Self::WrongPatch => true,
            Self::KeepsOnFailure
            | Self::LeaksOldRun
            | Self::DirtyPadding
            | Self::GrowsIntoNeighbour
            | Self::ForgetsCounts
            | Self::ShiftingCookies
            | Self::SameGeneration
            | Self::CountsBeforeReads => false,
        }
    }

    /// The check that must find it.
    pub fn noticed_by(self) -> &'static str {
        match self {
            Self::KeepsOnFailure => "no space",
            Self::PointsBeforeContents | Self::ReusesAtOnce => "crashes",
            Self::LeaksOldRun | Self::GrowsIntoNeighbour => "blocks",
            Self::DirtyPadding => "holes",
            Self::ForgetsCounts => "unmounts",
            Self::ShiftingCookies => "cookies",
            Self::WrongPatch => "synced steps",
            Self::SameGeneration => "inode numbers",
            Self::CountsBeforeReads => "attempts",
        }
    }
}

/// A variant of the format.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Most fragments of a run, at most 4.
    pub fragments: u64,
    /// Whether each write moves its run.
    pub moves: bool,
    pub fault: Option<Fault>,
}

impl Kind {
    /// Blocks of one fragment, overwritten in place.
    pub const PLAIN: Self = Self {
        fragments: 1,
        moves: false,
        fault: None,
    };
    /// Fragments, as in UFS.
    pub const FRAGMENTS: Self = Self {
        fragments: 4,
        ..Self::PLAIN
    };
    /// Blocks that move with each write.
    pub const MOVES: Self = Self {
        moves: true,
        ..Self::PLAIN
    };
    /// Fragments that move with each write.
    pub const BOTH: Self = Self {
        moves: true,
        ..Self::FRAGMENTS
    };
}

/// The state in memory.
struct State {
    free: u64,
    free_inodes: u64,
    /// The removal of the last pointer to a fragment.
    removed: HashMap<u64, PatchId>,
    /// The removal of a name.
    erased: HashMap<(Ino, Vec<u8>), PatchId>,
    orphans: BTreeSet<Ino>,
    generation: u32,
    keeps_reserve: bool,
}

/// A mounted image.
pub struct Toy {
    store: Arc<dyn Store>,
    kind: Kind,
    clean: bool,
    state: Mutex<State>,
}

/// Makes befores of patches to whose result a pointer or a name leads.
fn init(patches: impl IntoIterator<Item = PatchId>) -> Befores {
    after(Rule::InitialiseBeforePoint, patches)
}

/// A new image.
pub fn mkfs() -> Arc<MemoryDevice> {
    let geometry = Geometry {
        block_bytes: BLOCK,
        blocks: BLOCKS,
    };
    let mut image = vec![0; geometry.bytes() as usize];
    let mut put = |lba: Lba, at: u32, bytes: &[u8]| {
        let at = lba.0 as usize * BLOCK as usize + at as usize;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(Lba(0), sup::MAGIC, b"toy!");
    put(Lba(0), sup::CLEAN, &[1]);
    let free = (BLOCKS - FIRST_FRAGMENT) as u32;
    put(Lba(0), sup::FREE, &free.to_le_bytes());
    for used in 0..FIRST_FRAGMENT {
        let bits: u8 = (0..8)
            .filter(|bit| used / 8 * 8 + bit < FIRST_FRAGMENT)
            .map(|bit| 1 << bit)
            .sum();
        put(BITMAP, used as u32 / 8, &[bits]);
    }
    let root = Inode::new(&NewInode {
        kind: FileType::Directory,
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        now: vfs::Timestamp(0),
    });
    put(place(Ino(ROOT)), 0, &root.0);
    put(
        place(Ino(ROOT)),
        field::PARENT,
        &(ROOT as u32).to_le_bytes(),
    );
    Arc::new(MemoryDevice::from_bytes(BLOCK, image))
}

/// The block of an inode.
fn place(ino: Ino) -> Lba {
    Lba(INODE_TABLE + ino.0)
}

impl Toy {
    pub fn open(store: Arc<dyn Store>, kind: Kind) -> Result<Self> {
        let sup = store.read(Lba(0))?;
        assert_eq!(&sup[..4], b"toy!");
        let (clean, mounts) = (
            bytes::get(&sup, sup::CLEAN) == 1,
            bytes::get(&sup, sup::MOUNTS),
        );
        let toy = Self {
            store,
            kind,
            clean,
            state: Mutex::new(State {
                free: bytes::get(&sup, sup::FREE).into(),
                free_inodes: 0,
                removed: HashMap::new(),
                erased: HashMap::new(),
                orphans: BTreeSet::new(),
                generation: mounts << 16,
                keeps_reserve: false,
            }),
        };
        toy.state.lock().free_inodes = toy.counted_inodes()?;
        if !clean {
            toy.state.lock().free = toy.counted()?;
        }
        toy.mark(sup::MOUNTS, mounts + 1)?;
        toy.mark(sup::CLEAN, 0)?;
        Ok(toy)
    }

    fn has(&self, fault: Fault) -> bool {
        self.kind.fault == Some(fault)
    }

    /// Changes a field of the superblock, durably.
    fn mark(&self, at: u32, value: u32) -> Result<()> {
        let op = self.store.begin(1, patch::Caller::SYSTEM)?;
        let marked = self.set(&op, Lba(0), at, &value.to_le_bytes(), &[]);
        self.store.end(op);
        Ok(self.store.sync(&[marked?])?)
    }

    fn set(&self, op: &Op, lba: Lba, at: u32, bytes: &[u8], befores: &[Before]) -> Result<PatchId> {
        let change = Change::Bytes { at, bytes };
        Ok(self
            .store
            .change(op, lba, Content::Metadata, change, befores)?
            .id)
    }

    /// An inode in use.
    fn load(&self, ino: Ino) -> Result<Inode> {
        let stale = blockfs::FormatError::Limit(Errno::STALE);
        if !(ROOT..INODES).contains(&ino.0) {
            return Err(stale);
        }
        let inode = Inode(self.store.read(place(ino))?.to_vec());
        inode.kind().is_some().then_some(inode).ok_or(stale)
    }

    // --- inodes -----------------------------------------------------------------

    /// Counts the free inodes on the medium.
    fn counted_inodes(&self) -> Result<u64> {
        let mut free = 0;
        for ino in (ROOT..INODES).map(Ino) {
            free += u64::from(self.store.read(place(ino))?[0] == 0);
        }
        Ok(free)
    }

    fn count_inode(&self) {
        let mut state = self.state.lock();
        state.free_inodes = state.free_inodes.saturating_sub(1);
    }

    fn make(&self, op: &Op, new: &NewInode) -> Result<(Ino, Heads)> {
        let early = self.has(Fault::CountsBeforeReads);
        if early {
            self.count_inode();
        }
        for ino in (ROOT..INODES).map(Ino) {
            let old = Inode(self.store.read(place(ino))?.to_vec());
            if old.kind().is_some() {
                continue;
            }
            let mut inode = Inode::new(new);
            let generation = {
                let mut state = self.state.lock();
                state.generation += u32::from(!self.has(Fault::SameGeneration));
                state.generation
            };
            inode.put(field::GENERATION, generation);
            let made = self.set(op, place(ino), 0, &inode.0, &[])?;
            if !early {
                self.count_inode();
            }
            return Ok((ino, Heads::from_slice(&[made])));
        }
        Err(blockfs::FormatError::NoSpace)
    }

    fn change_fields(
        &self,
        op: &Op,
        ino: Ino,
        change: &InodeChange,
        befores: &[Before],
    ) -> Result<PatchId> {
        let inode = self.load(ino)?;
        let mut befores = befores.to_vec();
        if let Some(size) = change.size {
            if size > self.largest() {
                return Err(blockfs::FormatError::Limit(Errno::FBIG));
            }
            if size > inode.size() && inode.kind() == Some(FileType::Regular) {
                befores.extend(init(self.fill_last_run(op, ino, size)?));
            }
        }
        // Filling a run has changed the pointers.
        let old = self.load(ino)?;
        let mut new = Inode(old.0.clone());
        new.apply(change);
        let differs = |at: &usize| old.0[*at] != new.0[*at];
        let first = (0..field::RUNS as usize).find(differs).unwrap_or(0);
        let last = (0..field::RUNS as usize).rfind(differs).unwrap_or(0);
        self.set(op, place(ino), first as u32, &new.0[first..=last], &befores)
    }

    /// Marks an inode as free. The change comes after the removal of its names.
    fn clear(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<()> {
        self.load(ino)?;
        self.set(op, place(ino), 0, &[0; BLOCK as usize], befores)?;
        self.state.lock().free_inodes += 1;
        Ok(())
    }
}
