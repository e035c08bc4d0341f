//! The inode flags of chattr(1) that another program has set.

use super::fixture::{debugfs, device, e2fsck, mke2fs, mount, mount_with};
use vfs::{
    Ctx, Errno, Fallocate, FileFlags, FileSystem, Ino, Name, OpenFlags, RenameFlags, SetAttr,
    SetTime, XattrMode,
};

fn root() -> Ctx {
    Ctx::root()
}

/// An image with a file `f` of five bytes, a directory `d` with a file `in`, and a file `plain`.
/// `flags` are set on `f` and `d`.
fn image(flags: u32) -> Vec<u8> {
    let mounted = mount(mke2fs(&["-b", "1024"], "4M"));
    let fs = &mounted.fs;
    let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&root(), file, 0, b"hello").unwrap();
    fs.create(&root(), Ino::ROOT, b"plain", 0o644).unwrap();
    let dir = fs.mkdir(&root(), Ino::ROOT, b"d", 0o755).unwrap().ino;
    fs.create(&root(), dir, b"in", 0o644).unwrap();
    let mut image = mounted.close();
    for name in ["f", "d"] {
        (image, _) = debugfs(&image, &format!("sif {name} flags {flags:#x}"));
    }
    image
}

fn touch(which: SetTime) -> SetAttr {
    SetAttr {
        atime: Some(which),
        mtime: Some(which),
        ..SetAttr::default()
    }
}

const PERM: Option<Errno> = Some(Errno::PERM);

/// Flags that forbid changes bind the super-user, too.
#[test]
fn immutable_and_append_only_files_stay() {
    for flags in [0x10, 0x20] {
        let append = flags == 0x20;
        let mounted = mount(image(flags));
        let fs = &mounted.fs;
        let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
        let chmod = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        let refused = [
            fs.write(&root(), file, 0, b"x").err(),
            fs.truncate(&root(), file, 0).err(),
            fs.truncate(&root(), file, 100).err(),
            fs.open(&root(), file, OpenFlags::WRITE | OpenFlags::TRUNCATE)
                .err(),
            fs.fallocate(&root(), file, Fallocate::PunchHole, 0, 3)
                .err(),
            fs.setattr(&root(), file, &chmod).err(),
            fs.setattr(&root(), file, &touch(SetTime::At(vfs::Timestamp(7))))
                .err(),
            fs.setxattr(&root(), file, b"user.a", b"1", XattrMode::Set)
                .err(),
            fs.link(&root(), file, Ino::ROOT, b"l").err(),
            fs.unlink(&root(), Ino::ROOT, b"f").err(),
            fs.rename(
                &root(),
                Name::new(Ino::ROOT, b"f"),
                Name::new(Ino::ROOT, b"g"),
                RenameFlags::empty(),
            )
            .err(),
            fs.rename(
                &root(),
                Name::new(Ino::ROOT, b"plain"),
                Name::new(Ino::ROOT, b"f"),
                RenameFlags::empty(),
            )
            .err(),
        ];
        assert_eq!(refused, [PERM; 12], "{flags:#x}");
        let allowed = (!append).then_some(Errno::PERM);
        assert_eq!(
            fs.setattr(&root(), file, &touch(SetTime::Now)).err(),
            allowed
        );
        assert_eq!(fs.write(&root(), file, 5, b" world").err(), allowed);
        let keep = Fallocate::Allocate { keep_size: false };
        assert_eq!(fs.fallocate(&root(), file, keep, 0, 3000).err(), allowed);
        assert_eq!(fs.open(&root(), file, OpenFlags::READ).err(), None);
        assert_eq!(e2fsck(&mounted.close()), None);
    }
}

#[test]
fn names_of_immutable_and_append_only_directories_stay() {
    for flags in [0x10, 0x20] {
        let append = flags == 0x20;
        let mounted = mount(image(flags));
        let fs = &mounted.fs;
        let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
        let plain = fs.lookup(&root(), Ino::ROOT, b"plain").unwrap().ino;
        let none = RenameFlags::empty();
        let refused = [
            fs.unlink(&root(), dir, b"in").err(),
            fs.rename(
                &root(),
                Name::new(dir, b"in"),
                Name::new(Ino::ROOT, b"out"),
                none,
            )
            .err(),
            fs.rename(
                &root(),
                Name::new(Ino::ROOT, b"plain"),
                Name::new(dir, b"in"),
                none,
            )
            .err(),
            fs.rmdir(&root(), Ino::ROOT, b"d").err(),
        ];
        // An rmdir of a directory with names could fail for another reason.
        assert_eq!(refused, [PERM; 4], "{flags:#x}");
        let allowed = (!append).then_some(Errno::PERM);
        assert_eq!(fs.create(&root(), dir, b"new", 0o644).err(), allowed);
        assert_eq!(fs.link(&root(), plain, dir, b"link").err(), allowed);
        assert_eq!(e2fsck(&mounted.close()), None);
    }
}

#[test]
fn flags_are_handed_down_as_the_kernel_does() {
    // S, d, A, D and a on the directory.
    let mounted = mount(image(0x8 | 0x40 | 0x80 | 0x1_0000 | 0x20));
    let fs = &mounted.fs;
    let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
    let file = fs.create(&root(), dir, b"file", 0o644).unwrap();
    let link = fs.symlink(&root(), dir, b"link", b"target").unwrap();
    let below = fs.mkdir(&root(), dir, b"below", 0o755).unwrap();
    assert_eq!(file.flags, FileFlags::SYNC | FileFlags::NOATIME);
    assert_eq!(link.flags, FileFlags::NOATIME);
    let all = FileFlags::SYNC | FileFlags::DIRSYNC | FileFlags::NOATIME;
    assert_eq!(below.flags, all);
    let image = mounted.close();
    assert_eq!(e2fsck(&image), None);
    let (_, said) = debugfs(&image, "stat d/file");
    assert!(said.contains("Flags: 0xc8"), "{said}");
}

#[test]
fn synchronous_inodes_are_durable_when_the_call_returns() {
    // S, and D on the directory alone.
    for flags in [0x8, 0x1_0000] {
        let mounted = mount_with(device(image(flags)), 4096);
        let fs = &mounted.fs;
        let find = |name| fs.lookup(&root(), Ino::ROOT, name).unwrap().ino;
        let (file, dir) = (find(&b"f"[..]), find(b"d"));
        fs.write(&root(), file, 0, b"HELLO").unwrap();
        fs.create(&root(), dir, b"new", 0o644).unwrap();
        fs.unlink(&root(), dir, b"in").unwrap();
        let crashed = mount(mounted.device.bytes());
        let fs = &crashed.fs;
        let mut text = [0; 5];
        let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
        fs.read(&root(), file, 0, &mut text).unwrap();
        let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
        assert_eq!(&text == b"HELLO", flags == 0x8);
        assert!(fs.lookup(&root(), dir, b"new").is_ok());
        assert_eq!(fs.lookup(&root(), dir, b"in"), Err(Errno::NOENT));
    }
}
