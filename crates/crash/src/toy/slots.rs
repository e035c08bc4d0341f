//! A toy whose promise is a parameter, on memory and on blocks.
//!
//! Records lie in slots: record `n` in slot `1 + 2n`, with a checksum. Where data are not part of
//! the journal, the data of a write call are in the slot after its record. Slot 0 holds the
//! number of valid records, now and before the last commit. Soft updates do not use slot 0: each
//! whole record is valid, and a call that removes a name waits for all before it.

use super::{CallLog, Record, ToyBug, ToyFs};
use crate::sabotage::listed;
use medium::block::{BlockDevice, Buffer, Lba, Write};
use medium::{Pmem, Rule};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::Arc;
use vfs::check::{Report, Severity};
use vfs::{
    Atomicity, BlockSystem, Clock, Durability, Errno, FileSystem, Guarantees, Ordering, Still,
    System,
};
use xxhash_rust::xxh3::xxh3_64;

pub(super) const SLOT: usize = 1024;
pub(super) const SLOTS: usize = 96;
/// Most records.
pub(super) const RECORDS: usize = (SLOTS - 1) / 2;
/// Byte of another file's data, in slots that were not written yet.
const POISON: u8 = 0xee;
/// The kind of a record of a write call.
const WRITE: u64 = 6;

listed! {
    /// The promise of the toy.
    pub(super) enum Kind {
        Atomic,
        Soft,
        JournalMetadata,
        JournalOrdered,
        JournalFull,
        Checkpoint,
    }
}

listed! {
    /// A way to break the promise.
    pub(super) enum Bug {
        Nothing,
        /// Calls, or syncs, return before their commit is durable.
        ReturnsEarly,
        /// Later calls are committed before earlier ones.
        Reorders,
        /// A write call is logged as two.
        Tears,
        /// A write shows earlier data of another file.
        ShowsOthers,
        /// The data of a file are not synced with it.
        LosesData,
        /// A name is removed before another one is there.
        UnlinksFirst,
        /// Each call is committed by itself.
        BetweenCheckpoints,
        /// Recovery takes the commit before the last one.
        Older,
    }
}

impl Kind {
    /// The ways to break this promise.
    pub(super) fn bugs(self) -> &'static [Bug] {
        match self {
            Self::Atomic => &[Bug::ReturnsEarly, Bug::Tears, Bug::Older],
            Self::Soft => &[Bug::ReturnsEarly, Bug::ShowsOthers, Bug::UnlinksFirst],
            Self::JournalMetadata => &[Bug::ReturnsEarly, Bug::LosesData, Bug::Reorders],
            Self::JournalOrdered => &[Bug::ReturnsEarly, Bug::ShowsOthers, Bug::Reorders],
            Self::JournalFull => &[Bug::ReturnsEarly, Bug::Reorders, Bug::Tears, Bug::Older],
            Self::Checkpoint => &[Bug::ReturnsEarly, Bug::BetweenCheckpoints, Bug::Older],
        }
    }

    fn guarantees(self) -> Guarantees {
        let durable = match self {
            Self::Atomic => Durability::AtReturn,
            Self::Soft
            | Self::JournalMetadata
            | Self::JournalOrdered
            | Self::JournalFull
            | Self::Checkpoint => Durability::AtFsync,
        };
        let (metadata_atomic, data_atomic) = match self {
            Self::Soft => (Atomicity::None, Atomicity::None),
            Self::JournalMetadata => (Atomicity::Call, Atomicity::None),
            Self::JournalOrdered => (Atomicity::Call, Atomicity::Block),
            Self::Atomic | Self::JournalFull => (Atomicity::Call, Atomicity::Call),
            Self::Checkpoint => (Atomicity::Checkpoint, Atomicity::Checkpoint),
        };
        let order = |is: bool| {
            if is { Ordering::Global } else { Ordering::None }
        };
        let is_apart = matches!(self, Self::JournalMetadata | Self::JournalOrdered);
        Guarantees {
            name: format!("slots ({self:?})"),
            durable,
            metadata_atomic,
            data_atomic,
            metadata_ordered: order(self != Self::Soft),
            data_ordered: order(self != Self::Soft && !is_apart),
            times_atomic: self != Self::Soft,
            notes: Vec::new(),
        }
    }
}

