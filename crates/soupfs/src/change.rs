//! The changes of a directory that are not persistent yet: *diradd* and *dirrem* of SoupFS
//! (section 3.5), and both at once where a name gets another inode.
//!
//! A change waits for others:
//! - one in a new directory for the name of that directory, so that a persistent name is one that can
//!   be reached (C1);
//! - a removal for all new names of the inode, as those of a rename or a link (C3);
//! - the move of a directory for the end of the move before it, so that no crash leaves a cycle.
//!
//! Changes wait only for changes that were made before them, so that there is no deadlock. A name that
//! was made and removed before it was persistent leaves no change, unless others wait for it.

use crate::format::{Hash, Line};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::Ino;

/// The state of a change, for others that wait for it.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The directory.
    pub dir: Ino,
    is_done: AtomicBool,
    is_awaited: AtomicBool,
}

impl Mark {
    fn new(dir: Ino) -> Arc<Self> {
        Arc::new(Self {
            dir,
            is_done: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
        })
    }

    /// Whether the change is persistent, and its name reachable from the root.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(SeqCst)
    }

    pub(crate) fn finish(&self) {
        self.is_done.store(true, SeqCst);
    }

    /// Records that other changes wait for this one, so that it cannot be cancelled. The caller holds
    /// the lock of the inode that the change names.
    pub(crate) fn set_awaited(&self) {
        self.is_awaited.store(true, SeqCst);
    }
}

pub(crate) type Marks = SmallVec<[Arc<Mark>; 2]>;

/// A name with an inode; `N` is an inode in memory.
pub(crate) struct Named<N> {
    pub line: Line,
    pub node: Arc<N>,
}

/// The change of one name in a directory.
pub(crate) struct Change<N> {
    pub hash: Hash,
    /// The persistent dentry that is removed.
    pub old: Option<Named<N>>,
    /// The dentry that comes.
    pub new: Option<Named<N>>,
    /// The changes that must be persistent first.
    pub after: Marks,
    pub done: Arc<Mark>,
    /// Whether `new` is a directory that has come from another one, whose parent changes.
    pub moves: bool,
}

impl<N> Change<N> {
    pub(crate) fn is_ready(&self) -> bool {
        self.after.iter().all(|mark| mark.is_done())
    }
}

/// The changes of a directory, in the order in which they were made.
pub(crate) struct Changes<N> {
    list: Vec<Change<N>>,
    /// Changes that a persister has taken and not finished: the dentries that it makes, the hashes
    /// of the names that it removes.
    taken: Vec<(Option<Line>, Option<Hash>, Arc<Mark>)>,
}

impl<N> Default for Changes<N> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            taken: Vec::new(),
        }
    }
}

impl<N> Changes<N> {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.taken.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.list.is_empty()
    }

    /// Records a new name in `dir`, after `after`. Returns the mark of the change.
    pub(crate) fn add(
        &mut self,
        (dir, hash): (Ino, Hash),
        new: Named<N>,
        moves: bool,
        after: Marks,
    ) -> Arc<Mark> {
        // A pending removal of the same name, or of one with the same hash, becomes one step with
        // this. Otherwise a crash could leave the name twice. Not if others wait for the removal,
        // since this may have to wait for those; and not if another change of the name came after it.
        let last = self.list.iter_mut().rev().find(|c| c.hash == hash);
        let is_free = |c: &&mut Change<N>| c.new.is_none() && !c.done.is_awaited.load(SeqCst);
        if let Some(change) = last.filter(is_free) {
            change.new = Some(new);
            change.moves = moves;
            change.after.extend(after);
            return Arc::clone(&change.done);
        }
        let mut marks = self.removals_of(hash);
        marks.extend(after);
        let done = Mark::new(dir);
        self.list.push(Change {
            hash,
            old: None,
            new: Some(new),
            after: marks,
            done: Arc::clone(&done),
            moves,
        });
        done
    }

    /// The removals of names with this hash that are not persistent.
    fn removals_of(&self, hash: Hash) -> Marks {
        let taken = self.taken.iter().filter(|(_, h, _)| *h == Some(hash));
        let taken = taken.map(|(.., mark)| mark);
        let listed = self
            .list
            .iter()
            .filter(|c| c.hash == hash && c.old.is_some());
        taken.chain(listed.map(|c| &c.done)).cloned().collect()
    }

    /// All changes that are not persistent.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Arc<Mark>> {
        let taken = self.taken.iter().map(|(.., mark)| mark);
        taken.chain(self.list.iter().map(|c| &c.done))
    }

    /// Records the removal of a dentry, after `after`. Returns the mark of the change; `None` if the
    /// dentry was never persistent and nobody needs it. `may_cancel`: no change waits for the name as
    /// that of its directory.
    pub(crate) fn remove(
        &mut self,
        (dir, hash): (Ino, Hash),
        old: Named<N>,
        mut after: Marks,
        may_cancel: bool,
    ) -> Option<Arc<Mark>> {
        let is_own = |c: &Change<N>| c.new.as_ref().is_some_and(|new| new.line == old.line);
        if let Some(at) = self.list.iter().position(is_own) {
            let change = &mut self.list[at];
            if may_cancel && !change.done.is_awaited.load(SeqCst) {
                change.new = None;
                change.moves = false;
                if change.old.is_none() {
                    self.list.remove(at);
                } else {
                    change.after.extend(after);
                }
                return None;
            }
            after.push(Arc::clone(&change.done));
        }
        let making = self.taken.iter().find(|(line, ..)| *line == Some(old.line));
        after.extend(making.map(|(.., mark)| Arc::clone(mark)));
        let done = Mark::new(dir);
        self.list.push(Change {
            hash,
            old: Some(old),
            new: None,
            after,
            done: Arc::clone(&done),
            moves: false,
        });
        Some(done)
    }

    /// The change with a mark, if no persister has taken it.
    pub(crate) fn listed(&self, mark: &Arc<Mark>) -> Option<&Change<N>> {
        self.list.iter().find(|c| Arc::ptr_eq(&c.done, mark))
    }

    /// Takes the changes that a persister wants.
    pub(crate) fn take(&mut self, wants: impl Fn(&Arc<Mark>) -> bool) -> Vec<Change<N>> {
        let all = std::mem::take(&mut self.list).into_iter();
        let (list, left): (Vec<_>, _) = all.partition(|c| wants(&c.done));
        self.list = left;
        self.taken.extend(list.iter().map(|c| {
            let removed = c.old.as_ref().map(|_| c.hash);
            let made = c.new.as_ref().map(|new| new.line);
            (made, removed, Arc::clone(&c.done))
        }));
        list
    }

    /// Takes back what a persister could not do, and forgets what it has done.
    pub(crate) fn give_back(&mut self, mut left: Vec<Change<N>>) {
        self.taken.clear();
        left.append(&mut self.list);
        self.list = left;
    }
}
