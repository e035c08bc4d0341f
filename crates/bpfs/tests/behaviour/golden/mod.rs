//! An image that an earlier program of version 1 made must open in all later ones.
//!
//! `v1.txt` holds the image as text ([`medium::text`]). The image was cut off after the commit of a
//! redo log record. It was made by [`make`] and is never made again: a change of the format needs a new
//! version and a new file.

use bpfs::format::{BLOCK, LOG_BLOCKS, LOG_SLOT, at};
use bpfs::{Bpfs, Error, MkfsOptions, Mode, MountOptions, check, mkfs, probe};
use medium::text::{decode, encode};
use medium::{MemoryPmem, Pmem};
use oracle::{ModelFs, Snapshot};
use std::sync::Arc;
use vfs::{
    Atime, Ctx, Errno, Fallocate, FileSystem, FileType, Ino, ManualClock, Name, SetAttr, SetTime,
    Timestamp, XattrMode,
};

const LEN: u64 = 1 << 20;
const V1: &str = include_str!("v1.txt");
/// The permission bits that the record of the redo log gives to `/log`.
const LOGGED_PERM: u32 = 0o640;

/// The image of `v1.txt`.
fn golden() -> MemoryPmem {
    decode(V1, LEN).expect("the text of an image")
}

fn options() -> MountOptions {
    MountOptions {
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000), 1_000)),
        ..MountOptions::default()
    }
}

/// Makes an instance of every structure of the format.
fn fill(fs: &dyn FileSystem) -> vfs::Result<()> {
    let cx = &Ctx::root();
    let root = Ino::ROOT;
    for (name, off) in [
        (&b"small"[..], 0),
        (b"two", BLOCK),
        (b"far", 2 << 20),
        (b"huge", 1 << 55),
    ] {
        let ino = fs.create(cx, root, name, 0o644)?.ino;
        fs.write(cx, ino, 0, b"head")?;
        fs.write(cx, ino, off, &[7; 100])?;
    }
    let holes = fs.create(cx, root, b"holes", 0o600)?.ino;
    fs.write(cx, holes, 0, &[1; 3 * BLOCK as usize])?;
    fs.fallocate(cx, holes, Fallocate::PunchHole, BLOCK, BLOCK)?;
    fs.truncate(cx, holes, 2 * BLOCK + 10)?;
    let dir = fs.mkdir(cx, root, b"dir", 0o1755)?.ino;
    let sub = fs.mkdir(cx, dir, b"sub", 0o700)?.ino;
    fs.link(cx, holes, sub, b"again")?;
    fs.symlink(cx, sub, b"link", b"../small")?;
    fs.mknod(
        cx,
        Name::new(sub, b"null"),
        FileType::CharDevice,
        0o666,
        0x103,
    )?;
    fs.mknod(
        cx,
        Name::new(sub, b"disk"),
        FileType::BlockDevice,
        0o660,
        0x800,
    )?;
    fs.mknod(cx, Name::new(sub, b"pipe"), FileType::Fifo, 0o666, 0)?;
    fs.mknod(cx, Name::new(sub, b"socket"), FileType::Socket, 0o666, 0)?;
    let wide = fs.mkdir(cx, root, b"wide", 0o755)?.ino;
    for n in 0..18 {
        fs.link(cx, holes, wide, format!("{n:0>250}").as_bytes())?;
    }
    fs.unlink(cx, wide, format!("{:0>250}", 3).as_bytes())?;
    fs.setxattr(cx, holes, b"user.one", b"value", XattrMode::Set)?;
    fs.setxattr(cx, holes, b"user.two", b"", XattrMode::Set)?;
    let logged = fs.create(cx, root, b"log", 0o644)?.ino;
    let set = SetAttr {
        uid: Some(1000),
        gid: Some(100),
        atime: Some(SetTime::At(Timestamp(-1))),
        mtime: Some(SetTime::At(Timestamp(1_700_000_000_123_456_789))),
        ctime: Some(Timestamp(1_600_000_000_000_000_000)),
        ..SetAttr::default()
    };
    fs.setattr(cx, logged, &set).map(|_| ())
}

