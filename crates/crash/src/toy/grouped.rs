//! A toy that promises the order of groups and nothing else, on memory and on blocks. Records lie
//! in slots, as those of [`slots`](super::slots) do. Each whole record is valid. The newest records
//! are written first, so that the order of groups alone keeps a record back.

use super::slots::{OnBlocks, OnMemory, RECORDS, SLOT, SLOTS, Slots, read_record, write_record};
use super::{CallLog, Record, ToyBug, ToyFs};
use crate::sabotage::listed;
use medium::Pmem;
use medium::block::BlockDevice;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vfs::check::Report;
use vfs::{
    BlockSystem, ChangeOrder, Clock, Errno, FileSystem, Guarantees, SetId, Sets, Still, System,
};

listed! {
    /// A way to break the order of groups.
    pub(super) enum Bug {
        Nothing,
        /// A group waits for the first change of the group before it.
        WaitsForFirst,
        /// A record that was written is taken for durable.
        WrittenIsDurable,
        /// A group does not wait for the groups before the one before it.
        NotTransitive,
        /// A group does not wait for a group that is partly durable.
        PartlyDurable,
        /// The order of a group ends when it is closed.
        EndsWhenClosed,
        /// A barrier does nothing.
        NoBarrier,
        /// The sync of a group leaves out the groups before it.
        SyncsAlone,
        /// The sync of a group does not make its records durable.
        SyncReturnsEarly,
    }
}

/// The toy as a system of the explorer, on either medium.
pub(super) struct GroupToy(pub Bug);

impl GroupToy {
    fn open(&self, slots: Box<dyn Slots>, clock: Arc<dyn Clock>) -> Result<Still, String> {
        let log = Arc::new(GroupLog {
            bug: self.0,
            slots,
            state: Mutex::default(),
        });
        let fs = ToyFs::open(ToyBug::Nothing, Box::new(Shared(log.clone())), clock)?;
        let same = log.clone();
        Ok(Still {
            fs: Arc::new(fs),
            write_some: Box::new(move || log.state.lock().write_one(&log)),
            write_drawn: Box::new(move |_| same.state.lock().write_one(&same)),
        })
    }
}

