//! The images that a crash may leave after a trace.
//!
//! Guarantees, after any prefix of a trace: the durable image has the last write of each block
//! that is durable under the persistence model. Every other issued write is open, unless a
//! later one to its block is durable.

use super::{BlockEvent, Buffer, EventId, Image, Lba, Persistence};
use std::collections::HashMap;
use std::sync::Arc;

/// A write that a crash may leave done, not done or torn.
#[derive(Debug, Clone)]
pub struct OpenWrite {
    /// The number of the write in the trace.
    pub id: EventId,
    /// The block that is written.
    pub lba: Lba,
    /// The new contents.
    pub data: Arc<Buffer>,
    /// Whether the write has force unit access.
    pub durable: bool,
    /// The number of writes that had completed before it; `None` if it has not completed or has
    /// failed.
    pub completed: Option<u64>,
}

/// The sectors of an open write that a crash left. A write that left none has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Its index in [`Replay::open`].
    pub place: usize,
    /// Bit i: its i-th 512 bytes are written. [`Left::WHOLE`]: all are.
    pub sectors: u128,
}

impl Left {
    /// All sectors of the largest block.
    pub const WHOLE: u128 = u128::MAX;
}

/// The state of a trace, from an initial image on.
#[derive(Debug, Clone)]
pub struct Replay {
    persistence: Persistence,
    image: Image,
    open: Vec<OpenWrite>,
    completed: u64,
    /// The number of writes that had completed when each flush under way began.
    flushes: HashMap<EventId, u64>,
}

impl Replay {
    /// Starts with a durable image, on a device with these guarantees.
    pub fn new(image: Image, persistence: Persistence) -> Self {
        Self {
            persistence,
            image,
            open: Vec::new(),
            completed: 0,
            flushes: HashMap::new(),
        }
    }

    /// The image of all durable writes.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The open writes, in the order in which they were issued.
    pub fn open(&self) -> &[OpenWrite] {
        &self.open
    }

    /// The image after a crash at this moment that leaves these open writes, applied in the
    /// order in which they were issued.
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

    /// Applies one event. A discard changes nothing: the device may ignore it.
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
                durable: durable.is_some(),
                completed: None,
            }),
            BlockEvent::Completed { id, ok: true } => self.complete(*id),
            BlockEvent::FlushBegun { id } => {
                self.flushes.insert(*id, self.completed);
            }
            BlockEvent::FlushEnded { id, ok, .. } => {
                if let (Some(before), true) = (self.flushes.remove(id), ok) {
                    self.make_durable(|write| write.completed.is_some_and(|at| at < before));
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
                self.make_durable(|write| write.id == id);
            }
        }
    }

    /// Makes writes durable, and drops the earlier ones to their blocks.
    fn make_durable(&mut self, durable: impl Fn(&OpenWrite) -> bool) {
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

/// The present block with some of the new sectors.
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
