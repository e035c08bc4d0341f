//! Operations on inodes: attributes and extended attributes.
//!
//! Each commits once: after a crash all or none of the attributes of a call are set. Times are
//! an exception in the modes that store them on their own.
//!
//! Extended attributes lie in one block ([`vfs::xattr_block`]), which each change replaces.

use crate::error::{Fault, Res};
use crate::format::{BLOCK, BlockNo, CTIME_ALONE, Inode, at};
use crate::fs::{Bpfs, Found};
use crate::staged::TreeLock;
use crate::tx::Tx;
use medium::Pmem;
use std::sync::atomic::Ordering::Relaxed;
use vfs::xattr_block::{decode, encode};
use vfs::xattrs::{XattrChange, Xattrs, names_for, value_of};
use vfs::{Attr, Ctx, Ino, SetAttr, SetTime, Timestamp, perm};

/// The inode after `set`, except its tree. From the first time that a caller chooses, the
/// change time stands alone.
fn changed(found: &Found<'_>, set: &SetAttr, now: Timestamp) -> Inode {
    let time = |t| match t {
        SetTime::Now => now.0,
        SetTime::At(at) => at.0,
    };
    let mut new = found.inode.clone();
    if let Some(perm) = set.perm {
        new.mode = (found.attr.kind.mode_bits() | perm).into();
    }
    new.uid = set.uid.unwrap_or(found.attr.uid).into();
    new.gid = set.gid.unwrap_or(found.attr.gid).into();
    new.size = set.size.unwrap_or(found.attr.size).into();
    if let Some(atime) = set.atime {
        new.atime = time(atime).into();
    }
    if let Some(mtime) = set.mtime.or(set.size.map(|_| SetTime::Now)) {
        new.mtime = time(mtime).into();
    }
    let chosen = matches!(set.mtime, Some(SetTime::At(_))) || set.ctime.is_some();
    let alone = if chosen {
        CTIME_ALONE
    } else {
        found.inode.ctime.get() & CTIME_ALONE
    };
    new.ctime = (set.ctime.unwrap_or(now).0 & !CTIME_ALONE | alone).into();
    new
}

impl<P: Pmem> Bpfs<P> {
    pub(crate) fn do_setattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        set: &SetAttr,
        lock: TreeLock,
    ) -> Res<Attr> {
        let (_guard, found) = self.hold(ino)?;
        let set = perm::check_setattr(cx, &found.attr, set)?;
        if set == SetAttr::default() {
            return Ok(found.attr);
        }
        let new = changed(&found, &set, self.clock.now());
        let detached = (new.ctime.get() & !found.inode.ctime.get()) & CTIME_ALONE != 0;
        let mut tx = Tx::new(&self.vol, lock);
        if let Some(size) = set.size.filter(|size| *size != found.attr.size) {
            if size < found.attr.size {
                tx.use_reserve();
            }
            self.resize(&mut tx, &found, size)?;
        }
        let differs = |field: &u64| new.word(*field) != found.inode.word(*field);
        for field in [at::OWNER, at::MODE].into_iter().filter(differs) {
            tx.set(ino, field, new.word(field));
        }
        for field in [at::MTIME, at::ATIME].into_iter().filter(differs) {
            tx.time(ino, field, new.word(field) as i64);
        }
        let ctime = new.ctime.get();
        if detached {
            // A caller's own time must not show as the change time.
            tx.time_first(ino, at::CTIME, ctime);
        } else {
            tx.time(ino, at::CTIME, ctime);
        }
        let deltas = tx.commit()?;
        self.apply(&deltas);
        self.attr(ino, found.node, &new)
    }

    fn xattrs(&self, found: &Found<'_>) -> Res<Xattrs> {
        let block = self.vol.pointer(found.inode.xattr.get())?;
        if block.is_null() {
            return Ok(Vec::new());
        }
        let mut bytes = [0; BLOCK as usize];
        self.vol.pm.read(block.addr(), &mut bytes)?;
        let bad = || Fault::Corrupt(format!("the attribute block of inode {}", found.ino));
        decode(&bytes).ok_or_else(bad)
    }

    pub(crate) fn do_getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        let (_guard, found) = self.peek(ino)?;
        perm::may_get_xattr(cx, &found.attr, name)?;
        Ok(value_of(self.xattrs(&found)?, name)?)
    }

    pub(crate) fn do_listxattr(&self, cx: &Ctx, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let (_guard, found) = self.peek(ino)?;
        Ok(names_for(cx, self.xattrs(&found)?))
    }

    /// Writes a new attribute block and commits by the pointer to it.
    pub(crate) fn change_xattrs(
        &self,
        cx: &Ctx,
        ino: Ino,
        change: &XattrChange<'_>,
        lock: TreeLock,
    ) -> Res<()> {
        let (_guard, found) = self.hold(ino)?;
        perm::may_set_xattr(cx, &found.attr, change.name())?;
        let mut xattrs = self.xattrs(&found)?;
        let had = xattrs.len();
        change.apply(&mut xattrs)?;
        let bytes = encode(&xattrs, BLOCK as usize)?;
        let mut tx = Tx::new(&self.vol, lock);
        if xattrs.len() < had {
            tx.use_reserve();
        }
        let old = BlockNo(found.inode.xattr.get());
        let new = if xattrs.is_empty() {
            BlockNo::NULL
        } else {
            let block = tx.take()?;
            tx.fill(block.addr(), &bytes);
            block
        };
        if !old.is_null() {
            tx.free(old);
        }
        tx.set(ino, at::XATTR, new.0);
        self.touch_inode(&mut tx, &found, self.clock.now());
        let deltas = tx.commit()?;
        self.apply(&deltas);
        let blocks = &found.node.blocks;
        blocks.fetch_add(u64::from(!new.is_null()), Relaxed);
        blocks.fetch_sub(u64::from(!old.is_null()), Relaxed);
        Ok(())
    }
}
