//! A block device in a crash state.
//!
//! # Guarantees
//!
//! A [`StateDevice`] holds the durable blocks of a device and, for each block, the writes
//! that were issued and are not durable. A crash leaves each block with its durable content or
//! with that of one of those writes, blocks independent of each other. The crash states at a
//! moment therefore include all prefixes of completions and all subsets of the writes under way.
//! Where the device may tear a block, each write may also be there in part, in units of
//! [`Persistence::atomic_bytes`].
//!
//! A write is durable once a flush that began after its completion has ended. A write with force
//! unit access is durable once it completed; it makes no other write durable.
//!
//! Blocks are shared, so that a state costs a few pointers. Each change is appended to an undo
//! log.

use super::{Medium, Order};
use crate::choice::{Choices, Policy, mix};
use crate::report::Options;
use crate::sabotage::{Sabotage, hit};
use crate::setting::Setting;
use crate::system::BlockSystem;
use crate::walk::CrashState;
use hashbrown::HashMap;
use medium::Rule;
use medium::block::{
    BlockDevice, BlockError, BlockEvent, Buffer, Completion, EventId, Geometry, Lba, MemoryDevice,
    Persistence, RecordingDevice, Write,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The content of a block, with its hash.
#[derive(Debug, Clone)]
struct Content {
    data: Arc<Buffer>,
    hash: u64,
}

impl Content {
    fn new(data: Arc<Buffer>) -> Self {
        let hash = xxh3_64(&data);
        Self { data, hash }
    }
}

/// A write that is not durable.
#[derive(Debug, Clone)]
struct Version {
    id: EventId,
    completed: bool,
    durable: bool,
    content: Content,
}

struct Undo {
    cell: u32,
    old: Content,
    hashed: bool,
}

#[derive(Default)]
struct Inner {
    blocks: Vec<Content>,
    pending: BTreeMap<u32, Vec<Version>>,
    /// By flush under way: the writes that it covers.
    covered: HashMap<EventId, Vec<EventId>>,
    choices: Choices,
    undo: Vec<Undo>,
    /// Begin of an evaluation's part of the undo log.
    floor: usize,
    /// Hash of the blocks, without writes after the crash.
    hash: u64,
    /// Hash of the present blocks, without those of `scratch`.
    essence: u64,
    /// By block: whether an open file system ignores its content.
    scratch: Vec<bool>,
    /// Completions that were not reaped yet.
    done: VecDeque<Completion>,
}

/// The state that [`StateDevice::enter`] saved.
pub(crate) struct Level {
    pending: BTreeMap<u32, Vec<Version>>,
    covered: HashMap<EventId, Vec<EventId>>,
    choices: Choices,
    floor: usize,
}

/// A block device in a crash state.
pub(crate) struct StateDevice {
    geometry: Geometry,
    atomic_bytes: usize,
    inner: Mutex<Inner>,
}

/// States at a point within a recovery up to which all are visited. Every state has a recovery,
/// so that a larger number costs more time than its states add.
const AGAIN: usize = 8;

impl StateDevice {
    /// A device that holds `image` durably. `scratch`: blocks whose content an open file system
    /// ignores.
    pub(crate) fn new(image: &[u8], block_bytes: u32, atomic_bytes: u32, scratch: &[u64]) -> Self {
        let blocks = image.chunks_exact(block_bytes as usize);
        let blocks: Vec<Content> = blocks
            .map(|bytes| Content::new(Arc::new(Buffer::from_slice(bytes))))
            .collect();
        Self {
            geometry: Geometry {
                block_bytes,
                blocks: blocks.len() as u64,
            },
            atomic_bytes: atomic_bytes as usize,
            inner: Mutex::new(Inner {
                scratch: (0..blocks.len() as u64)
                    .map(|n| scratch.contains(&n))
                    .collect(),
                blocks,
                ..Inner::default()
            }),
        }
    }

    /// Number of parts into which a block can be torn.
    fn parts(&self) -> usize {
        self.geometry.block_bytes as usize / self.atomic_bytes
    }

    /// Number of ways to tear a write: parts at the front, parts at the back, or all but one part
    /// in the middle.
    fn tears(&self) -> usize {
        let parts = self.parts();
        2 * (parts - 1) + parts.saturating_sub(2)
    }

    fn choices(&self, versions: usize) -> usize {
        1 + versions * (1 + self.tears())
    }

    /// The content of a block after choice number `choice`: the durable version, the whole
    /// versions, then the torn ones.
    fn content(&self, durable: &Content, versions: &[Version], choice: usize) -> Content {
        let whole = |n: usize| match n.checked_sub(1) {
            None => durable.clone(),
            Some(at) => versions[at].content.clone(),
        };
        let Some(torn) = choice.checked_sub(versions.len() + 1) else {
            return whole(choice);
        };
        let (at, tear) = (torn / self.tears(), torn % self.tears());
        let (old, new) = (whole(at), whole(at + 1));
        let (parts, unit) = (self.parts(), self.atomic_bytes);
        let is_new = |part: usize| match tear.checked_sub(parts - 1) {
            None => part <= tear,
            Some(back) if back < parts - 1 => part > back,
            Some(hole) => part != hole - (parts - 1) + 1,
        };
        let mut data = Buffer::clone(&old.data);
        for part in (0..parts).filter(|part| is_new(*part)) {
            let range = part * unit..(part + 1) * unit;
            data[range.clone()].copy_from_slice(&new.data[range]);
        }
        Content::new(Arc::new(data))
    }
}

impl Inner {
    fn put(&mut self, cell: u32, new: Content, hashed: bool) {
        let new_hash = new.hash;
        let old = std::mem::replace(&mut self.blocks[cell as usize], new);
        self.rehash(cell, old.hash, new_hash, hashed);
        self.undo.push(Undo { cell, old, hashed });
    }

    fn undo_to(&mut self, to: usize) {
        while self.undo.len() > to {
            let Some(Undo { cell, old, hashed }) = self.undo.pop() else {
                return;
            };
            let old_hash = old.hash;
            let new = std::mem::replace(&mut self.blocks[cell as usize], old);
            self.rehash(cell, new.hash, old_hash, hashed);
        }
    }

    fn rehash(&mut self, cell: u32, from: u64, to: u64, hashed: bool) {
        let change = mix(u64::from(cell), from) ^ mix(u64::from(cell), to);
        if hashed {
            self.hash ^= change;
        }
        if !self.scratch[cell as usize] {
            self.essence ^= change;
        }
    }

    /// Makes a write durable, and the earlier ones to the same block.
    fn make_durable(&mut self, id: EventId) {
        let Some((&cell, at)) = self.pending.iter().find_map(|(cell, versions)| {
            let at = versions.iter().position(|v| v.id == id)?;
            Some((cell, at))
        }) else {
            return;
        };
        let mut versions = self.pending.remove(&cell).unwrap_or_default();
        let later = versions.split_off(at + 1);
        if let Some(last) = versions.pop() {
            self.put(cell, last.content, true);
        }
        if !later.is_empty() {
            self.pending.insert(cell, later);
        }
    }

    fn version(&mut self, id: EventId) -> Option<&mut Version> {
        self.pending.values_mut().flatten().find(|v| v.id == id)
    }

    /// The writes that a flush covers if it begins now.
    fn coverable(&self) -> Vec<EventId> {
        let issued = hit(Sabotage::FlushCoversIssued);
        let versions = self.pending.values().flatten();
        let covered = versions.filter(|v| v.completed || issued);
        covered.map(|v| v.id).collect()
    }
}

impl CrashState for StateDevice {
    type Event = BlockEvent;
    type Level = Level;

    fn narrows(&self, event: &BlockEvent) -> bool {
        match event {
            BlockEvent::FlushEnded { ok, .. } => *ok,
            BlockEvent::Completed { id, ok } => {
                *ok && self.inner.lock().version(*id).is_some_and(|v| v.durable)
            }
            BlockEvent::Issued { .. }
            | BlockEvent::FlushBegun { .. }
            | BlockEvent::Discarded { .. }
            | BlockEvent::Mark(_) => false,
        }
    }

    fn apply(&self, event: &BlockEvent) {
        let mut inner = self.inner.lock();
        match event {
            BlockEvent::Issued {
                id,
                lba,
                data,
                durable,
            } => {
                let version = Version {
                    id: *id,
                    completed: false,
                    durable: durable.is_some(),
                    content: Content::new(data.clone()),
                };
                inner.pending.entry(lba.0 as u32).or_default().push(version);
            }
            BlockEvent::Completed { id, ok: true } => {
                let Some(version) = inner.version(*id) else {
                    return;
                };
                version.completed = true;
                if version.durable {
                    inner.make_durable(*id);
                }
            }
            BlockEvent::FlushBegun { id } => {
                let covered = inner.coverable();
                inner.covered.insert(*id, covered);
            }
            BlockEvent::FlushEnded { id, ok, .. } => {
                let covered = inner.covered.remove(id).unwrap_or_default();
                for id in covered.into_iter().filter(|_| *ok) {
                    inner.make_durable(id);
                }
            }
            // A failed write may be there or not. The content of discarded blocks is not read.
            BlockEvent::Completed { ok: false, .. }
            | BlockEvent::Discarded { .. }
            | BlockEvent::Mark(_) => {}
        }
    }

    fn keep(&self) {
        let mut inner = self.inner.lock();
        inner.floor = inner.undo.len();
    }

    fn point_key(&self) -> u64 {
        let inner = self.inner.lock();
        inner
            .pending
            .iter()
            .fold(inner.hash, |h, (cell, versions)| {
                let versions = versions.iter();
                let of_cell = versions.fold(u64::from(*cell), |h, v| mix(h, v.content.hash));
                mix(h, of_cell)
            })
    }

    fn is_crowded(&self, leaves: usize, depth: usize) -> bool {
        let leaves = if depth == 0 { leaves } else { AGAIN };
        let inner = self.inner.lock();
        let choices = inner.pending.values().map(|v| self.choices(v.len()));
        let states = choices.fold(1usize, usize::saturating_mul);
        states > leaves || hit(Sabotage::PrefixesOnly)
    }

    fn start(&self, path: &[u32], policy: Policy) {
        self.inner.lock().choices.start(path, policy);
    }

    fn next_path(&self) -> bool {
        self.inner.lock().choices.next_path()
    }

    fn decide_at_start(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let pending = std::mem::take(&mut inner.pending);
        for (cell, versions) in &pending {
            let all = versions.len() as u32;
            let choices = self.choices(versions.len()) as u32;
            let numbers: Vec<u64> = versions.iter().map(|v| v.id).collect();
            let by = |policy: Policy| policy.pick(*cell, all, choices, &numbers);
            let choice = inner.choices.take(*cell, choices, by);
            if choice > 0 {
                let durable = &inner.blocks[*cell as usize];
                let content = self.content(durable, versions, choice);
                inner.put(*cell, content, true);
            }
        }
        inner.pending = pending;
        Some(inner.hash)
    }

    fn rollback(&self) {
        let mut inner = self.inner.lock();
        let floor = inner.floor;
        inner.undo_to(floor);
        inner.choices.end();
        inner.done.clear();
    }

    fn decisions(&self) -> Vec<(u32, u32)> {
        self.inner.lock().choices.decisions()
    }

    fn hash(&self) -> u64 {
        self.inner.lock().hash
    }

    fn enter(&self, decisions: &[(u32, u32)]) -> Level {
        let mut inner = self.inner.lock();
        let choices = std::mem::take(&mut inner.choices);
        let floor = inner.floor;
        drop(inner);
        let path: Vec<u32> = decisions.iter().map(|(_, choice)| *choice).collect();
        self.start(&path, Policy::None);
        let _ = self.decide_at_start();
        let mut inner = self.inner.lock();
        inner.choices = Choices::default();
        inner.floor = inner.undo.len();
        Level {
            pending: std::mem::take(&mut inner.pending),
            covered: std::mem::take(&mut inner.covered),
            choices,
            floor,
        }
    }

    fn leave(&self, level: Level) {
        let mut inner = self.inner.lock();
        inner.undo_to(level.floor);
        inner.pending = level.pending;
        inner.covered = level.covered;
        inner.choices = level.choices;
        inner.floor = level.floor;
    }

    /// Samples at a crowded point:
    ///
    /// - one block alone written or lost, and each pair of `most * 3 / 8` blocks;
    /// - each number of first writes and of last writes;
    /// - `4 * most` random subsets.
    ///
    /// Within a recovery: all, each number of first writes, and one random subset.
    fn samples(&self, most: usize, depth: usize, seed: u64) -> Vec<Policy> {
        let inner = self.inner.lock();
        let mut numbers: Vec<u64> = inner.pending.values().flatten().map(|v| v.id).collect();
        numbers.sort_unstable();
        let first = numbers.iter().map(|n| Policy::Before(*n));
        if hit(Sabotage::PrefixesOnly) {
            return [Policy::All].into_iter().chain(first).collect();
        }
        let last = numbers.iter().map(|n| Policy::Since(*n));
        if depth > 0 {
            let all = [Policy::All, Policy::Random(seed)].into_iter();
            return all.chain(first).collect();
        }
        let mut cells: Vec<u32> = inner.pending.keys().copied().collect();
        // Keep a seeded choice of the blocks, spread over all of them.
        cells.sort_by_key(|cell| mix(seed, u64::from(*cell)));
        let paired = &cells[..cells.len().min(most * 3 / 8)];
        let pairs = paired
            .iter()
            .enumerate()
            .flat_map(|(i, a)| paired[..i].iter().map(move |b| (*a, *b)));
        let singles = cells.iter().map(|a| (*a, *a));
        let few = singles
            .chain(pairs)
            .flat_map(|(a, b)| [Policy::Only(a, b), Policy::AllBut(a, b)]);
        let random = (0..4 * most as u64).map(|i| Policy::Random(mix(seed, i)));
        let all = [Policy::All].into_iter();
        all.chain(first)
            .chain(last)
            .chain(few)
            .chain(random)
            .collect()
    }
}

/// The device of what runs on the state: writes take effect at once, completions are reaped one
/// by one.
impl BlockDevice for StateDevice {
    fn name(&self) -> &str {
        "crash state"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn persistence(&self) -> Persistence {
        Persistence {
            atomic_bytes: self.atomic_bytes as u32,
            volatile_cache: true,
            durable_writes: true,
        }
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let block_bytes = self.geometry.block_bytes as usize;
        let device = || Arc::from(self.name());
        if !buf.len().is_multiple_of(block_bytes) {
            return Err(BlockError::Length {
                device: device(),
                len: buf.len(),
                block_bytes: self.geometry.block_bytes,
            });
        }
        let inner = self.inner.lock();
        for (lba, bytes) in (lba.0..).zip(buf.chunks_exact_mut(block_bytes)) {
            let block = inner.blocks.get(lba as usize);
            let block = block.ok_or_else(|| self.beyond(Lba(lba)))?;
            bytes.copy_from_slice(&block.data);
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) {
        let mut inner = self.inner.lock();
        for Write { tag, lba, data, .. } in writes {
            let result = if lba.0 < self.geometry.blocks {
                inner.put(lba.0 as u32, Content::new(data), false);
                Ok(())
            } else {
                Err(self.beyond(lba))
            };
            inner.done.push_back(Completion { tag, result });
        }
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut inner = self.inner.lock();
        let count = min.max(1).min(inner.done.len());
        inner.done.drain(..count).collect()
    }

    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&self, _lba: Lba, _blocks: u64) -> Result<(), BlockError> {
        Ok(())
    }
}

/// All blocks of a device, and its properties.
#[derive(Clone)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    block_bytes: u32,
    atomic_bytes: u32,
    /// Blocks whose content an open file system ignores.
    scratch: Vec<u64>,
}

impl Medium for StateDevice {
    type Door = dyn BlockDevice;
    type System = BlockSystem;
    type Image = Image;
    type Recorder = RecordingDevice<Arc<Self>>;

    fn settings(_: &BlockSystem, options: &Options) -> Vec<Setting> {
        let schedules = options.schedules.iter().copied().map(Some);
        let setting = |schedule| Setting {
            model: None,
            schedule,
        };
        schedules.map(setting).collect()
    }

    fn made(
        system: &BlockSystem,
        make: &mut dyn FnMut(Arc<dyn BlockDevice>) -> Result<(), String>,
    ) -> Result<Image, String> {
        let block_bytes = system.block_bytes();
        let device = Arc::new(MemoryDevice::new(Geometry {
            block_bytes,
            blocks: system.image_bytes() / u64::from(block_bytes),
        }));
        make(device.clone())?;
        Ok(Image {
            scratch: system.scratch(device.clone())?,
            bytes: device.bytes(),
            block_bytes,
            atomic_bytes: system.atomic_bytes(),
        })
    }

    fn image(&self) -> Image {
        let inner = self.inner.lock();
        let blocks = inner.blocks.iter();
        let scratch = (0..).zip(&inner.scratch).filter(|(_, is)| **is);
        Image {
            bytes: blocks.flat_map(|block| &block.data[..]).copied().collect(),
            block_bytes: self.geometry.block_bytes,
            atomic_bytes: self.atomic_bytes as u32,
            scratch: scratch.map(|(block, _)| block).collect(),
        }
    }

    fn of_image(image: &Image, setting: Setting) -> Result<Self, String> {
        if setting.model.is_some() || setting.schedule.is_none() {
            return Err(format!("`{setting}` is not a schedule of write-back alone"));
        }
        let Image {
            bytes,
            block_bytes,
            atomic_bytes,
            scratch,
        } = image;
        Ok(Self::new(bytes, *block_bytes, *atomic_bytes, scratch))
    }

    fn reset(&self) {
        let mut inner = self.inner.lock();
        inner.undo_to(0);
        *inner = Inner {
            blocks: std::mem::take(&mut inner.blocks),
            scratch: std::mem::take(&mut inner.scratch),
            ..Inner::default()
        };
    }

    fn cut(&self, policy: Policy) {
        self.start(&[], policy);
        let _ = self.decide_at_start();
    }

    fn record(self: &Arc<Self>) -> Arc<Self::Recorder> {
        Arc::new(RecordingDevice::new(self.clone()))
    }

    fn door(recorder: &Arc<Self::Recorder>) -> Arc<dyn BlockDevice> {
        recorder.clone()
    }

    fn take(recorder: &Self::Recorder) -> Vec<BlockEvent> {
        recorder.take()
    }

    fn is_change(event: &BlockEvent) -> bool {
        matches!(event, BlockEvent::Issued { .. })
    }

    /// Ends of flushes, and writes that need none.
    fn is_moment(event: &BlockEvent) -> bool {
        matches!(
            event,
            BlockEvent::FlushEnded { ok: true, .. }
                | BlockEvent::Issued {
                    durable: Some(_),
                    ..
                }
        )
    }

    fn order(trace: &[BlockEvent], at: usize) -> Option<Order> {
        match &trace[at] {
            BlockEvent::FlushEnded { rule, .. } => Some(Order {
                call: "flush",
                rule: *rule,
            }),
            BlockEvent::Completed { id, ok: true } => Some(Order {
                call: "durable write",
                rule: durable_write(&trace[..at], *id)?,
            }),
            BlockEvent::Issued { .. }
            | BlockEvent::Completed { ok: false, .. }
            | BlockEvent::FlushBegun { .. }
            | BlockEvent::Discarded { .. }
            | BlockEvent::Mark(_) => None,
        }
    }

    fn renumber(events: &mut [BlockEvent], before: &[BlockEvent]) {
        let first = before.len() as EventId; // more than there are writes or flushes
        for event in events {
            match event {
                BlockEvent::Issued { id, .. }
                | BlockEvent::Completed { id, .. }
                | BlockEvent::FlushBegun { id }
                | BlockEvent::FlushEnded { id, .. } => *id += first,
                BlockEvent::Discarded { .. } | BlockEvent::Mark(_) => {}
            }
        }
    }

    /// The device completes its writes.
    fn after_kill(trace: &[BlockEvent], _only_data: bool) -> Vec<BlockEvent> {
        let mut open = BTreeSet::new();
        for event in trace {
            match event {
                BlockEvent::Issued { id, .. } => drop(open.insert(*id)),
                BlockEvent::Completed { id, .. } => drop(open.remove(id)),
                BlockEvent::FlushBegun { .. }
                | BlockEvent::FlushEnded { .. }
                | BlockEvent::Discarded { .. }
                | BlockEvent::Mark(_) => {}
            }
        }
        let ends = open.into_iter();
        ends.map(|id| BlockEvent::Completed { id, ok: true })
            .collect()
    }

    fn essence(&self) -> Option<u64> {
        Some(self.inner.lock().essence)
    }

    /// Hash of the writes and of the final state. A crash between equal writes with an equal end
    /// leaves equivalent states.
    fn key_of_recovery(&self, trace: &[BlockEvent]) -> Option<u64> {
        let essence = self.inner.lock().essence;
        Some(trace.iter().map(hash_of).fold(essence, mix))
    }
}

/// The rule of write `wanted` in a trace, if it has force unit access.
fn durable_write(trace: &[BlockEvent], wanted: EventId) -> Option<Rule> {
    let issued = trace.iter().rev().find_map(|event| {
        let BlockEvent::Issued { id, durable, .. } = event else {
            return None;
        };
        (*id == wanted).then_some(*durable)
    });
    issued.flatten()
}

/// Hash of an event of a recovery's trace, without ids.
fn hash_of(event: &BlockEvent) -> u64 {
    match event {
        BlockEvent::Issued { lba, data, .. } => mix(lba.0, xxh3_64(data)),
        BlockEvent::FlushEnded { .. } => 1,
        BlockEvent::Completed { .. }
        | BlockEvent::FlushBegun { .. }
        | BlockEvent::Discarded { .. }
        | BlockEvent::Mark(_) => 0,
    }
}

impl StateDevice {
    fn beyond(&self, lba: Lba) -> BlockError {
        BlockError::OutOfRange {
            device: Arc::from(self.name()),
            lba,
            blocks: self.geometry.blocks,
        }
    }
}
