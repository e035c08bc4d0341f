//! The checker: examines an image without changing it and without mounting it.
//!
//! It reads the image as recovery would leave it: with the committed records of the redo log
//! applied, and with a torn super block mended. It shares the numbers of the format with the
//! mount scan, but no code, since the two check each other.
//!
//! # Guarantees
//! - Read-only. Every finding names an invariant of `format.md`, B1 to B18, and the structure
//!   that breaks it. The check continues after a finding if it can.
//! - Time is bounded by the blocks of the medium: no block is examined twice. Memory is
//!   bounded by one bit for each block and inode, and the names of one directory.
//! - Recursion descends one tree only, at most [`MAX_HEIGHT`](crate::format::MAX_HEIGHT)
//!   levels.

mod directory;
mod image;
mod inode;
mod supers;
mod tree;

use crate::format::BlockNo;
pub(crate) use image::Image;
use medium::{MediumError, Pmem};
use std::fmt::{Arguments, Display};
pub(crate) use tree::Tree;
use vfs::Ino;
use vfs::check::{Report, Severity};

/// Checks a whole image against the invariants of `format.md`.
///
/// Reads only. The report is clean for every image that a mount could recover to a sound file
/// system. Unreachable blocks and inodes are free space, and not findings.
pub fn check<P: Pmem + ?Sized>(pm: &P) -> Report {
    let mut report = Report::default();
    if let Some(ground) = ground(pm, &mut report) {
        let mut checker = Checker::new(ground, report);
        checker.run();
        report = checker.report;
    }
    report
}

/// A set of small numbers.
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: u64) -> Self {
        Self(vec![0; len.div_ceil(64) as usize])
    }

    /// Adds `n`; false if it was there, or is out of range.
    fn add(&mut self, n: u64) -> bool {
        let Some(word) = self.0.get_mut((n / 64) as usize) else {
            return false;
        };
        let bit = 1 << (n % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// The parts of an image that the super block and the redo log establish.
pub(crate) struct Ground<'p, P: ?Sized> {
    pub image: Image<'p, P>,
    /// Blocks of the file system.
    pub blocks: u64,
    /// First block after the redo log.
    pub first: u64,
    /// Block of the root record.
    pub root: BlockNo,
}

impl<P: Pmem + ?Sized> Ground<'_, P> {
    /// Whether a pointer may name this block.
    pub(crate) fn has_block(&self, block: BlockNo) -> bool {
        (self.first..self.blocks).contains(&block.0)
    }
}

/// Reads the super blocks and the redo log. Returns `None` if the rest cannot be found.
pub(crate) fn ground<'p, P: Pmem + ?Sized>(
    pm: &'p P,
    report: &mut Report,
) -> Option<Ground<'p, P>> {
    supers::check(pm, report)
}

/// A name in the directory under examination: where its entry is, found again by hash.
struct Name {
    hash: u32,
    /// Byte offset of the entry on the medium.
    addr: u64,
}

/// The state of one check.
struct Checker<'p, P: ?Sized> {
    ground: Ground<'p, P>,
    report: Report,
    /// Blocks that a pointer names.
    used: Bits,
    /// The inode file's tree.
    inodes: Tree,
    /// Inodes that an entry names.
    named: Bits,
    /// Directories still to be read.
    dirs: Vec<Ino>,
    names: Vec<Name>,
}

impl<'p, P: Pmem + ?Sized> Checker<'p, P> {
    fn new(ground: Ground<'p, P>, report: Report) -> Self {
        Self {
            used: Bits::new(ground.blocks),
            inodes: Tree::EMPTY,
            named: Bits::new(0),
            dirs: Vec::new(),
            names: Vec::new(),
            ground,
            report,
        }
    }

    fn run(&mut self) {
        if !self.inode_file() {
            return;
        }
        self.root_inode();
        while let Some(dir) = self.dirs.pop() {
            self.directory(dir);
        }
    }

    /// Reports a broken invariant. Nothing is formatted once the report is full.
    fn bad(&mut self, invariant: &str, what: Arguments<'_>) {
        bad(&mut self.report, invariant, what);
    }

    /// Reads bytes, or reports that they are unreadable.
    fn read(&mut self, addr: u64, buf: &mut [u8], what: impl Display) -> bool {
        let read = self.ground.image.read(addr, buf);
        readable(&mut self.report, read, what).is_some()
    }
}

