//! Renames: all checks first, in the order of Linux, then the change.

use super::node::{Content, Directory, Node};
use super::table::Table;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileType, Ino, Name, RenameFlags, Result, Timestamp, check_replaced, perm};

/// A rename that has passed all checks.
pub(super) struct Move {
    from: Arc<Node>,
    to: Arc<Node>,
    source: Arc<Node>,
    /// The inode that had the new name.
    pub(super) target: Option<Arc<Node>>,
    pub(super) exchange: bool,
}

impl Table {
    /// Checks a rename between two names. `None`: there is nothing to do, since both are names
    /// of one inode.
    pub(super) fn plan_rename(
        &self,
        cx: &Ctx,
        [from, to]: [Name<'_>; 2],
        flags: RenameFlags,
    ) -> Result<Option<Move>> {
        flags.check()?;
        let (from, old) = self.search(cx, from.dir, from.name)?;
        let (to, new) = self.search(cx, to.dir, to.name)?;
        let old = old.ok_or(Errno::NOENT)?;
        flags.check_target(new.is_some())?;
        let source = self.node(old.ino)?.clone();
        let target = new.map(|new| self.node(new.ino).cloned()).transpose()?;
        let plan = Move {
            from,
            to,
            source,
            target,
            exchange: flags.is_exchange(),
        };
        self.check_ancestry(&plan)?;
        if new.is_some_and(|new| new.ino == old.ino) {
            return Ok(None);
        }
        plan.check_permissions(cx)?;
        plan.check_types()?;
        Ok(Some(plan))
    }

    /// Rejects a rename that would put a directory below itself.
    fn check_ancestry(&self, plan: &Move) -> Result<()> {
        let is_dir = |node: &Node| node.kind == FileType::Directory;
        if is_dir(&plan.source) && self.is_above(plan.source.ino, plan.to.ino) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = plan.target.as_ref().filter(|target| is_dir(target))
            && self.is_above(target.ino, plan.from.ino)
        {
            return Err(if plan.exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        Ok(())
    }
}

impl Move {
    fn check_permissions(&self, cx: &Ctx) -> Result<()> {
        let to = self.to.attr();
        if to.nlink == 0 {
            return Err(Errno::NOENT); // removed, and still referenced
        }
        let target = self.target.as_ref().map(|target| target.attr());
        let (from, source) = (self.from.attr(), self.source.attr());
        perm::may_rename(cx, &from, &source, &to, target.as_ref(), self.exchange)
    }

    /// Checks that a replaced inode is a directory exactly if the moved one is, and is empty.
    fn check_types(&self) -> Result<()> {
        let Some(target) = self.target.as_ref().filter(|_| !self.exchange) else {
            return Ok(());
        };
        let is_dir = |node: &Node| node.kind == FileType::Directory;
        check_replaced(is_dir(&self.source), is_dir(target))?;
        if is_dir(target) && !target.with_dir(Directory::is_empty)? {
            return Err(Errno::NOTEMPTY);
        }
        Ok(())
    }

    /// Changes both directories and the moved inodes. A replaced target keeps its link count,
    /// which the caller drops.
    pub(super) fn apply(&self, name: &[u8], new_name: &[u8], now: Timestamp) {
        let subdir = |node: &Node| u32::from(node.kind == FileType::Directory);
        let (source, target) = (&self.source, self.target.as_ref());
        let arrives = subdir(source);
        let leaves = target.map_or(0, |target| subdir(target));
        let back = target.filter(|_| self.exchange);
        self.from.change_dir(now, |nlink, dir| match back {
            Some(target) => {
                dir.set(name, target.ino, target.kind);
                *nlink = *nlink + leaves - arrives;
            }
            None => {
                dir.remove(name);
                *nlink -= arrives;
            }
        });
        self.to.change_dir(now, |nlink, dir| {
            dir.set(new_name, source.ino, source.kind);
            *nlink = *nlink + arrives - leaves;
        });
        source.moved_to(self.to.ino, now);
        if let Some(target) = back {
            target.moved_to(self.from.ino, now);
        }
    }
}

impl Node {
    fn moved_to(&self, parent: Ino, now: Timestamp) {
        let body = &mut *self.body.write();
        body.ctime = now;
        if let Content::Directory(dir) = &mut body.content {
            dir.parent = parent;
        }
    }
}
