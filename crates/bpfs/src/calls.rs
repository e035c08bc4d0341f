//! The calls of [`FileSystem`]: each takes the tree lock and runs one operation.

use crate::audit::audit;
use crate::dir;
use crate::error::{Fault, Res};
use crate::format::{BLOCK, INODE};
use crate::fs::{Bpfs, Found};
use crate::mode::Mode;
use crate::staged::TreeLock;
use crate::table::Node;
use medium::Pmem;
use std::sync::atomic::Ordering::SeqCst;
use vfs::check::{Finding, Report, Severity};
use vfs::xattrs::XattrChange;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, DirEntry, Durability, Errno, Fallocate, FileSystem, FileType,
    Guarantees, Ino, Name, NewNode, OpenFlags, Ordering, Removal, RenameFlags, Result, SeekKind,
    SetAttr, StatFs, XattrMode, check_name, perm,
};

impl<P: Pmem> Bpfs<P> {
    /// The promises of mounts in `mode`.
    pub fn guarantees_of(mode: Mode) -> Guarantees {
        let times_atomic = !mode.rules().times;
        let mut notes = vec![
            "A write through a mount is atomic up to 1 MiB and 256 pages of the program's memory; \
             a longer one is several calls."
                .into(),
            "A write through mmap is one call for each batch of pages that the kernel writes back."
                .into(),
            "Before Linux 6.6, a write that begins inside a page is several calls.".into(),
        ];
        if !times_atomic {
            notes.push("Each time stamp is old or new by itself.".into());
        }
        Guarantees {
            name: format!("bpfs (mode={mode})"),
            durable: Durability::AtReturn,
            metadata_atomic: Atomicity::Call,
            data_atomic: Atomicity::Call,
            metadata_ordered: Ordering::Global,
            data_ordered: Ordering::Global,
            times_atomic,
            notes,
        }
    }

    fn list(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, &Node) -> Res<bool>,
    ) -> Res<()> {
        let (_guard, found) = self.peek(dir)?;
        let node = found.node;
        if found.attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        perm::access(cx, &found.attr, perm::Access::READ)?;
        let parent = Ino(node.parent.load(SeqCst));
        for (ino, name, cookie) in [(dir, &b"."[..], 1), (parent, b"..", 2)] {
            let entry = DirEntry {
                ino,
                kind: FileType::Directory,
                name,
                cookie: Cookie(cookie),
            };
            if after.0 < cookie && !sink(&entry, self.table.node(ino))? {
                return Ok(());
            }
        }
        // The cookie of an entry is 3 + its position / 8: unique, in order, and stable.
        let from = after.0.saturating_sub(2).saturating_mul(8);
        if from >= found.attr.size {
            return Ok(());
        }
        let mut more = true;
        dir::for_blocks(&self.vol, &found.tree(), from, &mut |base, bytes| {
            dir::parse(bytes, base, &mut |e| {
                if e.ino != 0 && e.pos >= from && more {
                    let kind = FileType::from_code(e.kind).unwrap_or(FileType::Regular);
                    let cookie = Cookie(3 + e.pos / 8);
                    let entry = DirEntry {
                        ino: Ino(e.ino),
                        kind,
                        name: e.name,
                        cookie,
                    };
                    // A dead inode is of a failed commit; lookups skip its entry too.
                    if let Ok(node) = self.node(Ino(e.ino)) {
                        more = sink(&entry, node)?;
                    }
                }
                Ok(())
            })?;
            Ok(more)
        })
    }
}

impl<P: Pmem> FileSystem for Bpfs<P> {
    fn guarantees(&self) -> Guarantees {
        Self::guarantees_of(self.info.mode)
    }

