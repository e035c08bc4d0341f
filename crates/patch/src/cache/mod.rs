//! The cache: blocks in memory, and the order in which they are written back (2.4.3).
//!
//! # Guarantees
//!
//! - **C1** At any moment the device holds a closed set of changes: each change with its
//!   befores. Blocks in one *wave* do not depend on each other, so the device may write them
//!   in any order. A patch commits only when its wave is durable.
//! - **C2** Blocks are written in the order in which they became dirty; blocks that need no
//!   roll-back come first. The neighbours `n + 1`, `n + 2`, … of a block are written with it.
//!   A sync of some patches writes their blocks in the order of the device.
//! - **C3** Dirty blocks are bounded: [`Store::begin`] writes back until the operation fits
//!   under the dirty limit. It also writes while the graph exceeds its memory limit and has
//!   anything to write. Clean blocks are evicted least recently used first. Order is bounded,
//!   too: [`Store::end`] of an operation that added to a chain of 64 levels writes the chain
//!   back, so that the operation that extends a chain pays for its sync.
//! - **C4** A failed write or flush commits nothing, now or later. The cache keeps the error,
//!   starts no further operation, and returns the error to callers that wait for a lost
//!   change.
//! - **C5** A sync takes one flush for each level of order among its patches. Its work depends
//!   only on what they wait for, apart from one part of each wave for other syncs.
//!
//! One lock guards the graph and the tables; no thread holds it during I/O. Several waves can
//! be under way at once. All befores of their blocks are durable, so waves do not depend on
//! each other.

mod core;
mod needed;
#[cfg(test)]
mod tests;
mod wave;

use self::core::Core;
use self::wave::Want;
use crate::draw::Drawing;
use crate::graph::{Addr, State};
use crate::store::check_change;
use crate::{
    Before, Caller, Change, Content, GraphId, Op, Optimise, PatchId, Patched, Stats, Store,
    StoreError, attempt,
};
use medium::block::{BlockDevice, BlockError, Buffer, Lba};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// Blocks that one holder of the lock issues or commits, so that others do not wait long.
const AT_ONCE: usize = if cfg!(test) { 3 } else { 1024 };

/// How a wave is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durable {
    /// FUA for waves of one or two blocks where the device has it, one flush for others.
    #[default]
    Auto,
    /// All writes of a wave, then one flush.
    Flush,
    /// Each write by itself, with force unit access.
    ForceUnitAccess,
    /// Neither: a completed write counts as durable. A power failure can break the order
    /// unless the device has no volatile cache.
    Unsafe,
}

/// Limits and settings of a cache.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Most cached blocks; dirty ones may exceed it.
    pub blocks: usize,
    /// Most dirty blocks before operations wait.
    pub dirty_limit: usize,
    /// Most bytes of patches, edges and undo data before operations wait. Operations under way
    /// may exceed it.
    pub patch_bytes: u64,
    /// Most blocks that a sync writes before it flushes. Waves that make room have at most
    /// 1,024.
    pub wave: usize,
    /// How waves become durable.
    pub durable: Durable,
    /// Age at which a thread of the cache writes dirty blocks back; `None`: they are written
    /// only when a call waits for them.
    pub interval: Option<Duration>,
    /// Which optimisations of the graph are in force.
    pub optimise: Optimise,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            blocks: 65_536,
            dirty_limit: 32_768,
            patch_bytes: 64 << 20,
            wave: 65_536,
            durable: Durable::Auto,
            interval: Some(Duration::from_secs(5)),
            optimise: Optimise::ALL,
        }
    }
}

/// Counters of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheStats {
    /// Reads of blocks by a file system, from memory or from a device.
    pub lookups: u64,
    /// Blocks read from devices.
    pub reads: u64,
    /// Blocks written to devices.
    pub writes: u64,
    /// Flushes of devices.
    pub flushes: u64,
    /// Waves that became durable.
    pub waves: u64,
    /// Times that an operation slept: there was no room for it, and nothing to write.
    pub waits: u64,
    /// Dirty blocks that were not written, since they equalled their contents on the device.
    pub unchanged: u64,
    /// Cached blocks now.
    pub blocks: u64,
    /// Dirty blocks now.
    pub dirty: u64,
    /// Counters of the graph.
    pub graph: Stats,
}

