//! The model against the documentation of Linux for each call.

use super::*;
use vfs::ManualClock;

const BLOCK_USIZE: usize = BLOCK as usize;

/// A model whose clock ticks at each reading, so that every change shows in a time.
fn model() -> ModelFs {
    ModelFs::new(ModelOptions {
        clock: Arc::new(ManualClock::new(Timestamp(1_000), 1)),
        ..ModelOptions::default()
    })
}

fn small(capacity_bytes: u64) -> ModelFs {
    ModelFs::new(ModelOptions {
        capacity_bytes,
        ..ModelOptions::default()
    })
}

fn root() -> Ctx {
    Ctx::root()
}

fn make(fs: &ModelFs, name: &str) -> Ino {
    let attr = fs.create(&root(), Ino::ROOT, name.as_bytes(), 0o644);
    attr.unwrap().ino
}

fn make_dir(fs: &ModelFs, dir: Ino, name: &str) -> Ino {
    fs.mkdir(&root(), dir, name.as_bytes(), 0o755).unwrap().ino
}

fn attr(fs: &ModelFs, ino: Ino) -> Attr {
    fs.getattr(&root(), ino).unwrap()
}

fn rename(fs: &ModelFs, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<()> {
    let (name, new_name) = (from.1.as_bytes(), to.1.as_bytes());
    fs.rename(
        &root(),
        Name::new(from.0, name),
        Name::new(to.0, new_name),
        flags,
    )
}

fn names(fs: &ModelFs, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    };
    fs.readdir(&root(), dir, Cookie(0), &mut sink).unwrap();
    names
}

