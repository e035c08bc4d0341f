//! Access control lists that another program has set.

use super::fixture::{debugfs, e2fsck, mke2fs, mount};
use vfs::{Attr, Ctx, FileSystem, Ino, SetAttr, XattrMode};

fn root() -> Ctx {
    Ctx::root()
}

/// `u::rwx,u:7:r-x,g::r-x,m::rwx,o::r-x` as programs pass it; debugfs stores it as ext2 does.
fn list() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [
        (1, 7, none),
        (2, 5, 7),
        (4, 5, none),
        (0x10, 7, none),
        (0x20, 5, none),
    ];
    let entry = |(tag, perm, id): (u16, u16, u32)| {
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    [2_u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
}

/// A file `f` and a directory `d` with the list, which is also the default of `d`.
fn image(inode_bytes: &str) -> Vec<u8> {
    let mounted = mount(mke2fs(&["-b", "1024", "-I", inode_bytes], "4M"));
    let fs = &mounted.fs;
    fs.create(&root(), Ino::ROOT, b"f", 0o775).unwrap();
    fs.mkdir(&root(), Ino::ROOT, b"d", 0o775).unwrap();
    let mut image = mounted.close();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("list");
    std::fs::write(&file, list()).unwrap();
    for (name, kind) in [("f", "access"), ("d", "access"), ("d", "default")] {
        let set = format!(
            "ea_set -f {} {name} system.posix_acl_{kind}",
            file.display()
        );
        (image, _) = debugfs(&image, &set);
    }
    assert_eq!(e2fsck(&image), None);
    image
}

/// The output of debugfs for a stored list.
fn stored(image: &[u8], name: &str, kind: &str) -> String {
    debugfs(image, &format!("ea_get -x {name} system.posix_acl_{kind}")).1
}

#[test]
fn nobody_gets_more_than_an_access_control_list_gives() {
    for inode_bytes in ["128", "256"] {
        let mounted = mount(image(inode_bytes));
        let fs = &mounted.fs;
        let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
        // The group's stored bits are those of the mask.
        assert_eq!(file.perm, 0o755, "{inode_bytes}");
        let set = SetAttr {
            perm: Some(0o750),
            ..SetAttr::default()
        };
        assert_eq!(fs.setattr(&root(), file.ino, &set).unwrap().perm, 0o750);
        fs.setxattr(&root(), file.ino, b"user.a", b"1", XattrMode::Set)
            .unwrap();
        let image = mounted.close();
        assert_eq!(e2fsck(&image), None);
        // The mask is the group's bits, and others have no permission.
        let (_, said) = debugfs(&image, "stat f");
        assert!(said.contains("Mode:  0750"), "{said}");
        let list = stored(&image, "f", "access");
        assert!(
            list.contains("10 00 05 00") && list.contains("20 00 00 00"),
            "{list}"
        );
    }
}

#[test]
fn new_inodes_inherit_access_control_lists() {
    let mounted = mount(image("256"));
    let fs = &mounted.fs;
    let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
    let file = fs.create(&root(), dir, b"file", 0o666).unwrap();
    assert_eq!(file.perm, 0o644);
    let below = fs.mkdir(&root(), dir, b"below", 0o700).unwrap();
    assert_eq!(below.perm, 0o700);
    fs.symlink(&root(), dir, b"link", b"target").unwrap();
    let image = mounted.close();
    assert_eq!(e2fsck(&image), None);
    let list = stored(&image, "d/file", "access");
    assert!(list.contains("02 00 05 00 07 00 00 00"), "{list}");
    assert!(stored(&image, "d/below", "default").contains("02 00 05 00 07 00 00 00"));
    assert!(!stored(&image, "d/link", "access").contains("02 00"));
}

/// The image with each stored list changed so that it cannot be read.
fn with_malformed_lists(mut image: Vec<u8>) -> Vec<u8> {
    let start = [1, 0, 0, 0, 1, 0, 7, 0, 2, 0, 5, 0, 7, 0, 0, 0];
    let places: Vec<usize> = (0..image.len() - start.len())
        .filter(|&at| image[at..].starts_with(&start))
        .collect();
    assert!(places.len() >= 3);
    places.iter().for_each(|&at| image[at] = 9);
    image
}

fn chmod(fs: &impl FileSystem, ino: Ino, perm: u32) -> Attr {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&root(), ino, &set).unwrap()
}

#[test]
fn a_malformed_list_leaves_permissions_to_the_owner_only() {
    for inode_bytes in ["128", "256"] {
        let mounted = mount(with_malformed_lists(image(inode_bytes)));
        let fs = &mounted.fs;
        let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(file.perm, 0o700, "{inode_bytes}");
        assert_eq!(fs.read(&root(), file.ino, 0, &mut [0; 1]), Ok(0));
        // A change of another attribute keeps the list and the bits.
        fs.setxattr(&root(), file.ino, b"user.a", b"1", XattrMode::Set)
            .unwrap();
        assert_eq!(chmod(fs, file.ino, 0o4700).perm, 0o4700);
        assert_eq!(chmod(fs, file.ino, 0o640).perm, 0o640);
        let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap();
        assert_eq!(dir.perm, 0o700);
        let below = fs.create(&root(), dir.ino, b"below", 0o666).unwrap();
        assert_eq!(below.perm, 0o600, "the default list is malformed as well");
        fs.unlink(&root(), dir.ino, b"below").unwrap();
        fs.rmdir(&root(), Ino::ROOT, b"d").unwrap();
        let image = mounted.close();
        assert!(
            !ext2::probe(&medium::block::MemoryDevice::from_bytes(
                1024,
                image.clone()
            ))
            .unwrap()
            .errors
        );
        assert_eq!(e2fsck(&image), None);
        assert!(!stored(&image, "f", "access").contains("09 00"));
        let mounted = mount(image);
        let file = mounted.fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(file.perm, 0o640);
    }
}

#[test]
fn a_list_without_entries_is_not_a_list() {
    let mut image = image("128");
    // The lengths of the values: a header only.
    let whole = 28_u32.to_le_bytes();
    let block = image
        .chunks_mut(1024)
        .filter(|block| block.starts_with(&0xEA02_0000_u32.to_le_bytes()));
    for block in block {
        for at in (32..128).step_by(4).filter(|at| at % 16 == 8) {
            if block[at..at + 4] == whole {
                block[at..at + 4].copy_from_slice(&4_u32.to_le_bytes());
            }
        }
    }
    let mounted = mount(image);
    let file = mounted.fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
    assert_eq!(file.perm, 0o775);
}

#[test]
fn attributes_that_do_not_change_are_not_written() {
    let mounted = mount(image("128"));
    let fs = &mounted.fs;
    let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
    let set = |value| {
        fs.setxattr(&root(), file, b"user.a", value, XattrMode::Set)
            .unwrap()
    };
    set(b"1");
    fs.sync().unwrap();
    set(b"1");
    // Set-id bits are not in the list.
    chmod(fs, file, 0o4755);
    assert_eq!(mounted.cache.dirty(), 1, "only the inode");
    set(b"2");
    assert_eq!(mounted.cache.dirty(), 2);
    assert_eq!(e2fsck(&mounted.close()), None);
}
