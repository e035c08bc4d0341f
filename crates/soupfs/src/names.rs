//! Operations on names: make, link, remove, rename. They change memory, and dentries that no
//! persistent link reaches; nothing is flushed.

use crate::alloc::Lines;
use crate::change::{Mark, Marks, Named};
use crate::error::{Fault, Res, corrupt};
use crate::format::{Hash, Line, PAGE, TEXT};
use crate::node::{File, Node, State};
use crate::nodes::Uses;
use crate::seeded::{Bug, hit};
use crate::space::{NewDentry, lines_of_name};
use crate::twins::Parents;
use crate::view::{Found, Place, View};
use crate::volume::Volume;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use medium::Pmem;
use smallvec::SmallVec;
use std::sync::Arc;
use vfs::{Attr, Ctx, Errno, FileType, Ino, Name, NewNode, Removal, Timestamp, check_name, perm};

/// Most links of an inode.
const LINKS_MAX: u32 = u32::MAX - 1;

/// A name to be added.
pub(crate) struct NewName<'a> {
    pub name: &'a [u8],
    pub place: Place,
    /// The lines of [`take_room`](Volume::take_room).
    pub room: &'a [Line],
}

/// The pins that an inode gets with the removal of a name: that of the change, or less that of the change
/// that made the name and was cancelled.
pub(crate) fn pins(removal: Option<&Arc<Mark>>) -> i64 {
    if removal.is_some() { 1 } else { -1 }
}

/// Refuses an inode as a member of a directory in which no crash leaves it.
pub(crate) fn check_member(dir: Ino, ino: Ino) -> Res<()> {
    match ino {
        _ if ino == dir => Err(corrupt(format_args!("directory {dir} contains itself"))),
        Ino::ROOT => Err(corrupt(format_args!("directory {dir} contains the root"))),
        _ => Ok(()),
    }
}

impl<P: Pmem> Volume<P> {
    pub(crate) fn hash(&self, name: &[u8]) -> Hash {
        Hash::of(name, self.space.seed)
    }

    /// Finds a name in a directory that is locked. The inode is not the directory itself, whose lock
    /// would be taken twice.
    pub(crate) fn find(
        &self,
        dir: Ino,
        state: &State,
        (name, hash): (&[u8], Hash),
    ) -> Res<Option<Found>> {
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let found = state.view.find(&self.space, hash, name)?;
        if let Some(found) = &found {
            check_member(dir, Ino(found.entry.ino))?;
        }
        Ok(found)
    }

    pub(crate) fn look_up(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Res<Attr> {
        check_name(name)?;
        let dir = self.node(dir)?;
        let state = dir.state.read();
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let hash = self.hash(name);
        state.view.prefetch(hash);
        perm::may_search(cx, &state.attr(dir.ino))?;
        let found = self
            .find(dir.ino, &state, (name, hash))?
            .ok_or(Errno::NOENT)?;
        let node = self.obtain(Ino(found.entry.ino))?;
        node.found_in(dir.ino);
        // The directory may be below the inode only if it is that inode's parent: no cycle.
        let attr = node.state.read().attr(node.ino);
        if state.view.wants_copy(&found) {
            drop(state);
            let mut state = dir.state.write();
            state.view.copy(&self.space, found.entry.hash, found.read);
        }
        Ok(attr)
    }

    /// The place of a name that may be made.
    fn may_make(&self, cx: &Ctx, dir: &Node, state: &State, name: (&[u8], Hash)) -> Res<Place> {
        let attr = state.attr(dir.ino);
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &attr)?;
        let place = self.place(state, name)?.ok_or(Errno::EXIST)?;
        if state.links == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        perm::may_create(cx, &attr)?;
        Ok(place)
    }

    /// The place of a new name in a directory, unless it has it.
    pub(crate) fn place(&self, dir: &State, (name, hash): (&[u8], Hash)) -> Res<Option<Place>> {
        dir.view.place(&self.space, hash, name)
    }

    /// Takes memory for a new dentry: its line, and those of its name.
    pub(crate) fn take_room(&self, name: &[u8]) -> Res<Lines> {
        let lines = 1 + lines_of_name(name.len());
        self.alloc.take_lines(&self.space, lines)
    }