/// Blocks of one or more devices in memory, written back in an order that their patches allow.
pub struct Cache {
    shared: Arc<Shared>,
    flusher: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    graph: GraphId,
    devices: Vec<Box<dyn BlockDevice>>,
    options: CacheOptions,
    core: Mutex<Core>,
    /// Signals that a block has been read.
    loaded: Condvar,
    /// Signals that the cache is closing.
    closing: Condvar,
    /// Signals that blocks may have become ready to be written, or that an operation has
    /// ended.
    progress: Condvar,
    /// Held while a part of a wave is written, and while a wave is flushed.
    turn: Mutex<()>,
}

impl Cache {
    /// A cache over devices, whose block sizes may differ. Patches may order changes of one
    /// device before those of another.
    ///
    /// # Panics
    /// If there is no device, or more than 256.
    pub fn new(devices: Vec<Box<dyn BlockDevice>>, options: CacheOptions) -> Self {
        assert!(
            (1..=256).contains(&devices.len()),
            "a cache has 1 to 256 devices"
        );
        let shared = Arc::new(Shared {
            graph: GraphId::new(),
            devices,
            core: Mutex::new(Core::new(options.optimise)),
            options,
            loaded: Condvar::new(),
            closing: Condvar::new(),
            progress: Condvar::new(),
            turn: Mutex::new(()),
        });
        let flusher = shared.options.interval.map(|interval| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.write_old(interval))
        });
        Self { shared, flusher }
    }

    /// The store on one device of this cache.
    ///
    /// # Panics
    /// If the cache has no device of this number.
    pub fn store(self: &Arc<Self>, device: u8) -> DeviceStore {
        let _exists = &self.shared.devices[usize::from(device)];
        DeviceStore {
            cache: self.clone(),
            device,
        }
    }

    /// The counters.
    pub fn stats(&self) -> CacheStats {
        self.shared.core.lock().stats()
    }

    /// Number of dirty blocks.
    pub fn dirty(&self) -> usize {
        self.shared.core.lock().dirty()
    }

    /// The options that the cache was made with.
    pub fn options(&self) -> &CacheOptions {
        &self.shared.options
    }

    /// The state of a patch; `Free` if it is durable.
    pub(crate) fn patch_state(&self, patch: PatchId) -> State {
        self.shared.core.lock().graph.state(patch)
    }

    /// Makes the cache read-only, as a failed write does.
    pub(crate) fn stop(&self, error: BlockError) {
        // No later flush may hide the error.
        let _turn = self.shared.turn.lock();
        drop(self.shared.fail(error));
    }

    /// Writes one wave of ready blocks, oldest first. Returns the number of blocks written.
    ///
    /// # Errors
    /// The failure of a device, now or earlier.
    pub fn write_some(&self) -> Result<usize, StoreError> {
        self.shared.wave(Want::Anything, self.shared.options.wave)
    }

    /// Writes one wave of at most `most` blocks, which `pick` draws from all ready blocks: it
    /// returns a number below its argument. Tests use it to write blocks in any order that
    /// their patches allow. Returns the number of blocks written.
    ///
    /// # Errors
    /// The failure of a device, now or earlier.
    pub fn write_drawn(
        &self,
        most: usize,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Result<usize, StoreError> {
        self.shared.wave(Want::Drawn(pick), most)
    }

    /// A drawing of the current graph.
    pub fn draw(&self) -> Drawing {
        self.shared.core.lock().graph.draw()
    }

    /// Checks every invariant of the graph. For tests: slow.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn verify(&self) -> Result<(), String> {
        self.shared.core.lock().graph.verify()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.core.lock().closing = true;
        self.shared.closing.notify_all();
        if let Some(flusher) = self.flusher.take() {
            // A thread that panicked has printed its message.
            let _ = flusher.join();
        }
    }
}

