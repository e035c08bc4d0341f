//! Directories with more than one name, which a crash in a rename leaves.
//!
//! A link count alone does not show them, since a crash may leave it too high. The removal of a
//! directory whose count is too high therefore needs the tree's names. They are read once in a
//! mount, and only if the image was not unmounted cleanly. No call leaves a directory with more
//! names than it had, and names that a call moves are noted here. The names are read before the
//! removal begins, without the tree's lock, so that other calls do not wait.

use super::{BlockFs, Refusal};
use crate::Format;
use parking_lot::Mutex;
use patch::attempt;
use std::collections::{BTreeSet, HashMap};
use vfs::{Attr, Cookie, FileType, Ino};

/// The directories that may have more than one name.
#[derive(Debug)]
pub(super) struct Twins {
    state: Mutex<State>,
    /// Held by the call that reads the names.
    reader: Mutex<()>,
}

#[derive(Debug)]
enum State {
    /// Each directory has one name.
    None,
    /// Some may have more. The names have not been read yet.
    Unread,
    /// The names are being read. The pairs are directories that moved since the last step, and
    /// their new parents.
    Reading(Vec<(Ino, Ino)>),
    /// A superset of the directories with more than one name, and of the directories of these
    /// names.
    Read(Parents),
}

/// Directories that hold names of a directory.
type Parents = HashMap<Ino, BTreeSet<Ino>>;

impl Twins {
    /// `was_clean`: the image was unmounted cleanly before this mount.
    pub(super) fn new(was_clean: bool) -> Self {
        let state = if was_clean {
            State::None
        } else {
            State::Unread
        };
        Self {
            state: Mutex::new(state),
            reader: Mutex::new(()),
        }
    }

    /// Notes that a name of a directory was made in the directory `to`.
    pub(super) fn moved(&self, ino: Ino, to: Ino) {
        match &mut *self.state.lock() {
            State::None | State::Unread => {}
            State::Reading(moved) => moved.push((ino, to)),
            State::Read(twins) => {
                if let Some(parents) = twins.get_mut(&ino) {
                    parents.insert(to);
                }
            }
        }
    }

    /// Notes a rename that failed halfway. Its directory may have two names.
    pub(super) fn doubt(&self) {
        *self.state.lock() = State::Unread;
    }

    fn are_read(&self) -> bool {
        matches!(*self.state.lock(), State::None | State::Read(_))
    }

    /// Returns whether the caller must read the names.
    fn begin_reading(&self) -> bool {
        let mut state = self.state.lock();
        let unread = matches!(*state, State::Unread);
        if unread {
            *state = State::Reading(Vec::new());
        }
        unread
    }

    /// Returns the next directory of a walk in steps. After the last one the names count as read.
    fn next_of(&self, walk: &mut Walk) -> Option<Ino> {
        let mut state = self.state.lock();
        let State::Reading(moved) = &mut *state else {
            return None; // another call has read them at once, or a rename failed
        };
        moved.drain(..).for_each(|(ino, to)| walk.found(ino, to));
        let next = walk.left.pop();
        if next.is_none() {
            *state = State::Read(std::mem::take(&mut walk.twins));
        }
        next
    }
}

impl<F: Format> BlockFs<F> {
    /// Returns the directory that holds a name of the directory `wanted` besides `name` in
    /// `dir`, if there is one.
    pub(super) fn other_name(
        &self,
        wanted: Ino,
        dir: Ino,
        name: &[u8],
    ) -> std::result::Result<Option<Ino>, Refusal> {
        let mut state = self.twins.state.lock();
        if matches!(*state, State::Unread | State::Reading(_)) {
            // The count was raised since `read_names_for` looked, or that failed.
            *state = State::Read(attempt::waiting(|| self.read_at_once())?);
        }
        let State::Read(twins) = &*state else {
            return Ok(None);
        };
        for &parent in twins.get(&wanted).into_iter().flatten() {
            if self.has_other_name(parent, wanted, (dir, name))? {
                return Ok(Some(parent));
            }
        }
        Ok(None)
    }

