//! [`Format`]: the steps of a block file system's format. Each step is one change or a few (L2FS in
//! section 2.4 of the Featherstitch chapter).

use crate::seeded::{Bug, hit};
use medium::block::Lba;
use patch::{Before, Change, Content, Op, PatchId, Rule, Store, StoreError};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Attr, Cookie, Ctx, DirEntry, Errno, FileType, Ino, StatFs, Timestamp};

/// Why a step failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FormatError {
    /// Storage failed, or is full of changes that cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No free block or inode, or a table is full.
    #[error("no space left")]
    NoSpace,
    /// The image is damaged. The text names the structure, its place and the damage.
    #[error("{0}; run fsck")]
    Corrupt(String),
    /// The format cannot express it (a size, a number of links, a name, a time).
    #[error("{0}")]
    Limit(Errno),
}

impl FormatError {
    /// The error of the system call.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Store(StoreError::Failed(_)) => Errno::ROFS,
            Self::Store(_) => Errno::IO,
            Self::Corrupt(_) => Errno::UCLEAN,
            Self::NoSpace => Errno::NOSPC,
            Self::Limit(errno) => *errno,
        }
    }

    /// Whether an [attempt](patch::attempt) stops with this error, to be repeated.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Store(StoreError::Absent))
    }
}

/// Result of a step.
pub type Result<T> = std::result::Result<T, FormatError>;

/// The patches that stand for a step, rarely more than two. A change that must come after the step
/// comes after all of them.
pub type Heads = SmallVec<[PatchId; 2]>;

/// The patches that must be durable before a step.
pub type Befores = SmallVec<[Before; 4]>;

/// Makes befores of these patches, with this reason.
pub fn after(rule: Rule, patches: impl IntoIterator<Item = PatchId>) -> Befores {
    let before = |patch| Before { patch, rule };
    patches.into_iter().map(before).collect()
}

/// A block taken from the free ones, to which nothing points yet.
///
/// Formats use it inside their steps, so that all formats keep the same order.
#[derive(Debug, Clone)]
pub struct Allocated {
    /// The block.
    pub lba: Lba,
    /// Marks the block as used, and must be durable before a pointer to the block. Otherwise a
    /// block with an owner could be free after a crash.
    pub bit: PatchId,
    /// The removal of the last pointers to the block, unless it is durable.
    pub reused_after: Option<PatchId>,
}

impl Allocated {
    /// The removal of the last pointers, before the block's new contents. Otherwise the former
    /// owner could have these contents after a crash.
    pub fn before_contents(&self) -> Option<Before> {
        let rule = Rule::NullifyBeforeReuse;
        self.reused_after.map(|patch| Before { patch, rule })
    }

    /// Fills the whole block with contents of a file.
    pub fn fill(
        &self,
        store: &dyn Store,
        op: &Op,
        content: Content,
        bytes: &[u8],
    ) -> Result<Filled> {
        let reused = self.before_contents();
        let reused = reused.filter(|_| !hit(Bug::ReuseBeforeNullify));
        let change = Change::Bytes { at: 0, bytes };
        let patch = store
            .change(op, self.lba, content, change, reused.as_slice())?
            .id;
        let rule = Rule::InitialiseBeforePoint;
        let before = Before { patch, rule };
        Ok(Filled {
            patch,
            before_pointer: Some(before).filter(|_| !hit(Bug::PointBeforeFill)),
        })
    }
}

/// A new block that has its contents.
#[derive(Debug, Clone, Copy)]
pub struct Filled {
    /// The patch with the contents.
    pub patch: PatchId,
    /// A before of each pointer to the block, besides [`Allocated::bit`].
    pub before_pointer: Option<Before>,
}

/// Bytes of a block.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The offset in the block, in bytes.
    pub at: u32,
    /// The bytes: not empty, and within the block.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Makes a piece at the start of a block.
    pub fn from_start(bytes: &'a [u8]) -> Self {
        Self { at: 0, bytes }
    }
}

