//! e2fsck, dumpe2fs and the kernel accept the images of mkfs.

mod sparse;

use ext2::{Error, Inodes, MkfsOptions, mkfs, probe};
use medium::block::{BlockDevice, Geometry, Lba, MemoryDevice};
use sparse::SparseDevice;
use std::path::Path;
use std::process::Command;
use vfs::Timestamp;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn options(bytes: u64) -> MkfsOptions {
    MkfsOptions {
        label: *b"a label\0\0\0\0\0\0\0\0\0",
        uuid: *b"0123456789abcdef",
        now: Timestamp::from_parts(1_700_000_000, 123_456_789),
        ..MkfsOptions::for_size(bytes)
    }
}

fn run(program: &str, args: &[&str], image: &Path) -> String {
    let output = Command::new(program).args(args).arg(image).output();
    let output = output.expect("e2fsprogs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {text}{errors}");
    text
}

/// Makes a file system, and checks it with e2fsck and dumpe2fs.
fn accepted(bytes: u64, device_block: u32, o: &MkfsOptions) -> String {
    let device = SparseDevice::new(device_block, bytes / u64::from(device_block));
    mkfs(&device, o).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    device.export(&image);
    run("e2fsck", &["-fn"], &image);
    let info = probe(&device).unwrap();
    assert_eq!(
        info.label,
        b"a label".as_slice()[..if o.revision == 0 { 0 } else { 7 }]
    );
    assert_eq!((info.block_bytes, info.clean), (o.block_bytes, true));
    assert_eq!(ext2::check(&device).findings, []);
    run("dumpe2fs", &[], &image)
}

#[test]
fn each_choice_of_sizes_and_features_is_accepted() {
    for block_bytes in [1024, 2048, 4096] {
        for inode_bytes in [128, 256] {
            for switches in 0..16u8 {
                let on = |bit: u8| switches & (1 << bit) != 0;
                let bytes = 40 * MIB + 17 * KIB;
                let o = MkfsOptions {
                    block_bytes,
                    inode_bytes,
                    sparse_super: on(0),
                    filetype: on(1),
                    large_file: on(2),
                    dir_index: on(3),
                    ..options(bytes)
                };
                let dump = accepted(bytes, 1024, &o);
                assert_eq!(dump.contains("sparse_super"), on(0), "{dump}");
                assert_eq!(dump.contains("filetype"), on(1), "{dump}");
            }
            let bytes = 9 * MIB;
            let o = MkfsOptions {
                block_bytes,
                ..options(bytes).revision_0()
            };
            accepted(bytes, 512, &o);
        }
    }
}

#[test]
fn sizes_from_a_floppy_on_are_accepted() {
    for kib in (64..=1440)
        .step_by(97)
        .chain([8192, 8193, 8194, 8300, 8800, 16_500])
    {
        accepted(kib * KIB, 512, &options(kib * KIB));
    }
}

#[test]
fn device_blocks_larger_and_smaller_than_those_of_the_file_system() {
    for device_block in [512, 1024, 4096, 65_536] {
        for block_bytes in [1024, 4096] {
            let o = MkfsOptions {
                block_bytes,
                ..options(20 * MIB)
            };
            accepted(20 * MIB, device_block, &o);
        }
    }
}

