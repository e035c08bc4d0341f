//! The cache on devices in memory, with and without write errors.

use super::*;
use medium::Rule;
use medium::block::{Completion, Geometry, MemoryDevice, Persistence, Write};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const BLOCK: usize = 1024;

/// A device in memory that reports a volatile cache, and fails on demand.
struct Device {
    memory: MemoryDevice,
    failing: AtomicBool,
    /// The blocks written since the last flush.
    wave: Mutex<Vec<u64>>,
    /// The blocks of each wave that was flushed.
    waves: Mutex<Vec<Vec<u64>>>,
}

impl medium::block::layer::DeviceLayer for Device {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.memory
    }

    fn name(&self) -> &str {
        "test"
    }
    fn persistence(&self) -> Persistence {
        Persistence {
            volatile_cache: true,
            ..self.memory.persistence()
        }
    }
    fn submit(&self, writes: Vec<Write>) {
        self.wave.lock().extend(writes.iter().map(|w| w.lba.0));
        self.memory.submit(writes);
    }
    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = self.memory.reap(min);
        if self.failing.load(SeqCst) {
            for completion in &mut done {
                completion.result = Err(BlockError::Flush {
                    device: "test".into(),
                    error: rustix::io::Errno::IO,
                });
            }
        }
        done
    }
    fn flush(&self, _: Rule) -> Result<(), BlockError> {
        let wave = std::mem::take(&mut *self.wave.lock());
        self.waves.lock().push(wave);
        Ok(())
    }
    fn discard(&self, _lba: Lba, _blocks: u64) -> Result<(), BlockError> {
        Ok(())
    }
}

fn setup(options: CacheOptions) -> (Arc<Device>, DeviceStore) {
    let memory = MemoryDevice::new(Geometry {
        block_bytes: BLOCK as u32,
        blocks: 1000,
    });
    let device = Arc::new(Device {
        memory,
        failing: AtomicBool::new(false),
        wave: Mutex::default(),
        waves: Mutex::default(),
    });
    let cache = Arc::new(Cache::new(vec![Box::new(device.clone())], options));
    (device, cache.store(0))
}

fn quiet() -> CacheOptions {
    CacheOptions {
        interval: None,
        ..CacheOptions::default()
    }
}

fn put(volume: &DeviceStore, lba: u64, at: u32, bytes: &[u8], befores: &[PatchId]) -> Patched {
    let befores: Vec<Before> = befores
        .iter()
        .map(|&patch| Before {
            patch,
            rule: Rule::InitialiseBeforePoint,
        })
        .collect();
    let op = volume.begin(1, crate::Caller::SYSTEM).unwrap();
    let change = Change::Bytes { at, bytes };
    let patched = volume.change(&op, Lba(lba), Content::Metadata, change, &befores);
    volume.end(op);
    patched.unwrap()
}

/// A byte for block or round `n`; never 0.
fn byte(n: u64) -> u8 {
    (n % 250) as u8 + 1
}

fn stored(device: &Device, lba: u64) -> u8 {
    device.memory.bytes()[lba as usize * BLOCK]
}

#[test]
fn a_sync_writes_its_patches_and_nothing_else() {
    let (device, volume) = setup(quiet());
    let first = put(&volume, 1, 0, &[1], &[]).id;
    let second = put(&volume, 2, 0, &[2], &[first]).id;
    put(&volume, 3, 0, &[3], &[]);
    volume.sync(&[second]).unwrap();
    let now = [1, 2, 3].map(|lba| stored(&device, lba));
    assert_eq!(now, [1, 2, 0], "no patch waits for the third block");
    assert!(!volume.is_pending(first) && !volume.is_pending(second));
    volume.sync_all().unwrap();
    assert_eq!(stored(&device, 3), 3);
    let stats = volume.cache().stats();
    assert_eq!((stats.writes, stats.dirty), (3, 0));
}

#[test]
fn no_block_of_a_wave_waits_for_another_of_it() {
    let (device, volume) = setup(quiet());
    let first = put(&volume, 9, 0, &[1], &[]).id;
    put(&volume, 2, 0, &[2], &[first]);
    volume.cache().write_some().unwrap();
    assert_eq!([9, 2].map(|lba| stored(&device, lba)), [1, 0]);
    volume.cache().write_some().unwrap();
    assert_eq!([9, 2].map(|lba| stored(&device, lba)), [1, 2]);
}

