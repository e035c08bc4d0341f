//! `fsync`: makes one inode persistent, with its names and those of the directories above them, and
//! no more.
//!
//! Names that wait for others bring these along: a new directory on the path, the names that a
//! rename comes after. An inode records no directory of names that are persistent already. Of
//! these the one of the last lookup counts: a further old name stays on the path that it has on the
//! medium.
//!
//! Such rounds run side by side. Each claims all inodes that it changes before it begins: its own one,
//! the directories of the names, and the inodes that these names get or lose. A round that finds an inode
//! claimed runs alone, after the others. So no round builds on a structure that another one has not
//! made persistent yet (C1), and none changes a chain, a tree or a link count beside another.

use crate::change::Mark;
use crate::error::Res;
use crate::format::{Line, inode};
use crate::node::{Node, State};
use crate::seeded::{Bug, hit};
use crate::sync::Mutex;
use crate::volume::Volume;
use hashbrown::{HashMap, HashSet};
use medium::Pmem;
use std::sync::Arc;
use vfs::Ino;

/// The changes of names that an inode needs.
#[derive(Default)]
pub(super) struct Wanted {
    /// The addresses of their marks.
    seen: HashSet<usize>,
    /// The directories, each with its changes.
    dirs: HashMap<Ino, (Arc<Node>, Vec<Arc<Mark>>)>,
    /// The inodes that the round changes.
    inodes: HashSet<Ino>,
    /// Whether another round has taken some of the changes.
    is_taken: bool,
}

/// The inodes that a round has claimed, until it ends.
struct Claim<'c> {
    all: &'c Mutex<HashSet<Ino>>,
    own: &'c HashSet<Ino>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        all.retain(|ino| !self.own.contains(ino));
    }
}

impl Wanted {
    /// The changes of a node.
    pub(super) fn of(&self, node: &Arc<Node>) -> &[Arc<Mark>] {
        let own = self.dirs.get(&node.ino);
        let own = own.filter(|(dir, _)| Arc::ptr_eq(dir, node));
        own.map_or(&[], |(_, marks)| marks)
    }

    fn is_done(&self) -> bool {
        let mut marks = self.dirs.values().flat_map(|(_, marks)| marks);
        marks.all(|mark| mark.is_done())
    }
}

impl<P: Pmem> Volume<P> {
    /// Makes an inode and its path persistent; for a directory also the names in it.
    pub(crate) fn persist_one(&self, node: &Arc<Node>) -> Res<()> {
        if self.persist_beside(node)? {
            return Ok(());
        }
        let _lock = self.persister.write();
        self.intact()?;
        let wanted = self.want_path(node)?;
        // A change that another thread has made meanwhile may have to come first.
        match self.persist_wanted(node, &wanted)? {
            true => Ok(()),
            false => self.persist_held(),
        }
    }

    /// As [`persist_one`](Self::persist_one), beside other rounds of one inode. Returns whether all is
    /// persistent: another round may be at work on some of it.
    fn persist_beside(&self, node: &Arc<Node>) -> Res<bool> {
        let _lock = self.persister.read();
        self.intact()?;
        let wanted = self.want_path(node)?;
        match self.claim(&wanted) {
            Some(_claim) => self.persist_wanted(node, &wanted),
            None => Ok(false),
        }
    }

    /// Claims the inodes that a round changes, unless another round has claimed one of them.
    fn claim<'c>(&'c self, wanted: &'c Wanted) -> Option<Claim<'c>> {
        let (mut all, own) = (self.claims.lock(), &wanted.inodes);
        let is_free = !wanted.is_taken && own.is_disjoint(&*all) || hit(Bug::NothingClaimed);
        is_free.then(|| {
            all.extend(own);
            let all = &self.claims;
            Claim { all, own }
        })
    }

    /// Runs a round with these changes. Returns whether all of them are persistent.
    fn persist_wanted(&self, node: &Arc<Node>, wanted: &Wanted) -> Res<bool> {
        let dirs = wanted.dirs.values().map(|(dir, _)| Arc::clone(dir));
        let nodes = std::iter::once(Arc::clone(node)).chain(dirs);
        self.run(nodes.collect(), &[], Some(wanted))?;
        Ok(wanted.is_done() || hit(Bug::FsyncWithoutPath))
    }

    /// Collects the changes of the names of a node, and of the directories above it.
    fn want_path(&self, node: &Arc<Node>) -> Res<Wanted> {
        let mut wanted = Wanted::default();
        wanted.inodes.insert(node.ino);
        // No directory moves meanwhile.
        let _renames = self.renames.lock();
        let (mut marks, mut dirs) = (Vec::new(), Vec::new());
        {
            let state = node.state.read();
            marks.extend(own_marks(&state));
            marks.extend(state.changes.marks().cloned());
            dirs.extend(node.via().filter(|_| !node.is_dir && state.links > 0));
            dirs.extend((node.is_dir && state.links > 0).then_some(state.parent));
        }
        let mut seen = HashSet::new();
        loop {
            if let Some(dir) = dirs.pop().filter(|_| !hit(Bug::FsyncWithoutPath)) {
                self.want_above(dir, &mut seen, &mut marks)?;
            } else if let Some(mark) = marks.pop() {
                self.want(mark, &mut wanted, &mut marks, &mut dirs);
            } else {
                return Ok(wanted);
            }
        }
    }

    /// Adds the changes of a directory's names, and of those above it.
    fn want_above(&self, dir: Ino, seen: &mut HashSet<Ino>, marks: &mut Vec<Arc<Mark>>) -> Res<()> {
        let mut at = dir;
        while at != Ino::ROOT && seen.insert(at) {
            at = match self.cached(at) {
                // The number was given to another inode.
                Some(node) if !node.is_dir => return Ok(()),
                Some(node) => {
                    let state = node.state.read();
                    marks.extend(own_marks(&state));
                    state.parent
                }
                None => Ino(self.space.load(Line(at.0).word(inode::SIZE))?),
            };
        }
        Ok(())
    }

    /// Adds a change, and those that it waits for.
    fn want(
        &self,
        mark: Arc<Mark>,
        wanted: &mut Wanted,
        marks: &mut Vec<Arc<Mark>>,
        dirs: &mut Vec<Ino>,
    ) {
        if mark.is_done() || !wanted.seen.insert(Arc::as_ptr(&mark).addr()) {
            return;
        }
        let Some(dir) = self.cached(mark.dir) else {
            return;
        };
        let state = dir.state.read();
        let Some(change) = state.changes.listed(&mark) else {
            // It may have ended since.
            wanted.is_taken |= !mark.is_done();
            return;
        };
        // The inodes that the change names stay those that are claimed.
        mark.set_awaited();
        let named = change.old.iter().chain(&change.new);
        wanted.inodes.extend(named.map(|named| named.node.ino));
        wanted.inodes.insert(mark.dir);
        if !hit(Bug::FsyncWithoutPath) {
            marks.extend(change.after.iter().cloned());
        }
        dirs.push(mark.dir);
        let own = wanted.dirs.entry(mark.dir);
        let (_, own) = own.or_insert_with(|| (Arc::clone(&dir), Vec::new()));
        own.push(mark);
    }
}

/// The changes of the names of an inode.
fn own_marks(state: &State) -> impl Iterator<Item = Arc<Mark>> {
    let names = state.names.iter().map(|(_, mark)| mark);
    names.chain(&state.removals).cloned()
}
