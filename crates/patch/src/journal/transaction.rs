//! Transactions: the running one, and those in the log.

use crate::PatchId;
use medium::block::Lba;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet, VecDeque};

/// The patches of one home block, usually one.
pub(super) type Patches = SmallVec<[PatchId; 1]>;

/// The transaction that operations join.
pub(super) struct Running {
    /// The empty patch for which all home changes wait; held until the commit.
    pub hold: PatchId,
    /// The empty patch for which the commit block and `hold` wait. It is held until the commit,
    /// so that the graph finds patches that must not wait for `hold` (J7).
    pub wait: PatchId,
    /// Whether the transaction has changed anything.
    pub touched: bool,
    /// Blocks to be logged, with their changes.
    pub blocks: HashMap<Lba, Patches>,
    /// Number of blocks that it has changed, and freed: they need no log, and their changes stay in the cache until
    /// the commit.
    pub held: usize,
    /// Blocks freed and not allocated again.
    pub freed: HashSet<Lba>,
    /// Blocks freed, allocated again or not, to which the medium or the log may have a pointer.
    /// Until the commit, crash states may contain their old use.
    pub emptied: HashSet<Lba>,
    /// Number of operations under way.
    pub open: usize,
    /// Number of blocks that these operations may still add.
    pub reserved: usize,
    /// Number of blocks that all operations of the transaction have reserved.
    pub promised: usize,
    /// Whether data precede the commit. In every mode, a request for an order between changes
    /// (patchgroups) sets it.
    pub ordered: bool,
    pub since: std::time::Instant,
}

impl Running {
    pub(super) fn new(hold: PatchId, wait: PatchId, ordered: bool) -> Self {
        Self {
            hold,
            wait,
            touched: false,
            blocks: HashMap::new(),
            held: 0,
            freed: HashSet::new(),
            emptied: HashSet::new(),
            open: 0,
            reserved: 0,
            promised: 0,
            ordered,
            since: std::time::Instant::now(),
        }
    }

    /// Whether there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        !self.touched
    }
}

/// A transaction whose commit block is in the cache, durable or not.
pub(super) struct Committed {
    pub sequence: u32,
    /// First block of the transaction in the log.
    pub start: u32,
    /// Number of blocks in the log.
    pub len: u32,
    /// The patch of the commit block.
    pub commit: PatchId,
    /// The home blocks and their changes.
    pub blocks: Vec<(Lba, Patches)>,
    pub freed: Vec<Lba>,
}

/// The newest transaction in the log that logged or freed a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The transaction logged a copy that replay would write.
    Logged(u32),
    /// The transaction freed the block, and revoked it if there was a copy.
    Freed(u32),
}

impl Mark {
    pub(super) fn sequence(self) -> u32 {
        match self {
            Self::Logged(sequence) | Self::Freed(sequence) => sequence,
        }
    }
}

/// The ring of the log's blocks, and the transactions in it.
pub(super) struct LogRing {
    pub first: u32,
    pub end: u32,
    /// Place of the next block to be written.
    head: u32,
    /// Number of blocks in use.
    used: u32,
    /// The number of the running transaction.
    pub sequence: u32,
    /// Transactions in the log, oldest first.
    pub committed: VecDeque<Committed>,
    /// Transactions that left the log by a superblock that may not be durable.
    pub leaving: Vec<Committed>,
    pub marks: HashMap<Lba, Mark>,
    /// The newest patch of the superblock.
    pub tail: PatchId,
}

impl LogRing {
    pub(super) fn new(first: u32, end: u32, sequence: u32) -> Self {
        Self {
            first,
            end,
            head: first,
            used: 0,
            sequence,
            committed: VecDeque::new(),
            leaving: Vec::new(),
            marks: HashMap::new(),
            tail: PatchId::DURABLE,
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.end - self.first
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn free(&self) -> u32 {
        self.capacity() - self.used
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Takes the next block of the ring.
    pub(super) fn take(&mut self) -> u32 {
        assert!(self.free() > 0, "J5: operations reserve before they change");
        let at = self.head;
        self.used += 1;
        self.head = if at + 1 == self.end {
            self.first
        } else {
            at + 1
        };
        at
    }

    /// Adds a transaction. Its marks replace older ones.
    pub(super) fn push(&mut self, transaction: Committed) {
        let sequence = transaction.sequence;
        for (lba, _) in &transaction.blocks {
            self.marks.insert(*lba, Mark::Logged(sequence));
        }
        for lba in &transaction.freed {
            self.marks.insert(*lba, Mark::Freed(sequence));
        }
        self.committed.push_back(transaction);
        self.sequence = sequence.wrapping_add(1);
    }

    /// Frees the space of the oldest transaction. Its marks stay until
    /// [`forget_left`](Self::forget_left).
    pub(super) fn pop(&mut self) {
        if let Some(oldest) = self.committed.pop_front() {
            self.used -= oldest.len;
            self.leaving.push(oldest);
        }
    }

    /// Drops the marks of transactions that left the log. The superblock is durable, so replay
    /// ignores them.
    pub(super) fn forget_left(&mut self) {
        for gone in self.leaving.drain(..) {
            let homes = gone.blocks.iter().map(|(lba, _)| lba).chain(&gone.freed);
            for lba in homes {
                if self
                    .marks
                    .get(lba)
                    .is_some_and(|m| m.sequence() == gone.sequence)
                {
                    self.marks.remove(lba);
                }
            }
        }
    }

    /// The tail: position and sequence number.
    pub(super) fn tail(&self) -> (u32, u32) {
        match self.committed.front() {
            Some(oldest) => (oldest.start, oldest.sequence),
            None => (self.head, self.sequence),
        }
    }

    /// The transaction of this number, if the log holds it.
    pub(super) fn find(&self, sequence: u32) -> Option<&Committed> {
        let oldest = self.committed.front()?.sequence;
        self.committed.get(sequence.wrapping_sub(oldest) as usize)
    }
}
