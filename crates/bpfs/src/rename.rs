//! Renames: within a directory, between two, over another name, and exchanges.
//!
//! Each commits once: after a crash the moved inode has its old name or the new one, never both
//! or neither. No directory becomes its own descendant.

use crate::dir::{self, DirIndex, NewEntry};
use crate::edit::What;
use crate::error::Res;
use crate::format::at;
use crate::fs::{Bpfs, Found, WriteLock};
use crate::staged::TreeLock;
use crate::table::Node;
use crate::tx::Tx;
use medium::Pmem;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{
    Ctx, Errno, FileType, Ino, Name, RenameFlags, Result, Timestamp, check_name, check_replaced,
    perm,
};

/// One of the two names of a rename, old or new.
#[derive(Clone, Copy)]
struct End<'e> {
    dir: Ino,
    node: &'e Node,
    name: &'e [u8],
}

/// An entry in its directory.
#[derive(Clone, Copy)]
struct Entry {
    pos: u64,
    ino: Ino,
    kind: FileType,
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}

impl From<(u64, Ino, FileType)> for Entry {
    fn from((pos, ino, kind): (u64, Ino, FileType)) -> Self {
        Self { pos, ino, kind }
    }
}

/// The entries that a rename has found in its directories, which are locked.
struct Plan<'e> {
    from: End<'e>,
    to: End<'e>,
    source: Entry,
    target: Option<Entry>,
    exchange: bool,
}

impl Plan<'_> {
    /// The entry that the rename replaces, if it does.
    fn replaced(&self) -> Option<Entry> {
        self.target.filter(|_| !self.exchange)
    }

    /// Changes the existing entries to their new inodes. `kinds`: the types of source and
    /// target.
    fn edit_entries<'a, P: Pmem>(&self, tx: &mut Tx<'_, 'a, P>, kinds: &'a [u8; 2]) {
        let (from, old) = (self.from.dir, self.source.pos);
        let left = self.target.filter(|_| self.exchange);
        let ino = left.map_or(0, |target| target.ino.0);
        tx.edit(from, old, old + 8, What::Word(ino));
        let Some(target) = self.target else { return };
        let (to, new) = (self.to.dir, target.pos);
        tx.edit(to, new, new + 8, What::Word(self.source.ino.0));
        if target.kind != self.source.kind {
            set_kind(tx, to, new, &kinds[..1]);
            if self.exchange {
                set_kind(tx, from, old, &kinds[1..]);
            }
        }
    }

    /// Updates parents, subdirectory counts and name counts after the rename.
    fn book(&self, moved: &Moved<'_>) {
        let (from, to) = (self.from.node, self.to.node);
        if self.source.is_dir() {
            moved.source.node.parent.store(self.to.dir.0, SeqCst);
            from.subdirs.fetch_sub(1, SeqCst);
            to.subdirs.fetch_add(1, SeqCst);
        }
        let Some(target) = &moved.target else { return };
        if target.is_dir() {
            to.subdirs.fetch_sub(1, SeqCst);
        }
        if !self.exchange {
            target.node.life.names.fetch_sub(1, SeqCst);
        } else if target.is_dir() {
            target.node.parent.store(self.from.dir.0, SeqCst);
            from.subdirs.fetch_add(1, SeqCst);
        }
    }
}

/// Changes the type in the entry at `pos`.
fn set_kind<'a, P: Pmem>(tx: &mut Tx<'_, 'a, P>, dir: Ino, pos: u64, kind: &'a [u8]) {
    let at = pos + at::DIRENT_KIND;
    tx.edit(dir, at, at + 1, What::Bytes(kind));
}

/// The inodes that a rename moves or replaces, locked.
struct Moved<'f> {
    source: Found<'f>,
    _source_held: WriteLock<'f>,
    target: Option<Found<'f>>,
    target_held: Option<WriteLock<'f>>,
}

/// The locked indexes of a rename. `to` is `None` if both names are in one directory.
struct Indexes<'i> {
    from: &'i mut DirIndex,
    to: Option<&'i mut DirIndex>,
}

