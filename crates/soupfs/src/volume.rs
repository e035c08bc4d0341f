//! The mounted file system: its nodes, and the lists for the persister.
//!
//! Locks, in this order: the lock for renames between directories; the states of nodes, a directory
//! before what is in it; a shard of the nodes, a list, or the directories with several names. A persister holds the lock for
//! rounds before all of these, then that of its round, then the claims, and the state of one node at a time. Rounds of one inode share the first one:
//! each claims the inodes and chains that it changes, so that two of them change nothing in common but
//! the bitmap.

use crate::alloc::{Alloc, reserved_pages};
use crate::change::Mark;
use crate::error::{Fault, Res, corrupt};
use crate::format::{Inode, LINES, Line, Page, bitmap_word};
use crate::node::{Node, State};
use crate::pressure::{Portion, Pressure};
use crate::seeded::{Bug, hit};
use crate::shards::Shards;
use crate::sharing::Sharing;
use crate::space::Space;
use crate::staged::Staged;
use crate::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use crate::sync::{Mutex, RwLock, RwLockWriteGuard};
use crate::twins::Twins;
use crossbeam_utils::CachePadded;
use hashbrown::hash_map::EntryRef;
use hashbrown::{HashMap, HashSet};
use medium::Pmem;
use std::sync::Arc;
use vfs::{Atime, Clock, Errno, Ino};

/// Parts of the table of nodes. Those that hold few nodes fit into the first caches.
const SHARDS: u64 = 128;
/// Parts for the nodes of a page.
const SHARDS_OF_PAGE: u64 = 8;
/// Room for nodes in a shard that stays when they are gone.
const SMALL: usize = 32;
/// Generations that a thread takes at a time.
const GENERATIONS: u32 = 64;
/// Most nodes in memory that nobody has a reference to, and nobody changes.
const LOOSE_MAX: usize = 1024;

/// The shard of a node. The nodes of a page are in few shards, since a thread makes inodes in pages of its
/// own. Those that were made in sequence are in several: they can be directories of several threads.
fn shard(ino: Ino) -> usize {
    // Mostly each second line of a page is an inode, and its dentry comes after it.
    let (page, inode) = (ino.0 / LINES, ino.0 / 2);
    ((page * SHARDS_OF_PAGE + inode % SHARDS_OF_PAGE) % SHARDS) as usize
}

type Shard = CachePadded<Mutex<HashMap<u64, Arc<Node>>>>;

pub(crate) struct Volume<P> {
    pub space: Space<P>,
    pub alloc: Alloc,
    nodes: Box<[Shard]>,
    /// Nodes that were read without a reference; forgotten when there are many.
    loose: Mutex<Vec<Arc<Node>>>,
    /// Stored nodes with changes that are not persistent.
    pub dirty: Shards<Mutex<Vec<Arc<Node>>>>,
    /// Changes of names by each thread since the last round began, less those that were cancelled.
    named: Shards<AtomicUsize>,
    /// Stored inodes without name and reference.
    pub orphans: Mutex<Vec<Arc<Node>>>,
    pub pressure: Pressure,
    /// Held by a caller that makes all changes persistent, in one or several rounds.
    pub rounds: Mutex<()>,
    /// The most that each of several rounds takes.
    pub portion: Portion,
    /// Held by a round: shared by rounds of one inode, alone by others.
    pub persister: RwLock<()>,
    /// The addresses of the inodes and slots that rounds of one inode change.
    pub claims: Mutex<HashSet<u64>>,
    /// The way in which persisters share a round.
    pub sharing: Sharing,
    /// Held by renames between directories: the end of the last move of a directory.
    pub renames: Mutex<Option<Arc<Mark>>>,
    pub twins: Twins,
    pub clock: Arc<dyn Clock>,
    pub atime: Atime,
    pub read_only: bool,
    /// Whether each change is persistent when it returns.
    pub sync: bool,
    /// Whether data are copied on write.
    pub copies_data: bool,
    /// A fence failed: no more changes are accepted.
    pub failed: AtomicBool,
    /// The next generation of each thread, and of the next block of them.
    generations: Shards<AtomicU32>,
    generation: CachePadded<AtomicU32>,
}

