//! Block devices whose power can be cut at any moment.
//!
//! Guarantees:
//!
//! 1. [`PowerSupply::cut`] leaves every device of the supply in a state that a power failure at
//!    that moment could leave (see the persistence model). The seed picks the state: each block
//!    is old, or as one of its writes that were not durable left it.
//! 2. The state contains everything that was durable before.
//! 3. The cut waits for calls in progress. Later calls change nothing and fail with
//!    [`BlockError::PowerCut`]; each write that was under way ends with that error.
//!
//! For each write that is not durable, the previous contents of the block are recorded.

use super::{BlockDevice, BlockError, Buffer, Completion, Lba, Write as BlockWrite};
use crate::Rule;
use crate::power_cut::{Choice, Countdown};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// The states in which a crash may leave a block that was being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TearModel {
    /// Blocks are never torn.
    #[default]
    Blocks,
    /// Each aligned unit of [`Persistence::atomic_bytes`](super::Persistence::atomic_bytes) is
    /// old or new independently.
    Sectors,
}

impl fmt::Display for TearModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Blocks => "blocks",
            Self::Sectors => "sectors",
        })
    }
}

/// The moment of an armed cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockCutAfter {
    /// Immediately after the `n`-th block from now is submitted (`n` at least 1).
    Writes(u64),
    /// At the start of the `n`-th flush from now (`n` at least 1), which fails.
    Flushes(u64),
}

/// The effects of a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockCutReport {
    /// The seed that picked the state.
    pub seed: u64,
    /// The model by which it was picked.
    pub model: TearModel,
    /// Blocks with writes that were not durable.
    pub blocks: u64,
    /// Writes that were not durable.
    pub writes: u64,
    /// The number of writes that were lost, wholly or in part.
    pub lost: u64,
}

impl fmt::Display for BlockCutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "power cut with seed {} under the model '{}': of {} writes in flight to {} blocks, {} were lost",
            self.seed, self.model, self.writes, self.blocks, self.lost
        )
    }
}

enum Power {
    On,
    Off(Result<BlockCutReport, BlockError>),
}

/// The power of one or more devices, which lose it together.
pub struct PowerSupply {
    /// Read-locked by every call while it runs, write-locked by the cut.
    power: RwLock<Power>,
    devices: Mutex<Vec<Arc<Wired>>>,
    writes_left: Countdown,
    flushes_left: Countdown,
    /// Seed and model of the armed cut.
    armed: Mutex<(u64, TearModel)>,
}

impl Default for PowerSupply {
    fn default() -> Self {
        Self {
            power: RwLock::new(Power::On),
            devices: Mutex::default(),
            writes_left: Countdown::default(),
            flushes_left: Countdown::default(),
            armed: Mutex::default(),
        }
    }
}

impl PowerSupply {
    /// Plugs in a device. Its contents count as durable, and it must not be used directly from
    /// now on.
    pub fn plug(self: &Arc<Self>, inner: Arc<dyn BlockDevice>) -> PoweredDevice {
        let wired = Arc::new(Wired {
            inner,
            state: Mutex::default(),
        });
        self.devices.lock().push(wired.clone());
        PoweredDevice {
            supply: self.clone(),
            wired,
        }
    }

    /// Cuts the power now. After an earlier cut nothing happens, and the result of that cut is
    /// returned.
    ///
    /// # Errors
    /// [`BlockError`] if a device cannot take the crash state.
    pub fn cut(&self, seed: u64, model: TearModel) -> Result<BlockCutReport, BlockError> {
        let mut power = self.power.write();
        match &*power {
            Power::Off(result) => result.clone(),
            Power::On => {
                let result = self.crash(seed, model);
                *power = Power::Off(result.clone());
                result
            }
        }
    }

    /// Arms a cut, and replaces one that was armed before.
    pub fn cut_after(&self, when: BlockCutAfter, seed: u64, model: TearModel) {
        *self.armed.lock() = (seed, model);
        let (writes, flushes) = match when {
            BlockCutAfter::Writes(n) => (Some(n), None),
            BlockCutAfter::Flushes(n) => (None, Some(n)),
        };
        self.writes_left.set(writes);
        self.flushes_left.set(flushes);
    }

    /// Disarms the cut.
    pub fn disarm(&self) {
        self.writes_left.set(None);
        self.flushes_left.set(None);
    }

    /// The result of the cut, if there was one.
    pub fn outcome(&self) -> Option<Result<BlockCutReport, BlockError>> {
        match &*self.power.read() {
            Power::On => None,
            Power::Off(result) => Some(result.clone()),
        }
    }