impl System<dyn Pmem> for GroupToy {
    fn id(&self) -> String {
        format!("grouped-{:?}", self.0)
    }
    fn image_bytes(&self) -> u64 {
        (SLOTS * SLOT) as u64
    }
    fn format(&self, _: &(dyn Pmem + 'static)) -> Result<(), String> {
        Ok(()) // a slot of zeros is empty
    }
    fn open(&self, pm: Arc<dyn Pmem>, c: Arc<dyn Clock>) -> Result<Arc<dyn FileSystem>, String> {
        self.open(Box::new(OnMemory(pm)), c).map(|still| still.fs)
    }
    fn has_cache(&self) -> bool {
        true
    }
    fn open_still(&self, pm: Arc<dyn Pmem>, c: Arc<dyn Clock>, _: usize) -> Result<Still, String> {
        self.open(Box::new(OnMemory(pm)), c)
    }
    fn check(&self, _: &(dyn Pmem + 'static)) -> Report {
        Report::default()
    }
}

impl System<dyn BlockDevice> for GroupToy {
    fn id(&self) -> String {
        format!("grouped-{:?}", self.0)
    }
    fn image_bytes(&self) -> u64 {
        (SLOTS * SLOT) as u64
    }
    fn format(&self, _: &(dyn BlockDevice + 'static)) -> Result<(), String> {
        Ok(())
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
    fn check(&self, _: &(dyn BlockDevice + 'static)) -> Report {
        Report::default()
    }
}

impl BlockSystem<dyn BlockDevice> for GroupToy {
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

struct GroupLog {
    bug: Bug,
    slots: Box<dyn Slots>,
    state: Mutex<State>,
}

#[derive(Default)]
struct Set {
    records: BTreeSet<usize>,
    befores: BTreeSet<usize>,
}

#[derive(Default)]
struct State {
    records: Vec<Record>,
    /// The records that must be durable before each one.
    befores: Vec<BTreeSet<usize>>,
    written: BTreeSet<usize>,
    durable: BTreeSet<usize>,
    sets: BTreeMap<u64, Set>,
    last_set: u64,
}

impl State {
    /// Writes the newest record whose befores are durable. Returns the number of records written.
    fn write_one(&mut self, log: &GroupLog) -> Result<usize, String> {
        let all = (0..self.records.len()).rev();
        self.write_of(log, &all.collect::<Vec<_>>())
    }

    fn write_of(&mut self, log: &GroupLog, wanted: &[usize]) -> Result<usize, String> {
        let is_written = |n: &usize| self.written.contains(n);
        let left: Vec<usize> = wanted.iter().copied().filter(|n| !is_written(n)).collect();
        if left.is_empty() {
            return Ok(0);
        }
        let is_ready = |done: &BTreeSet<usize>, n: &usize| self.befores[*n].is_subset(done);
        let done = match log.bug {
            Bug::WrittenIsDurable => &self.written,
            _ => &self.durable,
        };
        let mut next = left.iter().copied().find(|n| is_ready(done, n));
        if next.is_none() {
            self.flush(log)?;
            next = left
                .iter()
                .copied()
                .find(|n| self.befores[*n].is_subset(&self.durable));
        }
        let next = next.ok_or("no record can be written")?;
        write_record(&*log.slots, next, &self.records[next])?;
        self.written.insert(next);
        Ok(1)
    }

    fn flush(&mut self, log: &GroupLog) -> Result<(), String> {
        log.slots.barrier()?;
        self.durable = self.written.clone();
        Ok(())
    }

    fn depend(&mut self, bug: Bug, after: u64, before: u64) {
        let Some(earlier) = self.sets.get(&before) else {
            return;
        };
        let mut waits = earlier.records.clone();
        if bug == Bug::WaitsForFirst {
            waits = waits.into_iter().take(1).collect();
        }
        if bug == Bug::PartlyDurable && !waits.is_disjoint(&self.durable) {
            waits.clear();
        }
        if bug != Bug::NotTransitive {
            waits.extend(&earlier.befores);
        }
        if let Some(later) = self.sets.get_mut(&after) {
            later.befores.extend(waits);
        }
    }

    /// Writes the records, newest first, and those for which they wait.
    fn sync(&mut self, log: &GroupLog, mut wanted: BTreeSet<usize>) -> Result<(), String> {
        let mut left: Vec<usize> = wanted.iter().copied().collect();
        while let Some(record) = left.pop() {
            let more = self.befores[record].iter();
            left.extend(more.copied().filter(|before| wanted.insert(*before)));
        }
        let wanted: Vec<usize> = wanted.into_iter().rev().collect();
        while self.write_of(log, &wanted)? > 0 {}
        match log.bug {
            Bug::SyncReturnsEarly => Ok(()),
            _ => self.flush(log),
        }
    }
}

impl ChangeOrder for GroupLog {
    fn create(&self) -> SetId {
        let mut state = self.state.lock();
        state.last_set += 1;
        let set = state.last_set;
        state.sets.insert(set, Set::default());
        SetId(set)
    }

    fn remove(&self, set: SetId) {
        let mut state = self.state.lock();
        if let Some(set) = state.sets.remove(&set.0)
            && self.bug == Bug::EndsWhenClosed
        {
            for later in state.sets.values_mut() {
                later.befores.retain(|n| !set.records.contains(n));
            }
        }
    }

    fn depend(&self, after: SetId, before: SetId) {
        self.state.lock().depend(self.bug, after.0, before.0);
    }

    fn barrier(&self, set: SetId) -> vfs::Result<()> {
        if self.bug != Bug::NoBarrier {
            self.state.lock().depend(self.bug, set.0, set.0);
        }
        Ok(())
    }

    fn sync(&self, set: SetId) -> vfs::Result<()> {
        let mut state = self.state.lock();
        let Some(set) = state.sets.get(&set.0) else {
            return Ok(());
        };
        let mut wanted = set.records.clone();
        if self.bug != Bug::SyncsAlone {
            wanted.extend(&set.befores);
        }
        state.sync(self, wanted).map_err(|_| Errno::IO)
    }

    fn pending(&self, set: SetId) -> usize {
        let state = self.state.lock();
        let set = state.sets.get(&set.0);
        set.map_or(0, |set| set.records.difference(&state.durable).count())
    }
}

struct Shared(Arc<GroupLog>);

impl CallLog for Shared {
    fn guarantees(&self) -> Guarantees {
        Guarantees::none("groups alone")
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn records(&self) -> Result<Vec<Option<Record>>, String> {
        let read = (0..RECORDS).map(|n| read_record(&*self.0.slots, n));
        let mut records = read.collect::<Result<Vec<_>, _>>()?;
        let last = records.iter().rposition(Option::is_some);
        records.truncate(last.map_or(0, |last| last + 1));
        let all: BTreeSet<usize> = (0..records.len()).collect();
        *self.0.state.lock() = State {
            records: (records.iter())
                .map(|r| r.clone().unwrap_or_else(Record::nothing))
                .collect(),
            befores: vec![BTreeSet::new(); all.len()],
            written: all.clone(),
            durable: all,
            ..State::default()
        };
        Ok(records)
    }

    fn has_room(&self, bytes: u64) -> bool {
        bytes + 16 <= SLOT as u64 && self.0.state.lock().records.len() < RECORDS
    }

    fn append(&self, record: &Record) -> vfs::Result<()> {
        self.append_in(&Sets::NONE, record)
    }

    fn append_in(&self, sets: &Sets, record: &Record) -> vfs::Result<()> {
        let mut state = self.0.state.lock();
        let number = state.records.len();
        let mut befores = BTreeSet::new();
        for set in sets.numbers().into_iter().flat_map(|sets| sets.iter()) {
            if let Some(set) = state.sets.get_mut(set) {
                set.records.insert(number);
                befores.extend(&set.befores);
            }
        }
        state.records.push(record.clone());
        state.befores.push(befores);
        Ok(())
    }

    fn change_order(&self) -> Option<&dyn ChangeOrder> {
        Some(&*self.0)
    }

    fn sync(&self) -> vfs::Result<()> {
        let mut state = self.0.state.lock();
        while state.write_one(&self.0).map_err(|_| Errno::IO)? > 0 {}
        state.flush(&self.0).map_err(|_| Errno::IO)
    }
}
