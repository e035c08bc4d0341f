//! Takes the changes of nodes for a round, and makes new structures persistent to which no persistent
//! pointer leads.

use super::Round;
use super::dirs::{Change, Dir};
use super::files::FilePlan;
use super::one::Wanted;
use crate::error::Res;
use crate::format::{Line, Page, inode};
use crate::node::{Node, State};
use crate::nodes::Uses;
use crate::seeded::{Bug, hit};
use crate::space::Space;
use crate::volume::Volume;
use medium::{Pmem, Rule};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use vfs::FileType;

/// Attributes of a stored inode that change.
pub(super) struct Attrs {
    pub line: Line,
    /// The mode before the owner changes, if a set-id bit must not meet the new owner.
    pub early_mode: Option<u32>,
    /// The low half of the word with mode and links.
    pub mode: u32,
    owner: u64,
    pages: u64,
    times: [u64; 3],
}

/// The changes of some nodes of a round, taken by one persister.
struct Part<'c, P> {
    core: &'c Volume<P>,
    wanted: Option<&'c Wanted>,
    /// Names and pages of data that the round may still take.
    units: &'c AtomicUsize,
    dirs: Vec<(Arc<Node>, Vec<Change>)>,
    files: Vec<FilePlan>,
    attrs: Vec<Attrs>,
    free_pages: Vec<Page>,
    progress: usize,
    /// Inodes that are not stored yet, and that the changes name.
    named: Vec<Arc<Node>>,
    /// Nodes with more changes.
    more: Vec<Arc<Node>>,
    /// The addresses of nodes that are taken only if a change names them.
    skipped: Vec<usize>,
}

/// The reason why a round visits a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// It is in the list of dirty nodes.
    Listed,
    /// One of the changes of the round names it.
    Named,
    /// The last visit left some of its changes.
    Again,
}

impl<P: Pmem> Round<'_, P> {
    /// Takes the changes of nodes, and of all new inodes that they name.
    pub(super) fn gather(&mut self, nodes: Vec<Arc<Node>>) -> Res<()> {
        let (core, wanted) = (self.core, self.wanted);
        let units = AtomicUsize::new(self.units);
        let new_part = || Part {
            core,
            wanted,
            units: &units,
            dirs: Vec::new(),
            files: Vec::new(),
            attrs: Vec::new(),
            free_pages: Vec::new(),
            progress: 0,
            named: Vec::new(),
            more: Vec::new(),
            skipped: Vec::new(),
        };
        let listed = nodes.into_iter().map(|node| (node, Visit::Listed));
        let mut left: Vec<_> = listed.collect();
        while !left.is_empty() {
            left.retain(|(node, visit)| {
                *visit == Visit::Again || self.seen.insert(Arc::as_ptr(node).addr())
            });
            for (node, _) in left.iter().filter(|(_, visit)| *visit != Visit::Again) {
                core.nodes.count(node, Uses::PIN);
                self.nodes.push(Arc::clone(node));
            }
            let parts = core.share(&left, Some(Rule::InitialiseBeforePoint), |nodes| {
                let mut part = new_part();
                let mut nodes = nodes.iter();
                nodes.try_for_each(|(node, visit)| part.visit(node, *visit))?;
                Ok(part)
            })?;
            left.clear();
            for mut part in parts {
                for address in &part.skipped {
                    self.seen.remove(address);
                }
                left.extend(part.named.drain(..).map(|node| (node, Visit::Named)));
                self.add(part);
            }
            if units.load(Relaxed) > 0 {
                left.extend(self.more.drain(..).map(|node| (node, Visit::Again)));
            }
        }
        Ok(())
    }

    fn add(&mut self, part: Part<'_, P>) {
        for (node, changes) in part.dirs {
            let address = Arc::as_ptr(&node).addr();
            let number = *self.numbers.entry(address).or_insert(self.dirs.len());
            if number == self.dirs.len() {
                self.dirs.push(Dir::new(node));
            }
            self.dirs[number].add(changes);
        }
        self.more.extend(part.more);
        self.files.extend(part.files);
        self.attrs.extend(part.attrs);
        self.free_pages.extend(part.free_pages);
        self.progress += part.progress;
    }
}

