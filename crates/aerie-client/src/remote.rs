//! The file system of a client that does not map the memory: each call is one of the service. A client of a
//! protected store uses it for what it may not read itself.

use crate::connection::Connection;
use aerie_proto::ops::{Call, Caller, Condition, Data, END, Op, Operation, Read, Reply, VALUE_MAX};
use std::sync::Arc;
use vfs::{
    Attr, Clock, Cookie, Ctx, DirEntry, Errno, Fallocate, FileSystem, Guarantees, Ino, Name,
    NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs, SystemClock,
    XattrMode,
};

/// Most bytes of a read or a write in one call.
const PART: usize = aerie_proto::ops::REPLY_MAX as usize;
/// Bytes of memory of a part of a listing.
const LIST_BYTES: u32 = 512 << 10;
/// Bytes that one operation allocates or zeroes. A client has room for 4 GiB of new pages before it ships, and the
/// log of the service for the changes of 16 GiB.
const ALLOCATE_PART: u64 = 1 << 30;

/// Allocates or zeroes a range of a file in parts, which end at multiples of [`ALLOCATE_PART`]. Zeroes only what is
/// at or after the offset that `next` returns for the begin of a part; it finds the next page of the file.
pub(crate) fn allocate_in_parts(
    kind: Fallocate,
    off: u64,
    len: u64,
    next: impl Fn(u64) -> u64,
    allocate: impl Fn(u64, u64) -> Result<()>,
) -> Result<()> {
    let end = off.checked_add(len).filter(|end| *end <= pxfs::SIZE_MAX);
    let Some(end) = end.filter(|_| len > ALLOCATE_PART) else {
        return allocate(off, len);
    };
    let mut from = off;
    loop {
        let stop = end.min((from / ALLOCATE_PART + 1) * ALLOCATE_PART);
        allocate(from, stop - from)?;
        if stop == end {
            return Ok(());
        }
        from = match kind {
            Fallocate::Allocate { .. } => stop,
            // The last part sets the size.
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                next(stop).clamp(stop, (end - 1) / ALLOCATE_PART * ALLOCATE_PART)
            }
        };
    }
}

/// The file system.
pub(crate) struct Remote {
    pub(crate) connection: Arc<Connection>,
    /// The caller, if that is another user than the client's, or an open file permits the calls.
    pub(crate) caller: Option<Caller>,
    /// The caller of calls that an open file permits, if there is no other.
    pub(crate) permitted: Option<Caller>,
}

impl Remote {
    /// The calls of a caller that the kernel or an open file permits, if `cx` says so.
    fn of(&self, cx: &Ctx) -> Self {
        let permitted = || self.permitted.clone().filter(|_| cx.checked);
        Self {
            connection: Arc::clone(&self.connection),
            caller: self.caller.clone().or_else(permitted),
            permitted: None,
        }
    }

    fn change(&self, op: Op<'_>) -> Result<Reply> {
        let (caller, time) = (self.caller.clone(), SystemClock.now());
        self.connection
            .call(&Call::Change(Operation { caller, time, op }))
    }

    fn read_call(&self, read: Read<'_>) -> Result<Reply> {
        let caller = self.caller.clone();
        self.connection.call(&Call::Read { caller, read })
    }

