//! Reads, writes, fsync, and the end of the device.

use crate::{Bench, MODES, geometry, numbered};
use blockfs::mount::MountOptions;
use medium::block::MemoryDevice;
use patch::stack::Mode;
use std::sync::Arc;
use vfs::{Errno, Fallocate, SeekKind};

#[test]
fn block_i_of_the_file_is_block_i_of_the_device() {
    for block_bytes in [512, 1024, 4096] {
        let device = numbered(block_bytes);
        let bench = Bench::new(device.clone(), Mode::SoftUpdates);
        let attr = bench.fs.getattr(&bench.cx, bench.disk).unwrap();
        assert_eq!(attr.size, u64::from(block_bytes) * 16);
        assert_eq!(attr.blocks * 512, attr.size);
        assert_eq!((attr.perm, attr.nlink), (0o600, 1));
        assert_eq!(bench.read(0, attr.size as usize), device.bytes());
    }
}

#[test]
fn fsync_stores_writes_at_odd_offsets() {
    for mode in MODES {
        let device = numbered(1024);
        let mut expected = device.bytes();
        let bench = Bench::new(device.clone(), mode);
        for (i, (off, len)) in [(1, 3), (1000, 48), (2048, 1024), (3001, 6000), (16383, 1)]
            .into_iter()
            .enumerate()
        {
            let bytes = vec![100 + i as u8; len];
            assert_eq!(bench.write(off as u64, &bytes), Ok(len));
            expected[off..off + len].copy_from_slice(&bytes);
            assert_eq!(bench.read(off as u64, len), bytes);
            bench.fsync();
            assert!(device.bytes() == expected, "{mode}: {len} bytes at {off}");
        }
        assert_eq!(bench.read(0, 16384), expected);
    }
}

#[test]
fn a_write_before_fsync_is_in_memory_only() {
    let device = numbered(512);
    let before = device.bytes();
    let bench = Bench::new(device.clone(), Mode::SoftUpdates);
    bench.write(700, b"later").unwrap();
    assert!(device.bytes() == before);
    bench.mounted.close().unwrap();
    assert_eq!(&device.bytes()[700..705], b"later");
}

#[test]
fn a_write_ends_at_the_end_of_the_device() {
    let device = numbered(512);
    let bench = Bench::new(device.clone(), Mode::SoftUpdates);
    let end = 16 * 512;
    assert_eq!(bench.write(end - 3, b"12345"), Ok(3));
    for off in [end, end + 1, u64::MAX - 2] {
        assert_eq!(bench.write(off, b"x"), Err(Errno::NOSPC));
    }
    assert_eq!(bench.read(end - 4, 100), b"\x10123");
    assert_eq!(bench.read(end, 100), b"");
    assert_eq!(bench.read(end + 1, 100), b"");
    let attr = bench.fs.getattr(&bench.cx, bench.disk).unwrap();
    assert_eq!(attr.size, end);
}

#[test]
fn an_attempt_that_finds_blocks_absent_is_repeated() {
    let device = numbered(512);
    let mut expected = device.bytes();
    let options = MountOptions {
        forgetful: true,
        ..MountOptions::default()
    };
    let bench = Bench::with(device.clone(), Mode::SoftUpdates, &options);
    bench.write(500, &[77; 2000]).unwrap();
    expected[500..2500].fill(77);
    assert_eq!(bench.read(0, 8192), expected);
    bench.fsync();
    assert!(device.bytes() == expected);
}

#[test]
fn writes_larger_than_one_operation_are_whole() {
    let device = Arc::new(MemoryDevice::new(geometry(512, 8192)));
    let bench = Bench::new(device.clone(), Mode::SoftUpdates);
    let bytes: Vec<u8> = (0..8192 * 512 - 100).map(|i| (i % 251) as u8).collect();
    assert_eq!(bench.write(50, &bytes), Ok(bytes.len()));
    bench.fsync();
    assert!(device.bytes()[50..50 + bytes.len()] == bytes);
}

#[test]
fn ranges_are_zeroed_but_no_holes_are_punched() {
    let device = numbered(512);
    let bench = Bench::new(device, Mode::SoftUpdates);
    let allocate = |kind, off, len| bench.fs.fallocate(&bench.cx, bench.disk, kind, off, len);
    let zero = |keep_size| Fallocate::ZeroRange { keep_size };
    let end = 16 * 512;
    assert_eq!(allocate(zero(false), 100, 1000), Ok(()));
    assert_eq!(bench.read(99, 1002), [&[1][..], &[0; 1000], &[3]].concat());
    assert_eq!(allocate(zero(true), end - 10, 1000), Ok(()));
    assert_eq!(bench.read(end - 11, 20), [&[16][..], &[0; 10]].concat());
    assert_eq!(allocate(zero(true), end, 1), Err(Errno::INVAL));
    assert_eq!(allocate(zero(false), end - 10, 1000), Err(Errno::NOSPC));
    let keep = Fallocate::Allocate { keep_size: false };
    assert_eq!(allocate(keep, 0, end), Ok(()));
    assert_eq!(allocate(keep, 0, end + 1), Err(Errno::NOSPC));
    assert_eq!(
        allocate(Fallocate::PunchHole, 0, 512),
        Err(Errno::OPNOTSUPP)
    );
}

#[test]
fn the_device_is_data_up_to_its_end() {
    let bench = Bench::new(numbered(512), Mode::SoftUpdates);
    let seek = |off, kind| bench.fs.seek(&bench.cx, bench.disk, off, kind);
    assert_eq!(seek(700, SeekKind::Data), Ok(700));
    assert_eq!(seek(700, SeekKind::Hole), Ok(8192));
    assert_eq!(seek(8192, SeekKind::Data), Err(Errno::NXIO));
}
