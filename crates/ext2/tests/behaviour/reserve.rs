//! The blocks that the superblock reserves for the super-user.

use super::fixture::{debugfs, e2fsck, mke2fs, mount};
use vfs::{Ctx, Errno, FileSystem, Ino, XattrMode};

const BLOCK: u64 = 1024;

/// A caller as the kernel presents it: permissions are checked already.
fn caller(uid: u32, gid: u32) -> Ctx {
    Ctx {
        checked: true,
        ..Ctx::user(uid, gid)
    }
}

#[test]
fn reserved_blocks_are_for_the_user_and_group_in_the_superblock() {
    let mut image = mke2fs(&["-b", "1024", "-m", "10"], "4M");
    for command in ["ssv def_resuid 77", "ssv def_resgid 88"] {
        (image, _) = debugfs(&image, command);
    }
    let mounted = mount(image);
    let fs = &mounted.fs;
    let before = fs.statfs().unwrap();
    let reserved = before.blocks_free - before.blocks_avail;
    assert_eq!(reserved, 4096 / 10);
    let file = fs.create(&Ctx::root(), Ino::ROOT, b"f", 0o666).unwrap().ino;
    let mut size = 0;
    let mut fill = |cx: &Ctx| {
        while fs.write(cx, file, size, &[7; BLOCK as usize]).is_ok() {
            size += BLOCK;
        }
        fs.statfs().unwrap().blocks_free
    };
    let anyone = caller(1000, 1000);
    let left = fill(&anyone);
    // An indirect block may be the one that does not fit.
    assert!((reserved..=reserved + 2).contains(&left), "{left}");
    assert!(fs.statfs().unwrap().blocks_avail <= 2);
    fill(&anyone);
    let full = |cx: &Ctx| {
        let large = fs.symlink(cx, Ino::ROOT, b"s", &[b'x'; 200]).map(drop);
        let set = fs.setxattr(cx, file, b"user.a", b"1", XattrMode::Set);
        let made = fs.mkdir(cx, Ino::ROOT, b"d", 0o755).map(drop);
        let grown = fs.fallocate(
            cx,
            file,
            vfs::Fallocate::Allocate { keep_size: false },
            0,
            8 << 20,
        );
        [large, set, made, grown].map(|done| done == Err(Errno::NOSPC))
    };
    while fs.statfs().unwrap().blocks_avail > 0 {
        let free = fs.statfs().unwrap().blocks_free;
        let name = free.to_string();
        fs.mkdir(&anyone, Ino::ROOT, name.as_bytes(), 0o755)
            .unwrap();
    }
    assert_eq!(full(&anyone), [true; 4]);
    let free = || fs.statfs().unwrap().blocks_free;
    assert_eq!(free(), reserved);
    for (uid, gid) in [(77, 1), (1000, 88), (0, 0)] {
        let before = free();
        fs.write(&caller(uid, gid), file, size, &[7; BLOCK as usize])
            .unwrap();
        size += BLOCK;
        assert!(free() < before);
    }
    assert_eq!(fs.audit(), []);
    assert_eq!(e2fsck(&mounted.close()), None);
}

#[test]
fn a_directory_that_cannot_grow_beside_the_reserve_takes_nothing() {
    let mounted = mount(mke2fs(&["-b", "1024", "-m", "10"], "4M"));
    let fs = &mounted.fs;
    let anyone = caller(1000, 1000);
    let dir = fs.mkdir(&Ctx::root(), Ino::ROOT, b"d", 0o777).unwrap().ino;
    let size = || fs.getattr(&anyone, dir).unwrap().size;
    let make = |n: u32| {
        let name = format!("{n:0255}");
        fs.create(&anyone, dir, name.as_bytes(), 0o644)
    };
    let mut made = 0;
    while size() < 12 * BLOCK {
        make(made).unwrap();
        made += 1;
    }
    // Up to the last block that is not reserved. A file takes most blocks, and each directory one.
    let avail = fs.statfs().unwrap().blocks_avail;
    let file = fs.create(&anyone, dir, b"file", 0o644).unwrap().ino;
    let most = vec![7; ((avail - 30) * BLOCK) as usize];
    fs.write(&anyone, file, 0, &most).unwrap();
    for n in 0..fs.statfs().unwrap().blocks_avail - 1 {
        let name = n.to_string();
        fs.mkdir(&anyone, Ino::ROOT, name.as_bytes(), 0o755)
            .unwrap();
    }
    // The 13th block needs an indirect block as well.
    let free = fs.statfs().unwrap().blocks_free;
    assert_eq!(fs.statfs().unwrap().blocks_avail, 1);
    let refused = (made..made + 4).find_map(|n| make(n).err());
    assert_eq!(refused, Some(Errno::NOSPC));
    assert_eq!(size(), 12 * BLOCK);
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    fs.create(&Ctx::root(), dir, &[b'x'; 255], 0o644).unwrap();
    assert_eq!(size(), 13 * BLOCK);
    assert_eq!(fs.audit(), []);
    assert_eq!(e2fsck(&mounted.close()), None);
}
