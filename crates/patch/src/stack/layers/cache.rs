//! `cache`: blocks in memory, and the order in which they are written back.

use super::option::{Opt, bytes, changed, choose, duration, positive, show_bytes, show_duration};
use crate::stack::kind::{Assembly, Build, BuildError, Device, Kind};
use crate::stack::{OPTIMISE, ValueError};
use crate::verify::Watched;
use crate::{Cache, CacheOptions, Durable, Optimise, Optimised, Store};
use medium::block::BlockDevice;
use std::sync::Arc;
use std::time::Duration;

/// Options of the layer `cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLayer {
    /// Memory for blocks, in bytes.
    pub bytes: u64,
    /// Most memory for dirty blocks before operations wait, in bytes; `None`: half of `bytes`.
    pub dirty_bytes: Option<u64>,
    /// Most blocks that a sync writes before it flushes.
    pub wave: usize,
    /// How waves become durable.
    pub durable: Durable,
    /// Age at which dirty blocks are written back; `None`: only when a call waits for them.
    pub interval: Option<Duration>,
    /// Which optimisations of the graph are in force.
    pub optimise: Optimised,
}

/// The smallest cache with room for the largest operations, in bytes.
pub(in crate::stack) const MIN_CACHE: u64 = 4 << 20;

impl Default for CacheLayer {
    fn default() -> Self {
        let CacheOptions {
            wave,
            durable,
            interval,
            ..
        } = CacheOptions::default();
        Self {
            bytes: 256 << 20,
            dirty_bytes: None,
            wave,
            durable,
            interval,
            optimise: Optimised::Both,
        }
    }
}

const DURABLE: &[(&str, Durable)] = &[
    ("auto", Durable::Auto),
    ("flush", Durable::Flush),
    ("fua", Durable::ForceUnitAccess),
    ("unsafe", Durable::Unsafe),
];

impl Kind for CacheLayer {
    const NAME: &'static str = "cache";
    const ABOUT: &'static str = "keeps blocks in memory, and obeys the order when it writes";
    const OPTIONS: &'static [Opt<Self>] = &[
        Opt {
            form: "SIZE",
            help: "memory for blocks; 256M. Operations also wait when patches take a quarter more",
            is_required: false,
            set: |cache, text| bytes(text).map(|bytes| cache.bytes = bytes),
            get: |cache| Some(show_bytes(cache.bytes)),
        },
        Opt {
            form: "dirty=SIZE",
            help: "memory for changed blocks, before operations wait; half of it",
            is_required: false,
            set: |cache, text| bytes(text).map(|bytes| cache.dirty_bytes = Some(bytes)),
            get: |cache| cache.dirty_bytes.map(show_bytes),
        },
        Opt {
            form: "wave=BLOCKS",
            help: "most blocks that one flush of a sync covers",
            is_required: false,
            set: |cache, text| {
                cache.wave = positive::<u32>(text, "a number of blocks")? as usize;
                Ok(())
            },
            get: |cache| {
                let is_usual = cache.wave == Self::default().wave;
                (!is_usual).then(|| cache.wave.to_string())
            },
        },
        Opt {
            form: "interval=TIME",
            help: "the age at which changes are written back, or never; 5s",
            is_required: false,
            set: |cache, text| {
                cache.interval = match text {
                    "never" => None,
                    time => Some(duration(time)?),
                };
                Ok(())
            },
            get: |cache| {
                let is_usual = cache.interval == Self::default().interval;
                let shown = || cache.interval.map_or("never".into(), show_duration);
                (!is_usual).then(shown)
            },
        },
        Opt {
            form: "durable=auto|flush|fua|unsafe",
            help: "how writes become durable; unsafe: not at all",
            is_required: false,
            set: |cache, text| choose(text, DURABLE).map(|durable| cache.durable = durable),
            get: |cache| changed(&cache.durable, &Durable::Auto, DURABLE),
        },
        Opt {
            form: "optimise=none|hard|overlap|both",
            help: "which optimisations of the graph are in force; both",
            is_required: false,
            set: |cache, text| choose(text, OPTIMISE).map(|which| cache.optimise = which),
            get: |cache| changed(&cache.optimise, &Optimised::Both, OPTIMISE),
        },
    ];
    const BUILD: Build<Self> = Build::OnDevices(Self::build);

    fn check(&self) -> Result<(), ValueError> {
        let dirty = self.dirty_bytes.unwrap_or(self.bytes / 2);
        if self.bytes < MIN_CACHE || dirty < MIN_CACHE / 2 || dirty > self.bytes {
            return Err(ValueError::new(format_args!(
                "it needs at least {}, and dirty at least {} and at most the whole",
                show_bytes(MIN_CACHE),
                show_bytes(MIN_CACHE / 2)
            )));
        }
        Ok(())
    }
}

impl CacheLayer {
    /// The options of the cache, for blocks of this size.
    pub fn options(&self, block_bytes: u32) -> CacheOptions {
        // A small block takes a page of memory, too.
        let blocks = |bytes: u64| (bytes / u64::from(block_bytes.max(4096))) as usize;
        CacheOptions {
            blocks: blocks(self.bytes),
            dirty_limit: blocks(self.dirty_bytes.unwrap_or(self.bytes / 2)),
            patch_bytes: self.bytes / 4,
            wave: self.wave,
            durable: self.durable,
            interval: self.interval,
            optimise: Optimise::from(self.optimise),
        }
    }

    fn build(
        &self,
        below: Vec<Device>,
        assembly: &mut Assembly,
    ) -> Result<Arc<dyn Store>, BuildError> {
        let sizes = below.iter().map(|device| device.geometry().block_bytes);
        let options = self.options(sizes.max().unwrap_or_default());
        let boxed = |(number, device)| -> Box<dyn BlockDevice> {
            match &assembly.verifier {
                None => Box::new(device),
                Some(verifier) => Box::new(Watched::new(device, number, verifier.clone())),
            }
        };
        let devices = (0..).zip(below).map(boxed).collect();
        let cache = Arc::new(Cache::new(devices, options));
        assembly.cache = Some(cache.clone());
        Ok(Arc::new(cache.store(0)))
    }
}
