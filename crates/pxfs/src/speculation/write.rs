//! Writes of a client.

use super::{Access, Host, Speculation, State};
use crate::data::{WRITE_MAX, ZEROS, parts};
use crate::error::{Fault, Res};
use crate::inode::Inode;
use crate::seeded::{Bug, hit};
use aerie_objects::{PAGE, page};
use aerie_proto::ops::{Data, Op};
use medium::Pmem;
use vfs::{Ctx, Ino, OpenFlags, Result, perm};

/// The outcome of a write in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlace {
    /// More than contents and times would change. Nothing has changed.
    Impossible,
    /// Contents have changed.
    Done,
    /// The times have changed, too. Others see them when the change was shipped.
    Touched,
}

impl<P: Pmem, H: Host> Speculation<P, H> {
    pub(super) fn write_all(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        let len = data.len() as u64;
        self.fs
            .shared(|| self.fs.may_write(ino, off, len))
            .and_then(|file| self.open_for_writing(cx, &file))?;
        for (n, part) in data.chunks(WRITE_MAX).enumerate() {
            self.write_part(cx, ino, off + (n * WRITE_MAX) as u64, part)?;
        }
        Ok(data.len())
    }

    /// Writes in place, if nothing but contents and times changes. Others may read the file meanwhile: each
    /// aligned word of 8 bytes is old or new.
    ///
    /// # Errors
    /// As `write`.
    pub fn write_in_place(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<InPlace> {
        if !self.is_trusted || self.access != Access::ReadWrite || data.len() > WRITE_MAX {
            return Ok(InPlace::Impossible);
        }
        let written = self.overwrite(cx, ino, off, data, true)?;
        if written == InPlace::Touched {
            let _gate = self.fs.gate.write();
            self.record(
                cx,
                |tx, by| self.fs.touch_file(tx, by, ino),
                |_, ()| Op::Touch { ino },
            )?;
        }
        Ok(written)
    }

    /// Opens a file for writing at the service, if that must be.
    pub(super) fn open_for_writing(&self, cx: &Ctx, file: &Inode) -> Result<()> {
        if self.is_trusted || self.state.lock().opened.contains(&file.object) {
            return Ok(());
        }
        let _gate = self.fs.gate.write();
        self.record_open(cx, file.attr.ino, OpenFlags::WRITE)
    }

    fn write_part(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<()> {
        let is_direct = self.access == Access::ReadWrite;
        if is_direct && self.overwrite(cx, ino, off, data, false)? == InPlace::Done {
            return Ok(());
        }
        let _gate = self.fs.gate.write();
        self.change_contents(cx, ino, off, data)
    }

    /// Writes at the end of a file, which no other call of this client moves meanwhile. Returns the offset.
    pub(super) fn append_all(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<u64> {
        let file = self.fs.shared(|| self.fs.may_write(ino, 0, 0))?;
        self.open_for_writing(cx, &file)?;
        let (first, rest) = data.split_at(data.len().min(WRITE_MAX));
        let append = |part: &[u8]| {
            let _gate = self.fs.gate.write();
            let file = self.fs.inode(self.overlay(), ino).map_err(Fault::errno)?;
            let end = file.attr.size;
            if part.is_empty() {
                return Ok(end);
            }
            self.change_contents(cx, ino, end, part).map(|()| end)
        };
        let off = append(first)?;
        rest.chunks(WRITE_MAX)
            .try_for_each(|part| append(part).map(drop))?;
        Ok(off)
    }

    /// Writes a part, where the file changes. The gate is held for a change.
    fn change_contents(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<()> {
        if self.access == Access::ReadWrite && self.store_new(cx, ino, off, data)? {
            return Ok(());
        }
        let write = Op::Write {
            ino,
            off,
            data: Data::Bytes(data),
        };
        self.record(
            cx,
            |tx, by| self.fs.write_bytes(tx, by, ino, off, data),
            |_, ()| write,
        )
    }

    /// Writes in place, if nothing but contents changes, and the times if they `may_change`.
    fn overwrite(
        &self,
        cx: &Ctx,
        ino: Ino,
        off: u64,
        data: &[u8],
        may_change: bool,
    ) -> Result<InPlace> {
        self.fs.shared(|| {
            let now = self.fs.clock.now();
            let file = self.fs.may_write(ino, off, data.len() as u64)?;
            let attr = &file.attr;
            let is_same = off + data.len() as u64 <= attr.size
                && perm::perm_after_write(cx, attr) == attr.perm
                && !self.fs.has_capabilities(self.overlay(), &file)?;
            let is_touched = (attr.mtime, attr.ctime) != (now, now);
            let is_possible = is_same && (may_change || !is_touched);
            if !is_possible || self.missing(&file, off, data.len())? != Some(0) {
                return Ok(InPlace::Impossible);
            }
            self.store(&file, off, data, &[])?;
            Ok(match is_touched {
                true => InPlace::Touched,
                false => InPlace::Done,
            })
        })
    }

    /// Number of pages that a write needs. `None` if the service will change one of the others itself,
    /// so that nothing can be stored there.
    fn missing(&self, file: &Inode, off: u64, len: usize) -> Res<Option<usize>> {
        let memory = self.overlay();
        let mut missing = 0;
        for (index, ..) in parts(off, len) {
            match page(memory, file.object, index)? {
                None => missing += 1,
                Some(page) if memory.is_private(page) => return Ok(None),
                Some(_) => {}
            }
        }
        Ok(Some(missing))
    }

    /// Writes in pages of the file, and in new ones.
    fn store_new(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<bool> {
        let len = data.len() as u64;
        let prepared = || {
            let file = self.fs.may_write(ino, off, len)?;
            let end_of_file = match off + len > file.attr.size {
                true => self.last_page(&file)?,
                false => None,
            };
            if let Some((page, _)) = end_of_file
                && (self.overlay().is_private(page) || self.is_cut(&file))
            {
                return Ok(None);
            }
            self.missing(&file, off, data.len())
        };
        let Some(missing) = prepared().map_err(Fault::errno)? else {
            return Ok(false);
        };
        self.refill([missing, 0])?;
        let (file, new) = self.record(
            cx,
            |tx, by| {
                let mut new = Vec::with_capacity(missing);
                let file = self
                    .fs
                    .write_stored(tx, by, ino, off, len, |tx, file, index| {
                        new.push(tx.add_reserved(file, index)?);
                        Ok(())
                    })?;
                Ok((file, new))
            },
            |_, (_, new)| {
                let pages = new.clone();
                let data = Data::Stored { len, pages };
                Op::Write { ino, off, data }
            },
        )?;
        let stored = || {
            if off + len > file.attr.size
                && let Some((page, within)) = self.last_page(&file)?
            {
                let zeros = &ZEROS[within as usize..];
                self.overlay().base().store(page + within, zeros);
                self.state.lock().dirty.pages.insert(page);
            }
            self.store(&file, off, data, &new)
        };
        stored().map_err(Fault::errno)?;
        Ok(true)
    }

    /// Whether a call that was not shipped has cut the file. Nothing is stored over the contents that are cut off: they
    /// stay if the client ends before.
    fn is_cut(&self, file: &Inode) -> bool {
        let committed = aerie_objects::size(self.overlay().base(), file.object).unwrap_or(0);
        committed > file.attr.size && !hit(Bug::ZerosOverUncut)
    }

    /// The page in which a file ends, and the bytes of the file in it.
    fn last_page(&self, file: &Inode) -> Res<Option<(u64, u64)>> {
        let within = file.attr.size % PAGE;
        if within == 0 {
            return Ok(None);
        }
        let found = page(self.overlay(), file.object, file.attr.size / PAGE)?;
        Ok(found.map(|page| (page, within)))
    }

    /// Stores all contents of a new page, around the caches of the processor. It then needs no flush, but
    /// [`hand_over`](Self::hand_over) by this thread.
    pub(super) fn fill(&self, page: u64, contents: &[u8; PAGE as usize]) {
        self.overlay().base().store_nt(page, contents);
    }

    /// Has the next ship make the pages durable that this thread has filled. No batch that names them may be shipped
    /// before.
    pub(super) fn hand_over(&self, state: &mut State) {
        self.overlay().base().drain();
        state.dirty.are_filled = true;
    }

    /// Stores contents in the shared memory; the rest of each new page becomes zeros.
    fn store(&self, file: &Inode, off: u64, data: &[u8], new: &[u64]) -> Res<()> {
        let mut state = self.state.lock();
        let stored = self.store_parts(&mut state, file, (off, data), new);
        // Shorter contents fill no page.
        if !new.is_empty() && data.len() as u64 >= PAGE {
            self.hand_over(&mut state);
        }
        stored
    }

    fn store_parts(
        &self,
        state: &mut State,
        file: &Inode,
        (off, data): (u64, &[u8]),
        new: &[u64],
    ) -> Res<()> {
        let memory = self.overlay();
        let base = memory.base();
        let mut new = new.iter().peekable();
        for (index, within, part) in parts(off, data.len()) {
            let Some(page) = page(memory, file.object, index)? else {
                continue;
            };
            let part = &data[part];
            let is_new = new.next_if_eq(&&page).is_some();
            if is_new && let Ok(contents) = part.try_into() {
                self.fill(page, contents);
                continue;
            }
            if is_new {
                let end = within + part.len() as u64;
                let rest = [
                    (0, &ZEROS[..within as usize]),
                    (end, &ZEROS[end as usize..]),
                ];
                let rest = rest.iter().filter(|(_, zeros)| !zeros.is_empty());
                rest.for_each(|(at, zeros)| base.store(page + at, zeros));
            }
            base.store(page + within, part);
            state.dirty.pages.insert(page);
        }
        Ok(())
    }
}