#[test]
fn a_wave_is_chosen_in_parts_and_flushed_once() {
    let (device, volume) = setup(quiet());
    for lba in 0..100 {
        put(&volume, lba, 0, &[byte(lba)], &[]);
    }
    assert_eq!(volume.cache().write_some().unwrap(), 100);
    volume.cache().verify().unwrap();
    let stats = volume.cache().stats();
    assert_eq!((stats.waves, stats.flushes, stats.dirty), (1, 1, 0));
    assert!((0..100).all(|lba| stored(&device, lba) == byte(lba)));
}

#[test]
fn a_sync_flushes_once_for_each_level_of_order() {
    let (device, volume) = setup(CacheOptions {
        durable: Durable::Flush,
        ..quiet()
    });
    const LEVELS: u64 = 4;
    const WIDE: u64 = 30;
    let mut last: Vec<PatchId> = Vec::new();
    for lba in 0..LEVELS * WIDE {
        let before = lba.checked_sub(WIDE).map(|before| last[before as usize]);
        last.push(put(&volume, lba, 0, &[byte(lba)], before.as_slice()).id);
    }
    let needed = last.len() as u64;
    volume.sync(&last).unwrap();
    volume.cache().verify().unwrap();
    let stats = volume.cache().stats();
    assert_eq!((stats.flushes, stats.dirty), (LEVELS, 0));
    assert!(
        stats.graph.visited <= 3 * needed,
        "the closure is walked once, and each block looked at once: {stats:?}"
    );
    let lens: Vec<usize> = device.waves.lock().iter().map(Vec::len).collect();
    assert_eq!(
        lens, [WIDE as usize; LEVELS as usize],
        "{WIDE} are several parts"
    );
}

#[test]
fn a_sync_visits_only_patches_that_it_needs() {
    let (_device, volume) = setup(quiet());
    for lba in 0..500 {
        put(&volume, lba, 0, &[byte(lba)], &[]);
    }
    let before = volume.cache().stats().graph.visited;
    let needed = put(&volume, 700, 0, &[7], &[]).id;
    volume.sync(&[needed]).unwrap();
    let stats = volume.cache().stats();
    assert_eq!((stats.graph.visited - before, stats.dirty), (3, 500));
}

#[test]
fn threads_that_wait_for_room_sleep_until_an_operation_ends() {
    let (_device, volume) = setup(CacheOptions {
        dirty_limit: 4,
        ..quiet()
    });
    let large = volume.begin(4, crate::Caller::SYSTEM).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| volume.end(volume.begin(4, crate::Caller::SYSTEM).unwrap()));
        while volume.cache().stats().waits == 0 {
            std::thread::yield_now();
        }
        volume.end(large);
        waiting.join().unwrap();
    });
    assert_eq!(volume.cache().stats().waits, 1);
}

#[test]
fn a_cycle_of_blocks_is_broken_by_a_partial_write() {
    let (device, volume) = setup(quiet());
    let a = put(&volume, 1, 0, &[1], &[]).id;
    let b = put(&volume, 2, 0, &[2], &[a]).id;
    put(&volume, 1, 8, &[3], &[b]);
    volume.cache().verify().unwrap();
    volume.sync_all().unwrap();
    let bytes = device.memory.bytes();
    assert_eq!(
        (bytes[BLOCK], bytes[BLOCK + 8], bytes[2 * BLOCK]),
        (1, 3, 2)
    );
    let graph = volume.cache().stats().graph;
    assert_eq!((graph.blocks_issued, graph.blocks_partial), (3, 1));
}

#[test]
fn a_reversed_change_is_not_written() {
    let (_device, volume) = setup(quiet());
    put(&volume, 1, 0, &[1], &[]);
    put(&volume, 1, 0, &[0], &[]);
    volume.sync_all().unwrap();
    let stats = volume.cache().stats();
    assert_eq!((stats.writes, stats.unchanged), (0, 1));
}

#[test]
fn dirty_blocks_are_bounded_and_clean_ones_are_evicted() {
    let (device, volume) = setup(CacheOptions {
        blocks: 20,
        dirty_limit: 10,
        ..quiet()
    });
    for lba in 0..500 {
        put(&volume, lba, 0, &[byte(lba); BLOCK], &[]);
        let stats = volume.cache().stats();
        assert!(stats.dirty <= 10 && stats.blocks <= 20, "{stats:?}");
    }
    volume.sync_all().unwrap();
    assert!((0..500).all(|lba| stored(&device, lba) == byte(lba)));
    assert_eq!(
        volume.read(Lba(3)).unwrap()[5],
        4,
        "read back after eviction"
    );
}

