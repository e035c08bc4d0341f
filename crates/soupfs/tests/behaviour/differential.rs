//! SoupFS against the model: the same scripts, with a round of the persister now and then. After each
//! call every result and the visible state are compared. After a sync, the checker finds nothing, and
//! a mount without the latest view sees the same.

use medium::MemoryPmem;
use oracle::ModelFs;
use oracle::script::{Op, Script, State, generate, run_op, shrink};
use oracle::snapshot::Snapshot;
use soupfs::{Atime, MkfsOptions, Mode, MountOptions, check, mkfs};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{FileSystem, ManualClock, RenameFlags, Timestamp};

const IMAGE: u64 = 8 << 20;

fn options(data_atomic: bool, read_only: bool) -> MountOptions {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000));
    MountOptions {
        read_only,
        atime: Atime::Never,
        clock,
        bound_s: None,
        mode: match data_atomic {
            true => Mode::Atomic,
            false => Mode::InPlace,
        },
        ..MountOptions::default()
    }
}

/// An exchange is refused, so the model must not do it either.
fn is_refused(op: &Op) -> bool {
    op.to_string().contains("exchange")
}

/// Runs a script on both, with a sync after each `period` calls. Returns the first difference.
fn difference(script: &Script, data_atomic: bool, period: usize) -> Option<String> {
    let pm = Arc::new(MemoryPmem::new(IMAGE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(pm.clone(), options(data_atomic, false)).unwrap();
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().filter(|op| !is_refused(op)).enumerate() {
        let (got, want) = (run_op(&fs, &mut here, op), run_op(&model, &mut there, op));
        if got != want {
            return Some(format!("op {at} ({op}): {got:?}, the model {want:?}"));
        }
        let a = match Snapshot::take(&fs) {
            Ok(snapshot) => snapshot,
            Err(e) => return Some(format!("after op {at} ({op}): {e}")),
        };
        let b = Snapshot::take(&model).unwrap();
        if !a.is_same_except_times(&b) {
            return Some(format!("after op {at} ({op}): {:#?}", a.diff(&b)));
        }
        if at % period != period - 1 {
            continue;
        }
        fs.sync().unwrap();
        let report = check(&*pm);
        let is_leak = |found: &vfs::check::Finding| found.severity == Severity::Leak;
        if !report.findings.iter().all(is_leak) {
            return Some(format!(
                "checked after op {at} ({op}): {:#?}",
                report.findings
            ));
        }
        let again = crate::open(pm.clone(), options(data_atomic, true)).unwrap();
        let c = match Snapshot::take(&again) {
            Ok(c) => c,
            Err(e) => return Some(format!("remounted after op {at} ({op}): {e}")),
        };
        if !a.is_same_except_times(&c) || !a.has_same_times(&c) {
            return Some(format!("remounted after op {at} ({op}): {:#?}", a.diff(&c)));
        }
    }
    here.close_all(&fs);
    fs.sync().unwrap();
    let report = check(&*pm);
    (!report.is_clean()).then(|| format!("checked after closing: {:#?}", report.findings))
}

fn must_agree(script: &Script, data_atomic: bool, period: usize) {
    if let Some(what) = difference(script, data_atomic, period) {
        let differs = |s: &Script| difference(s, data_atomic, period).is_some();
        let small = shrink(script, &mut |s| differs(s));
        let why = difference(&small, data_atomic, period).unwrap_or(what);
        panic!("data_atomic={data_atomic}, a sync after {period}: {why}\nscript:\n{small}");
    }
}

#[test]
fn pairs_of_operations_agree_with_the_model() {
    for (data_atomic, period, step) in [(false, 1000, 1), (false, 1, 3), (true, 1, 5)] {
        for index in (0..generate::count(2)).step_by(step) {
            let script = generate::setup().then(&generate::sequence(2, index));
            must_agree(&script, data_atomic, period);
        }
    }
}

#[test]
fn long_random_scripts_agree_with_the_model() {
    for seed in 0..30 {
        let script = generate::setup().then(&generate::random(seed, 200));
        for (data_atomic, period) in [(false, 1000), (false, 1), (false, 7), (true, 5)] {
            must_agree(&script, data_atomic, period);
        }
    }
}

#[test]
fn an_exchange_is_refused() {
    let pm = MemoryPmem::new(IMAGE);
    mkfs(&pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::new(pm), options(false, false)).unwrap();
    let (cx, root) = (vfs::Ctx::root(), vfs::Ino::ROOT);
    for name in [b"a", b"b"] {
        fs.create(&cx, root, name, 0o644).unwrap();
    }
    let (a, b) = (vfs::Name::new(root, b"a"), vfs::Name::new(root, b"b"));
    let refused = fs.rename(&cx, a, b, RenameFlags::EXCHANGE);
    assert_eq!(refused, Err(vfs::Errno::INVAL));
}
