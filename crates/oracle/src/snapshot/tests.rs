//! Snapshots: their contents, and the differences that they detect.

use super::take::{self, Limits};
use super::*;
use crate::ModelFs;
use vfs::{Ctx, Ino, XattrMode};
use vfs::{SetAttr, SetTime, Timestamp};

fn sample() -> ModelFs {
    let (fs, cx) = (ModelFs::default(), Ctx::root());
    let dir = fs.mkdir(&cx, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let file = fs.create(&cx, dir, b"f", 0o640).unwrap().ino;
    fs.write(&cx, file, 5000, b"hello").unwrap();
    fs.link(&cx, file, Ino::ROOT, b"z").unwrap();
    fs.symlink(&cx, Ino::ROOT, b"s", b"d/f").unwrap();
    fs.setxattr(&cx, file, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    fs
}

fn take(fs: &ModelFs) -> Snapshot {
    Snapshot::take(fs).unwrap()
}

#[test]
fn a_snapshot_holds_what_callers_see() {
    let snapshot = take(&sample());
    let paths: Vec<_> = snapshot.iter().map(|(path, ..)| path).collect();
    assert_eq!(paths, [b"/".as_slice(), b"/d", b"/d/f", b"/s", b"/z"]);
    let (file, _) = snapshot.get(b"/d/f").unwrap();
    assert_eq!((file.perm, file.nlink, file.size), (0o640, 2, 5005));
    assert_eq!(file.xattrs, [(b"user.a".to_vec(), b"1".to_vec())]);
    let Content::Bytes(data) = &file.content else {
        panic!("{file:?}");
    };
    assert_eq!(
        (&data[..5000], &data[5000..]),
        (&[0; 5000][..], &b"hello"[..])
    );
    assert!(std::ptr::eq(file, snapshot.get(b"/z").unwrap().0));
    assert_eq!(snapshot.get(b"/none"), None);
}

/// Every kind of change is found by equality, by the hash and in the text.
#[test]
fn every_kind_of_change_is_detected() {
    use crate::script::{Script, State, run};
    let before = take(&sample());
    let cases = [
        ("chmod d/f 600", "/d/f: mode 0640 -> 0600"),
        ("chown s 5 -", "/s: owner 0 -> 5"),
        ("chown d - 6", "/d: group 0 -> 6"),
        ("write z 5001 1 1", "/d/f: 1 bytes from 5001 on"),
        ("write z 100 3 1", "/d/f: 3 bytes from 100 on: 000000"),
        ("truncate z 5004", "/d/f: size 5005 -> 5004"),
        (
            "unlink z",
            "/z: Regular 0640 0:0 links 2 size 5005 -> nothing",
        ),
        (
            "create n 644",
            "/n: nothing -> Regular 0644 0:0 links 1 size 0",
        ),
        ("rmdir d\nunlink s\nsymlink x s", "/s: target d/f -> x"),
        ("removexattr z user.a", "/d/f: xattrs { user.a=1 } -> { }"),
        (
            "setxattr z user.a 1 1 set",
            "/d/f: xattrs { user.a=1 } -> { user.a=",
        ),
        (
            "unlink s\nmkdir s 755",
            "/s: Symlink 0777 0:0 links 1 size 3 to d/f -> Directory",
        ),
        ("mkdir d/e 755", "/d: links 2 -> 3"),
        ("rename s t replace", "/t: nothing -> Symlink"),
        (
            "unlink z\nlink s z\nunlink s\nlink d/f s",
            "/s: same inode as /s -> /d/f",
        ),
    ];
    for (script, words) in cases {
        let fs = sample();
        run(
            &fs,
            &mut State::default(),
            &script.parse::<Script>().unwrap(),
        );
        let after = take(&fs);
        assert!(!before.is_same_except_times(&after), "{script}");
        assert_ne!(before.hash(), after.hash(), "{script}");
        let lines = before.diff(&after);
        assert!(
            lines.iter().any(|line| line.starts_with(words)),
            "{script}: {lines:?}"
        );
    }
}

/// The names and attributes are the same, but other names share the inode.
#[test]
fn shared_inodes_are_part_of_the_state() {
    let make = |pairs: [(&[u8], &[u8]); 2]| {
        let (fs, cx) = (ModelFs::default(), Ctx::root());
        for (name, link) in pairs {
            let ino = fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
            fs.link(&cx, ino, Ino::ROOT, link).unwrap();
        }
        take(&fs)
    };
    let one = make([(b"a", b"b"), (b"c", b"d")]);
    let same = make([(b"d", b"c"), (b"b", b"a")]);
    let other = make([(b"a", b"c"), (b"b", b"d")]);
    assert!(one.is_same_except_times(&same));
    assert_eq!(one.hash(), same.hash());
    assert!(!one.is_same_except_times(&other));
    assert_ne!(one.hash(), other.hash());
    assert_eq!(
        one.diff(&other),
        [
            "/b: same inode as /a -> /b",
            "/c: same inode as /c -> /a",
            "/d: same inode as /c -> /b"
        ]
    );
}

#[test]
fn times_are_compared_separately() {
    let later = sample();
    let set = SetAttr {
        mtime: Some(SetTime::At(Timestamp(1))),
        ..SetAttr::default()
    };
    later.setattr(&Ctx::root(), Ino::ROOT, &set).unwrap();
    let (one, two) = (take(&sample()), take(&later));
    assert!(one.is_same_except_times(&two) && !one.has_same_times(&two));
    assert_eq!(one.hash(), two.hash());
    assert_eq!(one.diff(&two), Vec::<String>::new());
    assert_ne!(one.diff_times(&two), Vec::<String>::new());
    assert_eq!(one.diff_times(&one), Vec::<String>::new());
}

/// Holes equal zeros, and the cost of a file of 2^48 bytes is that of its data.
#[test]
fn long_files_are_hashed_without_their_holes() {
    let make = |zeros: &[u64], data: u64| {
        let (fs, cx) = (ModelFs::default(), Ctx::root());
        let ino = fs.create(&cx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.truncate(&cx, ino, 1 << 48).unwrap();
        for &off in zeros {
            fs.write(&cx, ino, off, &[0; 9000]).unwrap();
        }
        fs.write(&cx, ino, data, b"data").unwrap();
        take(&fs)
    };
    let far = 1 << 40;
    let one = make(&[], far);
    assert!(one.is_same_except_times(&make(&[0, far - 9000, far + 9000], far)));
    for moved in [far + 1, far + 4096, 0] {
        let other = make(&[], moved);
        assert_ne!(one.hash(), other.hash());
        assert_eq!(one.diff(&other), ["/f: other data"]);
    }
}

/// All references are given back, also when a call fails.
#[test]
fn references_are_given_back() {
    let fs = sample();
    let file = fs.lookup(&Ctx::root(), Ino::ROOT, b"z").unwrap().ino;
    fs.forget(file, 1 << 20);
    let tight = Limits {
        names: 3,
        ..Limits::default()
    };
    take(&fs);
    let failed = take::take(&fs, &tight);
    assert_eq!(failed, Err(SnapshotError::TooLarge("names")));
    let dir = fs.lookup(&Ctx::root(), Ino::ROOT, b"d").unwrap().ino;
    fs.unlink(&Ctx::root(), Ino::ROOT, b"z").unwrap();
    fs.unlink(&Ctx::root(), dir, b"f").unwrap();
    let gone = fs.getattr(&Ctx::root(), file);
    assert_eq!(gone, Err(vfs::Errno::STALE));
}

#[test]
fn a_snapshot_beyond_its_limits_fails() {
    let fs = sample();
    let tight = Limits {
        bytes: 4000,
        ..Limits::default()
    };
    let failed = take::take(&fs, &tight);
    assert_eq!(failed, Err(SnapshotError::TooLarge("bytes")));
    assert!(
        take::take(
            &fs,
            &Limits {
                bytes: 6000,
                ..tight
            }
        )
        .is_ok()
    );
}
