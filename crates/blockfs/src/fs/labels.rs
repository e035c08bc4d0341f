//! Labels of the blocks of files and directories, for drawings.

use super::BlockFs;
use super::refusal::Refusal;
use crate::Format;
use hashbrown::{HashMap, HashSet};
use medium::block::Lba;
use std::collections::VecDeque;
use vfs::{Cookie, FileType, Ino};

/// Most inodes that a search for labels visits.
const MOST_INODES: usize = 2_000;
/// Most blocks of files that a search for labels visits.
const MOST_BLOCKS: usize = 100_000;
/// Most blocks that it visits with the tree locked.
const BLOCKS_AT_ONCE: usize = 1_000;

/// A file or directory to visit, by the format's number.
struct Visit {
    ino: Ino,
    kind: FileType,
    /// Empty for the root.
    path: String,
    /// First block of the file to visit. Not 0 in the continuation of a visit.
    from: u64,
}

/// The use of a block by an inode.
#[derive(Clone, Copy)]
enum Use {
    /// The contents, with the index of the block in the file.
    Contents(u64),
    Indirect,
    Attributes,
}

/// The result of a visit.
#[derive(Default)]
struct Found {
    /// Wanted blocks.
    blocks: Vec<(Lba, Use)>,
    /// Number of blocks visited.
    visited: usize,
    is_single: bool,
    /// The block at which the visit continues, if it is not complete.
    next: Option<u64>,
    entries: Vec<Visit>,
}

impl Found {
    /// Adds those of these blocks that are wanted.
    fn add(&mut self, wanted: &HashSet<Lba>, blocks: impl IntoIterator<Item = Lba>, used: Use) {
        let blocks = blocks.into_iter().filter(|lba| wanted.contains(lba));
        self.blocks.extend(blocks.map(|lba| (lba, used)));
    }
}

impl<F: Format> BlockFs<F> {
    /// Labels of blocks by the paths of their files, such as `directory /d` and
    /// `file /d/f block 3`. Searches the tree from the root until all are found, or up to a limit.
    /// Blocks of a large file system may get no label, and files without a name never get one.
    ///
    /// Changes go on during the search. A label is the use of a block when it was visited.
    pub fn label_blocks(&self, blocks: impl IntoIterator<Item = Lba>) -> HashMap<Lba, String> {
        let mut wanted: HashSet<Lba> = blocks.into_iter().collect();
        let mut labels = HashMap::new();
        let mut seen = HashSet::new();
        let mut budget = MOST_BLOCKS;
        let mut todo = VecDeque::from([Visit {
            ino: self.format.root(),
            kind: FileType::Directory,
            path: String::new(),
            from: 0,
        }]);
        while !wanted.is_empty()
            && seen.len() < MOST_INODES
            && let Some(visit) = todo.pop_front()
        {
            if visit.from == 0 && !seen.insert(visit.ino) {
                continue;
            }
            let most = budget.min(BLOCKS_AT_ONCE);
            let Ok(found) = self.look(|| self.visit(&visit, &wanted, most)) else {
                continue;
            };
            budget -= found.visited;
            for (lba, used) in found.blocks {
                wanted.remove(&lba);
                labels.insert(lba, label(&visit, used, found.is_single));
            }
            todo.extend(found.entries);
            if let Some(from) = found.next.filter(|_| budget > 0) {
                todo.push_front(Visit { from, ..visit });
            }
        }
        labels
    }

    /// Finds wanted blocks of a file or directory, in `most` blocks from `visit.from` on. Lists the
    /// entries of a directory with its first blocks.
    fn visit(&self, visit: &Visit, wanted: &HashSet<Lba>, most: usize) -> Result<Found, Refusal> {
        let mut found = Found::default();
        let (format, ino) = (&self.format, visit.ino);
        if visit.from == 0 {
            let lba = format.attribute_block(ino)?;
            found.add(wanted, lba, Use::Attributes);
        }
        let has_blocks = match visit.kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => format.inline_target(ino)?.is_none(),
            FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
                false
            }
        };
        if has_blocks {
            let size = self.attr(ino)?.size;
            let end = size.div_ceil(u64::from(format.block_bytes()));
            found.is_single = end == 1;
            let mut from = visit.from;
            while let Some(index) = format.next_block(ino, from, end)? {
                if found.visited == most {
                    found.next = Some(index);
                    break;
                }
                found.visited += 1;
                found.add(wanted, format.block_of(ino, index)?, Use::Contents(index));
                let indirect = format.indirect_blocks(ino, index)?;
                found.add(wanted, indirect, Use::Indirect);
                from = index + 1;
            }
        }
        if visit.kind == FileType::Directory && visit.from == 0 {
            format.list(ino, Cookie::default(), &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    found.entries.push(Visit {
                        ino: entry.ino,
                        kind: entry.kind,
                        path: format!("{}/{}", visit.path, shown(entry.name)),
                        from: 0,
                    });
                }
                true
            })?;
        }
        Ok(found)
    }
}

/// A name as text without control characters.
fn shown(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    name.chars().map(escape).collect()
}

fn label(visit: &Visit, used: Use, is_single: bool) -> String {
    let path = match visit.path.as_str() {
        "" => "/",
        path => path,
    };
    let kind = match visit.kind {
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Regular => "file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharDevice | FileType::BlockDevice => "device",
    };
    match (used, visit.kind) {
        (Use::Indirect, _) => format!("{kind} {path} indirect block"),
        (Use::Attributes, _) => format!("{kind} {path} attributes"),
        (Use::Contents(_), FileType::Symlink) => format!("{kind} {path}"),
        (Use::Contents(_), FileType::Directory) if is_single => format!("{kind} {path}"),
        (Use::Contents(index), _) => format!("{kind} {path} block {index}"),
    }
}
