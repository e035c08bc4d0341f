//! `fsync`: makes one inode persistent, with its names and those of the directories above them, and
//! no more.
//!
//! Names that wait for others bring these along: a new directory on the path, the names that a
//! rename comes after. An inode records no directory of names that are persistent already. Of
//! these the one of the last lookup counts: a further old name stays on the path that it has on the
//! medium.
//!
//! Such rounds run side by side, also those of files in one directory. Each claims all that it changes
//! before it begins: its own inode, the inodes that its names get or lose, the chains of the names, and
//! the parents of directories, which count them. A round that finds something claimed runs alone, after
//! the others. So no round builds on a structure that another one has not made persistent yet (C1), and
//! none changes a chain, a tree or a link count beside another.
//!
//! The times of a directory do not come along with a name in it, so that rounds need not claim it. If its
//! rights differ from those on the medium they do, and if another round is at work on them the round runs
//! after it: when an fsync returns, no crash shows the new name to whom earlier changes of rights exclude.

use super::dirs::path_of;
use crate::change::Mark;
use crate::error::Res;
use crate::format::{Hash, Inode, Line, inode};
use crate::node::{Node, State};
use crate::seeded::{Bug, hit};
use crate::sync::{Mutex, release_fairly};
use crate::volume::Volume;
use hashbrown::HashSet;
use medium::Pmem;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{FileType, Ino};

/// The changes of names that an inode needs.
#[derive(Default)]
pub(super) struct Wanted {
    /// The addresses of their marks.
    seen: HashSet<usize>,
    /// The directories, each with its changes.
    dirs: BTreeMap<Ino, (Arc<Node>, Vec<Arc<Mark>>)>,
    /// The inodes that the round changes, but for directories of which it changes chains only.
    inodes: HashSet<Ino>,
    /// The directories and the hashes of the names.
    names: Vec<(Arc<Node>, Hash)>,
    /// Whether another round has taken some of the changes.
    is_taken: bool,
    /// The directory of the last lookup, if it is gone, so that the path is not known.
    gone: Option<Ino>,
}

/// The addresses of what a round has claimed, inodes and slots, until it ends.
struct Claim<'c> {
    all: &'c Mutex<HashSet<u64>>,
    own: HashSet<u64>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        self.own.iter().for_each(|address| {
            all.remove(address);
        });
    }
}

impl Wanted {
    /// The changes of a node.
    pub(super) fn of(&self, node: &Arc<Node>) -> &[Arc<Mark>] {
        let own = self.dirs.get(&node.ino);
        let own = own.filter(|(dir, _)| Arc::ptr_eq(dir, node));
        own.map_or(&[], |(_, marks)| marks)
    }

    /// Whether the round takes the attributes of an inode.
    pub(super) fn takes(&self, ino: Ino) -> bool {
        self.inodes.contains(&ino)
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
        let lock = self.persister.write();
        self.intact()?;
        let wanted = self.want_path(node)?;
        let is_done = wanted.gone.is_none() && self.persist_wanted(node, &wanted)?;
        release_fairly(lock);
        if let Some(gone) = wanted.gone {
            // All that is above its names becomes persistent. Later calls take them as they are then.
            node.lose_via(gone);
        }
        // A change that another thread has made meanwhile may have to come first.
        match is_done {
            true => Ok(()),
            false => self.persist(),
        }
    }

    /// As [`persist_one`](Self::persist_one), beside other rounds of one inode. Returns whether all is
    /// persistent: another round may be at work on some of it.
    fn persist_beside(&self, node: &Arc<Node>) -> Res<bool> {
        let _lock = self.persister.read();
        self.intact()?;
        let wanted = self.want_path(node)?;
        match self.claim(&wanted)?.filter(|_| wanted.gone.is_none()) {
            Some(_claim) => self.persist_wanted(node, &wanted),
            None => Ok(false),
        }
    }

