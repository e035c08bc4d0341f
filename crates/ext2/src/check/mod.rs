//! The checker: examines an image without changing it and without mounting it.
//!
//! # Guarantees
//! - The checker only reads. Every finding names an invariant of `format.md`, E1 to E29, and the
//!   structure that breaks it. The check goes on after a finding wherever possible.
//! - A defect that soft updates may leave after a crash is a [`Severity::Leak`]. All others are
//!   [`Severity::Corrupt`].
//! - Time is bounded by the size of the device: no block is examined twice as the same structure.
//! - Memory is bounded: one bit for each block, twelve bytes for each inode, four bytes for each
//!   block of a directory, and the names of one directory. There are at most as many further names
//!   of directories as directories.
//! - The checker shares the format's numbers with the code that mounts, and nothing else, since the
//!   two check each other.
//!
//! # Order
//! 1. Superblock and descriptors (`ground`).
//! 2. The orphan list (`orphans`).
//! 3. Inodes with their blocks and attributes (`inodes`, `blocks`, `attrs`).
//! 4. Directories (`dirs`).
//! 5. The totals of all of these (`totals`).

mod attrs;
mod blocks;
mod dirs;
mod ground;
mod inodes;
mod orphans;
mod totals;

use crate::bytes;
use ground::Ground;
use medium::block::BlockDevice;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use vfs::FileType;
use vfs::check::{Report, Severity};

/// Checks a whole image against the invariants of `format.md`. Reads only.
pub fn check<D: BlockDevice + ?Sized>(device: &D) -> Report {
    let mut report = Report::default();
    if let Some(ground) = Ground::find(device, &mut report) {
        let mut checker = Checker::new(device, ground, report);
        checker.run();
        report = checker.report;
    }
    report
}

/// A set of small numbers, as the bitmaps on the medium have it.
struct Bits(Vec<u8>);

impl Bits {
    fn new(len: u64) -> Self {
        Self(vec![0; len.div_ceil(8) as usize])
    }

    /// Adds `n`. Returns false if it is in the set already, or out of range.
    fn add(&mut self, n: u64) -> bool {
        let Some(byte) = self.0.get_mut((n / 8) as usize) else {
            return false;
        };
        let bit = 1 << (n % 8);
        let new = *byte & bit == 0;
        *byte |= bit;
        new
    }

    fn has(&self, n: u64) -> bool {
        let byte = self.0.get((n / 8) as usize);
        byte.is_some_and(|byte| byte & (1 << (n % 8)) != 0)
    }
}

/// The facts found about an inode.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The type of an inode in use. `None` for reserved inodes that are not files.
    kind: Option<FileType>,
    in_use: bool,
    /// Its link count.
    links: u16,
    /// Names found, besides `.` and `..`.
    names: u32,
    /// Whether it is a directory with a `.`.
    dot: bool,
    /// `..` entries of directories that have names themselves.
    dotdots: u16,
    /// `..` entries of nameless directories.
    nameless_dotdots: u16,
}

/// A directory and the facts found in its entries.
struct Directory {
    ino: u32,
    /// Its blocks in order, up to its size.
    blocks: Vec<u32>,
    /// The inode of `..`, or 0 if there is none.
    dotdot: u32,
    /// The directory that holds its name, or 0. Of several, the one that `..` leads to.
    parent: u32,
}

/// Most findings about contents that are kept until the names are read.
const MAX_CONTENTS: usize = 1 << 16;

/// The state of one check.
struct Checker<'d, D: ?Sized> {
    device: &'d D,
    ground: Ground,
    report: Report,
    /// Blocks with an owner, counted from the first data block.
    owned: Bits,
    /// Inodes in use, counted from inode 1.
    live: Bits,
    /// All inodes, from inode 1.
    inodes: Vec<Seen>,
    /// Inodes on the orphan list.
    orphans: Bits,
    /// Directories, in the order of their inode numbers.
    directories: Vec<Directory>,
    /// Further names of directories, as renames may leave them: the directory's index, and the
    /// inode of the directory with the name.
    further: Vec<(usize, u32)>,
    /// Attribute blocks, with their stored count of references and the count found.
    attr_blocks: BTreeMap<u32, (u32, u32)>,
    /// Findings about the contents of inodes. They are harmless if the inode has no name.
    contents: Vec<(u32, &'static str, String)>,
}

impl<'d, D: BlockDevice + ?Sized> Checker<'d, D> {
    fn new(device: &'d D, ground: Ground, report: Report) -> Self {
        let blocks = u64::from(ground.blocks - ground.first);
        let inodes = u64::from(ground.inodes);
        Self {
            device,
            report,
            owned: Bits::new(blocks.next_multiple_of(ground.per_group.into())),
            live: Bits::new(inodes),
            inodes: vec![Seen::default(); inodes as usize],
            orphans: Bits::new(inodes),
            directories: Vec::new(),
            further: Vec::new(),
            attr_blocks: BTreeMap::new(),
            contents: Vec::new(),
            ground,
        }
    }

    fn run(&mut self) {
        self.own_metadata();
        self.orphan_list();
        self.all_inodes();
        self.all_directories();
        self.contents_of_inodes();
        self.link_counts();
        self.attribute_references();
        self.bitmaps_and_counts();
    }

    /// Reports a violation of E1 to E19.
    fn corrupt(&mut self, invariant: &str, what: Arguments<'_>) {
        add(&mut self.report, invariant, Severity::Corrupt, what);
    }

    /// Reports a defect that soft updates may leave.
    fn leak(&mut self, invariant: &str, what: Arguments<'_>) {
        add(&mut self.report, invariant, Severity::Leak, what);
    }

    /// Records a defect of an inode's contents. It is harmless if the inode has no name, since it
    /// is then half made or half removed.
    fn content(&mut self, ino: u32, invariant: &'static str, what: Arguments<'_>) {
        if self.contents.len() < MAX_CONTENTS {
            self.contents.push((ino, invariant, what.to_string()));
        } else {
            self.corrupt(invariant, what);
        }
    }

    fn contents_of_inodes(&mut self) {
        for (ino, invariant, what) in std::mem::take(&mut self.contents) {
            if self.seen(ino).names > 0 || ino < self.ground.first_ino {
                self.corrupt(invariant, format_args!("{what}"));
            } else {
                self.leak("E22", format_args!("{what}; it has no name"));
            }
        }
    }

    fn seen(&self, ino: u32) -> Seen {
        self.inodes[ino as usize - 1]
    }

    fn seen_mut(&mut self, ino: u32) -> &mut Seen {
        &mut self.inodes[ino as usize - 1]
    }

    /// Reads a block, or reports that it cannot.
    fn read_block(&mut self, block: u32, buf: &mut [u8]) -> bool {
        let at = u64::from(block) * u64::from(self.ground.block);
        readable(&mut self.report, bytes::read(self.device, at, buf))
    }
}

fn add(report: &mut Report, invariant: &str, severity: Severity, what: Arguments<'_>) {
    report.add(invariant, severity, what.to_string());
}

/// Whether a read succeeded. A failure is a finding (E1).
fn readable(report: &mut Report, read: Result<(), medium::block::BlockError>) -> bool {
    if let Err(error) = &read {
        add(report, "E1", Severity::Corrupt, format_args!("{error}"));
    }
    read.is_ok()
}
