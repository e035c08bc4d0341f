//! The permission rules, case by case.

use super::*;
use crate::{Ino, Timestamp};

fn attr(kind: FileType, perm: u32, uid: u32, gid: u32) -> Attr {
    Attr {
        ino: Ino(7),
        generation: 1,
        kind,
        perm,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        flags: FileFlags::empty(),
    }
}

fn file(perm: u32, uid: u32, gid: u32) -> Attr {
    attr(FileType::Regular, perm, uid, gid)
}

fn dir(perm: u32, uid: u32, gid: u32) -> Attr {
    attr(FileType::Directory, perm, uid, gid)
}

fn member(uid: u32, gid: u32, groups: &[u32]) -> Ctx {
    Ctx {
        groups: groups.to_vec(),
        ..Ctx::user(uid, gid)
    }
}

fn checked(uid: u32) -> Ctx {
    Ctx {
        checked: true,
        ..Ctx::user(uid, uid)
    }
}

/// Exactly one class decides, even where a later one would allow more.
#[test]
fn access_uses_one_class() {
    let cases = [
        // perm, caller, want, allowed
        (0o400, member(1, 9, &[]), Access::READ, true),
        (0o077, member(1, 5, &[]), Access::READ, false),
        (0o040, member(2, 5, &[]), Access::READ, true),
        (0o040, member(2, 9, &[4, 5]), Access::READ, true),
        (0o707, member(2, 5, &[]), Access::READ, false),
        (0o004, member(2, 9, &[]), Access::READ, true),
        (0o770, member(2, 9, &[]), Access::EXEC, false),
        (0o600, member(1, 5, &[]), Access::READ | Access::EXEC, false),
        (0o700, member(1, 5, &[]), Access::all(), true),
        (0o000, Ctx::root(), Access::READ | Access::WRITE, true),
        (0o666, Ctx::root(), Access::EXEC, false),
        (0o001, Ctx::root(), Access::EXEC, true),
        (0o000, checked(3), Access::all(), true),
    ];
    for (perm, cx, want, allowed) in cases {
        let got = access(&cx, &file(perm, 1, 5), want);
        let expected = if allowed { Ok(()) } else { Err(Errno::ACCESS) };
        assert_eq!(got, expected, "{perm:o} {cx:?} {want:?}");
    }
    assert_eq!(access(&Ctx::root(), &dir(0, 1, 1), Access::EXEC), Ok(()));
}

#[test]
fn deletion_needs_write_permission_and_respects_the_sticky_bit() {
    let cases = [
        // directory (owner 1), victim's owner, caller, result
        (0o755, 1, Ctx::user(1, 1), Ok(())),
        (0o555, 1, Ctx::user(1, 1), Err(Errno::ACCESS)),
        (0o655, 1, Ctx::user(1, 1), Err(Errno::ACCESS)),
        (0o777, 3, Ctx::user(2, 2), Ok(())),
        (0o1777, 3, Ctx::user(2, 2), Err(Errno::PERM)),
        (0o1777, 2, Ctx::user(2, 2), Ok(())),
        (0o1777, 3, Ctx::user(1, 1), Ok(())),
        (0o1777, 3, Ctx::root(), Ok(())),
        (0o1777, 3, checked(2), Ok(())),
        (0o1755, 2, Ctx::user(2, 2), Err(Errno::ACCESS)),
    ];
    for (perm, owner, cx, expected) in cases {
        let got = may_delete(&cx, &dir(perm, 1, 1), &file(0o644, owner, owner));
        assert_eq!(got, expected, "{perm:o} {owner} {cx:?}");
    }
}