/// A block of a file that was written.
#[derive(Debug, Clone)]
pub struct Written {
    /// The patch that stands for the bytes and for the pointers to them. A size that covers the
    /// bytes comes after it.
    pub patch: PatchId,
    /// The patches with the contents of new blocks. A store that drops the order of changes can
    /// make `patch` durable before them.
    pub filled: Heads,
}

/// Fields of an inode to change in one step. `None` keeps a field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // as in `Attr`
pub struct InodeChange {
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub nlink: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
}

impl InodeChange {
    /// Whether only times change.
    pub fn is_times(&self) -> bool {
        let others = Self {
            atime: None,
            mtime: None,
            ctime: None,
            ..*self
        };
        others == Self::default()
    }
}

/// An inode to be made.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // as in `Attr`
pub struct NewInode {
    pub kind: FileType,
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// The device number of a device node, else 0.
    pub rdev: u32,
    /// The access, modification and change time.
    pub now: Timestamp,
}

/// The result of a step that removes or changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The change. Each change that relies on the removal comes after it.
    pub patch: PatchId,
    /// The removed thing was never on the medium and never will be. Nothing needs to wait for its
    /// removal.
    pub never_stored: bool,
}

impl Removed {
    /// The before of a reuse of the thing's place. `None` if the thing was never stored.
    pub fn before_reuse(self) -> Option<Before> {
        let rule = Rule::NullifyBeforeReuse;
        let patch = self.patch;
        (!self.never_stored).then_some(Before { patch, rule })
    }
}

/// The result of freeing blocks of a file.
#[derive(Debug, Clone, Default)]
pub struct Freed {
    /// The removals of the pointers to the blocks.
    pub removed: Heads,
    /// Blocks are left in the range: call again. This bounds the size of one operation.
    pub more: bool,
}

/// A step that a call will make after its first change.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    /// [`Format::add_name`] of a name that [`Format::find`] did not find.
    AddName {
        /// The directory.
        dir: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// [`Format::write_block`] of several blocks.
    Write {
        /// The file.
        ino: Ino,
        /// The first block.
        from: u64,
        /// The result of [`Format::room_for`].
        blocks: u64,
    },
    /// [`Format::free_blocks`].
    Cut {
        /// The file.
        ino: Ino,
        /// The first block to free.
        from: u64,
        /// The block after the last.
        to: u64,
        /// Most blocks that one step frees.
        budget: u32,
    },
    /// The end of an inode: [`Cut`](Self::Cut) of all blocks, and [`Format::free_inode`].
    Free {
        /// The inode.
        ino: Ino,
        /// Most blocks that one step frees.
        budget: u32,
    },
    /// [`Format::set_parent`].
    MoveUp {
        /// The directory whose `..` changes.
        dir: Ino,
    },
}

/// The steps of a format. Callers hold the locks: changes of one inode, one directory and the
/// allocators do not run at once (see `BlockFs`).
///
/// A step that fails with [`FormatError::NoSpace`] or [`FormatError::Limit`] has changed nothing.
/// Steps that remove or free something need no room, nor do changes of inodes that do not grow. A
/// format that never overwrites reserves room for them.
///
/// Steps take the patches that must come before them and return those that stand for them. *Inside*
/// a step the format keeps the order, such as initialising an indirect block before a pointer to
/// it. *Between* steps the caller keeps the order.
#[allow(clippy::missing_errors_doc)] // FormatError documents them once
pub trait Format: Send + Sync {
    /// The store of the format.
    fn store(&self) -> &dyn Store;
    /// Bytes in a block: the smallest part of a file that has a place of its own, and the store's
    /// block size. In a format with fragments, this is a fragment.
    fn block_bytes(&self) -> u32;
    /// Largest file in bytes.
    fn max_size(&self) -> u64;
    /// Most names of one inode. Link counts can be higher by one, during a rename.
    fn max_links(&self, kind: FileType) -> u32;
    /// Longest symbolic-link target that [`set_inline_target`](Self::set_inline_target) takes.
    fn max_inline_target(&self) -> usize;
    /// Longest symbolic-link target in bytes, at most a block.
    fn max_target(&self) -> usize;
    /// Whether a caller may use the blocks that are reserved for the super-user.
    fn may_use_reserve(&self, cx: &Ctx) -> bool;
    /// Keeps the reserved blocks from the steps that follow. It is off unless a change is under
    /// way.
    fn keep_reserve(&self, on: bool);
    /// Number of blocks that are reserved for the super-user.
    fn reserve_blocks(&self) -> u64;
    /// Counts of blocks and inodes.
    fn statfs(&self) -> Result<StatFs>;