fn contents(fs: &ModelFs, ino: Ino) -> Vec<u8> {
    let mut buf = vec![1; attr(fs, ino).size as usize + 10];
    let len = fs.read(&root(), ino, 0, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

fn clean(fs: &ModelFs) {
    assert_eq!(fs.audit(), []);
}

#[test]
fn names_are_made_found_listed_and_removed() {
    let fs = model();
    let file = make(&fs, "f");
    let dir = make_dir(&fs, Ino::ROOT, "d");
    assert_eq!(names(&fs, Ino::ROOT), [".", "..", "f", "d"]);
    assert_eq!(fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino, file);
    assert_eq!(attr(&fs, Ino::ROOT).nlink, 3);
    assert_eq!(attr(&fs, dir).nlink, 2);
    let exists = fs.create(&root(), Ino::ROOT, b"f", 0o644);
    assert_eq!(exists, Err(Errno::EXIST));
    let within = fs.create(&root(), file, b"x", 0o644);
    assert_eq!(within, Err(Errno::NOTDIR));
    let remove = |name: &[u8]| fs.unlink(&root(), Ino::ROOT, name);
    assert_eq!(remove(b"d"), Err(Errno::ISDIR));
    assert_eq!(remove(b"none"), Err(Errno::NOENT));
    assert_eq!(fs.rmdir(&root(), Ino::ROOT, b"f"), Err(Errno::NOTDIR));
    assert_eq!(remove(b"f"), Ok(()));
    make_dir(&fs, dir, "sub");
    let rmdir = || fs.rmdir(&root(), Ino::ROOT, b"d");
    assert_eq!(rmdir(), Err(Errno::NOTEMPTY));
    fs.rmdir(&root(), dir, b"sub").unwrap();
    assert_eq!(rmdir(), Ok(()));
    assert_eq!(attr(&fs, Ino::ROOT).nlink, 2);
    assert_eq!(names(&fs, Ino::ROOT), [".", ".."]);
    clean(&fs);
}

#[test]
fn every_call_rejects_bad_names() {
    let fs = model();
    let long = vec![b'x'; 256];
    let bad: [(&[u8], Errno); 5] = [
        (b"", Errno::NOENT),
        (b".", Errno::INVAL),
        (b"..", Errno::INVAL),
        (b"a/b", Errno::INVAL),
        (&long, Errno::NAMETOOLONG),
    ];
    let (cx, dir) = (root(), Ino::ROOT);
    let file = make(&fs, "f");
    let flags = RenameFlags::empty();
    for (name, errno) in bad {
        assert_eq!(fs.lookup(&cx, dir, name).err(), Some(errno));
        assert_eq!(fs.create(&cx, dir, name, 0).err(), Some(errno));
        assert_eq!(fs.mkdir(&cx, dir, name, 0).err(), Some(errno));
        assert_eq!(fs.symlink(&cx, dir, name, b"t").err(), Some(errno));
        assert_eq!(fs.link(&cx, file, dir, name).err(), Some(errno));
        assert_eq!(fs.unlink(&cx, dir, name).err(), Some(errno));
        assert_eq!(fs.rmdir(&cx, dir, name).err(), Some(errno));
        assert_eq!(
            fs.rename(&cx, Name::new(dir, name), Name::new(dir, b"n"), flags)
                .err(),
            Some(errno)
        );
        assert_eq!(
            fs.rename(&cx, Name::new(dir, b"f"), Name::new(dir, name), flags)
                .err(),
            Some(errno)
        );
    }
    assert!(fs.create(&cx, dir, &long[..255], 0o644).is_ok());
}

#[test]
fn every_call_on_a_dead_inode_is_stale() {
    let fs = model();
    let (cx, dead) = (root(), Ino(99));
    let stale = Some(Errno::STALE);
    let everything = OpenFlags::empty();
    let kind = Fallocate::PunchHole;
    assert_eq!(fs.getattr(&cx, dead).err(), stale);
    assert_eq!(fs.setattr(&cx, dead, &SetAttr::default()).err(), stale);
    assert_eq!(fs.lookup(&cx, dead, b"x").err(), stale);
    assert_eq!(fs.readdir(&cx, dead, Cookie(0), &mut |_| true).err(), stale);
    assert_eq!(fs.create(&cx, dead, b"x", 0).err(), stale);
    assert_eq!(fs.link(&cx, dead, Ino::ROOT, b"x").err(), stale);
    assert_eq!(fs.open(&cx, dead, everything).err(), stale);
    assert_eq!(fs.read(&cx, dead, 0, &mut [0]).err(), stale);
    assert_eq!(fs.write(&cx, dead, 0, b"x").err(), stale);
    assert_eq!(fs.fallocate(&cx, dead, kind, 0, 1).err(), stale);
    assert_eq!(fs.seek(&cx, dead, 0, SeekKind::Data).err(), stale);
    assert_eq!(fs.fsync(&cx, dead, false).err(), stale);
    assert_eq!(fs.readlink(&cx, dead).err(), stale);
    assert_eq!(fs.listxattr(&cx, dead).err(), stale);
    fs.forget(dead, 7);
    fs.release(dead);
}

#[test]
fn nodes_of_every_type_can_be_made() {
    let fs = model();
    let (cx, dir) = (root(), Ino::ROOT);
    let mknod = |name: &[u8], kind| fs.mknod(&cx, Name::new(dir, name), kind, 0o1640, 0x0501);
    let device = mknod(b"c", FileType::CharDevice).unwrap();
    assert_eq!((device.rdev, device.perm), (0x0501, 0o1640));
    let fifo = mknod(b"p", FileType::Fifo).unwrap();
    assert_eq!((fifo.rdev, fifo.kind), (0, FileType::Fifo));
    assert_eq!(mknod(b"d", FileType::Directory).err(), Some(Errno::PERM));
    assert_eq!(mknod(b"s", FileType::Symlink).err(), Some(Errno::INVAL));
    let file = mknod(b"f", FileType::Regular).unwrap();
    assert_eq!(fs.write(&cx, file.ino, 0, b"data"), Ok(4));
    assert_eq!(fs.write(&cx, fifo.ino, 0, b"data"), Err(Errno::INVAL));
    assert_eq!(fs.read(&cx, fifo.ino, 0, &mut [0]), Err(Errno::INVAL));
    assert_eq!(fs.read(&cx, dir, 0, &mut [0]), Err(Errno::ISDIR));
    assert_eq!(fs.truncate(&cx, dir, 0), Err(Errno::ISDIR));
    assert_eq!(fs.readlink(&cx, file.ino), Err(Errno::INVAL));
    let user = Ctx::user(5, 5);
    let public = fs.mkdir(&cx, dir, b"pub", 0o777).unwrap().ino;
    let device = fs.mknod(
        &user,
        Name::new(public, b"b"),
        FileType::BlockDevice,
        0o600,
        1,
    );
    assert_eq!(device.err(), Some(Errno::PERM));
    assert!(
        fs.mknod(&user, Name::new(public, b"p"), FileType::Fifo, 0o600, 1)
            .is_ok()
    );
}

#[test]
fn symbolic_links_hold_their_target() {
    let fs = model();
    let make = |name: &[u8], target: &[u8]| fs.symlink(&root(), Ino::ROOT, name, target);
    let link = make(b"s", b"some/where").unwrap();
    assert_eq!((link.size, link.perm), (10, 0o777));
    assert_eq!(fs.readlink(&root(), link.ino).unwrap(), b"some/where");
    assert_eq!(make(b"t", b"").err(), Some(Errno::NOENT));
    assert_eq!(make(b"t", &[b'x'; 4096]).err(), Some(Errno::NAMETOOLONG));
    assert!(make(b"t", &[b'x'; 4095]).is_ok());
}

#[test]
fn references_keep_inodes_without_a_name() {
    let fs = model();
    let file = make(&fs, "f"); // one reference
    fs.lookup(&root(), Ino::ROOT, b"f").unwrap(); // two
    fs.open(&root(), file, OpenFlags::READ).unwrap(); // three
    fs.write(&root(), file, 0, b"still here").unwrap();
    fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
    assert_eq!(attr(&fs, file).nlink, 0);
    fs.forget(file, 2);
    assert_eq!(contents(&fs, file), b"still here");
    assert_ne!(
        fs.statfs().unwrap().blocks_free,
        fs.statfs().unwrap().blocks
    );
    fs.release(file);
    assert_eq!(fs.getattr(&root(), file), Err(Errno::STALE));
    assert_eq!(
        fs.statfs().unwrap().blocks_free,
        fs.statfs().unwrap().blocks
    );
    assert_eq!(fs.inodes(), 1);

    let dir = make_dir(&fs, Ino::ROOT, "d");
    fs.rmdir(&root(), Ino::ROOT, b"d").unwrap();
    let create = fs.create(&root(), dir, b"x", 0o644);
    assert_eq!(create.err(), Some(Errno::NOENT));
    fs.forget(dir, 100);
    assert_eq!(fs.inodes(), 1);
    clean(&fs);
}

#[test]
fn listings_give_references_only_for_accepted_names() {
    let fs = model();
    let file = make(&fs, "f");
    fs.forget(file, 1);
    let list = |accept: bool| {
        let mut sink = |entry: &DirEntry<'_>, _: Option<&Attr>| entry.cookie <= DOT_DOT || accept;
        fs.readdirplus(&root(), Ino::ROOT, Cookie(0), &mut sink)
            .unwrap();
    };
    list(true);
    list(false);
    fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
    assert_eq!(fs.inodes(), 2);
    fs.forget(file, 1);
    assert_eq!(fs.inodes(), 1);
}

/// A listing resumes where it stopped, although names were made and removed.
#[test]
fn cookies_stay_valid() {
    let fs = model();
    for name in ["a", "b", "c", "d"] {
        make(&fs, name);
    }
    let after = |start: Cookie| {
        let mut found = Vec::new();
        let mut sink = |entry: &DirEntry<'_>| {
            found.push((
                String::from_utf8_lossy(entry.name).into_owned(),
                entry.cookie,
            ));
            true
        };
        fs.readdir(&root(), Ino::ROOT, start, &mut sink).unwrap();
        found
    };
    let all = after(Cookie(0));
    let b = all[3].1;
    fs.unlink(&root(), Ino::ROOT, b"b").unwrap();
    fs.unlink(&root(), Ino::ROOT, b"a").unwrap();
    make(&fs, "e");
    let names: Vec<_> = after(b).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["c", "d", "e"]);
    assert_eq!(after(Cookie(u64::MAX)), []);
    assert_eq!(after(DOT)[0].0, "..");
}

