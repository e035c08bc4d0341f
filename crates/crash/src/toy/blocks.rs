//! The toy with its log on blocks. Block 0 holds the end of the log twice, and the log fills the
//! blocks from 1 on. Records gather in memory. A write-back stores the blocks that they changed,
//! flushes, and then commits by the write of block 0.

use super::{CallLog, Record, ToyBug, ToyFs, calls};
use crate::sabotage::listed;
use medium::Rule;
use medium::block::{BlockDevice, Buffer, Lba, Write};
use parking_lot::Mutex;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{BlockSystem, Clock, Durability, Errno, FileSystem, Guarantees, Still, System};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 32;
/// Offset of the second copy of the log's end in block 0, in its last sector.
const AGAIN: usize = BLOCK - 8;

listed! {
    /// A bug of the toy on blocks.
    pub(crate) enum BlockBug {
        Nothing,
        /// The commit is issued together with the log.
        CommitWithLog,
        /// The flush between log and commit begins before the log's writes have completed.
        FlushTooEarly,
        /// The commit has force unit access, and the log is not flushed.
        FuaForAll,
        /// The commit is never made durable.
        NotDurable,
        /// Recovery accepts a torn commit.
        TornCommit,
        /// Recovery stores an empty log before it stores the commit anew.
        RecoveryUnordered,
    }
}

/// The toy as a system of the explorer.
pub(crate) struct BlockToy(pub BlockBug);

impl System<dyn BlockDevice> for BlockToy {
    fn id(&self) -> String {
        format!("block-toy-{:?}", self.0)
    }

    fn image_bytes(&self) -> u64 {
        BLOCKS * BLOCK as u64
    }

    fn format(&self, _: &dyn BlockDevice) -> Result<(), String> {
        Ok(()) // zeros are an empty log
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        self.open_still(device, clock, usize::MAX).map(|s| s.fs)
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn open_still(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        _wave: usize,
    ) -> Result<Still, String> {
        let log = Arc::new(BlockLog {
            bug: self.0,
            device,
            tail: Mutex::default(),
        });
        let fs = ToyFs::open(ToyBug::Nothing, Box::new(Shared(log.clone())), clock)?;
        let same = log.clone();
        Ok(Still {
            fs: Arc::new(fs),
            write_some: Box::new(move || log.write_back()),
            write_drawn: Box::new(move |_| same.write_back()),
        })
    }

    fn check(&self, _: &dyn BlockDevice) -> Report {
        Report::default()
    }
}

impl BlockSystem<dyn BlockDevice> for BlockToy {
    fn block_bytes(&self) -> u32 {
        BLOCK as u32
    }

    fn atomic_bytes(&self) -> u32 {
        512
    }

    fn scratch(&self, _: Arc<dyn BlockDevice>) -> Result<Vec<u64>, String> {
        Ok(Vec::new())
    }
}

#[derive(Default)]
struct Tail {
    log: Vec<u8>,
    /// Stored part of it.
    stored: usize,
}

struct BlockLog {
    bug: BlockBug,
    device: Arc<dyn BlockDevice>,
    tail: Mutex<Tail>,
}

impl BlockLog {
    fn read(&self) -> Result<Vec<Record>, String> {
        let mut all = vec![0; BLOCKS as usize * BLOCK];
        let read = self.device.read(Lba(0), &mut all);
        read.map_err(|e| e.to_string())?;
        let end = |at: usize| {
            all[at..at + 8]
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b))
        };
        let (end, again) = (end(0), end(AGAIN));
        if end != again && self.bug == BlockBug::TornCommit {
            return Err("the ends differ".to_string());
        }
        // In a torn commit the smaller end is that of the commit before.
        let end = end.min(again) as usize;
        if self.bug == BlockBug::RecoveryUnordered && end > 0 {
            self.commit(0)?;
            self.commit(end)?;
        }
        let log = all.get(BLOCK..BLOCK + end).ok_or("the end is damaged")?;
        *self.tail.lock() = Tail {
            log: log.to_vec(),
            stored: end,
        };
        Record::decode(log)
    }

    /// The writes of the blocks that hold unstored records.
    fn body(&self, tail: &Tail) -> Vec<Write> {
        let first = tail.stored / BLOCK;
        let blocks = tail.log.chunks(BLOCK).enumerate().skip(first);
        let write = |(n, bytes): (usize, &[u8])| {
            let mut data = Buffer::zeroed(BLOCK);
            data[..bytes.len()].copy_from_slice(bytes);
            self.write(n as u64 + 1, data, false)
        };
        blocks.map(write).collect()
    }

    fn write(&self, lba: u64, data: Buffer, durable: bool) -> Write {
        Write {
            tag: lba,
            lba: Lba(lba),
            data: Arc::new(data),
            durable: durable.then_some(Rule::DurableBeforeReturn),
        }
    }

    fn header(&self, end: usize, durable: bool) -> Write {
        let mut data = Buffer::zeroed(BLOCK);
        data[..8].copy_from_slice(&(end as u64).to_le_bytes());
        data[AGAIN..].copy_from_slice(&(end as u64).to_le_bytes());
        self.write(0, data, durable)
    }

    fn finish(&self, mut count: usize) -> Result<(), String> {
        while count > 0 {
            for done in self.device.reap(count) {
                done.result.map_err(|e| e.to_string())?;
                count -= 1;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), String> {
        self.device
            .flush(Rule::DataBeforeCommit)
            .map_err(|e| e.to_string())
    }

    fn commit(&self, end: usize) -> Result<(), String> {
        let durable = self.bug != BlockBug::NotDurable;
        self.device.submit(vec![self.header(end, durable)]);
        self.finish(1)
    }

    fn write_back(&self) -> Result<usize, String> {
        let mut tail = self.tail.lock();
        let end = tail.log.len();
        if tail.stored == end {
            return Ok(0);
        }
        let mut writes = self.body(&tail);
        let count = writes.len();
        tail.stored = end;
        match self.bug {
            BlockBug::CommitWithLog => {
                writes.push(self.header(end, false));
                self.device.submit(writes);
                self.finish(count + 1)?;
                self.flush()?;
                return Ok(count + 1);
            }
            BlockBug::FlushTooEarly => {
                self.device.submit(writes);
                self.flush()?;
                self.finish(count)?;
            }
            BlockBug::FuaForAll => {
                self.device.submit(writes);
                self.finish(count)?;
            }
            BlockBug::Nothing
            | BlockBug::NotDurable
            | BlockBug::TornCommit
            | BlockBug::RecoveryUnordered => {
                self.device.submit(writes);
                self.finish(count)?;
                self.flush()?;
            }
        }
        self.commit(end)?;
        Ok(count + 1)
    }
}

struct Shared(Arc<BlockLog>);

impl CallLog for Shared {
    fn guarantees(&self) -> Guarantees {
        calls(Durability::AtFsync)
    }

    fn records(&self) -> Result<Vec<Option<Record>>, String> {
        let records = self.0.read()?;
        Ok(records.into_iter().map(Some).collect())
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.0.tail.lock().log.len() as u64 + bytes <= (BLOCKS - 1) * BLOCK as u64
    }

    fn append(&self, record: &Record) -> vfs::Result<()> {
        self.0.tail.lock().log.extend(record.encode());
        Ok(())
    }

    fn sync(&self) -> vfs::Result<()> {
        self.0.write_back().map(drop).map_err(|_| Errno::IO)
    }
}
