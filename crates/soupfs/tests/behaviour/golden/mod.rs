//! An image that an earlier program of version 1 made must open in all later ones.
//!
//! `v1.txt` holds the image as text ([`medium::text`]). Its mount did not end: links of its latest
//! view are there, which mean nothing any more. It was made by [`make`] and is never made again: a
//! change of the format needs a new version and a new file.

use medium::MemoryPmem;
use medium::text::{decode, encode};
use oracle::{ModelFs, Snapshot};
use soupfs::format::{MIN_PAGES, PAGE};
use soupfs::{Atime, MkfsOptions, Mode, MountOptions, check, mkfs, probe};
use std::sync::Arc;
use vfs::{
    Ctx, Errno, Fallocate, FileSystem, FileType, Ino, ManualClock, Name, SetAttr, SetTime,
    Timestamp, XattrMode,
};

const LEN: u64 = MIN_PAGES * PAGE;
const V1: &str = include_str!("v1.txt");
const UUID: [u8; 16] = *b"golden version 1";

/// The image of `v1.txt`.
fn golden() -> MemoryPmem {
    decode(V1, LEN).expect("the text of an image")
}

fn options() -> MountOptions {
    MountOptions {
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000), 1_000)),
        bound_s: None,
        ..MountOptions::default()
    }
}

/// Makes an instance of every structure of the format.
fn fill(fs: &dyn FileSystem) -> vfs::Result<()> {
    let cx = &Ctx::root();
    let root = Ino::ROOT;
    // Trees of several heights.
    for (name, off) in [
        (&b"small"[..], 0),
        (b"two", PAGE),
        (b"far", 2 << 20),
        (b"huge", 1 << 50),
    ] {
        let ino = fs.create(cx, root, name, 0o644)?.ino;
        fs.write(cx, ino, 0, b"head")?;
        fs.write(cx, ino, off, &[7; 100])?;
    }
    let holes = fs.create(cx, root, b"holes", 0o600)?.ino;
    fs.write(cx, holes, 0, &[1; 3 * PAGE as usize])?;
    fs.fallocate(cx, holes, Fallocate::PunchHole, PAGE, PAGE)?;
    fs.truncate(cx, holes, 2 * PAGE + 10)?;
    let dir = fs.mkdir(cx, root, b"dir", 0o1755)?.ino;
    let sub = fs.mkdir(cx, dir, b"sub", 0o700)?.ino;
    fs.link(cx, holes, sub, b"again")?;
    fs.symlink(cx, sub, b"link", b"../small")?;
    fs.symlink(cx, sub, b"long", &[b'x'; 200])?;
    for (name, kind, rdev) in [
        (&b"null"[..], FileType::CharDevice, 0x103),
        (b"disk", FileType::BlockDevice, 0x800),
        (b"pipe", FileType::Fifo, 0),
        (b"socket", FileType::Socket, 0),
    ] {
        fs.mknod(cx, Name::new(sub, name), kind, 0o660, rdev)?;
    }
    // Names of more than a line, and chains that are split.
    let wide = fs.mkdir(cx, root, b"wide", 0o755)?.ino;
    for n in 0..40 {
        fs.link(cx, holes, wide, format!("{n}").as_bytes())?;
    }
    for n in 0..4 {
        fs.link(cx, holes, wide, format!("{n:0>250}").as_bytes())?;
    }
    fs.setxattr(cx, holes, b"user.one", b"value", XattrMode::Set)?;
    fs.setxattr(cx, holes, b"user.two", b"", XattrMode::Set)?;
    let timed = fs.create(cx, root, b"timed", 0o640)?.ino;
    let set = SetAttr {
        uid: Some(1000),
        gid: Some(100),
        atime: Some(SetTime::At(Timestamp(-1))),
        mtime: Some(SetTime::At(Timestamp(1_700_000_000_123_456_789))),
        ctime: Some(Timestamp(1_600_000_000_000_000_000)),
        ..SetAttr::default()
    };
    fs.setattr(cx, timed, &set).map(|_| ())
}

