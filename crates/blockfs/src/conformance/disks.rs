//! The devices of a mount: an image, and a log if the stack has a journal.

use super::{Subject, Suite, Wrong};
use medium::block::{BlockDevice, Geometry, Lba, MemoryDevice};
use patch::journal::{self, JournalError, JournalOptions, LogBlocks};
use patch::stack::{Assembled, BuildError, Device, Stack};
use std::sync::Arc;

/// Blocks of a log, enough for the largest operation of a check.
const LOG_BLOCKS: u64 = 4096;

/// Least bytes of a cache, enough for the largest operation of a check.
const MIN_CACHE_BYTES: u64 = 16 << 20;

/// An image and its log.
pub(super) struct Disks {
    image: Arc<MemoryDevice>,
    log: Option<Arc<MemoryDevice>>,
    /// Number of transactions that were replayed.
    pub replayed: u64,
}

impl Disks {
    /// Makes an image, and an empty log if the stack has a journal.
    pub(super) fn new<S: Subject>(suite: &Suite<'_, S>) -> Result<Self, Wrong> {
        let image = suite.subject.image();
        let log = match suite.stack.log_device() {
            None if suite.stack.journal().is_some() => {
                return Err("the journal needs 'log=1'".to_owned().into());
            }
            None => None,
            Some(_) => {
                let block_bytes = image.geometry().block_bytes;
                let log = MemoryDevice::new(Geometry {
                    block_bytes,
                    blocks: LOG_BLOCKS,
                });
                journal::format(&log, &whole(), [1; 16])?;
                Some(Arc::new(log))
            }
        };
        Ok(Self {
            image,
            log,
            replayed: 0,
        })
    }

    /// Builds the stack on the devices. Its cache writes only when the suite asks for it.
    pub(super) fn assemble(&self, stack: &Stack) -> Result<Assembled, Wrong> {
        let mut stack = stack.clone();
        let bytes = |device: &Arc<MemoryDevice>| device.geometry().bytes();
        let all_bytes = bytes(&self.image) + self.log.as_ref().map_or(0, bytes);
        stack.set_cache(|cache| {
            // No check fills it, although only a part of the blocks may be dirty.
            cache.bytes = MIN_CACHE_BYTES.max(4 * all_bytes);
            cache.interval = None;
        });
        let mut devices: Vec<Device> = vec![self.image.clone()];
        let log = self.log.as_ref().map(|log| {
            devices.push(log.clone());
            (1, whole())
        });
        let seconds = JournalOptions::default().seconds;
        Ok(stack.assemble(devices, log, seconds)?)
    }

    /// Copies the devices, as after a crash, and replays the log.
    pub(super) fn crashed(&self) -> Result<Self, Wrong> {
        let copy = |device: &Arc<MemoryDevice>| {
            let block_bytes = device.geometry().block_bytes;
            Arc::new(MemoryDevice::from_bytes(block_bytes, device.bytes()))
        };
        let mut crashed = Self {
            image: copy(&self.image),
            log: self.log.as_ref().map(copy),
            replayed: 0,
        };
        if let Some(log) = &crashed.log
            && journal::needs_recovery(&**log, &whole())?
        {
            let done = journal::replay(&*crashed.image, &**log, &whole())?;
            crashed.replayed = done.transactions;
        }
        Ok(crashed)
    }
}

/// The place of a log that fills its device.
fn whole() -> LogBlocks {
    LogBlocks::new([(Lba(0), LOG_BLOCKS)])
}

impl From<JournalError> for Wrong {
    fn from(error: JournalError) -> Self {
        Self(format!("the log failed: {error}"))
    }
}

impl From<BuildError> for Wrong {
    fn from(error: BuildError) -> Self {
        Self(format!("the stack cannot be built: {error}"))
    }
}