    /// Adds a name to the latest view. The caller counts a pin of the inode. `after`: the changes before
    /// the move of a directory.
    pub(crate) fn add_name(
        &self,
        (dir, state): (&Arc<Node>, &mut State),
        NewName { name, place, room }: NewName<'_>,
        (node, named_state): (&Arc<Node>, &mut State),
        after: Option<Marks>,
    ) -> Res<()> {
        let hash = place.hash;
        let new = NewDentry {
            ino: node.ino.0,
            kind: named_state.kind,
            hash,
            name,
            next: place.next,
        };
        let line = room[0];
        self.space.put_dentry(line, &new, &room[1..]);
        state.view.insert(&self.space, &place, line)?;
        let named = Named {
            line,
            node: Arc::clone(node),
        };
        let moves = after.is_some();
        let mut after = after.unwrap_or_default();
        if node.is_dir && !hit(Bug::TwoParents) {
            // One name after the other, since it has one parent.
            after.extend(named_state.new_names());
        }
        if !hit(Bug::ChildBeforeParent) {
            after.extend(state.naming.iter().filter(|mark| !mark.is_done()).cloned());
        }
        let mark = state.changes.add((dir.ino, hash), named, moves, after);
        let is_named = |mark: &Arc<Mark>| mark.is_done();
        let is_new = !named_state.is_stored || !named_state.naming.as_ref().is_none_or(is_named);
        if is_new && node.is_dir {
            named_state.naming = Some(Arc::clone(&mark));
        }
        named_state.names.retain(|(_, mark)| !mark.is_done());
        named_state.names.push((line, mark));
        node.found_in(dir.ino);
        self.count_change();
        self.touch(dir, state);
        Ok(())
    }

    /// Removes a name from the latest view. Returns the mark of the change, unless the name was never
    /// persistent. The caller counts the [`pins`] of the inode. `heir`: as in
    /// [`Change`](crate::change::Change).
    pub(crate) fn remove_name(
        &self,
        (dir, state): (&Arc<Node>, &mut State),
        found: &Found,
        (node, named_state): (&Arc<Node>, &mut State),
        heir: Option<Ino>,
    ) -> Res<Option<Arc<Mark>>> {
        let entry = found.entry;
        state.view.remove(&self.space, found)?;
        let after = || named_state.before_removal(entry.line);
        let may_cancel = named_state.changes.is_empty();
        let place = (dir.ino, entry.hash);
        let removal = state
            .changes
            .remove(place, (entry.line, node, heir), after, may_cancel);
        match removal {
            // The change of the new name is gone.
            None => {
                named_state.names.retain(|(line, _)| *line != entry.line);
                let lines = self.space.lines_of_name(&entry)?.into_iter();
                let lines = lines.chain([entry.line]);
                self.alloc.abandon_lines(&self.space, lines)?;
                self.uncount_change();
            }
            Some(ref mark) => {
                self.count_change();
                named_state.removals.retain(|mark| !mark.is_done());
                named_state.removals.push(Arc::clone(mark));
            }
        }
        self.touch(dir, state);
        Ok(removal)
    }

    pub(crate) fn touch_contents(&self, node: &Arc<Node>, state: &mut State, now: Timestamp) {
        (state.mtime, state.ctime) = (now, now);
        self.touch_state(node, state);
    }

    /// Records that attributes have changed.
    pub(crate) fn touch_state(&self, node: &Arc<Node>, state: &mut State) {
        state.is_dirty = true;
        self.touch(node, state);
    }

    fn new_state(&self, cx: &Ctx, dir: (Ino, &State), new: &NewNode<'_>) -> State {
        let owner = perm::new_owner(cx, &dir.1.attr(dir.0), new);
        let now = self.clock.now();
        let is_dir = new.is_directory();
        State {
            kind: new.kind(),
            perm: owner.perm,
            generation: self.new_generation(),
            links: if is_dir { 2 } else { 1 },
            uid: owner.uid,
            gid: owner.gid,
            size: if is_dir {
                PAGE
            } else {
                new.target().len() as u64
            },
            atime: now,
            mtime: now,
            ctime: now,
            parent: if is_dir { dir.0 } else { Ino(0) },
            rdev: new.rdev(),
            xattr: None,
            stored_xattr: None,
            pages: 0,
            target: None,
            file: File::default(),
            view: View::default(),
            changes: crate::change::Changes::default(),
            naming: None,
            removals: Marks::new(),
            named_ctime: None,
            names: SmallVec::new(),
            is_stored: false,
            stored_links: 0,
            is_dirty: true,
            is_nameable: false,
            is_dead: false,
        }
    }

