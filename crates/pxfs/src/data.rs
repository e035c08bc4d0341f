//! Calls on the contents of files.
//!
//! A change of contents takes new pages, so that the transaction is atomic. Only bytes beyond the committed end of
//! a file are changed in place.

use crate::error::Res;
use crate::fs::{By, Pxfs};
use crate::inode::{Inode, SIZE_MAX};
use crate::names::touch;
use crate::seeded::{Bug, hit};
use aerie_objects::{Load, ObjectId, PAGE, Transaction, next_page, page};
use medium::Pmem;
use vfs::{Errno, Fallocate, Ino, SeekKind, end_of, must_be_regular, perm};

/// Most bytes of a write that are atomic. A longer write is several.
pub const WRITE_MAX: usize = 2 << 20;
pub(crate) const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// The parts of a range in each page: index, first byte in the page, and the range in the buffer.
pub(crate) fn parts(
    off: u64,
    len: usize,
) -> impl Iterator<Item = (u64, u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = off + done as u64;
        let within = at % PAGE;
        let count = (len - done).min((PAGE - within) as usize);
        let part = (at / PAGE, within, done..done + count);
        done += count;
        (count > 0).then_some(part)
    })
}

impl<P: Pmem> Pxfs<P> {
    /// Reads. Also returns the inode.
    pub(crate) fn read_data(&self, ino: Ino, off: u64, buf: &mut [u8]) -> Res<(usize, Inode)> {
        let file = self.inode(self.store.memory(), ino)?;
        must_be_regular(file.attr.kind, Errno::INVAL)?;
        let len = file.attr.size.saturating_sub(off).min(buf.len() as u64) as usize;
        let memory = self.store.memory();
        read_bytes(memory, memory, &file, off, &mut buf[..len])?;
        Ok((len, file))
    }

    /// Reads the target of a symbolic link. Also returns the inode.
    pub(crate) fn read_target(&self, ino: Ino) -> Res<(Vec<u8>, Inode)> {
        let link = self.inode(self.store.memory(), ino)?;
        if link.attr.kind != vfs::FileType::Symlink {
            return Err(Errno::INVAL.into());
        }
        let mut target = vec![0; link.attr.size.min(PAGE) as usize];
        let memory = self.store.memory();
        read_bytes(memory, memory, &link, 0, &mut target)?;
        Ok((target, link))
    }

    /// The file to be written, after checks. `len`: bytes from `off` on.
    fn writable<M: Load>(&self, memory: &M, ino: Ino, off: u64, len: u64) -> Res<Inode> {
        let file = self.inode(memory, ino)?;
        must_be_regular(file.attr.kind, Errno::INVAL)?;
        end_of(off, len, SIZE_MAX)?;
        perm::may_write(&file.attr, off)?;
        Ok(file)
    }

    /// Checks a write. One of no bytes checks its arguments only.
    pub(crate) fn may_write(&self, ino: Ino, off: u64, len: u64) -> Res<Inode> {
        self.writable(self.store.memory(), ino, off, len)
    }

    /// Writes in pages that replace the old ones.
    pub(crate) fn write_bytes(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        off: u64,
        data: &[u8],
    ) -> Res<()> {
        let mut file = self.writable(tx, ino, off, data.len() as u64)?;
        grow(tx, &file, off + data.len() as u64)?;
        for (index, within, part) in parts(off, data.len()) {
            change_page(tx, &file, index, within, &data[part])?;
        }
        self.drop_privileges(tx, by, &mut file)?;
        touch(tx, &mut file, by.now())
    }

    /// Drops what a program gets by being executed, since its contents change. The caller stores the inode.
    pub(crate) fn drop_privileges(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        file: &mut Inode,
    ) -> Res<()> {
        file.attr.perm = perm::perm_after_write(by.cx, &file.attr);
        self.drop_capabilities(tx, file)
    }