/// The toy as a system of the explorer, on either medium.
pub(super) struct SlotToy(pub Kind, pub Bug);

impl SlotToy {
    fn id(&self) -> String {
        format!("slots-{:?}-{:?}", self.0, self.1)
    }

    fn format(slots: &dyn Slots) -> Result<(), String> {
        for n in 0..RECORDS {
            slots.write(2 + 2 * n, &[POISON; SLOT])?;
        }
        slots.barrier()
    }

    fn open(&self, slots: Box<dyn Slots>, clock: Arc<dyn Clock>) -> Result<Still, String> {
        let log = Arc::new(SlotLog {
            kind: self.0,
            bug: self.1,
            slots,
            records: Mutex::default(),
        });
        let fs = ToyFs::open(ToyBug::Nothing, Box::new(Shared(log.clone())), clock)?;
        let same = log.clone();
        Ok(Still {
            fs: Arc::new(fs),
            write_some: Box::new(move || log.write_some()),
            write_drawn: Box::new(move |_| same.write_some()),
        })
    }

    /// Reports a leak if a record is lost before one that is there.
    fn check(&self, slots: &dyn Slots) -> Report {
        let mut report = Report::default();
        let is_whole = |n: &usize| read_record(slots, *n).is_ok_and(|r| r.is_some());
        let last = (0..RECORDS).rev().find(is_whole).unwrap_or(0);
        if self.0 == Kind::Soft && !(0..last).all(|n| is_whole(&n)) {
            report.add("T2", Severity::Leak, "a record is missing");
        }
        report
    }
}

