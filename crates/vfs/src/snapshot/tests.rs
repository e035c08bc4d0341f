use super::*;
use crate::{Ctx, Ino, ModelFs, XattrMode};

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
fn records_what_callers_see() {
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
