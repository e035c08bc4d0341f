//! Volatile state of inodes: locks, link counts, references. It is found by inode number
//! without a lock. The table grows and never shrinks.

use crate::dir::DirIndex;
use crate::life::Life;
use parking_lot::RwLock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use vfs::Ino;

/// The volatile state of one inode.
#[derive(Default)]
pub(crate) struct Node {
    /// Whether the inode number is alive, and the names and references that keep it.
    pub life: Life,
    /// Number of subdirectories of a directory.
    pub subdirs: AtomicU32,
    /// Blocks in the inode's tree and its attribute block.
    pub blocks: AtomicU64,
    /// The inode was made without a name and may still get one (`O_TMPFILE`).
    pub nameable: AtomicBool,
    /// Parent of a directory; 0 for all other inodes.
    pub parent: AtomicU64,
    /// Guards the inode's contents and, in a directory, holds the index.
    pub lock: RwLock<Option<Box<DirIndex>>>,
}

/// Nodes in a chunk.
const CHUNK: u64 = 64;
/// Fewest chunks below an entry of the top.
const FAN_MIN: u64 = 256;
/// Most entries of the top.
const TOP_MAX: u64 = 4096;

type Chunk = OnceLock<Box<[Node]>>;

/// All nodes, by inode number.
pub(crate) struct Table {
    /// Chunks below an entry of the top: 2 to this power.
    fan_bits: u32,
    top: Box<[OnceLock<Box<[Chunk]>>]>,
}

impl Table {
    /// A table for inode numbers up to `capacity`.
    pub(crate) fn new(capacity: u64) -> Self {
        let fan_bits = (capacity / CHUNK / TOP_MAX)
            .next_power_of_two()
            .max(FAN_MIN)
            .ilog2();
        let top = ((capacity / CHUNK) >> fan_bits) + 1;
        Self {
            fan_bits,
            top: (0..top).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The node of an inode number within capacity.
    #[inline]
    pub(crate) fn node(&self, ino: Ino) -> &Node {
        let (chunk, at) = (ino.0 / CHUNK, (ino.0 % CHUNK) as usize);
        let fan = 1 << self.fan_bits;
        let chunks = self.top[(chunk >> self.fan_bits) as usize]
            .get_or_init(|| (0..fan).map(|_| OnceLock::new()).collect());
        &chunks[(chunk & (fan - 1)) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| Node::default()).collect())[at]
    }
}
