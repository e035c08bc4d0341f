//! Read-only mounts: they refuse changes, change nothing, and do not recover.

use crate::fixture::*;
use bpfs::{Atime, Bpfs, Error, MkfsOptions, Mode, MountOptions, mkfs, recover};
use medium::{CutAfter, MemoryPmem, Overlay, PersistModel, Pmem, PowerCut};
use oracle::script::{Op, State, generate, run, run_op};
use std::sync::Arc;
use vfs::{Errno, FileSystem, Ino, OpenFlags};

#[test]
fn a_read_only_mount_refuses_changes_and_changes_nothing() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        run(&fs, &mut State::default(), &generate::setup());
        let (pm, before) = (fs.pmem().clone(), snapshot(&fs));
        drop(fs);
        let o = MountOptions {
            read_only: true,
            mode: None,
            atime: Atime::Strict,
            ..options(mode)
        };
        let image = |pm: &Memory| {
            let mut bytes = vec![0; pm.len() as usize];
            pm.read(0, &mut bytes).unwrap();
            bytes
        };
        let bytes = image(&pm);
        let fs = Bpfs::open(pm.clone(), o).unwrap();
        assert_eq!(fs.info().mode, mode);
        let mut refused = 0;
        for op in generate::all_ops() {
            let would = {
                let copy = Bpfs::open(copy_of(&pm), options(mode)).unwrap();
                run_op(&copy, &mut State::default(), op)
            };
            let reads = matches!(op, Op::Fsync { .. } | Op::Fsyncdir { .. });
            let got = run_op(&fs, &mut State::default(), op);
            if would.is_ok() && !reads {
                assert_eq!(got, Err(Errno::ROFS), "{mode}: {op}");
                refused += 1;
            }
        }
        assert!(refused > 40, "{mode}: {refused}");
        let temp = fs.tmpfile(&root(), Ino::ROOT, 0o600).err();
        assert_eq!(temp, Some(Errno::ROFS));
        let f = ino(&fs, "f");
        assert_eq!(fs.open(&root(), f, OpenFlags::READ), Ok(()));
        fs.release(f);
        let cut = fs.open(&root(), f, OpenFlags::WRITE | OpenFlags::TRUNCATE);
        assert_eq!(cut, Err(Errno::ROFS));
        assert!(snapshot(&fs).is_same_except_times(&before), "{mode}");
        assert_eq!(fs.audit(), []);
        assert!(image(&pm) == bytes, "{mode}: the image has changed");
    }
}

/// Cuts the power at each fence of a call, in many ways. Returns how many of the images a
/// read-only mount refused; it may change none of them.
fn needs_recovery(mode: Mode) -> u32 {
    let mut refused = 0;
    for (fence, seed) in (1..).flat_map(|fence| (0..20).map(move |seed| (fence, seed))) {
        let pm = Arc::new(PowerCut::new(MemoryPmem::new(MIB)));
        let o = MkfsOptions {
            mode,
            ..MkfsOptions::default()
        };
        mkfs(&*pm, &o).unwrap();
        let fs = Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(mode)).unwrap();
        let d = dir_in(&fs, Ino::ROOT, "d");
        write(&fs, file(&fs, "f"), 0, b"contents");
        pm.cut_after(CutAfter::Fences(fence), seed, PersistModel::Words);
        let moved = rename(&fs, (Ino::ROOT, "f"), (d, "g"), PLAIN);
        drop(fs);
        if pm.outcome().is_none() {
            assert_eq!(moved, Ok(()));
            return refused;
        }
        refused += u32::from(refused_until_mended(mode, pm.inner()));
    }
    refused
}

fn refused_until_mended(mode: Mode, crashed: &MemoryPmem) -> bool {
    let image = copy_of(crashed);
    let read_only = MountOptions {
        read_only: true,
        ..options(mode)
    };
    let Err(e) = Bpfs::open(image.clone(), read_only.clone()) else {
        return false;
    };
    assert_eq!(e, Error::NeedsRecovery, "{mode}");
    let (mut before, mut after) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    crashed.read(0, &mut before).unwrap();
    image.read(0, &mut after).unwrap();
    assert!(
        before == after,
        "{mode}: a refused mount has stored something"
    );
    // Recovery can run in memory.
    let in_memory = Arc::new(Overlay::new(image.clone()));
    assert_eq!(recover(&in_memory), Ok(true), "{mode}");
    assert_eq!(recover(&in_memory), Ok(false), "{mode}");
    let fs = Bpfs::open(in_memory as Arc<dyn Pmem>, read_only.clone()).unwrap();
    let in_memory = [stat(&fs, "f").is_ok(), stat(&fs, "d/g").is_ok()];
    image.read(0, &mut after).unwrap();
    assert!(before == after, "{mode}: the image has changed");
    // A writable mount recovers the image; a read-only mount succeeds then.
    must_be_healthy(&Bpfs::open(image.clone(), options(mode)).unwrap());
    let fs = Bpfs::open(image, read_only).unwrap();
    let names = [stat(&fs, "f").is_ok(), stat(&fs, "d/g").is_ok()];
    assert_ne!(names[0], names[1], "{mode}");
    assert_eq!(names, in_memory, "{mode}");
    true
}

#[test]
fn a_read_only_mount_does_not_recover() {
    assert!(needs_recovery(Mode::Log) > 0, "never a pending log record");
    assert!(needs_recovery(Mode::Sp) > 0, "never a torn super block");
    assert_eq!(
        needs_recovery(Mode::Other),
        0,
        "there is nothing to recover"
    );
}