impl System<dyn Pmem> for SlotToy {
    fn id(&self) -> String {
        self.id()
    }
    fn image_bytes(&self) -> u64 {
        (SLOTS * SLOT) as u64
    }
    fn format(&self, pm: &(dyn Pmem + 'static)) -> Result<(), String> {
        Self::format(&OnMemory(pm))
    }
    fn open(&self, pm: Arc<dyn Pmem>, c: Arc<dyn Clock>) -> Result<Arc<dyn FileSystem>, String> {
        self.open(Box::new(OnMemory(pm)), c).map(|still| still.fs)
    }
    fn has_cache(&self) -> bool {
        self.0 != Kind::Atomic
    }
    fn open_still(&self, pm: Arc<dyn Pmem>, c: Arc<dyn Clock>, _: usize) -> Result<Still, String> {
        self.open(Box::new(OnMemory(pm)), c)
    }
    fn check(&self, pm: &(dyn Pmem + 'static)) -> Report {
        self.check(&OnMemory(pm))
    }
}

impl System<dyn BlockDevice> for SlotToy {
    fn id(&self) -> String {
        self.id()
    }
    fn image_bytes(&self) -> u64 {
        (SLOTS * SLOT) as u64
    }
    fn format(&self, device: &(dyn BlockDevice + 'static)) -> Result<(), String> {
        Self::format(&OnBlocks(device))
    }
    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        self.open(Box::new(OnBlocks(device)), clock)
            .map(|still| still.fs)
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
        self.open(Box::new(OnBlocks(device)), clock)
    }
    fn check(&self, device: &(dyn BlockDevice + 'static)) -> Report {
        self.check(&OnBlocks(device))
    }
}

impl BlockSystem<dyn BlockDevice> for SlotToy {
    fn block_bytes(&self) -> u32 {
        SLOT as u32
    }
    fn atomic_bytes(&self) -> u32 {
        SLOT as u32
    }
    fn scratch(&self, _: Arc<dyn BlockDevice>) -> Result<Vec<u64>, String> {
        Ok(Vec::new())
    }
}

/// Slots on either medium.
pub(super) trait Slots: Send + Sync {
    fn read(&self, slot: usize) -> Result<Vec<u8>, String>;
    /// Begins a write. Parts of it may become durable before others.
    fn write(&self, slot: usize, bytes: &[u8]) -> Result<(), String>;
    /// Makes all writes durable.
    fn barrier(&self) -> Result<(), String>;
}

pub(super) struct OnMemory<P>(pub(super) P);

impl<P: Deref<Target = dyn Pmem> + Send + Sync> Slots for OnMemory<P> {
    fn read(&self, slot: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; SLOT];
        let read = self.0.read((slot * SLOT) as u64, &mut bytes);
        read.map(|()| bytes).map_err(|e| e.to_string())
    }

    fn write(&self, slot: usize, bytes: &[u8]) -> Result<(), String> {
        let at = (slot * SLOT) as u64;
        self.0.store(at, bytes);
        self.0.flush(at, bytes.len() as u64);
        Ok(())
    }

    fn barrier(&self) -> Result<(), String> {
        self.0
            .fence(Rule::DurableBeforeReturn)
            .map_err(|e| e.to_string())
    }
}

pub(super) struct OnBlocks<D>(pub(super) D);

impl<D: Deref<Target = dyn BlockDevice> + Send + Sync> Slots for OnBlocks<D> {
    fn read(&self, slot: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; SLOT];
        let read = self.0.read(Lba(slot as u64), &mut bytes);
        read.map(|()| bytes).map_err(|e| e.to_string())
    }

    fn write(&self, slot: usize, bytes: &[u8]) -> Result<(), String> {
        let mut data = Buffer::zeroed(SLOT);
        data[..bytes.len()].copy_from_slice(bytes);
        self.0.submit(vec![Write {
            tag: 0,
            lba: Lba(slot as u64),
            data: Arc::new(data),
            durable: None,
        }]);
        let mut done = self.0.reap(1).into_iter();
        done.try_for_each(|done| done.result.map_err(|e| e.to_string()))
    }

    fn barrier(&self) -> Result<(), String> {
        self.0
            .flush(Rule::DurableBeforeReturn)
            .map_err(|e| e.to_string())
    }
}

/// Record `n`, if it is whole.
pub(super) fn read_record(slots: &dyn Slots, n: usize) -> Result<Option<Record>, String> {
    let bytes = slots.read(1 + 2 * n)?;
    let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
    let (sum, len) = (word(0), word(8));
    let (sum, len) = (sum.unwrap_or(0), len.unwrap_or(0) as usize);
    let Some(record) = bytes.get(16..16 + len) else {
        return Ok(None);
    };
    if len == 0 || xxh3_64(record) != sum {
        return Ok(None);
    }
    Ok(Record::decode(record)?.pop())
}

/// Begins the write of record `n`.
pub(super) fn write_record(slots: &dyn Slots, n: usize, record: &Record) -> Result<(), String> {
    let record = record.encode();
    let mut bytes = xxh3_64(&record).to_le_bytes().to_vec();
    bytes.extend((record.len() as u64).to_le_bytes());
    bytes.extend(record);
    slots.write(1 + 2 * n, &bytes)
}

#[derive(Default)]
struct Records {
    all: Vec<Record>,
    /// Number of written records.
    written: usize,
}

struct SlotLog {
    kind: Kind,
    bug: Bug,
    slots: Box<dyn Slots>,
    records: Mutex<Records>,
}

impl SlotLog {
    /// Whether the data of a write call are kept apart from its record.
    fn is_apart(&self) -> bool {
        matches!(self.kind, Kind::JournalMetadata | Kind::JournalOrdered)
            || self.kind == Kind::Soft && self.bug == Bug::ShowsOthers
    }

    /// Whether the data are written before the commit of their record.
    fn is_data_first(&self) -> bool {
        self.kind == Kind::JournalOrdered && self.bug != Bug::ShowsOthers
    }

    fn read(&self) -> Result<Vec<Option<Record>>, String> {
        let header = self.slots.read(0)?;
        let count = usize::from(header[usize::from(self.bug == Bug::Older) * 8]);
        let mut records = Vec::new();
        for n in 0..RECORDS {
            let record = match read_record(&*self.slots, n)? {
                Some(record) if self.is_apart() && record.kind == WRITE => {
                    Some(self.with_data(n, record)?)
                }
                record => record,
            };
            records.push(record);
        }
        if self.kind == Kind::Soft {
            let last = records.iter().rposition(Option::is_some);
            records.truncate(last.map_or(0, |last| last + 1));
        } else {
            records.truncate(count);
            if let Some(lost) = records.iter().position(Option::is_none) {
                return Err(format!("record {lost} is lost"));
            }
        }
        let lost = || Record::nothing();
        *self.records.lock() = Records {
            all: records
                .iter()
                .map(|r| r.clone().unwrap_or_else(lost))
                .collect(),
            written: records.len(),
        };
        Ok(records)
    }

