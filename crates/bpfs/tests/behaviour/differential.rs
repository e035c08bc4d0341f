//! BPFS against the model: the same scripts in every mode. After each call every result, the
//! visible state and the volatile maps are compared, and the state again after a remount.

use bpfs::{Atime, Bpfs, MkfsOptions, Mode, MountOptions, mkfs};
use medium::MemoryPmem;
use oracle::ModelFs;
use oracle::script::{Script, State, generate, run_op, shrink};
use oracle::snapshot::Snapshot;
use std::sync::Arc;
use vfs::{FileSystem, ManualClock, Timestamp};

const IMAGE: u64 = 4 << 20;

fn options(mode: Mode) -> MountOptions {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000));
    MountOptions {
        read_only: false,
        mode: Some(mode),
        atime: Atime::Never,
        clock,
    }
}

fn fresh(mode: Mode) -> Bpfs<Arc<MemoryPmem>> {
    let pm = Arc::new(MemoryPmem::new(IMAGE));
    mkfs(
        &*pm,
        &MkfsOptions {
            mode,
            ..MkfsOptions::default()
        },
    )
    .unwrap();
    Bpfs::open(pm, options(mode)).unwrap()
}

/// Runs a script on both. Returns the first difference.
fn difference(mode: Mode, script: &Script) -> Option<String> {
    let fs = fresh(mode);
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().enumerate() {
        let (got, want) = (run_op(&fs, &mut here, op), run_op(&model, &mut there, op));
        if got != want {
            return Some(format!("op {at}: {got:?}, the model {want:?}"));
        }
        let a = match Snapshot::take(&fs) {
            Ok(snapshot) => snapshot,
            Err(e) => return Some(format!("after op {at}: {e}")),
        };
        let b = Snapshot::take(&model).unwrap();
        if !a.is_same_except_times(&b) {
            return Some(format!("after op {at}: {:#?}", a.diff(&b)));
        }
        let audit = fs.audit();
        if !audit.is_empty() {
            return Some(format!("audit after op {at}: {audit:#?}"));
        }
        let again = Bpfs::open(fs.pmem().clone(), options(mode)).unwrap();
        let c = match Snapshot::take(&again) {
            Ok(c) => c,
            Err(e) => return Some(format!("remounted after op {at}: {e}")),
        };
        if !a.is_same_except_times(&c) || !a.has_same_times(&c) {
            return Some(format!("remounted after op {at}: {:#?}", a.diff(&c)));
        }
    }
    here.close_all(&fs);
    let audit = fs.audit();
    (!audit.is_empty()).then(|| format!("audit after closing: {audit:#?}"))
}

fn must_agree(mode: Mode, script: &Script) {
    if let Some(what) = difference(mode, script) {
        let small = shrink(script, &mut |s| difference(mode, s).is_some());
        let why = difference(mode, &small).unwrap_or(what);
        panic!("mode {mode}: {why}\nscript:\n{small}");
    }
}

#[test]
fn every_pair_of_operations_agrees_with_the_model() {
    for mode in Mode::ALL {
        let all = generate::count(2);
        let step = if mode == Mode::DEFAULT { 1 } else { 7 };
        for index in (0..all).step_by(step) {
            must_agree(mode, &generate::setup().then(&generate::sequence(2, index)));
        }
    }
}

#[test]
fn long_random_scripts_agree_with_the_model() {
    for mode in Mode::ALL {
        for seed in 0..12 {
            must_agree(mode, &generate::setup().then(&generate::random(seed, 150)));
        }
    }
}

/// The script runs through all modes.
#[test]
fn the_mode_may_change_at_any_mount() {
    let script = generate::setup().then(&generate::random(99, 210));
    let pm = Arc::new(MemoryPmem::new(IMAGE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let model = ModelFs::new(oracle::ModelOptions::default());
    for (at, ops) in script.ops.chunks(10).enumerate() {
        let mode = Mode::ALL[(at * 3) % Mode::ALL.len()];
        let fs = Bpfs::open(pm.clone(), options(mode)).unwrap();
        assert_eq!(fs.info().mode, mode);
        let (mut here, mut there) = (State::default(), State::default());
        for op in ops {
            let (got, want) = (run_op(&fs, &mut here, op), run_op(&model, &mut there, op));
            assert_eq!(got, want, "{mode}: {op}");
        }
        here.close_all(&fs);
        there.close_all(&model);
        let (a, b) = (
            Snapshot::take(&fs).unwrap(),
            Snapshot::take(&model).unwrap(),
        );
        assert!(a.is_same_except_times(&b), "{mode}: {:#?}", a.diff(&b));
        assert_eq!(fs.audit(), []);
    }
}
