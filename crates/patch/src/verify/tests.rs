//! Random work causes no violation. A break of each rule is reported by its name.

use super::*;
use crate::journal::{self, JournalOptions, LogBlocks};
use crate::seeded::{self, Bug};
use crate::stack::Stack;
use crate::{Async, CacheOptions, DeviceStore, Rule};
use medium::block::{BlockDevice, MemoryDevice};

const BLOCK: usize = 1024;
const BLOCKS: usize = 16;

struct Bench {
    cache: Arc<Cache>,
    verifier: Arc<Verifier>,
}

fn bench() -> Bench {
    let verifier = Arc::new(Verifier::default());
    let memory = MemoryDevice::from_bytes(BLOCK as u32, vec![0; BLOCK * BLOCKS]);
    let watched = Watched::new(memory, 0, verifier.clone());
    let options = CacheOptions {
        interval: None,
        wave: 4,
        ..CacheOptions::default()
    };
    let devices: Vec<Box<dyn BlockDevice>> = vec![Box::new(watched)];
    let cache = Arc::new(Cache::new(devices, options));
    Bench { cache, verifier }
}

impl Bench {
    fn store(&self) -> DeviceStore {
        self.cache.store(0)
    }

    fn verify(&self, below: impl Store) -> impl Store {
        Verify::new(below, 0, self.cache.clone(), self.verifier.clone(), 5)
    }
}

fn before(patch: PatchId) -> Before {
    Before {
        patch,
        rule: Rule::InitialiseBeforePoint,
    }
}

fn put(store: &impl Store, lba: u64, change: Change<'_>, befores: &[PatchId]) -> PatchId {
    let befores: Vec<Before> = befores.iter().copied().map(before).collect();
    let op = store.begin(1, crate::Caller::SYSTEM).unwrap();
    let patched = store.change(&op, Lba(lba), Content::Metadata, change, &befores);
    store.end(op);
    patched.unwrap().id
}

/// One step of random work; `recent` are patches that others may wait for.
fn step(
    rng: &mut fastrand::Rng,
    cache: &Cache,
    store: &impl Store,
    recent: &mut Vec<PatchId>,
) -> Result<(), StoreError> {
    let befores: Vec<PatchId> = (0..rng.usize(..3))
        .filter_map(|_| recent.get(rng.usize(..=recent.len())).copied())
        .collect();
    let lba = rng.u64(..BLOCKS as u64);
    let bytes = [rng.u8(..); BLOCK];
    match rng.u8(..20) {
        0 => store.sync(&befores)?,
        1 => store.sync_all()?,
        2..=4 => drop(cache.write_some()?),
        5 => {
            let op = store.begin(1, crate::Caller::SYSTEM)?;
            let freed = store.freed(&op, Lba(lba), &[], true);
            store.end(op);
            freed?;
        }
        6 => {
            let befores: Vec<Before> = befores.iter().copied().map(before).collect();
            recent.push(store.empty(&befores, false));
        }
        7 => {
            let hold = store.empty(&[], true);
            let at = rng.u32(..BLOCK as u32 - 8);
            let change = Change::Bytes {
                at,
                bytes: &bytes[..8],
            };
            recent.push(put(store, lba, change, &[hold]));
            cache.write_some()?;
            store.release(hold);
        }
        8..=9 => {
            let change = Change::Bytes {
                at: 0,
                bytes: &bytes,
            };
            recent.push(put(store, lba, change, &befores));
        }
        10..=12 => {
            let (at, mask) = (rng.u32(..256) * 4, rng.u32(1..));
            recent.push(put(store, lba, Change::Flip { at, mask }, &befores));
        }
        _ => {
            let len = rng.usize(1..40);
            let at = rng.u32(..(BLOCK - len) as u32);
            let bytes = &bytes[..len];
            recent.push(put(store, lba, Change::Bytes { at, bytes }, &befores));
        }
    }
    if recent.len() > 30 {
        recent.remove(0);
    }
    Ok(())
}

