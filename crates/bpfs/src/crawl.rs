//! The crawler: applies sorted edits to one tree.
//!
//! # Contract
//! - A node with [`Right::Word`] may return [`Outcome::Word`]: one atomic store, not yet
//!   made, that commits all visible edits (short-circuit commit, 3.3.1). A child inherits
//!   this right only if the edits change a single slot visibly.
//! - A node with [`Right::Copy`] stores nothing visible. It returns [`Outcome::Moved`] with
//!   a copy, which its parent must point to.
//! - Bytes and slots beyond the valid end of the tree are invisible. Where the mode appends
//!   in place, they are stored at once (3.3.3).
//! - A fresh leaf that reads as the hole it replaces is *neutral*: its slot may be stored
//!   before the commit, on its own.
//!
//! An operation that grows a tree must edit all bytes between the old and the new end, since
//! the tree holds garbage there.

use crate::edit::{Edit, What};
use crate::error::Res;
use crate::format::{BLOCK, BlockNo, FANOUT, HeightAddr, height_for, span};
use crate::seeded::{Bug, hit};
use crate::staged::Staged;
use crate::volume::{Dropped, Tree};
use medium::Pmem;
use smallvec::SmallVec;
use vfs::Ino;

/// The way in which a node may make visible changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// The node changes one word, which it offers to its parent.
    Word,
    /// The node is replaced by a copy.
    Copy,
}

/// The result of a crawl for a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// Nothing visible changed, and the node is where it was.
    Same,
    /// To store `value` at `addr` makes the visible changes.
    Word { addr: u64, value: u64 },
    /// The parent must point to `to`; `neutral`: this changes no contents.
    Moved { to: BlockNo, neutral: bool },
}

/// The result of a crawl for a whole tree.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RootOutcome {
    /// The root is as it was.
    Same,
    /// To store `value` at `addr` makes the visible changes.
    Word { addr: u64, value: u64 },
    /// A new root that is still invisible, since the tree was empty.
    Hidden(HeightAddr),
    /// A new root over the same contents.
    Neutral(HeightAddr),
    /// A new root that changes the contents.
    Visible(HeightAddr),
}

/// A crawl of one tree.
pub(crate) struct Crawl<'t, 'v, P: Pmem> {
    staged: &'t mut Staged<'v, P>,
    tree: Ino,
    /// Valid bytes before the operation.
    size: u64,
    append: bool,
    neutral: bool,
}

/// The part of an edit that falls in one leaf: bytes `lo..hi` of it.
struct Clip<'a> {
    lo: usize,
    hi: usize,
    what: What<'a>,
}

/// A slot of a node that gets another child.
#[derive(Debug, Clone, Copy)]
struct Change {
    slot: u64,
    to: BlockNo,
    /// The change of the pointer changes no contents.
    neutral: bool,
}

impl Change {
    /// A slot that reads as a hole, before and after.
    fn unseen(slot: u64, to: BlockNo) -> Self {
        let neutral = true;
        Self { slot, to, neutral }
    }
}

type Changes = SmallVec<[Change; 8]>;

/// The new children of a node, by visibility.
#[derive(Default)]
struct NodeChanges {
    /// Slots below the end.
    visible: Changes,
    /// Slots beyond the end: stored in place, or part of a copy.
    hidden: Changes,
    /// Slots beyond the end that are null in this node; a copy must repeat that.
    nulls: Changes,
}

impl<'t, 'v, P: Pmem> Crawl<'t, 'v, P> {
    pub(crate) fn new(staged: &'t mut Staged<'v, P>, tree: Ino, size: u64) -> Self {
        let rules = staged.vol.rules;
        Self {
            staged,
            tree,
            size,
            append: rules.append,
            neutral: rules.other,
        }
    }

