//! Shows the consistent view of an image as text: the superblock, inodes, directories.

use crate::alloc::reserved_pages;
use crate::error::{Error, Fault, Res};
use crate::format::{
    FANOUT, HASH_BITS, Hash, Inode, LINES, Line, Link, MAX_DEPTH, Root, TABLE_BITS, inode,
};
use crate::mount::{probe, seed};
use crate::space::Space;
use engine::Selection;
use medium::Pmem;
use std::io::{self, Write};
use vfs::{FileType, Ino};

/// The reason why a dump stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    /// The image is damaged or unreadable.
    #[error(transparent)]
    Image(#[from] Error),
    /// The image has no inode with this number.
    #[error("there is no inode {0}")]
    NoInode(Ino),
    /// The path leads to nothing.
    #[error("inode {0} has no entry '{name}'", name = .1.escape_ascii())]
    NoEntry(Ino, Vec<u8>),
    /// The output failed.
    #[error("writing the output: {0}")]
    Output(#[from] io::Error),
}

impl From<Fault> for DumpError {
    fn from(fault: Fault) -> Self {
        Self::Image(match fault {
            Fault::Medium(e) => Error::Medium(e),
            Fault::Corrupt(what) => Error::Corrupt(what),
            Fault::Errno(e) => Error::Corrupt(e.to_string()),
            Fault::Full | Fault::NamesUnread => Error::Corrupt("no memory".into()),
        })
    }
}

/// Writes a part of an image as text.
pub(crate) fn dump<P: Pmem + ?Sized>(
    pm: &P,
    what: &Selection,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    let info = probe(pm)?;
    let space = Space {
        pm,
        pages: info.pages,
        // No epoch: the latest view is not looked at.
        epoch: 0,
        seed: seed(&info.uuid),
        is_after_crash: true,
    };
    let ino = match what {
        Selection::Super => {
            writeln!(out, "version: {}", info.version)?;
            writeln!(out, "pages: {}", info.pages)?;
            writeln!(out, "epoch: {}", info.epoch)?;
            writeln!(
                out,
                "unmounted: {}",
                if info.is_unmounted { "yes" } else { "no" }
            )?;
            return Ok(());
        }
        Selection::Inode(ino) => match has_line(&space, *ino) {
            true => Ino(*ino),
            false => return Err(DumpError::NoInode(Ino(*ino))),
        },
        Selection::Path(path) => find(&space, path)?,
    };
    show(&space, ino, out)
}

/// Whether a number of an inode is that of a line that can hold one.
fn has_line<P: Pmem>(space: &Space<P>, ino: u64) -> bool {
    let lines = reserved_pages(space.pages) * LINES..space.pages * LINES;
    ino == Ino::ROOT.0 || lines.contains(&ino)
}

/// Visits the dentries of a directory, and the place of each.
fn entries<P: Pmem>(
    space: &Space<P>,
    slot: u64,
    least: Hash,
    depth: u32,
    visit: &mut dyn FnMut(Line) -> Res<()>,
) -> Res<()> {
    let mut link = Link(space.load(slot)?);
    if let Some(table) = link.as_table().filter(|_| depth < MAX_DEPTH) {
        let shift = HASH_BITS - TABLE_BITS * (depth + 1);
        for index in 0..FANOUT {
            let least = Hash(least.0 | index << shift);
            entries(space, space.entry(table, index)?, least, depth + 1, visit)?;
        }
        return Ok(());
    }
    // A chain has no more dentries than the image has lines.
    for _ in 0..space.pages * FANOUT {
        let Some(line) = link.in_chain(least, depth) else {
            break;
        };
        visit(line)?;
        link = space.next(line)?;
    }
    Ok(())
}

fn find<P: Pmem>(space: &Space<P>, path: &[u8]) -> Result<Ino, DumpError> {
    let mut at = Ino::ROOT;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let mut found = None;
        let slot = Line(at.0).word(inode::ROOT);
        if space.inode(Line(at.0))?.kind() != Some(FileType::Directory) {
            return Err(DumpError::NoEntry(at, name.to_owned()));
        }
        entries(space, slot, Hash(0), 0, &mut |line| {
            let entry = space.dentry(line)?;
            if space.is_named(&entry, name)? {
                found = Some(Ino(entry.ino));
            }
            Ok(())
        })?;
        at = found.ok_or_else(|| DumpError::NoEntry(at, name.to_owned()))?;
    }
    Ok(at)
}

fn show<P: Pmem>(space: &Space<P>, ino: Ino, out: &mut dyn Write) -> Result<(), DumpError> {
    let line = Line(ino.0);
    let stored: Inode = space.inode(line)?;
    writeln!(out, "inode {ino} in page {}", ino.0 / 64)?;
    writeln!(out, "mode: {:o}", stored.mode())?;
    writeln!(out, "generation: {}", stored.generation())?;
    writeln!(out, "links: {}", stored.links())?;
    writeln!(out, "owner: {}:{}", stored.uid(), stored.gid())?;
    for (name, word) in [("atime", 5), ("mtime", 6), ("ctime", 7)] {
        writeln!(out, "{name}: {} ns", stored.0[word] as i64)?;
    }
    if let Some(page) = stored.xattr() {
        writeln!(out, "extended attributes: page {}", page.0)?;
    }
    match stored.kind() {
        Some(FileType::Directory) => {
            writeln!(out, "parent: {}", stored.0[2])?;
            let mut lines = Vec::new();
            entries(space, line.word(inode::ROOT), Hash(0), 0, &mut |line| {
                lines.push(line);
                Ok(())
            })?;
            for line in lines {
                let entry = space.dentry(line)?;
                let name = space.name(&entry)?;
                let name = name.escape_ascii();
                let hash = entry.hash.0;
                writeln!(
                    out,
                    "  {name}: inode {}, line {}, hash {hash:014x}",
                    entry.ino, line.0
                )?;
            }
        }
        Some(FileType::Regular) => {
            let root = Root(stored.0[3]);
            writeln!(out, "size: {}", stored.0[2])?;
            writeln!(out, "pages: {}", stored.pages())?;
            match root.page() {
                None => writeln!(out, "tree: none")?,
                Some(page) => writeln!(out, "tree: page {}, height {}", page.0, root.height())?,
            }
        }
        Some(FileType::Symlink) => {
            let len = stored.0[2].min(vfs::SYMLINK_MAX as u64) as usize;
            let mut target = vec![0; len];
            space.text(Line(stored.0[3]), &mut target)?;
            writeln!(out, "target: {}", target.escape_ascii())?;
        }
        Some(_) => writeln!(out, "device: {:#x}", stored.0[3])?,
        None => writeln!(out, "no inode: its type is invalid")?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{MIN_PAGES, PAGE};
    use crate::{MkfsOptions, mkfs};
    use medium::MemoryPmem;

    #[test]
    fn what_is_missing_is_reported_as_missing() {
        let pm = MemoryPmem::new(MIN_PAGES * PAGE);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        for (what, text) in [
            (
                Selection::Path(b"/a/b".to_vec()),
                "inode 1 has no entry 'a'",
            ),
            (Selection::Inode(0), "there is no inode 0"),
            (Selection::Inode(1 << 40), "there is no inode 1099511627776"),
        ] {
            let error = dump(&pm, &what, &mut Vec::new()).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
        dump(&pm, &Selection::Inode(1), &mut Vec::new()).unwrap();
    }
}
