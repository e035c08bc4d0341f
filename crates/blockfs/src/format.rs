//! [`Format`]: what a block file system's format must be able to do, in steps so small
//! that each is one change or a few (L2FS in section 2.4 of the Featherstitch chapter).

use crate::seeded::{Bug, hit};
use medium::block::Lba;
use patch::{Before, Change, Content, Op, PatchId, Rule, Store, StoreError};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Attr, Cookie, Ctx, DirEntry, Errno, FileType, Ino, StatFs, Timestamp};

/// Why a step failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FormatError {
    /// Storage failed or is full of what cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No free block or inode, or a table is full.
    #[error("no space left")]
    NoSpace,
    /// The image is damaged. Names the structure, where it is and what is wrong.
    #[error("{0}; run fsck")]
    Corrupt(String),
    /// The format cannot express it (a size, a number of links, a name, a time).
    #[error("{0}")]
    Limit(Errno),
}

impl FormatError {
    /// What the caller of the system call sees.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Store(StoreError::Failed(_)) => Errno::ROFS,
            Self::Store(_) => Errno::IO,
            Self::Corrupt(_) => Errno::UCLEAN,
            Self::NoSpace => Errno::NOSPC,
            Self::Limit(errno) => *errno,
        }
    }

    /// Whether an [attempt](patch::attempt) stops here, to be repeated.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Store(StoreError::Absent))
    }
}

/// Result of a step.
pub type Result<T> = std::result::Result<T, FormatError>;

/// The patches that stand for what a step has done: whoever must come after the step
/// comes after all of them. Rarely more than two.
pub type Heads = SmallVec<[PatchId; 2]>;

/// What must be durable before a step.
pub type Befores = SmallVec<[Before; 4]>;

/// These patches first, for this reason.
pub fn after(rule: Rule, patches: impl IntoIterator<Item = PatchId>) -> Befores {
    let before = |patch| Before { patch, rule };
    patches.into_iter().map(before).collect()
}

/// A block taken from the free ones. Nothing points to it yet.
///
/// Formats use it inside their steps, so that all of them keep the same order.
#[derive(Debug, Clone)]
pub struct Allocated {
    /// The block.
    pub lba: Lba,
    /// Marks the block as used: must be durable before a pointer to it is. Else a block that
    /// has an owner could be free after a crash.
    pub bit: PatchId,
    /// Removed the last pointers to the block, and is not durable yet.
    pub reused_after: Option<PatchId>,
}

impl Allocated {
    /// The removal of the last pointers, which the block's new contents come after. Else the
    /// former owner could have them after a crash.
    pub fn before_contents(&self) -> Option<Before> {
        let rule = Rule::NullifyBeforeReuse;
        self.reused_after.map(|patch| Before { patch, rule })
    }

    /// Fills the block with contents of a file, all of it.
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
    /// The contents.
    pub patch: PatchId,
    /// What a pointer to the block comes after, besides [`Allocated::bit`].
    pub before_pointer: Option<Before>,
}

/// Bytes of a block.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Where in the block.
    pub at: u32,
    /// The bytes: not empty, and within the block.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Bytes from the start of the block on.
    pub fn from_start(bytes: &'a [u8]) -> Self {
        Self { at: 0, bytes }
    }
}

/// A block of a file that was written.
#[derive(Debug, Clone)]
pub struct Written {
    /// Stands for the bytes and for the pointers to them: a size that covers the bytes comes
    /// after it.
    pub patch: PatchId,
    /// The contents of new blocks. A store that drops the order of changes can make `patch`
    /// durable before them.
    pub filled: Heads,
}

/// Fields of an inode to change in one step; `None` leaves one as it is.
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
    /// Whether it changes nothing but times.
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
    /// Of device nodes, else 0.
    pub rdev: u32,
    /// All three times.
    pub now: Timestamp,
}

/// What a step that removes or changes something did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The change; what relies on the thing being gone comes after it.
    pub patch: PatchId,
    /// The thing was never on the medium, and never will be: nothing need wait for its
    /// removal.
    pub never_stored: bool,
}

impl Removed {
    /// What must wait until the thing is gone waits for this: for nothing, if it was never there.
    pub fn before_reuse(self) -> Option<Before> {
        let rule = Rule::NullifyBeforeReuse;
        let patch = self.patch;
        (!self.never_stored).then_some(Before { patch, rule })
    }
}

/// Blocks that a file has lost.
#[derive(Debug, Clone, Default)]
pub struct Freed {
    /// The removals of the pointers to them.
    pub removed: Heads,
    /// More are left in the range: call again. This bounds the size of one operation.
    pub more: bool,
}

