//! Calls that would change more than contents and times.

use crate::{Bench, numbered};
use patch::stack::Mode;
use vfs::{
    Cookie, Errno, Ino, Name, NewNode, OpenFlags, Removal, RenameFlags, SetAttr, SetTime,
    Timestamp, XattrMode,
};

const DISK: Name<'_> = Name::new(Ino::ROOT, b"disk");
const OTHER: Name<'_> = Name::new(Ino::ROOT, b"other");

fn bench() -> Bench {
    Bench::new(numbered(512), Mode::SoftUpdates)
}

#[test]
fn names_and_inodes_are_fixed() {
    let Bench { fs, cx, disk, .. } = &bench();
    let refused = Err(Errno::PERM);
    let nodes = [
        NewNode::file(0o644),
        NewNode::directory(0o755),
        NewNode::symlink(b"disk").unwrap(),
    ];
    for node in &nodes {
        assert_eq!(fs.make(cx, OTHER, node).map(drop), refused);
        assert_eq!(fs.make(cx, DISK, node).map(drop), Err(Errno::EXIST));
    }
    assert_eq!(fs.tmpfile(cx, Ino::ROOT, 0o600).map(drop), refused);
    assert_eq!(fs.link(cx, *disk, Ino::ROOT, b"other").map(drop), refused);
    assert_eq!(fs.remove(cx, DISK, Removal::Unlink), refused);
    assert_eq!(fs.remove(cx, DISK, Removal::Rmdir), Err(Errno::NOTDIR));
    assert_eq!(fs.remove(cx, OTHER, Removal::Unlink), Err(Errno::NOENT));
    let rename = |from, to, flags| fs.rename(cx, from, to, flags);
    assert_eq!(rename(DISK, OTHER, RenameFlags::empty()), refused);
    assert_eq!(rename(DISK, OTHER, RenameFlags::NO_REPLACE), refused);
    assert_eq!(rename(DISK, DISK, RenameFlags::empty()), Ok(()));
    assert_eq!(rename(OTHER, DISK, RenameFlags::empty()), Err(Errno::NOENT));

    assert_eq!(fs.lookup(cx, Ino::ROOT, b"disk").unwrap().ino, *disk);
    assert_eq!(
        fs.lookup(cx, Ino::ROOT, b"other").unwrap_err(),
        Errno::NOENT
    );
    let attr = fs.getattr(cx, *disk).unwrap();
    assert_eq!(attr.nlink, 1);
    assert_eq!(fs.statfs().unwrap().inodes_free, 0);
    assert!(fs.nameless().is_empty());
}

#[test]
fn a_listing_continues_after_each_cookie() {
    let Bench { fs, cx, .. } = &bench();
    let mut all = Vec::new();
    let mut after = Cookie::default();
    loop {
        let before = all.len();
        fs.readdir(cx, Ino::ROOT, after, &mut |entry| {
            let is_first = all.len() == before;
            if is_first {
                all.push(entry.name.to_vec());
                after = entry.cookie;
            }
            is_first
        })
        .unwrap();
        if all.len() == before {
            break;
        }
    }
    assert_eq!(all, [&b"."[..], b"..", b"disk"]);
}

#[test]
fn permissions_and_owners_are_fixed() {
    let Bench { fs, cx, disk, .. } = &bench();
    let attr = fs.getattr(cx, *disk).unwrap();
    let set = |set: SetAttr| fs.setattr(cx, *disk, &set).map(drop);
    let none = SetAttr::default();
    let changes = [
        (attr.perm, |perm| SetAttr {
            perm,
            ..SetAttr::default()
        }),
        (attr.uid, |uid| SetAttr {
            uid,
            ..SetAttr::default()
        }),
        (attr.gid, |gid| SetAttr {
            gid,
            ..SetAttr::default()
        }),
    ] as [(u32, fn(Option<u32>) -> SetAttr); 3];
    for (present, change) in changes {
        assert_eq!(set(change(Some(present + 1))), Err(Errno::PERM));
        assert_eq!(set(change(Some(present))), Ok(()));
    }
    assert_eq!(set(none), Ok(()));
    let now = fs.getattr(cx, *disk).unwrap();
    assert_eq!(
        (now.perm, now.uid, now.gid),
        (attr.perm, attr.uid, attr.gid)
    );
    for ino in [*disk, Ino::ROOT] {
        assert_eq!(
            fs.setxattr(cx, ino, b"user.a", b"1", XattrMode::Set),
            Err(Errno::PERM)
        );
        assert_eq!(fs.getxattr(cx, ino, b"user.a"), Err(Errno::NODATA));
        assert_eq!(fs.listxattr(cx, ino), Ok(Vec::new()));
    }
}

#[test]
fn a_truncation_to_nothing_changes_nothing_and_others_are_refused() {
    let bench = bench();
    let Bench { fs, cx, disk, .. } = &bench;
    let all = bench.read(0, 8192);
    let size = |size| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(cx, *disk, &set).map(|attr| attr.size)
    };
    assert_eq!(size(0), Ok(8192), "`O_TRUNC`, as the kernel sends it");
    assert_eq!(size(8192), Ok(8192));
    for other in [1, 512, 8191, 8193, 16384, i64::MAX as u64] {
        assert_eq!(size(other), Err(Errno::PERM), "{other}");
    }
    let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    assert_eq!(fs.open(cx, *disk, flags), Ok(()));
    fs.release(*disk);
    assert_eq!(fs.open(cx, Ino::ROOT, flags), Err(Errno::ISDIR));
    assert!(bench.read(0, 9000) == all);
}

#[test]
fn another_user_cannot_open_the_disk() {
    let Bench { fs, disk, .. } = &bench();
    let attr = fs.getattr(&vfs::Ctx::root(), *disk).unwrap();
    let other = vfs::Ctx::user(attr.uid + 1, attr.gid + 1);
    for flags in [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::TRUNCATE] {
        assert_eq!(fs.open(&other, *disk, flags), Err(Errno::ACCESS));
    }
}

#[test]
fn times_are_kept_until_the_unmount() {
    let device = numbered(512);
    let before = device.bytes();
    let bench = Bench::new(device.clone(), Mode::SoftUpdates);
    let Bench { fs, cx, disk, .. } = &bench;
    let old = SetTime::At(Timestamp(7));
    let set = SetAttr {
        atime: Some(old),
        mtime: Some(old),
        ..SetAttr::default()
    };
    fs.setattr(cx, *disk, &set).unwrap();
    let attr = fs.getattr(cx, *disk).unwrap();
    assert_eq!((attr.atime, attr.mtime), (Timestamp(7), Timestamp(7)));
    bench.write(0, &[1]).unwrap();
    assert!(fs.getattr(cx, *disk).unwrap().mtime > Timestamp(7));
    bench.fsync();
    bench.mounted.close().unwrap();
    assert!(device.bytes() == before, "byte 0 was 1 before");
    let again = Bench::new(device, Mode::SoftUpdates);
    let attr = again.fs.getattr(cx, again.disk).unwrap();
    assert!(attr.atime > Timestamp(7));
}
