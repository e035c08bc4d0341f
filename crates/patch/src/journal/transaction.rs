//! Transactions: what the running one has collected, and what the log still holds.

use crate::PatchId;
use medium::block::Lba;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet, VecDeque};

/// The patches of one home block, usually one.
pub(super) type Patches = SmallVec<[PatchId; 1]>;

/// The transaction that operations join.
pub(super) struct Running {
    /// What all its home changes wait for; held until the commit.
    pub hold: PatchId,
    /// What its commit block waits for, and `hold` with it; held until the commit too, so
    /// that the graph sees what must not come to wait for `hold` (J7).
    pub wait: PatchId,
    /// Something has been changed.
    pub touched: bool,
    /// Blocks to be logged, with their changes.
    pub blocks: HashMap<Lba, Patches>,
    /// Blocks that it has freed and not taken again.
    pub freed: HashSet<Lba>,
    /// Blocks that it has freed, taken again or not, to which a pointer may be on the
    /// medium or in the log. Until its commit they may still be what they were.
    pub emptied: HashSet<Lba>,
    /// Operations under way, and the blocks that they may still add.
    pub open: usize,
    pub reserved: usize,
    /// All blocks that its operations have asked for.
    pub promised: usize,
    /// Somebody asked for an order between changes (patchgroups): from here on, data
    /// precede the commit in every mode.
    pub ordered: bool,
    pub since: std::time::Instant,
}

impl Running {
    pub fn new(hold: PatchId, wait: PatchId, ordered: bool) -> Self {
        Self {
            hold,
            wait,
            touched: false,
            blocks: HashMap::new(),
            freed: HashSet::new(),
            emptied: HashSet::new(),
            open: 0,
            reserved: 0,
            promised: 0,
            ordered,
            since: std::time::Instant::now(),
        }
    }

    /// Whether there is anything to commit.
    pub fn is_empty(&self) -> bool {
        !self.touched
    }
}

/// A transaction whose commit block has been made, durable or not.
pub(super) struct Committed {
    pub sequence: u32,
    /// Its first block in the log, and how many there are.
    pub start: u32,
    pub len: u32,
    /// The commit block.
    pub commit: PatchId,
    /// Its changes at home.
    pub blocks: Vec<(Lba, Patches)>,
    pub freed: Vec<Lba>,
}

/// The newest transaction in the log that has to do with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The log holds a copy that replay would write.
    Logged(u32),
    /// Freed, and revoked if there was a copy.
    Freed(u32),
}

impl Mark {
    pub fn sequence(self) -> u32 {
        match self {
            Self::Logged(sequence) | Self::Freed(sequence) => sequence,
        }
    }
}

/// The log's circle, and the transactions in it.
pub(super) struct Log {
    pub first: u32,
    pub end: u32,
    /// Where the next block goes, and how many are in use.
    head: u32,
    used: u32,
    /// The number of the running transaction.
    pub sequence: u32,
    /// Oldest first.
    pub committed: VecDeque<Committed>,
    /// Out of the log, but the superblock that says so may not be durable.
    pub leaving: Vec<Committed>,
    pub marks: HashMap<Lba, Mark>,
    /// The newest change of the superblock.
    pub tail: PatchId,
}

impl Log {
    pub fn new(first: u32, end: u32, sequence: u32) -> Self {
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

    pub fn capacity(&self) -> u32 {
        self.end - self.first
    }

    pub fn used(&self) -> u32 {
        self.used
    }

    pub fn free(&self) -> u32 {
        self.capacity() - self.used
    }

    pub fn head(&self) -> u32 {
        self.head
    }

    /// Takes the next block.
    pub fn take(&mut self) -> u32 {
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

    /// A transaction is in the log: its marks replace older ones.
    pub fn push(&mut self, transaction: Committed) {
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

    /// The oldest transaction gives its space back. Its marks stay until
    /// [`forget_left`](Self::forget_left).
    pub fn pop(&mut self) {
        if let Some(oldest) = self.committed.pop_front() {
            self.used -= oldest.len;
            self.leaving.push(oldest);
        }
    }

    /// The superblock is durable: replay cannot meet what has left.
    pub fn forget_left(&mut self) {
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

    /// Where the tail is: position and sequence number.
    pub fn tail(&self) -> (u32, u32) {
        match self.committed.front() {
            Some(oldest) => (oldest.start, oldest.sequence),
            None => (self.head, self.sequence),
        }
    }

    /// The transaction of this number, if the log holds it.
    pub fn find(&self, sequence: u32) -> Option<&Committed> {
        let oldest = self.committed.front()?.sequence;
        self.committed.get(sequence.wrapping_sub(oldest) as usize)
    }
}
