//! Time stamps: which call moves which, chosen times, access times.

use crate::fixture::*;
use bpfs::{Atime, Bpfs, Mode, MountOptions};
use std::sync::Arc;
use vfs::{
    Attr, Cookie, Fallocate, FileSystem, Ino, ManualClock, OpenFlags, SetAttr, SetTime, Timestamp,
    XattrMode,
};

const SECOND: i64 = 1_000_000_000;

/// The times of an inode that a call moved: letters of `amc`.
fn moved(before: &Attr, after: &Attr) -> String {
    let pairs = [
        ('a', before.atime, after.atime),
        ('m', before.mtime, after.mtime),
        ('c', before.ctime, after.ctime),
    ];
    pairs
        .iter()
        .filter(|(_, b, a)| a > b)
        .map(|(letter, ..)| letter)
        .collect()
}

/// A clock that moves only when it is set, and a file system that reads it.
fn clocked(mode: Mode, atime: Atime, at: i64) -> (Arc<ManualClock>, Fs) {
    let clock = Arc::new(ManualClock::new(Timestamp(at), 0));
    let o = MountOptions {
        atime,
        clock: clock.clone(),
        ..options(mode)
    };
    (clock, Bpfs::open(formatted(mode, MIB), o).unwrap())
}

type Call = fn(&Fs, Ino, Ino);

/// Calls on a file `f` in a directory `d`, and the times of each that they move.
const TOUCHES: &[(&str, Call, &str, &str)] = &[
    ("write", |fs, f, _| write(fs, f, 0, b"x"), "mc", ""),
    ("write of nothing", |fs, f, _| write(fs, f, 0, b""), "", ""),
    (
        "truncate",
        |fs, f, _| fs.truncate(&root(), f, 5).unwrap(),
        "mc",
        "",
    ),
    (
        "fallocate",
        |fs, f, _| {
            let kind = Fallocate::Allocate { keep_size: false };
            fs.fallocate(&root(), f, kind, 0, 9000).unwrap();
        },
        "mc",
        "",
    ),
    (
        "chmod",
        |fs, f, _| {
            set(
                fs,
                f,
                SetAttr {
                    perm: Some(0o600),
                    ..SetAttr::default()
                },
            )
        },
        "c",
        "",
    ),
    (
        "chown",
        |fs, f, _| {
            set(
                fs,
                f,
                SetAttr {
                    uid: Some(7),
                    ..SetAttr::default()
                },
            )
        },
        "c",
        "",
    ),
    (
        "touch -a",
        |fs, f, _| {
            set(
                fs,
                f,
                SetAttr {
                    atime: Some(SetTime::Now),
                    ..SetAttr::default()
                },
            )
        },
        "ac",
        "",
    ),
    (
        "touch -m",
        |fs, f, _| {
            set(
                fs,
                f,
                SetAttr {
                    mtime: Some(SetTime::Now),
                    ..SetAttr::default()
                },
            )
        },
        "mc",
        "",
    ),
    (
        "setxattr",
        |fs, f, _| {
            fs.setxattr(&root(), f, b"user.a", b"1", XattrMode::Set)
                .unwrap()
        },
        "c",
        "",
    ),
    ("read", |fs, f, _| drop(read(fs, f, 0, 10)), "a", ""),
    ("readdir", |fs, _, d| drop(list(fs, d, Cookie(0))), "", "a"),
    (
        "lookup",
        |fs, _, _| assert!(stat(fs, "d/f").is_ok()),
        "",
        "",
    ),
    (
        "fsync",
        |fs, f, _| fs.fsync(&root(), f, false).unwrap(),
        "",
        "",
    ),
    (
        "create beside",
        |fs, _, d| assert_ne!(file_in(fs, d, "g"), d),
        "",
        "mc",
    ),
    (
        "mkdir beside",
        |fs, _, d| assert_ne!(dir_in(fs, d, "g"), d),
        "",
        "mc",
    ),
    (
        "link",
        |fs, f, d| assert_eq!(fs.link(&root(), f, d, b"g").unwrap().ino, f),
        "c",
        "mc",
    ),
    (
        "unlink",
        |fs, f, d| {
            fs.open(&root(), f, OpenFlags::READ).unwrap();
            fs.unlink(&root(), d, b"f").unwrap();
        },
        "c",
        "mc",
    ),
    (
        "rename",
        |fs, _, d| rename(fs, (d, "f"), (d, "g"), PLAIN).unwrap(),
        "c",
        "mc",
    ),
    (
        "rename away",
        |fs, _, d| rename(fs, (d, "f"), (Ino::ROOT, "g"), PLAIN).unwrap(),
        "c",
        "mc",
    ),
    (
        "rename to itself",
        |fs, _, d| rename(fs, (d, "f"), (d, "f"), PLAIN).unwrap(),
        "",
        "",
    ),
    (
        "a call that fails",
        |fs, _, d| assert!(fs.rmdir(&root(), d, b"f").is_err()),
        "",
        "",
    ),
];

