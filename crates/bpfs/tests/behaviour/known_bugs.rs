//! The known bugs and limits of the original BPFS, absent here. Those that only a crash shows
//! are seeded, and the crash explorer finds them.

use crate::fixture::*;
use bpfs::{Bpfs, Error, MkfsOptions, Mode, mkfs, probe};
use medium::MemoryPmem;
use std::sync::Arc;
use vfs::{
    Cookie, Errno, FileSystem, FileType, Ino, Name, OpenFlags, RenameFlags, SIZE_MAX, SeekKind,
};

/// Blocks that a tree of this height can hold.
fn capacity(height: u32) -> u64 {
    512u64.pow(height)
}

#[test]
fn a_shrink_inside_the_last_block_changes_the_size() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let f = file(&fs, "f");
        write(&fs, f, 0, &[7; 5000]);
        for size in [4999, 4097, 50, 1] {
            fs.truncate(&root(), f, size).unwrap();
            assert_eq!(stat(&fs, "f").unwrap().size, size, "{mode}");
            assert_eq!(read(&fs, f, 0, 6000), vec![7; size as usize], "{mode}");
            must_be_healthy(&fs);
        }
        // Bytes that were cut off do not come back.
        fs.truncate(&root(), f, 5000).unwrap();
        let mut want = vec![0; 5000];
        want[0] = 7;
        assert_eq!(read(&fs, f, 0, 6000), want, "{mode}");
    }
}

#[test]
fn a_shrink_that_needs_less_height_leaks_nothing() {
    for mode in Mode::ALL {
        for height in 1..=3 {
            let fs = fresh(mode, MIB);
            let f = file(&fs, "f");
            let before = free(&fs);
            write(&fs, f, 0, b"head");
            write(&fs, f, capacity(height) * BLOCK, b"tail");
            fs.truncate(&root(), f, 50).unwrap();
            assert_eq!(&read(&fs, f, 0, 100)[..4], b"head");
            must_be_healthy(&fs);
            assert_eq!(free(&fs), free(&remounted(&fs)), "{mode}");
            fs.truncate(&root(), f, 0).unwrap();
            assert_eq!(free(&fs), before, "{mode}, height {height}");
            must_be_healthy(&fs);
        }
    }
}

#[test]
fn a_null_pointer_above_the_leaves_is_a_hole() {
    for mode in Mode::ALL {
        for at in [4 * MIB, 1 << 30, 1 << 48, (1 << 56) + 12345] {
            let fs = fresh(mode, MIB);
            let f = file(&fs, "f");
            write(&fs, f, at, b"12345678");
            for fs in [&fs, &remounted(&fs)] {
                let attr = stat(fs, "f").unwrap();
                assert_eq!(attr.size, at + 8);
                assert!((8..=64).contains(&attr.blocks), "{} blocks", attr.blocks);
                assert_eq!(read(fs, f, at - 4, 100), b"\0\0\0\x0012345678");
                assert_eq!(read(fs, f, at / 2, 3), [0; 3]);
                let data = fs.seek(&root(), f, 0, SeekKind::Data);
                assert_eq!(data, Ok(at / BLOCK * BLOCK), "{mode}");
                assert_eq!(fs.seek(&root(), f, 0, SeekKind::Hole), Ok(0));
            }
            must_be_healthy(&fs);
        }
    }
}

#[test]
fn a_file_extended_past_its_trees_capacity_can_be_mounted_and_read() {
    for mode in Mode::ALL {
        for height in 0..=2 {
            let fs = fresh(mode, MIB);
            let f = file(&fs, "f");
            // Data in the last block that a tree of this height holds, under pointers that are
            // garbage until the file reaches them.
            let last = (capacity(height) - 1) * BLOCK;
            write(&fs, f, last, &[3; 100]);
            for size in [last + 4000, capacity(height) * BLOCK + 1, 1 << 50] {
                fs.truncate(&root(), f, size).unwrap();
                must_be_healthy(&fs);
                for fs in [&fs, &remounted(&fs)] {
                    assert_eq!(stat(fs, "f").unwrap().size, size);
                    assert_eq!(read(fs, f, last, 100), [3; 100], "{mode}");
                    assert_eq!(read(fs, f, last + 100, 50), [0; 50]);
                    assert_eq!(read(fs, f, size - 1, 5), [0]);
                }
            }
            let beyond = capacity(height) * BLOCK + 5;
            write(&fs, f, beyond, b"new");
            assert_eq!(read(&fs, f, beyond - 1, 5), b"\0new\0");
            assert_eq!(read(&remounted(&fs), f, last, 100), [3; 100]);
            must_be_healthy(&fs);
        }
    }
}

