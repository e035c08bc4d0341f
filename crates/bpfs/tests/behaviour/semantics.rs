//! The finer points of the calls, where agreeing with the model is not enough or the
//! model has nothing to say: times, permissions, cookies, references, generations,
//! mounts that may not write.

use crate::fixture::*;
use bpfs::{Atime, Bpfs, Error, MkfsOptions, Mode, MountOptions, mkfs, recover};
use medium::{CutAfter, MemoryPmem, Overlay, PersistModel, Pmem, PowerCut};
use oracle::script::{State, generate, run, run_op};
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{
    Attr, Cookie, Ctx, Errno, Fallocate, FileSystem, FileType, Ino, ManualClock, Name, OpenFlags,
    RenameFlags, SetAttr, SetTime, Timestamp, XattrMode,
};

const PLAIN: RenameFlags = RenameFlags::empty();
const SECOND: i64 = 1_000_000_000;

/// Which times of an inode a call moved: letters of `amc`.
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

/// A clock that stands until told, and a file system that looks at it.
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

/// What is called on a file `f` in a directory `d`, and which times of each it moves.
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

fn set(fs: &Fs, ino: Ino, set: SetAttr) {
    fs.setattr(&root(), ino, &set).unwrap();
}

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

/// A change time is the later of two stored times, until a caller chooses a modification
/// time: then it stands alone, and a write must move both.
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
    // Seconds at which a read moves the access time, of reads at 20, 30, 31 and a day on.
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

#[test]
fn permissions_are_checked_for_those_who_are_not_privileged() {
    let fs = fresh(Mode::Log, MIB);
    let (owner, other) = (Ctx::user(10, 10), Ctx::user(20, 20));
    let member = Ctx {
        groups: vec![10],
        ..Ctx::user(30, 30)
    };
    let refused = fs.create(&owner, Ino::ROOT, b"f", 0o644).err();
    assert_eq!(refused, Some(Errno::ACCESS), "the root directory is 0755");
    let d = dir_in(&fs, Ino::ROOT, "d");
    set(
        &fs,
        d,
        SetAttr {
            perm: Some(0o770),
            uid: Some(10),
            gid: Some(10),
            ..SetAttr::default()
        },
    );
    let f = fs.create(&owner, d, b"f", 0o640).unwrap();
    assert_eq!((f.uid, f.gid), (10, 10));
    let f = f.ino;
    // Searching, listing, opening.
    assert_eq!(fs.lookup(&other, d, b"f").err(), Some(Errno::ACCESS));
    assert_eq!(
        fs.readdir(&other, d, Cookie(0), &mut |_| true),
        Err(Errno::ACCESS)
    );
    assert_eq!(fs.open(&other, f, OpenFlags::READ), Err(Errno::ACCESS));
    assert_eq!(fs.open(&member, f, OpenFlags::WRITE), Err(Errno::ACCESS));
    assert_eq!(fs.open(&member, f, OpenFlags::READ), Ok(()));
    fs.release(f);
    others_change_no_names(&fs, &other, d, f);
    only_owners_change_attributes(&fs, [&owner, &member, &other], f);
    let device = fs.mknod(&owner, Name::new(d, b"dev"), FileType::CharDevice, 0o600, 1);
    assert_eq!(device.err(), Some(Errno::PERM));
    let there = fs.mknod(&owner, Name::new(d, b"f"), FileType::CharDevice, 0o600, 1);
    assert_eq!(there.err(), Some(Errno::EXIST)); // Linux looks at the name first
    // What a caller may whose permissions have been checked already.
    let checked = Ctx {
        checked: true,
        ..other
    };
    assert_eq!(fs.lookup(&checked, d, b"f").map(|a| a.ino), Ok(f));
    assert_eq!(
        fs.rename(&checked, Name::new(d, b"f"), Name::new(d, b"g"), PLAIN),
        Ok(())
    );
    fs.forget(f, 2);
    must_be_healthy(&fs);
}

fn others_change_no_names(fs: &Fs, other: &Ctx, d: Ino, f: Ino) {
    let refused = Some(Errno::ACCESS);
    assert_eq!(fs.unlink(other, d, b"f").err(), refused);
    assert_eq!(fs.mkdir(other, d, b"x", 0o755).err(), refused);
    assert_eq!(
        fs.rename(other, Name::new(d, b"f"), Name::new(d, b"g"), PLAIN)
            .err(),
        refused
    );
    assert_eq!(fs.link(other, f, d, b"g").err(), refused);
    assert_eq!(fs.tmpfile(other, d, 0o600).err(), refused);
}