    /// Keeps the power on while the result lives; `None` if it is off.
    fn powered(&self) -> Option<RwLockReadGuard<'_, Power>> {
        let power = self.power.read();
        matches!(*power, Power::On).then_some(power)
    }

    fn cut_as_armed(&self) {
        let (seed, model) = *self.armed.lock();
        // The caller finds the result in `outcome`.
        let _ = self.cut(seed, model);
    }

    /// Rolls all devices back to a crash state. The caller holds the power.
    fn crash(&self, seed: u64, model: TearModel) -> Result<BlockCutReport, BlockError> {
        let mut report = BlockCutReport {
            seed,
            model,
            blocks: 0,
            writes: 0,
            lost: 0,
        };
        let mut choose = Choice::new(seed);
        for device in self.devices.lock().iter() {
            device.crash(model, &mut choose, &mut report)?;
        }
        Ok(report)
    }
}

/// A device on a [`PowerSupply`]. Forwards everything until the power is cut.
pub struct PoweredDevice {
    supply: Arc<PowerSupply>,
    wired: Arc<Wired>,
}

struct Wired {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    /// Submitted writes, by the id that is the tag of the write in `inner`.
    under_way: HashMap<u64, UnderWay>,
    /// Writes that may be lost, by block; the oldest first.
    pending: BTreeMap<Lba, Vec<Pending>>,
    /// Completions of writes that the cut ended, or that came after it.
    failed: Vec<Completion>,
}

/// A write between `submit` and its completion.
struct UnderWay {
    lba: Lba,
    tag: u64,
    durable: bool,
}

/// A write that is not durable.
struct Pending {
    id: u64,
    completed: bool,
    /// The contents of the block before the write.
    old: Buffer,
}

impl State {
    /// Records a write before it is submitted, under an id of its own.
    fn start(&mut self, write: &mut BlockWrite, old: Option<Buffer>) {
        self.last_id += 1;
        let (lba, tag, durable) = (write.lba, write.tag, write.is_durable());
        self.under_way
            .insert(self.last_id, UnderWay { lba, tag, durable });
        // A block that cannot be read cannot be restored.
        if let Some(old) = old {
            let (id, completed) = (self.last_id, false);
            let writes = self.pending.entry(lba).or_default();
            writes.push(Pending { id, completed, old });
        }
        write.tag = self.last_id;
    }

    /// Records the end of a write, and returns its completion with the caller's tag.
    fn end(&mut self, mut done: Completion, stable: bool) -> Completion {
        let id = done.tag;
        let Some(UnderWay { lba, tag, durable }) = self.under_way.remove(&id) else {
            return done; // not one of ours
        };
        done.tag = tag;
        if done.result.is_ok() {
            if durable || stable {
                self.drop_durable(lba, id);
            } else if let Some(writes) = self.pending.get_mut(&lba) {
                let ours = writes.iter_mut().filter(|w| w.id == id);
                ours.for_each(|w| w.completed = true);
            }
        }
        done
    }

    /// Drops the writes to a block up to one that is durable.
    fn drop_durable(&mut self, lba: Lba, last: u64) {
        if let Some(writes) = self.pending.get_mut(&lba) {
            writes.retain(|w| w.id > last);
            if writes.is_empty() {
                self.pending.remove(&lba);
            }
        }
    }

    /// The last completed write of each block.
    fn completed(&self) -> Vec<(Lba, u64)> {
        let last = |writes: &Vec<Pending>| writes.iter().rfind(|w| w.completed).map(|w| w.id);
        let blocks = self.pending.iter();
        blocks
            .filter_map(|(lba, writes)| Some((*lba, last(writes)?)))
            .collect()
    }
}

impl Wired {
    fn off(&self) -> BlockError {
        BlockError::PowerCut {
            device: self.inner.name().into(),
        }
    }

    fn read_block(&self, lba: Lba) -> Result<Buffer, BlockError> {
        let mut old = Buffer::zeroed(self.inner.geometry().block_bytes as usize);
        self.inner.read(lba, &mut old)?;
        Ok(old)
    }

