//! A file system that several threads have filled can be emptied, in every mode.

use crate::fixture::*;
use bpfs::Mode;
use std::thread;
use vfs::{Errno, FileSystem, Ino, Result};

const THREADS: u64 = 4;
const BYTES: u64 = 2 * MIB;

/// Takes all space, in `dir` of its own thread, until the first `ENOSPC`.
type Fill = fn(&Fs, Ino, u64) -> Result<()>;

fn small_files(fs: &Fs, dir: Ino, _: u64) -> Result<()> {
    for n in 0.. {
        let made = fs.create(&root(), dir, format!("small {n}").as_bytes(), 0o644)?;
        fs.forget(made.ino, 1);
        fs.write(&root(), made.ino, 0, &[1; 100])?;
    }
    Ok(())
}

/// All threads write the same file, each every fourth block.
fn one_large_file(fs: &Fs, _: Ino, thread: u64) -> Result<()> {
    let large = ino(fs, "large");
    for n in 0.. {
        let at = (n * THREADS + thread) * BLOCK;
        fs.write(&root(), large, at, &[2; BLOCK as usize])?;
    }
    Ok(())
}

fn many_names(fs: &Fs, dir: Ino, _: u64) -> Result<()> {
    let large = ino(fs, "large");
    let long = "n".repeat(200);
    for n in 0.. {
        fs.link(&root(), large, dir, format!("{long}{n}").as_bytes())?;
        fs.forget(large, 1);
    }
    Ok(())
}

/// Directories in directories, with a name or two in each.
fn deep(fs: &Fs, mut dir: Ino, _: u64) -> Result<()> {
    loop {
        let made = fs.symlink(&root(), dir, b"link", b"somewhere")?;
        fs.forget(made.ino, 1);
        dir = fs.mkdir(&root(), dir, b"dir", 0o755)?.ino;
        fs.forget(dir, 1);
    }
}

/// Fills `fs` until no thread can take more space.
fn fill(fs: &Fs, how: Fill) {
    file(fs, "large");
    let dirs: Vec<_> = (0..THREADS)
        .map(|n| dir_in(fs, Ino::ROOT, &format!("of thread {n}")))
        .collect();
    thread::scope(|scope| {
        for (n, dir) in dirs.iter().enumerate() {
            scope.spawn(move || assert_eq!(how(fs, *dir, n as u64), Err(Errno::NOSPC)));
        }
    });
    // A block that one thread gave back may suffice for a smaller call.
    let dir = dirs[0];
    while let Ok(made) = fs.symlink(&root(), dir, format!("{}", free(fs)).as_bytes(), b"x") {
        fs.forget(made.ino, 1);
    }
}

/// Removes all that is in `dir`, as `rm -rf` does.
fn empty(fs: &Fs, dir: Ino) -> Result<()> {
    for name in names(fs, dir) {
        let name = name.as_bytes();
        match fs.unlink(&root(), dir, name) {
            Err(Errno::ISDIR) => {
                let below = fs.lookup(&root(), dir, name)?.ino;
                empty(fs, below)?;
                fs.forget(below, 1);
                fs.rmdir(&root(), dir, name)?;
            }
            other => other?,
        }
    }
    Ok(())
}

/// Blocks of the inode file and of the root directory, whose number never falls.
fn kept(fs: &Fs) -> u64 {
    let stat = fs.statfs().unwrap();
    let inodes = stat.inodes + 1 - stat.blocks_avail * 32;
    let leaves = inodes / 32;
    assert!(leaves <= 512, "a second level of indirect blocks");
    let root_dir = fs.getattr(&root(), Ino::ROOT).unwrap().blocks / (BLOCK / 512);
    leaves + u64::from(leaves > 1) + root_dir
}

fn filled_and_emptied(how: Fill) {
    for mode in Mode::ALL {
        let fs = fresh(mode, BYTES);
        let all = free(&fs) + kept(&fs);
        for _ in 0..2 {
            fill(&fs, how);
            let left = fs.statfs().unwrap().blocks_avail;
            assert!(left < 16, "{mode}: not full, {left} blocks are left");
            must_be_healthy(&fs);
            assert_eq!(empty(&fs, Ino::ROOT), Ok(()), "{mode}");
            must_be_healthy(&fs);
            assert_eq!(free(&fs) + kept(&fs), all, "{mode}: lost blocks");
        }
    }
}

#[test]
fn small_files_can_be_removed() {
    filled_and_emptied(small_files);
}

#[test]
fn a_large_file_can_be_removed() {
    filled_and_emptied(one_large_file);
}

#[test]
fn many_names_can_be_removed() {
    filled_and_emptied(many_names);
}

#[test]
fn deep_directories_can_be_removed() {
    filled_and_emptied(deep);
}
