//! The persister (SoupFS, section 3.7): makes the latest view persistent, one round at a time.
//!
//! A round takes the changes of some nodes and goes through these steps, with a fence after each:
//!
//! 1. *Initialise*: new inodes, dentries, names, tables, data, nodes of trees; their bits in the
//!    bitmap; higher link counts. No persistent pointer leads to any of it (C1).
//! 2. *Publish*: consistent links of directories, in waves if changes wait for others (C3); smaller
//!    sizes of files.
//! 3. *Finish*: pointers and roots of files, attributes, lower link counts.
//! 4. *Grow*: greater sizes; tables instead of long chains.
//!
//! Then the memory of what is gone is free (C2).

mod adopt;
mod dirs;
mod files;
mod one;

use crate::change::{self, Marks};
use crate::error::{Fault, Res};
use crate::format::{Line, Page, inode};
use crate::node::{Node, State};
use crate::seeded::{Bug, hit};
use crate::volume::Volume;
use dirs::Dir;
use files::FilePlan;
use hashbrown::HashSet;
use medium::{Pmem, Rule};
use one::Wanted;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{FileType, Ino};

/// One round.
struct Round<'c, P> {
    core: &'c Volume<P>,
    /// The changes of directories that it takes; `None`: all.
    wanted: Option<&'c Wanted>,
    /// All nodes of the round; each is pinned.
    nodes: Vec<Arc<Node>>,
    /// Their addresses: a number may have another node by now.
    seen: HashSet<usize>,
    dirs: Vec<Dir>,
    files: Vec<FilePlan>,
    attrs: Vec<Attrs>,
    /// Inodes that lose links when the round ends.
    unlinked: Vec<Arc<Node>>,
    /// Memory that is free when the round ends.
    free_lines: Vec<Line>,
    free_pages: Vec<Page>,
    /// Slots that get a table.
    splits: Vec<(u64, Page)>,
    progress: usize,
    /// The tree of a file could not be made for want of memory.
    is_full: bool,
    /// Changes that wait for others.
    left: Marks,
}

/// The result of a round.
#[derive(Default)]
struct Done {
    /// Changes that were made; 0 if the others wait, or there are none.
    done: usize,
    /// The tree of a file could not be made for want of memory.
    is_full: bool,
    /// Changes that wait for others.
    left: Marks,
}

/// Attributes of a stored inode that change.
struct Attrs {
    line: Line,
    /// The mode before the owner changes, if a set-id bit must not meet the new owner.
    early_mode: Option<u32>,
    /// The low half of the word with mode and links.
    mode: u32,
    owner: u64,
    pages: u64,
    times: [u64; 3],
}

impl<P: Pmem> Volume<P> {
    /// Makes everything persistent that was changed before this call, and frees what has no use any
    /// more. Other changes may be made meanwhile.
    pub(crate) fn persist(&self) -> Res<()> {
        let _lock = self.persister.lock();
        self.intact()?;
        self.persist_held()
    }

    /// As [`persist`](Self::persist); the persister's lock is held.
    fn persist_held(&self) -> Res<()> {
        let mut done = self.persist_dirty()?;
        // Changes that wait for those of a directory that comes later take another round.
        let mut left = std::mem::take(&mut done.left);
        while done.done > 0 && (done.is_full || !left.is_empty()) {
            done = self.persist_dirty()?;
            let still: HashSet<_> = done.left.iter().map(Arc::as_ptr).collect();
            left.retain(|mark| still.contains(&Arc::as_ptr(mark)));
        }
        // The inodes that have lost their last name.
        self.run_round(Vec::new())?;
        Ok(())
    }

    /// As [`persist`](Self::persist), until there are no changes.
    pub(crate) fn persist_all(&self) -> Res<()> {
        let _lock = self.persister.lock();
        self.intact()?;
        while self.persist_dirty()?.done > 0 {}
        Ok(())
    }

    /// Runs a round with all dirty nodes.
    fn persist_dirty(&self) -> Res<Done> {
        self.pressure.begin_round();
        let nodes = self.take_dirty();
        self.run_round(nodes)
    }

    fn take_dirty(&self) -> Vec<Arc<Node>> {
        let shards = self.dirty.all();
        shards
            .flat_map(|mut shard| std::mem::take(&mut *shard))
            .collect()
    }