#[test]
fn renames_check_types_and_ancestry() {
    let fs = model();
    let (top, none) = (Ino::ROOT, RenameFlags::empty());
    make(&fs, "f");
    make(&fs, "g");
    let a = make_dir(&fs, top, "a");
    let b = make_dir(&fs, a, "b");
    let e = make_dir(&fs, top, "e");
    let go = |from, to| rename(&fs, from, to, none);
    assert_eq!(go((top, "x"), (top, "y")), Err(Errno::NOENT));
    assert_eq!(go((top, "f"), (top, "f")), Ok(()));
    assert_eq!(go((top, "f"), (top, "e")), Err(Errno::ISDIR));
    assert_eq!(go((top, "e"), (top, "f")), Err(Errno::NOTDIR));
    assert_eq!(go((top, "e"), (top, "a")), Err(Errno::NOTEMPTY));
    assert_eq!(go((top, "a"), (b, "x")), Err(Errno::INVAL));
    assert_eq!(go((top, "a"), (a, "x")), Err(Errno::INVAL));
    assert_eq!(go((a, "b"), (top, "a")), Err(Errno::NOTEMPTY));
    let swap = |from, to| rename(&fs, from, to, RenameFlags::EXCHANGE);
    assert_eq!(swap((a, "b"), (top, "a")), Err(Errno::INVAL));
    assert_eq!(swap((top, "a"), (a, "b")), Err(Errno::INVAL));
    assert_eq!(swap((top, "f"), (top, "x")), Err(Errno::NOENT));
    let fresh = |from, to| rename(&fs, from, to, RenameFlags::NO_REPLACE);
    assert_eq!(fresh((top, "f"), (top, "g")), Err(Errno::EXIST));
    let both = RenameFlags::all();
    assert_eq!(rename(&fs, (top, "f"), (top, "g"), both), Err(Errno::INVAL));

    assert_eq!(go((a, "b"), (top, "e")), Ok(())); // over an empty directory
    assert_eq!((attr(&fs, a).nlink, attr(&fs, top).nlink), (2, 4));
    assert_eq!(attr(&fs, e).nlink, 0);
    assert_eq!(swap((top, "f"), (top, "e")), Ok(()));
    assert_eq!(swap((top, "f"), (top, "a")), Ok(()));
    assert_eq!(go((top, "e"), (top, "g")), Ok(()));
    assert_eq!(fresh((top, "g"), (b, "g")), Ok(()));
    assert_eq!(names(&fs, top), [".", "..", "f", "a"]);
    clean(&fs);
}