impl Shared {
    /// The block, read from its device if need be.
    fn load<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        addr: Addr,
        read: bool,
    ) -> Result<(MutexGuard<'a, Core>, crate::graph::BlockSlot), StoreError> {
        loop {
            if let Some(slot) = core.find(addr) {
                return Ok((core, slot));
            }
            // A second reader could undo a change made after the first one finished.
            if !core.reading.contains(&addr) {
                break;
            }
            if attempt::is_attempt() {
                return Err(attempt::absent([addr.lba]));
            }
            self.loaded.wait(&mut core);
        }
        let device = &self.devices[usize::from(addr.device)];
        let geometry = device.geometry();
        if addr.lba.0 >= geometry.blocks {
            let (lba, blocks) = (addr.lba, geometry.blocks);
            let device = device.name().into();
            return Err(BlockError::OutOfRange {
                device,
                lba,
                blocks,
            }
            .into());
        }
        if read && attempt::is_attempt() {
            return Err(attempt::absent([addr.lba]));
        }
        let mut data = Buffer::zeroed(geometry.block_bytes as usize);
        if read {
            core.reading.insert(addr);
            let result = MutexGuard::unlocked(&mut core, || device.read(addr.lba, &mut data));
            core.reading.remove(&addr);
            self.loaded.notify_all();
            result?;
            core.counts.reads += 1;
        }
        let slot = core.insert(addr, Arc::new(data), self.options.blocks);
        Ok((core, slot))
    }

    /// The thread that writes back old dirty blocks.
    fn write_old(&self, interval: Duration) {
        let mut last_tick = 0;
        loop {
            let now = {
                let mut core = self.core.lock();
                // A block found dirty twice is between one and two half intervals old.
                if !core.closing {
                    self.closing.wait_for(&mut core, interval / 2);
                }
                if core.closing {
                    return;
                }
                core.age()
            };
            while self.core.lock().has_older_than(last_tick) {
                match self.wave(Want::Anything, self.small_wave()) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
            last_tick = now;
        }
    }
}

/// One device of a [`Cache`].
#[derive(Clone)]
pub struct DeviceStore {
    cache: Arc<Cache>,
    device: u8,
}

impl DeviceStore {
    /// The cache that it belongs to.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    fn addr(&self, lba: Lba) -> Addr {
        Addr {
            device: self.device,
            lba,
        }
    }

    fn device(&self) -> &dyn BlockDevice {
        &*self.cache.shared.devices[usize::from(self.device)]
    }
}

impl Store for DeviceStore {
    fn block_bytes(&self) -> u32 {
        self.device().geometry().block_bytes
    }

