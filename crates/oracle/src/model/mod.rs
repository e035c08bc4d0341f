//! A complete file system in memory: the oracle of crash tests, and a lower bound for the time
//! of a front end.
//!
//! It keeps exactly the semantics of [`FileSystem`], whole calls at a time, and nothing across
//! a crash. Where Linux file systems differ, these rules hold:
//! - space allocated beyond the end of a file (`keep_size`) is not kept, but must be free at
//!   the time of the call;
//! - zeroing a range allocates its holes;
//! - setting a size always sets the modification time;
//! - all extended attributes of an inode fit one block of 4096 bytes: 16 bytes, and for
//!   each 8 bytes, name and value, rounded up to 8.
//!
//! Locks: the table of inodes guards all names. Calls that change names hold it for writing,
//! calls that follow names for reading. The lock of an inode guards its body. The table is
//! locked before an inode. No call holds two inodes, except that a listing holds the directory
//! while it reads the inode of each entry.

mod audit;
mod node;
mod options;
mod pages;
mod rename;
mod table;

pub use options::ModelOptions;

use node::{Body, Content, DOT, DOT_DOT, Directory, Entry, Node};
use pages::{BLOCK, Pages, covering};
use parking_lot::RwLock;
use std::ops::RangeInclusive;
use std::sync::Arc;
use table::{Space, Table};
use vfs::check::Finding;
use vfs::perm::{self, NewOwner};
use vfs::{
    Atime, Attr, Clock, Cookie, Ctx, DirEntry, Errno, Fallocate, FileSystem, FileType, Guarantees,
    Ino, NAME_MAX, Name, NewNode, OpenFlags, Removal, RenameFlags, Result, SIZE_MAX, SeekKind,
    SetAttr, SetTime, StatFs, Timestamp, XattrMode, absent_xattr, check_name, check_xattr_name,
    end_of, must_be_regular,
};

/// Inodes that a model reports as its capacity.
const INODES: u64 = 1 << 32;

/// Longest value of an extended attribute, as in the kernel.
const XATTR_VALUE_MAX: usize = 65536;

/// The file system in memory.
pub struct ModelFs {
    table: RwLock<Table>,
    space: Space,
    clock: Arc<dyn Clock>,
    atime: Atime,
    times: RangeInclusive<Timestamp>,
}

impl Default for ModelFs {
    fn default() -> Self {
        Self::new(ModelOptions::default())
    }
}

impl ModelFs {
    /// An empty file system.
    pub fn new(options: ModelOptions) -> Self {
        let owner = NewOwner {
            uid: options.uid,
            gid: options.gid,
            perm: options.root_perm & perm::PERM_MASK,
        };
        let new = NewNode::directory(owner.perm);
        let root = Node::new(Ino::ROOT, Ino::ROOT, owner, options.clock.now(), &new);
        Self {
            table: RwLock::new(Table::new(root)),
            space: Space::new(options.capacity_bytes / BLOCK),
            clock: options.clock,
            atime: options.atime,
            times: options.times,
        }
    }

    /// An independent copy, references included, with the same clock. File data is shared until
    /// one side writes it. No other call may be under way.
    pub fn fork(&self) -> Self {
        Self {
            table: RwLock::new(self.table.read().fork()),
            space: self.space.fork(),
            clock: self.clock.clone(),
            atime: self.atime,
            times: self.times.clone(),
        }
    }

    /// Number of inodes, unlinked ones that are still referenced included.
    pub fn inodes(&self) -> usize {
        self.table.read().nodes.len()
    }

    fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        self.table.read().node(ino).cloned()
    }

    /// Updates the access time of an inode that was read, if the policy requires it.
    fn accessed(&self, cx: &Ctx, node: &Node, attr: &Attr) {
        if cx.noatime || self.atime == Atime::Never {
            return;
        }
        let now = self.clock.now();
        if self.atime.is_due(attr, now) {
            node.body.write().atime = now;
        }
    }

    /// Lists a directory, for both kinds of listing.
    fn list(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&Table, &DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let table = self.table.read();
        let node = table.node(dir)?;
        let parent = node.with_dir(|entries| entries.parent)?;
        let attr = node.attr();
        perm::access(cx, &attr, perm::Access::READ)?;
        if attr.nlink == 0 {
            return Err(Errno::NOENT);
        }
        let dots = [(dir, b".".as_slice(), DOT), (parent, b"..", DOT_DOT)];
        for (ino, name, cookie) in dots {
            let kind = FileType::Directory;
            let entry = DirEntry {
                ino,
                kind,
                name,
                cookie,
            };
            if cookie > after && !sink(&table, &entry) {
                return Ok(());
            }
        }
        node.with_dir(|entries| {
            for (cookie, name, Entry { ino, kind, .. }) in entries.list(after) {
                let entry = DirEntry {
                    ino,
                    kind,
                    name,
                    cookie,
                };
                if !sink(&table, &entry) {
                    break;
                }
            }
        })?;
        self.accessed(cx, node, &attr);
        Ok(())
    }

    /// Runs `f` on the body of a regular file with its attributes.
    fn change_data<T>(
        &self,
        ino: Ino,
        other: Errno,
        f: impl FnOnce(&Attr, &mut Body) -> Result<T>,
    ) -> Result<T> {
        let node = self.node(ino)?;
        must_be_regular(node.kind, other)?;
        let body = &mut *node.body.write();
        let attr = node.attr_of(body);
        f(&attr, body)
    }
}

/// The pages of a file that has passed [`must_be_regular`].
fn pages_of(content: &mut Content) -> Result<&mut Pages> {
    match content {
        Content::Data(pages) => Ok(pages),
        Content::None | Content::Directory(_) | Content::Target(_) => Err(Errno::INVAL),
    }
}

