//! Contents, sizes, attributes.

use crate::fixture::{on_each_engine, on_engines, wait_for};
use rustix::fs::{
    CWD, FallocateFlags, Mode, OFlags, SeekFrom, XattrFlags, fallocate, getxattr, listxattr,
    openat, removexattr, seek, setxattr, statvfs,
};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A user that is not root.
const NOBODY: u32 = 65534;

fn read_write(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    on_each_engine(|dir| {
        let free = || statvfs(dir).unwrap().f_bfree;
        // The directory keeps the block of its first name, and so may a list of files without one.
        fs::write(dir.join("other"), "").unwrap();
        let nameless = read_write(&dir.join("nameless"));
        fs::remove_file(dir.join("nameless")).unwrap();
        drop(nameless);
        let before = free();
        let path = dir.join("file");
        let mut file = read_write(&path);
        file.write_all(&pattern(1 << 20)).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all_at(b"still here", 1 << 20).unwrap();
        let mut last = [0; 10];
        file.read_exact_at(&mut last, 1 << 20).unwrap();
        assert_eq!(&last, b"still here");
        // Its number must not be given to another meanwhile.
        fs::write(dir.join("new"), "new").unwrap();
        let new = fs::metadata(dir.join("new")).unwrap().ino();
        assert_ne!(new, file.metadata().unwrap().ino());
        fs::remove_file(dir.join("new")).unwrap();
        drop(file);
        wait_for("the space", || free() >= before);
    });
}

#[test]
fn writes_of_many_sizes_read_back() {
    on_each_engine(|dir| {
        let file = read_write(&dir.join("file"));
        // Around requests, pages and words; far out, and back.
        for (len, at) in [
            (3 << 20, 0),
            ((1 << 20) + 1, 4095),
            (2 << 20, 1),
            (4096, 1 << 30),
            (1, (1 << 40) + 7),
            (13, 4090),
        ] {
            let data = pattern(len);
            file.write_all_at(&data, at).unwrap();
            let mut back = vec![0; len];
            file.read_exact_at(&mut back, at).unwrap();
            assert!(back == data, "{len} bytes at {at}");
        }
        assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 8);
        // The holes between them take no space and read as zeros.
        assert!(file.metadata().unwrap().blocks() < 16 << 11);
        let mut hole = [1; 4096];
        file.read_exact_at(&mut hole, 1 << 35).unwrap();
        assert_eq!(hole, [0; 4096]);
    });
}

#[test]
fn truncation_leaves_zeros() {
    on_each_engine(|dir| {
        let file = read_write(&dir.join("file"));
        file.write_all_at(&pattern(10_000), 0).unwrap();
        file.set_len(5_000).unwrap();
        file.set_len(10_000).unwrap();
        let data = fs::read(dir.join("file")).unwrap();
        assert_eq!(data[..5_000], pattern(5_000));
        assert_eq!(data[5_000..], [0; 5_000]);
        File::create(dir.join("file")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
    });
}

#[test]
fn appends_by_two_descriptors_do_not_overwrite_each_other() {
    on_each_engine(|dir| {
        let path = dir.join("log");
        let open = || OpenOptions::new().append(true).create(true).open(&path);
        let (mut one, mut two) = (open().unwrap(), open().unwrap());
        for _ in 0..100 {
            one.write_all(b"1").unwrap();
            two.write_all(b"2").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "12".repeat(100));
    });
}

#[test]
fn space_is_allocated_zeroed_and_given_back() {
    let test = |dir: &Path, is_cached: bool| {
        let file = read_write(&dir.join("file"));
        let len = || file.metadata().unwrap().len();
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert_eq!(len(), 1 << 20);
        assert!(file.metadata().unwrap().blocks() >= 1 << 11);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
        assert_eq!(len(), 1 << 20);

        let data = pattern(1 << 20);
        file.write_all_at(&data, 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 8192, 16384).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, 100_000, 100).unwrap();
        let mut expected = data;
        expected[8192..8192 + 16384].fill(0);
        expected[100_000..100_100].fill(0);
        assert!(fs::read(dir.join("file")).unwrap() == expected);

        // Where the kernel caches writes, it takes a file for data from its start to its end.
        let (hole, data) = match is_cached {
            true => (1 << 20, 8192),
            false => (8192, 8192 + 16384),
        };
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(hole));
        assert_eq!(seek(&file, SeekFrom::Data(8192)), Ok(data));
        assert_eq!(seek(&file, SeekFrom::Hole(1 << 19)), Ok(1 << 20));
        assert_eq!(seek(&file, SeekFrom::Data(1 << 20)), Err(Errno::NXIO));
        let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(collapse, Err(Errno::OPNOTSUPP));
    };
    on_engines(&["bpfs", "pxfs"], |dir| test(dir, false));
    on_engines(&["soupfs", "ext2", "model"], |dir| test(dir, true));
}

