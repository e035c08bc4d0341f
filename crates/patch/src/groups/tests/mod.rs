//! Sets of changes on each kind of store: single cases, and random crashes.

mod cases;
mod random;

use super::{Groups, Sets};
use crate::journal::tests::device::{BLOCK, Crash, Recorder};
use crate::journal::tests::{Bench, HOME, formatted, open, replayed};
use crate::{
    Async, Cache, CacheOptions, Caller, Change, Content, Journal, Mode, PatchId, Store, StoreError,
};
use medium::block::{BlockDevice, Lba};
use std::sync::Arc;

/// Blocks of the log of a journal.
const LOG: u64 = 60;

/// The stores that sets are tested on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// The cache, as for soft updates.
    Cache,
    /// `Groups` above `Async`, as in mode `async`.
    AboveAsync,
    /// `Groups` below `Async`.
    BelowAsync,
    Journal(Mode),
}

impl On {
    const ALL: [Self; 6] = [
        Self::Cache,
        Self::AboveAsync,
        Self::BelowAsync,
        Self::Journal(Mode::Full),
        Self::Journal(Mode::Ordered),
        Self::Journal(Mode::Metadata),
    ];
}

struct Setup {
    device: Arc<Recorder>,
    cache: Arc<Cache>,
    journal: Option<Arc<Journal>>,
    groups: Arc<Groups<Arc<dyn Store>>>,
    /// The store that a format would use.
    top: Arc<dyn Store>,
}

impl Setup {
    fn new(on: On) -> Self {
        match on {
            On::Journal(mode) => {
                let Bench {
                    device,
                    cache,
                    journal,
                } = open(formatted(LOG), LOG, mode);
                let journal = Arc::new(journal);
                let groups = Arc::new(Groups::new(journal.clone() as Arc<dyn Store>));
                Self {
                    device,
                    cache,
                    journal: Some(journal),
                    top: groups.clone(),
                    groups,
                }
            }
            On::Cache | On::AboveAsync | On::BelowAsync => Self::without_journal(on),
        }
    }

    fn without_journal(on: On) -> Self {
        let device = Arc::new(Recorder::new(vec![0; HOME as usize * BLOCK]));
        let boxed: Box<dyn BlockDevice> = Box::new(device.clone());
        let options = CacheOptions {
            interval: None,
            wave: 3,
            dirty_limit: 200,
            ..CacheOptions::default()
        };
        let cache = Arc::new(Cache::new(vec![boxed], options));
        let volume = cache.store(0);
        let below: Arc<dyn Store> = match on {
            On::AboveAsync => Arc::new(Async::new(volume)),
            _ => Arc::new(volume),
        };
        let groups = Arc::new(Groups::new(below));
        let top: Arc<dyn Store> = match on {
            On::BelowAsync => Arc::new(Async::new(groups.clone())),
            _ => groups.clone(),
        };
        Self {
            device,
            cache,
            journal: None,
            groups,
            top,
        }
    }

    /// Puts a stamp at a place of a block, in an operation whose changes join these sets.
    fn put(&self, sets: &[u64], place: (u64, u64), stamp: u64) -> Result<PatchId, StoreError> {
        let op = self.top.begin(1, caller(sets))?;
        let changed = self.put_in(&op, place, content(place.0), stamp);
        self.top.end(op);
        changed
    }

    fn put_in(
        &self,
        op: &crate::Op,
        (lba, place): (u64, u64),
        content: Content,
        stamp: u64,
    ) -> Result<PatchId, StoreError> {
        let change = Change::Bytes {
            at: 8 * place as u32,
            bytes: &stamp.to_le_bytes(),
        };
        let patched = self.top.change(op, Lba(lba), content, change, &[])?;
        Ok(patched.id)
    }

    /// `Groups::sync`, and not that of the store.
    fn sync(&self, set: u64) -> Result<(), StoreError> {
        Groups::sync(&self.groups, set)
    }

    /// Commits the running transaction, where there is a journal.
    fn commit(&self) {
        if let Some(journal) = &self.journal {
            journal.commit().unwrap();
        }
    }

    /// The state that a mount finds after a power cut now, if the device kept only what was flushed.
    fn durable(&self) -> Stamps {
        let events = self.device.events.lock().len();
        self.after(self.device.crash_without_cache(events))
    }

    /// The state that a mount finds after a crash: a journal is replayed.
    fn after(&self, crash: Crash) -> Stamps {
        Stamps(match self.journal {
            Some(_) => replayed(crash.bytes, LOG).unwrap(),
            None => crash.bytes,
        })
    }
}

/// The stamps in an image.
struct Stamps(Vec<u8>);

impl Stamps {
    fn at(&self, (lba, place): (u64, u64)) -> u64 {
        let at = lba as usize * BLOCK + 8 * place as usize;
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }
}

fn caller(sets: &[u64]) -> Caller {
    Caller {
        sets: Sets::new(Some(sets.into())),
        ..Caller::SYSTEM
    }
}

/// The blocks with even numbers hold metadata, the others data.
fn content(lba: u64) -> Content {
    match lba % 2 {
        0 => Content::Metadata,
        _ => Content::Data,
    }
}
