//! Directories with more than one name, which a crash in a rename leaves.
//!
//! A link count alone does not show them: a crash may leave it too high. The removal of a
//! directory whose count is too high therefore needs the tree's names. They are read once for
//! a mount, and only if the image was not unmounted cleanly: no call leaves a directory with
//! more names than it had, and names that a call moves are noted here.

use super::{Refusal, Universal};
use crate::LowLevel;
use parking_lot::Mutex;
use patch::attempt;
use std::collections::{BTreeSet, HashMap};
use vfs::{Cookie, FileType, Ino};

/// The directories that may have more than one name.
#[derive(Debug)]
pub(super) struct Twins {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Each directory has one name.
    None,
    /// Some may have more; the names have not been read yet.
    Unread,
    /// At least the directories that have more than one name, with at least those that the
    /// names are in.
    Read(HashMap<Ino, BTreeSet<Ino>>),
}

impl Twins {
    /// `was_clean`: the image was unmounted cleanly before this mount.
    pub fn new(was_clean: bool) -> Self {
        let state = if was_clean {
            State::None
        } else {
            State::Unread
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Notes that a name of a directory was made in the directory `to`.
    pub fn moved(&self, ino: Ino, to: Ino) {
        if let State::Read(twins) = &mut *self.state.lock()
            && let Some(parents) = twins.get_mut(&ino)
        {
            parents.insert(to);
        }
    }

    /// Notes that a rename failed halfway: its directory may have two names.
    pub fn doubt(&self) {
        *self.state.lock() = State::Unread;
    }
}

impl<L: LowLevel> Universal<L> {
    /// Returns the directory that holds a name of the directory `wanted` besides `name` in
    /// `dir`, if there is one.
    pub(super) fn other_name(
        &self,
        wanted: Ino,
        dir: Ino,
        name: &[u8],
    ) -> std::result::Result<Option<Ino>, Refusal> {
        let mut state = self.twins.state.lock();
        if matches!(*state, State::Unread) {
            // All of it at once: attempts would begin anew at each block. Nothing else in a
            // mount reads so much, and it is done once, if at all.
            *state = State::Read(attempt::waiting(|| self.read_twins())?);
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
        let is_directory = |attr: vfs::Attr| attr.kind == FileType::Directory && attr.nlink > 0;
        if !self.low.inode(parent)?.is_some_and(is_directory) {
            return Ok(false); // removed since the names were read
        }
        let mut found = false;
        self.low.list(parent, Cookie(0), &mut |entry| {
            let listed = !matches!(entry.name, b"." | b"..");
            found |= listed && entry.ino == wanted && (parent, entry.name) != (dir, name);
            !found
        })?;
        Ok(found)
    }

    /// Reads the names of the whole tree.
    fn read_twins(&self) -> crate::Result<HashMap<Ino, BTreeSet<Ino>>> {
        let root = self.low.root();
        let (mut left, mut first) = (vec![root], HashMap::from([(root, root)]));
        let mut twins: HashMap<Ino, BTreeSet<Ino>> = HashMap::new();
        while let Some(at) = left.pop() {
            self.low.list(at, Cookie(0), &mut |entry| {
                let listed = !matches!(entry.name, b"." | b"..");
                if listed && entry.kind == FileType::Directory {
                    match first.get(&entry.ino) {
                        Some(earlier) => {
                            twins.entry(entry.ino).or_default().extend([*earlier, at]);
                        }
                        None => {
                            first.insert(entry.ino, at);
                            left.push(entry.ino); // once, also in a ring of a damaged image
                        }
                    }
                }
                true
            })?;
        }
        Ok(twins)
    }
}
