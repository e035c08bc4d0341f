//! [`Store`]: block storage whose changes carry their order. File systems write to it. Layers
//! (journal, async, trace) stand on a store and are stores.

use crate::PatchId;
use crate::groups::Sets;
use medium::Rule;
use medium::block::{BlockError, Buffer, Lba};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A patch that must be durable first, and the reason. A patch that is durable already
/// orders nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// The patch that must be durable first.
    pub patch: PatchId,
    /// The reason for the order.
    pub rule: Rule,
}

/// The kind of bytes in a change; journals treat the two kinds differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// Metadata: pointers, bitmaps, inodes, directories, attributes.
    Metadata,
    /// The contents of a regular file.
    Data,
}

/// One change of one block.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Writes bytes at an offset. A change of the whole block does not read the old
    /// contents.
    Bytes {
        /// Offset in the block, in bytes.
        at: u32,
        /// The new bytes; not empty, and within the block.
        bytes: &'a [u8],
    },
    /// Flips the bits that are set in `mask`, in the little-endian 32-bit word at this
    /// offset. Flips of different bits of one word do not depend on each other.
    Flip {
        /// Offset in the block, in bytes; a multiple of 4.
        at: u32,
        /// Bits to flip; not 0.
        mask: u32,
    },
}

/// The patch that a change is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patched {
    /// The patch that holds the change; in a journal, the transaction.
    pub id: PatchId,
    /// The change joined an existing patch, so both reach the medium in one write. If that
    /// patch added something that this change removes, the medium never shows it.
    pub merged: bool,
}

/// The right to change a store: one operation of a file system. Between
/// [`Store::begin`] and [`Store::end`] the store guarantees room, and a journal keeps
/// all changes in one transaction. Not nested; changes of concurrent operations may
/// share a transaction.
#[derive(Debug)]
#[must_use = "give it back with Store::end"]
pub struct Op {
    /// For use by the store: a cache and a journal keep the number of reserved blocks here.
    pub(crate) token: u64,
    pub(crate) caller: Caller,
}

impl Op {
    /// The process that requested the operation.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }
}

/// A process that requests changes. Layers receive it with every change of an operation;
/// patches do not keep it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Id of the process's user.
    pub uid: u32,
    /// Id of the process's group.
    pub gid: u32,
    /// Id of the process.
    pub pid: u32,
    /// The sets that the changes join ([`Groups`](crate::Groups)).
    pub sets: Sets,
}

impl Caller {
    /// The file system itself: it mounts, frees orphans, and commits.
    pub const SYSTEM: Self = Self {
        uid: 0,
        gid: 0,
        pid: 0,
        sets: Sets::NONE,
    };
}

/// Why a call of a store failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// An earlier write failed, so the store writes nothing more.
    #[error("read-only since a write failed: {0}")]
    Failed(Arc<BlockError>),
    /// A patch to be synced waits for an empty patch that its owner holds.
    #[error("{patches} changes wait for a transaction that is still open")]
    Held {
        /// Number of patches that the sync still waited for.
        patches: usize,
    },
    /// The operation is larger than the log or the cache.
    #[error("an operation of {blocks} blocks does not fit the {what} of {limit}")]
    TooLarge {
        /// Blocks that the operation would change.
        blocks: u32,
        /// `journal`, `cache` or `reservation`.
        what: &'static str,
        /// Most blocks that fit there.
        limit: u32,
    },
    /// A block is not in memory, during an [attempt](crate::attempt).
    #[error("a block is not in memory")]
    Absent,
}

/// The identity of a graph of patches. Patches of one graph can wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphId(u64);

