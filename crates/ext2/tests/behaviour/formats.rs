//! Structures that other programs put into images: features, hash-indexed directories, shared
//! attribute blocks, attributes within inodes, old device numbers.

use super::fixture::{Mounted, clock, debugfs, device, e2fsck, mke2fs, mount, options, with_file};
use blockfs::mount::{Mountable, OpenOptions};
use ext2::{Error, Ext2};
use medium::block::{BlockDevice, MemoryDevice};
use std::sync::Arc;
use vfs::{Ctx, FileSystem, FileType, Ino, Name, XattrMode};

fn root() -> Ctx {
    Ctx::root()
}

fn open(image: &[u8], read_only: bool) -> Result<Ext2, Error> {
    let cache = patch::Cache::new(vec![Box::new(device(image.to_vec()))], options(64));
    let clock = clock();
    let store = Arc::new(Arc::new(cache).store(0));
    Ext2::open(
        store,
        OpenOptions {
            read_only,
            clock,
            replayed: false,
        },
    )
}

#[test]
fn unknown_features_are_named() {
    let image = mke2fs(&["-b", "4096"], "4M");
    let with = |at: usize, bits: u32| {
        let mut image = image.clone();
        for (byte, bit) in image[1024 + at..].iter_mut().zip(bits.to_le_bytes()) {
            *byte |= bit;
        }
        image
    };
    let refusal = |image: &[u8], read_only| open(image, read_only).err().map(|e| e.to_string());
    let extents = {
        let cache = patch::Cache::new(
            vec![Box::new(medium::block::MemoryDevice::from_bytes(
                4096,
                with(96, 0x440),
            ))],
            options(64),
        );
        Ext2::open(Arc::new(Arc::new(cache).store(0)), OpenOptions::default())
    };
    let said = extents.err().unwrap().to_string();
    assert!(said.contains("extent, ea_inode"), "{said}");
    let sums = with(100, 0x400);
    assert!(refusal(&sums, false).unwrap().contains("metadata_csum"));
    assert_eq!(refusal(&sums, true), None);
    assert_eq!(refusal(&with(92, 0x4), false), None); // a journal without changes
    assert_eq!(refusal(&image, false), None);
}

#[test]
fn a_journal_with_changes_is_not_ignored() {
    let mut image = mke2fs(&["-b", "4096"], "4M");
    image[1024 + 96] |= 4;
    let device = medium::block::MemoryDevice::from_bytes(4096, image);
    let cache = patch::Cache::new(vec![Box::new(device)], options(64));
    let opened = Ext2::open(Arc::new(Arc::new(cache).store(0)), OpenOptions::default());
    assert!(matches!(opened, Err(Error::NeedsReplay)));
}

#[test]
fn unclean_images_stay_marked() {
    let image = mke2fs(&["-b", "1024"], "2M");
    let mounted = mount(image);
    let during = mounted.device.bytes();
    assert_eq!(during[1024 + 58] & 1, 0, "marked while mounted");
    assert_eq!(mounted.close()[1024 + 58] & 1, 1, "clean after unmounting");
    assert_eq!(mount(during).close()[1024 + 58] & 1, 0, "needs a check");
}

#[test]
fn indexed_directories_become_linear() {
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "2048"], "8M"));
    let dir = mounted
        .fs
        .mkdir(&root(), Ino::ROOT, b"d", 0o755)
        .unwrap()
        .ino;
    let name = |n: usize| format!("a-rather-long-name-of-a-file-{n}").into_bytes();
    for n in 0..800 {
        mounted.fs.create(&root(), dir, &name(n), 0o644).unwrap();
    }
    let image = mounted.close();
    let indexed = with_file(&image, "e2fsck", &["-fyD"]);
    let mounted = mount(indexed);
    let dir = mounted.fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
    for n in 0..800 {
        mounted.fs.lookup(&root(), dir, &name(n)).unwrap();
    }
    let is_indexed =
        |image: &[u8]| e2fsck_debug(image, "htree_dump /d").contains("Number of entries");
    assert!(is_indexed(&mounted.device.bytes()), "e2fsck made an index");
    for n in 0..800 {
        mounted
            .fs
            .create(&root(), dir, &name(n + 1000), 0o644)
            .unwrap();
        if n % 2 == 0 {
            mounted.fs.unlink(&root(), dir, &name(n)).unwrap();
        }
    }
    let mut listed = 0;
    let mut count = |_: &vfs::DirEntry<'_>| {
        listed += 1;
        true
    };
    mounted
        .fs
        .readdir(&root(), dir, vfs::Cookie(0), &mut count)
        .unwrap();
    assert_eq!(listed, 2 + 1200);
    let image = mounted.close();
    assert!(!is_indexed(&image));
    assert_eq!(e2fsck(&image), None);
}

fn e2fsck_debug(image: &[u8], command: &str) -> String {
    super::fixture::debugfs(image, command).1
}

fn attr(mounted: &Mounted, name: &[u8], key: &[u8]) -> vfs::Result<Vec<u8>> {
    let ino = mounted.fs.lookup(&root(), Ino::ROOT, name)?.ino;
    mounted.fs.getxattr(&root(), ino, key)
}

#[test]
fn attributes_within_inodes_move_to_a_block() {
    let mounted = mount(mke2fs(&["-b", "1024", "-I", "256"], "2M"));
    mounted.fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap();
    let (image, _) = super::fixture::debugfs(&mounted.close(), "ea_set /f user.a within");
    assert_eq!(e2fsck(&image), None);
    let mounted = mount(image);
    assert_eq!(attr(&mounted, b"f", b"user.a").unwrap(), b"within");
    let ino = mounted.fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
    mounted
        .fs
        .setxattr(&root(), ino, b"user.b", b"block", XattrMode::Set)
        .unwrap();
    assert_eq!(attr(&mounted, b"f", b"user.a").unwrap(), b"within");
    let image = mounted.close();
    assert_eq!(e2fsck(&image), None);
    assert!(e2fsck_debug(&image, "ea_get /f user.a").contains("within"));
    assert!(e2fsck_debug(&image, "ea_get /f user.b").contains("block"));
}

