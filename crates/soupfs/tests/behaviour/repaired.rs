//! Repairs of images that crashes have left: nothing is lost, also if a repair is cut off.

use medium::{CutAfter, MemoryPmem, PersistModel, Pmem, PowerCut};
use oracle::script::{State, generate, run_op};
use oracle::snapshot::Snapshot;
use soupfs::{Atime, MkfsOptions, Mode, MountOptions, check, mkfs, repair};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{FileSystem, ManualClock, Timestamp};

fn options() -> MountOptions {
    MountOptions {
        read_only: false,
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000)),
        bound_s: None,
        boot: None,
        sync: false,
        mode: Mode::InPlace,
        ..MountOptions::default()
    }
}

/// Runs `change` with a power cut at the `n`-th store or fence.
fn with_cut(
    pm: &Arc<MemoryPmem>,
    n: u64,
    seed: u64,
    change: impl FnOnce(&Arc<PowerCut<Arc<MemoryPmem>>>),
) {
    let power = Arc::new(PowerCut::new(Arc::clone(pm)));
    let when = match seed % 2 {
        0 => CutAfter::Stores(n),
        _ => CutAfter::Fences(n),
    };
    power.cut_after(when, seed, PersistModel::Words);
    change(&power);
    power.cut(seed, PersistModel::Words).unwrap();
}

/// An image after a power cut in a random script, with a round of the persister now and then.
fn crashed(seed: u64) -> Arc<MemoryPmem> {
    let pm = Arc::new(MemoryPmem::new(2 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let after = if seed.is_multiple_of(2) {
        100 + seed * 37
    } else {
        10 + seed
    };
    with_cut(&pm, after, seed, |power| {
        let fs = crate::open(Arc::clone(power), options()).unwrap();
        let mut state = State::default();
        let script = generate::setup().then(&generate::random(seed, 100));
        for (at, op) in script.ops.iter().enumerate() {
            let _ = run_op(&fs, &mut state, op);
            if at % 5 == 4 {
                let _ = fs.sync();
            }
        }
    });
    pm
}

/// The files. `None` if a directory that was being moved has both names.
fn files(pm: &Arc<MemoryPmem>) -> Option<Snapshot> {
    let options = MountOptions {
        read_only: true,
        ..options()
    };
    Snapshot::take(&crate::open(Arc::clone(pm), options).unwrap()).ok()
}

#[test]
fn a_repair_removes_all_leaks_and_no_file() {
    let mut repaired = 0;
    for seed in 0..120 {
        let pm = crashed(seed);
        let found = check(&*pm);
        assert_ne!(found.worst(), Some(Severity::Corrupt), "{seed}: {found:?}");
        let before = files(&pm);
        if seed % 3 == 0 {
            // The power fails in a first repair.
            with_cut(&pm, 1 + seed % 7, seed, |power| {
                drop(repair(&**power, None))
            });
            let after = check(&*pm);
            assert_ne!(after.worst(), Some(Severity::Corrupt), "{seed}: {after:?}");
        }
        let (left, _) = repair(&*pm, None).unwrap();
        assert!(left.is_clean(), "{seed}: {left:?}");
        assert!(check(&*pm).is_clean());
        let after = files(&pm).expect("one name for each directory");
        let names = |snapshot: &Snapshot| -> Vec<Vec<u8>> {
            let paths = snapshot.iter().map(|(path, ..)| path.to_vec());
            paths.collect()
        };
        let has_moving = found.findings.iter().any(|found| found.invariant == "S8");
        match before {
            Some(before) if has_moving => {
                let before = names(&before);
                assert!(names(&after).iter().all(|name| before.contains(name)));
            }
            Some(before) => assert_eq!(names(&before), names(&after), "{seed}"),
            None => assert!(has_moving, "{seed}: {found:?}"),
        }
        repaired += usize::from(!found.is_clean());
    }
    assert!(repaired > 20, "{repaired} images had leaks");
}

#[test]
fn a_damaged_image_is_left_as_it_is() {
    let pm = crashed(0);
    // The mode of the root inode.
    pm.store_word(64, 0);
    let before: Vec<u64> = (0..pm.len() / 8).map(|n| pm.load(n * 8).unwrap()).collect();
    let (left, _) = repair(&*pm, None).unwrap();
    assert_eq!(left.worst(), Some(Severity::Corrupt));
    let same = before
        .iter()
        .enumerate()
        .all(|(n, word)| pm.load(n as u64 * 8) == Ok(*word));
    assert!(same);
}
