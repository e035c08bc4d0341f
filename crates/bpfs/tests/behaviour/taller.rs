//! Calls that make a tree taller and make another change: one commit covers both.

use crate::fixture::*;
use bpfs::Mode;
use vfs::{Ctx, FileSystem, Ino, RenameFlags, SetAttr};

/// A rename into a directory whose tree must grow copies the inode that gets the taller
/// tree: the new root must go into the copy.
#[test]
fn a_rename_may_make_the_target_directory_taller() {
    let cx = Ctx::root();
    for mode in Mode::ALL {
        let fs = fresh(mode, 4 * MIB);
        let [from, to] = [b"from", b"to.."].map(|name| {
            let dir = fs.mkdir(&cx, Ino::ROOT, name, 0o755).unwrap();
            dir.ino
        });
        fs.create(&cx, from, b"moved", 0o644).unwrap();
        // 256 entries of 16 bytes fill one block to the last byte.
        for n in 0..256 {
            fs.create(&cx, to, format!("{n:04}").as_bytes(), 0o644)
                .unwrap();
        }
        rename(&fs, (from, "moved"), (to, "here"), RenameFlags::empty()).unwrap();
        fs.lookup(&cx, to, b"here").unwrap();
        fs.lookup(&cx, to, b"0000").unwrap();
        let again = remounted(&fs);
        again.lookup(&cx, to, b"here").unwrap();
        again.lookup(&cx, to, b"0255").unwrap();
        must_be_healthy(&again);
    }
}

/// An append that makes the tree taller and clears the set-id bits changes two words of
/// the inode.
#[test]
fn an_append_may_clear_set_id_bits_and_make_the_file_taller() {
    let (root, user) = (Ctx::root(), Ctx::user(1000, 1000));
    for mode in Mode::ALL {
        let fs = fresh(mode, 4 * MIB);
        let file = fs.create(&root, Ino::ROOT, b"f", 0o666).unwrap().ino;
        fs.write(&root, file, 0, &[1; 4096]).unwrap();
        let set = SetAttr {
            perm: Some(0o4777),
            ..SetAttr::default()
        };
        fs.setattr(&root, file, &set).unwrap();
        fs.write(&user, file, 4096, &[2; 4096]).unwrap();
        let again = remounted(&fs);
        for fs in [&fs, &again] {
            let mut buf = [0; 8192];
            assert_eq!(fs.read(&root, file, 0, &mut buf), Ok(8192));
            assert!(
                buf[..4096] == [1; 4096] && buf[4096..] == [2; 4096],
                "{mode}"
            );
            assert_eq!(fs.getattr(&root, file).unwrap().perm, 0o777);
        }
    }
}