#[test]
fn shared_attribute_blocks_are_copied() {
    let mounted = mount(mke2fs(&["-b", "1024", "-I", "128"], "2M"));
    for name in [&b"a"[..], b"b"] {
        let ino = mounted
            .fs
            .create(&root(), Ino::ROOT, name, 0o644)
            .unwrap()
            .ino;
        let set = |key: &[u8], value: &[u8]| {
            mounted
                .fs
                .setxattr(&root(), ino, key, value, XattrMode::Set)
                .unwrap();
        };
        set(b"user.k", b"shared");
    }
    let image = mounted.close();
    // Both inodes get the block of the first; e2fsck frees the other and counts two.
    let stat = e2fsck_debug(&image, "stat /a");
    let block = stat
        .split("File ACL: ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap();
    let (image, _) = super::fixture::debugfs(&image, &format!("sif /b file_acl {block}"));
    let image = with_file(&image, "e2fsck", &["-fy"]);
    assert_eq!(e2fsck(&image), None);
    let mounted = mount(image);
    let ino = mounted.fs.lookup(&root(), Ino::ROOT, b"b").unwrap().ino;
    mounted
        .fs
        .setxattr(&root(), ino, b"user.k", b"own", XattrMode::Set)
        .unwrap();
    assert_eq!(attr(&mounted, b"a", b"user.k").unwrap(), b"shared");
    assert_eq!(attr(&mounted, b"b", b"user.k").unwrap(), b"own");
    for name in [&b"a"[..], b"b"] {
        mounted.fs.unlink(&root(), Ino::ROOT, name).unwrap();
    }
    assert_eq!(e2fsck(&mounted.close()), None);
}

#[test]
fn device_numbers_have_two_forms() {
    let mounted = mount(mke2fs(&["-b", "1024"], "2M"));
    for (name, rdev) in [(&b"old"[..], 0x0803), (b"new", 0x0012_3456)] {
        let kind = FileType::BlockDevice;
        mounted
            .fs
            .mknod(&root(), Name::new(Ino::ROOT, name), kind, 0o600, rdev)
            .unwrap();
        let attr = mounted.fs.lookup(&root(), Ino::ROOT, name).unwrap();
        assert_eq!(attr.rdev, rdev);
    }
    let image = mounted.close();
    assert_eq!(e2fsck(&image), None);
    assert!(e2fsck_debug(&image, "stat /old").contains("08:03"));
    assert!(e2fsck_debug(&image, "stat /new").contains("(New-style)"));
}

/// A crash of soft updates between a pointer in an indirect block and the size leaves a block past the end.
#[test]
fn a_directory_grows_into_a_block_past_its_end() {
    let mounted = mount(mke2fs(&["-b", "1024"], "2M"));
    let dir = mounted
        .fs
        .mkdir(&root(), Ino::ROOT, b"d", 0o755)
        .unwrap()
        .ino;
    let name = |n: u32| format!("{n:0250}").into_bytes();
    let size = |mounted: &Mounted| mounted.fs.getattr(&root(), dir).unwrap().size;
    let mut count = 0;
    while size(&mounted) <= 13 * 1024 {
        mounted
            .fs
            .create(&root(), dir, &name(count), 0o644)
            .unwrap();
        count += 1;
    }
    let last = count - 1;
    mounted.fs.unlink(&root(), dir, &name(last)).unwrap();
    let image = mounted.close();
    let (image, _) = super::fixture::debugfs(&image, "sif /d size 13312");
    let mounted = mount(image);
    assert_eq!(size(&mounted), 13 * 1024);
    for n in last..last + 9 {
        mounted.fs.create(&root(), dir, &name(n), 0o644).unwrap();
    }
    assert!(size(&mounted) > 14 * 1024);
    mounted.fs.lookup(&root(), dir, &name(last)).unwrap();
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// A journal that is elsewhere, or that is damaged, is an error of the mount that needs it.
#[test]
fn a_journal_that_cannot_be_used_is_named() {
    let image = mke2fs(&["-b", "1024", "-j", "-J", "size=1"], "8M");
    let place = |damage: &str| {
        let (image, said) = debugfs(&image, damage);
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(1024, image));
        match Ext2::journal_place(&disk, false) {
            Ok(place) => format!("{} blocks", place.blocks()),
            Err(e) => format!("{e} ({damage}: {said})"),
        }
    };
    assert_eq!(place("stat <8>"), "1024 blocks");
    for (damage, what) in [
        ("sif <8> size 0", "the journal is empty"),
        ("sif <8> size 1073741824", "the journal is too long"),
        ("sif <8> size 2097152", "the journal has a hole"),
        ("sif <8> block[1] 1", "block 1"),
        (
            "ssv journal_inum 12",
            "the journal of this file system is in inode 12",
        ),
        (
            "ssv journal_inum 0",
            "the journal of this file system is on another device",
        ),
    ] {
        let found = place(damage);
        assert!(found.contains(what), "{found}");
    }
    let (_, first) = debugfs(&image, "bmap <8> 0");
    let twice = place(&format!("sif <8> block[1] {}", first.trim()));
    assert!(twice.contains("the journal has a block twice"), "{twice}");
}