#[test]
fn rename_between_two_names_of_one_inode_does_nothing() {
    let fs = model();
    let file = make(&fs, "f");
    fs.link(&root(), file, Ino::ROOT, b"g").unwrap();
    let before = attr(&fs, file);
    for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
        let top = Ino::ROOT;
        assert_eq!(rename(&fs, (top, "f"), (top, "g"), flags), Ok(()));
    }
    assert_eq!(attr(&fs, file), before);
    assert_eq!(names(&fs, Ino::ROOT), [".", "..", "f", "g"]);
}

#[test]
fn links_count_names() {
    let fs = model();
    let file = make(&fs, "f");
    let dir = make_dir(&fs, Ino::ROOT, "d");
    let link = |ino, dir, name: &[u8]| fs.link(&root(), ino, dir, name);
    assert_eq!(link(file, dir, b"g").unwrap().nlink, 2);
    assert_eq!(link(file, dir, b"g"), Err(Errno::EXIST));
    assert_eq!(link(dir, Ino::ROOT, b"x"), Err(Errno::PERM));
    fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
    assert_eq!(attr(&fs, file).nlink, 1);
    fs.unlink(&root(), dir, b"g").unwrap();
    assert_eq!(link(file, dir, b"again"), Err(Errno::NOENT));
    let anonymous = fs.tmpfile(&root(), dir, 0o600).unwrap();
    assert_eq!(anonymous.nlink, 0);
    assert_eq!(link(anonymous.ino, dir, b"named").unwrap().nlink, 1);
    body_of(&fs, anonymous.ino, |body| body.nlink = u32::MAX);
    assert_eq!(link(anonymous.ino, dir, b"more"), Err(Errno::MLINK));
}