impl GraphId {
    /// An id that no other graph of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Declares [`Store`], and [`StoreLayer`] with the same methods, which forwards each of them.
macro_rules! store {
    (
        $(#[$about:meta])*
        pub trait Store: Send + Sync {$(
            $(#[$doc:meta])*
            fn $method:ident(&self $(, $arg:ident: $type:ty)* $(,)?) $(-> $result:ty)?;
        )*}
    ) => {
        $(#[$about])*
        #[allow(clippy::missing_errors_doc)] // StoreError documents them once
        pub trait Store: Send + Sync {$(
            $(#[$doc])*
            fn $method(&self $(, $arg: $type)*) $(-> $result)?;
        )*}

        /// A store that stands on another store. Each method forwards to the store below;
        /// a layer overrides those that it changes. Every layer is a [`Store`].
        #[allow(clippy::missing_errors_doc)]
        pub trait StoreLayer: Send + Sync {
            /// The store below.
            type Below: Store + ?Sized;

            /// The store below.
            fn below(&self) -> &Self::Below;
            $(
                #[doc = concat!("As [`Store::", stringify!($method), "`].")]
                fn $method(&self $(, $arg: $type)*) $(-> $result)? {
                    self.below().$method($($arg),*)
                }
            )*
        }

        impl<L: StoreLayer> Store for L {$(
            fn $method(&self $(, $arg: $type)*) $(-> $result)? {
                StoreLayer::$method(self $(, $arg)*)
            }
        )*}

        impl<S: Store + ?Sized> Store for Arc<S> {$(
            fn $method(&self $(, $arg: $type)*) $(-> $result)? {
                (**self).$method($($arg),*)
            }
        )*}
    };
}

store! {
    /// Block storage with ordered changes. Any number of threads may call it. A file system
    /// uses its own locks to hide incomplete operations from other threads.
    ///
    /// # Guarantee
    /// Every crash state is closed under "before": it contains a change only with all its
    /// befores.
    pub trait Store: Send + Sync {
        /// Bytes in a block.
        fn block_bytes(&self) -> u32;
        /// Number of blocks.
        fn blocks(&self) -> u64;

        /// Returns a snapshot of a block, with all changes. If the caller keeps it while the
        /// block is changed, the change copies the block.
        fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError>;
        /// As [`read`](Store::read), but returns `None` instead of waiting for a device.
        fn cached(&self, lba: Lba) -> Option<Arc<Buffer>>;
        /// Hints that these blocks will be read soon.
        fn prefetch(&self, lba: Lba, blocks: u64);
        /// Fails during an [attempt](crate::attempt) unless all these blocks are in memory, so
        /// that the attempt stops before its first change. Otherwise does nothing.
        fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError>;

        /// Most blocks that one operation can change.
        fn max_op_blocks(&self) -> u32;
        /// Whether operations are atomic, whatever befores their changes name.
        fn is_atomic(&self) -> bool;
        /// Starts an operation of `caller` that changes at most `blocks` distinct blocks.
        /// Waits for room (dirty limit, log space). The caller must hold no lock that a
        /// write-back or the end of another operation could need.
        fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError>;
        /// Ends the operation.
        fn end(&self, op: Op);

        /// Changes one block, after `befores`. The change is visible to `read` at once.
        fn change(
            &self,
            op: &Op,
            lba: Lba,
            content: Content,
            change: Change<'_>,
            befores: &[Before],
        ) -> Result<Patched, StoreError>;

        /// Reports that a block is free and its contents are of no more use. Once `befores`
        /// are durable, the medium has no pointer to it. Journals revoke it. `unreachable`: no
        /// crash state can hold a pointer to it, so its pending changes need not be written.
        fn freed(
            &self,
            op: &Op,
            lba: Lba,
            befores: &[Before],
            unreachable: bool,
        ) -> Result<(), StoreError>;

        /// Whether the patch is not durable yet.
        fn is_pending(&self, patch: PatchId) -> bool;

        /// Makes these patches and all their befores durable.
        fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError>;
        /// Makes all changes durable.
        fn sync_all(&self) -> Result<(), StoreError>;
        /// The error that made the store read-only, if one did.
        fn failure(&self) -> Option<Arc<BlockError>>;

        /// The graph that the store's patches are in. Befores must be of the same graph.
        fn graph(&self) -> GraphId;
        /// Makes an empty patch that waits for `befores`. A `held` one does not commit before
        /// it is released, and its afters wait for that.
        fn empty(&self, befores: &[Before], held: bool) -> PatchId;
        /// Replaces the befores of a held empty patch. The caller ensures that no block-level
        /// cycle arises: no change waits, through another block, for an older change with
        /// which it must be written.
        fn set_befores(&self, empty: PatchId, befores: &[Before]);
        /// Gives a held empty patch one more before, under the same condition.
        fn add_before(&self, empty: PatchId, before: Before);
        /// Lets a held empty patch commit.
        fn release(&self, empty: PatchId);
        /// Whether any of these patches is `before` or waits for it. The search takes time
        /// proportional to the number of their befores.
        fn waits_for(&self, patches: &[PatchId], before: PatchId) -> bool;
        /// Whether patches take so much memory that operations wait for write-back. A store
        /// that holds patches must then release them.
        fn is_crowded(&self) -> bool;
    }
}

/// Whether a change covers the whole block.
///
/// # Panics
/// If the change is empty or exceeds the block: a mistake of the file system.
pub(crate) fn check_change(change: Change<'_>, block_bytes: u32) -> bool {
    match change {
        Change::Bytes { at, bytes } => {
            let end = at as usize + bytes.len();
            assert!(
                !bytes.is_empty() && end <= block_bytes as usize,
                "within the block"
            );
            bytes.len() == block_bytes as usize
        }
        Change::Flip { at, mask } => {
            assert!(
                at % 4 == 0 && at < block_bytes && mask != 0,
                "a word of the block"
            );
            false
        }
    }
}