/// The slots that an extension uncovers held pointers before the tree shrank.
#[test]
fn an_extension_does_not_uncover_pointers_of_a_shrunk_tree() {
    for mode in Mode::ALL {
        let fs = fresh(mode, 4 * MIB);
        let f = file(&fs, "f");
        write(&fs, f, 0, &vec![5; 600 * BLOCK as usize]);
        fs.truncate(&root(), f, BLOCK + 1).unwrap();
        let other = file(&fs, "other");
        write(&fs, other, 0, &vec![6; 300 * BLOCK as usize]);
        fs.truncate(&root(), f, 700 * BLOCK).unwrap();
        must_be_healthy(&fs);
        assert_eq!(read(&fs, f, BLOCK - 1, 4), [5, 5, 0, 0]);
        let tail = read(&fs, f, BLOCK + 1, 700 * BLOCK as usize);
        assert!(tail.iter().all(|b| *b == 0), "{mode}");
        write(&fs, f, 650 * BLOCK, &[8; 10]);
        must_be_healthy(&fs);
    }
}

#[test]
fn rmdir_refuses_a_directory_that_is_not_empty() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        for n in 0..200 {
            file_in(&fs, d, &format!("file {n}"));
        }
        // The only name left follows blocks of holes.
        for n in 0..199 {
            fs.unlink(&root(), d, format!("file {n}").as_bytes())
                .unwrap();
        }
        let again = remounted(&fs);
        let refused = again.rmdir(&root(), Ino::ROOT, b"d");
        assert_eq!(refused, Err(Errno::NOTEMPTY), "{mode}");
        assert_eq!(again.unlink(&root(), d, b"file 199"), Ok(()));
        assert_eq!(again.rmdir(&root(), Ino::ROOT, b"d"), Ok(()));
        must_be_healthy(&again);
    }
}

#[test]
fn rename_refuses_to_replace_a_directory_that_is_not_empty() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let (a, b) = (dir_in(&fs, Ino::ROOT, "a"), dir_in(&fs, Ino::ROOT, "b"));
        file(&fs, "f");
        file_in(&fs, b, "inside");
        let before = snapshot(&fs);
        let over = |from: &str| rename(&fs, (Ino::ROOT, from), (Ino::ROOT, "b"), PLAIN);
        assert_eq!(over("f"), Err(Errno::ISDIR), "{mode}");
        assert_eq!(over("a"), Err(Errno::NOTEMPTY), "{mode}");
        // An entry of a directory is renamed over that directory.
        let up = rename(&fs, (b, "inside"), (Ino::ROOT, "b"), PLAIN);
        assert_eq!(up, Err(Errno::NOTEMPTY), "{mode}");
        assert!(snapshot(&fs).is_same_except_times(&before));
        fs.unlink(&root(), b, b"inside").unwrap();
        assert_eq!(over("a"), Ok(()));
        assert_eq!(ino(&fs, "b"), a);
        must_be_healthy(&fs);
    }
}

