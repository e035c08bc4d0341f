//! Files as block devices: locks, and errors of the system.

use medium::block::*;
use medium::{OpenError, Rule};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const BLOCK: u32 = 4096;

fn image(dir: &TempDir, blocks: u64) -> PathBuf {
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(blocks * u64::from(BLOCK)).unwrap();
    path
}

fn open(path: &Path, options: DeviceOptions) -> Result<FileDevice, OpenError> {
    FileDevice::open(path, BLOCK, &options)
}

fn auto() -> DeviceOptions {
    DeviceOptions::default()
}

fn write(lba: u64, byte: u8) -> Write {
    Write {
        tag: lba,
        lba: Lba(lba),
        data: Arc::new(Buffer::from_slice(&[byte; BLOCK as usize])),
        durable: None,
    }
}

/// Writes block 1 and reads it back.
fn works(device: &FileDevice) {
    device.submit(vec![write(1, 7)]);
    assert!(device.reap(1).remove(0).result.is_ok());
    device.flush(Rule::DurableBeforeReturn).unwrap();
    let mut buf = vec![0; BLOCK as usize];
    device.read(Lba(1), &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == 7));
}

/// Runs `test` in a thread for which a system call fails.
fn without(call: i64, rules: Vec<SeccompRule>, errno: i32, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let filter = SeccompFilter::new(
            [(call, rules)].into(),
            SeccompAction::Allow,
            SeccompAction::Errno(errno as u32),
            std::env::consts::ARCH.try_into().unwrap(),
        );
        let program: BpfProgram = filter.unwrap().try_into().unwrap();
        apply_filter(&program).unwrap();
        test();
    });
    thread.join().unwrap();
}

#[test]
fn without_io_uring_pwrite_is_used() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 16);
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter] {
        let path = path.clone();
        without(call, vec![], libc::EPERM, move || {
            let device = open(&path, auto()).unwrap();
            assert!(!device.facts().uring);
            works(&device);
            drop(device);
            let only = DeviceOptions {
                io: Io::Uring,
                ..auto()
            };
            let error = open(&path, only).err().unwrap().to_string();
            assert!(error.contains("cannot use io_uring on"), "{error}");
        });
    }
}

#[test]
fn without_direct_io_the_page_cache_is_used() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 16);
    let set_flags =
        |arg, op, value| SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value).unwrap();
    let direct = libc::O_DIRECT as u64;
    let rule = SeccompRule::new(vec![
        set_flags(1, SeccompCmpOp::Eq, libc::F_SETFL as u64),
        set_flags(2, SeccompCmpOp::MaskedEq(direct), direct),
    ]);
    without(
        libc::SYS_fcntl,
        vec![rule.unwrap()],
        libc::EINVAL,
        move || {
            let device = open(&path, auto()).unwrap();
            assert!(!device.facts().direct);
            works(&device);
            drop(device);
            let only = DeviceOptions {
                direct: Direct::On,
                ..auto()
            };
            let error = open(&path, only).err().unwrap().to_string();
            assert!(error.contains("cannot use direct I/O on"), "{error}");
        },
    );
}

#[test]
fn a_file_that_cannot_flush_is_refused_without_the_option() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 16);
    without(libc::SYS_fdatasync, vec![], libc::EINVAL, move || {
        let error = open(&path, auto()).err().unwrap().to_string();
        assert!(error.contains("cannot flush"), "{error}");
        assert!(error.contains("--unsafe-no-flush"), "{error}");
        let insist = DeviceOptions {
            unsafe_no_flush: true,
            ..auto()
        };
        let device = open(&path, insist).unwrap();
        assert!(!device.facts().flushes);
        assert!(!device.persistence().durable_writes);
        works(&device);
    });
}

#[test]
fn a_failed_flush_makes_later_flushes_fail() {
    let dir = TempDir::new().unwrap();
    let device = Arc::new(open(&image(&dir, 16), auto()).unwrap());
    let failing = device.clone();
    without(libc::SYS_fdatasync, vec![], libc::EIO, move || {
        let error = failing
            .flush(Rule::DurableBeforeReturn)
            .unwrap_err()
            .to_string();
        assert!(error.contains("image: flushing: "), "{error}");
    });
    assert!(
        device.flush(Rule::DurableBeforeReturn).is_err(),
        "fdatasync works again, yet writes are lost"
    );
}