    fn blocks(&self) -> u64 {
        self.device().geometry().blocks
    }

    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        let shared = &self.cache.shared;
        let (mut core, slot) = shared.load(shared.core.lock(), self.addr(lba), true)?;
        core.used(slot);
        core.counts.lookups += 1;
        Ok(core.graph.block(slot).data.clone())
    }

    fn cached(&self, lba: Lba) -> Option<Arc<Buffer>> {
        let mut core = self.cache.shared.core.lock();
        let slot = core.find(self.addr(lba))?;
        core.used(slot);
        core.counts.lookups += 1;
        Some(core.graph.block(slot).data.clone())
    }

    fn prefetch(&self, lba: Lba, blocks: u64) {
        let shared = &self.cache.shared;
        let end = lba.0.saturating_add(blocks).min(self.blocks());
        let missing = {
            let core = shared.core.lock();
            let absent = |lba: &u64| core.find(self.addr(Lba(*lba))).is_none();
            (lba.0..end).find(absent)
        };
        if let Some(first) = missing {
            self.read_run(Lba(first), end - first);
        }
    }

    fn ready(&self, blocks: &[Lba]) -> Result<(), StoreError> {
        if !attempt::is_attempt() {
            return Ok(());
        }
        let mut core = self.cache.shared.core.lock();
        let mut missing = Vec::new();
        for lba in blocks {
            match core.find(self.addr(*lba)) {
                Some(slot) => core.used(slot),
                None => missing.push(*lba),
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(attempt::absent(missing)),
        }
    }

    fn max_op_blocks(&self) -> u32 {
        u32::try_from(self.cache.shared.options.dirty_limit).unwrap_or(u32::MAX)
    }

    fn is_atomic(&self) -> bool {
        false
    }

    fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError> {
        let shared = &self.cache.shared;
        let limit = shared.options.dirty_limit;
        if blocks as usize > limit {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            return Err(StoreError::TooLarge {
                blocks,
                what: "cache",
                limit,
            });
        }
        shared.make_room(blocks as usize)?;
        Ok(Op {
            token: u64::from(blocks),
            caller,
        })
    }

    fn end(&self, op: Op) {
        let shared = &self.cache.shared;
        let deep = {
            let mut core = shared.core.lock();
            core.reserved -= op.token as usize;
            core.graph.take_deep()
        };
        shared.progress.notify_all();
        if let Some(deep) = deep {
            // The next call returns a failure (C4). Held patches wait for their release.
            let _ = shared.sync(&[deep]);
        }
    }

    fn change(
        &self,
        _op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let shared = &self.cache.shared;
        let block_bytes = self.block_bytes();
        let whole = check_change(change, block_bytes);
        // A hard patch has no undo data, so the old contents are not needed.
        let read = !(whole && shared.options.optimise.hard);
        let (mut core, slot) = shared.load(shared.core.lock(), self.addr(lba), read)?;
        attempt::commit();
        core.before_change(slot, content, read);
        let patched = core.graph.change(slot, change, befores);
        core.requeue();
        Ok(patched)
    }

    fn freed(
        &self,
        _op: &Op,
        lba: Lba,
        _befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        attempt::commit();
        if unreachable {
            self.cache.shared.change_order(|core| {
                if let Some(slot) = core.find(self.addr(lba)) {
                    core.graph.cancel(slot);
                    core.requeue();
                    core.drop_if_clean(slot);
                }
            });
        }
        Ok(())
    }

    fn is_pending(&self, patch: PatchId) -> bool {
        self.cache.shared.core.lock().graph.is_pending(patch)
    }

    fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        self.cache.shared.sync(patches)
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.cache.shared.sync_all()
    }

    fn failure(&self) -> Option<Arc<BlockError>> {
        self.cache.shared.core.lock().failure.clone()
    }

    fn graph(&self) -> GraphId {
        self.cache.shared.graph
    }

    fn empty(&self, befores: &[Before], held: bool) -> PatchId {
        let mut core = self.cache.shared.core.lock();
        core.graph.empty(befores, held)
    }

    fn set_befores(&self, empty: PatchId, befores: &[Before]) {
        let shared = &self.cache.shared;
        shared.change_order(|core| core.graph.set_befores(empty, befores));
    }

    fn add_before(&self, empty: PatchId, before: Before) {
        let shared = &self.cache.shared;
        shared.change_order(|core| core.graph.add_before(empty, before));
    }

    fn release(&self, empty: PatchId) {
        let shared = &self.cache.shared;
        shared.change_order(|core| core.graph.release(empty));
    }

    fn waits_for(&self, patches: &[PatchId], before: PatchId) -> bool {
        let mut core = self.cache.shared.core.lock();
        core.graph.waits_for(patches, before)
    }

    fn is_crowded(&self) -> bool {
        let shared = &self.cache.shared;
        shared.is_crowded(&shared.core.lock())
    }
}

impl DeviceStore {
    /// Reads neighbouring blocks at once, up to the first that is cached. If another call is
    /// reading the first one, waits for it: callers hold no lock yet. Ignores errors: the call
    /// that needs the block returns them.
    fn read_run(&self, lba: Lba, blocks: u64) {
        let shared = &self.cache.shared;
        let block_bytes = self.block_bytes() as usize;
        let addrs: Vec<Addr> = {
            let mut core = shared.core.lock();
            while core.reading.contains(&self.addr(lba)) {
                shared.loaded.wait(&mut core);
            }
            let run = (lba.0..lba.0 + blocks).map(|n| self.addr(Lba(n)));
            let absent = |a: &Addr| core.find(*a).is_none() && !core.reading.contains(a);
            let addrs: Vec<Addr> = run.take_while(absent).collect();
            core.reading.extend(&addrs);
            addrs
        };
        let Some(first) = addrs.first() else {
            return;
        };
        let mut data = Buffer::zeroed(addrs.len() * block_bytes);
        let result = self.device().read(first.lba, &mut data);
        let mut core = shared.core.lock();
        for (addr, bytes) in addrs.iter().zip(data.chunks(block_bytes)) {
            core.reading.remove(addr);
            if result.is_ok() {
                core.insert(
                    *addr,
                    Arc::new(Buffer::from_slice(bytes)),
                    shared.options.blocks,
                );
                core.counts.reads += 1;
            }
        }
        shared.loaded.notify_all();
    }
}
