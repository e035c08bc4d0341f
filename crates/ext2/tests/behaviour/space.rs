//! Free space, and holes.

use super::fsync::{BLOCK, mounted};
use ext2::Mounted;
use patch::stack::Mode;
use vfs::{Ctx, FileSystem, Ino, SeekKind};

/// A file of this many blocks, all written.
fn file(mounted: &Mounted, name: &[u8], blocks: u64) -> Ino {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let ino = fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
    let data = vec![1; (blocks * BLOCK) as usize];
    assert_eq!(fs.write(&cx, ino, 0, &data), Ok(data.len()));
    ino
}

#[test]
fn blocks_of_a_removed_file_are_free_at_once() {
    for mode in [Mode::SoftUpdates, Mode::JournalOrdered] {
        let mounted = mounted(mode);
        let (fs, cx) = (mounted.file_system(), Ctx::root());
        let free = || {
            let counts = fs.statfs().unwrap();
            (counts.blocks_free, counts.blocks_avail, counts.inodes_free)
        };
        file(&mounted, b"other", 1);
        let all = free();
        for _ in 0..4 {
            let ino = file(&mounted, b"large", all.0 - 16);
            fs.unlink(&cx, Ino::ROOT, b"large").unwrap();
            let few = free();
            assert!(few.1 == 0 && all.1 > 0 && all.1 < all.0, "{few:?} {all:?}");
            // Freeing takes several operations, which `statfs` does not show.
            let mut seen = vec![few];
            std::thread::scope(|scope| {
                let frees = scope.spawn(|| fs.forget(ino, 1));
                while !frees.is_finished() {
                    seen.push(free());
                }
                seen.push(free());
            });
            seen.dedup();
            assert_eq!(seen, [few, all], "{mode}");
        }
    }
}

/// A block of data has no copy in the log, and needs no revoke. Their number is not bounded by the size of
/// the log.
#[test]
fn a_large_file_can_be_made_and_removed_again_and_again() {
    for mode in [Mode::JournalMetadata, Mode::JournalOrdered, Mode::Journal] {
        let mounted = mounted(mode);
        let (fs, cx) = (mounted.file_system(), Ctx::root());
        let blocks = fs.statfs().unwrap().blocks_free - 64;
        for _ in 0..4 {
            let ino = file(&mounted, b"large", blocks);
            fs.fsync(&cx, ino, false).unwrap();
            fs.unlink(&cx, Ino::ROOT, b"large").unwrap();
            fs.forget(ino, 1);
            fs.fsyncdir(&cx, Ino::ROOT, false).unwrap();
        }
    }
}

#[test]
fn a_write_waits_for_blocks_that_are_being_freed() {
    for mode in [Mode::SoftUpdates, Mode::JournalMetadata] {
        let mounted = mounted(mode);
        let (fs, cx) = (mounted.file_system(), Ctx::root());
        let free = || fs.statfs().unwrap().blocks_free;
        let blocks = free() - 16;
        for _ in 0..3 {
            let ino = file(&mounted, b"first", blocks);
            fs.unlink(&cx, Ino::ROOT, b"first").unwrap();
            let few = free();
            std::thread::scope(|scope| {
                let frees = scope.spawn(|| fs.forget(ino, 1));
                while free() == few && !frees.is_finished() {}
                let ino = file(&mounted, b"second", blocks);
                fs.unlink(&cx, Ino::ROOT, b"second").unwrap();
                fs.forget(ino, 1);
            });
        }
    }
}

#[test]
fn looking_for_a_hole_reads_each_indirect_block_once() {
    let mounted = mounted(Mode::SoftUpdates);
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    const BLOCKS: u64 = 3000;
    let ino = file(&mounted, b"dense", BLOCKS);
    let lookups = || mounted.cache().stats().lookups;
    let before = lookups();
    let hole = fs.seek(&cx, ino, 5 * BLOCK + 7, SeekKind::Hole);
    assert_eq!(hole, Ok(BLOCKS * BLOCK));
    assert!(lookups() - before < 20, "{}", lookups() - before);
}

#[test]
fn holes_and_data_are_where_they_are() {
    let mounted = mounted(Mode::SoftUpdates);
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let ino = fs.create(&cx, Ino::ROOT, b"sparse", 0o644).unwrap().ino;
    // Direct, indirect and double indirect blocks, and edges between them.
    let written = [0, 1, 11, 12, 13, 500, 1035, 1036, 1037, 2060, 2061, 5000];
    for index in written {
        let block = [1; BLOCK as usize];
        fs.write(&cx, ino, index * BLOCK, &block).unwrap();
    }
    for index in 0..=5000 {
        let at = |kind| fs.seek(&cx, ino, index * BLOCK, kind).unwrap() / BLOCK;
        let data = written.iter().copied().find(|w| *w >= index).unwrap();
        let hole = (index..).find(|i| !written.contains(i)).unwrap();
        assert_eq!(
            (at(SeekKind::Data), at(SeekKind::Hole)),
            (data, hole),
            "{index}"
        );
    }
}
