//! Full images, large files, and what costs no write.

use super::fixture::{device, e2fsck, mke2fs, mount, mount_with};
use vfs::{Ctx, Errno, Fallocate, FileSystem, Ino, XattrMode};

fn root() -> Ctx {
    Ctx::root()
}

#[test]
fn every_block_can_be_used_and_comes_back() {
    for args in [["-b", "1024"], ["-b", "4096"]] {
        let mounted = mount(mke2fs(&args, "8M"));
        let fs = &mounted.fs;
        let before = fs.statfs().unwrap();
        let file = fs.create(&root(), Ino::ROOT, b"large", 0o644).unwrap().ino;
        let chunk = vec![0xab; before.block_bytes as usize];
        let mut at = 0;
        loop {
            match fs.write(&root(), file, at, &chunk) {
                Ok(_) => at += chunk.len() as u64,
                Err(errno) => {
                    assert_eq!(errno, Errno::NOSPC);
                    break;
                }
            }
        }
        assert_eq!(fs.statfs().unwrap().blocks_free, 0);
        assert_eq!(fs.mkdir(&root(), Ino::ROOT, b"d", 0o755), Err(Errno::NOSPC));
        assert_eq!(
            fs.symlink(&root(), Ino::ROOT, b"s", &[b'x'; 200]),
            Err(Errno::NOSPC)
        );
        let set = fs.setxattr(&root(), file, b"user.a", b"1", XattrMode::Set);
        assert_eq!(set, Err(Errno::NOSPC));
        assert_eq!(fs.statfs().unwrap().inodes_free, before.inodes_free - 1);
        fs.forget(file, 1);
        fs.unlink(&root(), Ino::ROOT, b"large").unwrap();
        assert_eq!(fs.statfs().unwrap(), before);
        assert_eq!(fs.audit(), []);
        assert_eq!(e2fsck(&mounted.close()), None);
    }
}

#[test]
fn inodes_run_out() {
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "64"], "2M"));
    let fs = &mounted.fs;
    let mut made = 0;
    let last = loop {
        match fs.create(&root(), Ino::ROOT, format!("f{made}").as_bytes(), 0o644) {
            Ok(_) => made += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((last, fs.statfs().unwrap().inodes_free), (Errno::NOSPC, 0));
    assert!(made > 40, "{made}");
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// Triple indirect blocks, the feature `large_file`, holes.
#[test]
fn sparse_files_reach_far() {
    for args in [
        ["-b", "1024", "-O", "^large_file"],
        ["-b", "4096", "-O", "^large_file"],
    ] {
        let mounted = mount(mke2fs(&args, "8M"));
        let fs = &mounted.fs;
        let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
        let far = [5 << 10, 300 << 10, 70 << 20, 3 << 30, 9 << 30];
        for at in far {
            fs.write(&root(), file, at, b"data").unwrap();
        }
        let mut buf = [1; 8];
        for at in far {
            assert_eq!(fs.read(&root(), file, at - 4, &mut buf).unwrap(), 8);
            assert_eq!(&buf, b"\0\0\0\0data");
        }
        let end = fs
            .seek(&root(), file, 4 << 30, vfs::SeekKind::Data)
            .unwrap();
        assert_eq!(end, 9 << 30);
        fs.fallocate(&root(), file, Fallocate::PunchHole, 60 << 20, 4 << 30)
            .unwrap();
        assert_eq!(fs.audit(), []);
        fs.sync().unwrap();
        fs.truncate(&root(), file, 200 << 10).unwrap();
        assert_eq!(fs.audit(), []);
        let beyond = fs.write(&root(), file, 1 << 45, b"x");
        assert_eq!(beyond, Err(Errno::FBIG));
        fs.write(&root(), file, 8 << 30, b"x").unwrap();
        let device = mounted.device.clone();
        assert_eq!(e2fsck(&mounted.close()), None);
        let again = mount_with(device, 4096);
        let attr = again.fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(attr.size, (8 << 30) + 1);
        again.fs.forget(attr.ino, 1);
        again.fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(e2fsck(&again.close()), None);
    }
}

/// A large file is freed in several operations; the counts are right in between.
#[test]
fn large_files_go_piece_by_piece() {
    let mounted = mount(mke2fs(&["-b", "1024"], "32M"));
    let fs = &mounted.fs;
    let before = fs.statfs().unwrap();
    let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
    let data = vec![7; 20 << 20];
    fs.write(&root(), file, 0, &data).unwrap();
    fs.fallocate(&root(), file, Fallocate::PunchHole, 3 << 20, 5 << 20)
        .unwrap();
    fs.truncate(&root(), file, 2 << 20).unwrap();
    assert_eq!(fs.audit(), []);
    fs.open(&root(), file, vfs::OpenFlags::READ).unwrap();
    fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
    fs.forget(file, 1);
    assert!(fs.statfs().unwrap().blocks_free < before.blocks_free);
    fs.release(file);
    assert_eq!(fs.statfs().unwrap(), before);
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// Section 2.4: what is created and deleted before write-back is never written.
#[test]
fn what_comes_and_goes_costs_no_write_of_its_own() {
    let image = mke2fs(&["-b", "1024"], "8M");
    let mounted = mount_with(device(image), 4096);
    let fs = &mounted.fs;
    fs.mkdir(&root(), Ino::ROOT, b"d", 0o755).unwrap();
    fs.sync().unwrap();
    let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
    let writes = mounted.cache.stats().writes;
    for round in 0..20 {
        let name = format!("file{round}");
        let file = fs.create(&root(), dir, name.as_bytes(), 0o644).unwrap().ino;
        fs.write(&root(), file, 0, &[9; 3000]).unwrap();
        fs.forget(file, 1);
        fs.unlink(&root(), dir, name.as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    // The directory's own times.
    assert_eq!(mounted.cache.stats().writes, writes + 1);
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// What is open without a name at unmount is freed.
#[test]
fn orphans_go_at_unmount() {
    let mounted = mount(mke2fs(&["-b", "1024"], "8M"));
    let fs = &mounted.fs;
    for name in [&b"a"[..], b"b", b"c"] {
        let file = fs.create(&root(), Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(&root(), file, 0, &[1; 5000]).unwrap();
        fs.unlink(&root(), Ino::ROOT, name).unwrap();
    }
    fs.tmpfile(&root(), Ino::ROOT, 0o600).unwrap();
    fs.sync().unwrap();
    // A crash here leaves the list, which mounting works off.
    let crashed = mount(mounted.device.bytes());
    assert_eq!(crashed.fs.audit(), []);
    assert_eq!(e2fsck(&crashed.close()), None);
    assert_eq!(e2fsck(&mounted.close()), None);
}
