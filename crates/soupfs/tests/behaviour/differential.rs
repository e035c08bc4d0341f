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
use vfs::{Ctx, FileSystem, Ino, ManualClock, RenameFlags, SetAttr, Timestamp};

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

/// The callers of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callers {
    Root,
    /// The super-user makes one half of the calls, and another user the rest. All may use the root
    /// directory, which is sticky.
    Both,
}

impl Callers {
    /// Prepares a file system.
    fn admit(self, fs: &dyn FileSystem) {
        let perm = match self {
            Callers::Root => return,
            Callers::Both => Some(0o1777),
        };
        let set = SetAttr {
            perm,
            ..SetAttr::default()
        };
        fs.setattr(&Ctx::root(), Ino::ROOT, &set).unwrap();
    }

    /// The caller of an operation. It stays the same when others are left out.
    fn of(self, op: &Op) -> Ctx {
        match self {
            Callers::Both if sum(&op.to_string()) % 2 == 1 => Ctx::user(7, 8),
            Callers::Root | Callers::Both => Ctx::root(),
        }
    }

    /// Whether two results are the same. If a call has several errors, and one is for want of
    /// rights, either may be reported.
    fn agree(self, got: vfs::Result<()>, want: vfs::Result<()>) -> bool {
        match self {
            Callers::Root => got == want,
            Callers::Both => got.is_ok() == want.is_ok(),
        }
    }
}

fn sum(text: &str) -> u32 {
    text.bytes().map(u32::from).sum()
}

/// The way in which a script runs.
#[derive(Debug, Clone, Copy)]
struct Way {
    data_atomic: bool,
    /// A sync follows this many calls.
    period: usize,
    callers: Callers,
}

const fn way(data_atomic: bool, period: usize) -> Way {
    Way {
        data_atomic,
        period,
        callers: Callers::Root,
    }
}

/// Runs a script on both. Returns the first difference.
fn difference(script: &Script, way: Way) -> Option<String> {
    let Way {
        data_atomic,
        period,
        callers,
    } = way;
    let pm = Arc::new(MemoryPmem::new(IMAGE));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(pm.clone(), options(data_atomic, false)).unwrap();
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    callers.admit(&fs);
    callers.admit(&model);
    // The files that the medium has, unless an operation may have synced some since.
    let mut stored = None;
    for (at, op) in script.ops.iter().filter(|op| !is_refused(op)).enumerate() {
        (here.cx, there.cx) = (callers.of(op), callers.of(op));
        let (got, want) = (run_op(&fs, &mut here, op), run_op(&model, &mut there, op));
        if !callers.agree(got, want) {
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
        stored = stored.filter(|_| op.synced().is_none());
        if at % period != period - 1 {
            continue;
        }
        // A crash leaves the files as they were.
        if let Some(stored) = stored.filter(|_| data_atomic) {
            let left = crate::open(pm.clone(), options(data_atomic, true)).unwrap();
            let left = Snapshot::take(&left).unwrap();
            if !left.is_same_except_times(&stored) {
                let diff = stored.diff(&left);
                return Some(format!(
                    "stored before the sync after op {at} ({op}): {diff:#?}"
                ));
            }
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
        stored = Some(c);
    }
    here.close_all(&fs);
    fs.sync().unwrap();
    let report = check(&*pm);
    (!report.is_clean()).then(|| format!("checked after closing: {:#?}", report.findings))
}

fn must_agree(script: &Script, way: Way) {
    if let Some(what) = difference(script, way) {
        let small = shrink(script, &mut |s| difference(s, way).is_some());
        let why = difference(&small, way).unwrap_or(what);
        panic!("{way:?}: {why}\nscript:\n{small}");
    }
}

#[test]
fn pairs_of_operations_agree_with_the_model() {
    for (way, step) in [(way(false, 1000), 1), (way(false, 1), 3), (way(true, 1), 5)] {
        for index in (0..generate::count(2)).step_by(step) {
            let script = generate::setup().then(&generate::sequence(2, index));
            must_agree(&script, way);
        }
    }
}

#[test]
fn long_random_scripts_agree_with_the_model() {
    for seed in 0..30 {
        let script = generate::setup().then(&generate::random(seed, 200));
        let script = match seed % 2 {
            0 => script,
            _ => generate::stretched(&script),
        };
        let by_both = Way {
            callers: Callers::Both,
            ..way(false, 7)
        };
        for way in [way(false, 1000), way(false, 1), by_both, way(true, 5)] {
            must_agree(&script, way);
        }
    }
}

/// Calls on open files and directories without a name.
const OPEN: [&str; 3] = [
    "mkdir n 755\nopen 0 n\nrmdir n\ncreate @0/n 644\nmkdir @0/n 755\nsymlink f @0/n\n\
     link f @0/n\nrename f @0/n replace\nrename A @0/n replace\nchmod @0 700\nclose 0\n",
    "mkdir A/n 755\nopen 0 A/n\nrename B A/n replace\nrename f @0/n noreplace\n\
     rename A/n @0/n replace\nclose 0\n",
    "tmpfile 0 A 644\nappend @0 10 1\nlink @0 n\nlink @0 A/n\nunlink n\nunlink A/n\n\
     link @0 n\nrename f n replace\nlink @0 f\nclose 0\n",
];

#[test]
fn calls_on_removed_and_open_files_agree_with_the_model() {
    for script in OPEN {
        let script = generate::setup().then(&script.parse().unwrap());
        for way in [way(false, 1000), way(false, 1), way(true, 3)] {
            must_agree(&script, way);
        }
    }
}

#[test]
fn an_exchange_is_refused() {
    let pm = MemoryPmem::new(IMAGE);
    mkfs(&pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::new(pm), options(false, false)).unwrap();
    let (cx, root) = (Ctx::root(), Ino::ROOT);
    for name in [b"a", b"b"] {
        fs.create(&cx, root, name, 0o644).unwrap();
    }
    let (a, b) = (vfs::Name::new(root, b"a"), vfs::Name::new(root, b"b"));
    let refused = fs.rename(&cx, a, b, RenameFlags::EXCHANGE);
    assert_eq!(refused, Err(vfs::Errno::INVAL));
}
