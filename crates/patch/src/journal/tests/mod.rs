//! The journal: single cases of the log, and random crashes.

mod beside;
mod cases;
pub(crate) mod device;
mod full;
mod interop;
mod reuse;
mod slice;

use super::{Journal, JournalOptions, LogBlocks, Mode, format};
use crate::{Cache, CacheOptions, Store, Trace};
use device::{BLOCK, Recorder};
use medium::block::{BlockDevice, Lba};
use slice::Slice;
use std::sync::Arc;

/// Number of home blocks of the test devices. The log follows them in two runs, the second
/// half first, with one unused block between them.
pub(crate) const HOME: u64 = 48;

const DIRTY_LIMIT: usize = 200;

fn place(log_blocks: u64) -> LogBlocks {
    place_from(Lba(HOME), log_blocks)
}

/// The place of a log that begins at this block.
fn place_from(first: Lba, log_blocks: u64) -> LogBlocks {
    let half = log_blocks / 2;
    let second = Lba(first.0 + half + 1);
    LogBlocks::new([(second, log_blocks - half), (first, half)])
}

/// A device with an empty log.
pub(crate) fn formatted(log_blocks: u64) -> Vec<u8> {
    let bytes = vec![0; (HOME + log_blocks + 1) as usize * BLOCK];
    let device = Recorder::new(bytes);
    format(&device, &place(log_blocks), [7; 16]).unwrap();
    device.bytes()
}

pub(crate) struct Bench {
    pub(crate) device: Arc<Recorder>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) journal: Journal,
}

pub(crate) fn open(bytes: Vec<u8>, log_blocks: u64, mode: Mode) -> Bench {
    open_on(bytes, log_blocks, mode, (Below::DeviceStore, DIRTY_LIMIT))
}

/// The stores below a journal of a test.
#[derive(Clone, Copy)]
enum Below {
    /// Home and log are one volume.
    DeviceStore,
    /// Home and log are parts of a volume, with further layers above and below them.
    Layers,
}

fn open_on(
    bytes: Vec<u8>,
    log_blocks: u64,
    mode: Mode,
    (below, dirty_limit): (Below, usize),
) -> Bench {
    let device = Arc::new(Recorder::new(bytes));
    let boxed: Box<dyn BlockDevice> = Box::new(device.clone());
    let options = CacheOptions {
        interval: None,
        wave: 3,
        dirty_limit,
        ..CacheOptions::default()
    };
    let cache = Arc::new(Cache::new(vec![boxed], options));
    let options = JournalOptions {
        mode,
        interval: None,
        ..JournalOptions::default()
    };
    let volume = cache.store(0);
    let (home, log, place): (Arc<dyn Store>, Arc<dyn Store>, _) = match below {
        Below::DeviceStore => (
            Arc::new(volume.clone()),
            Arc::new(volume),
            place(log_blocks),
        ),
        Below::Layers => {
            let home = Trace(Slice::new(volume.clone(), 0..HOME));
            let log = Slice::new(Trace(volume), HOME..HOME + log_blocks + 1);
            (
                Arc::new(home),
                Arc::new(log),
                place_from(Lba(0), log_blocks),
            )
        }
    };
    let journal = Journal::open(home, log, place, options).unwrap();
    Bench {
        device,
        cache,
        journal,
    }
}

impl Bench {
    /// Reclaims log space, as the journal's thread does.
    fn reclaim(&self) {
        let shared = &self.journal.shared;
        shared.reclaim(&mut shared.state.lock()).unwrap();
    }
}

/// The bytes of a crash state after a replay.
pub(crate) fn replayed(bytes: Vec<u8>, log_blocks: u64) -> Result<Vec<u8>, super::JournalError> {
    let device = Recorder::new(bytes);
    super::replay(&device, &device, &place(log_blocks))?;
    Ok(device.bytes())
}
