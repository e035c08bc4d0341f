//! Mounts of files and partitions: sizes, refusals, and images that stay as they are.

use crate::{Bench, MODES, geometry, stack};
use blockfs::mount::{Devices, MountOptions, Mountable, mount};
use medium::block::{BlockDevice, MemoryDevice};
use patch::stack::{Mode, Stack};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use vfs::{Durability, Ordering};
use wholedisk::WholeDisk;

fn file(dir: &TempDir, bytes: u64) -> PathBuf {
    let path = dir.path().join(bytes.to_string());
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    path
}

fn open(path: &Path, stack: &Stack, read_only: bool) -> Result<Devices, String> {
    Devices::open::<WholeDisk>(path, stack, read_only).map_err(|e| e.to_string())
}

#[test]
fn blocks_are_the_largest_that_divide_the_size() {
    let dir = tempfile::tempdir().unwrap();
    for (bytes, block_bytes, blocks) in [
        (4096, 4096, 1),
        (1 << 20, 4096, 256),
        (4096 * 3 + 2048, 2048, 7),
        (1024 * 5, 1024, 5),
        (512, 512, 1),
        (512 * 9, 512, 9),
        (512 * 9 + 511, 512, 9), // as a loop device
    ] {
        let devices = open(&file(&dir, bytes), &stack(Mode::SoftUpdates), true).unwrap();
        let found = devices.disk.geometry();
        assert_eq!(found, geometry(block_bytes, blocks), "{bytes}");
    }
    let small = open(&file(&dir, 511), &stack(Mode::SoftUpdates), true);
    assert!(small.is_err());
}

/// A partition from sector 3 on: blocks of the device that the partition consists of are sectors.
#[test]
fn blocks_fit_the_start_of_a_partition() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 3 * 512 + 8192);
    let mut sector = [0; 512];
    sector[446 + 4] = 0x83;
    sector[446 + 8] = 3;
    sector[446 + 12] = 16;
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..512].copy_from_slice(&sector);
    bytes[3 * 512] = 9;
    std::fs::write(&path, bytes).unwrap();
    let stack: Stack = "uhfs > wholedisk > cache > partition(1) > disk"
        .parse()
        .unwrap();
    let devices = open(&path, &stack, false).unwrap();
    assert_eq!(devices.disk.geometry(), geometry(512, 16));
    let bench = Bench::new(devices.disk, Mode::SoftUpdates);
    assert_eq!(bench.read(0, 2), [9, 0]);
}

#[test]
fn journals_are_refused_before_anything_is_opened() {
    let stacks = [
        Stack::new(WholeDisk::NAME, Mode::Journal),
        Stack::new(WholeDisk::NAME, Mode::JournalOrdered),
        Stack::new(WholeDisk::NAME, Mode::JournalMetadata),
        "uhfs > wholedisk > journal(full, external=/nowhere) > cache > disk"
            .parse()
            .unwrap(),
    ];
    for stack in &stacks {
        let refused = open(Path::new("/nowhere/either"), stack, false).err();
        let why = refused.expect("a refusal");
        assert!(why.contains("wholedisk has no journal"), "{why}");
        assert!(why.contains("use mode=softupdates or mode=async"), "{why}");
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(geometry(512, 8)));
        let log: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(geometry(512, 8)));
        let devices = Devices {
            disk,
            log: Some(log),
        };
        let mounted = mount::<WholeDisk>(stack, devices, &MountOptions::default());
        assert!(mounted.is_err());
    }
}

#[test]
fn promises_name_the_mode_and_no_order() {
    for mode in MODES {
        let promised = WholeDisk::guarantees(&stack(mode));
        assert_eq!(promised.name, format!("wholedisk (mode={mode})"));
        assert_eq!(promised.durable, Durability::AtFsync);
        assert_eq!(promised.data_ordered, Ordering::None);
    }
}

#[test]
fn a_mount_without_writes_changes_no_byte_of_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 4 << 20);
    let made = Command::new("mke2fs")
        .args(["-q", "-F"])
        .arg(&path)
        .output();
    assert!(made.unwrap().status.success());
    let before = std::fs::read(&path).unwrap();
    for (mode, read_only) in [
        (Mode::SoftUpdates, false),
        (Mode::Async, false),
        (Mode::SoftUpdates, true),
    ] {
        let devices = open(&path, &stack(mode), read_only).unwrap();
        let options = MountOptions {
            read_only,
            ..MountOptions::default()
        };
        let bench = Bench::with(devices.disk, mode, &options);
        assert!(bench.read(0, before.len()) == before);
        let written = bench.write(0, &[1]);
        assert_eq!(written.is_err(), read_only);
        if !read_only {
            bench.write(0, &before[..1]).unwrap();
            bench.fsync();
        }
        bench.mounted.close().unwrap();
        drop(bench);
        assert!(std::fs::read(&path).unwrap() == before);
    }
}