    fn crash(
        &self,
        model: TearModel,
        choose: &mut Choice,
        report: &mut BlockCutReport,
    ) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        // Writes under way end first: a crash may leave them done.
        while !state.under_way.is_empty() {
            for done in self.inner.reap(1) {
                let Some(write) = state.under_way.remove(&done.tag) else {
                    continue;
                };
                let result = Err(self.off());
                let tag = write.tag;
                state.failed.push(Completion { tag, result });
            }
        }
        let mut back = Vec::new();
        for (lba, writes) in std::mem::take(&mut state.pending) {
            report.blocks += 1;
            report.writes += writes.len() as u64;
            let left = self.choose(lba, &writes, model, choose, &mut report.lost)?;
            back.extend(left.map(|data| BlockWrite {
                tag: 0,
                lba,
                data: Arc::new(data),
                durable: None,
            }));
        }
        self.put_back(back)
    }

    /// The contents that a crash leaves in a block, if they differ from the present ones.
    fn choose(
        &self,
        lba: Lba,
        writes: &[Pending],
        model: TearModel,
        choose: &mut Choice,
        lost: &mut u64,
    ) -> Result<Option<Buffer>, BlockError> {
        let mut left = self.read_block(lba)?;
        let unit = match model {
            TearModel::Blocks => left.len(),
            TearModel::Sectors => left
                .len()
                .min(self.inner.persistence().atomic_bytes as usize),
        };
        let mut fewest = writes.len();
        for start in (0..left.len()).step_by(unit) {
            let keep = choose.up_to(writes.len());
            fewest = fewest.min(keep);
            if let Some(first_lost) = writes.get(keep) {
                let unit = start..start + unit;
                left[unit.clone()].copy_from_slice(&first_lost.old[unit]);
            }
        }
        *lost += (writes.len() - fewest) as u64;
        Ok((fewest < writes.len()).then_some(left))
    }

    fn put_back(&self, blocks: Vec<BlockWrite>) -> Result<(), BlockError> {
        let mut left = blocks.len();
        self.inner.submit(blocks);
        while left > 0 {
            for done in self.inner.reap(1) {
                done.result?;
                left -= 1;
            }
        }
        self.inner.flush(Rule::DurableBeforeReturn)
    }
}

impl crate::block::layer::DeviceLayer for PoweredDevice {
    type Below = dyn BlockDevice;

    fn below(&self) -> &Self::Below {
        &*self.wired.inner
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let _power = self.supply.powered().ok_or_else(|| self.wired.off())?;
        self.below().read(lba, buf)
    }