/// Steps that a call will make after its first change.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    /// [`Format::add_name`] of a name that was looked for.
    AddName {
        /// Where.
        dir: Ino,
        /// Which.
        name: &'a [u8],
    },
    /// [`Format::write_block`] of several blocks.
    Write {
        /// The file.
        ino: Ino,
        /// The first of them.
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
        /// Most blocks that are freed at once.
        budget: u32,
    },
    /// The end of an inode: [`Cut`](Self::Cut) of all blocks, and [`Format::free_inode`].
    Free {
        /// Which.
        ino: Ino,
        /// Most blocks that go at once.
        budget: u32,
    },
    /// [`Format::set_parent`].
    MoveUp {
        /// The directory whose `..` changes.
        dir: Ino,
    },
}

/// A format. Callers hold the locks: changes of one inode, one directory and the
/// allocators do not run at once (see `BlockFs`).
///
/// A step that fails with [`FormatError::NoSpace`] or [`FormatError::Limit`] has changed nothing.
/// Steps that remove or free something, and changes of inodes that do not grow, need no room: a
/// format that never overwrites keeps some back for them.
///
/// Steps take the patches that must come before them and return those that stand for
/// them. *Inside* a step the format sees to its own order (an indirect block is
/// initialised before it is pointed to); *between* steps the caller does.
#[allow(clippy::missing_errors_doc)] // FormatError documents them once
pub trait Format: Send + Sync {
    /// What it is stored on.
    fn store(&self) -> &dyn Store;
    /// Bytes in a block: the smallest part of a file that has a place of its own, and the
    /// store's block size. Of a format with fragments, a fragment.
    fn block_bytes(&self) -> u32;
    /// Largest file in bytes.
    fn max_size(&self) -> u64;
    /// Most names of one inode. Link counts can be higher by one, during a rename.
    fn max_links(&self, kind: FileType) -> u32;
    /// Longest symbolic-link target that [`set_inline_target`](Self::set_inline_target) takes.
    fn max_inline_target(&self) -> usize;
    /// Longest symbolic-link target: at most a block.
    fn max_target(&self) -> usize;
    /// Whether a caller may use the blocks that are kept for the super-user and his like.
    fn may_use_reserve(&self, cx: &Ctx) -> bool;
    /// Whether blocks are kept from the steps that follow. Off, unless a change is under way.
    fn keep_reserve(&self, on: bool);
    /// Blocks that are kept for the super-user and his like.
    fn reserve_blocks(&self) -> u64;
    /// Space and inodes.
    fn statfs(&self) -> Result<StatFs>;

    /// Whether the image had been unmounted properly before this mount. Else blocks may lie
    /// past the sizes of files, and directories may have several names.
    fn was_clean(&self) -> bool;

    /// The root directory's number in the format (the trait `FileSystem` calls it 1).
    fn root(&self) -> Ino;

    // --- inodes -----------------------------------------------------------------

    /// Reads an inode; `None` if it is not in use.
    fn inode(&self, ino: Ino) -> Result<Option<Attr>>;
    /// Takes a free inode near directory `dir` and initialises it. Returned: its number,
    /// and what a name for it must come after (`InitialiseBeforePoint`).
    fn allocate_inode(&self, op: &Op, dir: Ino, new: &NewInode) -> Result<(Ino, Heads)>;
    /// Gives a new inode what the directory `dir` hands down besides owner and permissions;
    /// returns what a name for it must come after.
    fn inherit(&self, op: &Op, dir: Ino, ino: Ino) -> Result<Heads>;
    /// Changes fields in one patch; permission bits may take more.
    fn change_inode(
        &self,
        op: &Op,
        ino: Ino,
        change: &InodeChange,
        befores: &[Before],
    ) -> Result<PatchId>;
    /// Clears an inode without names and blocks, then gives it back, in this order. What
    /// hangs off it besides blocks of data (attributes) goes with it.
    fn free_inode(&self, op: &Op, ino: Ino, befores: &[Before], never_stored: bool) -> Result<()>;

    // --- names ------------------------------------------------------------------