/// Makes the image of `v1.txt`.
fn make() -> MemoryPmem {
    let pm = MemoryPmem::new(LEN);
    let o = MkfsOptions {
        uuid: *b"golden version 1",
        mode: Mode::Log,
        ..MkfsOptions::default()
    };
    mkfs(&pm, &o).expect("mkfs");
    let fs = Bpfs::open(&pm as &dyn Pmem, options()).expect("open");
    fill(&fs).expect("fill");
    let ino = fs
        .lookup(&Ctx::root(), Ino::ROOT, b"log")
        .expect("lookup")
        .ino;
    drop(fs);
    // The tree of the inode file is one block, block 7 since mkfs, unless inodes moved.
    let mut record = [0; 8];
    pm.read(pm.load(at::SUPER_ROOT).expect("root") * BLOCK, &mut record)
        .expect("record");
    let inodes = bpfs::format::HeightAddr(u64::from_le_bytes(record));
    assert_eq!(inodes.height(), 0);
    let word = u64::from(FileType::Regular.mode_bits() | LOGGED_PERM);
    let mut payload = Vec::new();
    payload.extend((inodes.block().addr() + (ino.0 - 1) * 128 + at::MODE).to_le_bytes());
    payload.extend(8u64.to_le_bytes());
    payload.extend(word.to_le_bytes());
    let slot = (2 + LOG_BLOCKS) * BLOCK - LOG_SLOT;
    pm.store(slot + 8, &payload);
    let header = u64::from(crc32fast::hash(&payload)) << 32 | payload.len() as u64;
    pm.store_word(slot, header);
    pm
}

/// The state after the calls in [`fill`] on a sound file system.
fn expected() -> Snapshot {
    let model = ModelFs::default();
    fill(&model).expect("fill");
    let cx = Ctx::root();
    let ino = model.lookup(&cx, Ino::ROOT, b"log").expect("lookup").ino;
    let set = SetAttr {
        perm: Some(LOGGED_PERM),
        ..SetAttr::default()
    };
    model.setattr(&cx, ino, &set).expect("setattr");
    Snapshot::take(&model).expect("snapshot")
}

#[test]
fn version_1_opens_with_all_that_it_held() {
    let pm = golden();
    let info = probe(&pm).expect("probe");
    assert_eq!((info.version, info.mode), (1, Mode::Log));
    assert_eq!(&info.uuid, b"golden version 1");
    assert_eq!(check(&pm).findings, []);
    let read_only = MountOptions {
        read_only: true,
        ..options()
    };
    let refused = Bpfs::open(&pm as &dyn Pmem, read_only).err();
    assert_eq!(refused, Some(Error::NeedsRecovery));

    let fs = Bpfs::open(&pm as &dyn Pmem, options()).expect("open");
    let tree = Snapshot::take(&fs).expect("snapshot");
    assert!(tree.is_same_except_times(&expected()), "{tree:#?}");
    let (_, times) = tree.get(b"/log").expect("/log");
    assert_eq!(times.atime, Timestamp(-1));
    assert_eq!(times.mtime, Timestamp(1_700_000_000_123_456_789));
    assert_eq!(times.ctime, Timestamp(1_600_000_000_000_000_000));
    assert_eq!(fs.audit(), []);
    drop(fs);
    assert_eq!(check(&pm).findings, []);
}

#[test]
fn version_1_can_be_changed_in_every_mode() {
    for mode in Mode::ALL {
        let pm = golden();
        let o = MountOptions {
            mode: Some(mode),
            ..options()
        };
        let fs = Bpfs::open(&pm as &dyn Pmem, o).expect("open");
        let cx = Ctx::root();
        let ino = fs.lookup(&cx, Ino::ROOT, b"huge").expect("lookup").ino;
        fs.write(&cx, ino, 4000, &[5; 200]).expect("write");
        fs.unlink(&cx, Ino::ROOT, b"small").expect("unlink");
        assert_eq!(fs.rmdir(&cx, Ino::ROOT, b"dir"), Err(Errno::NOTEMPTY));
        assert_eq!(fs.audit(), [], "mode {mode}");
        drop(fs);
        assert_eq!(check(&pm).findings, [], "mode {mode}");
    }
}

/// Today's calls still make the golden tree, so that it remains a valid reference.
#[test]
fn the_file_and_its_maker_agree() {
    let made = make();
    assert_eq!(encode(&golden()).expect("memory"), V1);
    let trees = [golden(), made].map(|pm| {
        let fs = Bpfs::open(&pm as &dyn Pmem, options()).expect("open");
        Snapshot::take(&fs).expect("snapshot")
    });
    assert!(trees[0].is_same_except_times(&trees[1]));
}