fn body_of(fs: &ModelFs, ino: Ino, f: impl FnOnce(&mut Body)) {
    f(&mut fs.node(ino).unwrap().body.write());
}

#[test]
fn sparse_data_reads_seeks_and_counts() {
    let fs = model();
    let file = make(&fs, "f");
    let (cx, far) = (root(), 1 << 48);
    assert_eq!(fs.write(&cx, file, 5000, b"abc"), Ok(3));
    assert_eq!(fs.write(&cx, file, far, b"end"), Ok(3));
    let now = attr(&fs, file);
    assert_eq!((now.size, now.blocks), (far + 3, 16));
    let mut buf = [9; 8];
    assert_eq!(fs.read(&cx, file, 4998, &mut buf), Ok(8));
    assert_eq!(&buf, b"\0\0abc\0\0\0");
    assert_eq!(fs.read(&cx, file, far, &mut buf), Ok(3));
    assert_eq!(fs.read(&cx, file, far + 3, &mut buf), Ok(0));
    let seek = |off, kind| fs.seek(&cx, file, off, kind);
    assert_eq!(seek(0, SeekKind::Data), Ok(4096));
    assert_eq!(seek(5001, SeekKind::Data), Ok(5001));
    assert_eq!(seek(8192, SeekKind::Data), Ok(far));
    assert_eq!(seek(0, SeekKind::Hole), Ok(0));
    assert_eq!(seek(4097, SeekKind::Hole), Ok(8192));
    assert_eq!(seek(far, SeekKind::Hole), Ok(far + 3));
    assert_eq!(seek(far + 3, SeekKind::Hole), Err(Errno::NXIO));
    assert_eq!(fs.write(&cx, file, SIZE_MAX, b"x"), Err(Errno::FBIG));
    assert_eq!(fs.write(&cx, file, u64::MAX, b"x"), Err(Errno::FBIG));
    assert_eq!(fs.truncate(&cx, file, SIZE_MAX), Ok(()));
    assert_eq!(seek(far + 4096, SeekKind::Data), Err(Errno::NXIO));
    clean(&fs);
}

#[test]
fn a_cut_tail_comes_back_as_zeros() {
    let fs = model();
    let file = make(&fs, "f");
    fs.write(&root(), file, 0, &[7; 10_000]).unwrap();
    fs.truncate(&root(), file, 5000).unwrap();
    assert_eq!(attr(&fs, file).blocks, 16);
    fs.truncate(&root(), file, 9000).unwrap();
    let data = contents(&fs, file);
    assert!(data[..5000].iter().all(|&byte| byte == 7));
    assert_eq!(data[5000..], [0; 4000]);
    clean(&fs);
}

