//! What a crash may leave of a trace.
//!
//! Guarantees, after any prefix of a trace: the durable image has every write that the
//! persistence model calls durable, and of those to one block the last; every other write
//! that was issued is open, unless a later one to its block is durable.

use super::{BlockEvent, Buffer, EventId, Image, Lba, Persistence};
use std::collections::HashMap;
use std::sync::Arc;

/// A write that a crash may leave done, not done or torn.
#[derive(Debug, Clone)]
pub struct OpenWrite {
    /// Its number in the trace.
    pub id: EventId,
    /// Where it goes.
    pub lba: Lba,
    /// The block.
    pub data: Arc<Buffer>,
    /// Whether it has force unit access.
    pub durable: bool,
    /// How many writes had completed before it; `None` if it has not, or has failed.
    pub completed: Option<u64>,
}

/// What a crash has left of an open write. (All or nothing: all sectors or no entry.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Its place in [`Replay::open`].
    pub place: usize,
    /// Bit i: its i-th 512 bytes are there. [`Left::WHOLE`]: all.
    pub sectors: u128,
}

impl Left {
    /// All sectors of the largest block.
    pub const WHOLE: u128 = u128::MAX;
}

/// Follows a trace from an image.
#[derive(Debug, Clone)]
pub struct Replay {
    persistence: Persistence,
    image: Image,
    open: Vec<OpenWrite>,
    completed: u64,
    /// For flushes under way: how many writes had completed when they began.
    flushes: HashMap<EventId, u64>,
}

impl Replay {
    /// Starts with an image that is durable, on a device that keeps such promises.
    pub fn new(image: Image, persistence: Persistence) -> Self {
        Self {
            persistence,
            image,
            open: Vec::new(),
            completed: 0,
            flushes: HashMap::new(),
        }
    }

    /// What is durable for certain.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The open writes, in the order in which they were issued.
    pub fn open(&self) -> &[OpenWrite] {
        &self.open
    }

    /// What a crash at this moment leaves, if it leaves these of the open writes. They
    /// are put in place in the order in which they were issued.
    pub fn crash(&self, left: &[Left]) -> Image {
        let mut image = self.image.clone();
        let mut left = left.to_vec();
        left.sort_unstable_by_key(|left| left.place);
        for Left { place, sectors } in left {
            let Some(write) = self.open.get(place) else {
                continue;
            };
            let data = if sectors == Left::WHOLE {
                write.data.clone()
            } else {
                torn(&image, write, sectors)
            };
            image.set(write.lba, data);
        }
        image
    }

    /// Goes one step on. A discard changes nothing: the device may ignore it.
    pub fn apply(&mut self, event: &BlockEvent) {
        match event {
            BlockEvent::Issued {
                id,
                lba,
                data,
                durable,
            } => self.open.push(OpenWrite {
                id: *id,
                lba: *lba,
                data: data.clone(),
                durable: *durable,
                completed: None,
            }),
            BlockEvent::Completed { id, ok: true } => self.complete(*id),
            BlockEvent::FlushBegun { id } => {
                self.flushes.insert(*id, self.completed);
            }
            BlockEvent::FlushEnded { id, ok, .. } => {
                if let (Some(before), true) = (self.flushes.remove(id), ok) {
                    self.settle(|write| write.completed.is_some_and(|at| at < before));
                }
            }
            // A write that failed may have been done; it stays open.
            BlockEvent::Completed { ok: false, .. }
            | BlockEvent::Discarded { .. }
            | BlockEvent::Mark(_) => {}
        }
    }

    fn complete(&mut self, id: EventId) {
        let volatile_cache = self.persistence.volatile_cache;
        if let Some(write) = self.open.iter_mut().find(|write| write.id == id) {
            write.completed = Some(self.completed);
            self.completed += 1;
            if write.durable || !volatile_cache {
                self.settle(|write| write.id == id);
            }
        }
    }

    /// Makes writes durable, and forgets the earlier ones to their blocks.
    fn settle(&mut self, durable: impl Fn(&OpenWrite) -> bool) {
        let last: HashMap<Lba, usize> = self
            .open
            .iter()
            .enumerate()
            .filter(|(_, write)| durable(write))
            .map(|(place, write)| (write.lba, place))
            .collect();
        for place in last.values() {
            let write = &self.open[*place];
            self.image.set(write.lba, write.data.clone());
        }
        let mut place = 0..;
        self.open.retain(|write| {
            let here = place.next();
            last.get(&write.lba).is_none_or(|last| here > Some(*last))
        });
    }
}

/// The block as it is with some of the new sectors in it.
fn torn(image: &Image, write: &OpenWrite, sectors: u128) -> Arc<Buffer> {
    let old = image.block(write.lba).unwrap_or(&write.data);
    let mut mixed = Buffer::from_slice(old);
    for (i, (to, new)) in mixed
        .chunks_mut(512)
        .zip(write.data.chunks(512))
        .enumerate()
    {
        if sectors >> i & 1 == 1 {
            to.copy_from_slice(new);
        }
    }
    Arc::new(mixed)
}
