//! A block device with faults in it, for tests. Faults can be set and healed while the device
//! is in use.

use super::{BlockDevice, BlockError, Buffer, Completion, Lba, Write};
use crate::Rule;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Forwards everything to `D`, except where a fault was set.
pub struct FaultyDevice<D> {
    inner: D,
    faults: Mutex<Faults>,
    /// Completions of writes that `inner` did not receive.
    failed: Mutex<Vec<Completion>>,
}

#[derive(Default)]
struct Faults {
    reads: Bad,
    writes: Bad,
    torn: BTreeMap<Lba, usize>,
    misdirected: BTreeMap<Lba, Lba>,
    flush: Option<Errno>,
    loses_flushes: bool,
    full: bool,
}

/// The faults of one kind of call.
#[derive(Default)]
struct Bad {
    blocks: Vec<(Range<Lba>, Errno)>,
    /// Calls until the one that fails, and its error.
    countdown: Option<(u64, Errno)>,
}

impl Bad {
    /// The error with which a call for these blocks fails, if it does.
    fn strikes(&mut self, blocks: &Range<Lba>) -> Option<Errno> {
        if let Some((left, errno)) = &mut self.countdown {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let errno = *errno;
                self.countdown = None;
                return Some(errno);
            }
        }
        let hit = |bad: &&(Range<Lba>, Errno)| bad.0.start < blocks.end && blocks.start < bad.0.end;
        self.blocks.iter().find(hit).map(|bad| bad.1)
    }
}

impl<D: BlockDevice> FaultyDevice<D> {
    /// A device without faults yet.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            faults: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// The device below, without the faults.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Makes reads of these blocks fail.
    pub fn fail_reads(&self, blocks: Range<Lba>, errno: Errno) {
        self.faults.lock().reads.blocks.push((blocks, errno));
    }

    /// Makes writes of these blocks fail and change nothing.
    pub fn fail_writes(&self, blocks: Range<Lba>, errno: Errno) {
        self.faults.lock().writes.blocks.push((blocks, errno));
    }

    /// Makes the `n`-th read call from now fail; 1 is the next.
    pub fn fail_nth_read(&self, n: u64, errno: Errno) {
        self.faults.lock().reads.countdown = Some((n, errno));
    }

    /// Makes the `n`-th block that is written from now fail; 1 is the next.
    pub fn fail_nth_write(&self, n: u64, errno: Errno) {
        self.faults.lock().writes.countdown = Some((n, errno));
    }

    /// Truncates the next write of a block to its first `new_bytes`. The write reports success.
    pub fn tear(&self, lba: Lba, new_bytes: usize) {
        self.faults.lock().torn.insert(lba, new_bytes);
    }

    /// Redirects the next write of a block to another block. The write reports success.
    pub fn misdirect(&self, lba: Lba, to: Lba) {
        self.faults.lock().misdirected.insert(lba, to);
    }

    /// Makes every flush fail.
    pub fn fail_flushes(&self, errno: Errno) {
        self.faults.lock().flush = Some(errno);
    }

    /// Makes flushes report success without reaching the device below; durable writes reach it
    /// as ordinary ones.
    pub fn lose_flushes(&self) {
        self.faults.lock().loses_flushes = true;
    }

    /// Makes every write fail with `ENOSPC`, as on a file whose file system is full.
    pub fn fill(&self) {
        self.faults.lock().full = true;
    }

    /// Removes all faults. Their effects stay.
    pub fn heal(&self) {
        *self.faults.lock() = Faults::default();
    }

    /// The write to forward, or the completion of a failed one.
    fn through(&self, faults: &mut Faults, mut write: Write) -> Result<Write, Completion> {
        let lba = write.lba;
        let full = faults.full.then_some(Errno::NOSPC);
        if let Some(errno) = full.or_else(|| faults.writes.strikes(&span(lba, 1))) {
            let (tag, result) = (write.tag, Err(self.error("writing", lba, errno)));
            return Err(Completion { tag, result });
        }
        if let Some(new_bytes) = faults.torn.remove(&lba) {
            write.data = self.torn(&write, new_bytes);
        }
        write.lba = faults.misdirected.remove(&lba).unwrap_or(lba);
        if faults.loses_flushes {
            write.durable = None;
        }
        Ok(write)
    }

    /// The start of the new block and the end of the old one.
    fn torn(&self, write: &Write, new_bytes: usize) -> Arc<Buffer> {
        let mut mixed = Buffer::zeroed(write.data.len());
        let new_bytes = new_bytes.min(mixed.len());
        // If the read fails, any contents will do for the rest of the block.
        let _ = self.inner.read(write.lba, &mut mixed);
        mixed[..new_bytes].copy_from_slice(&write.data[..new_bytes]);
        Arc::new(mixed)
    }

    fn error(&self, what: &'static str, lba: Lba, error: Errno) -> BlockError {
        BlockError::Io {
            device: self.name().into(),
            what,
            lba,
            error,
        }
    }
}

fn span(lba: Lba, blocks: u64) -> Range<Lba> {
    lba..Lba(lba.0.saturating_add(blocks))
}

impl<D: BlockDevice> crate::block::layer::DeviceLayer for FaultyDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let blocks = buf.len() as u64 / u64::from(self.inner.geometry().block_bytes);
        let strike = self.faults.lock().reads.strikes(&span(lba, blocks));
        match strike {
            Some(errno) => Err(self.error("reading", lba, errno)),
            None => self.inner.read(lba, buf),
        }
    }

    fn submit(&self, writes: Vec<Write>) {
        let mut faults = self.faults.lock();
        let mut good = Vec::with_capacity(writes.len());
        for write in writes {
            match self.through(&mut faults, write) {
                Ok(write) => good.push(write),
                Err(completion) => self.failed.lock().push(completion),
            }
        }
        drop(faults);
        self.inner.submit(good);
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = std::mem::take(&mut *self.failed.lock());
        done.extend(self.inner.reap(min.saturating_sub(done.len())));
        done
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        let (failing, lost) = {
            let faults = self.faults.lock();
            (faults.flush, faults.loses_flushes)
        };
        match failing {
            Some(error) => Err(BlockError::Flush {
                device: self.inner.name().into(),
                error,
            }),
            None if lost => Ok(()),
            None => self.inner.flush(rule),
        }
    }
}
