//! The journal: single cases of the log, and random crashes.

mod beside;
mod cases;
mod device;
mod full;
mod interop;
mod reuse;

use super::{Journal, JournalOptions, Mode, Place, format};
use crate::{Cache, CacheOptions};
use device::{BLOCK, Recorder};
use medium::block::{BlockDevice, Lba};
use std::sync::Arc;

/// Home blocks of the test devices; the log comes after them, in two runs the wrong way
/// round, the last block between them unused.
const HOME: u64 = 48;

fn place(log_blocks: u64) -> Place {
    let half = log_blocks / 2;
    Place::new([(Lba(HOME + half + 1), log_blocks - half), (Lba(HOME), half)])
}

/// A device with an empty log.
fn formatted(log_blocks: u64) -> Vec<u8> {
    let bytes = vec![0; (HOME + log_blocks + 1) as usize * BLOCK];
    let device = Recorder::new(bytes);
    format(&device, &place(log_blocks), [7; 16]).unwrap();
    device.bytes()
}

struct Bench {
    device: Arc<Recorder>,
    cache: Arc<Cache>,
    journal: Journal,
}

fn open(bytes: Vec<u8>, log_blocks: u64, mode: Mode) -> Bench {
    let device = Arc::new(Recorder::new(bytes));
    let boxed: Box<dyn BlockDevice> = Box::new(device.clone());
    let options = CacheOptions {
        interval: None,
        wave: 3,
        dirty_limit: 200,
        ..CacheOptions::default()
    };
    let cache = Arc::new(Cache::new(vec![boxed], options));
    let options = JournalOptions {
        mode,
        interval: None,
    };
    let volume = cache.volume(0);
    let journal = Journal::open(volume.clone(), volume, place(log_blocks), options).unwrap();
    Bench {
        device,
        cache,
        journal,
    }
}

impl Bench {
    /// What the journal's thread does now and then.
    fn reclaim(&self) {
        let shared = &self.journal.shared;
        shared.reclaim(&mut shared.state.lock()).unwrap();
    }
}

/// As bytes after a crash, replayed.
fn replayed(bytes: Vec<u8>, log_blocks: u64) -> Result<Vec<u8>, super::JournalError> {
    let device = Recorder::new(bytes);
    super::replay(&device, &device, &place(log_blocks))?;
    Ok(device.bytes())
}