pub(crate) struct Settings {
    pub sharing: Sharing,
    pub portion: Portion,
    pub sync: bool,
    pub clock: Arc<dyn Clock>,
    pub atime: Atime,
    pub read_only: bool,
    pub copies_data: bool,
}

impl<P: Pmem> Volume<P> {
    pub(crate) fn new(space: Space<P>, settings: Settings) -> Self {
        let generation = (space.epoch as u32).wrapping_mul(0x9e37 * GENERATIONS);
        Self {
            alloc: Alloc::new(space.pages),
            twins: Twins::new(space.is_after_crash),
            space,
            nodes: (0..SHARDS).map(|_| Shard::default()).collect(),
            loose: Mutex::default(),
            dirty: Shards::default(),
            named: Shards::default(),
            orphans: Mutex::default(),
            pressure: Pressure::default(),
            rounds: Mutex::default(),
            portion: settings.portion,
            persister: RwLock::new(()),
            claims: Mutex::default(),
            sharing: settings.sharing,
            renames: Mutex::default(),
            clock: settings.clock,
            atime: settings.atime,
            read_only: settings.read_only,
            sync: settings.sync,
            copies_data: settings.copies_data,
            failed: AtomicBool::new(false),
            generations: Shards::default(),
            generation: CachePadded::new(AtomicU32::new(generation)),
        }
    }

    /// A generation for a new inode: not that of an inode before it in the same line, for some ten
    /// thousands of new ones.
    pub(crate) fn new_generation(&self) -> u16 {
        let own = self.generations.own();
        let mut next = own.load(Relaxed);
        if next.is_multiple_of(GENERATIONS) {
            next = self.generation.fetch_add(GENERATIONS, Relaxed);
        }
        // Two threads that share it may get the same one, for two lines.
        own.store(next.wrapping_add(1), Relaxed);
        next as u16
    }

    /// Fails once the medium has failed, or if nothing may change.
    pub(crate) fn writable(&self) -> Res<()> {
        match self.read_only {
            true => Err(Errno::ROFS.into()),
            false => self.intact(),
        }
    }