impl Indexes<'_> {
    fn to(&mut self) -> &mut DirIndex {
        self.to.as_deref_mut().unwrap_or(self.from)
    }
}

impl<P: Pmem> Bpfs<P> {
    pub(crate) fn do_rename(
        &self,
        cx: &Ctx,
        from: Name<'_>,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        flags.check()?;
        // Directories change parents only under the exclusive lock, so that the ancestry is
        // stable.
        let enough = match from.dir == to.dir {
            true => TreeLock::Shared,
            false => TreeLock::Exclusive,
        };
        self.mutate(enough, |lock| self.move_name(cx, [from, to], flags, lock))
    }

    fn move_name(
        &self,
        cx: &Ctx,
        [old, new]: [Name<'_>; 2],
        flags: RenameFlags,
        lock: TreeLock,
    ) -> Res<()> {
        let (mut from_held, from_dir) = self.hold(old.dir)?;
        let mut other = (old.dir != new.dir)
            .then(|| self.hold(new.dir))
            .transpose()?;
        let from = self.index(&mut from_held, &from_dir)?;
        let (to, to_dir) = match &mut other {
            None => (None, &from_dir),
            Some((held, found)) => (Some(self.index(held, found)?), &*found),
        };
        let mut indexes = Indexes { from, to };
        let ends = [(&from_dir, old.name), (to_dir, new.name)];
        let Some(plan) = self.plan_rename(cx, ends, &mut indexes, flags)? else {
            return Ok(());
        };
        let mut moved = self.hold_moved(&plan)?;
        self.check_rename(cx, &plan, (&from_dir, to_dir), &mut moved)?;
        self.apply_rename(&plan, &moved, &mut indexes, lock)?;
        drop((moved, other, from_held));
        if let Some(gone) = plan.replaced() {
            self.unnamed(gone.ino, self.table.node(gone.ino));
        }
        Ok(())
    }

    /// Finds the entries, and makes all checks that precede those of the inodes in the order of
    /// Linux. `None`: nothing to do.
    fn plan_rename<'e>(
        &self,
        cx: &Ctx,
        [(from_dir, name), (to_dir, new_name)]: [(&Found<'e>, &'e [u8]); 2],
        indexes: &mut Indexes<'_>,
        flags: RenameFlags,
    ) -> Res<Option<Plan<'e>>> {
        perm::may_search(cx, &from_dir.attr)?;
        perm::may_search(cx, &to_dir.attr)?;
        let old = indexes.from.find(&self.vol, &from_dir.tree(), name)?;
        let new = indexes.to().find(&self.vol, &to_dir.tree(), new_name)?;
        let source = old.ok_or(Errno::NOENT)?;
        flags.check_target(new.is_some())?;
        let end = |found: &Found<'e>, name| End {
            dir: found.ino,
            node: found.node,
            name,
        };
        let plan = Plan {
            from: end(from_dir, name),
            to: end(to_dir, new_name),
            source: source.into(),
            target: new.map(Entry::from),
            exchange: flags.is_exchange(),
        };
        self.check_ancestry(&plan)?;
        let same = plan.target.is_some_and(|t| t.ino == plan.source.ino);
        Ok((!same).then_some(plan))
    }

    /// Rejects a rename that would put a directory below itself.
    fn check_ancestry(&self, plan: &Plan<'_>) -> Res<()> {
        if plan.from.dir == plan.to.dir {
            return Ok(());
        }
        if plan.source.is_dir() && self.is_above(plan.source.ino, plan.to.dir) {
            return Err(Errno::INVAL.into());
        }
        let target = plan.target.filter(Entry::is_dir);
        if target.is_some_and(|t| self.is_above(t.ino, plan.from.dir)) {
            let errno = if plan.exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            };
            return Err(errno.into());
        }
        Ok(())
    }

    /// Locks the inodes that a rename moves or replaces: directories before files, then by
    /// number.
    fn hold_moved(&self, plan: &Plan<'_>) -> Res<Moved<'_>> {
        let rank = |entry: &Entry| (!entry.is_dir(), entry.ino);
        let target_first = plan.target.filter(|t| rank(t) < rank(&plan.source));
        let mut target = target_first.map(|t| self.hold(t.ino)).transpose()?;
        let (_source_held, source) = self.hold(plan.source.ino)?;
        if target_first.is_none() {
            target = plan.target.map(|t| self.hold(t.ino)).transpose()?;
        }
        let (target_held, target) = target.unzip();
        Ok(Moved {
            source,
            _source_held,
            target,
            target_held,
        })
    }

    /// Checks the inodes, in the order of Linux.
    fn check_rename(
        &self,
        cx: &Ctx,
        plan: &Plan<'_>,
        (from_dir, to_dir): (&Found<'_>, &Found<'_>),
        moved: &mut Moved<'_>,
    ) -> Res<()> {
        if to_dir.attr.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        let target_attr = moved.target.as_ref().map(|t| &t.attr);
        let (a, b) = (&from_dir.attr, &to_dir.attr);
        perm::may_rename(cx, a, &moved.source.attr, b, target_attr, plan.exchange)?;
        let (Some(target), Some(held)) = (&moved.target, &mut moved.target_held) else {
            return Ok(());
        };
        if plan.exchange {
            return Ok(());
        }
        check_replaced(moved.source.is_dir(), target.is_dir())?;
        match target.is_dir() {
            // The lock is held until the name is removed, so that the directory stays empty.
            true => self.must_be_empty(held, target),
            false => Ok(()),
        }
    }

    /// Commits the rename of both directories at once; then updates the volatile state.
    fn apply_rename(
        &self,
        plan: &Plan<'_>,
        moved: &Moved<'_>,
        indexes: &mut Indexes<'_>,
        lock: TreeLock,
    ) -> Res<()> {
        let (from, to, source) = (plan.from, plan.to, plan.source);
        let space = match plan.target {
            Some(_) => None,
            None => Some(self.find_space(indexes.to(), to.dir, to.name, lock)?),
        };
        let from_dir = self.find(from.dir, from.node)?; // `find_space` may have moved them
        let to_dir = self.find(to.dir, to.node)?;
        let entry_len = dir::entry_len(&self.vol, &from_dir.tree(), source.pos)?;
        let now = self.clock.now();
        let kinds = [source.kind as u8, plan.target.map_or(0, |t| t.kind as u8)];
        let entry = space.map(|p| NewEntry::new(source.ino, source.kind, to.name, p));
        let mut tx = Tx::new(&self.vol, lock);
        if let (Some(entry), Some(space)) = (&entry, space) {
            // The inodes are copied anyway, unless the log takes the two words.
            entry.put(&mut tx, to.dir, &to_dir.tree(), space, self.vol.rules.log)?;
        }
        plan.edit_entries(&mut tx, &kinds);
        self.touch_contents(&mut tx, &from_dir, now);
        if from.dir != to.dir {
            self.touch_contents(&mut tx, &to_dir, now);
        }
        self.touch_moved(&mut tx, plan, moved, now);
        let deltas = tx.commit()?;
        self.apply(&deltas);
        if let Some(space) = space {
            indexes.to().placed(space, to.name);
        }
        if !plan.exchange {
            indexes.from.removed(source.pos, entry_len, from.name);
        }
        plan.book(moved);
        Ok(())
    }

    fn touch_moved(
        &self,
        tx: &mut Tx<'_, '_, P>,
        plan: &Plan<'_>,
        moved: &Moved<'_>,
        now: Timestamp,
    ) {
        self.touch_inode(tx, &moved.source, now);
        match &moved.target {
            Some(target) if plan.exchange => {
                self.touch_inode(tx, target, now);
            }
            Some(target) => self.touch_survivor(tx, target, now),
            None => {}
        }
    }
}
