//! Renames: within a directory, and between two.
//!
//! The new name is one change, which also removes the name that it replaces; the removal of the old
//! name waits for it. An exchange is refused, since two links cannot change in one step.

use crate::change::{Mark, Marks};
use crate::error::{Fault, Res, corrupt};
use crate::format::{Line, inode};
use crate::names::{NewName, pins};
use crate::node::{Node, State};
use crate::nodes::Uses;
use crate::seeded::{Bug, hit};
use crate::sync::RwLockWriteGuard;
use crate::view::Found;
use crate::volume::Volume;
use hashbrown::HashSet;
use medium::Pmem;
use std::sync::Arc;
use vfs::{Attr, Ctx, Errno, Ino, Name, RenameFlags, check_name, check_replaced, perm};

/// A directory that is locked.
type Dir<'d> = (&'d Arc<Node>, &'d mut State);

/// The directories of a rename. `to` is `None` if they are one.
struct Ends<'d> {
    from: Dir<'d>,
    to: Option<Dir<'d>>,
}

impl Ends<'_> {
    fn from(&mut self) -> Dir<'_> {
        (self.from.0, self.from.1)
    }

    fn to(&mut self) -> Dir<'_> {
        match &mut self.to {
            Some((node, state)) => (node, state),
            None => (self.from.0, self.from.1),
        }
    }
}

impl Ends<'_> {
    /// The attributes of both directories.
    fn attrs(&mut self) -> Res<[Attr; 2]> {
        let attr = |(node, state): Dir<'_>| match state.is_dir() {
            true => Ok(state.attr(node.ino)),
            false => Err(Errno::NOTDIR),
        };
        Ok([attr(self.from())?, attr(self.to())?])
    }
}

/// The directories above those of a rename, themselves included. `None` within one directory.
#[derive(Default)]
struct Paths<'p> {
    above: Option<[&'p HashSet<Ino>; 2]>,
    /// The end of the last move of a directory.
    last_move: Option<&'p mut Option<Arc<Mark>>>,
}

impl Paths<'_> {
    /// Rejects a rename that would put a directory below itself.
    fn check(&self, source: &Found, target: Option<&Found>) -> Res<()> {
        let Some([above_from, above_to]) = self.above else {
            return Ok(());
        };
        if above_to.contains(&Ino(source.entry.ino)) {
            return Err(Errno::INVAL.into());
        }
        match target.is_some_and(|target| above_from.contains(&Ino(target.entry.ino))) {
            true => Err(Errno::NOTEMPTY.into()),
            false => Ok(()),
        }
    }
}

/// A mark that must still be waited for.
fn pending(mark: &Option<Arc<Mark>>) -> Marks {
    let waits = |mark: &&Arc<Mark>| !mark.is_done() && !hit(Bug::MovesAtOnce);
    mark.iter().filter(waits).cloned().collect()
}

/// An inode that is moved or replaced, with a reference.
struct Held<'c, P: Pmem> {
    core: &'c Volume<P>,
    node: Arc<Node>,
    is_dir: bool,
}

impl<P: Pmem> Drop for Held<'_, P> {
    fn drop(&mut self) {
        self.core.end_use(&self.node, Uses::LOST_REF);
    }
}

impl<P: Pmem> Volume<P> {
    pub(crate) fn rename(
        &self,
        cx: &Ctx,
        from: Name<'_>,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Res<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        flags.check()?;
        if flags.is_exchange() {
            return Err(Errno::INVAL.into());
        }
        let (from_dir, to_dir) = (self.node(from.dir)?, self.node(to.dir)?);
        if from.dir == to.dir {
            let mut state = from_dir.state.write();
            let ends = Ends {
                from: (&from_dir, &mut state),
                to: None,
            };
            let names = [from.name, to.name];
            let held = self.move_name(cx, ends, names, flags, Paths::default());
            drop(state);
            return held.map(drop);
        }
        // A directory above these may have a second name, and the order of locks follows the paths.
        self.twins.must_be_known()?;
        let mut last_move = self.renames.lock();
        let (above_from, above_to) = (self.path_of(from.dir)?, self.path_of(to.dir)?);
        // A directory comes before those below it.
        let to_first =
            above_from.contains(&to.dir) || (!above_to.contains(&from.dir) && to.dir < from.dir);
        let early = to_first.then(|| to_dir.state.write());
        let mut from_state = from_dir.state.write();
        let mut to_state = early.unwrap_or_else(|| to_dir.state.write());
        let ends = Ends {
            from: (&from_dir, &mut from_state),
            to: Some((&to_dir, &mut to_state)),
        };
        let paths = Paths {
            above: Some([&above_from, &above_to]),
            last_move: Some(&mut last_move),
        };
        let held = self.move_name(cx, ends, [from.name, to.name], flags, paths);
        drop((from_state, to_state));
        held.map(drop)
    }

    /// A directory and those above it. The lock for renames is held, and no other.
    fn path_of(&self, dir: Ino) -> Res<HashSet<Ino>> {
        let (mut path, mut left) = (HashSet::new(), vec![dir]);
        while let Some(at) = left.pop() {
            // A damaged image may have a cycle.
            if !path.insert(at) || at == Ino::ROOT {
                continue;
            }
            left.extend(self.twins.parents(at));
            left.push(match self.nodes.get(at) {
                Some(node) => node.state.read().parent,
                None => {
                    let line = self.space.line(Line(at.0))?;
                    Ino(self.space.load(line.word(inode::SIZE))?)
                }
            });
        }
        Ok(path)
    }

