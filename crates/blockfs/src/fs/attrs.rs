//! Attributes: those of `stat`, and extended ones.

use super::{BlockFs, caller};
use crate::{Format, InodeChange};
use vfs::xattrs::{XattrChange, value_of};
use vfs::{Attr, Ctx, Ino, Result, SetAttr, SetTime, perm};

impl<F: Format> BlockFs<F> {
    pub(super) fn set_attributes_of(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if let Some(size) = set.size {
            let attr = self.look(|| self.attr(ino))?;
            perm::check_setattr(cx, &attr, set)?;
            self.trim(ino, size)?;
        }
        let blocks = self.format.cost(self.destroyed_at_once()) + 2;
        let (attr, more) = self.change(&caller(cx), blocks, |op| {
            let attr = self.attr(ino)?;
            let set = perm::check_setattr(cx, &attr, set)?;
            if set == SetAttr::default() {
                return Ok((attr, false));
            }
            let change = self.change_of(&set);
            let more = match set.size {
                Some(size) => self.resize(op, &attr, size, change)?,
                None => {
                    let changed = self.format.change_inode(op, ino, &change, &[])?;
                    self.note_inode(ino, &change, changed);
                    false
                }
            };
            Ok((self.attr(ino)?, more))
        })?;
        if more {
            self.finish_cut(&caller(cx), ino)?;
            return self.look(|| self.attr(ino));
        }
        Ok(attr)
    }

    fn change_of(&self, set: &SetAttr) -> InodeChange {
        let now = self.now();
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        InodeChange {
            perm: set.perm,
            uid: set.uid,
            gid: set.gid,
            nlink: None,
            size: None,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time).or(set.size.map(|_| now)),
            ctime: Some(set.ctime.unwrap_or(now)),
        }
    }

    pub(super) fn get_attribute(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.look(|| {
            perm::may_get_xattr(cx, &self.attr(ino)?, name)?;
            let all = self.format.attributes(ino)?;
            Ok(value_of(all, name)?)
        })
    }

    pub(super) fn change_attributes(
        &self,
        cx: &Ctx,
        ino: Ino,
        change: &XattrChange<'_>,
    ) -> Result<()> {
        self.change_for(cx, self.format.cost(2), |op| {
            perm::may_set_xattr(cx, &self.attr(ino)?, change.name())?;
            let mut all = self.format.attributes(ino)?;
            change.apply(&mut all)?;
            let heads = self.format.set_attributes(op, ino, &all)?;
            let ctime = InodeChange {
                ctime: Some(self.now()),
                ..InodeChange::default()
            };
            let stamped = self.format.change_inode(op, ino, &ctime, &[])?;
            self.note(ino, &heads);
            self.note_inode(ino, &ctime, stamped);
            Ok(())
        })
    }
}
