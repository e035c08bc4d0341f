//! Publishes the names of a round, and splits long chains.
//!
//! The changes of one chain in one wave are applied to a copy of the chain. Each link that differs
//! then is one 8-byte store: it adds names, removes names, or both, in one step.

use super::{Round, moved};
use crate::change;
use crate::error::{Fault, Res, corrupt};
use crate::format::{FANOUT, Hash, Line, Link, MAX_DEPTH, Page, dentry, inode};
use crate::node::Node;
use crate::seeded::{Bug, hit};
use crate::space::Space;
use crate::view::CHAIN_MAX;
use hashbrown::{HashMap, HashSet};
use medium::{Pmem, Rule};
use smallvec::SmallVec;
use std::sync::Arc;
use vfs::Ino;

pub(super) type Change = change::Change<Node>;
type Named = change::Named<Node>;

/// A directory, and those of its changes that are not persistent yet.
pub(super) struct Dir {
    pub node: Arc<Node>,
    changes: Vec<Waiting>,
    /// Slots whose chains have changed, by address.
    touched: HashMap<u64, (Hash, u32)>,
}

/// A change of a round.
struct Waiting {
    /// `None` if it is made.
    change: Option<Change>,
    /// Marks of the round that it waits for.
    count: usize,
}

/// The place of a change: the index of its directory, and its own among the changes of that.
pub(super) type Place = (usize, usize);

/// A chain of the consistent view, with the changes of a wave.
pub(super) struct Chain {
    slot: u64,
    depth: u32,
    /// The dentries, and whether each is new.
    pub entries: Vec<(Line, Hash, bool)>,
}

/// A store that publishes.
type Store = (u64, Link);

impl Dir {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            changes: Vec::new(),
            touched: HashMap::new(),
        }
    }

    /// Adds changes, in the order in which they were made.
    pub(super) fn add(&mut self, changes: Vec<Change>) {
        let changes = changes.into_iter().map(|change| Waiting {
            change: Some(change),
            count: 0,
        });
        self.changes.extend(changes);
    }

    /// Takes the changes that are not made.
    pub(super) fn take_left(&mut self) -> Vec<Change> {
        let all = std::mem::take(&mut self.changes);
        all.into_iter().filter_map(|one| one.change).collect()
    }
}

/// The consistent slots of tables above the slot of a hash, and that slot.
pub(super) fn path_of<P: Pmem>(
    space: &Space<P>,
    first: u64,
    hash: Hash,
) -> Res<(SmallVec<[u64; 4]>, u64)> {
    let (mut slot, mut above) = (first, SmallVec::new());
    while let Some(page) = Link(space.load(slot)?).as_table() {
        let depth = above.len() as u32;
        if depth == MAX_DEPTH {
            return Err(too_deep(page));
        }
        above.push(slot);
        slot = space.entry(page, hash.index(depth))?;
    }
    Ok((above, slot))
}

/// The consistent slot of a hash, and the number of tables above it.
fn slot_of<P: Pmem>(space: &Space<P>, first: u64, hash: Hash) -> Res<(u64, u32)> {
    let (above, slot) = path_of(space, first, hash)?;
    Ok((slot, above.len() as u32))
}

/// Adds the tables below a slot, which is below `depth` tables.
pub(super) fn tables_of<P: Pmem>(
    space: &Space<P>,
    slot: u64,
    depth: u32,
    out: &mut Vec<Page>,
) -> Res<()> {
    let Some(table) = Link(space.load(slot)?).as_table() else {
        return Ok(());
    };
    if depth == MAX_DEPTH {
        return Err(too_deep(table));
    }
    space.add_page(table, out)?;
    (0..FANOUT).try_for_each(|index| tables_of(space, table.word(index), depth + 1, out))
}

fn too_deep(table: Page) -> Fault {
    corrupt(format_args!("a table of page {} is too deep", table.0))
}

impl Chain {
    fn read<P: Pmem>(space: &Space<P>, first: u64, hash: Hash) -> Res<Self> {
        let (slot, depth) = slot_of(space, first, hash)?;
        Self::from(space, slot, hash, depth)
    }