    /// Makes changes of at most `limit` nodes persistent, which `draw` chooses from a number of
    /// them. Returns how much was done; 0 if there is nothing to do.
    pub(crate) fn persist_some(
        &self,
        limit: usize,
        draw: &mut dyn FnMut(usize) -> usize,
    ) -> Res<usize> {
        let _lock = self.persister.lock();
        let mut aside = Vec::new();
        let mut done = 0;
        while done == 0 {
            let nodes = self.choose(limit, draw);
            if nodes.is_empty() {
                break;
            }
            done = self.run_round(nodes.clone())?.done;
            aside.extend(nodes);
            if done == 0 {
                // They wait for others: look at those first.
                let mut dirty = self.dirty.own();
                dirty.retain(|node| !aside.iter().any(|other| Arc::ptr_eq(node, other)));
            }
        }
        for node in aside {
            node.is_listed.store(false, SeqCst);
            self.relist(&node);
        }
        Ok(done)
    }

    fn choose(&self, limit: usize, draw: &mut dyn FnMut(usize) -> usize) -> Vec<Arc<Node>> {
        let mut dirty = self.take_dirty();
        let mut nodes = Vec::new();
        while nodes.len() < limit && !dirty.is_empty() {
            let at = draw(dirty.len());
            nodes.push(dirty.remove(at));
        }
        let mut own = self.dirty.own();
        dirty.append(&mut own);
        *own = dirty;
        nodes
    }

    /// Runs a round with nodes that are not in the list any more.
    fn run_round(&self, nodes: Vec<Arc<Node>>) -> Res<Done> {
        let orphans = std::mem::take(&mut *self.orphans.lock());
        if nodes.is_empty() && orphans.is_empty() {
            return Ok(Done::default());
        }
        for node in &nodes {
            node.is_listed.store(false, SeqCst);
        }
        self.run(nodes, &orphans, None)
    }

    fn run(
        &self,
        nodes: Vec<Arc<Node>>,
        orphans: &[Arc<Node>],
        wanted: Option<&Wanted>,
    ) -> Res<Done> {
        let mut round = Round {
            core: self,
            wanted,
            nodes: Vec::new(),
            seen: HashSet::new(),
            dirs: Vec::new(),
            files: Vec::new(),
            attrs: Vec::new(),
            unlinked: Vec::new(),
            free_lines: Vec::new(),
            free_pages: Vec::new(),
            splits: Vec::new(),
            progress: 0,
            is_full: false,
            left: Marks::new(),
        };
        let mut nodes = nodes.into_iter();
        let collected = nodes.try_for_each(|node| round.collect(node));
        let result = collected.and_then(|()| round.run(orphans));
        let ended = round.end();
        if let Err(e) = result.and(ended) {
            self.failed.store(true, SeqCst);
            return Err(e);
        }
        let done = round.progress + orphans.len();
        match round.is_full && done == 0 {
            true => Err(Fault::Full),
            false => Ok(Done {
                done,
                is_full: round.is_full,
                left: round.left,
            }),
        }
    }

    /// Puts a node back into the list if it has changes.
    fn relist(&self, node: &Arc<Node>) {
        let state = node.state.read();
        let has_own = state.links > 0 && (state.is_dirty || !state.file.is_clean());
        if has_own || state.changes.has_waiting() {
            self.touch(node);
        }
    }
}

