//! Renames: all checks first, in the order of Linux, then the steps.

use super::dying::Death;
use super::names::Freeing;
use super::{BlockFs, Refusal, caller};
use crate::seeded::{Bug, hit};
use crate::{Befores, Format, InodeChange, Next, Removed, after};
use patch::{Op, PatchId, Rule};
use vfs::{Attr, Ctx, Errno, FileType, Ino, Name, RenameFlags, Result, Timestamp, perm};

/// A rename that has passed the checks.
struct Move<'a> {
    from: Attr,
    name: &'a [u8],
    to: Attr,
    new_name: &'a [u8],
    source: Attr,
    /// The inode that has the new name before the rename.
    target: Option<Attr>,
    exchange: bool,
}

/// The result of making the new name.
struct Arrived {
    patch: PatchId,
    /// The removal of the name's old meaning.
    replaced: Option<Removed>,
    /// Whether a directory was replaced at its only name.
    inherits: bool,
}

impl Move<'_> {
    fn moves_directory(&self) -> bool {
        self.source.kind == FileType::Directory
    }

    fn crosses(&self) -> bool {
        self.from.ino != self.to.ino
    }
}

impl<F: Format> BlockFs<F> {
    pub(super) fn move_name(
        &self,
        cx: &Ctx,
        names: [Name<'_>; 2],
        flags: RenameFlags,
    ) -> Result<()> {
        let [_, new] = names;
        self.read_names_for(new.dir, new.name);
        let blocks = self.format.cost(1) + self.format.cost(self.destroyed_at_once()) + 8;
        let orphan = self.change_for(cx, blocks, |op| {
            let Some(plan) = self.plan(cx, names, flags)? else {
                return Ok(None);
            };
            let freeing = self.ready_to_move(&plan)?;
            if plan.exchange {
                self.exchange(op, &plan)?;
                return Ok(None);
            }
            self.move_to(op, &plan, freeing)
        })?;
        match orphan {
            Some(death) => self.destroy_orphan(&caller(cx), death),
            None => Ok(()),
        }
    }

    /// Checks a rename. `None`: both are names of one inode, so that there is nothing to do.
    fn plan<'a>(
        &self,
        cx: &Ctx,
        [from, to]: [Name<'a>; 2],
        flags: RenameFlags,
    ) -> std::result::Result<Option<Move<'a>>, Refusal> {
        flags.check()?;
        let exchange = flags.is_exchange();
        if exchange && !self.format.store().is_atomic() {
            // After the change of either name, a crash could leave an inode without a name.
            return Err(Errno::INVAL.into());
        }
        let (name, new_name) = (from.name, to.name);
        let (from, old) = self.search(cx, from.dir, name)?;
        let (to, new) = self.search(cx, to.dir, new_name)?;
        let old = old.ok_or(Errno::NOENT)?;
        flags.check_target(new.is_some())?;
        let plan = Move {
            from,
            name,
            to,
            new_name,
            source: self.named(old)?,
            target: new.map(|new| self.named(new)).transpose()?,
            exchange,
        };
        self.check_ancestry(&plan)?;
        if new == Some(old) {
            return Ok(None);
        }
        if plan.to.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        let target = plan.target.as_ref();
        perm::may_rename(cx, &plan.from, &plan.source, &plan.to, target, exchange)?;
        self.check_types(&plan)?;
        Ok(Some(plan))
    }

