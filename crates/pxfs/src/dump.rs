//! Shows a store as text: the superblock, inodes, directories.

use crate::error::Fault;
use crate::inode::{self, Inode};
use aerie_objects::{
    Error, ObjectId, PAGE, Superblock, entries, generation, list_all, lookup, members, next_page,
    page, parent,
};
use engine::Selection;
use medium::Pmem;
use std::io::{self, Write};
use vfs::{Errno, FileType, Ino};

/// The reason why a dump stopped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The store is damaged or unreadable.
    #[error(transparent)]
    Store(#[from] Error),
    /// There is no such file.
    #[error(transparent)]
    File(#[from] Errno),
    /// The output failed.
    #[error("writing the output: {0}")]
    Output(#[from] io::Error),
}

impl From<Fault> for DumpError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Store(error) => Self::Store(error),
            Fault::Call(errno) => Self::File(errno),
        }
    }
}

/// Most pages of a file that are listed.
const PAGES_MAX: usize = 1024;

/// Writes a part of a store, whose log was replayed, as text.
///
/// # Errors
/// The reason why it stopped.
pub fn dump<P: Pmem>(memory: &P, what: &Selection, out: &mut dyn Write) -> Result<(), DumpError> {
    let superblock = Superblock::load(memory)?;
    let object = match what {
        Selection::Super => return Ok(show_superblock(&superblock, out)?),
        Selection::Inode(ino) => inode::object(&superblock, Ino(*ino)).ok_or(Errno::NOENT)?,
        Selection::Path(path) => find(memory, &superblock, path)?,
    };
    generation(memory, object)?;
    show(memory, &superblock, object, out)
}

fn show_superblock(superblock: &Superblock, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "bytes: {}", superblock.bytes)?;
    let (logs, bytes, at) = (superblock.logs, superblock.logs_bytes(), superblock.log);
    match logs {
        1 => writeln!(out, "log: {bytes} bytes at {at:#x}")?,
        _ => writeln!(out, "logs: {logs}, {bytes} bytes at {at:#x}")?,
    }
    writeln!(out, "root: {}", superblock.root)?;
    writeln!(out, "open objects: {}", superblock.open)?;
    writeln!(out, "extended attributes: {}", superblock.attributes)
}

fn find<P: Pmem>(memory: &P, superblock: &Superblock, path: &[u8]) -> Result<ObjectId, DumpError> {
    let mut at = superblock.root;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        let found = match lookup(memory, at, superblock.seed, name) {
            Err(Error::NoObject(_)) => return Err(Errno::NOTDIR.into()),
            found => found?,
        };
        at = found.ok_or(Errno::NOENT)?;
    }
    Ok(at)
}

fn show<P: Pmem>(
    memory: &P,
    superblock: &Superblock,
    object: ObjectId,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    let inode = Inode::load(memory, superblock, object)?;
    let attr = &inode.attr;
    writeln!(out, "inode {}, {object}", attr.ino)?;
    writeln!(out, "mode: {:o}", attr.mode())?;
    writeln!(out, "generation: {}", attr.generation)?;
    writeln!(
        out,
        "links: {}, memberships: {}",
        attr.nlink,
        members(memory, object)?
    )?;
    writeln!(out, "owner: {}:{}", attr.uid, attr.gid)?;
    for (name, time) in [
        ("atime", attr.atime),
        ("mtime", attr.mtime),
        ("ctime", attr.ctime),
    ] {
        writeln!(out, "{name}: {} ns", time.0)?;
    }
    writeln!(out, "pages: {}", aerie_objects::pages(memory, object)?)?;
    if inode.has_xattrs {
        let key = crate::fs::key(object);
        let file = lookup(memory, superblock.attributes, superblock.seed, &key)?;
        let file = file.map_or("missing".into(), |file| file.to_string());
        writeln!(out, "extended attributes: {file}")?;
    }
    match attr.kind {
        FileType::Directory => show_directory(memory, superblock, object, out),
        FileType::Regular => show_pages(memory, object, attr.size, out),
        FileType::Symlink => {
            let mut target = vec![0; attr.size.min(PAGE) as usize];
            let first = page(memory, object, 0)?.ok_or(Errno::UCLEAN)?;
            memory.read(first, &mut target).map_err(Error::from)?;
            Ok(writeln!(out, "target: {}", target.escape_ascii())?)
        }
        _ => Ok(writeln!(out, "device: {:#x}", attr.rdev)?),
    }
}

fn show_directory<P: Pmem>(
    memory: &P,
    superblock: &Superblock,
    dir: ObjectId,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    let above = parent(memory, dir)?.map_or("none".into(), |above| above.to_string());
    writeln!(out, "parent: {above}")?;
    writeln!(out, "entries: {}", entries(memory, dir)?)?;
    for entry in list_all(memory, dir, superblock.seed)? {
        let name = entry.key.escape_ascii();
        writeln!(out, "  {name}: {}", entry.object)?;
    }
    Ok(())
}

fn show_pages<P: Pmem>(
    memory: &P,
    file: ObjectId,
    size: u64,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    writeln!(out, "size: {size}")?;
    let mut next = next_page(memory, file, 0)?;
    for _ in 0..PAGES_MAX {
        let Some(index) = next else { return Ok(()) };
        let at = page(memory, file, index)?.ok_or(Errno::UCLEAN)?;
        writeln!(out, "  page {index}: {at:#x}")?;
        next = next_page(memory, file, index + 1)?;
    }
    match next {
        Some(index) => Ok(writeln!(out, "  more pages from {index} on")?),
        None => Ok(()),
    }
}
