//! The same scripts on ext2, in each mode, and on the model. The result and the visible state are
//! compared after each call.

use ext2::Ext2System;
use medium::block::{Geometry, MemoryDevice};
use oracle::ModelFs;
use oracle::script::{Op, Script, State, generate, run_op};
use oracle::snapshot::Snapshot;
use patch::stack::Mode;
use std::sync::Arc;
use vfs::{Ctx, Errno, Ino, ManualClock, RenameFlags, System, Timestamp};

/// Runs a script until the small image is full. Returns the number of compared calls.
fn compare(mode: Mode, script: &Script) -> usize {
    let system = Ext2System::new(mode).forgetful();
    let geometry = Geometry {
        block_bytes: 1024,
        blocks: system.image_bytes() / 1024,
    };
    let device = Arc::new(MemoryDevice::new(geometry));
    system.format(&*device).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1), 1));
    let fs = system.open(device, clock).unwrap();
    // The model does not have this directory.
    fs.rmdir(&Ctx::root(), Ino::ROOT, b"lost+found").unwrap();
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().enumerate() {
        let got = run_op(&*fs, &mut here, op);
        if got == Err(Errno::NOSPC) {
            return at;
        }
        let exchanges =
            matches!(op, Op::Rename { flags, .. } if flags.contains(RenameFlags::EXCHANGE));
        if exchanges && mode == Mode::SoftUpdates {
            continue; // it cannot be atomic there
        }
        assert_eq!(
            got,
            run_op(&model, &mut there, op),
            "{mode}: op {at} of\n{script}"
        );
        let (a, b) = (
            Snapshot::take(&*fs).unwrap(),
            Snapshot::take(&model).unwrap(),
        );
        assert!(
            a.is_same_except_times(&b),
            "{mode}: after op {at} of\n{script}\n{:#?}",
            a.diff(&b)
        );
        assert_eq!(fs.audit(), [], "{mode}: after op {at} of\n{script}");
    }
    script.ops.len()
}

#[test]
fn random_scripts_agree_with_the_model_in_each_mode() {
    let modes = [
        Mode::SoftUpdates,
        Mode::JournalMetadata,
        Mode::JournalOrdered,
        Mode::Journal,
    ];
    for mode in modes {
        let scripts = (0..8).map(|seed| generate::setup().then(&generate::random(seed, 80)));
        let compared: usize = scripts.map(|script| compare(mode, &script)).sum();
        assert!(
            compared > 200,
            "{mode}: the image is full after {compared} calls"
        );
    }
}