impl<P: Pmem> Part<'_, P> {
    /// Takes the changes of a node.
    fn visit(&mut self, node: &Arc<Node>, visit: Visit) -> Res<()> {
        let mut state = node.state.write();
        let is_gone = state.links == 0 && !state.is_stored && state.changes.is_empty();
        // A name that is removed later may come first.
        if visit != Visit::Again && (state.is_dead || (is_gone && visit != Visit::Named)) {
            self.skipped.push(Arc::as_ptr(node).addr());
            return Ok(());
        }
        let changes = match self.wanted {
            None => self.take_changes(node, &mut state),
            Some(wanted) => state.changes.take(wanted.of(node)),
        };
        if self.wanted.is_none() && changes.is_empty() && state.changes.is_empty() {
            // Changes that cancelled each other may have left slots. An fsync need not look for them.
            state.view.settle(&self.core.space)?;
        }
        let is_new = !state.is_stored;
        let takes_node = self.wanted.is_none_or(|wanted| wanted.takes(node.ino));
        if takes_node && visit != Visit::Again {
            self.take_node(node, &mut state)?;
        }
        // A directory that was in this one may be above it now: one lock at a time.
        drop(state);
        // Calls do not wait for this flush.
        if is_new && !hit(Bug::PublishBeforeInode) {
            self.core.space.flush_line(Line(node.ino.0));
        }
        let new = changes.iter().filter_map(|change| change.new.as_ref());
        let new = new.filter(|new| !new.node.state.read().is_stored);
        self.named.extend(new.map(|new| Arc::clone(&new.node)));
        if !changes.is_empty() {
            self.dirs.push((Arc::clone(node), changes));
        }
        Ok(())
    }

    /// Takes the oldest changes of a node, as many as the round may take.
    fn take_changes(&mut self, node: &Arc<Node>, state: &mut State) -> Vec<Change> {
        let units = self.units.load(Relaxed);
        if units == usize::MAX {
            return state.changes.take_all();
        }
        let most = units.min(self.core.portion.names);
        let (changes, has_more) = state.changes.take_oldest(most);
        self.use_units(changes.len());
        self.more.extend(has_more.then(|| Arc::clone(node)));
        changes
    }

    fn use_units(&self, used: usize) {
        let less = |units: usize| (units < usize::MAX).then(|| units.saturating_sub(used));
        let _ = self.units.fetch_update(Relaxed, Relaxed, less);
    }

    fn take_node(&mut self, node: &Arc<Node>, state: &mut State) -> Res<()> {
        let core = self.core;
        let line = Line(node.ino.0);
        let keeps_space = state.is_gone() && !state.file.is_clean();
        if state.links == 0 && state.is_stored && !keeps_space {
            // A crash shows it under its old name, if at all, and then as it was. An open one that
            // is gone for good gives back the space that was cut off.
            return Ok(());
        }
        self.use_units(state.file.dirty_pages());
        let plan = match state.kind {
            FileType::Regular => FilePlan::new(core, node, state)?,
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

    /// Stores the owner and the times.
    pub(super) fn finish<P: Pmem>(&self, space: &Space<P>) -> Res<()> {
        let [atime, mtime, ctime] = self.times;
        for (word, value) in [
            (inode::OWNER, self.owner),
            (inode::PAGES, self.pages),
            (inode::ATIME, atime),
            (inode::MTIME, mtime),
            (inode::CTIME, ctime),
        ] {
            let at = self.line.word(word);
            if space.load(at)? != value {
                space.put(at, value);
            }
        }
        Ok(())
    }
}