    /// Makes room for a write whose bytes the caller stores: in pages of the file, and in those that
    /// `add` adds at the indices without one. Returns the file as it was.
    pub(crate) fn write_stored(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        off: u64,
        len: u64,
        mut add: impl FnMut(&mut Transaction<'_, P>, ObjectId, u64) -> Res<()>,
    ) -> Res<Inode> {
        let file = self.writable(tx, ino, off, len)?;
        let end = off + len;
        for index in off / PAGE..end.div_ceil(PAGE) {
            if page(tx, file.object, index)?.is_none() {
                add(tx, file.object, index)?;
            }
        }
        if end > file.attr.size {
            tx.set_size(file.object, end)?;
        }
        let mut written = file;
        self.drop_privileges(tx, by, &mut written)?;
        touch(tx, &mut written, by.now())?;
        Ok(file)
    }

    /// Sets the times of a file whose contents were overwritten.
    pub(crate) fn touch_file(&self, tx: &mut Transaction<'_, P>, by: By<'_>, ino: Ino) -> Res<()> {
        let mut file = self.inode(tx, ino)?;
        must_be_regular(file.attr.kind, Errno::INVAL)?;
        touch(tx, &mut file, by.now())
    }

    pub(crate) fn allocate(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        kind: Fallocate,
        off: u64,
        len: u64,
    ) -> Res<()> {
        let mut file = self.inode(tx, ino)?;
        must_be_regular(file.attr.kind, Errno::NODEV)?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = end_of(off, len, SIZE_MAX)?;
        perm::may_fallocate(&file.attr, kind)?;
        match kind {
            Fallocate::Allocate { .. } => fill(tx, &file, off, end)?,
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => punch(tx, &file, off, end)?,
        }
        if !kind.keeps_size() {
            grow(tx, &file, end)?;
        }
        self.drop_privileges(tx, by, &mut file)?;
        touch(tx, &mut file, by.now())
    }

    pub(crate) fn seek_data(&self, ino: Ino, off: u64, kind: SeekKind) -> Res<u64> {
        let memory = self.store.memory();
        let file = self.inode(memory, ino)?;
        must_be_regular(file.attr.kind, Errno::INVAL)?;
        let size = file.attr.size;
        if off >= size {
            return Err(Errno::NXIO.into());
        }
        let mut index = off / PAGE;
        match kind {
            SeekKind::Data => {
                let found = next_page(memory, file.object, index)?.map(|index| index * PAGE);
                let found = found.filter(|found| *found < size).ok_or(Errno::NXIO)?;
                Ok(found.max(off))
            }
            SeekKind::Hole => {
                while index * PAGE < size && page(memory, file.object, index)?.is_some() {
                    index += 1;
                }
                Ok((index * PAGE).clamp(off, size))
            }
        }
    }
}

/// Copies bytes of a file, whose pages are those of `tree`.
pub(crate) fn read_bytes<M: Load + ?Sized, P: Pmem>(
    tree: &M,
    memory: &P,
    file: &Inode,
    off: u64,
    buf: &mut [u8],
) -> Res<()> {
    for (index, within, part) in parts(off, buf.len()) {
        match page(tree, file.object, index)? {
            Some(page) => Pmem::read(memory, page + within, &mut buf[part])
                .map_err(aerie_objects::Error::from)?,
            None => buf[part].fill(0),
        }
    }
    Ok(())
}

/// Changes bytes of a page, which gets the place of the old one.
fn change_page<P: Pmem>(
    tx: &mut Transaction<'_, P>,
    file: &Inode,
    index: u64,
    within: u64,
    bytes: &[u8],
) -> Res<()> {
    let mut contents = ZEROS;
    if let Some(old) = tx.remove_page(file.object, index)?
        && bytes.len() < contents.len()
    {
        // No transaction keeps words of contents, and the page is free after the commit.
        Pmem::read(tx.memory(), old, &mut contents).map_err(aerie_objects::Error::from)?;
    }
    contents[within as usize..][..bytes.len()].copy_from_slice(bytes);
    Ok(tx.add_contents(file.object, index, &contents)?)
}

/// Sets a greater size. Bytes between the old and the new one are zeros, those of the last page too.
pub(crate) fn grow<P: Pmem>(tx: &mut Transaction<'_, P>, file: &Inode, size: u64) -> Res<()> {
    let old = file.attr.size;
    if size <= old {
        return Ok(());
    }
    // First: nobody else may change the file when bytes beyond its end are stored in place.
    tx.set_size(file.object, size)?;
    if !old.is_multiple_of(PAGE)
        && let Some(page) = page(tx, file.object, old / PAGE)?
    {
        let within = old % PAGE;
        let zeros = &ZEROS[within as usize..];
        // Bytes that this transaction has cut off are those of the file until the commit. A new file has none.
        let committed = aerie_objects::size(tx.memory(), file.object).unwrap_or(0);
        if committed > old && !hit(Bug::ZerosBeforeCut) {
            change_page(tx, file, old / PAGE, within, zeros)?;
        } else {
            tx.store_contents(page + within, zeros);
        }
    }
    Ok(())
}

/// Sets a lesser size.
pub(crate) fn cut<P: Pmem>(tx: &mut Transaction<'_, P>, file: &Inode, size: u64) -> Res<()> {
    tx.cut_pages(file.object, size.div_ceil(PAGE))?;
    Ok(tx.set_size(file.object, size)?)
}

/// Takes pages for the holes of a range.
fn fill<P: Pmem>(tx: &mut Transaction<'_, P>, file: &Inode, off: u64, end: u64) -> Res<()> {
    for index in off / PAGE..end.div_ceil(PAGE) {
        if page(tx, file.object, index)?.is_none() {
            tx.add_page(file.object, index)?;
        }
    }
    Ok(())
}

/// Makes a range zeros, whole pages of it holes.
fn punch<P: Pmem>(tx: &mut Transaction<'_, P>, file: &Inode, off: u64, end: u64) -> Res<()> {
    let mut next = Some(off / PAGE);
    while let Some(from) = next {
        let Some(index) = next_page(tx, file.object, from)?.filter(|index| index * PAGE < end)
        else {
            break;
        };
        let (start, stop) = (off.max(index * PAGE), end.min((index + 1) * PAGE));
        if stop - start == PAGE {
            tx.remove_page(file.object, index)?;
        } else {
            let zeros = &ZEROS[..(stop - start) as usize];
            change_page(tx, file, index, start % PAGE, zeros)?;
        }
        next = index.checked_add(1);
    }
    Ok(())
}