    fn submit(&self, mut writes: Vec<BlockWrite>) {
        let Some(power) = self.supply.powered() else {
            let failed = |write: BlockWrite| Completion {
                tag: write.tag,
                result: Err(self.wired.off()),
            };
            let mut state = self.wired.state.lock();
            return state.failed.extend(writes.into_iter().map(failed));
        };
        let count = writes.len() as u64;
        for write in &mut writes {
            let old = self.wired.read_block(write.lba).ok();
            self.wired.state.lock().start(write, old);
        }
        self.below().submit(writes);
        drop(power);
        if self.supply.writes_left.count(count) {
            self.supply.cut_as_armed();
        }
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let Some(_power) = self.supply.powered() else {
            return std::mem::take(&mut self.wired.state.lock().failed);
        };
        let stable = !self.below().persistence().volatile_cache;
        let done = self.below().reap(min);
        let mut state = self.wired.state.lock();
        done.into_iter().map(|d| state.end(d, stable)).collect()
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        if self.supply.flushes_left.count(1) {
            self.supply.cut_as_armed();
        }
        let _power = self.supply.powered().ok_or_else(|| self.wired.off())?;
        let completed = self.wired.state.lock().completed();
        self.below().flush(rule)?;
        let mut state = self.wired.state.lock();
        for (lba, last) in completed {
            state.drop_durable(lba, last);
        }
        Ok(())
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        let _power = self.supply.powered().ok_or_else(|| self.wired.off())?;
        self.below().discard(lba, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockEvent, Geometry, MemoryDevice, Persistence, RecordingDevice};
    use std::collections::BTreeSet;

    const BYTES: u32 = 1024;

    /// Memory that reports a cache whose contents a crash loses.
    struct Volatile(MemoryDevice);

    impl crate::block::layer::DeviceLayer for Volatile {
        type Below = MemoryDevice;

        fn below(&self) -> &MemoryDevice {
            &self.0
        }

        fn name(&self) -> &str {
            "volatile"
        }
        fn persistence(&self) -> Persistence {
            Persistence {
                atomic_bytes: 512,
                volatile_cache: true,
                durable_writes: true,
            }
        }
    }

    struct Bench {
        disk: Arc<Volatile>,
        supply: Arc<PowerSupply>,
        device: PoweredDevice,
    }

    fn bench() -> Bench {
        let geometry = Geometry {
            block_bytes: BYTES,
            blocks: 8,
        };
        let disk = Arc::new(Volatile(MemoryDevice::new(geometry)));
        let supply = Arc::new(PowerSupply::default());
        let device = supply.plug(disk.clone());
        Bench {
            disk,
            supply,
            device,
        }
    }

    impl Bench {
        fn start(&self, lba: u64, value: u8, durable: bool) {
            self.device.submit(vec![BlockWrite {
                tag: 7,
                lba: Lba(lba),
                data: Arc::new(Buffer::from_slice(&[value; BYTES as usize])),
                durable: durable.then_some(Rule::DurableBeforeReturn),
            }]);
        }

        fn write(&self, lba: u64, value: u8, durable: bool) {
            self.start(lba, value, durable);
            let done = self.device.reap(1);
            assert!(matches!(
                done.as_slice(),
                [Completion {
                    tag: 7,
                    result: Ok(())
                }]
            ));
        }

        /// The first byte of each half of a block.
        fn halves(&self, lba: u64) -> [u8; 2] {
            let at = (lba * u64::from(BYTES)) as usize;
            let bytes = self.disk.0.bytes();
            [bytes[at], bytes[at + 512]]
        }
    }

    #[test]
    fn durable_writes_survive_and_other_blocks_are_old_or_any_write() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let bench = bench();
            bench.write(0, 1, false);
            bench.device.flush(Rule::DurableBeforeReturn).unwrap();
            bench.write(1, 2, true);
            bench.write(0, 3, false);
            bench.write(0, 4, false);
            bench.start(2, 5, false);
            let report = bench.supply.cut(seed, TearModel::Blocks).unwrap();
            assert_eq!((report.blocks, report.writes), (2, 3));
            assert_eq!(bench.halves(1), [2, 2]);
            let [a, b] = bench.halves(0);
            assert!(a == b && [1, 3, 4].contains(&a), "{a}");
            seen.insert((a, bench.halves(2)[0]));
            let lost = u64::from(a < 4) + u64::from(a == 1) + u64::from(bench.halves(2)[0] == 0);
            assert_eq!(report.lost, lost);
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn sectors_tear() {
        let torn = |seed| {
            let bench = bench();
            bench.write(0, 1, false);
            bench.supply.cut(seed, TearModel::Sectors).unwrap();
            bench.halves(0)
        };
        let seen: BTreeSet<_> = (0..64).map(torn).collect();
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn after_the_cut_every_call_fails_and_every_write_has_ended() {
        let bench = bench();
        bench
            .supply
            .cut_after(BlockCutAfter::Writes(2), 1, TearModel::Blocks);
        bench.start(0, 1, false);
        assert!(bench.supply.outcome().is_none());
        bench.start(1, 1, false);
        assert!(matches!(bench.supply.outcome(), Some(Ok(_))));
        bench.start(2, 1, false);
        let done = bench.device.reap(3);
        assert_eq!(done.len(), 3);
        assert!(
            done.iter()
                .all(|d| matches!(d.result, Err(BlockError::PowerCut { .. })))
        );
        assert!(bench.device.flush(Rule::DurableBeforeReturn).is_err());
        assert!(bench.device.read(Lba(0), &mut [0; BYTES as usize]).is_err());
        assert_eq!(bench.halves(2), [0, 0]);
    }

    #[test]
    fn the_flush_of_an_armed_cut_fails() {
        let bench = bench();
        bench
            .supply
            .cut_after(BlockCutAfter::Flushes(2), 1, TearModel::Blocks);
        assert!(bench.device.flush(Rule::DurableBeforeReturn).is_ok());
        assert!(bench.device.flush(Rule::DurableBeforeReturn).is_err());
    }

    /// Checks that each state after a cut is one that the trace allows.
    #[test]
    fn states_are_those_of_the_persistence_model() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let bench = bench();
            let recorded = RecordingDevice::new(&bench.device);
            for value in 1..rng.u8(2..12) {
                if rng.u8(..4) == 0 {
                    recorded.flush(Rule::DurableBeforeReturn).unwrap();
                    continue;
                }
                let data = Arc::new(Buffer::from_slice(&[value; BYTES as usize]));
                recorded.submit(vec![BlockWrite {
                    tag: 0,
                    lba: Lba(rng.u64(..3)),
                    data,
                    durable: (rng.u8(..4) == 0).then_some(Rule::DurableBeforeReturn),
                }]);
                recorded.reap(1);
            }
            let events: Vec<BlockEvent> = recorded.take();
            bench.supply.cut(seed, TearModel::Blocks).unwrap();
            let mut allowed: [Vec<u8>; 3] = [vec![0], vec![0], vec![0]];
            allow(&events, &mut allowed);
            for (lba, values) in allowed.iter().enumerate() {
                let [a, b] = bench.halves(lba as u64);
                assert!(a == b && values.contains(&a), "{seed}: {lba}: {a}");
            }
        }
    }

    /// The contents that each block may have. Each write ends before the next.
    fn allow(events: &[BlockEvent], allowed: &mut [Vec<u8>; 3]) {
        for event in events {
            match event {
                BlockEvent::Issued {
                    lba, data, durable, ..
                } => {
                    let values = &mut allowed[lba.0 as usize];
                    if durable.is_some() {
                        values.clear();
                    }
                    values.push(data[0]);
                }
                BlockEvent::FlushEnded { .. } => {
                    for values in allowed.iter_mut() {
                        values.drain(..values.len() - 1);
                    }
                }
                _ => {}
            }
        }
    }
}
