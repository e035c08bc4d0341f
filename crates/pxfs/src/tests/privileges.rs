//! A change of contents takes the set-id bits of the file of another user, as in the model. The service makes it, or a
//! client.

use super::clients::{client_of, service};
use crate::InPlace;
use oracle::ModelFs;
use vfs::{Ctx, Fallocate, FileSystem, Ino, OpenFlags, SetAttr};

const USER: u32 = 7;
/// Modes of files of the super-user, which all others may write.
const MODES: [u32; 4] = [0o4666, 0o2666, 0o2676, 0o6777];

type Change = fn(&dyn FileSystem, &Ctx, Ino) -> vfs::Result<()>;

const CHANGES: [(&str, Change); 9] = [
    ("a write", |fs, cx, ino| {
        fs.write(cx, ino, 0, b"new").map(drop)
    }),
    ("a write after the end", |fs, cx, ino| {
        fs.write(cx, ino, 9000, b"new").map(drop)
    }),
    ("an allocation", |fs, cx, ino| {
        let kind = Fallocate::Allocate { keep_size: false };
        fs.fallocate(cx, ino, kind, 0, 9000)
    }),
    ("an allocation within the file", |fs, cx, ino| {
        let kind = Fallocate::Allocate { keep_size: true };
        fs.fallocate(cx, ino, kind, 0, 100)
    }),
    ("a range of zeros", |fs, cx, ino| {
        let kind = Fallocate::ZeroRange { keep_size: false };
        fs.fallocate(cx, ino, kind, 100, 300)
    }),
    ("a hole", |fs, cx, ino| {
        fs.fallocate(cx, ino, Fallocate::PunchHole, 0, 4096)
    }),
    ("a cut", |fs, cx, ino| resize(fs, cx, ino, 10)),
    ("a greater size", |fs, cx, ino| resize(fs, cx, ino, 10_000)),
    ("an open that truncates", |fs, cx, ino| {
        fs.open(cx, ino, OpenFlags::WRITE | OpenFlags::TRUNCATE)?;
        fs.release(ino);
        Ok(())
    }),
];

fn resize(fs: &dyn FileSystem, cx: &Ctx, ino: Ino, size: u64) -> vfs::Result<()> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(cx, ino, &set).map(drop)
}

/// Each change with each mode, and the name of its file.
fn cases() -> impl Iterator<Item = (String, u32, &'static str, Change)> {
    let cases = MODES
        .into_iter()
        .flat_map(|mode| CHANGES.map(|(what, change)| (mode, what, change)));
    (0..)
        .zip(cases)
        .map(|(n, (mode, what, change))| (format!("{n}"), mode, what, change))
}

/// Makes the files of all cases, as the super-user.
fn prepare(fs: &dyn FileSystem) {
    let cx = &Ctx::root();
    for (name, mode, ..) in cases() {
        let file = fs
            .create(cx, Ino::ROOT, name.as_bytes(), 0o600)
            .unwrap()
            .ino;
        fs.write(cx, file, 0, &[1; 5000]).unwrap();
        let set = SetAttr {
            perm: Some(mode),
            ..SetAttr::default()
        };
        fs.setattr(cx, file, &set).unwrap();
        fs.forget(file, 1);
    }
}

fn perm(fs: &dyn FileSystem, name: &str) -> u32 {
    let found = fs.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes()).unwrap();
    fs.forget(found.ino, 1);
    found.perm
}

/// The user changes all files. Returns their permissions.
fn change_all(fs: &dyn FileSystem) -> Vec<u32> {
    let cx = &Ctx::user(USER, USER);
    let changed = cases().map(|(name, _, what, change)| {
        let file = fs.lookup(cx, Ino::ROOT, name.as_bytes()).unwrap().ino;
        fs.open(cx, file, OpenFlags::WRITE).unwrap();
        change(fs, cx, file).unwrap_or_else(|errno| panic!("{what}: {errno}"));
        fs.release(file);
        fs.forget(file, 1);
        perm(fs, &name)
    });
    changed.collect()
}

fn model() -> Vec<u32> {
    let model = ModelFs::default();
    prepare(&model);
    let expected = change_all(&model);
    assert!(
        expected
            .iter()
            .zip(cases())
            .any(|(perm, (_, mode, ..))| *perm != mode)
    );
    expected
}

fn must_be(found: &[u32], expected: &[u32], whose: &str) {
    for ((found, expected), (_, mode, what, _)) in found.iter().zip(expected).zip(cases()) {
        assert_eq!(
            found, expected,
            "{whose}: {what} of a file with mode {mode:o}"
        );
    }
}

#[test]
fn a_change_of_contents_takes_set_id_bits() {
    let expected = model();
    let alone = service(1_000);
    prepare(&*alone);
    must_be(&change_all(&*alone), &expected, "the service");
    for is_trusted in [true, false] {
        let service = service(1_000);
        prepare(&*service);
        let client = client_of(&service, USER, is_trusted);
        must_be(&change_all(&client), &expected, "the client");
        client.sync().unwrap();
        let found: Vec<u32> = cases().map(|(name, ..)| perm(&*service, &name)).collect();
        must_be(&found, &expected, "the service of a client");
    }
}

/// A write in place changes no attributes but times.
#[test]
fn a_write_in_place_keeps_no_set_id_bits() {
    let service = service(1_000);
    prepare(&*service);
    let client = client_of(&service, USER, true);
    let cx = &Ctx::user(USER, USER);
    for ((name, mode, ..), expected) in cases().zip(model()).step_by(CHANGES.len()) {
        let file = client.lookup(cx, Ino::ROOT, name.as_bytes()).unwrap().ino;
        let write = || client.write_in_place(cx, file, 0, b"new").unwrap();
        let is_written = write() != InPlace::Impossible;
        assert_eq!(is_written, mode == expected, "mode {mode:o}");
        client.write(cx, file, 0, b"new").unwrap();
        assert_ne!(write(), InPlace::Impossible, "the bits are gone");
        client.sync().unwrap();
        assert_eq!(perm(&*service, &name), expected);
    }
}