#[test]
fn each_call_moves_its_times_and_no_others() {
    for mode in Mode::ALL {
        for (what, call, of_file, of_dir) in TOUCHES {
            let (clock, fs) = clocked(mode, Atime::Strict, 5 * SECOND);
            let d = dir_in(&fs, Ino::ROOT, "d");
            let f = file_in(&fs, d, "f");
            write(&fs, f, 0, &[1; 10]);
            let get = |ino| fs.getattr(&root(), ino).unwrap();
            let (file, dir) = (get(f), get(d));
            assert_eq!(file.atime, Timestamp(5 * SECOND));
            clock.set(Timestamp(9 * SECOND));
            call(&fs, f, d);
            assert_eq!(moved(&file, &get(f)), *of_file, "{mode}: file, {what}");
            assert_eq!(moved(&dir, &get(d)), *of_dir, "{mode}: directory, {what}");
            for attr in [get(f), get(d)] {
                let now = [attr.atime, attr.mtime, attr.ctime];
                assert!(
                    now.iter().all(|t| [5, 9].contains(&(t.0 / SECOND))),
                    "{what}: {now:?}"
                );
            }
        }
    }
}

/// A change time is the later of two stored times, until a caller chooses a modification time.
/// Then it stands alone, and a write must move both.
#[test]
fn a_chosen_modification_time_never_shows_as_the_change_time() {
    for mode in Mode::ALL {
        for chosen in [1, 77 * SECOND + 123_456_789, 9_000 * SECOND + 1, -5] {
            let (clock, fs) = clocked(mode, Atime::Never, 10 * SECOND);
            let f = file(&fs, "f");
            let times = |fs: &Fs| {
                let attr = fs.getattr(&root(), f).unwrap();
                (attr.mtime.0, attr.ctime.0)
            };
            clock.set(Timestamp(20 * SECOND));
            let utimens = SetAttr {
                atime: Some(SetTime::At(Timestamp(chosen + 1))),
                mtime: Some(SetTime::At(Timestamp(chosen))),
                ..SetAttr::default()
            };
            set(&fs, f, utimens);
            assert_eq!(times(&fs), (chosen, 20 * SECOND), "{mode}");
            assert_eq!(stat(&fs, "f").unwrap().atime, Timestamp(chosen + 1));
            clock.set(Timestamp(30 * SECOND));
            set(
                &fs,
                f,
                SetAttr {
                    perm: Some(0o600),
                    ..SetAttr::default()
                },
            );
            assert_eq!(times(&fs), (chosen, 30 * SECOND), "{mode}");
            assert_eq!(times(&remounted(&fs)), (chosen, 30 * SECOND), "{mode}");
            clock.set(Timestamp(40 * SECOND));
            write(&fs, f, 0, b"12345678");
            assert_eq!(times(&fs), (40 * SECOND, 40 * SECOND), "{mode}");
            clock.set(Timestamp(50 * SECOND));
            write(&fs, f, 0, b"abcdefgh");
            assert_eq!(times(&fs), (50 * SECOND, 50 * SECOND), "{mode}");
            must_be_healthy(&fs);
        }
    }
}

#[test]
fn access_times_follow_the_mount_option() {
    const DAY: i64 = 86_400 * SECOND;
    // Seconds at which a read moves the access time; the reads are at 20, 30, 31 and a day
    // later.
    let expected = [
        (Atime::Never, vec![]),
        (Atime::Relative, vec![20, 31, 86_500]),
        (Atime::Strict, vec![20, 30, 31, 86_500]),
    ];
    for (atime, expected) in expected {
        for mode in [Mode::Sp, Mode::Log] {
            let (clock, fs) = clocked(mode, atime, 10 * SECOND);
            let f = file(&fs, "f");
            write(&fs, f, 0, b"data");
            let mut moved_at = Vec::new();
            let mut last = stat(&fs, "f").unwrap().atime;
            for at in [20 * SECOND, 30 * SECOND, 31 * SECOND, DAY + 100 * SECOND] {
                if at == 31 * SECOND {
                    clock.set(Timestamp(at - SECOND / 2));
                    write(&fs, f, 0, b"new");
                }
                clock.set(Timestamp(at));
                read(&fs, f, 0, 4);
                let now = stat(&fs, "f").unwrap().atime;
                if now != last {
                    moved_at.push(now.0 / SECOND);
                }
                last = now;
            }
            assert_eq!(moved_at, expected, "{atime:?}, {mode}");
            assert_eq!(fs.audit(), []);
        }
    }
}