    /// Whether the image was unmounted cleanly before this mount. Otherwise blocks may lie past the
    /// sizes of files, and directories may have several names.
    fn was_clean(&self) -> bool;

    /// The root directory's number in the format (the trait `FileSystem` calls it 1).
    fn root(&self) -> Ino;

    // --- inodes -----------------------------------------------------------------

    /// Reads an inode; `None` if it is not in use.
    fn inode(&self, ino: Ino) -> Result<Option<Attr>>;
    /// Takes a free inode near directory `dir` and initialises it. Returns its number, and the
    /// befores of a name for it (`InitialiseBeforePoint`).
    fn allocate_inode(&self, op: &Op, dir: Ino, new: &NewInode) -> Result<(Ino, Heads)>;
    /// Gives a new inode what it inherits from the directory `dir` besides owner and permissions.
    /// Returns the befores of a name for it.
    fn inherit(&self, op: &Op, dir: Ino, ino: Ino) -> Result<Heads>;
    /// Changes fields in one patch. Permission bits may take more patches.
    fn change_inode(
        &self,
        op: &Op,
        ino: Ino,
        change: &InodeChange,
        befores: &[Before],
    ) -> Result<PatchId>;
    /// Clears an inode without names and blocks, then marks it as free, in this order. Its
    /// attributes are freed with it.
    fn free_inode(&self, op: &Op, ino: Ino, befores: &[Before], never_stored: bool) -> Result<()>;

    // --- names ------------------------------------------------------------------

