//! Files that are removed before their first write-back are never written.

use super::fsync::{BLOCK, mounted};
use patch::stack::Mode;
use vfs::{Ctx, FileSystem, Ino};

/// Makes and removes 50 files of 20 blocks each. Returns the blocks that this wrote.
fn write_and_remove(mode: Mode, forget_first: bool, synced_first: bool) -> u64 {
    let mounted = mounted(mode);
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    if synced_first {
        // Bitmaps, inodes and names share blocks with those of a committed transaction.
        fs.create(&cx, Ino::ROOT, b"older", 0o644).unwrap();
    }
    fs.sync().unwrap();
    let before = mounted.cache().stats().writes;
    for n in 0..50 {
        let name = format!("mail{n}").into_bytes();
        let ino = fs.create(&cx, Ino::ROOT, &name, 0o644).unwrap().ino;
        for index in 0..20 {
            fs.write(&cx, ino, index * BLOCK, &[1; BLOCK as usize])
                .unwrap();
        }
        if forget_first {
            fs.forget(ino, 1);
        }
        fs.unlink(&cx, Ino::ROOT, &name).unwrap();
        if !forget_first {
            fs.forget(ino, 1);
        }
    }
    fs.sync().unwrap();
    mounted.cache().stats().writes - before
}

#[test]
fn files_removed_in_the_transaction_that_made_them_are_not_written() {
    for mode in Mode::ALL {
        for (forget_first, synced_first) in [(false, false), (false, true), (true, true)] {
            let written = write_and_remove(mode, forget_first, synced_first);
            assert!(
                written <= 20,
                "{mode}, {forget_first}, {synced_first}: {written}"
            );
        }
    }
}