#[test]
fn moving_a_directory_needs_write_permission_on_it() {
    let cx = Ctx::user(1, 1);
    let from = dir(0o755, 1, 1);
    let to = Attr {
        ino: Ino(8),
        ..from
    };
    let locked = Attr {
        ino: Ino(9),
        ..dir(0o555, 1, 1)
    };
    let rename = |a: &Attr, b: &Attr, target, swap| may_rename(&cx, &from, a, b, target, swap);
    assert_eq!(rename(&locked, &to, None, false), Err(Errno::ACCESS));
    assert_eq!(rename(&locked, &from, None, false), Ok(()));
    assert_eq!(rename(&file(0, 1, 1), &to, None, false), Ok(()));
    let open = dir(0o755, 1, 1);
    assert_eq!(rename(&open, &to, Some(&locked), true), Err(Errno::ACCESS));
    assert_eq!(rename(&open, &to, Some(&locked), false), Ok(()));
    let shut = Attr {
        ino: Ino(8),
        ..dir(0o555, 1, 1)
    };
    assert_eq!(rename(&open, &shut, None, false), Err(Errno::ACCESS));
}

#[test]
fn new_inodes_take_the_group_of_a_set_gid_directory() {
    let plain = dir(0o755, 1, 50);
    let handing = dir(0o2755, 1, 50);
    let outsider = Ctx::user(2, 2);
    let insider = member(2, 2, &[50]);
    let cases = [
        (&outsider, &plain, NewNode::file(0o2755), 2, 0o2755),
        (&outsider, &handing, NewNode::file(0o644), 50, 0o644),
        (&outsider, &handing, NewNode::file(0o2755), 50, 0o755),
        (&outsider, &handing, NewNode::file(0o2745), 50, 0o2745),
        (&insider, &handing, NewNode::file(0o2755), 50, 0o2755),
        (&outsider, &handing, NewNode::directory(0o755), 50, 0o2755),
        (&outsider, &plain, NewNode::directory(0o755), 2, 0o755),
        (
            &outsider,
            &handing,
            NewNode::symlink(b"t").unwrap(),
            50,
            0o777,
        ),
    ];
    for (cx, dir, new, gid, perm) in cases {
        let expected = NewOwner { uid: 2, gid, perm };
        assert_eq!(new_owner(cx, dir, &new), expected, "{new:?}");
    }
    let root = new_owner(&Ctx::root(), &handing, &NewNode::file(0o2755));
    assert_eq!((root.gid, root.perm), (50, 0o2755));
}

#[test]
fn chmod_and_chown_belong_to_the_owner() {
    let perm = |perm| SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    let uid = |uid| SetAttr {
        uid: Some(uid),
        ..SetAttr::default()
    };
    let gid = |gid| SetAttr {
        gid: Some(gid),
        ..SetAttr::default()
    };
    let (owner, other) = (member(1, 10, &[11]), Ctx::user(2, 10));
    let target = file(0o6755, 1, 10);
    let set = |cx: &Ctx, s| check_setattr(cx, &target, &s);
    assert_eq!(set(&other, perm(0o777)), Err(Errno::PERM));
    assert_eq!(set(&owner, perm(0o2711)).unwrap().perm, Some(0o2711));
    assert_eq!(set(&owner, uid(2)), Err(Errno::PERM));
    assert_eq!(set(&other, uid(2)), Err(Errno::PERM));
    assert_eq!(set(&owner, uid(1)).unwrap().perm, Some(0o755));
    assert_eq!(set(&owner, gid(12)), Err(Errno::PERM));
    assert_eq!(set(&other, gid(10)), Err(Errno::PERM));
    assert_eq!(set(&owner, gid(11)).unwrap().perm, Some(0o755));
    assert_eq!(set(&Ctx::root(), uid(5)).unwrap().perm, Some(0o755));
    assert_eq!(set(&checked(2), uid(5)).unwrap().perm, None);
    let folder = dir(0o6755, 1, 10);
    assert_eq!(check_setattr(&owner, &folder, &gid(11)).unwrap().perm, None);
}

