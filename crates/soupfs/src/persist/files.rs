//! The contents of a file in a round.
//!
//! New nodes of the tree are filled before anything leads to them. Stores to nodes that the medium
//! reaches wait until the data are persistent, and until a cut size is.

use crate::error::{Fault, Res, corrupt};
use crate::format::{FANOUT, Line, MAX_HEIGHT, Page, Root, TABLE_BITS, inode};
use crate::node::{Node, State};
use crate::seeded::{Bug, hit};
use crate::space::Space;
use crate::staged::Staged;
use crate::volume::Volume;
use medium::Pmem;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The changes of a file in a round.
pub(super) struct FilePlan {
    pub node: Arc<Node>,
    line: Line,
    /// The staged blocks that it takes.
    taken: Vec<(u64, Staged)>,
    root: Root,
    old_root: Root,
    /// Stores to nodes that the medium reaches.
    stores: Vec<(u64, u64)>,
    /// The size on the medium, the least one since, and the new one.
    sizes: [u64; 3],
    pub freed: Vec<Page>,
}

/// A tree with changes that are not stored.
struct Tree<'c, P> {
    core: &'c Volume<P>,
    root: Root,
    /// Stores to nodes that the medium reaches.
    stores: BTreeMap<u64, u64>,
    /// Nodes that nothing reaches yet.
    fresh: BTreeSet<Page>,
    /// Pages for more of them.
    spare: Vec<Page>,
    freed: Vec<Page>,
    /// Pages of data that the tree did not have.
    added: u32,
}

impl FilePlan {
    /// Takes what is staged, and flushes it. `None`: nothing to do.
    pub(super) fn new<P: Pmem>(
        core: &Volume<P>,
        node: &Arc<Node>,
        state: &mut State,
    ) -> Res<Option<Self>> {
        let line = Line(node.ino.0);
        let stored_size = match state.is_stored {
            true => core.space.load(line.word(inode::SIZE))?,
            false => state.size,
        };
        if state.file.is_clean() && stored_size == state.size {
            return Ok(None);
        }
        let mut tree = Tree {
            core,
            root: state.file.root(),
            stores: BTreeMap::new(),
            fresh: BTreeSet::new(),
            spare: std::mem::take(&mut state.file.nodes),
            freed: Vec::new(),
            added: 0,
        };
        flush_dirty(core, state, &tree)?;
        tree.apply(state)?;
        tree.flush()?;
        if hit(Bug::FreeBeforeCut) {
            let mut freed = tree.freed.iter();
            freed.try_for_each(|page| core.alloc.clear_page(&core.space, *page))?;
        }
        let taken: Vec<_> = state.file.staged.from(0).collect();
        for (block, staged) in &taken {
            if let Some(page) = staged.page() {
                if !hit(Bug::SizeBeforeData) {
                    core.space.flush_block(page, *block, state.size);
                }
                if !hit(Bug::BitAfterPointer) {
                    core.alloc.mark_page(&core.space, page)?;
                }
            }
        }
        state.file.staged.take();
        let pages = u64::from(state.pages) + u64::from(tree.added) + tree.fresh.len() as u64;
        state.pages = (pages - (tree.freed.len() as u64).min(pages)) as u32;
        state.file.lost_pages = 0;
        let cuts = [state.file.cut.take(), state.file.bound.take()];
        state.file.taken_cut = cuts.into_iter().flatten().min();
        let least = state.file.cut_size.take().unwrap_or(stored_size);
        Ok(Some(Self {
            node: Arc::clone(node),
            line,
            taken,
            old_root: state.file.root(),
            root: tree.root,
            stores: tree.stores.into_iter().collect(),
            sizes: [stored_size, least.min(stored_size), state.size],
            freed: tree.freed,
        }))
    }

    /// The root of a file that is stored first.
    pub(super) fn root(&self) -> u64 {
        self.root.0
    }