/// Changes two blocks in turn, each change after the last.
#[test]
fn ends_of_operations_bound_the_chain_that_a_sync_writes() {
    let (_device, volume) = setup(quiet());
    let waves = || volume.cache().stats().waves;
    let mut last: Option<PatchId> = None;
    for n in 0..1000u32 {
        let op = volume.begin(1, crate::Caller::SYSTEM).unwrap();
        let rule = Rule::InitialiseBeforePoint;
        let befores = last.map(|patch| Before { patch, rule });
        let (at, bytes) = (n % 100 * 4, (n + 1).to_le_bytes());
        let change = Change::Bytes { at, bytes: &bytes };
        let lba = Lba(u64::from(n % 2));
        let made = volume.change(&op, lba, Content::Metadata, change, befores.as_slice());
        last = Some(made.unwrap().id);
        volume.end(op);
    }
    let before = waves();
    volume.sync(last.as_slice()).unwrap();
    assert!(
        (1..=64).contains(&(waves() - before)),
        "{}",
        waves() - before
    );
    assert_eq!(waves(), 1000);
}

#[test]
fn memory_of_patches_is_bounded() {
    const LIMIT: u64 = 100_000;
    let (device, volume) = setup(CacheOptions {
        patch_bytes: LIMIT,
        ..quiet()
    });
    // Changes alternate between two blocks, each after the last, so that none merges.
    const PAIR: u64 = 60;
    let (mut last, mut peak) = (Vec::new(), 0);
    for n in 0..20_000u64 {
        if n.is_multiple_of(PAIR) {
            last.clear();
        }
        let (lba, at) = (n / PAIR * 2 + n % 2, n % PAIR / 2 * 16);
        last = vec![put(&volume, lba, at as u32, &[byte(n); 16], &last).id];
        peak = peak.max(volume.cache().stats().graph.memory_now());
    }
    assert!(peak > LIMIT / 2 && peak < LIMIT + 1000, "{peak}");
    volume.sync_all().unwrap();
    volume.cache().verify().unwrap();
    assert_eq!(stored(&device, 601), byte(300 * PAIR + 1));
}

#[test]
fn held_patches_beyond_the_memory_limit_do_not_stop_operations() {
    let (_device, volume) = setup(CacheOptions {
        patch_bytes: 1000,
        ..quiet()
    });
    let hold = volume.empty(&[], true);
    for lba in 0..100 {
        put(&volume, lba, 0, &[1], &[hold]);
    }
    assert!(volume.is_crowded());
    volume.release(hold);
    put(&volume, 200, 0, &[1], &[]);
    let left = volume.cache().stats().graph.memory_now();
    assert!(left < 1200, "{left}");
}

#[test]
fn a_failed_write_commits_nothing_and_is_reported() {
    let (device, volume) = setup(quiet());
    let first = put(&volume, 1, 0, &[1], &[]).id;
    let second = put(&volume, 2, 0, &[2], &[first]).id;
    device.failing.store(true, SeqCst);
    assert!(matches!(volume.sync(&[second]), Err(StoreError::Failed(_))));
    device.failing.store(false, SeqCst);
    assert!(volume.is_pending(first) && volume.is_pending(second));
    assert!(matches!(
        volume.begin(1, crate::Caller::SYSTEM),
        Err(StoreError::Failed(_))
    ));
    assert!(matches!(volume.sync_all(), Err(StoreError::Failed(_))));
    assert_eq!(
        stored(&device, 2),
        0,
        "the after of a lost write is never written"
    );
    assert_eq!(volume.read(Lba(2)).unwrap()[0], 2, "and can still be read");
}

#[test]
fn a_sync_of_held_patches_fails_instead_of_waiting() {
    let (_device, volume) = setup(quiet());
    let hold = volume.empty(&[], true);
    let patch = put(&volume, 1, 0, &[1], &[hold]).id;
    assert!(matches!(
        volume.sync(&[patch]),
        Err(StoreError::Held { .. })
    ));
    volume.release(hold);
    volume.sync(&[patch]).unwrap();
}

