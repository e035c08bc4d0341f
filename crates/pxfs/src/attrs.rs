//! Calls on attributes and extended attributes.

use crate::data::{cut, grow};
use crate::error::{Res, damaged};
use crate::fs::{By, Pxfs, key};
use crate::inode::{ATIME, Inode, SIZE_MAX};
use aerie_objects::{Kind, Load, ObjectId, PAGE, Transaction, lookup, page, stable};
use medium::Pmem;
use vfs::xattr_block::{decode, encode};
use vfs::xattrs::{XattrChange, Xattrs, names_for, value_of};
use vfs::{Atime, Attr, Ctx, Errno, FileType, Ino, OpenFlags, SetAttr, SetTime, perm};

impl<P: Pmem> Pxfs<P> {
    pub(crate) fn set_attr(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        set: &SetAttr,
    ) -> Res<Attr> {
        let mut inode = self.inode(tx, ino)?;
        let set = perm::check_setattr(by.cx, &inode.attr, set)?;
        if set == SetAttr::default() {
            return Ok(inode.attr);
        }
        if set.size.is_some_and(|size| size > SIZE_MAX) {
            return Err(Errno::FBIG.into());
        }
        let time = |time| match time {
            SetTime::Now => by.now(),
            SetTime::At(at) => at,
        };
        match set.size {
            Some(size) if size > inode.attr.size => grow(tx, &inode, size)?,
            Some(size) if size < inode.attr.size => cut(tx, &inode, size)?,
            _ => {}
        }
        if set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.drop_capabilities(tx, &mut inode)?;
        }
        let attr = &mut inode.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        let mtime = set.mtime.or(set.size.map(|_| SetTime::Now));
        attr.mtime = mtime.map_or(attr.mtime, time);
        attr.ctime = set.ctime.unwrap_or(by.now());
        inode.store(tx)?;
        Ok(self.load(tx, inode.object)?.attr)
    }

    /// Opens. Returns the object.
    pub(crate) fn open_node(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        flags: OpenFlags,
    ) -> Res<ObjectId> {
        let inode = self.inode(tx, ino)?;
        perm::may_open(by.cx, &inode.attr, flags)?;
        if flags.contains(OpenFlags::TRUNCATE) && inode.attr.kind == FileType::Regular {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            self.set_attr(tx, by, ino, &set)?;
        }
        Ok(inode.object)
    }

    /// Whether a read of the inode updates its access time.
    pub(crate) fn is_access_due(&self, by: By<'_>, inode: &Inode) -> bool {
        let is_wanted = !by.cx.noatime && self.atime != Atime::Never;
        is_wanted && self.atime.is_due(&inode.attr, by.now())
    }

    /// Updates the access time. Other attributes may have changed since the read.
    pub(crate) fn access(tx: &mut Transaction<'_, P>, by: By<'_>, object: ObjectId) -> Res<()> {
        Ok(tx.set_own(object, ATIME, by.now().0 as u64)?)
    }

    /// Updates the access time after a read, if it is due.
    pub(crate) fn accessed(&self, cx: &Ctx, inode: Inode) {
        let moment = self.moment();
        let by = moment.by(cx);
        if !self.is_access_due(by, &inode) {
            return;
        }
        let _alone = self.alone();
        if let Err(fault) = self.change(|tx| Self::access(tx, by, inode.object)) {
            tracing::warn!(
                "the access time of {} is not updated: {fault:?}",
                inode.object
            );
        }
    }

    fn xattrs<M: Load>(&self, memory: &M, inode: &Inode) -> Res<Xattrs> {
        if let Some(changed) = self.changed_xattrs(inode.object) {
            return Ok(changed);
        }
        if !inode.has_xattrs {
            return Ok(Vec::new());
        }
        let superblock = self.store.superblock();
        let (attributes, seed) = (superblock.attributes, superblock.seed);
        let broken = || {
            damaged(format_args!(
                "the attributes of {} are damaged",
                inode.object
            ))
        };
        // Other clients change this collection, too.
        let file = stable(memory, attributes, || {
            lookup(memory, attributes, seed, &key(inode.object))
        })?;
        let page = page(memory, file.ok_or_else(broken)?, 0)?.ok_or_else(broken)?;
        let mut bytes = [0; PAGE as usize];
        memory.read(page, &mut bytes)?;
        decode(&bytes).ok_or_else(broken)
    }

    pub(crate) fn get_xattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        let memory = self.store.memory();
        let inode = self.inode(memory, ino)?;
        perm::may_get_xattr(cx, &inode.attr, name)?;
        Ok(value_of(self.xattrs(memory, &inode)?, name)?)
    }

    pub(crate) fn list_xattrs(&self, cx: &Ctx, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let memory = self.store.memory();
        let inode = self.inode(memory, ino)?;
        Ok(names_for(cx, self.xattrs(memory, &inode)?))
    }

    pub(crate) fn change_xattrs(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        change: &XattrChange<'_>,
    ) -> Res<()> {
        let mut inode = self.inode(tx, ino)?;
        perm::may_set_xattr(by.cx, &inode.attr, change.name())?;
        let mut xattrs = self.xattrs(tx, &inode)?;
        change.apply(&mut xattrs)?;
        self.replace_xattrs(tx, &mut inode, xattrs)?;
        inode.attr.ctime = by.now();
        inode.store(tx)
    }

    /// Whether a file has capabilities of a program.
    pub(crate) fn has_capabilities<M: Load>(&self, memory: &M, inode: &Inode) -> Res<bool> {
        // Each write asks.
        if !inode.has_xattrs {
            return Ok(false);
        }
        let all = self.xattrs(memory, inode)?;
        Ok(all.iter().any(|(name, _)| name == perm::CAPABILITY))
    }

    /// Removes the capabilities of a program whose contents or owner change. The caller stores the inode.
    pub(crate) fn drop_capabilities(
        &self,
        tx: &mut Transaction<'_, P>,
        inode: &mut Inode,
    ) -> Res<()> {
        if !self.has_capabilities(tx, inode)? {
            return Ok(());
        }
        let mut xattrs = self.xattrs(tx, inode)?;
        xattrs.retain(|(name, _)| name != perm::CAPABILITY);
        self.replace_xattrs(tx, inode, xattrs)
    }

    /// Puts the attributes into a new page, so that the old ones stay whole until the commit. The caller stores the
    /// inode.
    fn replace_xattrs(
        &self,
        tx: &mut Transaction<'_, P>,
        inode: &mut Inode,
        xattrs: Xattrs,
    ) -> Res<()> {
        let bytes = encode(&xattrs, PAGE as usize)?;
        inode.has_xattrs = !xattrs.is_empty();
        if self.is_speculation() {
            self.keep_xattrs(inode.object, xattrs);
            return Ok(());
        }
        let (attributes, key) = (tx.superblock().attributes, key(inode.object));
        if let Some((old, _)) = tx.remove(attributes, &key)? {
            tx.delete(old)?;
        }
        if !xattrs.is_empty() {
            let file = tx.create_for(attributes, Kind::MFile)?;
            let page = tx.add_page(file, 0)?;
            tx.store_contents(page, &bytes);
            tx.set_size(file, bytes.len() as u64)?;
            tx.add(attributes, &key, file)?;
        }
        Ok(())
    }
}