fn only_owners_change_attributes(fs: &Fs, [owner, member, other]: [&Ctx; 3], f: Ino) {
    let none = SetAttr::default();
    let perm = SetAttr {
        perm: Some(0o777),
        ..none
    };
    let uid = SetAttr {
        uid: Some(20),
        ..none
    };
    let gid = SetAttr {
        gid: Some(20),
        ..none
    };
    let size = SetAttr {
        size: Some(0),
        ..none
    };
    let mtime = SetAttr {
        mtime: Some(SetTime::At(Timestamp(1))),
        ..none
    };
    for (cx, set, errno) in [
        (other, perm, Errno::PERM),
        (owner, uid, Errno::PERM),
        (owner, gid, Errno::PERM),
        (member, size, Errno::ACCESS),
        (other, mtime, Errno::PERM),
    ] {
        assert_eq!(fs.setattr(cx, f, &set).err(), Some(errno), "{set:?}");
    }
    let refused = fs.setxattr(other, f, b"user.x", b"1", XattrMode::Set);
    assert_eq!(refused, Err(Errno::ACCESS));
}

#[test]
fn in_a_sticky_directory_only_owners_remove_names() {
    let fs = fresh(Mode::Log, MIB);
    let (one, two) = (Ctx::user(10, 10), Ctx::user(20, 20));
    let d = dir_in(&fs, Ino::ROOT, "tmp");
    set(
        &fs,
        d,
        SetAttr {
            perm: Some(0o1777),
            ..SetAttr::default()
        },
    );
    for name in [b"a", b"b"] {
        fs.forget(fs.create(&one, d, name, 0o666).unwrap().ino, 1);
    }
    fs.forget(fs.create(&two, d, b"c", 0o666).unwrap().ino, 1);
    assert_eq!(fs.unlink(&two, d, b"a"), Err(Errno::PERM));
    assert_eq!(
        fs.rename(&two, Name::new(d, b"a"), Name::new(d, b"x"), PLAIN),
        Err(Errno::PERM)
    );
    assert_eq!(
        fs.rename(&two, Name::new(d, b"c"), Name::new(d, b"b"), PLAIN),
        Err(Errno::PERM)
    );
    assert_eq!(
        fs.rename(
            &two,
            Name::new(d, b"c"),
            Name::new(d, b"a"),
            RenameFlags::EXCHANGE
        ),
        Err(Errno::PERM)
    );
    assert_eq!(fs.unlink(&one, d, b"a"), Ok(()));
    assert_eq!(fs.unlink(&root(), d, b"b"), Ok(()));
    assert_eq!(names(&fs, d), ["c"]);
}

#[test]
fn a_set_gid_directory_hands_down_its_group() {
    for mode in [Mode::Sp, Mode::Log] {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        set(
            &fs,
            d,
            SetAttr {
                gid: Some(55),
                perm: Some(0o2777),
                ..SetAttr::default()
            },
        );
        let user = Ctx::user(10, 10);
        let f = fs.create(&user, d, b"f", 0o2775).unwrap();
        assert_eq!((f.uid, f.gid, f.perm), (10, 55, 0o775), "not in the group");
        let sub = fs.mkdir(&user, d, b"sub", 0o755).unwrap();
        assert_eq!((sub.gid, sub.perm), (55, 0o2755));
        let link = fs.symlink(&user, d, b"l", b"t").unwrap();
        assert_eq!((link.gid, link.perm), (55, 0o777));
        let temp = fs.tmpfile(&user, d, 0o600).unwrap();
        assert_eq!((temp.gid, temp.perm), (55, 0o600));
        for made in [f, sub, link, temp] {
            fs.forget(made.ino, 1);
        }
        must_be_healthy(&fs);
    }
}