    pub(crate) fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Res<Attr> {
        let dir = self.node(at.dir)?;
        let mut parent = dir.state.write();
        let hash = self.hash(at.name);
        parent.view.prefetch(hash);
        let mut state = self.new_state(cx, (dir.ino, &parent), new);
        let place = self.may_make(cx, &dir, &parent, (at.name, hash))?;
        perm::may_mknod(cx, new.kind())?;
        let of_target = new.target().len().div_ceil(TEXT);
        let lines = 2 + of_target + lines_of_name(at.name.len());
        let lines = self.alloc.take_lines(&self.space, lines)?;
        let (own, room) = lines.split_at(1 + of_target);
        let (ino, target) = (Ino(own[0].0), &own[1..]);
        self.space.put_text(target, new.target());
        state.target = target.first().copied();
        let (attr, now) = (state.attr(ino), state.mtime);
        let node = Node::new(ino, state);
        let name = NewName {
            name: at.name,
            place,
            room,
        };
        let mut state = node.state.write();
        self.add_name((&dir, &mut parent), name, (&node, &mut state), None)?;
        drop(state);
        parent.links = parent.links.saturating_add(new.is_directory().into());
        self.touch_contents(&dir, &mut parent, now);
        // Nobody sees the name until the directory is unlocked.
        self.nodes.add(node, Uses { refs: 1, pins: 1 });
        Ok(attr)
    }

    pub(crate) fn make_nameless(&self, cx: &Ctx, dir: Ino, mode: u32) -> Res<Attr> {
        let dir = self.node(dir)?;
        let parent = dir.state.read();
        if !parent.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_create(cx, &parent.attr(dir.ino))?;
        let new = NewNode::file(mode);
        let mut state = self.new_state(cx, (dir.ino, &parent), &new);
        (state.links, state.is_nameable) = (0, true);
        let ino = Ino(self.alloc.take_lines(&self.space, 1)?[0].0);
        let attr = state.attr(ino);
        self.nodes.add(Node::new(ino, state), Uses::REF);
        Ok(attr)
    }