    /// Claims what a round changes, unless another round has claimed some of it.
    fn claim(&self, wanted: &Wanted) -> Res<Option<Claim<'_>>> {
        let mut all = self.claims.lock();
        let inodes = wanted.inodes.iter();
        let mut own: HashSet<u64> = inodes.map(|ino| Line(ino.0).addr()).collect();
        let mut is_free = !wanted.is_taken && own.is_disjoint(&*all);
        for (dir, hash) in &wanted.names {
            let (above, slot) = self.path_now(dir, *hash)?;
            // A round that has claimed the directory may be about to store its rights.
            let is_unseen = hit(Bug::RightsUnchecked) || hit(Bug::ParentUnclaimed);
            is_free &= !all.contains(&Line(dir.ino.0).addr()) || is_unseen;
            // One that has claimed a slot may be about to put a table there.
            let mut path = above
                .iter()
                .filter(|_| !hit(Bug::PathUnchecked))
                .chain([&slot]);
            is_free &= !path.any(|slot| all.contains(slot)) || hit(Bug::ChainsUnclaimed);
            own.insert(slot);
        }
        Ok((is_free || hit(Bug::NothingClaimed)).then(|| {
            all.extend(&own);
            let all = &self.claims;
            Claim { all, own }
        }))
    }

    /// The address of the slot of a hash on the medium, and those above it.
    fn path_now(&self, dir: &Node, hash: Hash) -> Res<(SmallVec<[u64; 4]>, u64)> {
        let first = Line(dir.ino.0).word(inode::ROOT);
        match dir.state.read().is_stored {
            true => path_of(&self.space, first, hash),
            // The round claims the inode, too.
            false => Ok((SmallVec::new(), first)),
        }
    }

    /// Runs a round with these changes. Returns whether all of them are persistent.
    fn persist_wanted(&self, node: &Arc<Node>, wanted: &Wanted) -> Res<bool> {
        let dirs = wanted.dirs.values().map(|(dir, _)| Arc::clone(dir));
        let nodes = std::iter::once(Arc::clone(node)).chain(dirs);
        self.run(nodes.collect(), Some(wanted), usize::MAX)?;
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
                let is_there = self.want_above(dir, &mut seen, &mut marks)?;
                wanted.gone = wanted.gone.or((!is_there).then_some(dir));
            } else if let Some(mark) = marks.pop() {
                self.want(mark, &mut wanted, &mut marks, &mut dirs)?;
            } else {
                return Ok(wanted);
            }
        }
    }

    /// Adds the changes of a directory's names, and of those above it. Returns false if there is no such
    /// directory: it was removed, and its number may be that of something else.
    fn want_above(
        &self,
        dir: Ino,
        seen: &mut HashSet<Ino>,
        marks: &mut Vec<Arc<Mark>>,
    ) -> Res<bool> {
        let mut at = dir;
        while at != Ino::ROOT && seen.insert(at) {
            at = match self.nodes.get(at) {
                Some(node) if !node.is_dir => return Ok(false),
                Some(node) => {
                    let state = node.state.read();
                    if state.links == 0 {
                        return Ok(false);
                    }
                    marks.extend(own_marks(&state));
                    state.parent
                }
                None => {
                    let there = self.inode_there(at)?;
                    let is_dir = |inode: &Inode| inode.kind() == Some(FileType::Directory);
                    match there.filter(is_dir) {
                        Some(inode) => Ino(inode.0[inode::SIZE as usize]),
                        None => return Ok(false),
                    }
                }
            };
        }
        Ok(true)
    }

    /// Adds a change, and those that it waits for.
    fn want(
        &self,
        mark: Arc<Mark>,
        wanted: &mut Wanted,
        marks: &mut Vec<Arc<Mark>>,
        dirs: &mut Vec<Ino>,
    ) -> Res<()> {
        if mark.is_done() || !wanted.seen.insert(Arc::as_ptr(&mark).addr()) {
            return Ok(());
        }
        let Some(dir) = self.nodes.get(mark.dir) else {
            return Ok(());
        };
        let state = dir.state.read();
        let Some(change) = state.changes.listed(&mark) else {
            // It may have ended since.
            wanted.is_taken |= !mark.is_done();
            return Ok(());
        };
        // The inodes that the change names stay those that are claimed.
        mark.set_awaited();
        let named = || change.old.iter().chain(&change.new);
        wanted.inodes.extend(named().map(|named| named.node.ino));
        let is_counted = named().any(|named| named.node.is_dir) && !hit(Bug::ParentUnclaimed);
        if is_counted || self.has_other_rights(&dir, &state)? {
            wanted.inodes.insert(mark.dir);
        }
        wanted.names.push((Arc::clone(&dir), change.hash));
        if !hit(Bug::FsyncWithoutPath) {
            marks.extend(change.after.iter().cloned());
        }
        dirs.push(mark.dir);
        let own = wanted.dirs.entry(mark.dir);
        let (_, own) = own.or_insert_with(|| (Arc::clone(&dir), Vec::new()));
        own.push(mark);
        Ok(())
    }

    /// Whether the rights of a directory differ from those on the medium.
    fn has_other_rights(&self, dir: &Node, state: &State) -> Res<bool> {
        if !state.is_stored {
            return Ok(true);
        }
        if !state.is_dirty {
            return Ok(false);
        }
        let there = self.space.inode(Line(dir.ino.0))?;
        let is_same_owner = (there.uid(), there.gid()) == (state.uid, state.gid);
        Ok(!is_same_owner || there.mode() & 0o7777 != state.perm)
    }
}

/// The changes of the names of an inode.
fn own_marks(state: &State) -> impl Iterator<Item = Arc<Mark>> {
    let names = state.names.iter().map(|(_, mark)| mark);
    names.chain(&state.removals).cloned()
}