#[test]
fn ranges_are_allocated_punched_and_zeroed() {
    let fs = model();
    let file = make(&fs, "f");
    let change = |kind, off, len| fs.fallocate(&root(), file, kind, off, len);
    let keep = Fallocate::Allocate { keep_size: true };
    let grow = Fallocate::Allocate { keep_size: false };
    assert_eq!(change(keep, 0, 20_000), Ok(()));
    assert_eq!((attr(&fs, file).size, attr(&fs, file).blocks), (0, 0));
    assert_eq!(change(grow, 4000, 200), Ok(()));
    assert_eq!((attr(&fs, file).size, attr(&fs, file).blocks), (4200, 16));
    fs.write(&root(), file, 0, &[7; 12_288]).unwrap();
    assert_eq!(change(Fallocate::PunchHole, 4000, 4288), Ok(()));
    assert_eq!(attr(&fs, file).blocks, 16);
    assert_eq!(
        change(Fallocate::ZeroRange { keep_size: true }, 10_000, 9000),
        Ok(())
    );
    let data = contents(&fs, file);
    let sevens = data.iter().enumerate().filter(|(_, byte)| **byte == 7);
    let sevens: Vec<_> = sevens.map(|(at, _)| at).collect();
    assert_eq!(sevens, (0..4000).chain(8288..10_000).collect::<Vec<_>>());
    assert_eq!(data.len(), 12_288);
    assert_eq!(
        change(Fallocate::ZeroRange { keep_size: false }, 4096, 16_384),
        Ok(())
    );
    assert_eq!((attr(&fs, file).size, attr(&fs, file).blocks), (20_480, 40));
    assert_eq!(change(Fallocate::PunchHole, 100, 50), Ok(()));
    assert_eq!(
        contents(&fs, file)[99..151],
        [&[7], &[0; 50][..], &[7]].concat()
    );
    assert_eq!(change(grow, 5, 0), Err(Errno::INVAL));
    assert_eq!(change(grow, SIZE_MAX, 1), Err(Errno::FBIG));
    let dir = fs.fallocate(&root(), Ino::ROOT, grow, 0, 1);
    assert_eq!(dir, Err(Errno::ISDIR));
    clean(&fs);
}

#[test]
fn a_full_file_system_changes_nothing() {
    let fs = small(3 * BLOCK);
    let file = make(&fs, "f");
    fs.write(&root(), file, 0, &[1; 4096]).unwrap();
    let before = attr(&fs, file);
    let full = Err(Errno::NOSPC);
    assert_eq!(fs.write(&root(), file, 4000, &[2; 12_000]), full);
    let keep = Fallocate::Allocate { keep_size: true };
    assert_eq!(
        fs.fallocate(&root(), file, keep, 0, 16_384).err(),
        full.err()
    );
    let huge = Fallocate::Allocate { keep_size: false };
    let most = fs.fallocate(&root(), file, huge, 0, SIZE_MAX);
    assert_eq!(most.err(), full.err());
    assert_eq!(attr(&fs, file), before);
    assert_eq!(contents(&fs, file), [1; 4096]);
    assert_eq!(fs.write(&root(), file, 4096, &[2; 8192]), Ok(8192));
    assert_eq!(fs.statfs().unwrap().blocks_free, 0);
    let xattr = fs.setxattr(&root(), file, b"user.a", b"", XattrMode::Set);
    assert_eq!(xattr.err(), full.err());
    fs.open(&root(), file, OpenFlags::WRITE | OpenFlags::TRUNCATE)
        .unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, 3);
    assert_eq!(attr(&fs, file).size, 0);
    clean(&fs);
}