    /// Reads the chain of a hash whose slot is below `depth` tables.
    pub(super) fn from<P: Pmem>(space: &Space<P>, slot: u64, hash: Hash, depth: u32) -> Res<Self> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        let mut link = space.head(Link(space.load(slot)?), hash, depth)?;
        while let Some(line) = link.in_chain(hash, depth) {
            if !seen.insert(line) {
                return Err(corrupt(format_args!("a chain returns to line {}", line.0)));
            }
            entries.push((line, space.dentry(line)?.hash, false));
            link = space.next(line)?;
        }
        Ok(Self {
            slot,
            depth,
            entries,
        })
    }

    /// Removes and adds dentries. A new one comes after all with its hash or a smaller one.
    fn apply(&mut self, changes: &[&Change]) -> Res<()> {
        let old = changes.iter().filter_map(|change| change.old.as_ref());
        let mut removed: HashSet<Line> = old.map(|old| old.line).collect();
        let new = changes.iter().filter_map(|change| {
            let new = change.new.as_ref()?;
            Some((new.line, change.hash, true))
        });
        self.entries.extend(new);
        self.entries.retain(|(line, ..)| !removed.remove(line));
        self.entries.sort_by_key(|(_, hash, _)| *hash);
        match removed.iter().next() {
            None => Ok(()),
            Some(line) => Err(corrupt(format_args!(
                "the dentry in line {} is in no chain",
                line.0
            ))),
        }
    }

    /// Stores the links of new dentries. Returns the stores that publish them.
    fn link<P: Pmem>(&self, space: &Space<P>) -> Res<Vec<Store>> {
        let mut stores = Vec::new();
        let mut at = self.slot;
        let mut is_new = false;
        for n in 0..=self.entries.len() {
            let next = self
                .entries
                .get(n)
                .map(|(line, hash, _)| Link::dentry(*line, *hash));
            let next = next.unwrap_or(Link::NONE);
            if is_new {
                space.pm.store_word(at, next.0);
            } else if !self.is_same(space, at, next, n)? {
                stores.push((at, next));
            }
            if let Some((line, _, new)) = self.entries.get(n) {
                (at, is_new) = (line.word(dentry::NEXT), *new);
            }
        }
        Ok(stores)
    }

    /// Whether the link at `at` is `next` already. A link out of the chain is its end.
    fn is_same<P: Pmem>(&self, space: &Space<P>, at: u64, next: Link, n: usize) -> Res<bool> {
        let stored = Link(space.load(at)?);
        let own = self.entries.get(n).or_else(|| self.entries.last());
        let ends = own.is_some_and(|(_, hash, _)| stored.in_chain(*hash, self.depth).is_none());
        Ok(stored == next || (next == Link::NONE && at != self.slot && ends))
    }
}

/// The changes that a wave makes persistent.
struct Wave {
    /// The changes, each with the index of its directory.
    changes: Vec<(usize, Change)>,
    /// The stores that publish them.
    stores: Vec<Store>,
}

/// The changes of one chain in a wave.
struct OfChain<'w> {
    slot: u64,
    depth: u32,
    changes: Vec<&'w Change>,
}

impl OfChain<'_> {
    /// Stores the links of new dentries. Returns the stores that publish them.
    fn link<P: Pmem>(&self, space: &Space<P>) -> Res<Vec<Store>> {
        let hash = self.changes[0].hash;
        let mut chain = Chain::from(space, self.slot, hash, self.depth)?;
        chain.apply(&self.changes)?;
        chain.link(space)
    }
}

