//! The superblock of an image whose mount with a journal was killed.

use super::fixture::{device, mke2fs};
use blockfs::Format;
use blockfs::mount::{Devices, MountOptions, mount};
use ext2::Mounted;
use medium::block::MemoryDevice;
use patch::stack::{CacheLayer, Mode, Stack};
use std::process::{Command, Output};
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino};

fn mounted(disk: &Arc<MemoryDevice>, mode: Mode) -> Mounted {
    let stack = Stack::new("ext2", mode).with_cache(CacheLayer {
        interval: None,
        ..CacheLayer::default()
    });
    let devices = Devices {
        disk: disk.clone(),
        log: None,
    };
    mount(&stack, devices, &MountOptions::default()).unwrap()
}

/// An image after a kill that has left transactions in the log.
fn killed(mode: Mode) -> Vec<u8> {
    let disk = device(mke2fs(&["-j", "-b", "1024"], "8M"));
    let mounted = mounted(&disk, mode);
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    for n in 0..50 {
        let name = format!("file{n}");
        let ino = fs
            .create(&cx, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap()
            .ino;
        fs.write(&cx, ino, 0, &[1; 5000]).unwrap();
    }
    fs.sync().unwrap();
    disk.bytes()
}

fn e2fsck(image: &std::path::Path, how: &str) -> Output {
    let mut command = Command::new("e2fsck");
    command.env("LC_ALL", "C").arg(how).arg(image);
    command.output().unwrap()
}

#[test]
fn e2fsck_replays_the_journal_of_a_killed_mount_and_checks_no_more() {
    for mode in [Mode::JournalMetadata, Mode::JournalOrdered, Mode::Journal] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, killed(mode)).unwrap();
        let preened = e2fsck(&path, "-p");
        let said = String::from_utf8_lossy(&preened.stdout);
        assert!(preened.status.success(), "{mode}: {said}");
        assert!(said.contains("recovering journal"), "{mode}: {said}");
        assert!(!said.contains("check forced"), "{mode}: {said}");
        let checked = e2fsck(&path, "-fn");
        assert!(checked.status.success(), "{mode}: {checked:?}");
    }
}

#[test]
fn the_next_mount_of_a_killed_one_finds_it_clean_after_the_replay() {
    for mode in [Mode::JournalMetadata, Mode::JournalOrdered, Mode::Journal] {
        let disk = device(killed(mode));
        assert!(!ext2::probe(&*disk).unwrap().clean, "{mode}");
        let again = mounted(&disk, mode);
        assert!(again.file_system().format().was_clean(), "{mode}");
        assert_eq!(again.file_system().audit(), [], "{mode}");
        again.close().unwrap();
        assert!(ext2::probe(&*disk).unwrap().clean, "{mode}");
    }
}

#[test]
fn a_journal_does_not_make_valid_what_soft_updates_left() {
    let disk = device(mke2fs(&["-b", "1024"], "8M"));
    drop(mounted(&disk, Mode::SoftUpdates));
    let again = mounted(&disk, Mode::JournalOrdered);
    assert!(!again.file_system().format().was_clean());
    again.close().unwrap();
    assert!(!ext2::probe(&*disk).unwrap().clean);
}
