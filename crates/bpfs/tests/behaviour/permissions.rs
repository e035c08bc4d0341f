//! Permissions, owners of new inodes, and set-id bits.

use crate::fixture::*;
use bpfs::Mode;
use vfs::{
    Cookie, Ctx, Errno, Fallocate, FileSystem, FileType, Ino, Name, OpenFlags, RenameFlags,
    SetAttr, SetTime, Timestamp, XattrMode,
};

#[test]
fn permissions_are_checked_for_unprivileged_callers() {
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
    assert_eq!(there.err(), Some(Errno::EXIST)); // Linux checks the name first
    // Calls whose permissions have been checked already succeed.
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
fn only_owners_remove_names_from_a_sticky_directory() {
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
fn new_inodes_inherit_the_group_of_a_set_gid_directory() {
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