    fn audit(&self) -> Vec<Finding> {
        let mut report = Report::default();
        if let Err(e) = audit(self, &mut report) {
            report.add("audit", Severity::Corrupt, format!("{e:?}"));
        }
        report.findings
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.look(|| self.do_lookup(cx, dir, name))
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        self.look(|| {
            let (_guard, found) = self.peek(ino)?;
            found.node.life.refs.fetch_add(1, SeqCst);
            Ok(found.attr)
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.unref(ino, count);
    }

    fn getattr(&self, _cx: &Ctx, ino: Ino) -> Result<Attr> {
        self.look(|| {
            let (_guard, found) = self.peek(ino)?;
            Ok(found.attr)
        })
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.mutate(TreeLock::Shared, |lock| self.do_setattr(cx, ino, set, lock))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let guard = self.shared();
        let listed = self.list(cx, dir, after, &mut |entry, _| Ok(sink(entry)));
        drop(guard);
        listed.map_err(Fault::errno)?;
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
        let guard = self.shared();
        let listed = self.list(cx, dir, after, &mut |entry, node| {
            // `.` is locked already, and `..` comes before it in the order of locks.
            let _held = (entry.cookie.0 > 2).then(|| node.lock.read());
            // A damaged inode does not hide the names beside it.
            let found = self.find(entry.ino, node).map_err(Fault::errno).ok();
            let accepted = sink(entry, found.as_ref().map(|found| &found.attr));
            if accepted && entry.cookie.0 > 2 {
                node.life.refs.fetch_add(1, SeqCst);
            }
            Ok(accepted)
        });
        drop(guard);
        listed.map_err(Fault::errno)?;
        self.accessed(cx, dir);
        Ok(())
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        check_name(at.name)?;
        self.mutate(TreeLock::Shared, |lock| self.do_make(cx, at, new, lock))
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let target = self.look(|| self.do_readlink(ino))?;
        self.accessed(cx, ino);
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_link(cx, ino, dir, name, lock)
        })
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.mutate(TreeLock::Shared, |lock| self.do_remove(cx, at, which, lock))
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        self.do_rename(cx, from, to, flags)
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_tmpfile(cx, dir, mode, lock)
        })
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let attr = self.look(|| {
            let (_guard, Found { node, attr, .. }) = self.peek(ino)?;
            perm::may_open(cx, &attr, flags)?;
            node.life.refs.fetch_add(1, SeqCst);
            Ok(attr)
        })?;
        if flags.contains(OpenFlags::TRUNCATE) && attr.kind == FileType::Regular {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            if let Err(e) = self.setattr(cx, ino, &set) {
                self.release(ino);
                return Err(e);
            }
        }
        Ok(())
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let guard = self.shared();
        let read = self.do_read(ino, off, buf);
        drop(guard);
        let (len, stale) = read.map_err(Fault::errno)?;
        if stale && !buf.is_empty() {
            self.accessed(cx, ino);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_write(cx, ino, off, data, lock)
        })
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        self.mutate(TreeLock::Shared, |lock| {
            self.do_fallocate(cx, ino, kind, off, len, lock)
        })
    }

    fn seek(&self, _cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        self.look(|| self.do_seek(ino, off, kind))
    }

    fn fsync(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.look(|| self.node(ino).and_then(|_| self.vol.usable()))
    }

    fn fsyncdir(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.look(|| {
            let (_guard, found) = self.peek(ino)?;
            if found.attr.kind != FileType::Directory {
                return Err(Errno::NOTDIR.into());
            }
            self.vol.usable()
        })
    }

    fn sync(&self) -> Result<()> {
        self.vol.usable().map_err(Fault::errno)
    }

    fn nameless(&self) -> Vec<Ino> {
        let nameless = self.nameless.lock();
        nameless.iter().map(|ino| Ino(*ino)).collect()
    }

    fn statfs(&self) -> Result<StatFs> {
        let available = self.vol.available();
        let per_block = BLOCK / INODE;
        let numbers_free = self.inodes.free();
        let used = self.inodes.len().saturating_sub(numbers_free + 1);
        let inodes_free = numbers_free + available * per_block;
        Ok(StatFs {
            block_bytes: BLOCK as u32,
            blocks: self.vol.blocks,
            blocks_free: self.vol.map.free(),
            blocks_avail: available,
            inodes: used + inodes_free,
            inodes_free,
            name_max: vfs::NAME_MAX as u32,
        })
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.look(|| self.do_getxattr(cx, ino, name))
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
        self.mutate(TreeLock::Shared, |lock| {
            self.change_xattrs(cx, ino, &change, lock)
        })
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.look(|| self.do_listxattr(cx, ino))
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let change = XattrChange::Remove { name };
        self.mutate(TreeLock::Shared, |lock| {
            self.change_xattrs(cx, ino, &change, lock)
        })
    }
}