#[test]
fn a_write_by_others_clears_set_id_bits() {
    type CallAs = fn(&Fs, &Ctx, Ino);
    let user = Ctx::user(10, 10);
    let calls: [(&str, CallAs); 3] = [
        ("write", |fs, cx, f| {
            assert_eq!(fs.write(cx, f, 0, b"12345678"), Ok(8))
        }),
        ("truncate", |fs, cx, f| fs.truncate(cx, f, 3).unwrap()),
        ("fallocate", |fs, cx, f| {
            let zero = Fallocate::ZeroRange { keep_size: true };
            fs.fallocate(cx, f, zero, 0, 5).unwrap();
        }),
    ];
    for mode in Mode::ALL {
        for (what, call) in calls {
            let fs = fresh(mode, MIB);
            let f = file(&fs, "f");
            write(&fs, f, 0, &[1; 100]);
            let perm = |perm| SetAttr {
                perm: Some(perm),
                ..SetAttr::default()
            };
            for (before, after) in [
                (0o6777, 0o777),
                (0o4766, 0o766),
                (0o2767, 0o767),
                (0o666, 0o666),
            ] {
                set(&fs, f, perm(before));
                call(&fs, &root(), f);
                assert_eq!(
                    stat(&fs, "f").unwrap().perm,
                    before,
                    "{mode}: {what} by root"
                );
                call(&fs, &user, f);
                let found = stat(&fs, "f").unwrap().perm;
                assert_eq!(found, after, "{mode}: {what}, {before:o} became {found:o}");
            }
            must_be_healthy(&fs);
        }
    }
}

/// Listings in small pieces, with names made and removed in between: what was there all
/// the time is listed exactly once, and cookies only ascend.
#[test]
fn a_listing_goes_on_where_it_stopped_whatever_changes() {
    for mode in Mode::ALL {
        let fs = fresh(mode, 4 * MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        for n in 0..300 {
            file_in(&fs, d, &format!("name {n:03}{}", "x".repeat(n % 60)));
        }
        let staying = |name: &str| name.contains("7");
        let all = names(&fs, d);
        let mut seen = BTreeMap::new();
        let (mut cookie, mut step) = (Cookie(0), 0);
        loop {
            let mut piece = Vec::new();
            fs.readdir(&root(), d, cookie, &mut |e| {
                piece.push((String::from_utf8(e.name.to_vec()).unwrap(), e.cookie));
                piece.len() < 7
            })
            .unwrap();
            // The entry that was refused comes again.
            if piece.len() == 7 {
                piece.pop();
            }
            let Some((_, last)) = piece.last() else { break };
            assert!(
                piece[0].1 > cookie && piece.is_sorted_by_key(|p| p.1),
                "{mode}"
            );
            cookie = *last;
            for (name, _) in piece {
                *seen.entry(name).or_insert(0) += 1;
            }
            for (n, name) in all.iter().enumerate().filter(|(_, name)| !staying(name)) {
                if n % 40 == step {
                    let _ = fs.unlink(&root(), d, name.as_bytes());
                    file_in(&fs, d, &format!("new {step} {n}{}", "y".repeat(n % 30)));
                }
            }
            step += 1;
        }
        for name in all.iter().filter(|name| staying(name)) {
            assert_eq!(seen.get(name), Some(&1), "{mode}: {name}");
        }
        assert!(
            step > 20 && seen.values().all(|times| *times == 1),
            "{mode}"
        );
        must_be_healthy(&fs);
    }
}

#[test]
fn a_cookie_outlives_its_entry_and_a_mount() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        for name in ["a", "b", "c", "d"] {
            file(&fs, name);
        }
        let listed = list(&fs, Ino::ROOT, Cookie(0));
        let after = |fs: &Fs, n: usize| -> Vec<String> {
            let rest = list(fs, Ino::ROOT, listed[n].2);
            rest.into_iter().map(|e| e.0).collect()
        };
        for n in 0..listed.len() {
            let want: Vec<_> = listed[n + 1..].iter().map(|e| e.0.clone()).collect();
            assert_eq!(after(&fs, n), want, "{mode}");
            assert_eq!(after(&remounted(&fs), n), want, "{mode}");
        }
        fs.unlink(&root(), Ino::ROOT, b"b").unwrap();
        assert_eq!(after(&fs, 3), ["c", "d"], "{mode}: after b");
        assert_eq!(after(&fs, 2), ["c", "d"], "{mode}: after a");
        assert_eq!(after(&fs, 5), [""; 0]);
        assert_eq!(list(&fs, Ino::ROOT, Cookie(u64::MAX)), []);
    }
}