    /// Whether `parent` holds a name of `wanted` other than this one.
    fn has_other_name(
        &self,
        parent: Ino,
        wanted: Ino,
        (dir, name): (Ino, &[u8]),
    ) -> crate::Result<bool> {
        if !self.is_live_directory(parent)? {
            return Ok(false); // removed since the names were read
        }
        let mut found = false;
        self.format.list(parent, Cookie(0), &mut |entry| {
            let listed = !matches!(entry.name, b"." | b"..");
            found |= listed && entry.ino == wanted && (parent, entry.name) != (dir, name);
            !found
        })?;
        Ok(found)
    }

    /// Reads the names of the tree, if the removal of this name needs them, before the removal
    /// begins. The removal itself reports errors.
    pub(super) fn read_names_for(&self, dir: Ino, name: &[u8]) {
        if self.twins.are_read() {
            return;
        }
        let needed = self.look(|| {
            if !self.is_live_directory(dir)? {
                return Ok(false);
            }
            let Some(found) = self.format.find(dir, name)? else {
                return Ok(false);
            };
            let attr = self.attr(found)?;
            Ok(may_have_two(&attr) && self.format.is_empty(found)?)
        });
        if matches!(needed, Ok(true)) {
            let _one = self.twins.reader.lock();
            if self.twins.begin_reading() && self.read_in_steps().is_err() {
                self.twins.doubt();
            }
        }
    }

    /// Reads the names of the whole tree, a directory at a time. Other calls may run in between.
    /// The directories that they move are noted, and count as found in their new parents.
    fn read_in_steps(&self) -> vfs::Result<()> {
        let mut walk = Walk::new(self.format.root());
        while let Some(at) = self.twins.next_of(&mut walk) {
            let found = self.look(|| Ok(self.directories_in(at)?))?;
            found.into_iter().for_each(|ino| walk.found(ino, at));
        }
        Ok(())
    }

    /// Reads the names of the whole tree at once.
    fn read_at_once(&self) -> crate::Result<Parents> {
        let mut walk = Walk::new(self.format.root());
        while let Some(at) = walk.left.pop() {
            let found = self.directories_in(at)?;
            found.into_iter().for_each(|ino| walk.found(ino, at));
        }
        Ok(walk.twins)
    }

    /// The directories with names in this one. Empty if it is not a directory any more.
    fn directories_in(&self, dir: Ino) -> crate::Result<Vec<Ino>> {
        let mut found = Vec::new();
        if self.is_live_directory(dir)? {
            self.format.list(dir, Cookie(0), &mut |entry| {
                let listed = !matches!(entry.name, b"." | b"..");
                if listed && entry.kind == FileType::Directory {
                    found.push(entry.ino);
                }
                true
            })?;
        }
        Ok(found)
    }

    fn is_live_directory(&self, ino: Ino) -> crate::Result<bool> {
        let is_directory = |attr: Attr| attr.kind == FileType::Directory && attr.nlink > 0;
        Ok(self.format.inode(ino)?.is_some_and(is_directory))
    }
}

/// Whether an empty directory may have two names. It has a link for each name and one for `.` (U3).
pub(super) fn may_have_two(attr: &Attr) -> bool {
    attr.kind == FileType::Directory && attr.nlink > 2
}

/// A walk over all directories of the tree.
struct Walk {
    /// Directories whose names have not been read.
    left: Vec<Ino>,
    /// The directory in which each directory was found first.
    first: HashMap<Ino, Ino>,
    /// The directories that were found again.
    twins: Parents,
}

impl Walk {
    fn new(root: Ino) -> Self {
        Self {
            left: vec![root],
            first: HashMap::from([(root, root)]),
            twins: Parents::new(),
        }
    }

    /// Notes that directory `ino` has a name in `at`.
    fn found(&mut self, ino: Ino, at: Ino) {
        match self.first.get(&ino) {
            Some(&first) => self.twins.entry(ino).or_default().extend([first, at]),
            None => {
                self.first.insert(ino, at);
                self.left.push(ino); // once, also in a ring of a damaged image
            }
        }
    }
}
