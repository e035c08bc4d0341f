//! The calls of [`FileSystem`].

use crate::data::WRITE_MAX;
use crate::error::{Fault, Res};
use crate::fs::{By, Pxfs};
use crate::inode::{self, Inode};
use aerie_objects::{PAGE, Transaction, parent};
use medium::Pmem;
use vfs::check::{Finding, Severity};
use vfs::xattrs::XattrChange;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, DirEntry, Durability, Errno, Fallocate, FileSystem, FileType,
    Guarantees, Ino, Name, NewNode, OpenFlags, Ordering, Removal, RenameFlags, Result, SeekKind,
    SetAttr, StatFs, XattrMode, perm,
};

/// The cookies of `.` and `..`; that of an entry is greater.
const DOTS: [&[u8]; 2] = [b".", b".."];
pub(crate) const COOKIES_OF_DOTS: u64 = DOTS.len() as u64;

/// The promises of the file system.
pub fn guarantees() -> Guarantees {
    Guarantees {
        name: "pxfs".into(),
        durable: Durability::AtReturn,
        metadata_atomic: Atomicity::Call,
        data_atomic: Atomicity::Call,
        metadata_ordered: Ordering::Global,
        data_ordered: Ordering::Global,
        times_atomic: true,
        notes: vec!["A write of more than 2 MiB is atomic in parts of 2 MiB.".into()],
    }
}

/// A directory with its inode, as a listing shows it.
struct Listing<'a, P> {
    fs: &'a Pxfs<P>,
    dir: Inode,
}

impl<P: Pmem> Listing<'_, P> {
    /// The directory above. A removed directory has none.
    fn above(&self) -> Res<Inode> {
        let (memory, superblock) = (self.fs.store.memory(), self.fs.store.superblock());
        match parent(memory, self.dir.object)?.filter(|above| *above != superblock.open) {
            Some(above) => self.fs.load(memory, above),
            None => Ok(self.dir),
        }
    }

    /// Calls `sink` for each entry after `after`, until it returns false.
    fn list(
        &self,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Inode>) -> bool,
    ) -> Res<()> {
        let dots = [self.dir, self.above()?];
        for ((inode, name), cookie) in dots.into_iter().zip(DOTS).zip(1..) {
            let entry = DirEntry {
                ino: inode.attr.ino,
                kind: FileType::Directory,
                name,
                cookie: Cookie(cookie),
            };
            if after.0 < cookie && !sink(&entry, Ok(inode)) {
                return Ok(());
            }
        }
        let (memory, superblock) = (self.fs.store.memory(), self.fs.store.superblock());
        let mut at = after.0.saturating_sub(COOKIES_OF_DOTS);
        loop {
            let part = aerie_objects::list(memory, self.dir.object, superblock.seed, at)?;
            let Some(last) = part.last() else {
                return Ok(());
            };
            at = last.cookie;
            for listed in part {
                let inode = self.fs.load(memory, listed.object).map_err(Fault::errno);
                if inode == Err(Errno::REMOTE) {
                    return Err(Errno::REMOTE.into());
                }
                let entry = DirEntry {
                    ino: inode::number(superblock, listed.object),
                    kind: inode.map_or(FileType::Regular, |inode| inode.attr.kind),
                    name: &listed.key,
                    cookie: Cookie(listed.cookie + COOKIES_OF_DOTS),
                };
                if !sink(&entry, inode) {
                    return Ok(());
                }
            }
        }
    }
}

/// Shows an entry of a listing to the caller, with its inode; whether the caller has accepted it.
pub(crate) type Sink<'a> = dyn FnMut(&DirEntry<'_>, Result<Inode>) -> bool + 'a;

impl<P: Pmem> Pxfs<P> {
    /// Lists a directory. Returns it.
    pub(crate) fn read_dir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut Sink<'_>,
    ) -> Res<Inode> {
        let dir = self.inode(self.store.memory(), dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::access(cx, &dir.attr, perm::Access::READ)?;
        Listing { fs: self, dir }.list(after, sink)?;
        Ok(dir)
    }

    /// Lists a directory with attributes, and takes references.
    pub(crate) fn read_dir_plus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Res<Inode> {
        self.read_dir(cx, dir, after, &mut |entry, inode| {
            let is_accepted = sink(entry, inode.as_ref().ok().map(|inode| &inode.attr));
            if let Ok(inode) = inode
                && is_accepted
                && entry.cookie.0 > COOKIES_OF_DOTS
            {
                self.refer(inode.object);
            }
            is_accepted
        })
    }

    /// Runs a call that changes something.
    fn changing<T>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&mut Transaction<'_, P>, By<'_>) -> Res<T>,
    ) -> Result<T> {
        let _alone = self.alone();
        let moment = self.moment();
        let by = moment.by(cx);
        self.change(|tx| call(tx, by)).map_err(Fault::errno)
    }

    /// Runs such a call, and takes a reference to its inode.
    fn making(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&mut Transaction<'_, P>, By<'_>) -> Res<Attr>,
    ) -> Result<Attr> {
        let _alone = self.alone();
        let moment = self.moment();
        let by = moment.by(cx);
        let attr = self.change(|tx| call(tx, by)).map_err(Fault::errno)?;
        self.refer_number(attr.ino);
        Ok(attr)
    }

    /// Takes a reference to an inode that exists.
    pub(crate) fn refer_number(&self, ino: Ino) {
        if let Some(object) = inode::object(self.store.superblock(), ino) {
            self.refer(object);
        }
    }

    /// Runs a call that reads.
    pub(crate) fn shared<T>(&self, call: impl FnOnce() -> Res<T>) -> Result<T> {
        let _gate = self.gate.read();
        call().map_err(Fault::errno)
    }
}