    /// Checks that no directory moves below itself.
    fn check_ancestry(&self, plan: &Move<'_>) -> std::result::Result<(), Refusal> {
        if plan.moves_directory() && self.is_above(plan.source.ino, plan.to.ino)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(target) = &plan.target
            && target.kind == FileType::Directory
            && self.is_above(target.ino, plan.from.ino)?
        {
            let errno = if plan.exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            };
            return Err(errno.into());
        }
        Ok(())
    }

    /// Whether `ino` is `below` or one of the directories above it.
    fn is_above(&self, ino: Ino, below: Ino) -> std::result::Result<bool, Refusal> {
        Ok(self.path_up(below)?.contains(&ino))
    }

    /// Checks that the replaced inode has the same type and is empty, and that a link is left.
    fn check_types(&self, plan: &Move<'_>) -> std::result::Result<(), Refusal> {
        let directory = plan.moves_directory();
        if let Some(target) = plan.target.as_ref().filter(|_| !plan.exchange) {
            vfs::check_replaced(directory, target.kind == FileType::Directory)?;
            if directory && !self.format.is_empty(target.ino)? {
                return Err(Errno::NOTEMPTY.into());
            }
        }
        let gains = directory && plan.crosses() && plan.target.is_none();
        if gains && plan.to.nlink >= self.format.max_links(FileType::Directory) {
            return Err(Errno::MLINK.into());
        }
        // It has both names for a while, and may exceed the limit by one link meanwhile.
        if plan.source.nlink > self.format.max_links(plan.source.kind) {
            return Err(Errno::MLINK.into());
        }
        Ok(())
    }

    /// Reads all that the steps need, before the first change. Decides when a replaced inode is
    /// freed.
    fn ready_to_move(&self, plan: &Move<'_>) -> crate::Result<Freeing> {
        let moved = [
            Some(&plan.source),
            plan.target.as_ref().filter(|_| plan.exchange),
        ];
        for moved in moved.into_iter().flatten() {
            if plan.crosses() && moved.kind == FileType::Directory {
                self.format.ready(Next::MoveUp { dir: moved.ino })?;
            }
        }
        match &plan.target {
            Some(_) if plan.exchange => Ok(Freeing::Later),
            Some(target) => self.ready_to_drop(target),
            None => {
                let (dir, name) = (plan.to.ino, plan.new_name);
                self.format.ready(Next::AddName { dir, name })?;
                Ok(Freeing::Later)
            }
        }
    }

    /// Makes the new name, then removes the old one (U4). Links are raised before and lowered
    /// after (U3). Returns the [`Death`] of the replaced inode if the caller must free it.
    fn move_to(
        &self,
        op: &Op,
        plan: &Move<'_>,
        freeing: Freeing,
    ) -> std::result::Result<Option<Death<'_>>, Refusal> {
        let now = self.now();
        let reached = match plan.crosses() {
            true => self.before_reached(plan.to.ino)?,
            false => Befores::new(),
        };
        let arrived = self.arrive(op, plan, &reached)?;
        self.twins.moved(plan.source.ino, plan.to.ino);
        (self.depart(op, plan, &arrived, reached, now)).inspect_err(|_| self.twins.doubt())?;
        self.stamp(op, plan, now)?;
        match (&plan.target, arrived.replaced) {
            (Some(target), Some(replaced)) => {
                self.drop_link(op, target, freeing, replaced, now, !arrived.inherits)
            }
            _ => Ok(None),
        }
    }

    /// Makes the new name, with a link for it. `reached`: the patches that make the new directory
    /// reachable.
    fn arrive(
        &self,
        op: &Op,
        plan: &Move<'_>,
        reached: &Befores,
    ) -> std::result::Result<Arrived, Refusal> {
        let source = &plan.source;
        let mut befores = self.before_name(source);
        let new_parent = plan.moves_directory() && plan.crosses();
        if new_parent {
            // While it has two names, both must be reachable: `..` leads to one of them, and the
            // removal of the other one does not free it.
            befores.extend(self.before_reached(plan.from.ino)?);
            befores.extend(reached.iter().copied());
            befores.extend(self.before_moved_below(plan.to.ino)?);
        }
        let raised = self
            .format
            .change_inode(op, source.ino, &links(source.nlink + 1), &[])?;
        befores.extend(after(Rule::LinkBeforeUnlink, [raised]));
        let stays = match &plan.target {
            Some(target) => self.lean_on_other(op, target, plan.to.ino, plan.new_name)?,
            None => None,
        };
        // A directory that is replaced leaves its link to the one that replaces it.
        let inherits = plan.target.is_some() && stays.is_none();
        if let Some(target) = &plan.target {
            let mut replaces = self.before_removal(target);
            replaces.extend(stays.iter().flat_map(|other| other.there.iter().copied()));
            self.leave_behind(plan.to.ino, &replaces);
            befores.extend(replaces);
        }
        if new_parent && !inherits {
            let change = links(plan.to.nlink + 1);
            let raised = self.format.change_inode(op, plan.to.ino, &change, &[])?;
            befores.extend(after(Rule::LinkBeforeUnlink, [raised]));
        }
        match self.take_name(op, plan, &befores) {
            Ok((patch, replaced)) => Ok(Arrived {
                patch,
                replaced,
                inherits,
            }),
            Err(error) => {
                self.format
                    .change_inode(op, source.ino, &links(source.nlink), &[])?;
                if new_parent && !inherits {
                    self.format
                        .change_inode(op, plan.to.ino, &links(plan.to.nlink), &[])?;
                }
                Err(error.into())
            }
        }
    }

    /// Removes the old name, then its link, after the new name and the patches that make it
    /// `reached`.
    fn depart(
        &self,
        op: &Op,
        plan: &Move<'_>,
        arrived: &Arrived,
        reached: Befores,
        now: Timestamp,
    ) -> crate::Result<()> {
        let source = &plan.source;
        let there = after(Rule::LinkBeforeUnlink, [arrived.patch]);
        let mut removal_befores = there.clone();
        removal_befores.extend(reached);
        let new_parent = plan.moves_directory() && plan.crosses();
        // With two names after a crash, `..` may lead to the directory of the other one.
        let counted = new_parent && self.format.parent(source.ino)? == plan.from.ino;
        if new_parent {
            let moved = self
                .format
                .set_parent(op, source.ino, plan.to.ino, &there)?;
            removal_befores.extend(after(Rule::LinkBeforeUnlink, [moved]));
        }
        if plan.moves_directory() {
            self.found_on(source.ino, &[arrived.patch]);
        }
        self.live_in(source.ino, plan.to.ino);
        if hit(Bug::OldNameFirst) {
            removal_befores.clear();
        }
        let removed = self
            .format
            .remove_name(op, plan.from.ino, plan.name, &removal_befores)?;
        self.leave_behind(plan.from.ino, &self.left_by(plan, removed, removal_befores));
        let gone = Befores::from_iter(removed.before_reuse());
        if counted || (plan.moves_directory() && !plan.crosses() && arrived.inherits) {
            self.leave_parent(op, plan, &gone)?;
        }
        let back = InodeChange {
            ctime: Some(now),
            ..links(source.nlink)
        };
        let lowered = self.format.change_inode(op, source.ino, &back, &gone)?;
        if !removed.never_stored {
            self.known.lock().entry(source.ino).or_default().lowered = Some(lowered);
        }
        self.note(plan.from.ino, &[removed.patch]);
        self.note(plan.to.ino, &[arrived.patch]);
        self.note(source.ino, &[arrived.patch, removed.patch, lowered]);
        Ok(())
    }

    /// The befores of freeing the old directory. A moved file must have its new name by then. A
    /// moved directory must also have lost the old name, since it is freed with its last reachable
    /// name.
    fn left_by(&self, plan: &Move<'_>, removed: Removed, removal_befores: Befores) -> Befores {
        match (plan.crosses(), plan.moves_directory()) {
            (false, _) => Befores::new(),
            (true, false) => removal_befores,
            (true, true) => after(Rule::NullifyBeforeReuse, [removed.patch]),
        }
    }

    /// Points the new name at the source, in one change.
    fn take_name(
        &self,
        op: &Op,
        plan: &Move<'_>,
        befores: &Befores,
    ) -> crate::Result<(PatchId, Option<Removed>)> {
        let (dir, name) = (plan.to.ino, plan.new_name);
        let (ino, kind) = (plan.source.ino, plan.source.kind);
        if plan.target.is_some() {
            let replaced = self
                .format
                .replace_name(op, dir, name, ino, kind, befores)?;
            return Ok((replaced.patch, Some(replaced)));
        }
        let added = self.format.add_name(op, dir, name, ino, kind, befores)?;
        Ok((added, None))
    }

    /// Lowers the link count of the old parent. A directory that replaces another one inherits that
    /// one's link in the new parent.
    fn leave_parent(&self, op: &Op, plan: &Move<'_>, gone: &Befores) -> crate::Result<()> {
        let nlink = self
            .format
            .inode(plan.from.ino)?
            .map_or(plan.from.nlink, |attr| attr.nlink);
        let lowered = self
            .format
            .change_inode(op, plan.from.ino, &links(nlink - 1), gone)?;
        self.note(plan.from.ino, &[lowered]);
        Ok(())
    }

    /// Swaps two names, on a store with atomic operations.
    fn exchange(&self, op: &Op, plan: &Move<'_>) -> std::result::Result<(), Refusal> {
        let target = plan.target.as_ref().ok_or(Errno::NOENT)?;
        let (source, now) = (&plan.source, self.now());
        let format = &self.format;
        format.replace_name(op, plan.to.ino, plan.new_name, source.ino, source.kind, &[])?;
        format.replace_name(op, plan.from.ino, plan.name, target.ino, target.kind, &[])?;
        let directory = |attr: &Attr| u32::from(attr.kind == FileType::Directory);
        if plan.crosses() {
            for (moved, parent) in [(source, plan.to.ino), (target, plan.from.ino)] {
                if moved.kind == FileType::Directory {
                    self.twins.moved(moved.ino, parent);
                    format.set_parent(op, moved.ino, parent, &[])?;
                }
                self.live_in(moved.ino, parent);
            }
            let (arrives, leaves) = (directory(source), directory(target));
            if arrives != leaves {
                let to = links(plan.to.nlink + arrives - leaves);
                let from = links(plan.from.nlink + leaves - arrives);
                format.change_inode(op, plan.to.ino, &to, &[])?;
                format.change_inode(op, plan.from.ino, &from, &[])?;
            }
        }
        for moved in [source, target] {
            let ctime = InodeChange {
                ctime: Some(now),
                ..InodeChange::default()
            };
            let stamped = format.change_inode(op, moved.ino, &ctime, &[])?;
            self.note(moved.ino, &[stamped]);
        }
        self.stamp(op, plan, now)?;
        Ok(())
    }

    /// Updates the times of both directories.
    fn stamp(&self, op: &Op, plan: &Move<'_>, now: Timestamp) -> crate::Result<()> {
        for dir in [plan.from.ino, plan.to.ino] {
            let touched = self.touch(op, dir, now)?;
            self.note(dir, &[touched]);
        }
        Ok(())
    }
}

/// Makes a change of only the link count.
fn links(nlink: u32) -> InodeChange {
    InodeChange {
        nlink: Some(nlink),
        ..InodeChange::default()
    }
}