    pub(crate) fn put(
        &self,
        at: Name<'_>,
        mode: u32,
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<()> {
        done(self.change(Op::Put {
            at: at.into(),
            mode,
            data: Data::Bytes(value),
            object: None,
            condition,
        })?)
    }

    /// Reads a value. If it changes between two parts, the read begins again.
    pub(crate) fn get(&self, at: Name<'_>) -> Result<Vec<u8>> {
        let mut all: Vec<u8> = Vec::new();
        let mut of = None;
        loop {
            let part = Read::Value {
                at: at.into(),
                off: all.len() as u64,
                len: PART as u32,
            };
            let Reply::Value {
                version,
                size,
                bytes,
            } = self.read_call(part)?
            else {
                return Err(Errno::PROTO);
            };
            if size > VALUE_MAX {
                return Err(Errno::FBIG);
            }
            if *of.get_or_insert(version) != version {
                all.clear();
                of = None;
                continue;
            }
            let is_empty = bytes.is_empty();
            all.extend(bytes);
            match all.len() as u64 >= size {
                true => return Ok(all),
                false if is_empty => return Err(Errno::PROTO),
                false => {}
            }
        }
    }

    /// Copies as much of a value as `buf` takes. Returns the length of the value.
    pub(crate) fn get_into(&self, at: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        let value = self.get(at)?;
        let len = value.len().min(buf.len());
        buf[..len].copy_from_slice(&value[..len]);
        Ok(value.len())
    }

    fn list(
        &self,
        dir: Ino,
        mut after: Cookie,
        with_attributes: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        loop {
            let bytes = LIST_BYTES;
            let part = self.read_call(Read::List {
                dir,
                after,
                bytes,
                with_attributes,
            })?;
            let Reply::Entries(part) = part else {
                return Err(Errno::PROTO);
            };
            let Some(last) = part.last() else {
                return Ok(());
            };
            after = last.cookie;
            let mut is_full = false;
            for entry in &part {
                let is_dot = matches!(&entry.name[..], b"." | b"..");
                let shown = DirEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    name: &entry.name,
                    cookie: entry.cookie,
                };
                is_full = is_full || !sink(&shown, entry.attr.as_ref());
                if is_full && entry.attr.is_some() && !is_dot {
                    self.forget(entry.ino, 1);
                }
            }
            if is_full {
                return Ok(());
            }
        }
    }
}