/// Makes the image of `v1.txt`.
fn make() -> MemoryPmem {
    let pm = MemoryPmem::new(LEN);
    let o = MkfsOptions {
        uuid: UUID,
        ..MkfsOptions::default()
    };
    mkfs(&pm, &o).expect("mkfs");
    let pm = Arc::new(pm);
    let fs = crate::open(Arc::clone(&pm), options()).expect("open");
    fill(&fs).expect("fill");
    fs.sync().expect("sync");
    // These change the latest view only.
    let cx = Ctx::root();
    let dir = fs.lookup(&cx, Ino::ROOT, b"wide").expect("lookup").ino;
    fs.create(&cx, dir, b"lost", 0o644).expect("create");
    fs.unlink(&cx, dir, b"7").expect("unlink");
    drop(fs);
    Arc::into_inner(pm).expect("the mount is over")
}

/// The state after the calls in [`fill`].
fn expected() -> Snapshot {
    let model = ModelFs::default();
    fill(&model).expect("fill");
    Snapshot::take(&model).expect("snapshot")
}

#[test]
fn version_1_opens_with_all_that_was_persistent() {
    let pm = Arc::new(golden());
    let info = probe(&*pm).expect("probe");
    assert_eq!((info.version, info.uuid), (1, UUID));
    assert!(!info.is_unmounted);
    assert_eq!(check(&*pm).findings, []);
    for read_only in [true, false] {
        let options = MountOptions {
            read_only,
            ..options()
        };
        let fs = crate::open(Arc::clone(&pm), options).expect("open");
        let tree = Snapshot::take(&fs).expect("snapshot");
        let expected = expected();
        assert!(
            tree.is_same_except_times(&expected),
            "{:#?}",
            tree.diff(&expected)
        );
        let (_, times) = tree.get(b"/timed").expect("/timed");
        assert_eq!(times.atime, Timestamp(-1));
        assert_eq!(times.mtime, Timestamp(1_700_000_000_123_456_789));
        assert_eq!(times.ctime, Timestamp(1_600_000_000_000_000_000));
    }
}

#[test]
fn version_1_can_be_changed_in_every_mode() {
    for mode in Mode::ALL {
        let pm = Arc::new(golden());
        let o = MountOptions { mode, ..options() };
        let fs = crate::open(Arc::clone(&pm), o).expect("open");
        let cx = Ctx::root();
        let ino = fs.lookup(&cx, Ino::ROOT, b"huge").expect("lookup").ino;
        fs.write(&cx, ino, 4000, &[5; 200]).expect("write");
        fs.unlink(&cx, Ino::ROOT, b"small").expect("unlink");
        assert_eq!(fs.rmdir(&cx, Ino::ROOT, b"dir"), Err(Errno::NOTEMPTY));
        let wide = fs.lookup(&cx, Ino::ROOT, b"wide").expect("lookup").ino;
        fs.unlink(&cx, wide, b"7").expect("unlink");
        fs.create(&cx, wide, b"new", 0o644).expect("create");
        let there = Snapshot::take(&fs).expect("snapshot");
        fs.close().expect("close");
        assert_eq!(check(&*pm).findings, [], "mode {mode}");
        let again = crate::open(pm, options()).expect("open");
        assert!(
            there == Snapshot::take(&again).expect("snapshot"),
            "mode {mode}"
        );
    }
}

/// Today's calls still make the golden tree, so that it remains a valid reference.
#[test]
fn the_file_and_its_maker_agree() {
    assert_eq!(encode(&golden()).expect("memory"), V1);
    let trees = [golden(), make()].map(|pm| {
        let fs = crate::open(Arc::new(pm), options()).expect("open");
        Snapshot::take(&fs).expect("snapshot")
    });
    assert!(trees[0].is_same_except_times(&trees[1]));
}
