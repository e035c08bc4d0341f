//! The checker: examines an image without changing it and without mounting it.
//!
//! # Guarantees
//! - Read-only. Every finding names an invariant of `format.md`, E1 to E29, and the
//!   structure that breaks it; the check goes on behind it wherever there is a way on.
//! - What soft updates may leave after a crash is a [`Severity::Leak`]; all else is
//!   [`Severity::Corrupt`].
//! - Time is bounded by the size of the device: no block is examined twice as the same
//!   thing. Memory is bounded by one bit for each block, twelve bytes for each inode, four
//!   for each block of a directory, and the names of one directory. Further names of
//!   directories are at most as many as these.
//! - It shares the format's numbers with the code that mounts, and nothing else, since the
//!   two check each other.
//!
//! # Order
//! Superblock and descriptors (`ground`), the orphan list (`orphans`), inodes with their
//! blocks and attributes (`inodes`, `blocks`, `attrs`), directories (`dirs`), then what all
//! of these must add up to (`totals`).

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

    /// Adds `n`; false if it was there, or is out of range.
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

/// What is known of an inode.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// In use: its type. Of reserved inodes that are not files `None`.
    kind: Option<FileType>,
    in_use: bool,
    /// Its link count.
    links: u16,
    /// Names found, besides `.` and `..`.
    names: u32,
    /// A directory with a `.`.
    dot: bool,
    /// `..` entries of directories that have names themselves.
    dotdots: u16,
    /// `..` entries of nameless directories.
    nameless_dotdots: u16,
}

/// A directory and what its entries say.
struct Directory {
    ino: u32,
    /// Its blocks in order, as far as its size goes.
    blocks: Vec<u32>,
    /// Who `..` is; 0: there is none.
    dotdot: u32,
    /// The directory with the name of it, of several the one that `..` leads to; 0: none.
    parent: u32,
}

/// Most findings about contents that wait until it is known whether their inode has a name.
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
    /// In the order of their numbers.
    directories: Vec<Directory>,
    /// Further names of directories, as renames may leave them: which directory, and where its
    /// name is.
    further: Vec<(usize, u32)>,
    /// Attribute blocks: references that they claim, references found.
    attr_blocks: BTreeMap<u32, (u32, u32)>,
    /// Findings about the contents of inodes: harmless if the inode has no name.
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

    /// A violation of what must never be.
    fn corrupt(&mut self, invariant: &str, what: Arguments<'_>) {
        add(&mut self.report, invariant, Severity::Corrupt, what);
    }

    /// Something that soft updates may leave.
    fn leak(&mut self, invariant: &str, what: Arguments<'_>) {
        add(&mut self.report, invariant, Severity::Leak, what);
    }

    /// Something wrong in an inode that would not matter if it had no name: it is half
    /// made, or half removed.
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

/// Whether a read succeeded; if not, a finding (E1).
fn readable(report: &mut Report, read: Result<(), medium::block::BlockError>) -> bool {
    if let Err(error) = &read {
        add(report, "E1", Severity::Corrupt, format_args!("{error}"));
    }
    read.is_ok()
}