impl FileSystem for ModelFs {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            notes: vec!["It lives in memory and ends with its process.".into()],
            ..Guarantees::none("model")
        }
    }

    fn audit(&self) -> Vec<Finding> {
        audit::audit(&self.table.read(), &self.space)
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let table = self.table.read();
        let (_, entry) = table.existing(cx, dir, name)?;
        let node = table.node(entry.ino)?;
        node.add_ref();
        Ok(node.attr())
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Ok(node) = self.node(ino) else { return };
        if node.drop_refs(count) == 0 && node.body.read().nlink == 0 {
            self.table.write().reclaim(&node, &self.space);
        }
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        // The table is held, so that the inode cannot be freed in between.
        let table = self.table.read();
        let node = table.node(ino)?;
        node.add_ref();
        Ok(node.attr())
    }

    fn getattr(&self, _cx: &Ctx, ino: Ino) -> Result<Attr> {
        Ok(self.node(ino)?.attr())
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let node = self.node(ino)?;
        let body = &mut *node.body.write();
        let attr = node.attr_of(body);
        let set = perm::check_setattr(cx, &attr, set)?;
        if set == SetAttr::default() {
            return Ok(attr);
        }
        let now = self.clock.now();
        if let Some(size) = set.size {
            let before = body.blocks();
            pages_of(&mut body.content)?.truncate(size);
            self.space.give(before - body.blocks());
            body.size = size;
            body.mtime = now;
        }
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(at) => at.clamp(*self.times.start(), *self.times.end()),
        };
        body.perm = set.perm.unwrap_or(body.perm);
        body.uid = set.uid.unwrap_or(body.uid);
        body.gid = set.gid.unwrap_or(body.gid);
        body.atime = set.atime.map_or(body.atime, time);
        body.mtime = set.mtime.map_or(body.mtime, time);
        body.ctime = set.ctime.unwrap_or(now);
        Ok(node.attr_of(body))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(cx, dir, after, &mut |_, entry| sink(entry))
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        self.list(cx, dir, after, &mut |table, entry| {
            // The table is held, so that every name leads to an inode.
            let Some(node) = table.nodes.get(&entry.ino) else {
                return true;
            };
            let accepted = sink(entry, Some(&node.attr()));
            if accepted && entry.cookie > DOT_DOT {
                node.add_ref();
            }
            accepted
        })
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let Name { dir, name } = at;
        check_name(name)?;
        let mut table = self.table.write();
        let parent = table.parent_for_new(cx, dir, name)?;
        perm::may_mknod(cx, new.kind())?;
        let now = self.clock.now();
        let node = table.insert(cx, &parent, now, new);
        parent.change_dir(now, |nlink, entries| {
            entries.set(name, node.ino, node.kind);
            *nlink += u32::from(new.is_directory());
        });
        node.add_ref();
        Ok(node.attr())
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let target = match &node.body.read().content {
            Content::Target(target) => target.to_vec(),
            Content::None | Content::Data(_) | Content::Directory(_) => return Err(Errno::INVAL),
        };
        self.accessed(cx, &node, &node.attr());
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let table = self.table.write();
        let node = table.node(ino)?.clone();
        let parent = table.parent_for_new(cx, dir, name)?;
        perm::may_link(&node.attr())?;
        let now = self.clock.now();
        {
            let body = &mut *node.body.write();
            if body.nlink == 0 && !body.nameable {
                return Err(Errno::NOENT);
            }
            body.nlink = body.nlink.checked_add(1).ok_or(Errno::MLINK)?;
            body.nameable = false;
            body.ctime = now;
        }
        parent.change_dir(now, |_, entries| entries.set(name, ino, node.kind));
        node.add_ref();
        Ok(node.attr())
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let Name { dir, name } = at;
        check_name(name)?;
        let mut table = self.table.write();
        let (parent, entry) = table.existing(cx, dir, name)?;
        let victim = table.node(entry.ino)?.clone();
        perm::may_delete(cx, &parent.attr(), &victim.attr())?;
        let is_dir = entry.kind == FileType::Directory;
        which.check(is_dir)?;
        if is_dir && !victim.with_dir(Directory::is_empty)? {
            return Err(Errno::NOTEMPTY);
        }
        let now = self.clock.now();
        parent.change_dir(now, |nlink, entries| {
            entries.remove(name);
            *nlink -= u32::from(is_dir);
        });
        table.drop_name(&victim, now, &self.space);
        Ok(())
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        let mut table = self.table.write();
        let Some(plan) = table.plan_rename(cx, [from, to], flags)? else {
            return Ok(());
        };
        let now = self.clock.now();
        plan.apply(from.name, to.name, now);
        if let (Some(target), false) = (&plan.target, plan.exchange) {
            table.drop_name(target, now, &self.space);
        }
        Ok(())
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        let mut table = self.table.write();
        let parent = table.node(dir)?.clone();
        parent.with_dir(|_| ())?;
        perm::may_create(cx, &parent.attr())?;
        let node = table.insert(cx, &parent, self.clock.now(), &NewNode::file(mode));
        {
            let body = &mut *node.body.write();
            body.nlink = 0;
            body.nameable = true;
        }
        node.add_ref();
        Ok(node.attr())
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        // The table is held, so that the inode cannot be freed in between.
        let table = self.table.read();
        let node = table.node(ino)?;
        perm::may_open(cx, &node.attr(), flags)?;
        if flags.contains(OpenFlags::TRUNCATE) && node.kind == FileType::Regular {
            let body = &mut *node.body.write();
            let attr = node.attr_of(body);
            pages_of(&mut body.content)?.truncate(0);
            self.space.give(attr.blocks / (BLOCK / 512) - body.blocks());
            let now = self.clock.now();
            (body.size, body.mtime, body.ctime) = (0, now, now);
            body.perm = perm::perm_after_write(cx, &attr);
        }
        node.add_ref();
        Ok(())
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        must_be_regular(node.kind, Errno::INVAL)?;
        let (len, attr) = {
            let body = node.body.read();
            let Content::Data(pages) = &body.content else {
                return Err(Errno::INVAL);
            };
            let len = body.size.saturating_sub(off).min(buf.len() as u64) as usize;
            pages.read(off, &mut buf[..len]);
            (len, node.attr_of(&body))
        };
        if !buf.is_empty() {
            self.accessed(cx, &node, &attr);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.change_data(ino, Errno::INVAL, |attr, body| {
            if data.is_empty() {
                return Ok(0);
            }
            let end = end_of(off, data.len() as u64, SIZE_MAX)?;
            let pages = pages_of(&mut body.content)?;
            self.space.take(pages.missing(covering(off, end)))?;
            pages.write(off, data);
            body.size = body.size.max(end);
            body.perm = perm::perm_after_write(cx, attr);
            let now = self.clock.now();
            (body.mtime, body.ctime) = (now, now);
            Ok(data.len())
        })
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        self.change_data(ino, Errno::NODEV, |attr, body| {
            if len == 0 {
                return Err(Errno::INVAL);
            }
            let end = end_of(off, len, SIZE_MAX)?;
            let pages = pages_of(&mut body.content)?;
            let (allocate, zero) = match kind {
                Fallocate::Allocate { .. } => (true, false),
                Fallocate::ZeroRange { .. } => (true, true),
                Fallocate::PunchHole => (false, true),
            };
            // Space for the whole range must be free, although nothing beyond the end is kept.
            let had = match allocate {
                true => pages.missing(covering(off, end)),
                false => 0,
            };
            self.space.take(had)?;
            if !kind.keeps_size() {
                body.size = body.size.max(end);
            }
            let before = pages.count();
            if zero {
                pages.punch(off, end);
            }
            if allocate {
                pages.allocate(covering(off, end.min(body.size)));
            }
            self.space.give(had + before - pages.count());
            body.perm = perm::perm_after_write(cx, attr);
            let now = self.clock.now();
            (body.mtime, body.ctime) = (now, now);
            Ok(())
        })
    }

    fn seek(&self, _cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        let node = self.node(ino)?;
        let body = node.body.read();
        let Content::Data(pages) = &body.content else {
            return Err(Errno::INVAL);
        };
        if off >= body.size {
            return Err(Errno::NXIO);
        }
        match kind {
            SeekKind::Data => pages.next_data(off).ok_or(Errno::NXIO),
            SeekKind::Hole => Ok(pages.next_hole(off).min(body.size)),
        }
    }

    fn fsync(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.node(ino).map(drop)
    }

    fn fsyncdir(&self, _cx: &Ctx, ino: Ino, _data_only: bool) -> Result<()> {
        self.node(ino)?.with_dir(|_| ())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        let free = self.space.blocks - self.space.used();
        Ok(StatFs {
            block_bytes: BLOCK as u32,
            blocks: self.space.blocks,
            blocks_free: free,
            blocks_avail: free,
            inodes: INODES,
            inodes_free: INODES.saturating_sub(self.inodes() as u64),
            name_max: NAME_MAX as u32,
        })
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let body = node.body.read();
        perm::may_get_xattr(cx, &node.attr_of(&body), name)?;
        let value = body.xattrs.get(name).ok_or(absent_xattr(name))?;
        Ok(value.to_vec())
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        let node = self.node(ino)?;
        let body = &mut *node.body.write();
        perm::may_set_xattr(cx, &node.attr_of(body), name)?;
        mode.check(body.xattrs.contains_key(name))?;
        let others = body.xattrs.iter().filter(|(other, _)| ***other != *name);
        let others: usize = others.map(|(name, value)| xattr_bytes(name, value)).sum();
        if XATTR_HEADER + others + xattr_bytes(name, value) > BLOCK as usize {
            return Err(Errno::NOSPC);
        }
        self.space.take(u64::from(body.xattrs.is_empty()))?;
        body.xattrs.insert(name.into(), value.into());
        body.ctime = self.clock.now();
        Ok(())
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let body = node.body.read();
        let names = body.xattrs.keys().map(|name| name.to_vec());
        Ok(names
            .filter(|name| perm::may_list_xattr(cx, name))
            .collect())
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let node = self.node(ino)?;
        let body = &mut *node.body.write();
        perm::may_set_xattr(cx, &node.attr_of(body), name)?;
        body.xattrs.remove(name).ok_or(absent_xattr(name))?;
        self.space.give(u64::from(body.xattrs.is_empty()));
        body.ctime = self.clock.now();
        Ok(())
    }
}

/// Bytes of the attribute block before the first attribute.
const XATTR_HEADER: usize = 16;

/// Bytes of one attribute in the attribute block.
fn xattr_bytes(name: &[u8], value: &[u8]) -> usize {
    (8 + name.len() + value.len()).next_multiple_of(8)
}

#[cfg(test)]
mod tests;
