//! Extended attributes that are the super-user's.

use crate::fixture::{Fixture, on_each_engine, run};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use std::fs;
use std::path::Path;
use std::thread;

/// The names that `path` lists to the super-user, and those that it lists to another user.
fn names_of(path: &Path) -> [String; 2] {
    let names_to = |uid| {
        // The user of a thread is its own.
        set_thread_uid(Uid::from_raw(uid)).unwrap();
        let mut list = [0; 256];
        let len = listxattr(path, &mut list).unwrap();
        let list = std::str::from_utf8(&list[..len]).unwrap();
        let mut names: Vec<_> = list.split_terminator('\0').collect();
        names.sort();
        names.join(" ")
    };
    [0, 65534].map(|uid| thread::scope(|scope| scope.spawn(|| names_to(uid)).join().unwrap()))
}

#[test]
fn trusted_attributes_are_listed_to_the_super_user_only() {
    on_each_engine(|dir| {
        let path = &dir.join("file");
        fs::write(path, "").unwrap();
        for name in ["trusted.a", "user.a"] {
            setxattr(path, name, b"1", XattrFlags::empty()).unwrap();
        }
        assert_eq!(names_of(path), ["trusted.a user.a", "user.a"]);
    });
}

/// Replaces `old`, which the image has once, by `new`.
fn replace(place: &Fixture, old: &[u8], new: &[u8]) {
    let mut image = fs::read(place.image()).unwrap();
    let mut windows = image.windows(old.len());
    let at = windows.position(|window| window == old).unwrap();
    assert!(!windows.any(|window| window == old));
    image[at..at + new.len()].copy_from_slice(new);
    fs::write(place.image(), image).unwrap();
}

/// Earlier versions stored attributes of any name.
#[test]
fn attributes_with_invalid_names_can_be_read_and_removed_by_the_super_user() {
    let value = b"the value";
    for (engine, name, refused) in [
        ("bpfs", "alien.name", Errno::OPNOTSUPP),
        ("ext2", "user.", Errno::INVAL),
    ] {
        let place = Fixture::new();
        let image = place.image_str();
        run(0, &["mkfs", "--type", engine, "--size", "16M", image]);
        let path = &place.dir().join("file");
        place.mount(&["-o", "allow_other"]);
        fs::write(path, "").unwrap();
        setxattr(path, "user.xname", value, XattrFlags::empty()).unwrap();
        place.umount();
        match engine {
            "bpfs" => replace(&place, b"user.xname", name.as_bytes()),
            // The name space is a number, 1, after the length of the name; the name ends the
            // entry and is the last.
            _ => {
                replace(&place, b"xname", &[0; 5]);
                let magic = 0xea02_0000_u32.to_le_bytes();
                let header = [&magic[..], &1_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
                let image = fs::read(place.image()).unwrap();
                let mut blocks = image.chunks(1024);
                let block = blocks.find(|block| block.starts_with(&header)).unwrap();
                assert_eq!(block[32..34], [5, 1]);
                let (old, mut new) = (block[..48].to_vec(), block[..48].to_vec());
                new[32] = 0;
                replace(&place, &old, &new);
            }
        }
        place.mount(&["-o", "allow_other"]);
        assert_eq!(names_of(path), [name, ""]);
        let mut buf = [0; 16];
        assert_eq!(getxattr(path, name, &mut buf[..]), Ok(value.len()));
        assert_eq!(&buf[..value.len()], value);
        let set = setxattr(path, name, b"1", XattrFlags::empty());
        assert_eq!(set, Err(refused));
        assert_eq!(removexattr(path, name), Ok(()));
        assert_eq!(removexattr(path, name), Err(refused));
        place.umount();
        place.fsck();
    }
}