#[test]
fn one_graph_orders_devices_with_blocks_of_different_sizes() {
    let device = |block_bytes, blocks| {
        let geometry = Geometry {
            block_bytes,
            blocks,
        };
        Arc::new(MemoryDevice::new(geometry))
    };
    let (small, large) = (device(1024, 100), device(8192, 10));
    let devices: Vec<Box<dyn BlockDevice>> = vec![Box::new(small.clone()), Box::new(large.clone())];
    let cache = Arc::new(Cache::new(devices, quiet()));
    let volumes = [0, 1].map(|number| cache.store(number));
    let sizes = [0, 1].map(|n: usize| (volumes[n].block_bytes(), volumes[n].blocks()));
    assert_eq!(sizes, [(1024, 100), (8192, 10)]);
    let last_byte = put(&volumes[1], 9, 8191, &[1], &[]).id;
    let after = put(&volumes[0], 99, 1023, &[2], &[last_byte]).id;
    cache.write_some().unwrap();
    let stored = || (small.bytes()[100 * 1024 - 1], large.bytes()[10 * 8192 - 1]);
    assert_eq!(stored(), (0, 1), "the large block first");
    volumes[0].sync(&[after]).unwrap();
    assert_eq!(stored(), (2, 1));
    cache.verify().unwrap();
}

#[test]
fn a_held_patch_gains_befores() {
    let (device, volume) = setup(quiet());
    let hold = volume.empty(&[], true);
    let data = put(&volume, 1, 0, &[1; BLOCK], &[]).id;
    volume.add_before(
        hold,
        Before {
            patch: data,
            rule: Rule::DataBeforeCommit,
        },
    );
    let after = put(&volume, 2, 0, &[2], &[hold]).id;
    // On the block that `hold` waits for: the change must not join the existing patch.
    let back = put(&volume, 1, 0, &[3], &[hold]).id;
    volume.cache().verify().unwrap();
    assert!(volume.waits_for(&[after], data) && volume.waits_for(&[back], hold));
    assert!(!volume.waits_for(&[data], hold) && !volume.waits_for(&[data], after));
    volume.sync(&[data]).unwrap();
    assert_eq!([1, 2].map(|lba| stored(&device, lba)), [1, 0]);
    volume.release(hold);
    volume.sync_all().unwrap();
    assert_eq!([1, 2].map(|lba| stored(&device, lba)), [3, 2]);
}

