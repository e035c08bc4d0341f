//! The blocks that the superblock keeps for the super-user and his like.

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
fn reserved_blocks_are_for_those_whom_the_superblock_names() {
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
    // An indirect block may be what no longer fits.
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