#[test]
fn extended_attributes_keep_their_values() {
    on_each_engine(|dir| {
        let path = &dir.join("file");
        fs::write(path, "").unwrap();
        let get = |name: &str, buf: &mut [u8]| getxattr(path, name, buf);
        let set = |name: &str, value: &[u8], flags| setxattr(path, name, value, flags);
        assert_eq!(get("user.a", &mut [0; 8]), Err(Errno::NODATA));
        let replace = set("user.a", b"1", XattrFlags::REPLACE);
        assert_eq!(replace, Err(Errno::NODATA));
        assert_eq!(set("user.a", b"one", XattrFlags::CREATE), Ok(()));
        assert_eq!(set("user.a", b"two", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set("user.a", b"three", XattrFlags::REPLACE), Ok(()));
        assert_eq!(set("user.empty", b"", XattrFlags::empty()), Ok(()));
        assert_eq!(get("user.a", &mut [0; 4]), Err(Errno::RANGE));
        let mut value = [0; 5];
        assert_eq!(get("user.a", &mut value), Ok(5));
        assert_eq!(&value, b"three");
        let mut list = [0; 64];
        let len = listxattr(path, &mut list).unwrap();
        let mut names: Vec<_> = list[..len].split_inclusive(|b| *b == 0).collect();
        names.sort();
        assert_eq!(names, [&b"user.a\0"[..], b"user.empty\0"]);
        assert_eq!(removexattr(path, "user.a"), Ok(()));
        assert_eq!(removexattr(path, "user.a"), Err(Errno::NODATA));
        // As with the kernel's own file systems.
        for (name, refused) in [
            ("user.", Errno::INVAL),
            ("trusted.", Errno::INVAL),
            ("security.", Errno::INVAL),
            ("user", Errno::OPNOTSUPP),
            ("other.name", Errno::OPNOTSUPP),
        ] {
            assert_eq!(set(name, b"1", XattrFlags::empty()), Err(refused), "{name}");
            assert_eq!(get(name, &mut [0; 8]), Err(refused), "{name}");
            assert_eq!(removexattr(path, name), Err(refused), "{name}");
        }
        // Nobody would enforce an access control list.
        let acl = set(
            "system.posix_acl_access",
            &[2, 0, 0, 0],
            XattrFlags::empty(),
        );
        assert_eq!(acl, Err(Errno::OPNOTSUPP));
    });
}

#[test]
fn a_file_made_without_permissions_can_be_written_by_its_maker() {
    on_each_engine(|dir| {
        let made = Command::new("sh")
            .args(["-c", "umask 777; echo text >file"])
            .current_dir(dir)
            .status();
        assert!(made.unwrap().success());
        let meta = fs::metadata(dir.join("file")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.len()), (0, 5));
        let exclusive = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let again = openat(CWD, dir.join("file"), exclusive, Mode::empty());
        assert_eq!(again.err(), Some(Errno::EXIST));
    });
}