    /// Applies `edits` (sorted, disjoint) to a whole tree.
    pub(crate) fn tree(
        &mut self,
        tree: &Tree,
        edits: &[Edit<'_>],
        right: Right,
    ) -> Res<RootOutcome> {
        // While the size is 0, height and root are ignored as a whole.
        let empty = tree.size == 0;
        let (height, root) = if empty {
            (0, BlockNo::NULL)
        } else {
            (tree.ha.height(), tree.ha.block())
        };
        let makes_leaf = |e: &&Edit<'_>| !matches!(e.what, What::Zeros | What::Hole);
        let last = edits
            .iter()
            .rfind(makes_leaf)
            .map_or(0, |e| (e.end - 1) / BLOCK);
        let need = height_for(last).max(height);
        let (outcome, need) = if need == height || root.is_null() {
            (self.any(root, need, 0, edits, right)?, need)
        } else {
            let mut neutral = true;
            let to = self.taller(root, height, need, edits, &mut neutral)?;
            (Outcome::Moved { to, neutral }, need)
        };
        let outcome = match outcome {
            // The tree of an emptied file is garbage: growth must not make it valid again.
            Outcome::Same if empty && tree.ha.0 != 0 => Outcome::Moved {
                to: BlockNo::NULL,
                neutral: true,
            },
            outcome => outcome,
        };
        Ok(match outcome {
            Outcome::Same => RootOutcome::Same,
            Outcome::Word { addr, value } => RootOutcome::Word { addr, value },
            Outcome::Moved { to, neutral } => {
                let ha = HeightAddr::new(need, to);
                if empty && self.append {
                    RootOutcome::Hidden(ha)
                } else if neutral && self.neutral && !empty {
                    RootOutcome::Neutral(ha)
                } else {
                    RootOutcome::Visible(ha)
                }
            }
        })
    }

    fn any(
        &mut self,
        block: BlockNo,
        height: u32,
        base: u64,
        edits: &[Edit<'_>],
        right: Right,
    ) -> Res<Outcome> {
        if height == 0 {
            self.leaf(block, base, edits, right)
        } else {
            self.node(block, height, base, edits, right)
        }
    }

    /// Puts new nodes above an old root until the tree has height `level` (in-place tree height
    /// switch, 3.3.3).
    fn taller(
        &mut self,
        root: BlockNo,
        height: u32,
        level: u32,
        edits: &[Edit<'_>],
        neutral: &mut bool,
    ) -> Res<BlockNo> {
        if level == height {
            return Ok(match self.any(root, height, 0, edits, Right::Copy)? {
                Outcome::Moved { to, neutral: n } => {
                    *neutral &= n;
                    to
                }
                Outcome::Same | Outcome::Word { .. } => root,
            });
        }
        let mut changes = Changes::new();
        let below = self.taller(root, height, level - 1, edits, neutral)?;
        changes.push(Change::unseen(0, below));
        let step = span(level - 1);
        for slot in touched(edits, 0, step) {
            if slot == 0 {
                continue;
            }
            let base = slot * step;
            if let Outcome::Moved { to, neutral: n } =
                self.any_or_drop(BlockNo::NULL, level - 1, base, step, edits, Right::Copy)?
            {
                *neutral &= n || base * BLOCK >= self.size;
                changes.push(Change::unseen(slot, to));
            } else {
                changes.push(Change::unseen(slot, BlockNo::NULL));
            }
        }
        self.fresh_node(BlockNo::NULL, level, 0, &changes)
    }

    /// Crawls an indirect block of `height`, whose first leaf is `base`.
    fn node(
        &mut self,
        block: BlockNo,
        height: u32,
        base: u64,
        edits: &[Edit<'_>],
        right: Right,
    ) -> Res<Outcome> {
        let step = span(height - 1);
        let valid = |slot: u64| (base + slot * step).saturating_mul(BLOCK) < self.size;
        // Beyond the end the pointer to this very node is garbage.
        let block = if base.saturating_mul(BLOCK) < self.size {
            block
        } else {
            BlockNo::NULL
        };
        let append = self.append;
        let shown = |slot| !append || valid(slot);
        let shown_slots = touched(edits, base, step)
            .filter(|s| shown(*s))
            .take(2)
            .count();
        let child_right = if shown_slots < 2 { right } else { Right::Copy };

        let (mut changes, mut word) = (NodeChanges::default(), None);
        let valid_end = self.size;
        for slot in touched(edits, base, step) {
            let first = base + slot * step;
            let raw = if block.is_null() {
                0
            } else {
                self.staged.vol.pm.load(block.addr() + slot * 8)?
            };
            let is_valid = first.saturating_mul(BLOCK) < valid_end;
            let child = if is_valid {
                self.staged.vol.pointer(raw)?
            } else {
                BlockNo::NULL
            };
            let is_shown = !append || is_valid;
            let right = if is_shown { child_right } else { Right::Copy };
            let outcome = self.any_or_drop(child, height - 1, first, step, edits, right)?;
            match outcome {
                Outcome::Word { .. } => word = Some(outcome),
                Outcome::Moved { to, neutral } if is_shown => {
                    changes.visible.push(Change { slot, to, neutral });
                }
                Outcome::Moved { to, .. } => changes.hidden.push(Change::unseen(slot, to)),
                Outcome::Same if !is_valid => {
                    let list = match raw {
                        0 => &mut changes.nulls,
                        // A garbage slot that becomes valid must become null.
                        _ if is_shown => &mut changes.visible,
                        _ => &mut changes.hidden,
                    };
                    list.push(Change::unseen(slot, BlockNo::NULL));
                }
                Outcome::Same => {}
            }
        }
        if block.is_null() {
            return self.new_node(height, base, changes);
        }
        let node = self.apply_to_node(block, height, base, right, changes)?;
        Ok(word.unwrap_or(node))
    }

    /// Drops the whole subtree if a hole covers it; else crawls it.
    fn any_or_drop(
        &mut self,
        child: BlockNo,
        height: u32,
        first: u64,
        step: u64,
        edits: &[Edit<'_>],
        right: Right,
    ) -> Res<Outcome> {
        let (start, end) = (first * BLOCK, (first + step).saturating_mul(BLOCK));
        let at = edits.partition_point(|e| e.end <= start);
        let covered = edits
            .get(at)
            .is_some_and(|e| matches!(e.what, What::Hole) && e.start <= start && e.end >= end);
        if !covered {
            return self.any(child, height, first, edits, right);
        }
        if child.is_null() {
            return Ok(Outcome::Same);
        }
        self.staged.may_move(self.tree)?;
        let dropped = Dropped {
            block: child,
            height,
            leaves: self.size.div_ceil(BLOCK) - first,
        };
        self.staged.drop_tree(self.tree, dropped)?;
        Ok(Outcome::Moved {
            to: BlockNo::NULL,
            neutral: false,
        })
    }

    /// Makes a node where there was none, if it would point to anything.
    fn new_node(&mut self, height: u32, base: u64, changes: NodeChanges) -> Res<Outcome> {
        let neutral = changes.visible.iter().all(|c| c.neutral);
        let (visible, hidden) = (&changes.visible, &changes.hidden);
        if visible.iter().chain(hidden).all(|c| c.to.is_null()) {
            return Ok(Outcome::Same);
        }
        let to = self.fresh_node(BlockNo::NULL, height, base, &changes.all())?;
        Ok(Outcome::Moved { to, neutral })
    }

    /// Applies the changes of its children to an existing node: in place, or in a copy.
    fn apply_to_node(
        &mut self,
        block: BlockNo,
        height: u32,
        base: u64,
        right: Right,
        changes: NodeChanges,
    ) -> Res<Outcome> {
        let apart = |c: &Change| self.neutral && c.neutral;
        let firm = changes.visible.iter().filter(|c| !apart(c)).count();
        if firm == 0 || (firm == 1 && right == Right::Word) {
            // The node stays where it is, so that neutral stores into it take effect.
            let mut word = None;
            for c in changes.visible {
                let (addr, value) = (block.addr() + c.slot * 8, c.to.0);
                if self.neutral && c.neutral {
                    self.staged.neutral.push((addr, value));
                } else {
                    word = Some(Outcome::Word { addr, value });
                }
            }
            for c in changes.hidden {
                self.staged
                    .stores
                    .put_word(block.addr() + c.slot * 8, c.to.0)?;
            }
            for c in changes.nulls {
                self.staged.stores.rely_on(block.addr() + c.slot * 8, 8);
            }
            return Ok(word.unwrap_or(Outcome::Same));
        }
        self.staged.may_move(self.tree)?;
        let to = self.fresh_node(block, height, base, &changes.all())?;
        self.staged.free(block);
        Ok(Outcome::Moved { to, neutral: false })
    }

    /// Writes a node: the valid slots of `old`, null where `old` is null, and `changes`
    /// (sorted) over them. All other slots stay unwritten, as garbage beyond the end.
    fn fresh_node(
        &mut self,
        old: BlockNo,
        height: u32,
        base: u64,
        changes: &[Change],
    ) -> Res<BlockNo> {
        let to = self.staged.take()?;
        let step = span(height - 1);
        let valid = self
            .size
            .div_ceil(BLOCK)
            .saturating_sub(base)
            .div_ceil(step)
            .min(FANOUT);
        let mut bytes = [0; BLOCK as usize];
        if !old.is_null() {
            self.staged
                .vol
                .pm
                .read(old.addr(), &mut bytes[..valid as usize * 8])?;
        }
        let uncleared = old.is_null() && hit(Bug::IndirectNotCleared);
        if uncleared {
            self.staged.vol.pm.read(to.addr(), &mut bytes)?;
        }
        for c in changes.iter().filter(|c| !uncleared || !c.to.is_null()) {
            let at = c.slot as usize * 8;
            bytes[at..at + 8].copy_from_slice(&c.to.0.to_le_bytes());
        }
        let first = if valid > 0 {
            0
        } else {
            changes.first().map_or(0, |c| c.slot)
        };
        let end = changes.last().map_or(0, |c| c.slot + 1).max(valid);
        let range = first as usize * 8..end as usize * 8;
        self.staged
            .stores
            .fill(to.addr() + range.start as u64, &bytes[range]);
        Ok(to)
    }

    /// Crawls leaf number `leaf`.
    fn leaf(
        &mut self,
        block: BlockNo,
        leaf: u64,
        edits: &[Edit<'_>],
        right: Right,
    ) -> Res<Outcome> {
        let start = leaf * BLOCK;
        let valid = self.size.saturating_sub(start).min(BLOCK) as usize;
        let block = if valid > 0 { block } else { BlockNo::NULL };
        let clips = clip(edits, start);
        if clips.iter().any(|c| matches!(c.what, What::Hole)) {
            return self.drop_leaf(block);
        }
        let writes = |c: &&Clip<'_>| matches!(c.what, What::Bytes(_) | What::Word(_));
        if block.is_null() {
            if clips.iter().all(|c| matches!(c.what, What::Zeros)) {
                return Ok(Outcome::Same);
            }
            let neutral = !clips.iter().filter(writes).any(|c| c.lo < valid);
            let to = self.staged.take()?;
            self.compose(to, BlockNo::NULL, valid, &clips)?;
            return Ok(Outcome::Moved { to, neutral });
        }
        let zeros = |c: &&Clip<'_>| matches!(c.what, What::Zeros) || writes(c);
        let mut changes = clips.iter().filter(zeros);
        let Some(first) = changes.next() else {
            return Ok(Outcome::Same);
        };
        if self.append && first.lo >= valid {
            for c in clips.iter().filter(zeros) {
                self.staged
                    .stores
                    .fill(block.addr() + c.lo as u64, &c.bytes());
            }
            return Ok(Outcome::Same);
        }
        if right == Right::Word && changes.next().is_none() && first.lo / 8 == (first.hi - 1) / 8 {
            let at = block.addr() + first.lo as u64;
            let (addr, value) = self.staged.vol.merged(at, &first.bytes())?;
            return Ok(Outcome::Word { addr, value });
        }
        self.staged.may_move(self.tree)?;
        let to = self.staged.take()?;
        self.compose(to, block, valid, &clips)?;
        self.staged.free(block);
        Ok(Outcome::Moved { to, neutral: false })
    }

    fn drop_leaf(&mut self, block: BlockNo) -> Res<Outcome> {
        if block.is_null() {
            return Ok(Outcome::Same);
        }
        self.staged.free(block);
        Ok(Outcome::Moved {
            to: BlockNo::NULL,
            neutral: false,
        })
    }

    /// Writes a leaf: the valid bytes of `old`, zeros where `old` is null, then `clips`.
    fn compose(&mut self, to: BlockNo, old: BlockNo, valid: usize, clips: &[Clip<'_>]) -> Res<()> {
        if let [
            Clip {
                lo: 0,
                hi,
                what: What::Bytes(bytes),
            },
        ] = clips
            && *hi >= valid
        {
            self.staged.stores.fill(to.addr(), &bytes[..*hi]);
            return Ok(());
        }
        let mut buf = [0; BLOCK as usize];
        if !old.is_null() {
            self.staged.vol.pm.read(old.addr(), &mut buf[..valid])?;
        }
        let (mut lo, mut hi) = (if valid > 0 { 0 } else { BLOCK as usize }, valid);
        for c in clips {
            if !matches!(c.what, What::Blank) {
                // A reserved leaf is zeroed: its bytes may become valid without a further edit.
                if !matches!(c.what, What::Reserve) {
                    buf[c.lo..c.hi].copy_from_slice(&c.bytes());
                }
                (lo, hi) = (lo.min(c.lo), hi.max(c.hi));
            }
        }
        if lo < hi {
            self.staged.stores.fill(to.addr() + lo as u64, &buf[lo..hi]);
        }
        Ok(())
    }
}

impl NodeChanges {
    /// All slots that a copy of the node changes, by slot.
    fn all(self) -> Changes {
        let mut all = self.visible;
        all.extend(self.hidden.into_iter().chain(self.nulls));
        all.sort_by_key(|c| c.slot);
        all
    }
}

impl<'a> Clip<'a> {
    fn bytes(&self) -> SmallVec<[u8; 64]> {
        match self.what {
            What::Bytes(bytes) => SmallVec::from_slice(bytes),
            What::Word(word) => SmallVec::from_slice(&word.to_le_bytes()),
            What::Zeros | What::Hole | What::Reserve | What::Blank => {
                SmallVec::from_elem(0, self.hi - self.lo)
            }
        }
    }
}

/// The slots that edits touch in a node whose children span `step` leaves each, from leaf
/// `base` on.
fn touched<'e>(edits: &'e [Edit<'_>], base: u64, step: u64) -> impl Iterator<Item = u64> + 'e {
    let end = base.saturating_add(step.saturating_mul(FANOUT));
    let mut at = edits.partition_point(|e| (e.end - 1) / BLOCK < base);
    let mut next = base;
    std::iter::from_fn(move || {
        while at < edits.len() && (edits[at].end - 1) / BLOCK < next {
            at += 1;
        }
        let leaf = (edits.get(at)?.start / BLOCK).max(next);
        if leaf >= end {
            return None;
        }
        let slot = (leaf - base) / step;
        next = base + (slot + 1) * step;
        Some(slot)
    })
}

/// The parts of `edits` in the leaf that starts at byte `start`.
fn clip<'a>(edits: &[Edit<'a>], start: u64) -> SmallVec<[Clip<'a>; 4]> {
    let from = edits.partition_point(|e| e.end <= start);
    let inside = edits[from..].iter().take_while(|e| e.start < start + BLOCK);
    inside
        .map(|e| {
            let (lo, hi) = (e.start.max(start), e.end.min(start + BLOCK));
            let what = match e.what {
                What::Bytes(b) => What::Bytes(&b[(lo - e.start) as usize..(hi - e.start) as usize]),
                other => other,
            };
            Clip {
                lo: (lo - start) as usize,
                hi: (hi - start) as usize,
                what,
            }
        })
        .collect()
}