    /// Stores the least size that the file has had.
    pub(super) fn cut<P: Pmem>(&self, space: &Space<P>) {
        let [stored, least, _] = self.sizes;
        if least != stored {
            space.put(self.line.word(inode::SIZE), least);
        }
    }

    /// Stores the pointers.
    pub(super) fn finish<P: Pmem>(&self, space: &Space<P>) {
        for (at, page) in &self.stores {
            space.put(*at, *page);
        }
        if self.root != self.old_root {
            space.put(self.line.word(inode::ROOT), self.root.0);
        }
    }

    /// Stores the new size, if it is greater. Returns whether it is.
    pub(super) fn grow<P: Pmem>(&self, space: &Space<P>) -> bool {
        let [_, least, new] = self.sizes;
        if new != least {
            space.put(self.line.word(inode::SIZE), new);
        }
        new != least
    }

    /// Removes from the latest view what the medium has now.
    pub(super) fn end(&self, state: &mut State) {
        state.file.taken_cut = None;
        state.file.root = self.root.0;
        for (block, staged) in &self.taken {
            let now = state.file.staged.get(*block);
            let is_same = |now: Staged| now.page() == staged.page() || hit(Bug::StagedForgotten);
            if now.is_some_and(is_same) {
                state.file.staged.remove(*block);
            }
        }
        state.file.settle();
    }
}

/// Flushes blocks of the tree with new bytes, and those that an earlier round has taken.
fn flush_dirty<P: Pmem>(core: &Volume<P>, state: &mut State, tree: &Tree<'_, P>) -> Res<()> {
    for block in std::mem::take(&mut state.file.dirty) {
        if let Some(page) = core.space.block(tree.root, block)? {
            core.space.flush_block(page, block, state.size);
        }
    }
    Ok(())
}

/// Adds all pages of a tree, those of its data too.
pub(super) fn pages_of<P: Pmem>(space: &Space<P>, root: Root, out: &mut Vec<Page>) -> Res<()> {
    match root.page() {
        None => Ok(()),
        Some(page) if root.height() <= MAX_HEIGHT => below(space, page, root.height(), out),
        Some(_) => Err(corrupt(format_args!(
            "a tree has the height {}",
            root.height()
        ))),
    }
}

fn below<P: Pmem>(space: &Space<P>, page: Page, height: u32, out: &mut Vec<Page>) -> Res<()> {
    space.add_page(page, out)?;
    if height == 0 {
        return Ok(());
    }
    for index in 0..FANOUT {
        match space.load(page.word(index))? {
            0 => {}
            next => below(space, Page(next), height - 1, out)?,
        }
    }
    Ok(())
}

