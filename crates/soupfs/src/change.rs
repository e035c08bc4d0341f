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
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use vfs::Ino;

/// The state of a change, for others that wait for it.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The directory.
    pub dir: Ino,
    hash: Hash,
    /// Its number among the changes of the directory.
    number: u64,
    is_done: AtomicBool,
    is_awaited: AtomicBool,
}

impl Mark {
    fn new((dir, hash): (Ino, Hash), number: u64) -> Arc<Self> {
        Arc::new(Self {
            dir,
            hash,
            number,
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

/// The changes of a directory. Each operation takes the same time, however many there are.
pub(crate) struct Changes<N> {
    /// Changes that no persister has taken, by the hash of the name, in the order in which they were
    /// made.
    list: HashMap<Hash, SmallVec<[Change<N>; 1]>>,
    /// Changes that a persister has taken and not finished.
    taken: Taken,
    /// The number of the next change.
    next: u64,
}

#[derive(Default)]
struct Taken {
    all: Vec<Arc<Mark>>,
    /// The changes that make a dentry, by line.
    makers: HashMap<Line, Arc<Mark>>,
    /// The changes that remove a name, by hash.
    removals: HashMap<Hash, Marks>,
}

impl<N> Default for Changes<N> {
    fn default() -> Self {
        Self {
            list: HashMap::new(),
            taken: Taken::default(),
            next: 0,
        }
    }
}

impl<N> Changes<N> {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.taken.all.is_empty()
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
        let of_hash = self.list.entry(hash).or_default();
        let is_free = |c: &&mut Change<N>| c.new.is_none() && !c.done.is_awaited.load(SeqCst);
        if let Some(change) = of_hash.last_mut().filter(is_free) {
            change.new = Some(new);
            change.moves = moves;
            change.after.extend(after);
            return Arc::clone(&change.done);
        }
        let removals = of_hash.iter().filter(|c| c.old.is_some());
        let mut marks: Marks = removals.map(|c| Arc::clone(&c.done)).collect();
        marks.extend(
            self.taken
                .removals
                .get(&hash)
                .into_iter()
                .flatten()
                .cloned(),
        );
        marks.extend(after);
        let done = Mark::new((dir, hash), self.next);
        self.next += 1;
        of_hash.push(Change {
            hash,
            old: None,
            new: Some(new),
            after: marks,
            done: Arc::clone(&done),
            moves,
        });
        done
    }

    /// The marks of all changes that are not persistent.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Arc<Mark>> {
        let listed = self.list.values().flatten().map(|c| &c.done);
        self.taken.all.iter().chain(listed)
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
        let of_hash = self.list.entry(hash).or_default();
        let is_own = |c: &Change<N>| c.new.as_ref().is_some_and(|new| new.line == old.line);
        if let Some(at) = of_hash.iter().position(is_own) {
            let change = &mut of_hash[at];
            if may_cancel && !change.done.is_awaited.load(SeqCst) {
                change.new = None;
                change.moves = false;
                change.after.extend(after);
                if change.old.is_none() {
                    of_hash.remove(at);
                }
                if of_hash.is_empty() {
                    self.list.remove(&hash);
                }
                return None;
            }
            after.push(Arc::clone(&change.done));
        }
        after.extend(self.taken.makers.get(&old.line).cloned());
        let done = Mark::new((dir, hash), self.next);
        self.next += 1;
        of_hash.push(Change {
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
        let mut of_hash = self.list.get(&mark.hash).into_iter().flatten();
        of_hash.find(|change| Arc::ptr_eq(&change.done, mark))
    }

    /// Takes all changes for a persister, in the order in which they were made.
    pub(crate) fn take_all(&mut self) -> Vec<Change<N>> {
        let all = std::mem::take(&mut self.list).into_values();
        self.hand_out(all.flatten().collect())
    }

    /// Takes the changes with these marks, as far as no persister has them.
    pub(crate) fn take(&mut self, marks: &[Arc<Mark>]) -> Vec<Change<N>> {
        let mut list = Vec::new();
        for mark in marks {
            let Some(of_hash) = self.list.get_mut(&mark.hash) else {
                continue;
            };
            let at = of_hash.iter().position(|c| Arc::ptr_eq(&c.done, mark));
            list.extend(at.map(|at| of_hash.remove(at)));
            if of_hash.is_empty() {
                self.list.remove(&mark.hash);
            }
        }
        self.hand_out(list)
    }

    fn hand_out(&mut self, mut list: Vec<Change<N>>) -> Vec<Change<N>> {
        list.sort_unstable_by_key(|change| change.done.number);
        list.iter().for_each(|change| self.taken.add(change));
        list
    }

    /// Takes back what a persister could not do, and forgets what it has done.
    pub(crate) fn give_back(&mut self, left: Vec<Change<N>>) {
        self.taken = Taken::default();
        for change in left {
            let of_hash = self.list.entry(change.hash).or_default();
            let at = of_hash.partition_point(|other| other.done.number < change.done.number);
            of_hash.insert(at, change);
        }
    }
}

impl Taken {
    fn add<N>(&mut self, change: &Change<N>) {
        self.all.push(Arc::clone(&change.done));
        if let Some(new) = &change.new {
            self.makers.insert(new.line, Arc::clone(&change.done));
        }
        if change.old.is_some() {
            let removals = self.removals.entry(change.hash).or_default();
            removals.push(Arc::clone(&change.done));
        }
    }
}
