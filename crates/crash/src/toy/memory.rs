//! The toy with its log in persistent memory. Word 0 is a magic number, word 1 the number of
//! records, word 2 the end of the log (the commit).

use super::{CallLog, Record, ToyBug, ToyFs, calls};
use medium::{MediumError, Pmem, Rule};
use std::sync::Arc;
use vfs::check::{Report, Severity};
use vfs::{Clock, Durability, Errno, FileSystem, Guarantees, Result, System};

const MAGIC: u64 = 0x0070_0079;
const COUNT: u64 = 8;
const TAIL: u64 = 16;
const LOG: u64 = 64;
const IMAGE_BYTES: u64 = 64 << 10;

/// The toy as a system of the explorer.
pub(crate) struct Toy(pub ToyBug);

impl System<dyn Pmem> for Toy {
    fn id(&self) -> String {
        format!("toy-{:?}", self.0)
    }

    fn image_bytes(&self) -> u64 {
        IMAGE_BYTES
    }

    fn format(&self, pm: &dyn Pmem) -> std::result::Result<(), String> {
        pm.store_word(0, MAGIC);
        pm.store_word(TAIL, LOG);
        pm.flush(0, 64);
        pm.fence(Rule::DurableBeforeReturn)
            .map_err(|e| e.to_string())
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> std::result::Result<Arc<dyn FileSystem>, String> {
        let bug = self.0;
        let log = MemoryLog { bug, pm };
        let fs = ToyFs::open(bug, Box::new(log), clock)?;
        Ok(Arc::new(fs))
    }

    fn check(&self, pm: &dyn Pmem) -> Report {
        let mut report = Report::default();
        if self.0 == ToyBug::Leaks && pm.load(COUNT).is_ok_and(|n| n > 1) {
            report.add("T1", Severity::Leak, "a record too many");
        }
        report
    }
}

struct MemoryLog {
    bug: ToyBug,
    pm: Arc<dyn Pmem>,
}

impl CallLog for MemoryLog {
    fn guarantees(&self) -> Guarantees {
        calls(Durability::AtReturn)
    }

    fn records(&self) -> std::result::Result<Vec<Option<Record>>, String> {
        let word = |off| self.pm.load(off).map_err(|e| e.to_string());
        if word(0)? != MAGIC {
            return Err("no magic".to_string());
        }
        let tail = word(TAIL)?;
        let len = tail.checked_sub(LOG).filter(|_| tail <= self.pm.len());
        let mut log = vec![0; len.ok_or("the end is damaged")? as usize];
        self.pm.read(LOG, &mut log).map_err(|e| e.to_string())?;
        let records = Record::decode(&log)?;
        let count = records.len() as u64;
        if self.bug == ToyBug::WideStore && word(COUNT)? != count {
            return Err("end and count differ".to_string());
        }
        if self.bug == ToyBug::RecoveryUnordered && word(COUNT)? != count {
            // Stores a wrong end before it stores the count.
            self.pm.store_word(TAIL, LOG);
            self.pm.store_word(COUNT, count);
            self.pm.flush(0, 64);
            self.pm
                .fence(Rule::DurableBeforeReturn)
                .map_err(|e| e.to_string())?;
            self.pm.store_word(TAIL, tail);
            self.pm.flush(0, 64);
            self.pm
                .fence(Rule::DurableBeforeReturn)
                .map_err(|e| e.to_string())?;
        }
        Ok(records.into_iter().map(Some).collect())
    }

    fn has_room(&self, bytes: u64) -> bool {
        let tail = self.pm.load(TAIL).unwrap_or(u64::MAX);
        tail.saturating_add(bytes) <= self.pm.len()
    }

    fn append(&self, record: &Record) -> Result<()> {
        let at = self.pm.load(TAIL).map_err(io)?;
        let bytes = record.encode();
        self.pm.store(at, &bytes);
        if self.bug != ToyBug::MissingFlush {
            self.pm.flush(at, bytes.len() as u64);
        }
        if self.bug != ToyBug::MissingFence {
            self.pm.fence(Rule::DataBeforeCommit).map_err(io)?;
        }
        let count = self.pm.load(COUNT).map_err(io)? + 1;
        let mut header = [0; 16];
        header[..8].copy_from_slice(&count.to_le_bytes());
        header[8..].copy_from_slice(&(at + bytes.len() as u64).to_le_bytes());
        self.pm.store(COUNT, &header);
        self.pm.flush(COUNT, 16);
        if self.bug == ToyBug::NotDurable {
            return Ok(());
        }
        self.pm.fence(Rule::DurableBeforeReturn).map_err(io)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

fn io(_: MediumError) -> Errno {
    Errno::IO
}
