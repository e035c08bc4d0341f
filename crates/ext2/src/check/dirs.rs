//! Directories: their entries, and the tree that these make.

use super::{Checker, Directory};
use crate::format::{DIRENT_HEADER, DirentHeader, ROOT_INO, type_code};
use medium::block::BlockDevice;
use std::ops::Range;
use vfs::FileType;
use zerocopy::FromBytes;

/// Smallest entry.
const ENTRY_MIN: usize = 12;

/// The names of one directory, to find those that come twice.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    each: Vec<Range<usize>>,
}

impl Names {
    fn add(&mut self, name: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.each.push(start..self.bytes.len());
    }

    /// Empties the set. Returns one name that came twice, if any.
    fn finish(&mut self) -> Option<Vec<u8>> {
        let bytes = &self.bytes;
        self.each
            .sort_unstable_by_key(|range| &bytes[range.clone()]);
        let twice = |pair: &&[Range<usize>]| bytes[pair[0].clone()] == bytes[pair[1].clone()];
        let found = self.each.windows(2).find(twice);
        let found = found.map(|pair| bytes[pair[0].clone()].to_vec());
        self.each.clear();
        self.bytes.clear();
        found
    }
}

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    pub(super) fn all_directories(&mut self) {
        if self.seen(ROOT_INO).kind != Some(FileType::Directory) {
            self.corrupt(
                "E18",
                format_args!("inode {ROOT_INO}, the root, is not a directory"),
            );
        }
        let mut names = Names::default();
        let mut buf = vec![0; self.ground.block as usize];
        for n in 0..self.directories.len() {
            let blocks = std::mem::take(&mut self.directories[n].blocks);
            for (index, block) in blocks.iter().enumerate() {
                if self.read_block(*block, &mut buf) {
                    self.entries(n, index, &buf, &mut names);
                }
            }
            self.directories[n].blocks = blocks;
            if let Some(name) = names.finish() {
                let (ino, name) = (self.directories[n].ino, name.escape_ascii());
                self.corrupt("E14", format_args!("inode {ino}: '{name}' comes twice"));
            }
        }
        self.several_names();
        self.tree();
    }

    /// Checks one block of a directory.
    fn entries(&mut self, dir: usize, index: usize, block: &[u8], names: &mut Names) {
        let ino = self.directories[dir].ino;
        let mut at = 0;
        let mut nth = if index == 0 { 0 } else { 2 };
        while at < block.len() {
            let header = DirentHeader::read_from_prefix(&block[at..]);
            let Ok((header, _)) = header else {
                return self.broken(ino, index, at);
            };
            let (len, name_len) = (
                usize::from(header.rec_len.get()),
                usize::from(header.name_len),
            );
            let fits = len >= ENTRY_MIN && len.is_multiple_of(4) && at + len <= block.len();
            if !fits || DIRENT_HEADER + name_len > len {
                return self.broken(ino, index, at);
            }
            let name = &block[at + DIRENT_HEADER..at + DIRENT_HEADER + name_len];
            match nth {
                0 | 1 => self.dot(dir, nth, &header, name),
                _ if header.inode.get() != 0 => self.entry(dir, &header, name, names),
                _ => {}
            }
            at += len;
            nth += 1;
        }
        if nth < 2 {
            self.corrupt("E13", format_args!("inode {ino}: no '.' and '..'"));
        }
    }

    fn broken(&mut self, ino: u32, index: usize, at: usize) {
        let what = format_args!("inode {ino}: block {index}, offset {at}: not an entry");
        self.corrupt("E12", what);
    }

    /// Checks one of the first two entries.
    fn dot(&mut self, dir: usize, nth: usize, header: &DirentHeader, name: &[u8]) {
        let (ino, target) = (self.directories[dir].ino, header.inode.get());
        let right = match nth {
            0 => name == b"." && target == ino,
            _ => name == b".." && target >= ROOT_INO && target <= self.ground.inodes,
        };
        if !right {
            let expected = [".", ".."][nth];
            return self.corrupt("E13", format_args!("inode {ino}: no '{expected}'"));
        }
        match self.misled(header) {
            // A directory without a name may outlive its parent: its `..` may lead to a free inode.
            Some((invariant, wrong)) if nth == 1 => {
                self.content(ino, invariant, format_args!("inode {ino}: '..' {wrong}"));
            }
            Some((invariant, wrong)) => {
                self.corrupt(invariant, format_args!("inode {ino}: '.' {wrong}"));
            }
            None if nth == 0 => self.seen_mut(ino).dot = true,
            None => self.directories[dir].dotdot = target,
        }
    }

    /// Checks the target of an entry in use.
    fn named(&mut self, dir: usize, header: &DirentHeader, name: &[u8]) -> bool {
        let Some((invariant, wrong)) = self.misled(header) else {
            return true;
        };
        let (ino, name) = (self.directories[dir].ino, name.escape_ascii());
        self.corrupt(invariant, format_args!("inode {ino}: '{name}' {wrong}"));
        invariant == "E14"
    }

    /// The invariant that an entry's target breaks, and the defect.
    fn misled(&self, header: &DirentHeader) -> Option<(&'static str, String)> {
        let target = header.inode.get();
        let reserved = target < self.ground.first_ino && target != ROOT_INO;
        if reserved || target > self.ground.inodes {
            return Some(("E15", format!("leads to inode {target}, not a file")));
        }
        let seen = self.seen(target);
        if !seen.in_use {
            return Some(("E15", format!("leads to inode {target}, which is free")));
        }
        let code = if self.has_types() {
            seen.kind.map_or(0, type_code)
        } else {
            0
        };
        // With types, 0 is "not known".
        let kind = header.file_type;
        let right = kind == code || (self.has_types() && kind == 0);
        (!right).then(|| ("E14", format!("has type {kind}, not {code}")))
    }

    fn entry(&mut self, dir: usize, header: &DirentHeader, name: &[u8], names: &mut Names) {
        let (ino, target) = (self.directories[dir].ino, header.inode.get());
        let illegal = name.is_empty() || name == b"." || name == b"..";
        if illegal || name.iter().any(|b| matches!(b, 0 | b'/')) {
            let name = name.escape_ascii();
            self.corrupt("E14", format_args!("inode {ino}: '{name}' is not a name"));
        }
        names.add(name);
        if !self.named(dir, header, name) {
            return;
        }
        let seen = self.seen_mut(target);
        seen.names += 1;
        if seen.kind != Some(FileType::Directory) {
            return;
        }
        let found = (self.directories).binary_search_by_key(&target, |d| d.ino);
        // A name that leads to the root or to its own directory is wrong in any case.
        let known = found.ok().filter(|_| target != ROOT_INO && target != ino);
        let room = self.further.len() < self.directories.len();
        match known {
            Some(n) if self.directories[n].parent == 0 => self.directories[n].parent = ino,
            Some(n) if room => self.further.push((n, ino)),
            _ => {
                let name = name.escape_ascii();
                let what =
                    format_args!("inode {ino}: '{name}' is another name of directory {target}");
                self.corrupt("E16", what);
            }
        }
    }

    /// Checks directories with several names, which interrupted renames left. `..` selects the name
    /// that counts.
    fn several_names(&mut self) {
        let mut further = std::mem::take(&mut self.further);
        further.sort_unstable();
        for (n, other) in &mut further {
            let directory = &mut self.directories[*n];
            if directory.dotdot == *other {
                std::mem::swap(&mut directory.parent, other);
            }
        }
        // Enough for all that renames leave. It bounds the time to that of a second walk of the
        // tree.
        let mut steps = self.directories.len();
        for names in further.chunk_by(|a, b| a.0 == b.0) {
            let Directory {
                ino,
                dotdot,
                parent,
                ..
            } = self.directories[names[0].0];
            let mut others = names.iter().map(|(_, other)| *other);
            if dotdot != parent {
                let what = format_args!("inode {ino}: several names, and '..' is {dotdot}");
                self.corrupt("E16", what);
            } else if others.any(|other| self.is_above(ino, other, &mut steps)) {
                let what = format_args!("inode {ino}: a further name below itself");
                self.corrupt("E16", what);
            } else {
                let count = 1 + names.len();
                self.leak(
                    "E29",
                    format_args!("inode {ino}: a directory with {count} names"),
                );
            }
        }
    }

    /// Whether a directory is `below` or above it. Also true if `steps` run out.
    fn is_above(&self, ino: u32, below: u32, steps: &mut usize) -> bool {
        let mut at = below;
        while at != ino {
            let found = self.directories.binary_search_by_key(&at, |d| d.ino);
            let Some(n) = found.ok().filter(|_| at != ROOT_INO) else {
                return false;
            };
            let Some(left) = steps.checked_sub(1) else {
                return true;
            };
            *steps = left;
            at = self.directories[n].parent;
        }
        true
    }

    /// Checks that every directory but the root has its parent as `..`, and that none is above
    /// itself.
    fn tree(&mut self) {
        // For each directory, the walk that has followed it upwards.
        let mut walked = vec![usize::MAX; self.directories.len()];
        for n in 0..self.directories.len() {
            let Directory {
                ino,
                dotdot,
                parent,
                ..
            } = self.directories[n];
            self.count_dotdot(n);
            let parent = if ino == ROOT_INO { ROOT_INO } else { parent };
            if dotdot != parent && parent != 0 && dotdot != 0 {
                let what = format_args!("inode {ino}: '..' is {dotdot}, not {parent}");
                self.corrupt("E16", what);
            }
            let mut at = n;
            while walked[at] == usize::MAX {
                walked[at] = n;
                let above = self.directories[at].parent;
                match self.directories.binary_search_by_key(&above, |d| d.ino) {
                    Ok(above) if walked[above] == n => {
                        let what = format_args!("inode {ino}: a directory above itself");
                        self.corrupt("E16", what);
                    }
                    Ok(above) => at = above,
                    Err(_) => break,
                }
            }
        }
    }

    fn count_dotdot(&mut self, n: usize) {
        let Directory { ino, dotdot, .. } = self.directories[n];
        if dotdot == 0 {
            return;
        }
        let nameless = ino != ROOT_INO && self.seen(ino).names == 0;
        let above = self.seen_mut(dotdot);
        let count = match nameless {
            true => &mut above.nameless_dotdots,
            false => &mut above.dotdots,
        };
        *count = count.saturating_add(1);
    }
}
