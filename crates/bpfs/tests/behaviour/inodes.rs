//! Inodes: files without a name, generations, and the counts of `statfs`.

use crate::fixture::*;
use bpfs::Mode;
use std::collections::BTreeSet;
use vfs::{Errno, FileSystem, Ino};

#[test]
fn a_tmpfile_can_be_linked_until_its_last_name_is_removed() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        file_in(&fs, d, "other");
        let space = free(&fs);
        let temp = fs.tmpfile(&root(), d, 0o600).unwrap();
        assert_eq!((temp.nlink, temp.perm), (0, 0o600));
        write(&fs, temp.ino, 0, &[9; 10_000]);
        assert_eq!(fs.audit(), [], "{mode}");
        assert_eq!(free(&remounted(&fs)), space, "{mode}: lost in a crash");
        assert_eq!(fs.link(&root(), temp.ino, d, b"named").unwrap().nlink, 1);
        assert_eq!(read(&remounted(&fs), temp.ino, 0, 20_000), [9; 10_000]);
        fs.forget(temp.ino, 1);
        fs.unlink(&root(), d, b"named").unwrap();
        let again = fs.link(&root(), temp.ino, d, b"again").err();
        assert_eq!(again, Some(Errno::NOENT), "{mode}");
        fs.forget(temp.ino, 1);
        assert_eq!(free(&fs), space, "{mode}");
        must_be_healthy(&fs);
    }
}

#[test]
fn statfs_counts_blocks_and_inodes() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        let f = file_in(&fs, d, "f");
        let before = fs.statfs().unwrap();
        assert_eq!(
            (before.block_bytes, before.blocks, before.name_max),
            (4096, 256, 255)
        );
        write(&fs, f, 0, &[1; 4 * BLOCK as usize]);
        let after = fs.statfs().unwrap();
        // Four leaves and the block of pointers above them.
        assert_eq!(before.blocks_free - after.blocks_free, 5, "{mode}");
        assert_eq!(stat(&fs, "d/f").unwrap().blocks, 5 * 8, "{mode}");
        assert_eq!(after.inodes - after.inodes_free, 3, "{mode}");
        fs.unlink(&root(), d, b"f").unwrap();
        let last = fs.statfs().unwrap();
        assert_eq!(last.blocks_free, before.blocks_free, "{mode}");
        assert_eq!(last.inodes_free, before.inodes_free + 1, "{mode}");
    }
}

#[test]
fn a_reused_inode_number_has_another_generation() {
    for mode in Mode::ALL {
        let mut fs = fresh(mode, MIB);
        let mut seen: Vec<(Ino, u64)> = Vec::new();
        for n in 0..20 {
            let made = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap();
            let life = (made.ino, made.generation);
            assert!(!seen.contains(&life), "{mode}: {life:?} again");
            seen.push(life);
            fs.forget(made.ino, 1);
            fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
            if n % 5 == 4 {
                fs = remounted(&fs);
            }
        }
        let numbers: BTreeSet<_> = seen.iter().map(|s| s.0).collect();
        assert!(numbers.len() < 20, "{mode}: no number was used again");
    }
}

/// A front end waits for these before it says that there is no space.
#[test]
fn inodes_that_have_lost_their_names_are_known_until_they_are_free() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let kept = fs.create(&root(), Ino::ROOT, b"kept", 0o600).unwrap().ino;
        let over = fs.create(&root(), Ino::ROOT, b"over", 0o600).unwrap().ino;
        fs.link(&root(), kept, Ino::ROOT, b"second").unwrap();
        fs.forget(kept, 1);
        fs.unlink(&root(), Ino::ROOT, b"second").unwrap();
        assert_eq!(fs.nameless(), [], "{mode}: it has a name");
        let (from, to) = (
            vfs::Name::new(Ino::ROOT, b"kept"),
            vfs::Name::new(Ino::ROOT, b"over"),
        );
        fs.rename(&root(), from, to, vfs::RenameFlags::empty())
            .unwrap();
        assert_eq!(fs.nameless(), [over], "{mode}");
        fs.unlink(&root(), Ino::ROOT, b"over").unwrap();
        let mut both = fs.nameless();
        both.sort();
        assert_eq!(both, [kept, over], "{mode}");
        fs.forget(kept, 1);
        assert_eq!(fs.nameless(), [over], "{mode}");
        fs.forget(over, 1);
        assert_eq!(fs.nameless(), [], "{mode}");
        let file = fs.create(&root(), Ino::ROOT, b"new", 0o600).unwrap().ino;
        fs.forget(file, 1);
        fs.unlink(&root(), Ino::ROOT, b"new").unwrap();
        assert_eq!(fs.nameless(), [], "{mode}: nothing referred to it");
    }
}
