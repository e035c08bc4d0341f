//! Operations on attributes and extended attributes.

use crate::error::{Res, corrupt};
use crate::format::{PAGE, Page};
use crate::node::{Node, State};
use crate::volume::Volume;
use medium::Pmem;
use std::sync::Arc;
use vfs::xattr_block::{decode, encode};
use vfs::xattrs::{XattrChange, Xattrs, names_for, value_of};
use vfs::{Atime, Attr, Ctx, Ino, SetAttr, SetTime, perm};

impl<P: Pmem> Volume<P> {
    pub(crate) fn set_attr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Res<Attr> {
        let node = self.node(ino)?;
        let mut state = node.state.write();
        let set = perm::check_setattr(cx, &state.attr(ino), set)?;
        if set == SetAttr::default() {
            return Ok(state.attr(ino));
        }
        let now = self.clock.now();
        if let Some(size) = set.size.filter(|size| *size != state.size) {
            self.resize(&mut state, size)?;
        }
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        state.perm = set.perm.unwrap_or(state.perm);
        state.uid = set.uid.unwrap_or(state.uid);
        state.gid = set.gid.unwrap_or(state.gid);
        state.atime = set.atime.map_or(state.atime, time);
        let mtime = set.mtime.or(set.size.map(|_| SetTime::Now));
        state.mtime = mtime.map_or(state.mtime, time);
        state.ctime = set.ctime.unwrap_or(now);
        self.touch_state(&node, &mut state);
        Ok(state.attr(ino))
    }

    pub(crate) fn is_atime_due(&self, node: &Node, state: &State) -> bool {
        let is_fixed = self.read_only || self.atime == Atime::Never;
        !is_fixed && self.atime.is_due(&state.attr(node.ino), self.clock.now())
    }

    /// Updates the access time after a read.
    pub(crate) fn accessed(&self, cx: &Ctx, ino: Ino) {
        if cx.noatime || self.read_only || self.atime == Atime::Never {
            return;
        }
        let Ok(node) = self.node(ino) else { return };
        let mut state = node.state.write();
        if self.is_atime_due(&node, &state) {
            state.atime = self.clock.now();
            self.touch_state(&node, &mut state);
        }
    }

    fn xattrs(&self, ino: Ino, state: &State) -> Res<Xattrs> {
        let Some(page) = state.xattr else {
            return Ok(Vec::new());
        };
        let mut bytes = [0; PAGE as usize];
        self.space
            .pm
            .read(self.space.page(page)?.addr(), &mut bytes)?;
        decode(&bytes).ok_or_else(|| corrupt(format_args!("the attributes of inode {ino}")))
    }

    pub(crate) fn get_xattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        let node = self.node(ino)?;
        let state = node.state.read();
        perm::may_get_xattr(cx, &state.attr(ino), name)?;
        Ok(value_of(self.xattrs(ino, &state)?, name)?)
    }

    pub(crate) fn list_xattrs(&self, cx: &Ctx, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let state = node.state.read();
        Ok(names_for(cx, self.xattrs(ino, &state)?))
    }

    /// Puts the changed attributes into a new page. A persister stores the pointer to it.
    pub(crate) fn change_xattrs(&self, cx: &Ctx, ino: Ino, change: &XattrChange<'_>) -> Res<()> {
        let node: Arc<Node> = self.node(ino)?;
        let mut state = node.state.write();
        perm::may_set_xattr(cx, &state.attr(ino), change.name())?;
        let mut xattrs = self.xattrs(ino, &state)?;
        change.apply(&mut xattrs)?;
        let bytes = encode(&xattrs, PAGE as usize)?;
        let new: Option<Page> = match xattrs.is_empty() {
            true => None,
            false => Some(self.alloc.take_page(&self.space)?),
        };
        if let Some(page) = new {
            self.space.pm.store(page.addr(), &bytes);
        }
        let old = std::mem::replace(&mut state.xattr, new);
        let pages = state.pages.saturating_add(new.is_some().into());
        state.pages = pages.saturating_sub(old.is_some().into());
        if let Some(page) = old.filter(|page| state.stored_xattr != Some(*page)) {
            self.alloc.abandon_page(&self.space, page)?;
        }
        state.ctime = self.clock.now();
        self.touch_state(&node, &mut state);
        Ok(())
    }
}