fn bad(report: &mut Report, invariant: &str, what: Arguments<'_>) {
    let what = if report.is_truncated {
        String::new()
    } else {
        what.to_string()
    };
    report.add(invariant, Severity::Corrupt, what);
}

/// The result of a read, or a finding (B1).
fn readable<T>(report: &mut Report, read: Result<T, MediumError>, what: impl Display) -> Option<T> {
    read.map_err(|e| bad(report, "B1", format_args!("{what}: {e}")))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::BLOCK;
    use crate::{Bpfs, MkfsOptions, Mode, MountOptions, mkfs};
    use medium::MemoryPmem;
    use vfs::{Ctx, Errno, FileSystem};

    #[test]
    fn a_restarted_directory_block_is_not_all_zeros() {
        for mode in Mode::ALL {
            let pm = MemoryPmem::new(1 << 20);
            let options = MkfsOptions {
                mode,
                ..MkfsOptions::default()
            };
            mkfs(&pm, &options).unwrap();
            let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
            let (cx, root) = (Ctx::root(), Ino::ROOT);
            // Length, type and name of the only entry share one word.
            fs.create(&cx, root, b"name", 0o644).unwrap();
            fs.unlink(&cx, root, b"name").unwrap();
            fs.mutate(crate::staged::TreeLock::Shared, |lock| {
                fs.restart(root, 0, lock)
            })
            .unwrap();
            assert_eq!(check(&pm).findings, [], "{mode:?}");
            drop(fs);
            // Opening reads the chain, which ends at once: the place is free again.
            let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
            fs.create(&cx, root, b"long name", 0o644).unwrap();
            assert_eq!(check(&pm).findings, [], "{mode:?}");
            let size = fs.getattr(&cx, root).unwrap().size;
            assert_eq!(size, BLOCK, "{mode:?}");
        }
    }

    #[test]
    fn a_full_block_of_holes_is_restarted() {
        let pm = MemoryPmem::new(1 << 20);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        let names = || (0..BLOCK / 16).map(|n| format!("{n:04}").into_bytes());
        for name in names() {
            fs.create(&cx, root, &name, 0o644).unwrap();
        }
        for name in names() {
            fs.unlink(&cx, root, &name).unwrap();
        }
        fs.create(&cx, root, &[b'l'; 200], 0o644).unwrap();
        assert_eq!(fs.getattr(&cx, root).unwrap().size, BLOCK);
        fs.unlink(&cx, root, &[b'l'; 200]).unwrap();
        assert_eq!(check(&pm).findings, []);
    }

    #[test]
    fn a_zeroed_link_target_is_noticed() {
        let pm = MemoryPmem::new(1 << 20);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        let link = fs.symlink(&cx, root, b"link", b"some/target").unwrap().ino;
        assert_eq!(check(&pm).findings, []);
        assert_eq!(fs.readlink(&cx, link).unwrap(), b"some/target");
        let tree = fs.vol.tree(fs.vol.inode_addr(link).unwrap()).unwrap();
        let addr = tree.ha.block().addr();
        for zeros in [1..2, 0..BLOCK] {
            let len = zeros.end - zeros.start;
            pm.store(addr + zeros.start, &vec![0; len as usize]);
            let found = check(&pm).findings;
            let rules: Vec<_> = found.iter().map(|f| f.invariant.as_str()).collect();
            assert_eq!(rules, ["B16"]);
            assert_eq!(fs.readlink(&cx, link), Err(Errno::UCLEAN));
        }
    }

    #[test]
    fn a_zeroed_directory_block_is_noticed() {
        let pm = MemoryPmem::new(1 << 20);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        fs.create(&cx, root, b"first", 0o644).unwrap();
        // Emptied blocks are sound.
        fs.unlink(&cx, root, b"first").unwrap();
        fs.create(&cx, root, &[b'l'; 200], 0o644).unwrap();
        fs.unlink(&cx, root, &[b'l'; 200]).unwrap();
        assert_eq!(check(&pm).findings, []);
        let tree = fs.vol.tree(fs.vol.inode_addr(root).unwrap()).unwrap();
        let addr = tree.ha.block().addr();
        drop(fs);
        pm.store(addr, &[0; BLOCK as usize]);
        let found = check(&pm).findings;
        let rules: Vec<_> = found.iter().map(|f| f.invariant.as_str()).collect();
        assert_eq!(rules, ["B14"]);
        let refused = Bpfs::open(&pm, MountOptions::default()).err();
        assert!(refused.unwrap().to_string().contains("all zeros"));
    }
}