/// A request for set-gid by an owner who is not in the group: the bit is dropped.
#[test]
fn set_gid_needs_membership() {
    let set = SetAttr {
        perm: Some(0o2755),
        ..SetAttr::default()
    };
    let target = file(0o644, 1, 99);
    let got = |cx| check_setattr(&cx, &target, &set).unwrap().perm;
    assert_eq!(got(Ctx::user(1, 1)), Some(0o755));
    assert_eq!(got(member(1, 1, &[99])), Some(0o2755));
    assert_eq!(got(Ctx::root()), Some(0o2755));
    assert_eq!(got(checked(1)), Some(0o2755));
}

#[test]
fn unprivileged_writes_clear_set_id() {
    let user = Ctx::user(2, 2);
    assert_eq!(perm_after_write(&user, &file(0o6777, 1, 1)), 0o777);
    assert_eq!(perm_after_write(&user, &file(0o2767, 1, 2)), 0o2767);
    assert_eq!(perm_after_write(&user, &file(0o2767, 1, 1)), 0o767);
    assert_eq!(perm_after_write(&Ctx::root(), &file(0o6777, 1, 1)), 0o6777);
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    let got = check_setattr(&user, &file(0o4777, 1, 1), &set).unwrap();
    assert_eq!(got.perm, Some(0o777));
}

#[test]
fn size_can_be_set_on_writable_files_only() {
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let user = Ctx::user(2, 2);
    let set = |attr: &Attr, s| check_setattr(&user, attr, &s).map(drop);
    assert_eq!(set(&file(0o644, 1, 1), size(0)), Err(Errno::ACCESS));
    assert_eq!(set(&file(0o646, 1, 1), size(9)), Ok(()));
    assert_eq!(
        set(&file(0o646, 1, 1), size(SIZE_MAX + 1)),
        Err(Errno::FBIG)
    );
    assert_eq!(set(&dir(0o777, 2, 2), size(0)), Err(Errno::ISDIR));
    let fifo = attr(FileType::Fifo, 0o666, 2, 2);
    assert_eq!(set(&fifo, size(0)), Err(Errno::INVAL));
}

#[test]
fn times_need_the_owner_or_for_now_write_permission() {
    let at = Some(SetTime::At(Timestamp(5)));
    let now = Some(SetTime::Now);
    let cases = [
        // perm, caller, atime, mtime, result
        (0o444, 1, at, at, Ok(())),
        (0o444, 1, now, now, Ok(())),
        (0o444, 2, now, now, Err(Errno::ACCESS)),
        (0o446, 2, now, now, Ok(())),
        (0o446, 2, at, at, Err(Errno::PERM)),
        (0o446, 2, now, None, Err(Errno::PERM)),
        (0o446, 2, now, at, Err(Errno::PERM)),
        (0o444, 0, at, at, Ok(())),
        (0o446, 2, None, None, Ok(())),
    ];
    for (perm, uid, atime, mtime, expected) in cases {
        let set = SetAttr {
            atime,
            mtime,
            ..SetAttr::default()
        };
        let got = check_setattr(&Ctx::user(uid, uid), &file(perm, 1, 1), &set).map(drop);
        assert_eq!(got, expected, "{perm:o} {uid} {atime:?} {mtime:?}");
    }
}

#[test]
fn nodes_links_and_opens_are_checked() {
    let user = Ctx::user(2, 2);
    assert_eq!(may_mknod(&user, FileType::Fifo), Ok(()));
    assert_eq!(may_mknod(&user, FileType::CharDevice), Err(Errno::PERM));
    assert_eq!(may_mknod(&Ctx::root(), FileType::CharDevice), Ok(()));
    assert_eq!(may_link(&dir(0o777, 2, 2)), Err(Errno::PERM));
    assert_eq!(may_link(&file(0o000, 1, 1)), Ok(()));

    let open = |attr: &Attr, flags| may_open(&user, attr, flags);
    let target = file(0o644, 1, 1);
    assert_eq!(open(&target, OpenFlags::READ), Ok(()));
    assert_eq!(open(&target, OpenFlags::WRITE), Err(Errno::ACCESS));
    assert_eq!(open(&target, OpenFlags::TRUNCATE), Err(Errno::ACCESS));
    assert_eq!(open(&file(0, 1, 1), OpenFlags::empty()), Ok(()));
    let folder = dir(0o777, 2, 2);
    assert_eq!(open(&folder, OpenFlags::WRITE), Err(Errno::ISDIR));
    assert_eq!(open(&folder, OpenFlags::READ), Ok(()));
}

