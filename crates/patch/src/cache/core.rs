//! The state under the cache's lock: the graph, the tables of blocks, and the queues.

use super::needed::Needed;
use crate::graph::{Addr, Block, BlockSlot, Graph};
use crate::{CacheStats, Content, Optimise, PatchId, StoreError};
use hashbrown::{HashMap, HashSet};
use lru::LruCache;
use medium::block::{BlockError, Buffer};
use slab::Slab;
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// A block on its way to its device.
#[derive(Debug)]
pub(super) struct Sent {
    pub slot: BlockSlot,
    pub addr: Addr,
    pub data: Arc<Buffer>,
}

/// The cache's own state of a block, apart from its patches.
#[derive(Debug, Clone, Copy, Default)]
struct Note {
    /// When the block became dirty, on [`Core::clock`]; 0: it is clean.
    dirty_since: u64,
    /// Hash of the contents on the device, if it has been computed.
    stored: Option<u128>,
    /// The queue in which the block waits to be written.
    queue: Queue,
}

/// The queue of ready blocks that a block is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Queue {
    #[default]
    None,
    Whole,
    Partial,
}

impl Queue {
    /// The queue that a block belongs in.
    pub(super) fn of(block: &Block) -> Self {
        match (block.is_ready(), block.is_whole()) {
            (false, _) => Self::None,
            (true, true) => Self::Whole,
            (true, false) => Self::Partial,
        }
    }
}

/// Most patches and edges that a search for partial blocks visits.
const PARTIAL_BUDGET: usize = 10_000;

pub(super) struct Core {
    pub graph: Graph,
    table: HashMap<Addr, BlockSlot>,
    notes: Vec<Note>,
    /// Clean blocks.
    clean: LruCache<BlockSlot, ()>,
    /// Ready blocks with no patch to roll back, by the time they became dirty.
    whole: BTreeMap<(u64, BlockSlot), ()>,
    /// Ready blocks with patches to roll back, by the time they became dirty.
    partial: BTreeMap<(u64, BlockSlot), ()>,
    /// All dirty blocks, by the time they became dirty.
    dirty: BTreeMap<(u64, BlockSlot), ()>,
    /// Counts the times that a block became dirty.
    clock: u64,
    /// The syncs under way.
    pub syncs: Slab<Needed>,
    /// Number of blocks that operations under way may still make dirty.
    pub reserved: usize,
    /// Number of waves that have issued blocks and are not durable yet.
    pub in_flight: usize,
    /// Increases when a patch may have become ready or durable.
    pub progress: u64,
    /// The blocks that a thread is reading.
    pub reading: HashSet<Addr>,
    pub failure: Option<Arc<BlockError>>,
    pub closing: bool,
    pub counts: CacheStats,
}