#[test]
fn readdirplus_takes_a_reference_for_each_accepted_entry() {
    let fs = fresh(Mode::Log, MIB);
    let inos: Vec<_> = ["a", "b", "c"].iter().map(|name| file(&fs, name)).collect();
    let mut seen = 0;
    fs.readdirplus(&root(), Ino::ROOT, Cookie(0), &mut |e, attr| {
        assert_eq!(Some(e.ino), attr.map(|attr| attr.ino));
        seen += 1;
        seen <= 4 // `.`, `..`, `a`, `b`; `c` is refused
    })
    .unwrap();
    for name in [b"a", b"b", b"c"] {
        fs.unlink(&root(), Ino::ROOT, name).unwrap();
    }
    let alive = |n: usize| fs.getattr(&root(), inos[n]).map(|a| a.nlink);
    assert_eq!((alive(0), alive(1)), (Ok(0), Ok(0)));
    assert_eq!(
        alive(2),
        Err(Errno::STALE),
        "a refused entry took a reference"
    );
    fs.forget(inos[0], 1);
    fs.forget(inos[1], 1);
    assert_eq!((alive(0), alive(1)), (Err(Errno::STALE), Err(Errno::STALE)));
    must_be_healthy(&fs);
}

#[test]
fn a_file_without_a_name_may_get_its_first_but_no_second_life() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        file_in(&fs, d, "other");
        let space = free(&fs);
        let temp = fs.tmpfile(&root(), d, 0o600).unwrap();
        assert_eq!((temp.nlink, temp.perm), (0, 0o600));
        write(&fs, temp.ino, 0, &[9; 10_000]);
        assert_eq!(fs.audit(), [], "{mode}");
        assert_eq!(free(&remounted(&fs)), space, "{mode}: lost in a crash");
        assert_eq!(fs.link(&root(), temp.ino, d, b"named").unwrap().nlink, 1);
        assert_eq!(read(&remounted(&fs), temp.ino, 0, 20_000), [9; 10_000]);
        fs.forget(temp.ino, 1);
        fs.unlink(&root(), d, b"named").unwrap();
        let again = fs.link(&root(), temp.ino, d, b"again").err();
        assert_eq!(again, Some(Errno::NOENT), "{mode}");
        fs.forget(temp.ino, 1);
        assert_eq!(free(&fs), space, "{mode}");
        must_be_healthy(&fs);
    }
}

#[test]
fn statfs_counts_blocks_and_inodes() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        let f = file_in(&fs, d, "f");
        let before = fs.statfs().unwrap();
        assert_eq!(
            (before.block_bytes, before.blocks, before.name_max),
            (4096, 256, 255)
        );
        write(&fs, f, 0, &[1; 4 * BLOCK as usize]);
        let after = fs.statfs().unwrap();
        // Four leaves and the block of pointers above them.
        assert_eq!(before.blocks_free - after.blocks_free, 5, "{mode}");
        assert_eq!(stat(&fs, "d/f").unwrap().blocks, 5 * 8, "{mode}");
        assert_eq!(after.inodes - after.inodes_free, 3, "{mode}");
        fs.unlink(&root(), d, b"f").unwrap();
        let last = fs.statfs().unwrap();
        assert_eq!(last.blocks_free, before.blocks_free, "{mode}");
        assert_eq!(last.inodes_free, before.inodes_free + 1, "{mode}");
    }
}

#[test]
fn a_reused_inode_number_has_another_generation() {
    for mode in Mode::ALL {
        let mut fs = fresh(mode, MIB);
        let mut seen: Vec<(Ino, u64)> = Vec::new();
        for n in 0..20 {
            let made = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap();
            let life = (made.ino, made.generation);
            assert!(!seen.contains(&life), "{mode}: {life:?} again");
            seen.push(life);
            fs.forget(made.ino, 1);
            fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
            if n % 5 == 4 {
                fs = remounted(&fs);
            }
        }
        let numbers: std::collections::BTreeSet<_> = seen.iter().map(|s| s.0).collect();
        assert!(numbers.len() < 20, "{mode}: no number was used again");
    }
}