    /// Finds the inode that a name leads to. The name is not `.` or `..`.
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>>;
    /// Lists in the order of stable cookies, `.` and `..` included. `sink` returns false to refuse
    /// an entry and stop.
    fn list(
        &self,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// Whether a directory has no names but `.` and `..`.
    fn is_empty(&self, dir: Ino) -> Result<bool>;
    /// Gives a new directory its first contents (`.` and `..`). Returns the befores of a name for
    /// it.
    fn init_directory(&self, op: &Op, dir: Ino, parent: Ino) -> Result<Heads>;
    /// Adds a name that does not exist. Fails with `ENAMETOOLONG` as [`FormatError::Limit`] if it
    /// is longer than [`StatFs::name_max`].
    fn add_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        befores: &[Before],
    ) -> Result<PatchId>;
    /// Points an existing name at another inode, in one atomic change.
    fn replace_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        befores: &[Before],
    ) -> Result<Removed>;
    /// Removes a name.
    fn remove_name(&self, op: &Op, dir: Ino, name: &[u8], befores: &[Before]) -> Result<Removed>;
    /// The inode that a directory's `..` leads to.
    fn parent(&self, dir: Ino) -> Result<Ino>;
    /// Points `..` at another directory.
    fn set_parent(&self, op: &Op, dir: Ino, parent: Ino, befores: &[Before]) -> Result<PatchId>;

    // --- blocks of files --------------------------------------------------------

    /// The place of block `index` of a file, `None` for a hole. It is valid until the next change.
    fn block_of(&self, ino: Ino, index: u64) -> Result<Option<Lba>>;
    /// The blocks with the pointers on the path to block `index` of a file, for drawings.
    fn indirect_blocks(&self, _ino: Ino, _index: u64) -> Result<SmallVec<[Lba; 3]>> {
        Ok(SmallVec::new())
    }
    /// The first index at or after `index`, and below `end`, that has a block.
    fn next_block(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>>;
    /// The first index at or after `index`, and below `end`, that has no block.
    fn next_hole(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>>;
    /// Most distinct blocks that writing or freeing `blocks` neighbouring blocks of one file
    /// changes, for [`Store::begin`]. These blocks, the inode and the bitmaps are included.
    fn cost(&self, blocks: u64) -> u32;
    /// Free blocks that a write of blocks `from..to` of a file takes, pointers to them included. A
    /// format that overwrites in place counts the holes only.
    fn room_for(&self, ino: Ino, from: u64, to: u64) -> Result<u64>;
    /// Stores a piece of block `index` of a file, within the largest size. A hole gets a block,
    /// whose other bytes are zeros. The size does not change.
    ///
    /// The block and others of the file may move: a format that never overwrites writes them
    /// elsewhere, and one with fragments may need a larger run.
    fn write_block(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        piece: Piece<'_>,
        befores: &[Before],
    ) -> Result<Written>;
    /// Frees at most `budget` blocks of a file from the end of a range backwards, and indirect
    /// blocks without pointers. The step removes the pointers, subtracts the blocks from the
    /// inode's count, then marks them as free.
    fn free_blocks(
        &self,
        op: &Op,
        ino: Ino,
        blocks: Range<u64>,
        budget: u32,
        befores: &[Before],
    ) -> Result<Freed>;

    // --- symbolic links, attributes ----------------------------------------------

    /// The target of a symbolic link, if it is kept in the inode.
    fn inline_target(&self, ino: Ino) -> Result<Option<Vec<u8>>>;
    /// Stores a target of at most `max_inline_target` bytes in a new inode, and sets the size.
    /// Returns the before of a name for it.
    fn set_inline_target(&self, op: &Op, ino: Ino, target: &[u8]) -> Result<PatchId>;
    /// All extended attributes, as full names (`user.x`) and values.
    fn attributes(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// The block with an inode's extended attributes, if they have one of their own. For drawings.
    fn attribute_block(&self, _ino: Ino) -> Result<Option<Lba>> {
        Ok(None)
    }
    /// Replaces all extended attributes. An empty slice removes them and frees their room. Fails
    /// with `E2BIG` or `ENOSPC` as [`FormatError::Limit`] if they do not fit.
    fn set_attributes(&self, op: &Op, ino: Ino, all: &[(Vec<u8>, Vec<u8>)]) -> Result<Heads>;

    // --- orphans -----------------------------------------------------------------

    /// Records an inode that has lost its last name but is still open. Where operations are atomic,
    /// a mount after a crash finds the record.
    fn add_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads>;
    /// Removes the record of an orphan.
    fn remove_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads>;
    /// Whether an inode is recorded as an orphan.
    fn is_orphan(&self, ino: Ino) -> Result<bool>;
    /// All recorded orphans. At mount, these are the ones that a crash left.
    fn orphans(&self) -> Result<Vec<Ino>>;

    /// Fails as [`Store::ready`] does if a step would wait for a device, as far as the format can
    /// determine that. It is called during an [attempt](patch::attempt), before a call's first
    /// change. A first step that fails because a block is absent has changed nothing.
    fn ready(&self, next: Next<'_>) -> Result<()>;

    /// Marks the image durably as damaged. Callers hold no lock.
    fn mark_damaged(&self) -> Result<()>;
    /// Compares the state in memory with the stored one. The result is empty if they agree.
    fn audit(&self) -> Vec<vfs::check::Finding>;
    /// Writes what is kept in memory only (free counts), so that the image is right when all is
    /// durable. It is called before `sync_all`.
    fn write_back(&self, op: &Op) -> Result<()>;
    /// Unmounts: makes everything durable, then marks the image durably as clean. No change
    /// follows.
    fn close(&self) -> Result<()>;
}