/// Does random work until it fails or for `steps`. Returns the violation.
fn work(seed: u64, steps: usize) -> Option<String> {
    let bench = bench();
    let store = bench.verify(bench.store());
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut recent = Vec::new();
    for _ in 0..steps {
        let done = step(&mut rng, &bench.cache, &store, &mut recent);
        if done.is_err() || store.failure().is_some() {
            break;
        }
    }
    let is_failed = store.failure().is_some();
    let violation = bench.verifier.violation().map(str::to_owned);
    assert_eq!(is_failed, violation.is_some(), "seed {seed}: {violation:?}");
    violation
}

#[test]
fn work_without_bugs_breaks_no_rule() {
    for seed in 0..60 {
        assert_eq!(work(seed, 400), None, "seed {seed}");
    }
}

/// Does random work with a bug. Returns the first violation.
fn violation_by(bug: Bug) -> String {
    seeded::arm(Some(bug));
    let found = (0..60).find_map(|seed| work(seed, 400));
    assert!(seeded::fired() > 0);
    seeded::arm(None);
    found.expect("the bug is found")
}

#[test]
fn a_write_with_changes_that_must_wait_is_reported() {
    let found = violation_by(Bug::LoseRollback);
    assert!(found.starts_with("V2"), "{found}");
}

#[test]
fn a_graph_without_its_invariants_is_reported() {
    let found = violation_by(Bug::HardInCycle);
    assert!(found.starts_with("V4: P"), "{found}");
}

/// Changes a block of the log past the layer, so that the layer must refuse its write.
#[test]
fn a_log_on_its_own_device_is_checked() {
    let stack = "uhfs > ext2 > journal(full, log=1) > verify > cache(interval=never) > \
                 [disk, disk]";
    let stack: Stack = stack.parse().unwrap();
    let device = || -> Arc<dyn BlockDevice> {
        let bytes = vec![0; BLOCK * 64];
        Arc::new(MemoryDevice::from_bytes(BLOCK as u32, bytes))
    };
    let (home, log) = (device(), device());
    let place = LogBlocks::new([(Lba(0), 64)]);
    journal::format(&*log, &place, [7; 16]).unwrap();
    let seconds = JournalOptions::default().seconds;
    let built = stack.assemble(vec![home, log], Some((1, place)), seconds);
    let built = built.unwrap();
    put(&built.store, 1, SMALL, &[]);
    built.store.sync_all().unwrap();
    put(&built.store, 1, Change::Bytes { at: 9, bytes: &[1] }, &[]);
    built.journal.unwrap().commit().unwrap();
    let head = built
        .cache
        .draw()
        .blocks
        .into_iter()
        .find(|b| b.device == 1);
    put(&built.cache.store(1), head.unwrap().lba, SMALL, &[]);
    let error = built.store.sync_all().unwrap_err().to_string();
    assert!(error.contains("verifying a write"), "{error}");
}

const SMALL: Change<'_> = Change::Bytes { at: 4, bytes: &[7] };

#[test]
fn a_write_before_its_befores_is_reported() {
    let bench = bench();
    let store = bench.verify(Async::new(bench.store()));
    let first = put(&store, 1, SMALL, &[]);
    let second = put(&store, 2, SMALL, &[first]);
    let error = store.sync(&[second]).unwrap_err();
    assert!(matches!(error, StoreError::Failed(_)), "{error}");
    let violation = bench.verifier.violation().unwrap();
    assert!(violation.starts_with("V1"), "{violation}");
    assert!(
        store.begin(1, crate::Caller::SYSTEM).is_err(),
        "the store is read-only"
    );
    assert_eq!(store.read(Lba(2)).unwrap()[4], 7, "and can be read");
}

#[test]
fn a_patch_freed_without_a_write_is_reported() {
    let bench = bench();
    let volume = bench.store();
    let store = bench.verify(volume.clone());
    put(&store, 1, SMALL, &[]);
    // Past the layer, which has no record that the change is cancelled.
    let op = volume.begin(1, crate::Caller::SYSTEM).unwrap();
    volume.freed(&op, Lba(1), &[], true).unwrap();
    volume.end(op);
    let next = put(&store, 1, Change::Bytes { at: 9, bytes: &[1] }, &[]);
    assert!(store.sync(&[next]).is_err());
    let violation = bench.verifier.violation().unwrap();
    assert!(violation.starts_with("V3"), "{violation}");
}