#[test]
fn attributes_fit_one_block() {
    let fs = model();
    let file = make(&fs, "f");
    let set =
        |name: &[u8], len: usize, mode| fs.setxattr(&root(), file, name, &vec![b'v'; len], mode);
    let plain = XattrMode::Set;
    assert_eq!(set(b"user.a", 10, XattrMode::Replace), Err(Errno::NODATA));
    assert_eq!(set(b"user.a", 10, XattrMode::Create), Ok(()));
    assert_eq!(set(b"user.a", 10, XattrMode::Create), Err(Errno::EXIST));
    assert_eq!(set(b"", 1, plain), Err(Errno::RANGE));
    assert_eq!(set(&[b'n'; 256], 1, plain), Err(Errno::RANGE));
    assert_eq!(set(b"user.b", 65_537, plain), Err(Errno::TOOBIG));
    assert_eq!(set(b"user.b", 65_536, plain), Err(Errno::NOSPC));
    // 16 + (8 + 6 + 10) and then 8 + 6 + value up to 4096.
    let rest = BLOCK_USIZE - 16 - 24 - 8 - 6;
    assert_eq!(set(b"user.b", rest + 1, plain), Err(Errno::NOSPC));
    assert_eq!(set(b"user.b", rest, plain), Ok(()));
    assert_eq!(set(b"user.a", 11, plain), Err(Errno::NOSPC));
    assert_eq!(set(b"user.a", 3, XattrMode::Replace), Ok(()));
    assert_eq!(fs.getxattr(&root(), file, b"user.a").unwrap(), b"vvv");
    assert_eq!(fs.listxattr(&root(), file).unwrap().len(), 2);
    assert_eq!(attr(&fs, file).blocks, 8);
    let remove = |name: &[u8]| fs.removexattr(&root(), file, name);
    assert_eq!(remove(b"user.a"), Ok(()));
    assert_eq!(remove(b"user.a"), Err(Errno::NODATA));
    assert_eq!(remove(b"user.b"), Ok(()));
    assert_eq!(fs.getxattr(&root(), file, b"user.b"), Err(Errno::NODATA));
    assert_eq!(attr(&fs, file).blocks, 0);
    clean(&fs);
}

#[test]
fn permissions_are_checked_unless_the_caller_did() {
    let fs = model();
    let user = Ctx::user(5, 5);
    let file = make(&fs, "f");
    let shut = fs.mkdir(&root(), Ino::ROOT, b"shut", 0o700).unwrap().ino;
    let denied = Some(Errno::ACCESS);
    assert_eq!(fs.create(&user, Ino::ROOT, b"x", 0o644).err(), denied);
    assert_eq!(
        fs.create(&user, Ino::ROOT, b"f", 0).err(),
        Some(Errno::EXIST)
    );
    assert_eq!(fs.unlink(&user, Ino::ROOT, b"f").err(), denied);
    assert_eq!(fs.lookup(&user, shut, b"x").err(), denied);
    assert_eq!(
        fs.readdir(&user, shut, Cookie(0), &mut |_| true).err(),
        denied
    );
    assert_eq!(fs.open(&user, file, OpenFlags::WRITE).err(), denied);
    assert_eq!(fs.open(&user, file, OpenFlags::READ), Ok(()));
    assert_eq!(fs.truncate(&user, file, 0).err(), denied);
    assert_eq!(fs.tmpfile(&user, Ino::ROOT, 0o600).err(), denied);
    let set = fs.setxattr(&user, file, b"user.a", b"1", XattrMode::Set);
    assert_eq!(set.err(), denied);
    let checked = Ctx {
        checked: true,
        ..user
    };
    let made = fs.create(&checked, Ino::ROOT, b"x", 0o4755).unwrap();
    assert_eq!((made.uid, made.gid, made.perm), (5, 5, 0o4755));
}

#[test]
fn access_times_follow_the_policy() {
    let day = 24 * 60 * 60 * 1_000_000_000;
    for (policy, expected) in [
        (Atime::Never, [1000, 1000, 1000]),
        (Atime::Relative, [2000, 2000, 2000 + day]),
        (Atime::Strict, [2000, 3000, 2000 + day]),
    ] {
        let clock = Arc::new(ManualClock::new(Timestamp(1000), 0));
        let fs = ModelFs::new(ModelOptions {
            clock: clock.clone(),
            atime: policy,
            ..ModelOptions::default()
        });
        let file = make(&fs, "f");
        fs.write(&root(), file, 0, b"x").unwrap();
        for (now, atime) in [2000, 3000, 2000 + day].into_iter().zip(expected) {
            clock.set(Timestamp(now));
            fs.read(&root(), file, 0, &mut [0; 4]).unwrap();
            assert_eq!(attr(&fs, file).atime.0, atime, "{policy:?} at {now}");
        }
    }
}

