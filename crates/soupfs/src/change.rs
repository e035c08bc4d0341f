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
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::Ino;

/// The state of a change, for others that wait for it.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The directory.
    pub dir: Ino,
    /// Its number among the changes of the directory.
    number: u64,
    is_done: AtomicBool,
    is_awaited: AtomicBool,
}

impl Mark {
    fn new(dir: Ino, number: u64) -> Arc<Self> {
        Arc::new(Self {
            dir,
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
    /// Changes that no persister has taken, by number.
    list: HashMap<u64, Change<N>>,
    /// The numbers of these, by the hash of the name, in the order in which they were made.
    by_hash: HashMap<Hash, SmallVec<[u64; 2]>>,
    /// The number of the change that makes a dentry, by line.
    makers: HashMap<Line, u64>,
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
            by_hash: HashMap::new(),
            makers: HashMap::new(),
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
        let last = self.by_hash.get(&hash).and_then(|all| all.last()).copied();
        let last = last.and_then(|number| self.list.get_mut(&number));
        let is_free = |c: &&mut Change<N>| c.new.is_none() && !c.done.is_awaited.load(SeqCst);
        if let Some(change) = last.filter(is_free) {
            self.makers.insert(new.line, change.done.number);
            change.new = Some(new);
            change.moves = moves;
            change.after.extend(after);
            return Arc::clone(&change.done);
        }
        let mut marks = self.removals_of(hash);
        marks.extend(after);
        self.push(Change {
            hash,
            old: None,
            new: Some(new),
            after: marks,
            done: Mark::new(dir, self.next),
            moves,
        })
    }

    /// Adds a change to the list. Returns its mark.
    fn push(&mut self, change: Change<N>) -> Arc<Mark> {
        let done = Arc::clone(&change.done);
        self.next = self.next.max(done.number + 1);
        let numbers = self.by_hash.entry(change.hash).or_default();
        let at = numbers.partition_point(|number| *number < done.number);
        numbers.insert(at, done.number);
        if let Some(new) = &change.new {
            self.makers.insert(new.line, done.number);
        }
        self.list.insert(done.number, change);
        done
    }

    /// Takes a change out of the list.
    fn pull(&mut self, number: u64) -> Option<Change<N>> {
        let change = self.list.remove(&number)?;
        if let Some(numbers) = self.by_hash.get_mut(&change.hash) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_hash.remove(&change.hash);
            }
        }
        if let Some(new) = &change.new {
            self.makers.remove(&new.line);
        }
        Some(change)
    }

    /// The removals of names with this hash that are not persistent.
    fn removals_of(&self, hash: Hash) -> Marks {
        let taken = self.taken.removals.get(&hash).into_iter().flatten();
        let numbers = self.by_hash.get(&hash).into_iter().flatten();
        let listed = numbers
            .filter_map(|number| self.list.get(number))
            .filter(|c| c.old.is_some());
        taken.chain(listed.map(|c| &c.done)).cloned().collect()
    }

    /// The marks of all changes that are not persistent.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Arc<Mark>> {
        let listed = self.list.values().map(|c| &c.done);
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
        let maker = self.makers.get(&old.line).copied();
        if let Some(change) = maker.and_then(|number| self.list.get_mut(&number)) {
            if may_cancel && !change.done.is_awaited.load(SeqCst) {
                let number = change.done.number;
                self.cancel(number, after);
                return None;
            }
            after.push(Arc::clone(&change.done));
        }
        after.extend(self.taken.makers.get(&old.line).cloned());
        Some(self.push(Change {
            hash,
            old: Some(old),
            new: None,
            after,
            done: Mark::new(dir, self.next),
            moves: false,
        }))
    }

    /// Takes back a new name that was not persistent.
    fn cancel(&mut self, number: u64, after: Marks) {
        let Some(change) = self.list.get_mut(&number) else {
            return;
        };
        if change.old.is_none() {
            self.pull(number);
            return;
        }
        let new = change.new.take();
        change.moves = false;
        change.after.extend(after);
        if let Some(new) = new {
            self.makers.remove(&new.line);
        }
    }

    /// The change with a mark, if no persister has taken it.
    pub(crate) fn listed(&self, mark: &Mark) -> Option<&Change<N>> {
        self.list.get(&mark.number)
    }

    /// Takes the changes that a persister asks for, in the order in which they were made.
    pub(crate) fn take(&mut self, wants: impl Fn(&Arc<Mark>) -> bool) -> Vec<Change<N>> {
        let mut numbers: Vec<u64> = self
            .list
            .values()
            .map(|c| &c.done)
            .filter(|mark| wants(mark))
            .map(|mark| mark.number)
            .collect();
        numbers.sort_unstable();
        let list: Vec<_> = numbers
            .into_iter()
            .filter_map(|number| self.pull(number))
            .collect();
        for change in &list {
            self.taken.add(change);
        }
        list
    }

    /// Takes back what a persister could not do, and forgets what it has done.
    pub(crate) fn give_back(&mut self, left: Vec<Change<N>>) {
        self.taken = Taken::default();
        for change in left {
            self.push(change);
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
