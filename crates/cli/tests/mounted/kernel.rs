//! The kernel between a program and the server: requests that it splits, caches
//! that it answers from, inodes that it drops.

use crate::fixture::{ENGINES, Fixture, finish, on_each_engine, on_mounts, stderr, stdout};
use rustix::fs::{AtFlags, CWD, Dir, OFlags, Timespec, Timestamps, utimensat};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Compiles `calls.c`.
fn calls(place: &Fixture) -> PathBuf {
    let program = place.path("calls");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounted/calls.c");
    let mut gcc = Command::new("gcc");
    finish(0, gcc.arg("-o").arg(&program).arg(source));
    program
}

/// The power goes in the call after the last write. If any write were two calls, the file
/// system would be gone before.
#[test]
fn a_write_that_begins_inside_a_page_is_one_call() {
    let place = Fixture::with_image();
    let writes = [
        (8192, 100),
        (1, 70_001),
        (4096, 200_001),
        ((1 << 20) - 4096, 999_999),
    ];
    let calls = 1 + writes.len() + 1;
    let cut = format!("--simulate-power-cut=after-calls={calls},seed=1");
    let _server = place.serve(&[&cut]);
    let file = File::create(place.dir().join("file")).unwrap();
    let mut expected = Vec::new();
    for (len, at) in writes {
        let data: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        file.write_all_at(&data, at).unwrap();
        expected.resize(at as usize, 0);
        expected.extend(data);
    }
    assert!(fs::read(place.dir().join("file")).unwrap() == expected);
    drop(file);
    place.umount();
    place.fsck();
}

#[test]
fn mappings_and_descriptors_see_the_same() {
    let tools = Fixture::new();
    let calls = calls(&tools);
    on_each_engine(|dir| {
        let path = dir.join("file");
        finish(0, Command::new(&calls).arg("map").arg(&path));
        let data = fs::read(path).unwrap();
        assert_eq!((data[0], data[99], data[100]), (b'!', b'c', b'C'));
    });
}

/// Sets the access and modification times of something to long ago, reads it, and returns
/// whether that moved the access time.
fn moves_atime(path: &Path, read: &dyn Fn(&Path)) -> bool {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let time = Timespec {
        tv_sec: 1_000_000,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let link_itself = AtFlags::SYMLINK_NOFOLLOW;
    utimensat(CWD, path, &times, link_itself).unwrap();
    read(path);
    fs::symlink_metadata(path).unwrap().accessed().unwrap() != long_ago
}

fn open_noatime(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let noatime = OFlags::NOATIME.bits() as i32;
    let file = options.read(true).custom_flags(noatime).open(path);
    file.unwrap()
}

fn read_without_a_trace(path: &Path, at: u64) {
    let file = open_noatime(path);
    file.read_exact_at(&mut [0; 4], at).unwrap();
}

#[test]
fn strictatime_sees_reads_of_what_was_read_before() {
    on_mounts(&ENGINES, "allow_other,strictatime", |dir| {
        let (file, link) = (dir.join("file"), dir.join("link"));
        fs::write(&file, "text").unwrap();
        symlink("target", &link).unwrap();
        for _ in 0..3 {
            assert!(moves_atime(&file, &|path| drop(fs::read(path).unwrap())));
            assert!(moves_atime(&link, &|path| drop(
                fs::read_link(path).unwrap()
            )));
            let list = |path: &Path| assert_eq!(fs::read_dir(path).unwrap().count(), 2);
            assert!(moves_atime(dir, &list));
            assert!(!moves_atime(&file, &|path| read_without_a_trace(path, 0)));
        }
    });
}

#[test]
fn o_noatime_leaves_the_access_time_alone() {
    on_each_engine(|dir| {
        let file = dir.join("file");
        fs::write(&file, "text").unwrap();
        // Zeros at the end, which no cache of the kernel has.
        let file_to_grow = OpenOptions::new().write(true).open(&file).unwrap();
        file_to_grow.set_len(1 << 20).unwrap();
        assert!(!moves_atime(&file, &|path| read_without_a_trace(
            path,
            1 << 19
        )));
        assert_eq!(fs::metadata(&file).unwrap().atime(), 1_000_000);
    });
}

#[test]
fn o_noatime_leaves_the_access_time_of_a_listed_directory_alone() {
    on_mounts(&ENGINES, "allow_other,strictatime", |dir| {
        // More names than one request lists.
        let names = 1000;
        for i in 0..names {
            File::create(dir.join(format!("a name of some length {i}"))).unwrap();
        }
        let listing = |opened: File| {
            let entries = Dir::new(opened).unwrap().map(Result::unwrap);
            assert_eq!(entries.count(), names + 2);
        };
        for _ in 0..2 {
            assert!(!moves_atime(dir, &|path| listing(open_noatime(path))));
            assert!(moves_atime(dir, &|path| listing(File::open(path).unwrap())));
        }
    });
}

#[test]
fn a_file_handle_outlives_the_mount() {
    for engine in ["bpfs", "soupfs", "pxfs", "ext2"] {
        let place = Fixture::with_image();
        let again = ["mkfs", "--force", "--type", engine, place.image_str()];
        crate::fixture::run(0, &again);
        let (calls, handle) = (calls(&place), place.path("handle"));
        let path = place.dir().join("dir/file");
        place.mount(&[]);
        fs::create_dir(place.dir().join("dir")).unwrap();
        fs::write(&path, "found by its handle").unwrap();
        finish(0, Command::new(&calls).arg("keep").arg(&path).arg(&handle));
        place.umount();
        place.mount(&[]);
        let open = |code| {
            let mut program = Command::new(&calls);
            finish(code, program.arg("open").arg(place.dir()).arg(&handle))
        };
        assert_eq!(stdout(&open(0)), "found by its handle");
        fs::remove_file(&path).unwrap();
        place.umount();
        place.mount(&[]);
        let stale = stderr(&open(1));
        assert!(stale.contains("Stale file handle"), "{stale}");
        place.umount();
    }
}
