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
//! Then the memory of what is gone is free (C2). Several persisters share the work of each step.

mod adopt;
mod dirs;
mod files;
mod gather;
mod one;

use crate::change::{self, Marks};
use crate::error::Res;
use crate::format::{Line, Page, inode};
use crate::node::Node;
use crate::seeded::{Bug, hit};
use crate::volume::Volume;
use dirs::Dir;
use files::FilePlan;
use gather::Attrs;
use hashbrown::{HashMap, HashSet};
use medium::{Pmem, Rule};
use one::Wanted;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use vfs::Ino;

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
    /// By the address of a mark: the directories with changes that wait for it.
    waiters: HashMap<usize, Vec<usize>>,
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
    /// Changes that wait for others.
    left: Marks,
}

/// The result of a round.
#[derive(Default)]
struct Done {
    /// Changes that were made; 0 if the others wait, or there are none.
    done: usize,
    /// Changes that wait for others.
    left: Marks,
}

impl<P: Pmem> Volume<P> {
    /// Makes everything persistent that was changed before this call, and frees what has no use any
    /// more. Other changes may be made meanwhile.
    pub(crate) fn persist(&self) -> Res<()> {
        let _lock = self.persister.write();
        self.intact()?;
        self.persist_held()
    }

    /// As [`persist`](Self::persist); the persister's lock is held.
    fn persist_held(&self) -> Res<()> {
        let mut done = self.persist_dirty()?;
        // Changes that wait for those of a directory that comes later take another round.
        let mut left = std::mem::take(&mut done.left);
        while done.done > 0 && !left.is_empty() {
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
        let _lock = self.persister.write();
        self.intact()?;
        while self.persist_dirty()?.done > 0 {}
        Ok(())
    }

    /// Runs a round with all dirty nodes.
    fn persist_dirty(&self) -> Res<Done> {
        self.begin_round();
        let mut nodes = self.take_dirty();
        if nodes.len() > 1 && hit(Bug::NodeLeftOut) {
            self.dirty.own().lock().extend(nodes.pop());
        }
        self.run_round(nodes)
    }

    fn take_dirty(&self) -> Vec<Arc<Node>> {
        let shards = self.dirty.all();
        shards
            .flat_map(|shard| std::mem::take(&mut *shard.lock()))
            .collect()
    }

    /// Makes changes of at most `limit` nodes persistent, which `draw` chooses from a number of
    /// them. Returns how much was done; 0 if there is nothing to do.
    pub(crate) fn persist_some(
        &self,
        limit: usize,
        draw: &mut dyn FnMut(usize) -> usize,
    ) -> Res<usize> {
        let _lock = self.persister.write();
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
                let mut dirty = self.dirty.own().lock();
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
        let mut own = self.dirty.own().lock();
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
        let unlist = || nodes.iter().for_each(|n| n.is_listed.store(false, SeqCst));
        if hit(Bug::ListedLate) {
            let done = self.run(nodes.clone(), &orphans, None);
            unlist();
            return done;
        }
        unlist();
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
            waiters: HashMap::new(),
            files: Vec::new(),
            attrs: Vec::new(),
            unlinked: Vec::new(),
            free_lines: Vec::new(),
            free_pages: Vec::new(),
            splits: Vec::new(),
            progress: 0,
            left: Marks::new(),
        };
        let gathered = round.gather(nodes);
        let result = gathered.and_then(|()| round.run(orphans));
        let ended = round.end();
        if let Err(e) = result.and(ended) {
            self.failed.store(true, SeqCst);
            return Err(e);
        }
        Ok(Done {
            done: round.progress + orphans.len(),
            left: round.left,
        })
    }

    /// Shares a step of a round, as [`Sharing::share`](crate::sharing::Sharing::share).
    fn share<T: Sync, R: Send>(
        &self,
        items: &[T],
        rule: Option<Rule>,
        work: impl Fn(&[T]) -> Res<R> + Sync,
    ) -> Res<Vec<R>> {
        self.sharing.share(&self.space.pm, items, rule, work)
    }

    /// Puts a node back into the list if it has changes.
    fn relist(&self, node: &Arc<Node>) {
        let state = node.state.read();
        let has_own = state.links > 0 && (state.is_dirty || !state.file.is_clean());
        if has_own || state.changes.has_waiting() {
            self.touch(node, &state);
        }
    }
}

impl<P: Pmem> Round<'_, P> {
    fn run(&mut self, orphans: &[Arc<Node>]) -> Res<()> {
        let space = &self.core.space;
        self.publish()?;
        let (finish, grow) = (
            Some(Rule::NullifyBeforeReuse),
            Some(Rule::DurableBeforeReturn),
        );
        self.core.share(&self.files, finish, |plans| {
            plans.iter().for_each(|plan| plan.finish(space));
            Ok(())
        })?;
        self.core.share(&self.attrs, finish, |attrs| {
            attrs.iter().try_for_each(|attrs| attrs.finish(space))
        })?;
        self.lower_links()?;
        self.plan_splits()?;
        if !hit(Bug::NoFinishFence) {
            space.pm.fence(Rule::NullifyBeforeReuse)?;
        }
        let grows = self.core.share(&self.files, grow, |plans| {
            Ok(plans.iter().filter(|plan| plan.grow(space)).count())
        })?;
        let grows: usize = grows.into_iter().sum();
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
            // Calls walk the tree of the latest view: it must not have what is free.
            plan.end(&mut plan.node.state.write());
            self.free_pages.append(&mut plan.freed);
        }
        self.free()
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
        let unlinked = std::mem::take(&mut self.unlinked);
        let rule = Some(Rule::NullifyBeforeReuse);
        self.core.share(&unlinked, rule, |nodes| {
            nodes
                .iter()
                .try_for_each(|node| self.store_links(node, |links| links.saturating_sub(1)))
        })?;
        Ok(())
    }

    /// Stores another number of links that persistent names make.
    fn store_links(&self, node: &Node, change: fn(u32) -> u32) -> Res<()> {
        let at = Line(node.ino.0).word(inode::MODE);
        let mut state = node.state.write();
        state.stored_links = change(state.stored_links);
        let rest = self.core.space.load(at)? & 0xffff_ffff;
        let links = u64::from(state.stored_links) << 32;
        self.core.space.pm.store_word(at, rest | links);
        // Calls do not wait for the flush.
        drop(state);
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
        for dir in &mut self.dirs {
            let mut state = dir.node.state.write();
            let waiting = dir.changes.iter().map(|change| Arc::clone(&change.done));
            self.left.extend(waiting);
            state.changes.give_back(std::mem::take(&mut dir.changes));
            if state.changes.is_empty() {
                state.view.settle(&self.core.space)?;
            }
        }
        let nodes = std::mem::take(&mut self.nodes);
        let core = self.core;
        core.share(&nodes, None, |nodes| {
            for node in nodes {
                core.relist(node);
                core.unpin(node);
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// A change whose parent is that of a directory that moved.
fn moved(change: &change::Change<Node>) -> Option<Ino> {
    let new = change.new.as_ref().filter(|_| change.moves)?;
    Some(new.node.ino)
}