    /// Fails once a round has failed: its changes are lost.
    pub(crate) fn intact(&self) -> Res<()> {
        match self.failed.load(SeqCst) {
            true => Err(Errno::IO.into()),
            false => Ok(()),
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.nodes[shard(ino)]
    }

    /// A node that has a name or a reference. A number that may be neither is looked at with care.
    pub(crate) fn node(&self, ino: Ino) -> Res<Arc<Node>> {
        if let Some(node) = self.cached(ino) {
            return Ok(node);
        }
        self.inode_there(ino)?.ok_or(Errno::STALE)?;
        let node = self.obtain(ino)?;
        node.refs.fetch_sub(1, SeqCst);
        let mut loose = self.loose.lock();
        loose.push(Arc::clone(&node));
        if loose.len() >= LOOSE_MAX {
            let all = std::mem::take(&mut *loose);
            drop(loose);
            all.iter()
                .filter(|other| !Arc::ptr_eq(other, &node))
                .for_each(|n| self.settle(n));
        }
        Ok(node)
    }

    /// The inode on the medium with a number that may have none.
    pub(crate) fn inode_there(&self, ino: Ino) -> Res<Option<Inode>> {
        let page = Page(ino.0 / LINES);
        let all = reserved_pages(self.space.pages)..self.space.pages;
        if ino != Ino::ROOT && !all.contains(&page.0) {
            return Ok(None);
        }
        let is_used = self.space.load(bitmap_word(page))? >> (ino.0 % LINES) & 1 == 1;
        let inode = self.space.inode(Line(ino.0))?;
        let is_there = is_used && inode.kind().is_some() && inode.links() > 0;
        Ok(is_there.then_some(inode))
    }

    /// A node that is in memory.
    pub(crate) fn cached(&self, ino: Ino) -> Option<Arc<Node>> {
        self.shard(ino).lock().get(&ino.0).map(Arc::clone)
    }

    /// Takes a reference to an inode that a dentry names. The directory is locked.
    pub(crate) fn obtain(&self, ino: Ino) -> Res<Arc<Node>> {
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get(&ino.0) {
            node.refs.fetch_add(1, SeqCst);
            return Ok(Arc::clone(node));
        }
        let line = Line(ino.0);
        let inode = self.space.inode(line)?;
        let state = State::stored(&inode, line, self.space.is_after_crash);
        let state = state.ok_or_else(|| corrupt(format_args!("inode {ino} is damaged")))?;
        let node = Node::new(ino, state);
        shard.insert(ino.0, Arc::clone(&node));
        Ok(node)
    }

    /// The stored inodes without a name that are still referenced.
    fn nameless(&self) -> impl Iterator<Item = Arc<Node>> {
        let nodes = self.nodes.iter().flat_map(|shard| {
            let nodes: Vec<_> = shard.lock().values().cloned().collect();
            nodes
        });
        nodes.filter(|node| {
            let state = node.state.read();
            state.links == 0 && state.is_stored
        })
    }

    /// Whether memory is lost with the references to an inode without a name.
    pub(crate) fn has_nameless(&self) -> bool {
        self.nameless().next().is_some()
    }

    /// Frees the inodes without a name when all references end. Everything is persistent.
    pub(crate) fn free_nameless(&self) -> Res<()> {
        for node in self.nameless() {
            node.refs.store(0, SeqCst);
            self.settle(&node);
        }
        self.persist_all()
    }

    /// Adds a new inode, with a reference.
    pub(crate) fn add_node(&self, ino: Ino, state: State) -> Arc<Node> {
        let node = Node::new(ino, state);
        self.shard(ino).lock().insert(ino.0, Arc::clone(&node));
        node
    }

    /// Puts a stored node with changes into the list for the persister. A new inode comes into a round
    /// by the change that names it: if that is cancelled, rounds never see the inode.
    pub(crate) fn touch(&self, node: &Arc<Node>, state: &State) {
        // Most calls change a node that is listed already.
        let is_listed = !state.is_stored || node.is_listed.load(SeqCst);
        if !is_listed && !node.is_listed.swap(true, SeqCst) {
            let mut dirty = self.dirty.own().lock();
            dirty.push(Arc::clone(node));
            self.pressure.has_inodes(dirty.len());
        }
    }

    /// Counts the change of a name.
    pub(crate) fn count_change(&self) {
        let changes = self.named.own().fetch_add(1, Relaxed) + 1;
        self.pressure.has_inodes(changes);
    }

    /// Counts a change less, of which nothing is left. Another thread may have made it, or a round
    /// have begun since.
    pub(crate) fn uncount_change(&self) {
        let less = |changes: usize| changes.checked_sub(1);
        let _ = self.named.own().fetch_update(Relaxed, Relaxed, less);
    }

    /// A round takes all changes.
    pub(crate) fn begin_round(&self) {
        self.pressure.begin_round();
        self.named
            .all()
            .for_each(|changes| changes.store(0, Relaxed));
    }

    /// Gives back references to the inode with a number.
    pub(crate) fn unref_number(&self, ino: Ino, count: u64) {
        let shard = self.shard(ino).lock();
        let unused = shard.get(&ino.0).filter(|node| node.lose_refs(count));
        let unused = unused.map(Arc::clone);
        drop(shard);
        if let Some(node) = unused {
            self.settle(&node);
        }
    }

    /// Gives back references.
    pub(crate) fn unref(&self, node: &Arc<Node>, count: u64) {
        if node.lose_refs(count) {
            self.settle(node);
        }
    }

    /// Ends the use of a node by a change or a round.
    pub(crate) fn unpin(&self, node: &Arc<Node>) {
        if node.pins.fetch_sub(1, SeqCst) == 1 {
            self.settle(node);
        }
    }

    /// Frees an inode without name and reference, and forgets a node that nobody uses.
    pub(crate) fn settle(&self, node: &Arc<Node>) {
        self.settle_locked(node, node.state.write());
    }

    /// As [`settle`](Self::settle), of a node that is locked.
    pub(crate) fn settle_locked(&self, node: &Arc<Node>, mut state: RwLockWriteGuard<'_, State>) {
        let is_used = || node.refs.load(SeqCst) > 0 || node.pins.load(SeqCst) > 0;
        if is_used() || state.is_dead || node.ino == Ino::ROOT {
            return;
        }
        if !state.changes.is_empty() {
            return;
        }
        if state.links == 0 && !self.read_only {
            state.is_dead = true;
            self.forget(node, || true);
            if state.is_stored {
                drop(state);
                self.orphans.lock().push(Arc::clone(node));
            } else if let Err(e) = self.abandon(node, &mut state) {
                e.errno(); // logged; the memory stays in use until fsck
            }
            return;
        }
        // Latest links of dentries may end in the middle of a chain that only the latest view splits.
        let has_slots = state.view.has_slots() && !hit(Bug::ForgottenSlots);
        let is_clean = state.is_stored && !state.is_dirty && !has_slots;
        if is_clean && state.file.is_clean() && !node.is_listed.load(SeqCst) {
            self.forget(node, || !is_used());
        }
    }

    /// Takes a node out of memory, unless another node has its number now.
    fn forget(&self, node: &Arc<Node>, may_go: impl FnOnce() -> bool) {
        let mut shard = self.shard(node.ino).lock();
        let EntryRef::Occupied(own) = shard.entry_ref(&node.ino.0) else {
            return;
        };
        if Arc::ptr_eq(own.get(), node) && may_go() {
            own.remove();
            // The tables of all shards fit into the caches again when a round has let go of many nodes.
            if shard.capacity() > SMALL && shard.len() < shard.capacity() / 8 {
                let least = 2 * shard.len();
                shard.shrink_to(least);
            }
        }
    }

    /// Gives back the memory of an inode that was never stored.
    fn abandon(&self, node: &Node, state: &mut State) -> Res<()> {
        self.abandon_staged(state)?;
        if let Some(page) = state.xattr {
            self.alloc.abandon_page(&self.space, page)?;
        }
        if let Some(line) = state.target {
            let lines = self.space.text_lines(line, state.size as usize)?;
            self.alloc.abandon_lines(&self.space, lines)?;
        }
        self.alloc.abandon_lines(&self.space, [Line(node.ino.0)])
    }

    /// Gives back the pages that are staged, and those for their nodes.
    pub(crate) fn abandon_staged(&self, state: &mut State) -> Res<()> {
        if state.file.staged.is_empty() && state.file.nodes.is_empty() {
            return Ok(());
        }
        let staged = state.file.staged.split_off(0).filter_map(Staged::page);
        let mut pages = staged.chain(std::mem::take(&mut state.file.nodes));
        pages.try_for_each(|page| self.alloc.abandon_page(&self.space, page))
    }

    /// Takes a page of zeros.
    pub(crate) fn take_zeroed(&self) -> Res<Page> {
        let page = self.alloc.take_page(&self.space)?;
        self.space.zero_page(page);
        Ok(page)
    }

    /// Runs a change, with the names of directories if it needs them. If memory is short, makes what is pending persistent, since that frees some,
    /// and tries again. All is persistent at the end with the
    /// option `sync`, and if there is too much of it.
    pub(crate) fn change<T>(&self, mut change: impl FnMut() -> Res<T>) -> vfs::Result<T> {
        let run = |change: &mut dyn FnMut() -> Res<T>| {
            self.writable()?;
            match change() {
                Err(Fault::NamesUnread) => self.read_names().and_then(|()| change()),
                other => other,
            }
        };
        let result = match run(&mut change) {
            Err(Fault::Full) => self.persist().and_then(|()| run(&mut change)),
            other => other,
        };
        let done = result.map_err(Fault::errno)?;
        match self.sync || self.pressure.is_too_high() {
            true => self.persist().map_err(Fault::errno).map(|()| done),
            false => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn inodes_made_in_turn_are_in_different_shards_and_a_page_is_in_few() {
        let first = 5 * LINES;
        let shards = |lines: std::ops::Range<u64>| -> HashSet<usize> {
            lines.step_by(2).map(|line| shard(Ino(line))).collect()
        };
        assert_eq!(shards(first..first + 16).len(), 8);
        assert_eq!(shards(first..first + LINES).len(), 8);
        assert!(shards(0..100 * LINES).len() == SHARDS as usize);
    }
}