impl<P: Pmem> Tree<'_, P> {
    fn apply(&mut self, state: &State) -> Res<()> {
        let cuts = [state.file.cut, state.file.bound];
        if let Some(cut) = cuts.into_iter().flatten().min() {
            self.cut(cut)?;
        }
        for (block, staged) in state.file.staged.from(0) {
            match staged {
                Staged::Page { page, .. } => self.link(block, page)?,
                Staged::Hole => self.unlink(block)?,
            }
        }
        Ok(())
    }

    fn load(&self, at: u64) -> Res<u64> {
        match self.stores.get(&at) {
            Some(value) => Ok(*value),
            None => self.core.space.load(at),
        }
    }

    fn set(&mut self, node: Page, at: u64, value: u64) {
        match self.fresh.contains(&node) {
            true => self.core.space.pm.store_word(at, value),
            false => drop(self.stores.insert(at, value)),
        }
    }

    fn new_node(&mut self) -> Res<Page> {
        let page = match self.spare.pop() {
            Some(page) => page,
            None => self.core.alloc.take_page(&self.core.space)?,
        };
        self.core.space.zero_page(page);
        self.fresh.insert(page);
        Ok(page)
    }

    fn link(&mut self, block: u64, page: Page) -> Res<()> {
        self.raise(block)?;
        let (mut node, mut height) = match self.root.page() {
            Some(node) if self.root.height() > 0 => (node, self.root.height()),
            old => {
                self.root = Root::new(Some(page), 0);
                self.replaced(old, page);
                return Ok(());
            }
        };
        loop {
            height -= 1;
            let at = self
                .core
                .space
                .entry(node, block >> (TABLE_BITS * height))?;
            let next = self.load(at)?;
            if height == 0 {
                self.set(node, at, page.0);
                self.replaced((next != 0).then_some(Page(next)), page);
                return Ok(());
            }
            node = match next {
                0 => {
                    let made = self.new_node()?;
                    self.set(node, at, made.0);
                    made
                }
                next => self.core.space.page(Page(next))?,
            };
        }
    }

    fn replaced(&mut self, old: Option<Page>, new: Page) {
        if old != Some(new) {
            self.added += 1;
            self.freed.extend(old);
        }
    }

    /// Makes the tree high enough for a block.
    fn raise(&mut self, block: u64) -> Res<()> {
        if self.root.page().is_none() {
            let height = Root::height_for(block).ok_or(Fault::Errno(vfs::Errno::FBIG))?;
            if height > 0 {
                self.root = Root::new(Some(self.new_node()?), height);
            }
            return Ok(());
        }
        while block >= Root::span(self.root.height()) {
            let node = self.new_node()?;
            let below = self.root.page().map_or(0, |page| page.0);
            self.core.space.pm.store_word(node.word(0), below);
            self.root = Root::new(Some(node), self.root.height() + 1);
        }
        Ok(())
    }

    fn unlink(&mut self, block: u64) -> Res<()> {
        let (mut node, mut height) = match self.root.page() {
            Some(page) if block < Root::span(self.root.height()) => (page, self.root.height()),
            _ => return Ok(()),
        };
        if height == 0 {
            self.root = Root(0);
            self.freed.push(node);
            return Ok(());
        }
        loop {
            height -= 1;
            let at = self
                .core
                .space
                .entry(node, block >> (TABLE_BITS * height))?;
            let next = match self.load(at)? {
                0 => return Ok(()),
                next => self.core.space.page(Page(next))?,
            };
            if height == 0 {
                self.set(node, at, 0);
                self.freed.push(next);
                return Ok(());
            }
            node = next;
        }
    }

    /// Removes all blocks from `cut` on.
    fn cut(&mut self, cut: u64) -> Res<()> {
        let Some(page) = self.root.page() else {
            return Ok(());
        };
        if cut == 0 {
            self.free_below(page, self.root.height())?;
            self.root = Root(0);
            return Ok(());
        }
        self.cut_node(page, self.root.height(), 0, cut)
    }

    fn cut_node(&mut self, node: Page, height: u32, first: u64, cut: u64) -> Res<()> {
        if height == 0 {
            return Ok(());
        }
        let span = Root::span(height - 1);
        for index in 0..FANOUT {
            let start = first + index * span;
            if start + span <= cut {
                continue;
            }
            let at = self.core.space.entry(node, index)?;
            let next = match self.load(at)? {
                0 => continue,
                next => self.core.space.page(Page(next))?,
            };
            if start >= cut {
                self.free_below(next, height - 1)?;
                self.set(node, at, 0);
            } else {
                self.cut_node(next, height - 1, start, cut)?;
            }
        }
        Ok(())
    }

    fn free_below(&mut self, page: Page, height: u32) -> Res<()> {
        below(&self.core.space, page, height, &mut self.freed)
    }

    /// Flushes the new nodes, and gives back the pages that they did not take.
    fn flush(&mut self) -> Res<()> {
        let (space, alloc) = (&self.core.space, &self.core.alloc);
        for page in &self.fresh {
            space.flush_page(*page);
            alloc.mark_page(space, *page)?;
        }
        let mut spare = self.spare.drain(..);
        spare.try_for_each(|page| alloc.abandon_page(space, page))
    }
}