#[test]
fn a_read_only_mount_refuses_changes_and_changes_nothing() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        run(&fs, &mut State::default(), &generate::setup());
        let (pm, before) = (fs.pmem().clone(), snapshot(&fs));
        drop(fs);
        let o = MountOptions {
            read_only: true,
            mode: None,
            atime: Atime::Strict,
            ..options(mode)
        };
        let image = |pm: &Memory| {
            let mut bytes = vec![0; pm.len() as usize];
            pm.read(0, &mut bytes).unwrap();
            bytes
        };
        let bytes = image(&pm);
        let fs = Bpfs::open(pm.clone(), o).unwrap();
        assert_eq!(fs.info().mode, mode);
        let mut refused = 0;
        for op in generate::all_ops() {
            let would = {
                let copy = Bpfs::open(copy_of(&pm), options(mode)).unwrap();
                run_op(&copy, &mut State::default(), op)
            };
            let reads = matches!(
                op,
                oracle::script::Op::Fsync { .. } | oracle::script::Op::Fsyncdir { .. }
            );
            let got = run_op(&fs, &mut State::default(), op);
            if would.is_ok() && !reads {
                assert_eq!(got, Err(Errno::ROFS), "{mode}: {op}");
                refused += 1;
            }
        }
        assert!(refused > 40, "{mode}: {refused}");
        let temp = fs.tmpfile(&root(), Ino::ROOT, 0o600).err();
        assert_eq!(temp, Some(Errno::ROFS));
        let f = ino(&fs, "f");
        assert_eq!(fs.open(&root(), f, OpenFlags::READ), Ok(()));
        fs.release(f);
        let cut = fs.open(&root(), f, OpenFlags::WRITE | OpenFlags::TRUNCATE);
        assert_eq!(cut, Err(Errno::ROFS));
        assert!(snapshot(&fs).is_same_except_times(&before), "{mode}");
        assert_eq!(fs.audit(), []);
        assert!(image(&pm) == bytes, "{mode}: the image has changed");
    }
}

/// Cuts the power at each fence of a call, in many ways; returns how many of the images
/// a mount that may not write refused. None of them may be changed by that.
fn needs_recovery(mode: Mode) -> u32 {
    let mut refused = 0;
    for (fence, seed) in (1..).flat_map(|fence| (0..20).map(move |seed| (fence, seed))) {
        let pm = Arc::new(PowerCut::new(MemoryPmem::new(MIB)));
        let o = MkfsOptions {
            mode,
            ..MkfsOptions::default()
        };
        mkfs(&*pm, &o).unwrap();
        let fs = Bpfs::open(pm.clone(), options(mode)).unwrap();
        let d = dir_in(&fs, Ino::ROOT, "d");
        write(&fs, file(&fs, "f"), 0, b"contents");
        pm.cut_after(CutAfter::Fences(fence), seed, PersistModel::Words);
        let moved = rename(&fs, (Ino::ROOT, "f"), (d, "g"), PLAIN);
        drop(fs);
        if pm.outcome().is_none() {
            assert_eq!(moved, Ok(()));
            return refused;
        }
        refused += u32::from(refused_until_mended(mode, pm.inner()));
    }
    refused
}

fn refused_until_mended(mode: Mode, crashed: &MemoryPmem) -> bool {
    let image = copy_of(crashed);
    let read_only = MountOptions {
        read_only: true,
        ..options(mode)
    };
    let Err(e) = Bpfs::open(image.clone(), read_only.clone()) else {
        return false;
    };
    assert_eq!(e, Error::NeedsRecovery, "{mode}");
    let (mut before, mut after) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    crashed.read(0, &mut before).unwrap();
    image.read(0, &mut after).unwrap();
    assert!(
        before == after,
        "{mode}: a refused mount has stored something"
    );
    // Recovery can take place in memory.
    let in_memory = Arc::new(Overlay::new(image.clone()));
    assert_eq!(recover(&in_memory), Ok(true), "{mode}");
    assert_eq!(recover(&in_memory), Ok(false), "{mode}");
    let fs = Bpfs::open(in_memory, read_only.clone()).unwrap();
    let in_memory = [stat(&fs, "f").is_ok(), stat(&fs, "d/g").is_ok()];
    image.read(0, &mut after).unwrap();
    assert!(before == after, "{mode}: the image has changed");
    // A mount that may write brings it in order; then the other may, too.
    must_be_healthy(&Bpfs::open(image.clone(), options(mode)).unwrap());
    let fs = Bpfs::open(image, read_only).unwrap();
    let names = [stat(&fs, "f").is_ok(), stat(&fs, "d/g").is_ok()];
    assert_ne!(names[0], names[1], "{mode}");
    assert_eq!(names, in_memory, "{mode}");
    true
}

#[test]
fn a_read_only_mount_does_not_recover() {
    assert!(needs_recovery(Mode::Log) > 0, "never a pending log record");
    assert!(needs_recovery(Mode::Sp) > 0, "never a torn super block");
    assert_eq!(
        needs_recovery(Mode::Other),
        0,
        "there is nothing to recover"
    );
}