#[test]
fn backups_are_where_fsck_looks_for_them() {
    let device = SparseDevice::new(1024, 64 * 1024);
    mkfs(&device, &options(64 * MIB)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    device.export(&image);
    let dump = run(
        "dumpe2fs",
        &["-o", "superblock=57345", "-o", "blocksize=1024"],
        &image,
    );
    assert!(dump.contains("Backup superblock at 57345"), "{dump}");
    for group in [1, 3, 5, 7] {
        let at = (group * 8192 + 1).to_string();
        run("e2fsck", &["-fn", "-b", &at, "-B", "1024"], &image);
    }
}

#[test]
fn a_terabyte_takes_little_room() {
    let bytes = 1024 * GIB;
    let o = MkfsOptions {
        inodes: Inodes::BytesPer(4 << 20),
        ..options(bytes)
    };
    let device = SparseDevice::new(4096, bytes / 4096);
    mkfs(&device, &o).unwrap();
    // Two bitmaps for each of 8192 groups, and the descriptors and their backups.
    assert!(device.stored() < 18_000, "{} blocks", device.stored());
    let info = probe(&device).unwrap();
    assert_eq!(info.groups, 8192);
}

#[test]
fn inode_tables_that_are_not_zero_are_cleared() {
    let bytes = vec![0xa5; 4 << 20];
    let device = MemoryDevice::from_bytes(512, bytes);
    mkfs(&device, &options(4 * MIB)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, device.bytes()).unwrap();
    run("e2fsck", &["-fn"], &image);
}

#[test]
fn bad_choices_are_refused() {
    let device = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: 2048,
    });
    let refused = |o: MkfsOptions| matches!(mkfs(&device, &o), Err(Error::Option(_)));
    let good = || options(MIB);
    assert!(refused(MkfsOptions {
        block_bytes: 8192,
        ..good()
    }));
    assert!(refused(MkfsOptions {
        inode_bytes: 64,
        ..good()
    }));
    assert!(refused(MkfsOptions {
        revision: 0,
        ..good()
    }));
    assert!(refused(MkfsOptions {
        inode_bytes: 256,
        ..good().revision_0()
    }));
    assert!(refused(MkfsOptions {
        reserved_percent: 51,
        ..good()
    }));
    assert!(refused(MkfsOptions {
        inodes: Inodes::Count(0),
        ..good()
    }));
    let small = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: 40,
    });
    assert!(matches!(mkfs(&small, &good()), Err(Error::Size { .. })));
    assert!(matches!(probe(&small), Err(Error::NotExt2)));
}

#[test]
fn unknown_features_are_refused_by_name() {
    let device = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: 2048,
    });
    mkfs(&device, &options(MIB)).unwrap();
    let mut bytes = device.bytes();
    bytes[1024 + 96] |= 0xc0; // extent, 64bit
    let device = MemoryDevice::from_bytes(512, bytes);
    let error = probe(&device).unwrap_err().to_string();
    assert!(error.ends_with("extent, 64bit"), "{error}");
}

/// A mount that is undone when the value is dropped.
struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A child that another test has just forked may hold a file there until its exec.
        for _ in 0..100 {
            let unmounted = Command::new("umount").arg(self.0).status();
            if unmounted.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

/// Whether the kernel can mount ext2, which needs root and a loop device.
fn can_mount() -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let root = rustix::process::geteuid().is_root();
    root && known.contains("\text2") && Path::new("/dev/loop-control").exists()
}

#[test]
fn the_kernel_mounts_it_and_leaves_it_clean() {
    if !can_mount() {
        return skip::test("needs root, a loop device and the kernel's ext2");
    }
    for o in [options(12 * MIB), options(12 * MIB).revision_0()] {
        let device = SparseDevice::new(512, 12 * MIB / 512);
        mkfs(&device, &o).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        device.export(&image);
        std::fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-o", "loop", "-t", "ext2"])
            .arg(&image)
            .arg(&at);
        assert!(mount.status().unwrap().success());
        {
            let _mounted = Mounted(&at);
            assert!(at.join("lost+found").is_dir());
            std::fs::create_dir(at.join("dir")).unwrap();
            std::fs::write(at.join("dir/file"), vec![7; 300_000]).unwrap();
            std::os::unix::fs::symlink("dir/file", at.join("link")).unwrap();
            assert_eq!(std::fs::read(at.join("link")).unwrap().len(), 300_000);
        }
        run("e2fsck", &["-fn"], &image);
        let device = SparseDevice::import(512, &image);
        assert!(probe(&device).unwrap().clean);
        assert_eq!(ext2::check(&device).findings, []);
    }
}

#[test]
fn an_interrupted_run_leaves_no_file_system() {
    // No part of an earlier file system may remain.
    let device = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: 2048,
    });
    mkfs(&device, &options(MIB)).unwrap();
    let recorded = sparse::LastWriteLost::new(&device);
    mkfs(&recorded, &options(MIB)).unwrap();
    assert!(matches!(probe(&recorded), Err(Error::NotExt2)));
    let mut block = [0; 512];
    recorded.read(Lba(2), &mut block).unwrap();
    assert_eq!(block, [0; 512]);
}