#[test]
fn permissions_hold_for_other_users() {
    on_each_engine(|dir| {
        let secret = dir.join("secret");
        fs::write(&secret, "x").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let as_nobody = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).current_dir(dir);
            shell.uid(NOBODY).gid(NOBODY).output().unwrap()
        };
        assert!(!as_nobody("cat secret").status.success());
        assert!(!as_nobody("touch new").status.success());
        fs::set_permissions(dir, Permissions::from_mode(0o1777)).unwrap();
        assert!(as_nobody("touch new").status.success());
        assert!(!as_nobody("rm -f secret").status.success());
        let meta = fs::metadata(dir.join("new")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY));
    });
}

#[test]
fn set_id_bits_are_dropped() {
    on_each_engine(|dir| {
        let path = &dir.join("program");
        let arm = || {
            fs::write(path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o6777)).unwrap();
        };
        let mode = || fs::metadata(path).unwrap().mode() & 0o7777;
        let as_nobody = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).current_dir(dir);
            assert!(shell.uid(NOBODY).gid(NOBODY).status().unwrap().success());
        };
        arm();
        assert_eq!(mode(), 0o6777);
        as_nobody("echo more >>program");
        assert_eq!(mode(), 0o777);
        arm();
        as_nobody(": >program");
        assert_eq!(mode(), 0o777);
        arm();
        as_nobody("fallocate --length 100 program");
        assert_eq!(mode(), 0o777);
        // Set-gid without group execution is not a program's.
        arm();
        fs::set_permissions(path, Permissions::from_mode(0o6767)).unwrap();
        as_nobody("echo more >>program");
        assert_eq!(mode(), 0o2767);
        arm();
        chown(path, Some(NOBODY), None).unwrap();
        assert_eq!(mode(), 0o777);
        // Root's own writes keep them, as on any Linux file system.
        arm();
        fs::write(path, "x").unwrap();
        assert_eq!(mode(), 0o6777);
    });
}

#[test]
fn capabilities_are_dropped() {
    // VFS_CAP_REVISION_2 (linux/capability.h): CAP_DAC_OVERRIDE, permitted and effective.
    let mut capability = [0; 20];
    (capability[0], capability[3], capability[4]) = (1, 2, 2);
    const NAME: &str = "security.capability";
    on_each_engine(|dir| {
        let path = &dir.join("program");
        let has = || rustix::fs::getxattr(path, NAME, &mut [0_u8; 20]).is_ok();
        let scripts = [
            "printf x | dd of=program conv=notrunc status=none",
            "echo more >>program",
            ": >program",
            "fallocate --length 100000 program",
        ];
        for user in [NOBODY, 0] {
            for script in scripts {
                fs::write(path, "#!/bin/sh\n").unwrap();
                fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
                rustix::fs::setxattr(path, NAME, &capability, XattrFlags::empty()).unwrap();
                assert!(has());
                let mut shell = Command::new("sh");
                shell.args(["-c", script]).current_dir(dir);
                assert!(shell.uid(user).gid(user).status().unwrap().success());
                assert!(!has(), "{script} by {user}");
            }
        }
    });
}

#[test]
fn times_before_1970_are_kept() {
    on_each_engine(|dir| {
        let file = read_write(&dir.join("file"));
        let time = SystemTime::UNIX_EPOCH - Duration::from_millis(1_750);
        let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
        file.set_times(times).unwrap();
        let meta = fs::metadata(dir.join("file")).unwrap();
        assert_eq!(meta.modified().unwrap(), time);
        assert_eq!(meta.accessed().unwrap(), time);
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 250_000_000));
    });
}

#[test]
fn directories_are_not_read_as_files() {
    on_each_engine(|dir| {
        let read = File::open(dir).unwrap().read(&mut [0; 8]);
        assert_eq!(
            read.unwrap_err().raw_os_error(),
            Some(Errno::ISDIR.raw_os_error())
        );
        File::open(dir).unwrap().sync_all().unwrap();
        let file = read_write(&dir.join("file"));
        file.sync_all().unwrap();
        file.sync_data().unwrap();
    });
}
