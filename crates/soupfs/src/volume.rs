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
use crate::nodes::{Nodes, Uses};
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
use hashbrown::HashSet;
use medium::Pmem;
use std::sync::Arc;
use vfs::{Atime, Clock, Errno, FileType, Ino};

/// Generations that a thread takes at a time.
const GENERATIONS: u32 = 64;
/// Most nodes in memory that nobody has a reference to, and nobody changes.
const LOOSE_MAX: usize = 1024;

pub(crate) struct Volume<P> {
    pub space: Space<P>,
    pub alloc: Alloc,
    pub nodes: Nodes,
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
            nodes: Nodes::default(),
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
    /// thousands of attempts.
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

    /// A node that has a name or a reference. A number that may be neither is looked at with care.
    pub(crate) fn node(&self, ino: Ino) -> Res<Arc<Node>> {
        if let Some(node) = self.nodes.get(ino) {
            return Ok(node);
        }
        let node = self.referenced(ino)?;
        self.nodes.count(&node, Uses::LOST_REF);
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

    /// The same, with a reference for the caller.
    pub(crate) fn referenced(&self, ino: Ino) -> Res<Arc<Node>> {
        // Under the lock of the shard: the inode cannot be freed between the look and the use.
        self.nodes.referenced_or(ino, || {
            let inode = self.inode_there(ino)?.ok_or(Errno::STALE)?;
            self.stored_node(ino, &inode)
        })
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
        // A directory counts itself, also when it has lost its name.
        let own = |kind| u32::from(kind == FileType::Directory);
        let is_named = inode.kind().is_some_and(|kind| inode.links() > own(kind));
        Ok((is_used && is_named).then_some(inode))
    }

    /// Takes a reference to an inode that a dentry names. The directory is locked.
    pub(crate) fn obtain(&self, ino: Ino) -> Res<Arc<Node>> {
        self.nodes.referenced_or(ino, || {
            let inode = self.space.inode(Line(ino.0))?;
            self.stored_node(ino, &inode)
        })
    }

    fn stored_node(&self, ino: Ino, inode: &Inode) -> Res<Arc<Node>> {
        let state = State::stored(inode, Line(ino.0), self.space.is_after_crash);
        let state = state.ok_or_else(|| corrupt(format_args!("inode {ino} is damaged")))?;
        Ok(Node::new(ino, state))
    }

    /// The stored inodes without a name that are still referenced.
    pub(crate) fn nameless(&self) -> impl Iterator<Item = Arc<Node>> {
        self.nodes.all().filter(|node| {
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
            self.nodes.lose_all_refs(&node);
            self.settle(&node);
        }
        self.persist_all()
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

    /// Counts the change of a name. Threads that share a count may lose some, and the reset of a round that
    /// begins now can be lost, too: it only says when there is much.
    pub(crate) fn count_change(&self) {
        let own = self.named.own();
        let changes = own.load(Relaxed) + 1;
        own.store(changes, Relaxed);
        self.pressure.has_inodes(changes);
    }

    /// Counts a change less, of which nothing is left. Another thread may have made it, or a round
    /// have begun since.
    pub(crate) fn uncount_change(&self) {
        let own = self.named.own();
        own.store(own.load(Relaxed).saturating_sub(1), Relaxed);
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
        if let Some(unused) = self.nodes.lose_refs(ino, count) {
            self.settle(&unused);
        }
    }

    /// Ends uses of a node.
    pub(crate) fn end_use(&self, node: &Arc<Node>, lost: Uses) {
        if self.nodes.count(node, lost) {
            self.settle(node);
        }
    }

    /// Frees an inode without name and use, and forgets a node that nobody uses.
    pub(crate) fn settle(&self, node: &Arc<Node>) {
        self.settle_locked(node, node.state.write(), Uses::default());
    }

    /// Changes the uses of a node that is locked, and settles it.
    pub(crate) fn settle_locked(
        &self,
        node: &Arc<Node>,
        mut state: RwLockWriteGuard<'_, State>,
        change: Uses,
    ) {
        let is_gone = state.links == 0 && !self.read_only;
        let may_go = node.ino != Ino::ROOT
            && state.changes.is_empty()
            && (is_gone || may_be_forgotten(node, &state));
        if !self.nodes.leave(node, change, may_go) || !is_gone {
            return;
        }
        state.is_dead = true;
        if state.is_stored {
            drop(state);
            self.orphans.lock().push(Arc::clone(node));
        } else if let Err(e) = self.abandon(node, &mut state) {
            e.errno(); // logged; the memory stays in use until fsck
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

/// Whether a node has nothing that is not on the medium.
fn may_be_forgotten(node: &Node, state: &State) -> bool {
    // Latest links of dentries may end in the middle of a chain that only the latest view splits.
    let has_slots = state.view.has_slots() && !hit(Bug::ForgottenSlots);
    let is_clean = state.is_stored && !state.is_dirty && !has_slots;
    is_clean && state.file.is_clean() && !node.is_listed.load(SeqCst)
}