#[test]
fn times_are_set_as_requested() {
    let fs = model();
    let file = make(&fs, "f");
    let set = SetAttr {
        atime: Some(SetTime::At(Timestamp(-5))),
        mtime: Some(SetTime::Now),
        ctime: Some(Timestamp(77)),
        ..SetAttr::default()
    };
    let now = fs.setattr(&root(), file, &set).unwrap();
    assert_eq!((now.atime.0, now.ctime.0), (-5, 77));
    assert!(now.mtime.0 >= 1000);
    let nothing = fs.setattr(&root(), file, &SetAttr::default()).unwrap();
    assert_eq!(nothing, now);
}

#[test]
fn a_fork_is_independent() {
    let fs = model();
    let file = make(&fs, "f");
    fs.write(&root(), file, 0, b"common").unwrap();
    let fork = fs.fork();
    fs.write(&root(), file, 0, b"change").unwrap();
    fork.unlink(&root(), Ino::ROOT, b"f").unwrap();
    make(&fork, "other");
    assert_eq!(contents(&fork, file), b"common");
    assert_eq!(contents(&fs, file), b"change");
    assert_eq!(names(&fs, Ino::ROOT), [".", "..", "f"]);
    fork.forget(file, 1);
    assert_eq!(fork.getattr(&root(), file), Err(Errno::STALE));
    clean(&fs);
    clean(&fork);
}

/// Threads that rename, list, write and remove in the same few directories neither
/// deadlock nor break an invariant.
#[test]
fn threads_leave_a_sound_tree() {
    use crate::script::{State, generate, run};
    let fs = model();
    run(&fs, &mut State::default(), &generate::setup());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                let mut state = State::default();
                for part in 0..10 {
                    run(fs, &mut state, &generate::random(seed * 10 + part, 200));
                    let count = |_: &DirEntry<'_>, _: Option<&Attr>| false;
                    fs.readdirplus(&root(), Ino::ROOT, Cookie(0), &mut { count })
                        .unwrap();
                }
                state.close_all(fs);
            });
        }
    });
    clean(&fs);
    crate::Snapshot::take(&fs).unwrap();
}

fn entries_of(fs: &ModelFs, dir: Ino, f: impl FnOnce(&mut Directory)) {
    body_of(fs, dir, |body| match &mut body.content {
        Content::Directory(entries) => f(entries),
        _ => panic!("{dir} is not a directory"),
    });
}

/// A snapshot of a broken tree ends, and names the fault.
#[test]
fn snapshots_of_broken_trees_end() {
    let broken = |f: &dyn Fn(&ModelFs, Ino)| {
        let fs = model();
        let dir = make_dir(&fs, Ino::ROOT, "d");
        f(&fs, dir);
        assert_ne!(fs.audit(), [], "the audit sees it, too");
        crate::Snapshot::take(&fs).unwrap_err().to_string()
    };
    let directory = FileType::Directory;
    let cycle = broken(&|fs, dir| {
        entries_of(fs, dir, |entries| {
            entries.set(b"loop", Ino::ROOT, directory)
        });
    });
    assert_eq!(cycle, "/d/loop: a directory with two names");
    let doubled = broken(&|fs, dir| {
        entries_of(fs, Ino::ROOT, |entries| entries.set(b"e", dir, directory));
    });
    assert_eq!(doubled, "/e: a directory with two names");
    let other_type = broken(&|fs, dir| {
        entries_of(fs, Ino::ROOT, |entries| {
            entries.set(b"d", dir, FileType::Fifo)
        });
    });
    assert!(other_type.starts_with("/d: "), "{other_type}");
    let astray = broken(&|fs, dir| entries_of(fs, dir, |entries| entries.parent = dir));
    assert!(astray.starts_with("/d: `.` and `..`"), "{astray}");
    let without_links = broken(&|fs, dir| body_of(fs, dir, |body| body.nlink = 0));
    assert!(without_links.starts_with("/d: "), "{without_links}");
}
