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

use crate::by_hash::ByHash;
use crate::format::{Hash, Line};
use crate::seeded::{Bug, hit};
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use hashbrown::{HashMap, HashSet};
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

    /// Records that others wait for this change, so that it cannot be cancelled. The caller holds the
    /// lock of the directory, or of the inode that the change names.
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
    /// The parent of the directory that `old` names, if it has another name.
    pub heir: Option<Ino>,
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

/// The changes of a directory. Each operation takes the same time, however many there are. It takes no
/// memory until there is a change.
pub(crate) struct Changes<N>(Option<Box<Pending<N>>>);

struct Pending<N> {
    /// Changes that no persister has taken. Several may have the same hash.
    list: ByHash<Change<N>>,
    /// Changes that a persister has taken and not finished.
    taken: Taken,
    /// The number of the next change.
    next: u64,
    /// The number after those that the persister takes in portions now.
    oldest: Option<u64>,
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
        Self(None)
    }
}

impl<N> Changes<N> {
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_waiting() && self.0.as_ref().is_none_or(|all| all.taken.all.is_empty())
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.0.as_ref().is_some_and(|all| !all.list.is_empty())
    }

    fn pending(&mut self) -> &mut Pending<N> {
        self.0.get_or_insert_with(|| {
            Box::new(Pending {
                list: ByHash::default(),
                taken: Taken::default(),
                next: 0,
                oldest: None,
            })
        })
    }

    /// Records a new name in `dir`, after `after`. Returns the mark of the change.
    pub(crate) fn add(
        &mut self,
        (dir, hash): (Ino, Hash),
        new: Named<N>,
        moves: bool,
        after: Marks,
    ) -> Arc<Mark> {
        let pending = self.pending();
        // A pending removal of the same name, or of one with the same hash, becomes one step with
        // this. Otherwise a crash could leave the name twice. Not if others wait for the removal,
        // since this may have to wait for those; and not if another change of the name came after it.
        let is_free = |c: &Change<N>| c.new.is_none() && !c.done.is_awaited.load(SeqCst);
        let of_hash = pending.list.of_hash(hash);
        let of_hash = of_hash.filter(|(_, change)| change.hash == hash);
        let last = of_hash.max_by_key(|(_, change)| change.done.number);
        if let Some((at, _)) = last.filter(|(_, change)| is_free(change)) {
            let change = pending.list.get_mut(at);
            change.new = Some(new);
            change.moves = moves;
            change.after.extend(after);
            return Arc::clone(&change.done);
        }
        let of_hash = pending.list.of_hash(hash).map(|(_, change)| change);
        let removals = of_hash.filter(|c| c.hash == hash && c.old.is_some());
        let mut marks: Marks = removals.map(|c| Arc::clone(&c.done)).collect();
        let taken = pending.taken.removals.get(&hash);
        marks.extend(taken.into_iter().flatten().cloned());
        marks.extend(after);
        pending.push((dir, hash), None, Some(new), moves, marks)
    }

    /// The marks of all changes that are not persistent.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Arc<Mark>> {
        self.0.iter().flat_map(|pending| {
            let listed = pending.list.iter().map(|c| &c.done);
            pending.taken.all.iter().chain(listed)
        })
    }

    /// Records the removal of a dentry of `node`, after the changes that `after` returns. Returns the mark of the change; `None` if the
    /// dentry was never persistent and nobody needs it. `may_cancel`: no change waits for the name as
    /// that of its directory. `heir`: as in [`Change`].
    pub(crate) fn remove(
        &mut self,
        (dir, hash): (Ino, Hash),
        (line, node, heir): (Line, &Arc<N>, Option<Ino>),
        after: impl FnOnce() -> Marks,
        may_cancel: bool,
    ) -> Option<Arc<Mark>> {
        let pending = self.pending();
        let mut own_mark = None;
        let is_own = |c: &Change<N>| c.new.as_ref().is_some_and(|new| new.line == line);
        let own = pending.list.of_hash(hash).find(|(_, c)| is_own(c));
        if let Some((at, _)) = own {
            let change = pending.list.get_mut(at);
            if may_cancel && !change.done.is_awaited.load(SeqCst) {
                change.new = None;
                change.moves = false;
                if change.old.is_none() {
                    pending.list.remove(hash, at);
                }
                return None;
            }
            own_mark = Some(Arc::clone(&change.done));
        }
        let mut after = after();
        after.extend(own_mark);
        after.extend(pending.taken.makers.get(&line).cloned());
        let old = Named {
            line,
            node: Arc::clone(node),
        };
        Some(pending.push((dir, hash), Some((old, heir)), None, false, after))
    }

    /// The change with a mark, if no persister has taken it.
    pub(crate) fn listed(&self, mark: &Arc<Mark>) -> Option<&Change<N>> {
        let list = &self.0.as_ref()?.list;
        let mut of_hash = list.of_hash(mark.hash).map(|(_, change)| change);
        of_hash.find(|change| Arc::ptr_eq(&change.done, mark))
    }

    /// Takes all changes for a persister, in the order in which they were made.
    pub(crate) fn take_all(&mut self) -> Vec<Change<N>> {
        let Some(pending) = &mut self.0 else {
            return Vec::new();
        };
        let all = std::mem::take(&mut pending.list);
        pending.oldest = None;
        pending.hand_out(all.into_values().collect())
    }

    /// Takes changes for a persister, at most this many. Returns them, and whether there are more, of those
    /// that were there at the first call that left some.
    pub(crate) fn take_oldest(&mut self, most: usize) -> (Vec<Change<N>>, bool) {
        let Some(pending) = self.0.as_mut() else {
            return (Vec::new(), false);
        };
        if pending.list.is_empty() {
            // Others have taken what was left: later changes are not those of this sweep.
            pending.list = Default::default();
            pending.oldest = None;
            return (Vec::new(), false);
        }
        let end = *pending.oldest.get_or_insert(pending.next);
        let is_old = |change: &Change<N>| (change.done.number < end).then_some(change.hash);
        let (list, is_over) = pending.list.sweep(most, is_old);
        pending.oldest = pending.oldest.filter(|_| !is_over);
        (pending.hand_out(list), !is_over)
    }

    /// Takes the changes with these marks, as far as no persister has them.
    pub(crate) fn take(&mut self, marks: &[Arc<Mark>]) -> Vec<Change<N>> {
        let Some(pending) = &mut self.0 else {
            return Vec::new();
        };
        let mut list = Vec::new();
        for mark in marks {
            let mut of_hash = pending.list.of_hash(mark.hash);
            let own = of_hash.find(|(_, change)| Arc::ptr_eq(&change.done, mark));
            let at = own.map(|(at, _)| at);
            drop(of_hash);
            list.extend(at.map(|at| pending.list.remove(mark.hash, at)));
        }
        pending.hand_out(list)
    }

    /// Takes back what a round could not do, and forgets what it has done. Other rounds may have taken
    /// other changes.
    pub(crate) fn give_back(&mut self, left: Vec<Change<N>>) {
        let Some(pending) = &mut self.0 else {
            return;
        };
        pending.taken.forget(&left);
        left.into_iter().for_each(|change| pending.insert(change));
        if pending.list.is_empty() && pending.taken.all.is_empty() {
            self.0 = None;
        }
    }
}