#[test]
fn a_directory_cannot_be_moved_below_itself() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let a = dir_in(&fs, Ino::ROOT, "a");
        let b = dir_in(&fs, a, "b");
        let c = dir_in(&fs, b, "c");
        let before = snapshot(&fs);
        for (dir, flags) in [(a, PLAIN), (b, PLAIN), (c, PLAIN)] {
            let moved = rename(&fs, (Ino::ROOT, "a"), (dir, "x"), flags);
            assert_eq!(moved, Err(Errno::INVAL), "{mode}");
        }
        for (from, to) in [((Ino::ROOT, "a"), (b, "c")), ((b, "c"), (Ino::ROOT, "a"))] {
            let swapped = rename(&fs, from, to, RenameFlags::EXCHANGE);
            assert_eq!(swapped, Err(Errno::INVAL), "{mode}");
        }
        assert!(snapshot(&fs).is_same_except_times(&before));
        must_be_healthy(&fs);
    }
}

#[test]
fn rename_of_a_name_to_itself_does_nothing() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        file(&fs, "f");
        dir_in(&fs, Ino::ROOT, "d");
        let before = snapshot(&fs);
        for name in ["f", "d"] {
            for flags in [PLAIN, RenameFlags::EXCHANGE] {
                let same = (Ino::ROOT, name);
                assert_eq!(rename(&fs, same, same, flags), Ok(()), "{mode}");
            }
        }
        let after = snapshot(&fs);
        assert!(after.is_same_except_times(&before) && after.has_same_times(&before));
        must_be_healthy(&fs);
    }
}

#[test]
fn rename_between_two_links_keeps_both_names() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        let f = file(&fs, "f");
        for (dir, name) in [(Ino::ROOT, "g"), (d, "h")] {
            fs.link(&root(), f, dir, name.as_bytes()).unwrap();
            fs.forget(f, 1);
        }
        let before = snapshot(&fs);
        for to in [(Ino::ROOT, "g"), (d, "h")] {
            for flags in [PLAIN, RenameFlags::EXCHANGE] {
                assert_eq!(rename(&fs, (Ino::ROOT, "f"), to, flags), Ok(()), "{mode}");
            }
        }
        assert!(snapshot(&fs).is_same_except_times(&before), "{mode}");
        assert_eq!(stat(&fs, "f").unwrap().nlink, 3);
        must_be_healthy(&fs);
    }
}

#[test]
fn a_write_that_finds_no_space_half_way_changes_nothing() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let f = file(&fs, "f");
        write(&fs, f, 0, &[1; 9000]);
        let (before, space) = (snapshot(&fs), free(&fs));
        for off in [0, 100, 8192, 9000, 1 << 40] {
            let full = fs.write(&root(), f, off, &vec![2; MIB as usize]);
            assert_eq!(full, Err(Errno::NOSPC), "{mode}, at {off}");
            let after = snapshot(&fs);
            assert!(after.is_same_except_times(&before), "{mode}, at {off}");
            assert!(after.has_same_times(&before), "{mode}, at {off}");
            assert_eq!(free(&fs), space, "{mode}, at {off}");
            must_be_healthy(&fs);
        }
        // The bytes that failed calls stored beyond the end stay invisible.
        fs.truncate(&root(), f, 20_000).unwrap();
        assert_eq!(read(&fs, f, 9000, 20_000), vec![0; 11_000], "{mode}");
    }
}

#[test]
fn an_unlinked_file_that_is_open_lives_until_it_is_closed() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let f = file(&fs, "f");
        let before = free(&fs);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        fs.open(&root(), f, flags).unwrap();
        write(&fs, f, 0, &[4; 5000]);
        fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
        write(&fs, f, 5000, &[5; 5000]);
        assert_eq!(fs.getattr(&root(), f).unwrap().nlink, 0);
        // Other files take space meanwhile.
        let g = file(&fs, "g");
        assert_ne!(f, g);
        write(&fs, g, 0, &[9; 50_000]);
        assert_eq!(read(&fs, f, 4999, 2), [4, 5], "{mode}");
        assert_eq!(fs.audit(), []);
        // A crash now would give its space back.
        assert_eq!(stat(&remounted(&fs), "f").err(), Some(Errno::NOENT));
        fs.release(f);
        assert_eq!(fs.getattr(&root(), f).err(), Some(Errno::STALE));
        assert_eq!(fs.write(&root(), f, 0, b"x"), Err(Errno::STALE));
        fs.unlink(&root(), Ino::ROOT, b"g").unwrap();
        assert_eq!(free(&fs), before, "{mode}");
        must_be_healthy(&fs);
    }
}

