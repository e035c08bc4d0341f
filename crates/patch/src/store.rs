//! [`Store`]: block storage whose changes carry their order. File systems write to it, and
//! layers (journal, async, trace) stand on it and are it.

use crate::PatchId;
use medium::Rule;
use medium::block::{BlockError, Buffer, Lba};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// "This patch first, for this reason." A patch that is durable by now orders nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// The patch that must be durable first.
    pub patch: PatchId,
    /// Why.
    pub rule: Rule,
}

/// What kind of bytes a change is made of; journals treat them differently.
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
    /// These bytes, at this offset in bytes. Offset 0 and the whole block's length: the
    /// old contents are not read.
    Bytes {
        /// Offset in the block.
        at: u32,
        /// The new bytes; not empty, and within the block.
        bytes: &'a [u8],
    },
    /// Flips the bits that are set in `mask`, in the little-endian 32-bit word at this
    /// offset. Flips of different bits of one word do not depend on each other.
    Flip {
        /// Offset in the block; a multiple of 4.
        at: u32,
        /// Bits to flip; not 0.
        mask: u32,
    },
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patched {
    /// The patch that holds the change; in a journal, the transaction.
    pub id: PatchId,
    /// The change joined a patch that was there already, so both reach the medium in one
    /// write. If that patch is the one that made what this change removes, the thing
    /// will never be on the medium.
    pub merged: bool,
}

/// The right to change a store: one operation of a file system. Between
/// [`Store::begin`] and [`Store::end`] the store guarantees room, and a journal keeps
/// all changes in one transaction. Not nested; changes of concurrent operations may
/// share a transaction.
#[derive(Debug)]
#[must_use = "give it back with Store::end"]
pub struct Op {
    /// The store's own: a journal keeps its reservation here.
    pub(crate) token: u64,
    pub(crate) caller: Caller,
}

impl Op {
    /// The process that asked for it.
    pub fn caller(&self) -> Caller {
        self.caller
    }
}

/// A process that asks for changes. Layers see it with every change of an operation; patches
/// do not keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its number.
    pub pid: u32,
}

impl Caller {
    /// The file system itself: mounting, freeing what nobody has any more, committing.
    pub const SYSTEM: Self = Self {
        uid: 0,
        gid: 0,
        pid: 0,
    };
}

/// Why a store did not do as asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// An earlier write failed: nothing is written any more.
    #[error("read-only since a write failed: {0}")]
    Failed(Arc<BlockError>),
    /// What was to be made durable waits for something that is being held back.
    #[error("{patches} changes wait for a transaction that is still open")]
    Held {
        /// How many.
        patches: usize,
    },
    /// The operation is larger than the log, or than the cache, can ever hold.
    #[error("an operation of {blocks} blocks does not fit the {what} of {limit}")]
    TooLarge {
        /// Blocks it wants to change.
        blocks: u32,
        /// `journal` or `cache`.
        what: &'static str,
        /// Blocks that can be had.
        limit: u32,
    },
    /// During an [attempt](crate::attempt): a block is not in memory.
    #[error("a block is not in memory")]
    Absent,
}

/// The name of a graph of patches. Patches of one graph can wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphId(u64);

impl GraphId {
    /// A name that no other graph of this process has.
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
    /// Block storage with ordered changes. Callable from any number of threads. A file system
    /// protects by its own locks what others must not see half done.
    ///
    /// # Guarantee
    /// At any moment, whatever a crash leaves on the medium is closed under "before": a
    /// change is there only if all its befores are.
    pub trait Store: Send + Sync {
        /// Bytes in a block.
        fn block_bytes(&self) -> u32;
        /// Number of blocks.
        fn blocks(&self) -> u64;

        /// The current contents of a block, all changes included. A snapshot: it does not
        /// change. Do not hold it while changing the same block (that would copy).
        fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError>;
        /// As [`read`](Store::read); `None` if that would have to wait for a device.
        fn cached(&self, lba: Lba) -> Option<Arc<Buffer>>;
        /// Hints that these blocks will be read soon.
        fn prefetch(&self, lba: Lba, blocks: u64);
        /// During an [attempt](crate::attempt): fails unless all these blocks are in memory,
        /// so that what is changed first need not wait for what is read later. Else does
        /// nothing.
        fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError>;

        /// Most blocks that one operation can change.
        fn max_op_blocks(&self) -> u32;
        /// Whether an operation is there wholly or not at all after a crash, whatever
        /// befores its changes name.
        fn is_atomic(&self) -> bool;
        /// Starts an operation of `caller` that changes at most `blocks` distinct blocks. Waits for room
        /// (dirty limit, log space), so the caller must hold no lock that a write-back or
        /// another operation's end could need.
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

        /// The block is free now, its contents of no more use, and no pointer to it will be
        /// on the medium once `befores` are durable. Journals revoke it; pending data
        /// changes of it need not be written if `unreachable`, that is, if no state of the
        /// medium can hold a pointer to it.
        fn freed(
            &self,
            op: &Op,
            lba: Lba,
            befores: &[Before],
            unreachable: bool,
        ) -> Result<(), StoreError>;

        /// Whether the patch is still on its way (false: it is durable).
        fn is_pending(&self, patch: PatchId) -> bool;

        /// Returns when these patches, and all that must come before them, are durable.
        fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError>;
        /// Returns when everything is durable.
        fn sync_all(&self) -> Result<(), StoreError>;
        /// The error that made the store read-only, if one did.
        fn failure(&self) -> Option<Arc<BlockError>>;

        /// The graph that its patches are in. Befores must be of the same graph.
        fn graph(&self) -> GraphId;
        /// Makes a patch without data that waits for `befores`. If `held`, it does not commit
        /// before it is released, and what waits for it waits too.
        fn empty(&self, befores: &[Before], held: bool) -> PatchId;
        /// Replaces the befores of a held empty patch. The caller makes sure that no change
        /// of a block ever waits, by way of another block, for an older change of its own
        /// block with which it must be written.
        fn set_befores(&self, empty: PatchId, befores: &[Before]);
        /// Gives a held empty patch one more before, under the same condition.
        fn add_before(&self, empty: PatchId, before: Before);
        /// Lets a held empty patch commit.
        fn release(&self, empty: PatchId);
        /// Whether any of these patches must wait for `before`, or is it. A search: its time
        /// grows with what they wait for.
        fn waits_for(&self, patches: &[PatchId], before: PatchId) -> bool;
        /// Whether patches take so much memory that operations wait for write-back. A store
        /// that holds patches back must release them then.
        fn is_crowded(&self) -> bool;
    }
}

/// Whether a change covers the whole block.
///
/// # Panics
/// If it is empty or reaches beyond the block: a mistake of the file system.
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