#[test]
fn each_xattr_name_space_has_its_permissions() {
    let user = Ctx::user(2, 2);
    let (own, other) = (file(0o644, 2, 2), file(0o600, 1, 1));
    assert_eq!(may_set_xattr(&user, &own, b"user.a"), Ok(()));
    assert_eq!(may_set_xattr(&user, &other, b"user.a"), Err(Errno::ACCESS));
    assert_eq!(may_get_xattr(&user, &other, b"user.a"), Err(Errno::ACCESS));
    assert_eq!(may_get_xattr(&user, &other, b"security.a"), Ok(()));
    assert_eq!(may_get_xattr(&user, &own, b"trusted.a"), Err(Errno::NODATA));
    assert_eq!(may_set_xattr(&user, &own, b"trusted.a"), Err(Errno::PERM));
    for attr in [&own, &other] {
        assert_eq!(may_set_xattr(&user, attr, CAPABILITY), Err(Errno::PERM));
        assert_eq!(may_set_xattr(&Ctx::root(), attr, CAPABILITY), Ok(()));
    }
    assert_eq!(may_set_xattr(&checked(2), &other, b"trusted.a"), Ok(()));
    let sticky = dir(0o1777, 1, 1);
    assert_eq!(may_set_xattr(&user, &sticky, b"user.a"), Err(Errno::PERM));
}

#[test]
fn xattrs_of_the_super_user_are_listed_to_the_super_user_only() {
    let listed = |name: &[u8]| {
        [Ctx::root(), Ctx::user(2, 2), checked(2)].map(|cx| may_list_xattr(&cx, name))
    };
    assert_eq!(listed(b"user.a"), [true; 3]);
    assert_eq!(listed(b"security.a"), [true; 3]);
    assert_eq!(listed(b"trusted.a"), [true, false, false]);
    assert_eq!(listed(b"other.a"), [true, false, false]);
}

#[test]
fn xattrs_with_invalid_names_can_be_read_and_removed_by_the_super_user() {
    let own = file(0o666, 2, 2);
    for (name, error) in [
        (&b"other.a"[..], Errno::OPNOTSUPP),
        (b"user.", Errno::INVAL),
    ] {
        assert_eq!(may_get_xattr(&Ctx::root(), &own, name), Ok(()));
        assert_eq!(may_set_xattr(&Ctx::root(), &own, name), Ok(()));
        for cx in [Ctx::user(2, 2), checked(2)] {
            assert_eq!(may_get_xattr(&cx, &own, name), Err(error));
            assert_eq!(may_set_xattr(&cx, &own, name), Err(error));
        }
    }
}

#[test]
fn a_kernel_that_asks_for_it_drops_set_id_bits_with_other_attributes() {
    let asks = Ctx {
        drops_set_id: true,
        ..checked(2)
    };
    let perm = |cx: &Ctx, attr: &Attr, set: &SetAttr| check_setattr(cx, attr, set).unwrap().perm;
    let owner = SetAttr {
        uid: Some(3),
        ..SetAttr::default()
    };
    let own = SetAttr {
        perm: Some(0o6755),
        ..owner
    };
    assert_eq!(perm(&asks, &file(0o6755, 2, 2), &owner), Some(0o755));
    assert_eq!(perm(&asks, &file(0o755, 2, 2), &owner), None);
    assert_eq!(perm(&asks, &dir(0o2755, 2, 2), &owner), None);
    assert_eq!(perm(&asks, &file(0o6755, 2, 2), &own), Some(0o6755));
    assert_eq!(perm(&checked(2), &file(0o6755, 2, 2), &owner), None);
}