    pub(crate) fn link(&self, cx: &Ctx, ino: Ino, at: Name<'_>) -> Res<Attr> {
        check_name(at.name)?;
        let dir = self.node(at.dir)?;
        let node = self.node(ino)?;
        let mut parent = dir.state.write();
        let place = self.may_make(cx, &dir, &parent, (at.name, self.hash(at.name)))?;
        // A directory may be above `dir`, so that its lock must not be waited for.
        if node.is_dir {
            return Err(Errno::PERM.into());
        }
        let mut state = node.state.write();
        perm::may_link(&state.attr(ino))?;
        if state.links == 0 && !state.is_nameable {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        if state.links >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        let room = self.take_room(at.name)?;
        let now = self.clock.now();
        let name = NewName {
            name: at.name,
            place,
            room: &room,
        };
        self.add_name((&dir, &mut parent), name, (&node, &mut state), None)?;
        self.nodes.count(&node, Uses { refs: 1, pins: 1 });
        state.links += 1;
        state.is_nameable = false;
        state.ctime = now;
        self.touch_state(&node, &mut state);
        self.touch_contents(&dir, &mut parent, now);
        Ok(state.attr(ino))
    }

    pub(crate) fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Res<()> {
        check_name(at.name)?;
        let dir = self.node(at.dir)?;
        let mut parent = dir.state.write();
        if !parent.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let hash = self.hash(at.name);
        parent.view.prefetch(hash);
        let now = self.clock.now();
        perm::may_search(cx, &parent.attr(dir.ino))?;
        let found = self
            .find(dir.ino, &parent, (at.name, hash))?
            .ok_or(Errno::NOENT)?;
        found.prefetch(&self.space);
        let node = self.obtain(Ino(found.entry.ino))?;
        let mut state = node.state.write();
        let now = match state.ctime > now {
            true => self.clock.now(), // another call has changed it since
            false => now,
        };
        let named = (&node, &mut *state);
        let removed = self.remove_found(cx, (&dir, &mut parent), &found, named, (which, now));
        let pins = removed.as_ref().copied().unwrap_or(0);
        // A round that takes the change needs the state of the inode, to list it again, before it ends this use.
        drop(parent);
        self.settle_locked(&node, state, Uses { refs: -1, pins });
        removed.map(drop)
    }

    fn remove_found(
        &self,
        cx: &Ctx,
        (dir, parent): (&Arc<Node>, &mut State),
        found: &Found,
        (node, state): (&Arc<Node>, &mut State),
        (which, now): (Removal, Timestamp),
    ) -> Res<i64> {
        perm::may_delete(cx, &parent.attr(dir.ino), &state.attr(node.ino))?;
        which.check(state.is_dir())?;
        if state.is_dir() && !state.view.is_empty(&self.space)? {
            return Err(Errno::NOTEMPTY.into());
        }
        self.twins.must_be_known_of(node, state)?;
        let pins = self.drop_name((dir, parent), found, (node, state), now)?;
        self.touch_contents(dir, parent, now);
        Ok(pins)
    }

    /// Removes a name, and counts it less. A directory without another name loses `..`, too. Returns the
    /// [`pins`] of the inode.
    pub(crate) fn drop_name(
        &self,
        (dir, parent): (&Arc<Node>, &mut State),
        found: &Found,
        (node, state): (&Arc<Node>, &mut State),
        now: Timestamp,
    ) -> Res<i64> {
        let heir = match node.is_dir && state.links > 2 {
            true => self.twins.heir(node.ino, state.parent, dir.ino),
            false => None,
        };
        let removal = self.remove_name((dir, parent), found, (node, state), heir)?;
        if node.is_dir {
            parent.links = parent.links.saturating_sub(1);
        }
        if let Some(heir) = heir {
            self.twins.lost(node.ino, dir.ino);
            state.parent = heir;
        }
        state.links = match node.is_dir && heir.is_none() {
            true => 0,
            false => state.links.saturating_sub(1),
        };
        if state.links == 0 {
            state.named_ctime = Some(state.ctime);
        }
        state.ctime = now;
        self.touch_state(node, state);
        Ok(pins(removal.as_ref()))
    }
}

impl<P: Pmem> Volume<P> {
    /// Reads the names of all directories, unless they are known. The caller holds no lock.
    pub(crate) fn read_names(&self) -> Res<()> {
        // No directory moves to another one meanwhile, and none with several names loses one.
        let _renames = self.renames.lock();
        if self.twins.must_be_known().is_ok() {
            return Ok(());
        }
        let mut found: HashMap<Ino, Parents> = HashMap::new();
        found.insert(Ino::ROOT, Parents::new());
        let mut left = vec![Ino::ROOT];
        while let Some(dir) = left.pop() {
            for ino in self.directories_in(dir)? {
                match found.entry(ino) {
                    Entry::Occupied(mut parents) => parents.get_mut().push(dir),
                    Entry::Vacant(place) => {
                        place.insert(SmallVec::from_slice(&[dir]));
                        left.push(ino);
                    }
                }
            }
        }
        found.retain(|_, parents| parents.len() > 1);
        // A number may have had one name before it was given to another directory.
        let mut named = self.names_again(&found)?;
        named.retain(|_, parents| parents.len() > 1);
        self.twins.know(named);
        Ok(())
    }

    /// The names of some directories in those that have named them. Each of these is read once.
    fn names_again(&self, found: &HashMap<Ino, Parents>) -> Res<HashMap<Ino, Parents>> {
        let mut dirs: Vec<Ino> = found.values().flatten().copied().collect();
        dirs.sort_unstable();
        dirs.dedup();
        let mut named: HashMap<Ino, Parents> = HashMap::new();
        for dir in dirs {
            for ino in self.directories_in(dir)? {
                if found.contains_key(&ino) {
                    named.entry(ino).or_default().push(dir);
                }
            }
        }
        Ok(named)
    }

    /// The directories that a directory names. None if it was removed meanwhile.
    fn directories_in(&self, dir: Ino) -> Res<Vec<Ino>> {
        let node = match self.node(dir) {
            Ok(node) if node.is_dir => node,
            Ok(_) | Err(Fault::Errno(Errno::STALE)) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut found = Vec::new();
        let state = node.state.read();
        state.view.list(&self.space, Hash(0), &mut |entry| {
            if FileType::from_code(entry.kind) == Some(FileType::Directory) {
                found.push(Ino(entry.ino));
            }
            Ok(true)
        })?;
        Ok(found)
    }
}
