//! The files that stand for groups, and their names.

use crate::fixture::{Bench, INIT, by};
use pg::protocol;
use vfs::{
    Ctx, Errno, Fallocate, FileType, Ino, Name, NewNode, OpenFlags, RenameFlags, SeekKind, SetAttr,
    XattrMode,
};

const RESERVED: &[u8] = b".selvedge-patchgroup.x";

#[test]
fn a_group_is_an_empty_file_of_its_owner_without_a_name() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    let attr = bench.fs.getattr(&cx, group).unwrap();
    assert_eq!((attr.ino, attr.nlink, attr.size), (group, 0, 0));
    assert_eq!((attr.uid, attr.gid, attr.perm), (1, 101, 0o600));
    assert_eq!(attr.kind, FileType::Regular);
    bench.fs.open(&cx, group, OpenFlags::default()).unwrap();
    assert_eq!(bench.fs.read(&cx, group, 0, &mut [0; 10]), Ok(0));
    bench.fs.release(group);
    let truncate = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    bench.fs.setattr(&cx, group, &truncate).unwrap();
    assert!(bench.fs.listxattr(&cx, group).unwrap().is_empty());
    bench.fs.forget(group, 1);
    assert_eq!(bench.fs.getattr(&cx, group), Err(Errno::STALE));
}

#[test]
fn each_lookup_makes_another_group() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let groups = [bench.group(&cx), bench.group(&cx)];
    assert_ne!(groups[0], groups[1]);
    assert_eq!(bench.list().len(), 2);
    let mut names = Vec::new();
    let listed = bench
        .fs
        .readdir(&cx, Ino::ROOT, vfs::Cookie(0), &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
    listed.unwrap();
    assert!(!names.iter().any(|name| name.starts_with(RESERVED)));
}

#[test]
fn no_other_file_gets_a_reserved_name() {
    let bench = Bench::new();
    let cx = Ctx::root();
    assert!(RESERVED.starts_with(protocol::NAME.as_bytes()));
    let (reserved, file) = (
        Name::new(Ino::ROOT, RESERVED),
        Name::new(Ino::ROOT, b"file"),
    );
    let denied = Some(Errno::PERM);
    assert_eq!(
        bench.fs.make(&cx, reserved, &NewNode::file(0o644)).err(),
        denied
    );
    assert_eq!(
        bench
            .fs
            .make(&cx, reserved, &NewNode::directory(0o755))
            .err(),
        denied
    );
    assert_eq!(
        bench.fs.link(&cx, bench.file, Ino::ROOT, RESERVED).err(),
        denied
    );
    let flags = RenameFlags::default();
    assert_eq!(bench.fs.rename(&cx, file, reserved, flags).err(), denied);
}

#[test]
fn a_file_of_a_group_cannot_be_changed_or_linked() {
    let bench = Bench::new();
    let cx = by(INIT, 0);
    let group = bench.group(&cx);
    let fs = &bench.fs;
    let denied = Some(Errno::PERM);
    let mode = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(&cx, group, &mode).err(), denied);
    assert_eq!(fs.write(&cx, group, 0, b"x").err(), denied);
    assert_eq!(fs.link(&cx, group, Ino::ROOT, b"name").err(), denied);
    let allocate = Fallocate::Allocate { keep_size: false };
    assert_eq!(fs.fallocate(&cx, group, allocate, 0, 1).err(), denied);
    let set = fs.setxattr(&cx, group, b"user.a", b"x", XattrMode::Set);
    assert_eq!(set.err(), denied);
    assert_eq!(fs.removexattr(&cx, group, b"user.a").err(), denied);
    assert_eq!(fs.by_number(group).err(), denied);
    for kind in [SeekKind::Data, SeekKind::Hole] {
        assert_eq!(fs.seek(&cx, group, 0, kind), Err(Errno::NXIO));
    }
    assert!(
        bench.seen().is_empty(),
        "no call has reached the file system below"
    );
}
