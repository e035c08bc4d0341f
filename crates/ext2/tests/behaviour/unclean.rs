//! The cost of mounting an image that was not unmounted cleanly.

use super::fixture::{device, mke2fs, mount_with};
use super::fsync::mount_on;
use ext2::Mounted;
use patch::stack::Mode;
use vfs::{Ctx, FileSystem, Ino, OpenFlags};

/// Empty images: a clean one, and one that looks like after a crash.
fn images() -> [Vec<u8>; 2] {
    let clean = mke2fs(&["-b", "1024"], "8M");
    let mounted = mount_with(device(clean.clone()), 4096);
    mounted.fs.sync().unwrap();
    let image = mounted.device.bytes();
    [clean, image]
}

/// Writes and waves of this work, the sync at its end included.
fn cost(image: Vec<u8>, mode: Mode, work: fn(&Mounted)) -> [u64; 2] {
    let mounted = mount_on(device(image), mode);
    let before = mounted.cache().stats();
    work(&mounted);
    mounted.file_system().sync().unwrap();
    let after = mounted.cache().stats();
    [after.writes - before.writes, after.waves - before.waves]
}

fn name(n: u32) -> Vec<u8> {
    format!("file{n}").into_bytes()
}

/// Makes a hundred files and writes a byte to each, opens them again and appends, cuts them
/// and writes anew.
fn files(mounted: &Mounted) {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    for n in 0..100 {
        let made = fs.create(&cx, Ino::ROOT, &name(n), 0o644).unwrap().ino;
        fs.write(&cx, made, 0, b"x").unwrap();
        fs.forget(made, 1);
    }
    fs.sync().unwrap();
    for (flags, off) in [
        (OpenFlags::WRITE, 1),
        (OpenFlags::WRITE | OpenFlags::TRUNCATE, 0),
    ] {
        for n in 0..100 {
            let found = fs.lookup(&cx, Ino::ROOT, &name(n)).unwrap().ino;
            fs.open(&cx, found, flags).unwrap();
            fs.write(&cx, found, off, b"yy").unwrap();
            fs.release(found);
            fs.forget(found, 1);
        }
    }
}

#[test]
fn after_a_crash_files_grow_without_a_sync() {
    for mode in [Mode::SoftUpdates, Mode::JournalOrdered] {
        let [clean, crashed] = images().map(|image| cost(image, mode, files));
        for (clean, crashed) in clean.into_iter().zip(crashed) {
            assert!(crashed.abs_diff(clean) <= 4, "{mode}: {clean}, {crashed}");
        }
    }
}
