//! Calls on attributes and extended attributes.

use crate::data::{cut, grow};
use crate::error::{Res, damaged};
use crate::fs::{Pxfs, key};
use crate::inode::{ATIME, Inode, SIZE_MAX};
use aerie_objects::{Kind, PAGE, lookup, page};
use medium::Pmem;
use vfs::xattr_block::{decode, encode};
use vfs::xattrs::{XattrChange, Xattrs, names_for, value_of};
use vfs::{Atime, Attr, Ctx, Errno, Ino, SetAttr, SetTime, perm};

impl<P: Pmem> Pxfs<P> {
    pub(crate) fn set_attr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Res<Attr> {
        let mut inode = self.inode(ino)?;
        let set = perm::check_setattr(cx, &inode.attr, set)?;
        if set == SetAttr::default() {
            return Ok(inode.attr);
        }
        if set.size.is_some_and(|size| size > SIZE_MAX) {
            return Err(Errno::FBIG.into());
        }
        let now = self.clock.now();
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        self.change(|tx| {
            match set.size {
                Some(size) if size > inode.attr.size => grow(tx, &inode, size)?,
                Some(size) if size < inode.attr.size => cut(tx, &inode, size)?,
                _ => {}
            }
            let attr = &mut inode.attr;
            attr.perm = set.perm.unwrap_or(attr.perm);
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            attr.atime = set.atime.map_or(attr.atime, time);
            let mtime = set.mtime.or(set.size.map(|_| SetTime::Now));
            attr.mtime = mtime.map_or(attr.mtime, time);
            attr.ctime = set.ctime.unwrap_or(now);
            inode.store(tx)
        })?;
        Ok(self.load(inode.object)?.attr)
    }

    /// Updates the access time after a read, if it is due.
    pub(crate) fn accessed(&self, cx: &Ctx, inode: Inode) {
        let now = self.clock.now();
        if cx.noatime || self.atime == Atime::Never || !self.atime.is_due(&inode.attr, now) {
            return;
        }
        let _gate = self.gate.write();
        // This word only: the other attributes may have changed since the read.
        if let Err(fault) = self.change(|tx| Ok(tx.set_own(inode.object, ATIME, now.0 as u64)?)) {
            tracing::warn!(
                "the access time of {} is not updated: {fault:?}",
                inode.object
            );
        }
    }

    fn xattrs(&self, inode: &Inode) -> Res<Xattrs> {
        if !inode.has_xattrs {
            return Ok(Vec::new());
        }
        let (memory, superblock) = (self.store.memory(), self.store.superblock());
        let broken = || {
            damaged(format_args!(
                "the attributes of {} are damaged",
                inode.object
            ))
        };
        let file = lookup(
            memory,
            superblock.attributes,
            superblock.seed,
            &key(inode.object),
        )?;
        let page = page(memory, file.ok_or_else(broken)?, 0)?.ok_or_else(broken)?;
        let mut bytes = [0; PAGE as usize];
        memory
            .read(page, &mut bytes)
            .map_err(aerie_objects::Error::from)?;
        decode(&bytes).ok_or_else(broken)
    }

    pub(crate) fn get_xattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        let inode = self.inode(ino)?;
        perm::may_get_xattr(cx, &inode.attr, name)?;
        Ok(value_of(self.xattrs(&inode)?, name)?)
    }

    pub(crate) fn list_xattrs(&self, cx: &Ctx, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let inode = self.inode(ino)?;
        Ok(names_for(cx, self.xattrs(&inode)?))
    }

    /// Puts the changed attributes into a new page, so that the old ones stay whole until the commit.
    pub(crate) fn change_xattrs(&self, cx: &Ctx, ino: Ino, change: &XattrChange<'_>) -> Res<()> {
        let mut inode = self.inode(ino)?;
        perm::may_set_xattr(cx, &inode.attr, change.name())?;
        let mut xattrs = self.xattrs(&inode)?;
        change.apply(&mut xattrs)?;
        let bytes = encode(&xattrs, PAGE as usize)?;
        self.change(|tx| {
            let (attributes, key) = (tx.superblock().attributes, key(inode.object));
            if let Some((old, _)) = tx.remove(attributes, &key)? {
                tx.delete(old)?;
            }
            if !xattrs.is_empty() {
                let file = tx.create(Kind::MFile)?;
                let page = tx.add_page(file, 0)?;
                tx.store_contents(page, &bytes);
                tx.set_size(file, bytes.len() as u64)?;
                tx.add(attributes, &key, file)?;
            }
            inode.has_xattrs = !xattrs.is_empty();
            inode.attr.ctime = self.clock.now();
            inode.store(tx)
        })
    }
}
