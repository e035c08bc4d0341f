//! [`Format`]: what a block file system's format must be able to do, in steps so small
//! that each is one change or a few (L2FS in section 2.4 of the Featherstitch chapter).

use medium::block::Lba;
use patch::{Before, Op, PatchId, Store, StoreError};
use smallvec::SmallVec;
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

/// What a block is for; formats place the kinds differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Contents of a regular file or a long symbolic link.
    Data,
    /// Contents of a directory.
    Directory,
    /// Pointers to blocks.
    Indirect,
    /// Extended attributes.
    Attributes,
}

/// A block taken from the free ones. Nothing points to it yet.
#[derive(Debug, Clone)]
pub struct Allocated {
    /// Which one.
    pub lba: Lba,
    /// Marks it as used: must be durable before a pointer to it is (or, after a crash,
    /// it has an owner and is free).
    pub bit: PatchId,
    /// What removed the last pointers to it, if that is not durable yet: must be durable
    /// before the block's new contents are (`NullifyBeforeReuse`).
    pub reused_after: Option<PatchId>,
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

/// A name found in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its inode.
    pub ino: Ino,
    /// The patch that wrote the entry, if it is not durable yet. If removing the name
    /// [merges](patch::Patched::merged) into it, the name was never on the medium.
    pub made_by: Option<PatchId>,
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

/// Blocks that a file has lost.
#[derive(Debug, Clone, Default)]
pub struct Detached {
    /// The blocks, data and indirect ones alike, each with the removal of the (last)
    /// pointer to it. They are still marked as used: [`Format::free_block`] is next.
    pub blocks: Vec<(Lba, Removed)>,
    /// More are left in the range: call again (bounds the size of one operation).
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
    /// Holes of a file are filled.
    Fill {
        /// The file.
        ino: Ino,
        /// The first of them.
        from: u64,
        /// What [`Format::room_for`] says that it takes.
        blocks: u64,
    },
    /// [`Format::detach_blocks`], and each [`Format::free_block`] after it.
    Cut {
        /// The file.
        ino: Ino,
        /// The first block that goes.
        from: u64,
        /// The block after the last.
        to: u64,
        /// Most blocks that go at once.
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
///
/// Steps take the patches that must come before them and return those that stand for
/// them. *Inside* a step the format sees to its own order (an indirect block is
/// initialised before it is pointed to); *between* steps the caller does.
#[allow(clippy::missing_errors_doc)] // FormatError documents them once
pub trait Format: Send + Sync {
    /// A name such as `ext2`.
    fn name(&self) -> &'static str;
    /// What it is stored on.
    fn store(&self) -> &dyn Store;
    /// Bytes in a block of a file; the store's block size.
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

    /// Finds a name (not `.` or `..`).
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Found>>;
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
    /// Adds a name that does not exist.
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

    /// Where block `index` of a file is; `None` for a hole.
    fn block_of(&self, ino: Ino, index: u64) -> Result<Option<Lba>>;
    /// The first index at or after `index`, and below `end`, that has a block.
    fn next_block(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>>;
    /// The first index at or after `index`, and below `end`, that has no block.
    fn next_hole(&self, ino: Ino, index: u64, end: u64) -> Result<Option<u64>>;
    /// Most distinct blocks that attaching or detaching `blocks` neighbouring blocks of one
    /// file changes, these blocks themselves, its inode and the bitmaps included: for
    /// [`Store::begin`].
    fn cost(&self, blocks: u64) -> u32;
    /// How many free blocks it takes to fill the holes among blocks `from..to` of a file,
    /// indirect blocks included.
    fn room_for(&self, ino: Ino, from: u64, to: u64) -> Result<u64>;
    /// Takes a free block for block `index` of a file.
    fn allocate_block(&self, op: &Op, ino: Ino, index: u64, purpose: Purpose) -> Result<Allocated>;
    /// Points a file at a block. `befores` must hold its initialisation; the bit is the
    /// format's to add. New indirect blocks are initialised before they are pointed to.
    fn attach_block(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        block: &Allocated,
        befores: &[Before],
    ) -> Result<PatchId>;
    /// Removes the pointers to blocks `from..to` of a file, and to indirect blocks that
    /// have none left, from the end backwards, at most `budget` of them. Also takes them off
    /// the inode's count.
    fn detach_blocks(
        &self,
        op: &Op,
        ino: Ino,
        from: u64,
        to: u64,
        budget: u32,
        befores: &[Before],
    ) -> Result<Detached>;
    /// Marks a block as free, after the removal of its pointers.
    fn free_block(&self, op: &Op, lba: Lba, removed: Removed) -> Result<()>;

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
