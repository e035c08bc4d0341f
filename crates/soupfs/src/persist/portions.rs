//! Rounds that make all changes persistent, in portions.
//!
//! A round holds the persister's lock, so that each `fsync` waits for it. So each round takes only some of
//! the dirty nodes, and of a directory with many changes only the oldest ones. Between two rounds others
//! get the lock. The rest of the changes stays with the directory, so that an `fsync` that needs some of
//! them takes them. Any part of the changes may come first, since each has the marks of those that it waits
//! for. The memory of orphans is freed without the lock.

use super::{Done, dirs, files};
use crate::change::Marks;
use crate::error::Res;
use crate::format::{Line, Page};
use crate::node::Node;
use crate::seeded::{Bug, hit};
use crate::sync::release_fairly;
use crate::volume::Volume;
use hashbrown::HashSet;
use medium::Pmem;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// No bound of a round.
const ALL: usize = usize::MAX;
/// Passes in portions before the last round, each with the changes that were made during the one before.
const SHORTER: usize = 4;

impl<P: Pmem> Volume<P> {
    /// Makes everything persistent that was changed before this call, and frees what has no use any
    /// more. Other changes may be made meanwhile.
    pub(crate) fn persist(&self) -> Res<()> {
        let _rounds = self.rounds.lock();
        let (mut done, portions) = self.persist_portions()?;
        let mut left = std::mem::take(&mut done.left);
        // Between portions calls can move older changes to where the rounds have been: a name that was cancelled
        // has a later change, and an fsync leaves the rest of a new directory. Only a round of its own finds all.
        let mut must_end = portions > 1 && !hit(Bug::NoLastRound);
        if must_end {
            left.extend(self.shorten()?);
        }
        // So do changes that wait for those of a directory that comes later.
        while must_end || done.done > 0 && !left.is_empty() {
            must_end = false;
            done = self.persist_dirty()?;
            let still: HashSet<_> = done.left.iter().map(Arc::as_ptr).collect();
            left.retain(|mark| still.contains(&Arc::as_ptr(mark)));
        }
        self.free_orphans()?;
        Ok(())
    }

    /// Runs rounds in portions until few changes are left for one round. Returns those that wait for others.
    fn shorten(&self) -> Res<Marks> {
        let mut left = Marks::new();
        for _ in 0..SHORTER {
            let (done, portions) = self.persist_portions()?;
            left.extend(done.left);
            if portions <= 1 {
                break;
            }
        }
        Ok(left)
    }

    /// As [`persist`](Self::persist), until there are no changes.
    pub(crate) fn persist_all(&self) -> Res<()> {
        let _rounds = self.rounds.lock();
        while self.persist_dirty()?.done + self.free_orphans()? > 0 {}
        Ok(())
    }

    /// Runs a round with all dirty nodes.
    fn persist_dirty(&self) -> Res<Done> {
        let _lock = self.persister.write();
        self.intact()?;
        let nodes = self.begin_rounds();
        self.run_round(nodes, ALL)
    }

    /// Runs rounds with all dirty nodes, in portions. Others run between them. Returns the number of rounds, too.
    fn persist_portions(&self) -> Res<(Done, usize)> {
        let mut first = Some(self.persister.write());
        let mut queue = VecDeque::from(self.begin_rounds());
        let (mut all, mut portions) = (Done::default(), 0);
        while !queue.is_empty() {
            portions += 1;
            let nodes = self.next_portion(&mut queue);
            let lock = first.take().unwrap_or_else(|| self.persister.write());
            self.intact()?;
            let mut done = self.run_round(nodes, self.portion.units)?;
            release_fairly(lock);
            all.done += done.done;
            all.left.append(&mut done.left);
            // A directory comes before those in it.
            done.more
                .into_iter()
                .rev()
                .for_each(|node| queue.push_front(node));
        }
        drop(first);
        self.intact()?;
        Ok((all, portions))
    }

    /// Takes all dirty nodes.
    fn begin_rounds(&self) -> Vec<Arc<Node>> {
        self.begin_round();
        let mut nodes = self.take_dirty();
        // A call lists a directory again while a round takes a portion of its changes.
        let mut seen = HashSet::new();
        nodes.retain(|node| seen.insert(Arc::as_ptr(node)));
        if nodes.len() > 1 && hit(Bug::NodeLeftOut) {
            self.dirty.own().lock().extend(nodes.pop());
        }
        nodes
    }

    /// Takes the next nodes for a round: few enough, and with little data.
    fn next_portion(&self, queue: &mut VecDeque<Arc<Node>>) -> Vec<Arc<Node>> {
        let (mut nodes, mut units) = (Vec::new(), 0);
        while nodes.len() < self.portion.nodes
            && units < self.portion.units
            && let Some(node) = queue.pop_front()
        {
            units += node.state.read().file.dirty_pages();
            nodes.push(node);
        }
        nodes
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
        let _rounds = self.rounds.lock();
        let _lock = self.persister.write();
        let mut aside = Vec::new();
        let mut done = 0;
        while done == 0 {
            let nodes = self.choose(limit, draw);
            if nodes.is_empty() {
                break;
            }
            done = self.free_orphans()? + self.run_round(nodes.clone(), ALL)?.done;
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

    /// Frees the inodes that have neither name nor reference. Returns their number. A round has removed
    /// their names, so that no other one uses them.
    fn free_orphans(&self) -> Res<usize> {
        let orphans = std::mem::take(&mut *self.orphans.lock());
        for node in &orphans {
            if let Err(e) = self.free_orphan(node) {
                self.failed.store(true, SeqCst);
                return Err(e);
            }
        }
        Ok(orphans.len())
    }

    fn free_orphan(&self, node: &Arc<Node>) -> Res<()> {
        let (mut lines, mut pages) = (vec![Line(node.ino.0)], Vec::new());
        let mut state = node.state.write();
        self.abandon_staged(&mut state)?;
        files::pages_of(&self.space, state.file.root(), &mut pages)?;
        pages.extend(state.stored_xattr);
        if state.xattr != state.stored_xattr {
            pages.extend(state.xattr);
        }
        if let Some(first) = state.target {
            lines.extend(self.space.text_lines(first, state.size as usize)?);
        }
        if let Some(slot) = state.view.slot {
            dirs::tables_of(&self.space, slot, 0, &mut pages)?;
        }
        self.free_all(lines, pages)
    }

    /// Frees memory to which nothing persistent leads.
    pub(super) fn free_all(&self, lines: Vec<Line>, pages: Vec<Page>) -> Res<()> {
        let (space, alloc) = (&self.space, &self.alloc);
        let mut lines = lines.into_iter();
        lines.try_for_each(|line| alloc.clear_line(space, line))?;
        let mut pages = pages.into_iter();
        pages.try_for_each(|page| alloc.clear_page(space, page))
    }
}
