//! A change of contents takes the set-id bits of the file of another user, as in the model. The service makes it, or a
//! client.

use super::clients::{client_of, service};
use crate::InPlace;
use oracle::ModelFs;
use vfs::perm::CAPABILITY;
use vfs::{Ctx, Errno, Fallocate, FileSystem, Ino, OpenFlags, SetAttr, XattrMode};

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

/// The names of the attributes of the first case's file.
fn attributes(fs: &dyn FileSystem, ino: Ino) -> Vec<Vec<u8>> {
    let mut names = fs.listxattr(&Ctx::root(), ino).unwrap();
    names.sort();
    names
}

/// Runs a change of a file with capabilities, and compares what is left.
fn must_drop(fs: &dyn FileSystem, beside: Option<&dyn FileSystem>, what: &str, change: Change) {
    for cx in [Ctx::root(), Ctx::user(USER, USER)] {
        let root = &Ctx::root();
        let file = fs.lookup(root, Ino::ROOT, b"0").unwrap().ino;
        fs.open(root, file, OpenFlags::WRITE).unwrap();
        let set = |name| fs.setxattr(root, file, name, b"value", XattrMode::Set);
        for others in [&[][..], &[&b"user.a"[..]]] {
            others.iter().for_each(|name| set(name).unwrap());
            set(CAPABILITY).unwrap();
            change(fs, &cx, file).unwrap();
            assert_eq!(attributes(fs, file), others, "{what} by {}", cx.uid);
            fs.sync().unwrap();
            beside.iter().for_each(|fs| {
                assert_eq!(attributes(*fs, file), others, "{what}, shipped");
            });
        }
        fs.removexattr(root, file, b"user.a").unwrap();
        fs.release(file);
        fs.forget(file, 1);
    }
}

#[test]
fn a_change_of_contents_or_owner_takes_capabilities() {
    let chown: Change = |fs, _, ino| {
        let set = SetAttr {
            uid: Some(USER),
            ..SetAttr::default()
        };
        fs.setattr(&Ctx::root(), ino, &set).map(drop)
    };
    for (what, change) in CHANGES.into_iter().chain([("a new owner", chown)]) {
        let alone = service(1_000);
        prepare(&*alone);
        must_drop(&*alone, None, what, change);
        let service = service(1_000);
        prepare(&*service);
        must_drop(&client_of(&service, 0, true), Some(&*service), what, change);
    }
}

/// A write in place changes no attributes.
#[test]
fn a_file_with_capabilities_is_not_written_in_place() {
    let service = service(1_000);
    prepare(&*service);
    let client = client_of(&service, 0, true);
    let cx = &Ctx::root();
    let file = client.lookup(cx, Ino::ROOT, b"0").unwrap().ino;
    let write = || client.write_in_place(cx, file, 0, b"new").unwrap();
    client.sync().unwrap();
    client
        .setxattr(cx, file, CAPABILITY, b"value", XattrMode::Set)
        .unwrap();
    assert_eq!(write(), InPlace::Impossible);
    client.removexattr(cx, file, CAPABILITY).unwrap();
    assert_ne!(write(), InPlace::Impossible);
}

/// On a mount of the super-user they would have an effect.
#[test]
fn a_client_of_a_user_gives_no_capabilities() {
    let service = service(1_000);
    let root = Ctx::root();
    let own = service.create(&root, Ino::ROOT, b"own", 0o755).unwrap().ino;
    let set = SetAttr {
        uid: Some(USER),
        gid: Some(USER),
        ..SetAttr::default()
    };
    service.setattr(&root, own, &set).unwrap();
    let client = client_of(&service, USER, false);
    for cx in [
        Ctx::user(USER, USER),
        Ctx {
            checked: true,
            ..Ctx::user(USER, USER)
        },
        root,
    ] {
        let file = client.lookup(&cx, Ino::ROOT, b"own").unwrap().ino;
        let given = client.setxattr(&cx, file, CAPABILITY, b"value", XattrMode::Set);
        let shipped = client.sync();
        assert!(given.and(shipped) == Err(Errno::PERM), "as {}", cx.uid);
        assert_eq!(attributes(&*service, own), Vec::<Vec<u8>>::new());
    }
}