    /// The record of a write call with its data. The stored record holds their length.
    fn with_data(&self, n: usize, record: Record) -> Result<Record, String> {
        let len = usize::from(record.bytes[0]) << 8 | usize::from(record.bytes[1]);
        let mut bytes = self.slots.read(2 + 2 * n)?;
        bytes.truncate(len);
        Ok(Record { bytes, ..record })
    }

    fn write_data(&self, n: usize, record: &Record) -> Result<(), String> {
        if !self.is_apart() || record.kind != WRITE {
            return Ok(());
        }
        self.slots.write(2 + 2 * n, &record.bytes)
    }

    fn write_record(&self, n: usize, record: &Record) -> Result<(), String> {
        let mut record = record.clone();
        if self.is_apart() && record.kind == WRITE {
            record.bytes = (record.bytes.len() as u16).to_be_bytes().to_vec();
        }
        write_record(&*self.slots, n, &record)
    }

    fn write_some(&self) -> Result<usize, String> {
        let mut records = self.records.lock();
        let Records { all, written } = &mut *records;
        if *written == all.len() {
            return Ok(0);
        }
        if self.bug == Bug::Reorders {
            all[*written..].reverse();
        }
        let first = *written;
        let removes = |record: &Record| matches!(record.kind, 4 | 5 | 8);
        let end = match self.kind {
            Kind::Checkpoint if self.bug != Bug::BetweenCheckpoints => all.len(),
            Kind::Soft if self.bug == Bug::UnlinksFirst => all.len(),
            Kind::Soft if !removes(&all[first]) => {
                let next = all[first..].iter().position(removes);
                next.map_or(all.len(), |next| first + next)
            }
            Kind::Atomic
            | Kind::Soft
            | Kind::JournalMetadata
            | Kind::JournalOrdered
            | Kind::JournalFull
            | Kind::Checkpoint => first + 1,
        };
        if self.kind == Kind::Soft && self.bug != Bug::UnlinksFirst && removes(&all[first]) {
            self.slots.barrier()?;
        }
        for (n, record) in (first..).zip(&all[first..end]) {
            self.write_record(n, record)?;
            if self.is_data_first() {
                self.write_data(n, record)?;
            }
        }
        if self.kind != Kind::Soft {
            self.commit(end)?;
        }
        for (n, record) in (first..).zip(&all[first..end]) {
            if !self.is_data_first() && self.bug != Bug::LosesData {
                self.write_data(n, record)?;
            }
        }
        *written = end;
        Ok(end - first)
    }

    fn commit(&self, end: usize) -> Result<(), String> {
        self.slots.barrier()?;
        let mut header = self.slots.read(0)?;
        header[8] = header[0];
        header[0] = end as u8;
        self.slots.write(0, &header[..16])?;
        if self.bug == Bug::ReturnsEarly {
            return Ok(());
        }
        self.slots.barrier()
    }

    fn sync(&self) -> Result<(), String> {
        while self.write_some()? > 0 {}
        if self.bug == Bug::ReturnsEarly {
            return Ok(());
        }
        self.slots.barrier()
    }
}

struct Shared(Arc<SlotLog>);

impl CallLog for Shared {
    fn guarantees(&self) -> Guarantees {
        self.0.kind.guarantees()
    }

    fn is_sparse(&self) -> bool {
        self.0.kind == Kind::Soft
    }

    fn splits(&self) -> bool {
        self.0.bug == Bug::Tears
    }

    fn records(&self) -> Result<Vec<Option<Record>>, String> {
        self.0.read()
    }

    fn has_room(&self, bytes: u64) -> bool {
        // Room for one more record, since a call may be split.
        bytes + 16 <= SLOT as u64 && self.0.records.lock().all.len() + 1 < RECORDS
    }

    fn append(&self, record: &Record) -> vfs::Result<()> {
        self.0.records.lock().all.push(record.clone());
        match self.0.kind {
            Kind::Atomic => self.sync(),
            Kind::Soft
            | Kind::JournalMetadata
            | Kind::JournalOrdered
            | Kind::JournalFull
            | Kind::Checkpoint => Ok(()),
        }
    }

    fn sync(&self) -> vfs::Result<()> {
        self.0.sync().map_err(|_| Errno::IO)
    }
}