impl<N> Pending<N> {
    /// Adds a change with the next number. Returns its mark.
    fn push(
        &mut self,
        (dir, hash): (Ino, Hash),
        old: Option<(Named<N>, Option<Ino>)>,
        new: Option<Named<N>>,
        moves: bool,
        after: Marks,
    ) -> Arc<Mark> {
        let done = Mark::new((dir, hash), self.next);
        self.next += 1;
        let (old, heir) = old.unzip();
        self.insert(Change {
            hash,
            old,
            heir: heir.flatten(),
            new,
            after,
            done: Arc::clone(&done),
            moves,
        });
        done
    }

    fn insert(&mut self, change: Change<N>) {
        self.list.insert(change.hash, change);
    }

    fn hand_out(&mut self, mut list: Vec<Change<N>>) -> Vec<Change<N>> {
        list.sort_unstable_by_key(|change| change.done.number);
        list.iter().for_each(|change| self.taken.add(change));
        list
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

    /// Forgets changes that are made, and those that are given back.
    fn forget<N>(&mut self, left: &[Change<N>]) {
        if hit(Bug::TakenForgotten) {
            *self = Self::default();
        }
        let left: HashSet<_> = left
            .iter()
            .map(|change| Arc::as_ptr(&change.done))
            .collect();
        let is_taken = |mark: &Arc<Mark>| !mark.is_done() && !left.contains(&Arc::as_ptr(mark));
        self.all.retain(is_taken);
        self.makers.retain(|_, mark| is_taken(mark));
        self.removals.retain(|_, marks| {
            marks.retain(|mark| is_taken(mark));
            !marks.is_empty()
        });
    }
}