#[test]
fn mknod_makes_every_type() {
    let kinds = [
        (FileType::Regular, 0),
        (FileType::Fifo, 0),
        (FileType::Socket, 0),
        (FileType::CharDevice, 0xfff0_0801),
        (FileType::BlockDevice, 0xfff0_0801),
    ];
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        for (kind, rdev) in kinds {
            let name = format!("{kind:?}");
            let made = fs.mknod(
                &root(),
                Name::new(Ino::ROOT, name.as_bytes()),
                kind,
                0o640,
                0xfff0_0801,
            );
            fs.forget(made.unwrap().ino, 1);
            for fs in [&fs, &remounted(&fs)] {
                let attr = stat(fs, &name).unwrap();
                assert_eq!((attr.kind, attr.rdev, attr.perm), (kind, rdev, 0o640));
            }
        }
        must_be_healthy(&fs);
    }
}

#[test]
fn names_may_have_255_bytes() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let name = |n: u8, len: usize| String::from_utf8(vec![b'a' + n; len]).unwrap();
        for n in 0..20 {
            for len in [254, 255] {
                write(&fs, file(&fs, &name(n, len)), 0, &[n; 10]);
            }
        }
        let too_long = fs.create(&root(), Ino::ROOT, &[b'a'; 256], 0o644);
        assert_eq!(too_long.err(), Some(Errno::NAMETOOLONG));
        must_be_healthy(&fs);
        let again = remounted(&fs);
        for n in 0..20 {
            let found = ino(&again, &name(n, 255));
            assert_eq!(read(&again, found, 0, 20), [n; 10]);
        }
        assert_eq!(names(&again, Ino::ROOT).len(), 40);
        rename(&again, (Ino::ROOT, &name(3, 255)), (Ino::ROOT, "x"), PLAIN).unwrap();
        rename(&again, (Ino::ROOT, "x"), (Ino::ROOT, &name(4, 255)), PLAIN).unwrap();
        assert_eq!(read(&again, ino(&again, &name(4, 255)), 0, 1), [3]);
        must_be_healthy(&again);
    }
}

#[test]
fn an_image_may_have_any_number_of_whole_blocks_from_1_mib() {
    for blocks in (256..400).chain([1023, 2049, 5000]) {
        let fs = fresh(Mode::DEFAULT, blocks * BLOCK);
        let info = probe(fs.pmem()).unwrap();
        assert_eq!(info.blocks, blocks);
        assert_eq!(fs.statfs().unwrap().blocks, blocks);
        let f = file(&fs, "f");
        // All blocks can be used.
        let mut written = 0;
        while fs.write(&root(), f, written, &[1; BLOCK as usize]).is_ok() {
            written += BLOCK;
        }
        assert!(free(&fs) <= 1, "{blocks} blocks: {} left", free(&fs));
        must_be_healthy(&fs);
    }
    let ragged = fresh(Mode::DEFAULT, 300 * BLOCK + 64);
    assert_eq!(ragged.info().blocks, 300);
    let small = MemoryPmem::new(255 * BLOCK);
    let refused = mkfs(&small, &MkfsOptions::default());
    assert!(matches!(refused, Err(Error::Size { .. })), "{refused:?}");
    let cut = Arc::new(MemoryPmem::new(299 * BLOCK));
    let mut head = vec![0; 299 * BLOCK as usize];
    medium::Pmem::read(ragged.pmem(), 0, &mut head).unwrap();
    medium::Pmem::store(&cut, 0, &head);
    let refused = Bpfs::open(cut, options(Mode::DEFAULT)).err();
    assert!(matches!(refused, Some(Error::Size { .. })), "{refused:?}");
}