    /// The inode that a name leads to (not `.` or `..`).
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>>;
    /// Lists in the order of stable cookies, `.` and `..` included; `sink` returns false
    /// to refuse an entry and stop.
    fn list(
        &self,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// Whether a directory has no names but `.` and `..`.
    fn is_empty(&self, dir: Ino) -> Result<bool>;
    /// Gives a new directory its first contents (`.` and `..`); returns what a name for
    /// it must come after.
    fn init_directory(&self, op: &Op, dir: Ino, parent: Ino) -> Result<Heads>;
    /// Adds a name that does not exist. `ENAMETOOLONG` as [`FormatError::Limit`] if it is longer
    /// than [`StatFs::name_max`].
    fn add_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        befores: &[Before],
    ) -> Result<PatchId>;
    /// Makes an existing name mean another inode, in one atomic change.
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
    /// Who a directory's `..` is.
    fn parent(&self, dir: Ino) -> Result<Ino>;
    /// Makes `..` mean another directory.
    fn set_parent(&self, op: &Op, dir: Ino, parent: Ino, befores: &[Before]) -> Result<PatchId>;

    // --- blocks of files --------------------------------------------------------

    /// Where block `index` of a file is; `None` for a hole. Valid until the next change.
    fn block_of(&self, ino: Ino, index: u64) -> Result<Option<Lba>>;
    /// The first index at or after `index`, and below `end`, that has a block.
    fn next_block(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>>;
    /// The first index at or after `index`, and below `end`, that has no block.
    fn next_hole(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>>;
    /// Most distinct blocks that writing or freeing `blocks` neighbouring blocks of one
    /// file changes, these blocks themselves, its inode and the bitmaps included: for
    /// [`Store::begin`].
    fn cost(&self, blocks: u64) -> u32;
    /// Free blocks that it takes to write blocks `from..to` of a file, pointers to them
    /// included. A format that overwrites in place counts the holes only.
    fn room_for(&self, ino: Ino, from: u64, to: u64) -> Result<u64>;
    /// Stores a piece of block `index` of a file, within the largest size. A hole gets a block,
    /// whose other bytes are zeros. The size stays as it is.
    ///
    /// The block may move, and so may others of the file: a format that never overwrites
    /// writes them elsewhere, and one with fragments may need a place for more of them.
    fn write_block(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        piece: Piece<'_>,
        befores: &[Before],
    ) -> Result<Written>;
    /// Frees blocks of a file from the end of a range backwards, at most `budget` of them, and
    /// indirect blocks that have no pointers left: removes the pointers, takes the blocks off
    /// the inode's count, then marks them as free.
    fn free_blocks(
        &self,
        op: &Op,
        ino: Ino,
        blocks: Range<u64>,
        budget: u32,
        befores: &[Before],
    ) -> Result<Freed>;

    // --- symbolic links, attributes ----------------------------------------------

    /// The target, if it is kept in the inode.
    fn inline_target(&self, ino: Ino) -> Result<Option<Vec<u8>>>;
    /// Keeps a target of at most `max_inline_target` bytes in a new inode (and sets the
    /// size); returns what a name for it must come after.
    fn set_inline_target(&self, op: &Op, ino: Ino, target: &[u8]) -> Result<PatchId>;
    /// All extended attributes: full names (`user.x`) and values.
    fn attributes(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Replaces all extended attributes; an empty slice removes them, and gives back
    /// what held them. `E2BIG`/`ENOSPC` as [`FormatError::Limit`] if they do not fit.
    fn set_attributes(&self, op: &Op, ino: Ino, all: &[(Vec<u8>, Vec<u8>)]) -> Result<Heads>;

    // --- orphans -----------------------------------------------------------------

    /// Notes that an inode has lost its last name but is still open; where operations are
    /// atomic, in such a way that a mount after a crash finds it.
    fn add_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads>;
    /// Takes the note back.
    fn remove_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads>;
    /// Whether an inode is so noted.
    fn is_orphan(&self, ino: Ino) -> Result<bool>;
    /// All inodes so noted: at mount, what a crash left.
    fn orphans(&self) -> Result<Vec<Ino>>;

    /// During an [attempt](patch::attempt), before a call's first change: fails as
    /// [`Store::ready`] does if a step would wait for a device, as far as that can be told.
    /// Steps that fail for want of a block while they are the first have changed nothing.
    fn ready(&self, next: Next<'_>) -> Result<()>;

    /// Marks the image, durably, as one in which damage was found. Callers hold no lock.
    fn mark_damaged(&self) -> Result<()>;
    /// Compares what is kept in memory with what is stored. Empty: they agree.
    fn audit(&self) -> Vec<vfs::check::Finding>;
    /// Writes what is kept in memory only (free counts), so that the image
    /// is right when all is durable. Called before `sync_all`.
    fn settle(&self, op: &Op) -> Result<()>;
    /// Unmounts: makes everything durable, then marks the image as clean, durably. The
    /// format is not used for changes afterwards.
    fn close(&self) -> Result<()>;
}
