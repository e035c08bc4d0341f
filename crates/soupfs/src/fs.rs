//! The mounted file system: the calls.

use crate::data::Parts;
use crate::error::{Fault, Res};
use crate::format::{Hash, LINES, PAGE};
use crate::mode::Mode;
use crate::names::check_member;
use crate::node::Node;
use crate::nodes::Uses;
use crate::persister::Persister;
use crate::volume::Volume;
use medium::Pmem;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use vfs::xattrs::XattrChange;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, DirEntry, Durability, Errno, Fallocate, FileSystem, FileType,
    Guarantees, Ino, Name, NewNode, OpenFlags, Ordering, Removal, RenameFlags, Result, SeekKind,
    SetAttr, StatFs, XattrMode, check_name, perm,
};

/// Bits of a cookie below the hash: the number of the name among those with its hash.
const COOKIE_BITS: u32 = 7;
/// The first such number, so that no cookie is that of `.` or `..`.
const COOKIE_FIRST: u64 = 3;

/// A mounted SoupFS. When it is dropped, everything becomes persistent.
pub struct SoupFs<P: Pmem + 'static> {
    pub(crate) core: Arc<Volume<P>>,
    persister: Mutex<Option<Persister<P>>>,
    bound_s: u32,
}

impl<P: Pmem + 'static> SoupFs<P> {
    /// `bound_s`: seconds after which a change is persistent; `None` starts no persister.
    ///
    /// # Errors
    /// There is no thread for the persister, so that the bound would not hold.
    pub(crate) fn new(core: Volume<P>, bound_s: Option<u32>) -> std::io::Result<Self> {
        let core = Arc::new(core);
        let start = |seconds: u32| Persister::start(&core, Duration::from_secs(seconds.into()));
        let bound = bound_s.filter(|_| !core.read_only);
        Ok(Self {
            persister: Mutex::new(bound.map(start).transpose()?),
            bound_s: bound_s.unwrap_or(1),
            core,
        })
    }

    /// Makes everything persistent, and marks the image as unmounted. References end: files without a name
    /// are freed.
    ///
    /// # Errors
    /// `EIO` if the medium fails.
    pub fn close(&self) -> Result<()> {
        *self.persister.lock() = None;
        if self.core.read_only {
            return Ok(());
        }
        self.core.persist_all().map_err(Fault::errno)?;
        self.core.free_nameless().map_err(Fault::errno)?;
        let leaks = self.core.has_nameless();
        let marked = self.core.space.mark_unmounted(leaks);
        marked.map_err(Fault::errno)
    }

    fn persist_one(&self, node: &Arc<Node>) -> Result<()> {
        match self.core.read_only {
            true => Ok(()),
            false => self.core.persist_one(node).map_err(Fault::errno),
        }
    }

    fn list(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<Attr>) -> Res<bool>,
    ) -> Res<()> {
        let core = &self.core;
        let node = core.node(dir)?;
        if !node.is_dir {
            return Err(Errno::NOTDIR.into());
        }
        // A directory above comes before this one in the order of locks.
        let parent = node.state.read().parent;
        let above = core
            .nodes
            .get(parent)
            .map(|node| node.state.read().attr(parent));
        let state = node.state.read();
        let own = state.attr(dir);
        perm::access(cx, &own, perm::Access::READ)?;
        for (attr, name, cookie) in [(Some(own), &b"."[..], 1), (above, b"..", 2)] {
            let entry = DirEntry {
                ino: attr.map_or(parent, |attr| attr.ino),
                kind: FileType::Directory,
                name,
                cookie: Cookie(cookie),
            };
            if after.0 < cookie && !sink(&entry, attr)? {
                return Ok(());
            }
        }
        let mut last = (Hash(u64::MAX), 0);
        let from = Hash(after.0 >> COOKIE_BITS);
        state.view.list(&core.space, from, &mut |found| {
            let number = match last.0 == found.hash {
                true => last.1 + 1,
                false => COOKIE_FIRST,
            };
            last = (found.hash, number);
            check_member(dir, Ino(found.ino))?;
            let cookie = found.hash.0 << COOKIE_BITS | number;
            if cookie <= after.0 {
                return Ok(true);
            }
            let name = core.space.name(found)?;
            let entry = DirEntry {
                ino: Ino(found.ino),
                kind: FileType::from_code(found.kind).unwrap_or(FileType::Regular),
                name: &name,
                cookie: Cookie(cookie),
            };
            sink(&entry, None)
        })
    }

    fn read_dir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<Attr>) -> Res<bool>,
    ) -> Result<()> {
        self.list(cx, dir, after, sink).map_err(Fault::errno)?;
        self.core.accessed(cx, dir);
        Ok(())
    }
}

impl<P: Pmem + 'static> Drop for SoupFs<P> {
    fn drop(&mut self) {
        if self.persister.lock().is_some()
            && let Err(e) = self.close()
        {
            tracing::error!("the file system could not be closed: {e}");
        }
    }
}