#[test]
fn dot_dot_names_the_parent_and_follows_a_rename() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let (a, b) = (dir_in(&fs, Ino::ROOT, "a"), dir_in(&fs, Ino::ROOT, "b"));
        let (x, y) = (dir_in(&fs, a, "x"), dir_in(&fs, b, "y"));
        let dots = |fs: &dyn FileSystem, dir: Ino| {
            let listed = list(fs, dir, Cookie(0));
            assert_eq!((&*listed[0].0, listed[0].1), (".", dir));
            assert_eq!(&*listed[1].0, "..");
            listed[1].1
        };
        let parents = |x_in: Ino, y_in: Ino| {
            for fs in [&fs, &remounted(&fs)] {
                assert_eq!((dots(fs, x), dots(fs, y)), (x_in, y_in), "{mode}");
                assert_eq!((dots(fs, a), dots(fs, Ino::ROOT)), (Ino::ROOT, Ino::ROOT));
            }
        };
        parents(a, b);
        rename(&fs, (a, "x"), (b, "x"), PLAIN).unwrap();
        parents(b, b);
        rename(&fs, (b, "y"), (b, "z"), PLAIN).unwrap();
        parents(b, b);
        rename(&fs, (b, "x"), (Ino::ROOT, "x"), PLAIN).unwrap();
        parents(Ino::ROOT, b);
        rename(&fs, (Ino::ROOT, "x"), (b, "z"), RenameFlags::EXCHANGE).unwrap();
        parents(b, Ino::ROOT);
        assert_eq!(stat(&fs, "b").unwrap().nlink, 3);
        assert_eq!(fs.getattr(&root(), Ino::ROOT).unwrap().nlink, 5);
        must_be_healthy(&fs);
    }
}

#[test]
fn files_reach_the_largest_size() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let f = file(&fs, "f");
        for size in [1 << 48, 1 << 60, SIZE_MAX] {
            write(&fs, f, size - 3, b"end");
            assert_eq!(stat(&fs, "f").unwrap().size, size, "{mode}");
            assert_eq!(read(&remounted(&fs), f, size - 4, 10), b"\0end");
        }
        let space = free(&fs);
        let beyond = [
            (SIZE_MAX, 1),
            (SIZE_MAX - 1, 2),
            (u64::MAX, 1),
            (1, u64::MAX),
        ];
        for (off, len) in beyond {
            let kind = vfs::Fallocate::ZeroRange { keep_size: false };
            let refused = fs.fallocate(&root(), f, kind, off, len);
            assert_eq!(refused, Err(Errno::FBIG), "{mode}: {off}, {len}");
        }
        assert_eq!(fs.write(&root(), f, SIZE_MAX, b"x"), Err(Errno::FBIG));
        assert_eq!(fs.write(&root(), f, SIZE_MAX - 2, b"xyz"), Err(Errno::FBIG));
        assert_eq!(fs.truncate(&root(), f, SIZE_MAX + 1), Err(Errno::FBIG));
        assert_eq!(free(&fs), space);
        must_be_healthy(&fs);
        fs.fallocate(&root(), f, vfs::Fallocate::PunchHole, 0, SIZE_MAX)
            .unwrap();
        assert_eq!(fs.seek(&root(), f, 0, SeekKind::Data), Err(Errno::NXIO));
        assert_eq!(fs.seek(&root(), f, 5, SeekKind::Hole), Ok(5));
        must_be_healthy(&fs);
        fs.truncate(&root(), f, 0).unwrap();
        assert_eq!(stat(&fs, "f").unwrap().blocks, 0);
        must_be_healthy(&fs);
    }
}

/// The original doubled the inode file each time. Here it grows by one block.
#[test]
fn the_inode_file_grows_by_single_blocks() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        let mut used = Vec::new();
        for n in 0..640 {
            let before = free(&fs);
            file_in(&fs, d, &format!("{n}"));
            used.push(before - free(&fs));
        }
        // A block of inodes, one for the directory, one where a tree gets taller.
        assert!(used.iter().all(|n| *n <= 4), "{mode}: {used:?}");
        assert!(used.iter().sum::<u64>() <= 20 + 8 + 4, "{mode}: {used:?}");
        must_be_healthy(&fs);
    }
}
