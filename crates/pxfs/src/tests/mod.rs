//! PXFS against the model: the same scripts. After each call every result and the visible state are
//! compared, the checker finds nothing, and a new mount sees the same.

mod beside;
mod callers;
mod clients;
mod damage;
mod failures;
mod forged;
mod fsyncs;
mod hostile;
mod nameless;
mod paths;
mod privileges;
mod protected;
mod races;
mod sessions;
mod ships;

use crate::{MkfsOptions, Pxfs, mkfs};
use medium::MemoryPmem;
use oracle::ModelFs;
use oracle::script::{Script, State, generate, run_op, shrink};
use oracle::snapshot::Snapshot;
use std::sync::Arc;
use vfs::{Atime, FileSystem, ManualClock, Timestamp};

const IMAGE: u64 = 2 << 20;

type Memory = Arc<MemoryPmem>;

fn open(memory: &Memory) -> Pxfs<Memory> {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000));
    Pxfs::open(memory.clone(), clock, Atime::Never).unwrap()
}

/// Runs a script on both, with a check and a mount after each `period` calls. Returns the first
/// difference.
fn difference(script: &Script, period: usize) -> Option<String> {
    let memory = Arc::new(MemoryPmem::new(IMAGE));
    mkfs(&memory, &MkfsOptions::default()).unwrap();
    let fs = open(&memory);
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().enumerate() {
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
        let findings = fs.audit();
        if !findings.is_empty() {
            return Some(format!("checked after op {at} ({op}): {findings:#?}"));
        }
        // On a copy: the mount removes files that are open without a name.
        let copy = Arc::new(MemoryPmem::copy_of(&*memory).unwrap());
        let c = Snapshot::take(&open(&copy)).unwrap();
        if !a.is_same_except_times(&c) || !a.has_same_times(&c) {
            return Some(format!(
                "mounted again after op {at} ({op}): {:#?}",
                a.diff(&c)
            ));
        }
    }
    here.close_all(&fs);
    let findings = fs.audit();
    (!findings.is_empty()).then(|| format!("checked after closing: {findings:#?}"))
}

fn must_agree(script: &Script, period: usize) {
    if let Some(what) = difference(script, period) {
        let small = shrink(script, &mut |s| difference(s, period).is_some());
        let why = difference(&small, period).unwrap_or(what);
        panic!("{why}\nscript:\n{small}");
    }
}

#[test]
fn pairs_of_operations_agree_with_the_model() {
    for index in (0..generate::count(2)).step_by(3) {
        must_agree(&generate::setup().then(&generate::sequence(2, index)), 4);
    }
}

#[test]
fn long_random_scripts_agree_with_the_model() {
    for seed in 0..20 {
        must_agree(&generate::setup().then(&generate::random(seed, 150)), 7);
    }
}
