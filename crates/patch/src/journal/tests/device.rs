//! A device in memory that records its calls and produces crash states.

use medium::Rule;
use medium::block::{BlockDevice, BlockError, Completion, Lba, MemoryDevice, Persistence, Write};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

pub(crate) const BLOCK: usize = 1024;

/// A call of the device, or a step of the test.
#[derive(Clone)]
pub(crate) enum Event {
    Issued(Vec<Write>),
    Completed,
    Flushed,
    /// Number of operations that have begun.
    Began(usize),
    /// Number of operations that must be durable.
    Synced(usize),
    /// A thing, and the operation whose change of it must be durable.
    Kept(u64, usize),
}

/// A state after a crash.
pub(crate) struct Crash {
    pub bytes: Vec<u8>,
    /// Number of operations begun before the crash.
    pub began: usize,
    /// Number of operations that must be durable.
    pub synced: usize,
    /// For single things, the newest operation whose change must be durable.
    pub kept: HashMap<u64, usize>,
}

pub(crate) struct Recorder {
    memory: MemoryDevice,
    start: Vec<u8>,
    pub events: Mutex<Vec<Event>>,
    /// Runs once, before the next blocks are written.
    pub on_submit: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Recorder {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self {
            memory: MemoryDevice::from_bytes(BLOCK as u32, bytes.clone()),
            start: bytes,
            events: Mutex::new(Vec::new()),
            on_submit: Mutex::default(),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.bytes()
    }

    pub(crate) fn note(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// A state that a crash after the first `until` events may leave. Blocks for which `tears`
    /// is true may be torn at a sector.
    pub(crate) fn crash(
        &self,
        until: usize,
        rng: &mut fastrand::Rng,
        tears: impl Fn(u64) -> bool,
    ) -> Crash {
        // Most writes lost, most written, or half of them.
        let share = [0.1, 0.5, 0.9][rng.usize(..3)];
        self.crash_with(until, rng, share, tears)
    }

    /// The state after the first `until` events without any write that was not flushed.
    pub(crate) fn crash_without_cache(&self, until: usize) -> Crash {
        let mut rng = fastrand::Rng::with_seed(0);
        self.crash_with(until, &mut rng, 0.0, |_| false)
    }

    fn crash_with(
        &self,
        until: usize,
        rng: &mut fastrand::Rng,
        share: f64,
        tears: impl Fn(u64) -> bool,
    ) -> Crash {
        let mut bytes = self.start.clone();
        let (mut began, mut synced, mut kept) = (0, 0, HashMap::new());
        // The writes of each block that are not durable, oldest first.
        let mut open: BTreeMap<u64, Vec<Write>> = BTreeMap::new();
        let put = |bytes: &mut Vec<u8>, write: &Write, range: std::ops::Range<usize>| {
            let at = write.lba.0 as usize * BLOCK;
            bytes[at + range.start..at + range.end].copy_from_slice(&write.data[range]);
        };
        for event in &self.events.lock()[..until] {
            match event {
                Event::Issued(writes) => {
                    for write in writes {
                        open.entry(write.lba.0).or_default().push(write.clone());
                    }
                }
                Event::Completed => {
                    for writes in open.values_mut() {
                        if let Some(last) = writes.iter().rposition(Write::is_durable) {
                            put(&mut bytes, &writes[last], 0..BLOCK);
                            writes.drain(..=last);
                        }
                    }
                }
                Event::Flushed => {
                    for write in std::mem::take(&mut open).values().flatten() {
                        put(&mut bytes, write, 0..BLOCK);
                    }
                }
                Event::Began(n) => began = *n,
                Event::Synced(n) => synced = *n,
                Event::Kept(thing, n) => {
                    kept.insert(*thing, *n);
                }
            }
        }
        for (lba, writes) in open {
            let there = writes.iter().filter(|_| rng.f64() < share).count();
            for write in &writes[..there] {
                put(&mut bytes, write, 0..BLOCK);
            }
            if tears(lba)
                && let Some(torn) = writes.get(there)
                && rng.bool()
            {
                let sector = rng.usize(..BLOCK / 512) * 512;
                put(&mut bytes, torn, sector..sector + 512);
            }
        }
        Crash {
            bytes,
            began,
            synced,
            kept,
        }
    }
}

impl medium::block::layer::DeviceLayer for Recorder {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.memory
    }

    fn name(&self) -> &str {
        "recorder"
    }
    fn persistence(&self) -> Persistence {
        Persistence {
            volatile_cache: true,
            ..self.memory.persistence()
        }
    }
    fn submit(&self, writes: Vec<Write>) {
        let hook = self.on_submit.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.note(Event::Issued(writes.clone()));
        self.memory.submit(writes);
    }
    fn reap(&self, min: usize) -> Vec<Completion> {
        self.note(Event::Completed);
        self.memory.reap(min)
    }
    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        self.note(Event::Flushed);
        Ok(())
    }
    fn discard(&self, _lba: Lba, _blocks: u64) -> Result<(), BlockError> {
        Ok(())
    }
}