    /// Moves a name. Returns the inodes, whose references are given back when all locks are released.
    fn move_name<'c>(
        &'c self,
        cx: &Ctx,
        mut ends: Ends<'_>,
        [old, new]: [&[u8]; 2],
        flags: RenameFlags,
        paths: Paths<'_>,
    ) -> Res<Vec<Held<'c, P>>> {
        let dirs = ends.attrs()?;
        perm::may_search(cx, &dirs[0])?;
        perm::may_search(cx, &dirs[1])?;
        let source = self.find_in(ends.from(), old)?.ok_or(Errno::NOENT)?;
        let target = self.find_in(ends.to(), new)?;
        flags.check_target(target.is_some())?;
        paths.check(&source, target.as_ref())?;
        if target
            .as_ref()
            .is_some_and(|target| target.entry.ino == source.entry.ino)
        {
            return Ok(Vec::new());
        }
        let moved = self.hold(source.entry.ino)?;
        let is_other_dir = ends.to.is_some();
        if moved.is_dir && is_other_dir {
            self.twins.must_be_known()?;
        }
        let gone = target
            .as_ref()
            .map(|target| self.hold(target.entry.ino))
            .transpose()?;
        let (mut moved_state, mut gone_state) = lock_both(&moved, gone.as_ref());
        let replaced = gone.as_ref().zip(gone_state.as_deref());
        self.check_rename(cx, &dirs, (&moved, &moved_state), replaced)?;
        let room = self.take_room(new)?;
        let now = self.clock.now();
        if let (Some(target), Some(gone), Some(state)) = (&target, &gone, &mut gone_state) {
            let pins = self.drop_name(ends.to(), target, (&gone.node, state), now)?;
            self.nodes.count(&gone.node, Uses { refs: 0, pins });
        }
        let last_move = paths.last_move.filter(|_| moved.is_dir);
        let after = last_move.as_ref().map(|last| pending(last));
        let named = (&moved.node, &mut *moved_state);
        let name = NewName {
            name: new,
            place: self
                .place(ends.to().1, (new, self.hash(new)))?
                .ok_or_else(twice)?,
            room: &room,
        };
        self.add_name(ends.to(), name, named, after)?;
        self.nodes.count(&moved.node, Uses::PIN);
        // Its place has changed if it is in the same chain.
        let source = self.find_in(ends.from(), old)?.ok_or(Errno::NOENT)?;
        let named = (&moved.node, &mut *moved_state);
        let removal = self.remove_name(ends.from(), &source, named, None)?;
        let pins = pins(removal.as_ref());
        self.nodes.count(&moved.node, Uses { refs: 0, pins });
        if let Some(last) = last_move {
            let newest = moved_state.names.last().map(|(_, mark)| Arc::clone(mark));
            *last = removal.or(newest);
            last.iter().for_each(|mark| mark.set_awaited());
            let (from, to) = (ends.from().1.links, ends.to().1.links);
            ends.from().1.links = from.saturating_sub(1);
            ends.to().1.links = to.saturating_add(1);
            moved_state.parent = ends.to().0.ino;
            let (from, to) = (ends.from().0.ino, ends.to().0.ino);
            self.twins.moved(moved.node.ino, from, to);
        }
        moved_state.ctime = now;
        self.touch_state(&moved.node, &mut moved_state);
        let (node, state) = ends.from();
        self.touch_contents(node, state, now);
        if is_other_dir {
            let (node, state) = ends.to();
            self.touch_contents(node, state, now);
        }
        drop((moved_state, gone_state));
        Ok(std::iter::once(moved).chain(gone).collect())
    }

    fn find_in(&self, (node, state): Dir<'_>, name: &[u8]) -> Res<Option<Found>> {
        self.find(node.ino, state, (name, self.hash(name)))
    }

    /// Checks the inodes, in the order of Linux.
    fn check_rename(
        &self,
        cx: &Ctx,
        [from, to]: &[Attr; 2],
        (moved, moved_state): (&Held<'_, P>, &State),
        replaced: Option<(&Held<'_, P>, &State)>,
    ) -> Res<()> {
        if to.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        let gone = replaced.map(|(held, state)| state.attr(held.node.ino));
        let attr = moved_state.attr(moved.node.ino);
        perm::may_rename(cx, from, &attr, to, gone.as_ref(), false)?;
        if let Some((held, state)) = replaced {
            check_replaced(moved.is_dir, state.is_dir())?;
            if state.is_dir() && !state.view.is_empty(&self.space)? {
                return Err(Errno::NOTEMPTY.into());
            }
            self.twins.must_be_known_of(&held.node, state)?;
        }
        Ok(())
    }

    fn hold(&self, ino: u64) -> Res<Held<'_, P>> {
        let node = self.obtain(Ino(ino))?;
        let is_dir = node.is_dir;
        Ok(Held {
            core: self,
            node,
            is_dir,
        })
    }
}

/// The target is still there when it was removed.
fn twice() -> Fault {
    corrupt(format_args!("a directory has a name twice"))
}

/// Locks the inodes: directories before files, then by number.
#[allow(clippy::type_complexity)] // two guards
fn lock_both<'h, P: Pmem>(
    moved: &'h Held<'_, P>,
    gone: Option<&'h Held<'_, P>>,
) -> (
    RwLockWriteGuard<'h, State>,
    Option<RwLockWriteGuard<'h, State>>,
) {
    let rank = |held: &Held<'_, P>| (!held.is_dir, held.node.ino);
    let first = gone.filter(|gone| rank(gone) < rank(moved));
    let early = first.map(|held| held.node.state.write());
    let moved_state = moved.node.state.write();
    let gone_state = early.or_else(|| gone.map(|held| held.node.state.write()));
    (moved_state, gone_state)
}
