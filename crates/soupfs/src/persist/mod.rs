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
//!
//! Many changes are made in several rounds (`portions`).

mod adopt;
mod dirs;
mod files;
mod gather;
mod one;
mod portions;

use crate::change::{self, Marks};
use crate::error::Res;
use crate::format::{Line, Page, inode};
use crate::node::Node;
use crate::nodes::Uses;
use crate::seeded::{Bug, hit};
use crate::volume::Volume;
use dirs::{Dir, Place};
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
    /// Names and pages of data that it takes, if it takes all changes of its nodes otherwise.
    units: usize,
    /// Nodes with changes that it has left for other rounds.
    more: Vec<Arc<Node>>,
    /// All nodes of the round; each is pinned.
    nodes: Vec<Arc<Node>>,
    /// Their addresses: a number may have another node by now.
    seen: HashSet<usize>,
    dirs: Vec<Dir>,
    /// By the address of a directory: its index.
    numbers: HashMap<usize, usize>,
    /// By the address of a mark: the changes that wait for it.
    waiters: HashMap<usize, Vec<Place>>,
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
    /// Nodes with changes that were left for other rounds.
    more: Vec<Arc<Node>>,
}

impl<P: Pmem> Volume<P> {
    /// Runs a round with nodes that are not in the list any more.
    fn run_round(&self, nodes: Vec<Arc<Node>>, units: usize) -> Res<Done> {
        if nodes.is_empty() {
            return Ok(Done::default());
        }
        let unlist = || nodes.iter().for_each(|n| n.is_listed.store(false, SeqCst));
        if hit(Bug::ListedLate) {
            let done = self.run(nodes.clone(), None, units);
            unlist();
            return done;
        }
        unlist();
        self.run(nodes, None, units)
    }

    fn run(&self, nodes: Vec<Arc<Node>>, wanted: Option<&Wanted>, units: usize) -> Res<Done> {
        let mut round = Round {
            core: self,
            wanted,
            units,
            more: Vec::new(),
            nodes: Vec::new(),
            seen: HashSet::new(),
            dirs: Vec::new(),
            numbers: HashMap::new(),
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
        let result = gathered.and_then(|()| round.run());
        let ended = round.end();
        if let Err(e) = result.and(ended) {
            self.failed.store(true, SeqCst);
            return Err(e);
        }
        Ok(Done {
            done: round.progress,
            left: round.left,
            more: round.more,
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
        let is_clean = state.file.is_clean();
        let has_own = match state.links {
            0 => state.is_gone() && !is_clean,
            _ => state.is_dirty || !is_clean,
        };
        if has_own || state.changes.has_waiting() {
            self.touch(node, &state);
        }
    }
}

impl<P: Pmem> Round<'_, P> {
    fn run(&mut self) -> Res<()> {
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

    fn free(&mut self) -> Res<()> {
        let lines = std::mem::take(&mut self.free_lines);
        let pages = std::mem::take(&mut self.free_pages);
        self.core.free_all(lines, pages)
    }

    /// Updates the latest view, and lets go of the nodes.
    fn end(&mut self) -> Res<()> {
        for dir in &mut self.dirs {
            let left = dir.take_left();
            let mut state = dir.node.state.write();
            let waiting = left.iter().map(|change| Arc::clone(&change.done));
            self.left.extend(waiting);
            state.changes.give_back(left);
            if state.changes.is_empty() {
                state.view.settle(&self.core.space)?;
            }
        }
        let nodes = std::mem::take(&mut self.nodes);
        let core = self.core;
        // Those with more changes come into another round soon, as if they were listed.
        self.more
            .iter()
            .for_each(|node| node.is_listed.store(true, SeqCst));
        core.share(&nodes, None, |nodes| {
            for node in nodes {
                core.relist(node);
                core.end_use(node, Uses::LOST_PIN);
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
