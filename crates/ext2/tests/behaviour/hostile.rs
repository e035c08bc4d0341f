//! Damaged images: calls end, with errors rather than panics, for any contents.

use super::fixture::{Mounted, debugfs, mke2fs, mount, options};
use medium::block::MemoryDevice;
use oracle::script::{State, generate, run, run_op};
use oracle::snapshot::Snapshot;
use std::sync::Arc;
use vfs::{Cookie, Ctx, Errno, FileSystem, FileType, Ino};

/// An image with files of many kinds.
fn full_image() -> Vec<u8> {
    let mounted = mount(mke2fs(&["-b", "1024", "-I", "256", "-N", "128"], "1M"));
    let mut state = State::default();
    run(&mounted.fs, &mut state, &generate::setup());
    run(&mounted.fs, &mut state, &generate::random(7, 120));
    mounted.close()
}

/// Blocks that are not all zeros, without most of the data.
fn used_blocks(image: &[u8]) -> Vec<usize> {
    let blocks = image.chunks(1024).enumerate();
    let used = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
    used.map(|(number, _)| number).collect()
}

#[test]
fn a_symbolic_link_without_its_target_is_damaged() {
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "64"], "1M"));
    let cx = Ctx::root();
    let long = [b't'; 100];
    for (name, target) in [(&b"long"[..], &long[..]), (b"short", b"target")] {
        mounted.fs.symlink(&cx, Ino::ROOT, name, target).unwrap();
    }
    let read = |mounted: &Mounted, name| {
        let link = mounted.fs.lookup(&cx, Ino::ROOT, name).unwrap().ino;
        mounted.fs.readlink(&cx, link)
    };
    assert_eq!(read(&mounted, b"long").unwrap(), long);
    let image = mounted.close();
    for (name, damage) in [
        (&b"long"[..], "sif /long block[0] 0"),
        (b"long", "sif /long size 5000"),
        (b"short", "sif /short size 0"),
        (b"short", "sif /short size 40"),
    ] {
        let (bad, said) = debugfs(&image, damage);
        assert_eq!(
            read(&mount(bad), name),
            Err(Errno::UCLEAN),
            "{damage}: {said}"
        );
    }
}

#[test]
fn damage_is_reported_and_never_fatal() {
    let image = full_image();
    let used = used_blocks(&image);
    let (mut mounted_images, mut errors) = (0, 0);
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bad = image.clone();
        for _ in 0..rng.usize(1..12) {
            let block = used[rng.usize(..used.len())];
            let at = block * 1024 + rng.usize(..256) * 4;
            let word = match rng.u8(..4) {
                0 => u32::MAX,
                1 => rng.u32(..2048),
                2 => 0,
                _ => rng.u32(..),
            };
            // The sizes that the tests themselves need stay.
            if at != 1024 + 56 && at != 1024 + 24 {
                bad[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        let device = Arc::new(MemoryDevice::from_bytes(1024, bad));
        let Ok(mounted) = Mounted::try_open(device, options(4096)) else {
            errors += 1;
            continue;
        };
        mounted_images += 1;
        let mut state = State::default();
        errors += usize::from(Snapshot::take(&mounted.fs).is_err());
        for op in &generate::random(seed, 40).ops {
            let _ = run_op(&mounted.fs, &mut state, op);
        }
        let _ = mounted.fs.statfs();
        let _ = mounted.fs.close();
    }
    assert!(
        mounted_images > 50 && errors > 20,
        "{mounted_images} {errors}"
    );
}

#[test]
fn a_listing_goes_on_after_a_damaged_inode() {
    let cx = Ctx::root();
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "64"], "1M"));
    for name in [b"a", b"b", b"c"] {
        mounted.fs.create(&cx, Ino::ROOT, name, 0o644).unwrap();
    }
    let (bad, _) = debugfs(&mounted.close(), "sif /b mode 0");
    let mounted = mount(bad);
    let fs = &mounted.fs;
    let (mut names, mut damaged) = (Vec::new(), Ino(0));
    fs.readdirplus(&cx, Ino::ROOT, Cookie::default(), &mut |entry, attr| {
        match attr {
            Some(attr) => assert_eq!(attr.ino, entry.ino),
            None => damaged = entry.ino,
        }
        names.push((entry.name.to_vec(), entry.kind, attr.is_some()));
        true
    })
    .unwrap();
    let listed = |name: &[u8], is_read| (name.to_vec(), FileType::Regular, is_read);
    let expected = [listed(b"a", true), listed(b"b", false), listed(b"c", true)];
    assert_eq!(names[names.len() - 3..], expected);
    assert_eq!(fs.lookup(&cx, Ino::ROOT, b"b"), Err(Errno::UCLEAN));
    fs.forget(damaged, 1);
    // Each listed entry has a reference, which the caller gives back.
    let a = fs.lookup(&cx, Ino::ROOT, b"a").unwrap().ino;
    fs.unlink(&cx, Ino::ROOT, b"a").unwrap();
    fs.forget(a, 1);
    assert_eq!(fs.getattr(&cx, a).unwrap().nlink, 0);
    fs.forget(a, 1);
    assert_eq!(fs.getattr(&cx, a), Err(Errno::STALE));
}