impl<P: Pmem> Round<'_, P> {
    /// Takes the changes of a node, and of all new inodes that they name.
    fn collect(&mut self, node: Arc<Node>) -> Res<()> {
        let mut left = vec![(node, false)];
        while let Some((node, is_named)) = left.pop() {
            let address = Arc::as_ptr(&node).addr();
            if self.seen.contains(&address) {
                continue;
            }
            node.pins.fetch_add(1, SeqCst);
            self.nodes.push(Arc::clone(&node));
            let mut state = node.state.write();
            let is_gone = state.links == 0 && !state.is_stored && state.changes.is_empty();
            // A name that is removed later may come first.
            if state.is_dead || (is_gone && !is_named) {
                continue;
            }
            self.seen.insert(address);
            let changes = match self.wanted {
                None => state.changes.take_all(),
                Some(wanted) => state.changes.take(wanted.of(&node)),
            };
            self.collect_node(&node, &mut state)?;
            // A directory that was in this one may be above it now: one lock at a time.
            drop(state);
            for new in changes.iter().filter_map(|c| c.new.as_ref()) {
                if !new.node.state.read().is_stored {
                    left.push((Arc::clone(&new.node), true));
                }
            }
            if !changes.is_empty() {
                self.dirs.push(Dir::new(node, changes));
            }
        }
        Ok(())
    }

    fn collect_node(&mut self, node: &Arc<Node>, state: &mut State) -> Res<()> {
        let core = self.core;
        let line = Line(node.ino.0);
        if state.links == 0 && state.is_stored {
            // A crash shows it under its old name, if at all, and then as it was.
            return Ok(());
        }
        let plan = match state.kind {
            FileType::Regular => match FilePlan::new(core, node, state) {
                Err(Fault::Full) => {
                    self.is_full = true;
                    None
                }
                plan => plan?,
            },
            _ => None,
        };
        self.progress += usize::from(plan.is_some() || state.is_dirty);
        if state.is_stored {
            if state.is_dirty || plan.is_some() {
                self.take_xattr(state)?;
                self.attrs.push(Attrs::new(core, line, state)?);
            }
        } else {
            self.initialise(line, state, plan.as_ref())?;
        }
        state.is_dirty = false;
        self.files.extend(plan);
        Ok(())
    }

    /// Stores a new inode, with all that it has. No persistent pointer leads to it.
    fn initialise(&mut self, line: Line, state: &mut State, plan: Option<&FilePlan>) -> Res<()> {
        let (space, alloc) = (&self.core.space, &self.core.alloc);
        let root = plan.map_or(0, FilePlan::root);
        // Names count themselves when they are published; `.` has no other time.
        state.stored_links = u32::from(state.is_dir());
        let words = state.words(state.stored_links, state.size, root);
        for (n, word) in words.iter().enumerate() {
            space.pm.store_word(line.word(n as u64), *word);
        }
        if !hit(Bug::PublishBeforeInode) {
            space.flush_line(line);
        }
        alloc.mark_line(space, line)?;
        if let Some(first) = state.target {
            for line in space.text_lines(first, state.size as usize)? {
                space.flush_line(line);
                alloc.mark_line(space, line)?;
            }
        }
        self.take_xattr(state)?;
        state.is_stored = true;
        state.file.root = root;
        state.view.slot = state.is_dir().then(|| line.word(inode::ROOT));
        Ok(())
    }

    /// Makes a new page of attributes persistent. The one that it replaces is free when the round
    /// ends.
    fn take_xattr(&mut self, state: &mut State) -> Res<()> {
        if state.xattr == state.stored_xattr {
            return Ok(());
        }
        if let Some(page) = state.xattr {
            self.core.space.flush_page(page);
            self.core.alloc.mark_page(&self.core.space, page)?;
        }
        self.free_pages.extend(state.stored_xattr);
        state.stored_xattr = state.xattr;
        Ok(())
    }

    fn run(&mut self, orphans: &[Arc<Node>]) -> Res<()> {
        let space = &self.core.space;
        self.publish()?;
        for plan in &self.files {
            plan.finish(space);
        }
        self.finish_attrs()?;
        self.lower_links()?;
        self.plan_splits()?;
        if !hit(Bug::NoFinishFence) {
            space.pm.fence(Rule::NullifyBeforeReuse)?;
        }
        let grows = self.files.iter().filter(|plan| plan.grow(space)).count();
        for (slot, table) in &self.splits {
            space.put(*slot, crate::format::Link::table(*table).0);
        }
        let owners = self.finish_modes()?;
        if grows + self.splits.len() + owners > 0 && !hit(Bug::NoGrowFence) {
            space.pm.fence(Rule::DurableBeforeReturn)?;
        }
        for node in orphans {
            self.collect_orphan(node)?;
        }
        for plan in &mut self.files {
            self.free_pages.append(&mut plan.freed);
        }
        self.free()
    }

    /// The owners and times, and the modes that meet no older owner.
    fn finish_attrs(&self) -> Res<()> {
        let space = &self.core.space;
        for attrs in &self.attrs {
            let put = |word: u64, value: u64| -> Res<()> {
                let at = attrs.line.word(word);
                if space.load(at)? != value {
                    space.put(at, value);
                }
                Ok(())
            };
            put(inode::OWNER, attrs.owner)?;
            put(inode::PAGES, attrs.pages)?;
            put(inode::ATIME, attrs.times[0])?;
            put(inode::MTIME, attrs.times[1])?;
            put(inode::CTIME, attrs.times[2])?;
        }
        Ok(())
    }

    /// The modes with set-id bits of inodes that have a new owner.
    fn finish_modes(&self) -> Res<usize> {
        let late = self.attrs.iter().filter(|a| a.early_mode.is_some());
        let mut count = 0;
        for attrs in late {
            self.put_mode(attrs, attrs.mode)?;
            count += 1;
        }
        Ok(count)
    }

    /// Stores a mode. The links stay those that the medium counts.
    fn put_mode(&self, attrs: &Attrs, mode: u32) -> Res<()> {
        let space = &self.core.space;
        let at = attrs.line.word(inode::MODE);
        let old = space.load(at)?;
        let new = u64::from(mode) | old >> 32 << 32;
        if new != old {
            space.put(at, new);
        }
        Ok(())
    }

    /// The modes that come before the owners.
    fn publish_modes(&self) -> Res<()> {
        let mut attrs = self.attrs.iter();
        attrs.try_for_each(|attrs| self.put_mode(attrs, attrs.early_mode.unwrap_or(attrs.mode)))
    }

    fn lower_links(&mut self) -> Res<()> {
        for node in std::mem::take(&mut self.unlinked) {
            let mut state = node.state.write();
            state.stored_links = state.stored_links.saturating_sub(1);
            self.store_links(&node, &state)?;
        }
        Ok(())
    }

    /// Stores the links that persistent names make.
    fn store_links(&self, node: &Node, state: &State) -> Res<()> {
        let at = Line(node.ino.0).word(inode::MODE);
        let rest = self.core.space.load(at)? & 0xffff_ffff;
        let links = u64::from(state.stored_links) << 32;
        self.core.space.pm.store_word(at, rest | links);
        if !hit(Bug::PublishBeforeInode) {
            self.core.space.pm.flush(at, 8);
        }
        Ok(())
    }

    /// Takes the memory of an inode without name and reference.
    fn collect_orphan(&mut self, node: &Arc<Node>) -> Res<()> {
        let core = self.core;
        let mut state = node.state.write();
        core.abandon_staged(&mut state)?;
        files::pages_of(&core.space, state.file.root(), &mut self.free_pages)?;
        self.free_pages.extend(state.stored_xattr);
        if state.xattr != state.stored_xattr {
            self.free_pages.extend(state.xattr);
        }
        if let Some(first) = state.target {
            let lines = core.space.text_lines(first, state.size as usize)?;
            self.free_lines.extend(lines);
        }
        if let Some(slot) = state.view.slot {
            dirs::tables_of(&core.space, slot, 0, &mut self.free_pages)?;
        }
        self.free_lines.push(Line(node.ino.0));
        Ok(())
    }

    fn free(&mut self) -> Res<()> {
        let (space, alloc) = (&self.core.space, &self.core.alloc);
        for line in self.free_lines.drain(..) {
            alloc.clear_line(space, line)?;
        }
        for page in self.free_pages.drain(..) {
            alloc.clear_page(space, page)?;
        }
        Ok(())
    }

    /// Updates the latest view, and lets go of the nodes.
    fn end(&mut self) -> Res<()> {
        for plan in &self.files {
            let mut state = plan.node.state.write();
            plan.end(&mut state);
        }
        for dir in &mut self.dirs {
            let mut state = dir.node.state.write();
            let waiting = dir.changes.iter().map(|change| Arc::clone(&change.done));
            self.left.extend(waiting);
            state.changes.give_back(std::mem::take(&mut dir.changes));
            if state.changes.is_empty() {
                state.view.settle(&self.core.space)?;
            }
        }
        for node in self.nodes.drain(..) {
            self.core.relist(&node);
            self.core.unpin(&node);
        }
        Ok(())
    }
}

impl Attrs {
    fn new<P: Pmem>(core: &Volume<P>, line: Line, state: &State) -> Res<Self> {
        let owner = crate::format::pair(state.uid, state.gid);
        let has_set_id = state.kind == FileType::Regular && state.perm & 0o6000 != 0;
        let is_other = core.space.load(line.word(inode::OWNER))? != owner;
        let mode = |perm| state.mode_word(perm, 0) as u32;
        Ok(Self {
            line,
            early_mode: (has_set_id && is_other).then(|| mode(state.perm & !0o6000)),
            mode: mode(state.perm),
            owner,
            pages: state.pages_word(),
            times: [state.atime.0, state.mtime.0, state.ctime.0].map(|ns| ns as u64),
        })
    }
}

/// A change whose parent is that of a directory that moved.
fn moved(change: &change::Change<Node>) -> Option<Ino> {
    let new = change.new.as_ref().filter(|_| change.moves)?;
    Some(new.node.ino)
}