impl<P: Pmem> FileSystem for Pxfs<P> {
    fn guarantees(&self) -> Guarantees {
        guarantees()
    }

    fn audit(&self) -> Vec<Finding> {
        let _alone = self.alone();
        let report = crate::check(self.store.memory());
        let mut findings = report.findings;
        let known = self.store.free_pages();
        match aerie_objects::free_pages(self.store.memory()) {
            Ok(free) if free == known => {}
            found => findings.push(Finding {
                invariant: "allocator".into(),
                severity: Severity::Corrupt,
                what: format!("{found:?} pages are free, and {known} are known to be"),
            }),
        }
        findings
    }

    fn drops_capabilities(&self) -> bool {
        true
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _referring = self.referring();
        let found = self.look_up(self.store.memory(), cx, Name::new(dir, name));
        let found = found.map_err(Fault::errno)?;
        self.refer(found.object);
        Ok(found.attr)
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        let _referring = self.referring();
        let inode = self.inode(self.store.memory(), ino);
        let inode = inode.map_err(Fault::errno)?;
        self.refer(inode.object);
        Ok(inode.attr)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let _alone = self.alone();
        let memory = self.store.memory();
        let forgotten = self.object(memory, ino).and_then(|object| {
            match self.unrefer(object, count) && self.load(memory, object)?.attr.nlink == 0 {
                true => self.change(|tx| self.bury(tx, object)),
                false => Ok(()),
            }
        });
        if let Err(errno) = forgotten.map_err(Fault::errno)
            && errno != Errno::STALE
        {
            tracing::error!("inode {ino} is not removed: {errno}");
        }
    }

    fn getattr(&self, _cx: &Ctx, ino: Ino) -> Result<Attr> {
        self.shared(|| Ok(self.inode(self.store.memory(), ino)?.attr))
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.changing(cx, |tx, by| self.set_attr(tx, by, ino, set))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.shared(|| self.read_dir(cx, dir, after, &mut |entry, _| sink(entry)))?;
        self.accessed(cx, dir);
        Ok(())
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let listed = {
            let _referring = self.referring();
            self.read_dir_plus(cx, dir, after, sink)
        };
        self.accessed(cx, listed.map_err(Fault::errno)?);
        Ok(())
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        self.making(cx, |tx, by| self.make_node(tx, by, at, new, None))
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let (target, link) = self.shared(|| self.read_target(ino))?;
        self.accessed(cx, link);
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.making(cx, |tx, by| {
            self.link_node(tx, by, ino, Name::new(dir, name))
        })
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.changing(cx, |tx, by| self.remove_name(tx, by, at, which, false))
            .map(drop)
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        self.changing(cx, |tx, by| {
            self.rename_node(tx, by, [from, to], flags, false)
        })
        .map(drop)
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.making(cx, |tx, by| self.make_nameless(tx, by, dir, mode, None))
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let _alone = self.alone();
        let moment = self.moment();
        let by = moment.by(cx);
        let opened = self.change(|tx| self.open_node(tx, by, ino, flags));
        opened
            .map(|object| self.refer(object))
            .map_err(Fault::errno)
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let (len, inode) = self.shared(|| self.read_data(ino, off, buf))?;
        if !buf.is_empty() {
            self.accessed(cx, inode);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        let _alone = self.alone();
        let moment = self.moment();
        let by = moment.by(cx);
        self.may_write(ino, off, data.len() as u64)
            .map_err(Fault::errno)?;
        for (n, part) in data.chunks(WRITE_MAX).enumerate() {
            let at = off + (n * WRITE_MAX) as u64;
            self.change(|tx| self.write_bytes(tx, by, ino, at, part))
                .map_err(Fault::errno)?;
        }
        Ok(data.len())
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        self.changing(cx, |tx, by| self.allocate(tx, by, ino, kind, off, len))
    }

    fn seek(&self, _cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        self.shared(|| self.seek_data(ino, off, kind))
    }

    fn fsync(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.shared(|| self.inode(self.store.memory(), ino).map(drop))
    }

    fn fsyncdir(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.shared(|| match self.inode(self.store.memory(), ino)?.is_dir() {
            true => Ok(()),
            false => Err(Errno::NOTDIR.into()),
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        let blocks = self.store.superblock().bytes / PAGE;
        let free = self.store.free_pages();
        let headers = PAGE / aerie_objects::HEADER_BYTES;
        Ok(StatFs {
            block_bytes: PAGE as u32,
            blocks,
            blocks_free: free,
            blocks_avail: free,
            inodes: blocks * headers,
            inodes_free: free * headers,
            name_max: vfs::NAME_MAX as u32,
        })
    }

    fn nameless(&self) -> Vec<Ino> {
        let superblock = self.store.superblock();
        let objects = self.shared(|| self.nameless_objects()).unwrap_or_default();
        objects
            .into_iter()
            .map(|object| inode::number(superblock, object))
            .collect()
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.shared(|| self.get_xattr(cx, ino, name))
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let change = XattrChange::set(name, value, mode)?;
        self.changing(cx, |tx, by| self.change_xattrs(tx, by, ino, &change))
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.shared(|| self.list_xattrs(cx, ino))
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let change = XattrChange::Remove { name };
        self.changing(cx, |tx, by| self.change_xattrs(tx, by, ino, &change))
    }
}