#[test]
fn one_writer_or_many_readers() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 16);
    let reading = DeviceOptions {
        read_only: true,
        ..auto()
    };
    let writer = open(&path, auto()).unwrap();
    let error = open(&path, auto()).err().unwrap().to_string();
    let me = format!("in use by process {} (", std::process::id());
    assert!(error.contains(&me), "{error}");
    assert!(open(&path, reading).is_err());
    drop(writer);
    let reader = open(&path, reading).unwrap();
    let _other = open(&path, reading).unwrap();
    assert!(open(&path, auto()).is_err());
    reader.submit(vec![write(0, 1)]);
    let refused = reader.reap(1).remove(0).result;
    assert!(
        matches!(refused, Err(BlockError::Io { error, .. }) if error == rustix::io::Errno::ROFS)
    );
    assert!(reader.discard(Lba(0), 1).is_err());
    reader.flush(Rule::DurableBeforeReturn).unwrap();
}

#[test]
fn a_file_cut_short_gives_errors() {
    let dir = TempDir::new().unwrap();
    for io in [Io::Auto, Io::Pwrite] {
        let path = image(&dir, 16);
        let device = open(&path, DeviceOptions { io, ..auto() }).unwrap();
        works(&device);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(8 * u64::from(BLOCK)).unwrap();
        let mut buf = vec![0; 2 * BLOCK as usize];
        assert!(device.read(Lba(0), &mut buf).is_ok());
        let error = device.read(Lba(7), &mut buf).unwrap_err().to_string();
        assert!(error.contains("image: reading of block 7: "), "{error}");
        device.submit(vec![write(12, 1), write(3, 1)]);
        let done = device.reap(2);
        assert!(done.iter().all(|c| c.result.is_err()), "{done:?}");
        assert!(device.flush(Rule::DurableBeforeReturn).is_err());
        assert_eq!(file.metadata().unwrap().len(), 8 * u64::from(BLOCK));
    }
}

#[test]
fn an_error_names_device_block_and_cause() {
    for io in [Io::Auto, Io::Pwrite] {
        let memory = memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
        let memory = File::from(memory);
        memory.set_len(16 * u64::from(BLOCK)).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        let device = open(&path, DeviceOptions { io, ..auto() }).unwrap();
        works(&device);
        fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE | SealFlags::WRITE).unwrap();
        // Neighbours: one request, but each completion has its own error.
        device.submit((2..6).map(|lba| write(lba, 1)).collect());
        let mut done = device.reap(4);
        done.sort_by_key(|c| c.tag);
        for (completion, lba) in done.iter().zip(2..6) {
            let error = completion.result.as_ref().unwrap_err().to_string();
            let start = format!("{}: writing of block {lba}: ", path.display());
            assert!(error.starts_with(&start), "{error}");
        }
        assert_eq!(done.len(), 4);
    }
}

#[test]
fn unusable_files_are_refused_with_a_reason() {
    let dir = TempDir::new().unwrap();
    let why = |path: &Path, block_bytes| {
        let error = FileDevice::open(path, block_bytes, &auto()).err().unwrap();
        error.to_string()
    };
    let path = image(&dir, 1);
    for bad in [0, 1, 256, 768, 131_072, u32::MAX] {
        assert!(why(&path, bad).contains("power of two from 512 to 65536"));
    }
    assert!(why(&path, 8192).contains("has 4096 bytes: not one block of 8192"));
    assert!(why(dir.path(), 512).contains("a directory"));
    assert!(why(Path::new("/dev/null"), 512).contains("a character device"));
    assert!(why(&dir.path().join("none"), 512).contains("cannot open"));
}

#[test]
fn a_discard_frees_the_space_or_does_nothing() {
    use std::os::unix::fs::MetadataExt;
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 64);
    let device = open(&path, auto()).unwrap();
    device.submit((0..64).map(|lba| write(lba, 1)).collect());
    assert!(device.reap(64).iter().all(|c| c.result.is_ok()));
    device.flush(Rule::DurableBeforeReturn).unwrap();
    let used = || std::fs::metadata(&path).unwrap().blocks();
    let before = used();
    device.discard(Lba(8), 32).unwrap();
    assert!(used() <= before);
    let mut buf = vec![0; BLOCK as usize];
    for lba in (0..8).chain(40..64) {
        device.read(Lba(lba), &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 1), "block {lba} was not discarded");
    }
    assert_eq!(
        std::fs::metadata(&path).unwrap().len(),
        64 * u64::from(BLOCK)
    );
}