/// C1, while other threads change blocks between the parts of a wave.
#[test]
fn no_wave_has_two_blocks_of_a_chain() {
    let (device, volume) = setup(CacheOptions {
        dirty_limit: 200,
        durable: Durable::Flush,
        ..quiet()
    });
    let writing = AtomicBool::new(true);
    // The first wave has a block of each thread.
    let all_began = std::sync::Barrier::new(21);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..20u64)
            .map(|thread| {
                let (volume, all_began) = (volume.clone(), &all_began);
                scope.spawn(move || {
                    let mut last = Vec::new();
                    for round in 0..300u64 {
                        let lba = thread * 40 + round % 37;
                        last = vec![put(&volume, lba, 0, &[byte(round)], &last).id];
                        if round == 0 {
                            all_began.wait();
                            all_began.wait();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            all_began.wait();
            assert_eq!(volume.cache().write_some().unwrap(), 20);
            all_began.wait();
            while writing.load(SeqCst) {
                volume.cache().write_some().unwrap();
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        writing.store(false, SeqCst);
    });
    volume.sync_all().unwrap();
    let waves = device.waves.lock();
    for wave in waves.iter() {
        let mut chains: Vec<u64> = wave.iter().map(|lba| lba / 40).collect();
        chains.sort_unstable();
        chains.dedup();
        assert_eq!(chains.len(), wave.len(), "{wave:?}");
    }
    assert!(
        waves.iter().any(|wave| wave.len() > AT_ONCE),
        "not in parts"
    );
}

#[test]
fn concurrent_changes_keep_the_invariants_and_are_written() {
    let (device, volume) = setup(CacheOptions {
        blocks: 64,
        dirty_limit: 32,
        interval: Some(Duration::from_millis(1)),
        ..CacheOptions::default()
    });
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = volume.clone();
            scope.spawn(move || {
                let mut last = Vec::new();
                for round in 0..500u64 {
                    let lba = thread * 100 + round % 90;
                    last = vec![put(&volume, lba, 0, &[byte(round)], &last).id];
                    if round % 50 == 0 {
                        volume.sync(&last).unwrap();
                        assert!(!volume.is_pending(last[0]));
                    }
                }
            });
        }
    });
    volume.sync_all().unwrap();
    volume.cache().verify().unwrap();
    for lba in 0..90 {
        let last = (0..500u64).filter(|round| round % 90 == lba).max().unwrap();
        assert_eq!(stored(&device, 100 + lba), byte(last));
    }
}

#[test]
fn a_sync_searches_again_after_a_change_added_befores() {
    let (_, volume) = setup(quiet());
    let shared = volume.cache().shared.clone();
    let synced = put(&volume, 5, 0, &[1], &[]).id;
    let (sync, seen) = {
        let mut core = shared.core.lock();
        let needed = needed::Needed::new(&mut core.graph, &[synced]);
        (core.syncs.insert(needed), core.progress)
    };
    let before = put(&volume, 2, 0, &[2], &[]).id;
    let joined = put(&volume, 5, 0, &[3], &[before]);
    assert!(joined.merged);
    let written = shared.wave(Want::Level(sync), 10);
    assert_eq!(written.unwrap(), 0, "its walk has not found block 2");
    shared.wait_for_others(&[synced], seen).unwrap();
    volume.sync(&[synced]).unwrap();
    // A held patch cannot be written, however often the sync searches.
    let held = volume.empty(&[], true);
    let waits = put(&volume, 5, 0, &[4], &[held]).id;
    assert!(matches!(
        volume.sync(&[waits]),
        Err(StoreError::Held { patches: 1 })
    ));
}

/// If each wave visited all patches that the sync waits for, the sum would be half a million.
#[test]
fn a_wave_of_a_sync_costs_what_it_writes() {
    let (_, volume) = setup(quiet());
    let mut last = PatchId::DURABLE;
    let rule = Rule::InitialiseBeforePoint;
    // One operation, since the end of each operation could write the chain back.
    let op = volume.begin(999, crate::Caller::SYSTEM).unwrap();
    for lba in 0..999 {
        let bytes = &[byte(lba)];
        let change = Change::Bytes { at: 0, bytes };
        let befores = [Before { patch: last, rule }];
        let made = volume.change(&op, Lba(lba), Content::Metadata, change, &befores);
        last = made.unwrap().id;
    }
    let before = volume.cache().stats();
    volume.sync(&[last]).unwrap();
    volume.end(op);
    let after = volume.cache().stats();
    assert_eq!(
        after.waves - before.waves,
        999,
        "each block waits for the last"
    );
    let visited = after.graph.visited - before.graph.visited;
    assert!(visited <= 4 * 999, "{visited}");
}

#[test]
fn concurrent_syncs_make_all_their_patches_durable() {
    let (device, volume) = setup(quiet());
    let mut random = fastrand::Rng::with_seed(3);
    for round in 1..=20 {
        let mut ids = Vec::new();
        for n in 0..200 {
            let befores: Vec<PatchId> = (0..2)
                .filter(|_| n > 0)
                .map(|_| ids[random.usize(..n)])
                .collect();
            let lba = random.u64(..300);
            ids.push(put(&volume, lba, random.u32(..100), &[round], &befores).id);
        }
        std::thread::scope(|scope| {
            for part in ids.chunks(50) {
                let volume = &volume;
                scope.spawn(move || volume.sync(part).unwrap());
            }
        });
        volume.cache().verify().unwrap();
        assert!(ids.iter().all(|id| !volume.is_pending(*id)));
    }
    assert!(volume.cache().shared.core.lock().syncs.is_empty());
    assert!(!device.waves.lock().is_empty());
}

#[test]
fn a_wave_of_a_sync_includes_blocks_of_other_syncs() {
    let (device, volume) = setup(CacheOptions {
        durable: Durable::Flush,
        ..quiet()
    });
    let shared = volume.cache().shared.clone();
    let [first, second, third] = [5, 6, 7].map(|lba| put(&volume, lba, 0, &[1], &[]).id);
    // The second sync has two levels. No sync waits for the third patch.
    let last = put(&volume, 8, 0, &[1], &[second]).id;
    let sync = |id| {
        let mut core = shared.core.lock();
        let needed = needed::Needed::new(&mut core.graph, &[id]);
        core.syncs.insert(needed)
    };
    let (mine, _others) = (sync(first), sync(last));
    assert_eq!(shared.wave(Want::Level(mine), 10).unwrap(), 2);
    assert_eq!(shared.wave(Want::Level(mine), 10).unwrap(), 0);
    let pending = [first, second, third, last].map(|id| volume.is_pending(id));
    assert_eq!(pending, [false, false, true, true]);
    assert_eq!(*device.waves.lock(), [[5, 6]], "one flush");
}