/// The promises of a mount.
pub(crate) fn guarantees(mode: Mode, durable: Durability) -> Guarantees {
    let data_atomic = match mode {
        Mode::Atomic => Atomicity::Block,
        Mode::InPlace => Atomicity::None,
    };
    Guarantees {
        name: format!("soupfs (mode={mode})"),
        durable,
        metadata_atomic: Atomicity::Word,
        data_atomic,
        metadata_ordered: Ordering::None,
        data_ordered: Ordering::None,
        times_atomic: false,
        notes: vec![
            "After a crash memory may be marked as used that is not, link counts too high, and a \
             directory that was being renamed may have both names; nothing else, and fsck need \
             not run."
                .into(),
            "Names cannot be exchanged (RENAME_EXCHANGE).".into(),
        ],
    }
}

impl<P: Pmem + 'static> FileSystem for SoupFs<P> {
    fn guarantees(&self) -> Guarantees {
        let mode = match self.core.copies_data {
            true => Mode::Atomic,
            false => Mode::InPlace,
        };
        let durable = match self.core.sync {
            true => Durability::AtReturn,
            false => Durability::Interval(self.bound_s),
        };
        guarantees(mode, durable)
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.core.look_up(cx, dir, name).map_err(Fault::errno)
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        let node = self.core.referenced(ino).map_err(Fault::errno)?;
        let attr = node.state.read().attr(ino);
        Ok(attr)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.core.unref_number(ino, count);
    }

    fn getattr(&self, _cx: &Ctx, ino: Ino) -> Result<Attr> {
        let node = self.core.node(ino).map_err(Fault::errno)?;
        let attr = node.state.read().attr(ino);
        Ok(attr)
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.core.change(|| self.core.set_attr(cx, ino, set))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_dir(cx, dir, after, &mut |entry, _| Ok(sink(entry)))
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let mut refused = Vec::new();
        let result = self.read_dir(cx, dir, after, &mut |entry, attr| {
            if entry.cookie.0 < COOKIE_FIRST {
                return Ok(sink(entry, attr.as_ref()));
            }
            let Ok(node) = self.core.obtain(entry.ino) else {
                return Ok(sink(entry, None));
            };
            node.found_in(dir);
            let attr = node.state.read().attr(entry.ino);
            let accepted = sink(entry, Some(&attr));
            if !accepted {
                refused.push(node);
            }
            Ok(accepted)
        });
        for node in refused {
            self.core.end_use(&node, Uses::LOST_REF);
        }
        result
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        check_name(at.name)?;
        self.core.change(|| self.core.make(cx, at, new))
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let target = self.core.read_link(ino).map_err(Fault::errno)?;
        self.core.accessed(cx, ino);
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let at = Name::new(dir, name);
        self.core.change(|| self.core.link(cx, ino, at))
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.core.change(|| self.core.remove(cx, at, which))
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        self.core.change(|| self.core.rename(cx, from, to, flags))
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.core.change(|| self.core.make_nameless(cx, dir, mode))
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let node = self.core.referenced(ino).map_err(Fault::errno)?;
        let attr = node.state.read().attr(ino);
        if let Err(e) = perm::may_open(cx, &attr, flags) {
            self.core.end_use(&node, Uses::LOST_REF);
            return Err(e);
        }
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
        let (len, is_due) = self.core.read(ino, off, buf).map_err(Fault::errno)?;
        if is_due && !buf.is_empty() {
            self.core.accessed(cx, ino);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.core.change(|| self.core.write(cx, ino, off, data))
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        let mut parts = Parts::new(kind, off, len);
        loop {
            match self
                .core
                .change(|| self.core.fallocate(cx, ino, &mut parts))
            {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => {
                    self.core.change(|| self.core.undo_growth(ino, &parts))?;
                    return Err(e);
                }
            }
        }
    }

    fn seek(&self, _cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        self.core.seek(ino, off, kind).map_err(Fault::errno)
    }

    fn fsync(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        let node = self.core.node(ino).map_err(Fault::errno)?;
        self.persist_one(&node)
    }

    fn fsyncdir(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        let node = self.core.node(ino).map_err(Fault::errno)?;
        match node.is_dir {
            true => self.persist_one(&node),
            false => Err(Errno::NOTDIR),
        }
    }

    fn sync(&self) -> Result<()> {
        if self.core.read_only {
            return Ok(());
        }
        self.core.persist().map_err(Fault::errno)
    }

    fn nameless(&self) -> Vec<Ino> {
        self.core.nameless().map(|node| node.ino).collect()
    }

    fn statfs(&self) -> Result<StatFs> {
        let core = &self.core;
        let free = core.alloc.free(&core.space).map_err(Fault::errno)?;
        let all = core.space.pages;
        Ok(StatFs {
            block_bytes: PAGE as u32,
            blocks: all,
            blocks_free: free.pages,
            blocks_avail: free.pages,
            inodes: all * LINES,
            inodes_free: free.lines,
            name_max: vfs::NAME_MAX as u32,
        })
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.core.get_xattr(cx, ino, name).map_err(Fault::errno)
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
        self.core
            .change(|| self.core.change_xattrs(cx, ino, &change))
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.core.list_xattrs(cx, ino).map_err(Fault::errno)
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let change = XattrChange::Remove { name };
        self.core
            .change(|| self.core.change_xattrs(cx, ino, &change))
    }
}