impl<P: Pmem> Round<'_, P> {
    /// Initialises, and publishes all names that wait for nothing outside of the round.
    pub(super) fn publish(&mut self) -> Res<()> {
        let core = self.core;
        let space = &core.space;
        self.note_waiters();
        let mut changes = self.take_ready();
        let mut is_first = true;
        loop {
            if changes.is_empty() {
                // Another round may have made persistent what some wait for.
                changes = self.take_ready();
            }
            let wave = self.prepare_wave(changes)?;
            if wave.changes.is_empty() && !is_first {
                return Ok(());
            }
            if !hit(Bug::NoInitFence) {
                space.pm.fence(Rule::InitialiseBeforePoint)?;
            }
            if is_first {
                self.publish_modes()?;
                self.files.iter().for_each(|plan| plan.cut(space));
            }
            core.share(&wave.stores, Some(Rule::LinkBeforeUnlink), |stores| {
                let stores = stores.iter();
                stores.for_each(|(at, link)| space.put(*at, link.0));
                Ok(())
            })?;
            if !hit(Bug::NoPublishFence) {
                space.pm.fence(Rule::LinkBeforeUnlink)?;
            }
            changes = self.end_wave(wave.changes)?;
            is_first = false;
        }
    }

    /// Makes the dentries of the next changes ready to be published.
    fn prepare_wave(&mut self, changes: Vec<(usize, Change)>) -> Res<Wave> {
        let (core, rule) = (self.core, Some(Rule::InitialiseBeforePoint));
        let places = core.share(&changes, rule, |changes| {
            let changes = changes.iter();
            let places = changes.map(|(n, change)| self.prepare_change(&self.dirs[*n], change));
            places.collect::<Res<Vec<_>>>()
        })?;
        let mut chains: Vec<OfChain<'_>> = Vec::new();
        let mut numbers: HashMap<u64, usize> = HashMap::new();
        for ((n, change), (slot, depth)) in changes.iter().zip(places.into_iter().flatten()) {
            let number = *numbers.entry(slot).or_insert(chains.len());
            if number == chains.len() {
                let changes = Vec::new();
                chains.push(OfChain {
                    slot,
                    depth,
                    changes,
                });
                let touched = &mut self.dirs[*n].touched;
                touched.insert(slot, (change.hash, depth));
            }
            chains[number].changes.push(change);
        }
        let stores = core.share(&chains, rule, |chains| {
            let stores = chains.iter().map(|chain| chain.link(&core.space));
            Ok(stores.collect::<Res<Vec<_>>>()?.concat())
        })?;
        // A flush of a dentry covers its links, too.
        core.share(&changes, rule, |changes| {
            let new = changes.iter().filter_map(|(_, change)| change.new.as_ref());
            let new = new.filter(|_| !hit(Bug::PublishBeforeDentry));
            new.for_each(|new| core.space.flush_line(new.line));
            Ok(())
        })?;
        Ok(Wave {
            changes,
            stores: stores.concat(),
        })
    }

    /// Notes which changes wait, and for what. So a wave looks only at those for which the one before it
    /// has made something: a long sequence of moves has a wave for each.
    fn note_waiters(&mut self) {
        let waiters = &mut self.waiters;
        for (number, dir) in self.dirs.iter_mut().enumerate() {
            for (index, one) in dir.changes.iter_mut().enumerate() {
                let after = one.change.iter().flat_map(|change| &change.after);
                for mark in after.filter(|mark| !mark.is_done()) {
                    let own = waiters.entry(Arc::as_ptr(mark).addr());
                    own.or_default().push((number, index));
                    one.count += 1;
                }
            }
        }
    }

    /// Takes all changes that wait for nothing.
    fn take_ready(&mut self) -> Vec<(usize, Change)> {
        let mut wave = Vec::new();
        for (number, dir) in self.dirs.iter_mut().enumerate() {
            let all = dir.changes.iter_mut().map(|one| &mut one.change);
            let is_ready = |change: &mut Change| change.is_ready() || hit(Bug::RemoveBeforeAdd);
            let ready = all.filter_map(|change| change.take_if(is_ready));
            wave.extend(ready.map(|change| (number, change)));
        }
        wave
    }

    /// Takes those of the changes at these places that have waited for nothing else.
    fn take_freed(&mut self, mut places: Vec<Place>) -> Vec<(usize, Change)> {
        // In the same order each time.
        places.sort_unstable();
        let ready = places.into_iter().filter_map(|(number, index)| {
            let one = &mut self.dirs[number].changes[index];
            one.count = one.count.saturating_sub(1);
            let change = one.change.take_if(|_| one.count == 0)?;
            Some((number, change))
        });
        ready.collect()
    }

    /// Makes what a change needs persistent. Returns the slot of its chain, and the number of tables
    /// above it.
    fn prepare_change(&self, dir: &Dir, change: &Change) -> Res<(u64, u32)> {
        let space = &self.core.space;
        if let Some(new) = &change.new {
            self.prepare(&dir.node, new)?;
        }
        if let Some((old, heir)) = change.old.as_ref().zip(change.heir) {
            self.give_parent(dir, &old.node, heir)?;
        }
        if let Some(old) = change.old.as_ref().filter(|_| hit(Bug::FreeBeforeRemoval)) {
            self.core.alloc.clear_line(space, old.line)?;
        }
        let first = Line(dir.node.ino.0).word(inode::ROOT);
        slot_of(space, first, change.hash)
    }

    /// Gives a directory with several names another parent, if it is about to lose the name in its own.
    /// The name in `heir` is persistent, since removals wait for all new names.
    fn give_parent(&self, dir: &Dir, node: &Node, heir: Ino) -> Res<()> {
        let space = &self.core.space;
        let at = Line(node.ino.0).word(inode::SIZE);
        if space.load(at)? == dir.node.ino.0 && !hit(Bug::ParentKept) {
            space.put(at, heir.0);
        }
        Ok(())
    }

    /// Makes a name and a link count persistent. The dentry itself is flushed when it has its link.
    fn prepare(&self, dir: &Arc<Node>, new: &Named) -> Res<()> {
        let (space, alloc) = (&self.core.space, &self.core.alloc);
        alloc.mark_line(space, new.line)?;
        let entry = space.dentry(new.line)?;
        for line in space.lines_of_name(&entry)? {
            if !hit(Bug::PublishBeforeName) {
                space.flush_line(line);
            }
            alloc.mark_line(space, line)?;
        }
        if new.node.is_dir && new.node.state.read().stored_links == 1 {
            // Its first name: it may have had others since.
            space.put(Line(new.node.ino.0).word(inode::SIZE), dir.ino.0);
        }
        for node in counted_by(dir, new) {
            self.store_links(node, |links| links.saturating_add(1))?;
        }
        Ok(())
    }

    /// Marks changes as persistent, and takes the memory of what they removed. Returns the changes that
    /// have waited for these alone.
    fn end_wave(&mut self, wave: Vec<(usize, Change)>) -> Res<Vec<(usize, Change)>> {
        let space = &self.core.space;
        let mut next = Vec::new();
        for (n, change) in wave {
            self.progress += 1;
            if let Some(ino) = moved(&change) {
                let parent = self.dirs[n].node.ino;
                space.put(Line(ino.0).word(inode::SIZE), parent.0);
            }
            if let Some(old) = &change.old {
                let entry = space.dentry(old.line)?;
                self.free_lines.extend(space.lines_of_name(&entry)?);
                self.free_lines.push(old.line);
                let counted = counted_by(&self.dirs[n].node, old);
                self.unlinked.extend(counted.cloned());
            }
            change.done.finish();
            let waiters = self.waiters.remove(&Arc::as_ptr(&change.done).addr());
            next.extend(waiters.into_iter().flatten());
            // The round uses the nodes now, until it ends.
            let named = [change.old, change.new].into_iter().flatten();
            self.nodes.extend(named.map(|named| named.node));
        }
        Ok(self.take_freed(next))
    }

    /// Fills tables for the chains that have become long. Memory that is short only leaves them long.
    pub(super) fn plan_splits(&mut self) -> Res<()> {
        let core = self.core;
        let space = &core.space;
        let slots = self.dirs.iter().flat_map(|dir| {
            let mut touched: Vec<_> = dir.touched.iter().collect();
            // A replay of a crash has the same order.
            touched.sort_unstable_by_key(|(slot, _)| **slot);
            let places = touched.into_iter();
            places.map(move |(_, (hash, depth))| (dir, *hash, *depth))
        });
        let slots: Vec<_> = slots.collect();
        let rule = Some(Rule::NullifyBeforeReuse);
        let splits = core.share(&slots, rule, |slots| {
            let mut splits = Vec::new();
            for (dir, hash, depth) in slots {
                let first = Line(dir.node.ino.0).word(inode::ROOT);
                let chain = Chain::read(space, first, *hash)?;
                if chain.entries.len() <= CHAIN_MAX || *depth == MAX_DEPTH {
                    continue;
                }
                let Ok(table) = core.alloc.take_page(space) else {
                    continue;
                };
                chain.fill(space, table);
                dir.node.state.write().view.keep_chain(space, *hash)?;
                space.flush_page(table);
                core.alloc.mark_page(space, table)?;
                splits.push((chain.slot, table));
            }
            Ok(splits)
        })?;
        self.splits.extend(splits.into_iter().flatten());
        Ok(())
    }
}

impl Chain {
    /// Fills a table with the parts of the chain.
    fn fill<P: Pmem>(&self, space: &Space<P>, table: Page) {
        space.zero_page(table);
        let mut last = None;
        for (line, hash, _) in &self.entries {
            let index = hash.index(self.depth);
            if last != Some(index) {
                space
                    .pm
                    .store_word(table.word(index), Link::dentry(*line, *hash).0);
            }
            last = Some(index);
        }
    }
}

/// The inodes whose links count a name: its own, and the parent of a directory, for `..`.
fn counted_by<'n>(dir: &'n Arc<Node>, named: &'n Named) -> impl Iterator<Item = &'n Arc<Node>> {
    let parent = named.node.is_dir.then_some(dir);
    std::iter::once(&named.node).chain(parent)
}
