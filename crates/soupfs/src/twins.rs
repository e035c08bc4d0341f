//! Directories with more than one name, which a crash in a rename leaves.
//!
//! Each of the names is valid until a call or fsck removes it. The removal of one name must leave the
//! directory to the others, and a path upwards leads through all of them. A link count alone does not
//! show further names, since a crash may leave it too high. So in a mount after a crash, the first call
//! that depends on them reads the names of all directories, once. Before that no directory moves to
//! another one, and later moves are recorded here, so that the list of names stays exact.

use crate::error::{Fault, Res};
use crate::node::{Node, State};
use crate::seeded::{Bug, hit};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use hashbrown::HashMap;
use smallvec::SmallVec;
use vfs::Ino;

/// The directories that name a directory, one for each name.
pub(crate) type Parents = SmallVec<[Ino; 2]>;

/// The directories with more than one name.
pub(crate) struct Twins {
    /// Whether `named` has all of them.
    are_known: AtomicBool,
    named: Mutex<HashMap<Ino, Parents>>,
}

impl Twins {
    pub(crate) fn new(is_after_crash: bool) -> Self {
        Self {
            are_known: AtomicBool::new(!is_after_crash),
            named: Mutex::default(),
        }
    }

    /// Fails if directories may have further names that were not read.
    pub(crate) fn must_be_known(&self) -> Res<()> {
        match self.are_known.load(SeqCst) {
            true => Ok(()),
            false => Err(Fault::NamesUnread),
        }
    }

    /// As [`must_be_known`](Self::must_be_known), for an inode. A directory has two links and one for
    /// each further name.
    pub(crate) fn must_be_known_of(&self, node: &Node, state: &State) -> Res<()> {
        match node.is_dir && state.links > 2 && node.ino != Ino::ROOT {
            true => self.must_be_known(),
            false => Ok(()),
        }
    }

    /// Records all directories with several names.
    pub(crate) fn know(&self, named: HashMap<Ino, Parents>) {
        *self.named.lock() = named;
        self.are_known.store(true, SeqCst);
    }

    /// The directories that name a directory with several names.
    pub(crate) fn parents(&self, ino: Ino) -> Parents {
        let named = self.named.lock();
        named.get(&ino).cloned().unwrap_or_default()
    }

    /// The parent of a directory when it has lost a name in `dir`. `None` if it has no other name.
    pub(crate) fn heir(&self, ino: Ino, parent: Ino, dir: Ino) -> Option<Ino> {
        let mut rest = self.parents(ino);
        let lost = rest.iter().position(|other| *other == dir)?;
        rest.remove(lost);
        let stays = rest.contains(&parent).then_some(parent);
        let heir = stays.or(rest.first().copied());
        heir.filter(|_| !hit(Bug::TwinTaken))
    }

    /// Records that a directory has lost a name in `dir`.
    pub(crate) fn lost(&self, ino: Ino, dir: Ino) {
        let mut named = self.named.lock();
        let Some(parents) = named.get_mut(&ino) else {
            return;
        };
        if let Some(lost) = parents.iter().position(|other| *other == dir) {
            parents.remove(lost);
        }
        if parents.len() < 2 {
            named.remove(&ino);
        }
    }

    /// Records that a name of a directory has moved.
    pub(crate) fn moved(&self, ino: Ino, from: Ino, to: Ino) {
        if let Some(parents) = self.named.lock().get_mut(&ino)
            && let Some(moved) = parents.iter_mut().find(|other| **other == from)
        {
            *moved = to;
        }
    }
}