fn done(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done | Reply::Attr(_) => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

fn attr(reply: Reply) -> Result<Attr> {
    match reply {
        Reply::Attr(attr) => Ok(attr),
        _ => Err(Errno::PROTO),
    }
}

fn bytes(reply: Reply) -> Result<Vec<u8>> {
    match reply {
        Reply::Bytes(bytes) => Ok(bytes),
        _ => Err(Errno::PROTO),
    }
}

impl FileSystem for Remote {
    fn guarantees(&self) -> Guarantees {
        pxfs::guarantees()
    }

    fn drops_capabilities(&self) -> bool {
        true
    }

    fn lookup(&self, _: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        attr(self.read_call(Read::Lookup(Name::new(dir, name).into()))?)
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        attr(self.read_call(Read::ByNumber(ino))?)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let _ = self.change(Op::Release { ino, count });
    }

    fn getattr(&self, _: &Ctx, ino: Ino) -> Result<Attr> {
        attr(self.read_call(Read::GetAttr(ino))?)
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let set = *set;
        attr(self.of(cx).change(Op::SetAttr { ino, set })?)
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.of(cx)
            .list(dir, after, false, &mut |entry, _| sink(entry))
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        self.of(cx).list(dir, after, true, sink)
    }

    fn make(&self, _: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        attr(self.change(Op::Make {
            at: at.into(),
            node: new.into(),
            object: None,
        })?)
    }

    fn readlink(&self, _: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        bytes(self.read_call(Read::ReadLink(ino))?)
    }

    fn link(&self, _: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let at = Name::new(dir, name).into();
        attr(self.change(Op::Link { ino, at })?)
    }

    fn remove(&self, _: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        done(self.change(Op::Remove {
            at: at.into(),
            which,
            holds: false,
        })?)
    }

    fn rename(&self, _: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        done(self.change(Op::Rename {
            from: from.into(),
            to: to.into(),
            flags,
            holds: false,
        })?)
    }

    fn tmpfile(&self, _: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        let object = None;
        attr(self.change(Op::Tmpfile { dir, mode, object })?)
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        done(self.of(cx).change(Op::Open { ino, flags })?)
    }

    fn read(&self, _: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        for part in buf.chunks_mut(PART) {
            let (off, len) = (off + done as u64, part.len() as u32);
            let found = bytes(self.read_call(Read::Read { ino, off, len })?)?;
            let into = part.get_mut(..found.len()).ok_or(Errno::PROTO)?;
            into.copy_from_slice(&found);
            done += found.len();
            if found.len() < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn write(&self, _: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        // In an operation, the greatest offset is that of an append.
        off.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let mut written = 0;
        for part in data.chunks(PART) {
            let (off, data) = (off + written as u64, Data::Bytes(part));
            match self.change(Op::Write { ino, off, data }).and_then(done) {
                Ok(()) => written += part.len(),
                Err(errno) if written == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    fn append(&self, _: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let (mut start, mut written) = (None, 0);
        for part in data.chunks(PART) {
            let (off, data) = (END, Data::Bytes(part));
            match self.change(Op::Write { ino, off, data }).and_then(attr) {
                Ok(attr) => {
                    start = start.or(attr.size.checked_sub(part.len() as u64));
                    written += part.len();
                }
                Err(errno) if written == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        match start {
            Some(start) => Ok((start, written)),
            None => Ok((attr(self.read_call(Read::GetAttr(ino))?)?.size, 0)),
        }
    }

    fn fallocate(&self, _: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        let next = |from| from;
        allocate_in_parts(kind, off, len, next, |off, len| {
            done(self.change(Op::Allocate {
                ino,
                kind,
                off,
                len,
            })?)
        })
    }

    fn seek(&self, _: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        match self.read_call(Read::Seek { ino, off, kind })? {
            Reply::Offset(off) => Ok(off),
            _ => Err(Errno::PROTO),
        }
    }

    /// Calls are durable when they return.
    fn fsync(&self, cx: &Ctx, ino: Ino, _: bool) -> Result<()> {
        self.getattr(cx, ino).map(drop)
    }

    fn fsyncdir(&self, cx: &Ctx, ino: Ino, _: bool) -> Result<()> {
        match self.getattr(cx, ino)?.kind {
            vfs::FileType::Directory => Ok(()),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn sync(&self) -> Result<()> {
        self.statfs().map(drop)
    }

    fn statfs(&self) -> Result<StatFs> {
        match self.read_call(Read::StatFs)? {
            Reply::Space(space) => Ok(space),
            _ => Err(Errno::PROTO),
        }
    }

    fn getxattr(&self, _: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        bytes(self.read_call(Read::GetXattr { ino, name })?)
    }

    fn setxattr(
        &self,
        _: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        done(self.change(Op::SetXattr {
            ino,
            name,
            value,
            mode,
        })?)
    }

    fn listxattr(&self, _: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        match self.read_call(Read::ListXattr(ino))? {
            Reply::Names(names) => Ok(names),
            _ => Err(Errno::PROTO),
        }
    }

    fn removexattr(&self, _: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        done(self.change(Op::RemoveXattr { ino, name })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const GIB: u64 = 1 << 30;

    /// The parts of a range of a file that has one page, at an offset.
    fn parts(kind: Fallocate, off: u64, len: u64, page: u64) -> Vec<(u64, u64)> {
        let parts = RefCell::new(Vec::new());
        let next = |from| if from <= page { page } else { u64::MAX };
        let allocate = |off, len| {
            parts.borrow_mut().push((off, len));
            Ok(())
        };
        assert_eq!(allocate_in_parts(kind, off, len, next, allocate), Ok(()));
        parts.into_inner()
    }

    #[test]
    fn long_ranges_are_allocated_in_parts() {
        let kind = Fallocate::Allocate { keep_size: false };
        let all = parts(kind, 5, 5 * GIB, 0);
        assert_eq!((all.len(), all[0], all[5]), (6, (5, GIB - 5), (5 * GIB, 5)));
        let mut end = 5;
        for (off, len) in all {
            assert_eq!(off, end);
            end = off + len;
        }
        assert_eq!(parts(kind, 7, GIB, 0), [(7, GIB)]);
        // The call itself fails.
        for len in [pxfs::SIZE_MAX, u64::MAX] {
            assert_eq!(parts(kind, 1, len, 0), [(1, len)]);
        }
    }

    #[test]
    fn parts_without_pages_are_not_zeroed() {
        let page = 70 * GIB + 4096;
        for kind in [
            Fallocate::PunchHole,
            Fallocate::ZeroRange { keep_size: true },
        ] {
            let all = parts(kind, 5, 100 * GIB, page);
            let last = (100 * GIB, 5);
            assert_eq!(all, [(5, GIB - 5), (page, GIB - 4096), last]);
            assert_eq!(parts(kind, 5, pxfs::SIZE_MAX - 5, page).len(), 3);
        }
    }
}
