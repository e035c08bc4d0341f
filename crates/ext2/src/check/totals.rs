//! The totals of all findings: link counts, bitmaps, free counts.

use super::Checker;
use crate::format::{GroupDescriptor, ROOT_INO};
use medium::block::BlockDevice;
use std::fmt::{self, Display, Formatter};
use std::ops::RangeInclusive;

/// A bitmap of a group.
struct Bitmap {
    name: &'static str,
    /// The invariants that numbers in use and not marked break, and numbers marked and not in use.
    missing: &'static str,
    extra: &'static str,
    /// The number of the first bit.
    first: u64,
    /// Number of bits that stand for a block or an inode.
    len: u64,
}

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    pub(super) fn link_counts(&mut self) {
        for ino in ROOT_INO..=self.ground.inodes {
            let seen = self.seen(ino);
            if !seen.in_use || (ino < self.ground.first_ino && ino != ROOT_INO) {
                continue;
            }
            let links = u32::from(seen.links);
            if ino != ROOT_INO && seen.names == 0 {
                if links > 0 {
                    self.leak("E22", format_args!("inode {ino} has no name"));
                }
                continue;
            }
            let least = seen.names + u32::from(seen.dot) + u32::from(seen.dotdots);
            let most = least + u32::from(seen.nameless_dotdots);
            if links < least {
                self.corrupt(
                    "E17",
                    format_args!("inode {ino}: {links} links, {least} names"),
                );
            } else if links > most {
                self.leak(
                    "E23",
                    format_args!("inode {ino}: {links} links, {most} names"),
                );
            }
        }
    }

    pub(super) fn bitmaps_and_counts(&mut self) {
        let (mut free_blocks, mut free_inodes) = (0, 0);
        let mut directories = vec![0u32; self.ground.groups.len()];
        for directory in &self.directories {
            directories[((directory.ino - 1) / self.ground.inodes_per_group) as usize] += 1;
        }
        for (group, found) in directories.into_iter().enumerate() {
            let descriptor = self.ground.groups[group];
            let of_blocks = Bitmap {
                name: "block",
                missing: "E8",
                extra: "E20",
                first: self.ground.start(group as u32).into(),
                len: self.ground.blocks_in(group as u32).into(),
            };
            let of_inodes = Bitmap {
                name: "inode",
                missing: "E9",
                extra: "E21",
                first: group as u64 * u64::from(self.ground.inodes_per_group) + 1,
                len: self.ground.inodes_per_group.into(),
            };
            let block_base = group * (self.ground.per_group / 8) as usize;
            let inode_base = group * (self.ground.inodes_per_group / 8) as usize;
            let owned = std::mem::take(&mut self.owned.0);
            let free = self.bitmap(
                descriptor.block_bitmap.get(),
                &of_blocks,
                &owned[block_base..],
            );
            self.group_count(group, "free blocks", descriptor.free_blocks.get(), free);
            free_blocks += free;
            self.owned.0 = owned;
            let live = std::mem::take(&mut self.live.0);
            let free = self.bitmap(
                descriptor.inode_bitmap.get(),
                &of_inodes,
                &live[inode_base..],
            );
            self.group_count(group, "free inodes", descriptor.free_inodes.get(), free);
            free_inodes += free;
            self.live.0 = live;
            let GroupDescriptor { directories, .. } = descriptor;
            self.group_count(group, "directories", directories.get(), found.into());
        }
        let (blocks, inodes) = (
            self.ground.sup.free_blocks.get(),
            self.ground.sup.free_inodes.get(),
        );
        for (name, claimed, found) in [
            ("blocks", blocks, free_blocks),
            ("inodes", inodes, free_inodes),
        ] {
            if u64::from(claimed) != found {
                let what = format_args!("superblock: {claimed} free {name}, not {found}");
                self.leak("E24", what);
            }
        }
    }

    fn group_count(&mut self, group: usize, name: &str, claimed: u16, found: u64) {
        if u64::from(claimed) != found {
            self.leak(
                "E24",
                format_args!("group {group}: {claimed} {name}, not {found}"),
            );
        }
    }

    /// Compares a stored bitmap with the one found. Returns the number of free bits in the latter.
    fn bitmap(&mut self, block: u32, bitmap: &Bitmap, found: &[u8]) -> u64 {
        let mut stored = vec![0; self.ground.block as usize];
        if self.read_block(block, &mut stored) {
            self.compare(bitmap, &stored, found);
        }
        bitmap.len - count(found, bitmap.len)
    }

    fn compare(&mut self, bitmap: &Bitmap, stored: &[u8], found: &[u8]) {
        let name = bitmap.name;
        let (mut missing, mut spare) = (Ranges::default(), Ranges::default());
        for (at, stored) in stored.iter().enumerate() {
            let from = at as u64 * 8;
            let real = match bitmap.len.saturating_sub(from) {
                0 => 0,
                left @ 1..8 => (1 << left) - 1,
                _ => 0xff,
            };
            let found = found.get(at).copied().unwrap_or(0) & real;
            if *stored == found | !real {
                continue;
            }
            for bit in (0..8).filter(|bit| (stored ^ (found | !real)) & (1 << bit) != 0) {
                let number = bitmap.first + from + bit;
                if real & (1 << bit) == 0 {
                    let what = format_args!("{name} bitmap: bit {number}, past the end, is clear");
                    self.corrupt(bitmap.missing, what);
                } else if found & (1 << bit) != 0 {
                    missing.add(number);
                } else {
                    spare.add(number);
                }
            }
        }
        if missing.count > 0 {
            let what = format_args!("in use and marked as free: {name} {missing}");
            self.corrupt(bitmap.missing, what);
        }
        if spare.count > 0 {
            let what = format_args!("marked as used and not in use: {name} {spare}");
            self.leak(bitmap.extra, what);
        }
    }
}

/// Ascending numbers, with neighbours as one range.
#[derive(Default)]
struct Ranges {
    /// Number of all numbers.
    count: u64,
    each: Vec<RangeInclusive<u64>>,
    /// Number of numbers that are not in `each`.
    unlisted: u64,
}

impl Ranges {
    /// Most ranges in the list.
    const MAX: usize = 64;

    fn add(&mut self, number: u64) {
        self.count += 1;
        let full = self.each.len() == Self::MAX;
        match self.each.last_mut() {
            Some(last) if *last.end() + 1 == number => *last = *last.start()..=number,
            _ if full => self.unlisted += 1,
            _ => self.each.push(number..=number),
        }
    }
}

/// Formats as `7, 9-12 and 3 more`.
impl Display for Ranges {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (n, range) in self.each.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            match range.start() == range.end() {
                true => write!(f, "{comma}{}", range.start())?,
                false => write!(f, "{comma}{}-{}", range.start(), range.end())?,
            }
        }
        match self.unlisted {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Number of set bits among the first `len`.
fn count(bytes: &[u8], len: u64) -> u64 {
    let (whole, rest) = ((len / 8) as usize, len % 8);
    let sum: u32 = bytes[..whole].iter().map(|b| b.count_ones()).sum();
    let rest = bytes
        .get(whole)
        .map_or(0, |b| (b & ((1 << rest) - 1)).count_ones());
    u64::from(sum + rest)
}