impl Core {
    pub(super) fn new(optimise: Optimise) -> Self {
        Self {
            graph: Graph::new(optimise),
            table: HashMap::new(),
            notes: Vec::new(),
            clean: LruCache::unbounded(),
            whole: BTreeMap::new(),
            partial: BTreeMap::new(),
            dirty: BTreeMap::new(),
            clock: 0,
            syncs: Slab::new(),
            reserved: 0,
            in_flight: 0,
            progress: 0,
            reading: HashSet::new(),
            failure: None,
            closing: false,
            counts: CacheStats::default(),
        }
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            blocks: self.table.len() as u64,
            dirty: self.dirty.len() as u64,
            graph: *self.graph.stats(),
            ..self.counts
        }
    }

    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// The error that made the cache read-only, if one did.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match &self.failure {
            Some(error) => Err(StoreError::Failed(error.clone())),
            None => Ok(()),
        }
    }

    // --- blocks ---------------------------------------------------------------------

    pub(super) fn find(&self, addr: Addr) -> Option<BlockSlot> {
        self.table.get(&addr).copied()
    }

    /// Adds a clean block, and drops the least recently used ones beyond `limit`.
    pub(super) fn insert(&mut self, addr: Addr, data: Arc<Buffer>, limit: usize) -> BlockSlot {
        while self.table.len() >= limit
            && let Some((oldest, ())) = self.clean.pop_lru()
        {
            self.table.remove(&self.graph.block(oldest).addr);
            self.graph.remove_block(oldest);
        }
        let slot = self.graph.add_block(addr, data);
        self.table.insert(addr, slot);
        let index = slot.0 as usize;
        if self.notes.len() <= index {
            self.notes.resize(index + 1, Note::default());
        }
        self.notes[index] = Note::default();
        self.clean.put(slot, ());
        slot
    }

    /// Marks a block as recently used.
    pub(super) fn used(&mut self, slot: BlockSlot) {
        self.clean.promote(&slot);
    }

    /// Drops a block whose contents are not needed, unless it is dirty.
    pub(super) fn drop_if_clean(&mut self, slot: BlockSlot) {
        if self.clean.pop(&slot).is_some() {
            self.table.remove(&self.graph.block(slot).addr);
            self.graph.remove_block(slot);
        }
    }

    /// Records a hash of the device's contents when a block of metadata is about to become
    /// dirty. A change that is later reversed then needs no write.
    pub(super) fn before_change(&mut self, slot: BlockSlot, content: Content, was_read: bool) {
        let note = &mut self.notes[slot.0 as usize];
        if note.dirty_since == 0 && content == Content::Metadata {
            note.stored = was_read.then(|| xxh3_128(&self.graph.block(slot).data));
        }
    }

    /// Moves every block whose state may have changed to its queue.
    pub(super) fn requeue(&mut self) {
        while let Some(slot) = self.graph.next_woken() {
            self.requeue_block(slot);
        }
    }

    fn requeue_block(&mut self, slot: BlockSlot) {
        let block = self.graph.block(slot);
        let queue = Queue::of(block);
        let (dirty, addr) = (block.is_dirty(), block.addr);
        for (_, needed) in &mut self.syncs {
            needed.moved(slot, addr, queue);
        }
        let note = &mut self.notes[slot.0 as usize];
        match (note.dirty_since, dirty) {
            (0, true) => {
                self.clock += 1;
                note.dirty_since = self.clock;
                self.dirty.insert((self.clock, slot), ());
                self.clean.pop(&slot);
            }
            (0, false) => return,
            (since, false) => {
                self.enqueue(slot, Queue::None);
                self.dirty.remove(&(since, slot));
                self.notes[slot.0 as usize] = Note::default();
                self.clean.put(slot, ());
                return;
            }
            (_, true) => {}
        }
        self.enqueue(slot, queue);
    }

    /// Moves a dirty block to this queue.
    fn enqueue(&mut self, slot: BlockSlot, queue: Queue) {
        let note = &mut self.notes[slot.0 as usize];
        let key = (note.dirty_since, slot);
        let was = std::mem::replace(&mut note.queue, queue);
        if was == queue {
            return;
        }
        match was {
            Queue::None => {}
            Queue::Whole => drop(self.whole.remove(&key)),
            Queue::Partial => drop(self.partial.remove(&key)),
        }
        match queue {
            Queue::None => {}
            Queue::Whole => drop(self.whole.insert(key, ())),
            Queue::Partial => drop(self.partial.insert(key, ())),
        }
    }

    // --- write-back -----------------------------------------------------------------

    /// Issues the blocks of the next wave: whole ones, oldest first, with their neighbours. If
    /// there are none, and `partly` is set, issues partial blocks.
    pub(super) fn select(&mut self, limit: usize, partly: bool) -> Vec<Sent> {
        if !self.graph.optimise().ready_lists {
            return self.select_by_search(limit);
        }
        let mut sent = Vec::new();
        while sent.len() < limit {
            let Some((&(_, first), ())) = self.whole.first_key_value() else {
                break;
            };
            let mut next = Some(first);
            while let Some(slot) = next
                && sent.len() < limit
            {
                let addr = self.graph.block(slot).addr;
                self.send(slot, &mut sent);
                let neighbour = Addr {
                    lba: medium::block::Lba(addr.lba.0 + 1),
                    ..addr
                };
                let neighbour = self.find(neighbour);
                next = neighbour.filter(|n| self.notes[n.0 as usize].queue == Queue::Whole);
            }
        }
        if sent.is_empty() && partly {
            let partial: Vec<BlockSlot> = self.partial.keys().map(|(_, slot)| *slot).collect();
            self.send_partial(&partial, limit, &mut sent);
        }
        sent
    }

    /// Issues some of these partial blocks, each of which is written twice. Skips a block that
    /// waits for one already chosen, since it may soon be whole.
    fn send_partial(&mut self, ready: &[BlockSlot], limit: usize, sent: &mut Vec<Sent>) {
        let mut chosen = HashSet::new();
        let mut budget = PARTIAL_BUDGET;
        for &slot in ready {
            if chosen.len() == limit || budget == 0 {
                break;
            }
            let (befores, left) = (self.graph.blocks_before(slot), &mut budget);
            let mut befores = befores.inspect(|_| *left = left.saturating_sub(1));
            if !befores.any(|before| before.is_some_and(|b| chosen.contains(&b))) {
                chosen.insert(slot);
            }
        }
        for &slot in ready.iter().filter(|slot| chosen.contains(*slot)) {
            self.send(slot, sent);
        }
    }

    /// As [`select`](Self::select), with the switch `ready_lists` off: searches the graph from
    /// every dirty block.
    fn select_by_search(&mut self, limit: usize) -> Vec<Sent> {
        let mut sent = Vec::new();
        let dirty: Vec<BlockSlot> = self.dirty.keys().map(|(_, slot)| *slot).collect();
        for slot in dirty {
            if sent.len() < limit && self.graph.is_ready_by_search(slot) {
                self.send(slot, &mut sent);
            }
        }
        sent
    }

    /// Issues blocks that `pick` draws from all ready blocks, whole or partial.
    pub(super) fn select_drawn(
        &mut self,
        limit: usize,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Vec<Sent> {
        let by_search = !self.graph.optimise().ready_lists;
        let is_ready = |slot: &BlockSlot| match by_search {
            true => self.graph.is_ready_by_search(*slot),
            false => self.graph.block(*slot).is_ready(),
        };
        let dirty = self.dirty.keys().map(|(_, slot)| *slot);
        let mut ready: Vec<BlockSlot> = dirty.filter(is_ready).collect();
        let mut sent = Vec::new();
        while sent.len() < limit && !ready.is_empty() {
            let slot = ready.swap_remove(pick(ready.len()));
            self.send(slot, &mut sent);
        }
        sent
    }

    /// Whether one of these patches is durable, or a block that they need can be written.
    pub(super) fn can_write_for(&mut self, ids: &[PatchId]) -> bool {
        let is_durable = |id: &PatchId| !self.graph.is_pending(*id);
        ids.iter().any(is_durable) || Needed::new(&mut self.graph, ids).is_ready()
    }

    /// Issues the blocks of the next wave of a sync: the whole ones, which are the lowest
    /// level. Whole blocks of other syncs join the last of them, so that they need no flush
    /// of their own (group commit). If there are none, and `partly` is set, issues partial
    /// blocks.
    pub(super) fn select_for(&mut self, sync: usize, limit: usize, partly: bool) -> Vec<Sent> {
        let mut sent = Vec::new();
        self.send_needed(sync, limit, &mut sent);
        if !sent.is_empty() {
            let others: Vec<usize> = self.syncs.iter().map(|(other, _)| other).collect();
            for other in others {
                self.send_needed(other, limit, &mut sent);
            }
        } else if partly {
            let partial = self.syncs[sync].all_partial(&mut self.graph);
            self.send_partial(&partial, limit, &mut sent);
        }
        sent
    }

    /// Issues whole blocks that a sync needs.
    fn send_needed(&mut self, sync: usize, limit: usize, sent: &mut Vec<Sent>) {
        while sent.len() < limit
            && let Some(slot) = self.syncs[sync].next_whole(&mut self.graph)
        {
            self.send(slot, sent);
        }
    }

    /// Issues a block. If it equals the device's contents, it commits at once.
    fn send(&mut self, slot: BlockSlot, sent: &mut Vec<Sent>) {
        let data = self.graph.issue(slot);
        let stored = self.notes[slot.0 as usize].stored;
        if stored.is_some_and(|stored| stored == xxh3_128(&data)) {
            self.counts.unchanged += 1;
            self.graph.commit(slot);
        } else {
            self.notes[slot.0 as usize].stored = None;
            self.counts.writes += 1;
            sent.push(Sent {
                slot,
                addr: self.graph.block(slot).addr,
                data,
            });
        }
        self.requeue();
    }

    /// Commits the blocks of a durable wave.
    pub(super) fn commit(&mut self, written: &[BlockSlot]) {
        for &slot in written {
            self.graph.commit(slot);
            // The patches left out queue up again, after the blocks that are now older.
            if self.graph.block(slot).is_dirty() {
                self.enqueue(slot, Queue::None);
                self.clock += 1;
                let note = &mut self.notes[slot.0 as usize];
                let was = std::mem::replace(&mut note.dirty_since, self.clock);
                self.dirty.remove(&(was, slot));
                self.dirty.insert((self.clock, slot), ());
            }
        }
        self.requeue();
    }

    /// The current time, for [`has_older_than`](Self::has_older_than).
    pub(super) fn age(&self) -> u64 {
        self.clock
    }

    /// Whether any block has been dirty since this time or longer.
    pub(super) fn has_older_than(&self, then: u64) -> bool {
        let oldest = self.dirty.first_key_value();
        oldest.is_some_and(|((since, _), ())| *since <= then)
    }
}
