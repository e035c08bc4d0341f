//! Models of file systems: what a crash can leave of a run.
//!
//! A model splits the calls of a run into [`Effect`]s that a crash keeps or loses as a whole. It
//! states which effects need which others, and what a request of durability forces. A legal state
//! after a crash is the effects that were forced, with any further effects whose needs are there.
//! [`Legal`] enumerates such states.
//!
//! | model | order of names and attributes | data | `fsync` forces |
//! |---|---|---|---|
//! | `posix` | none but that of one name | pages in any order, length apart | contents of the file, not its name |
//! | `ext4-ordered` | as called | a page at a time, later; space and length of new pages before their data, in order | the file, and all names and attributes so far |
//! | `ext4-journal` | as called | as called, a page at a time | everything before |
//! | `xfs` | as called | a page at a time, later; new pages in order, each with its length | as `ext4-ordered` |
//! | `btrfs` | as called, but for what `fsync` has logged | a page at a time, old or new | the file, its names and their directories |
//! | `at-return` | as called | whole calls | (each call is durable when it returns) |
//!
//! # Sources
//! - The method and `posix`: Pillai et al., *All File Systems Are Not Created Equal* (OSDI 2014),
//!   abstract persistence models.
//! - ext4: its documentation in the kernel tree (`data=`, `auto_da_alloc`), `ext4_da_write_end` for
//!   lengths that precede data within a page, `ext4_sync_file` for the transaction that `fsync`
//!   commits. New space is unwritten until its data are there (`dioread_nolock`, the default since
//!   Linux 5.6): `mpage_map_and_submit_extent` sets the length when space is taken, and no
//!   transaction waits for the data (`ext4_map_blocks`). So a file that has replaced another one
//!   without `fsync` can be all zeros.
//! - xfs: *XFS Algorithms & Data Structures*, chapter on delayed logging; lengths change when the
//!   writes are complete (`xfs_end_ioend`).
//! - btrfs: its documentation, *Log tree*; ordered extents for data. `fsync` of a file with a reused
//!   name forces the end of the earlier use only if that is durable. A later change of a name of a
//!   logged inode reaches the log at once (`btrfs_log_new_name`), before earlier calls.
//! - A cut or a hole within a page: the page cache zeroes that part, and writes the page in place
//!   (`block_truncate_page`, `iomap_truncate_page`).
//! - `at-return`: the guarantees of BPFS, which the explorer of engines tests.

mod effects;
mod legal;
mod rules;

pub use effects::{Change, Effect, Reuse};
pub use legal::{Legal, Subset, spread};
pub use rules::Rules;

use crate::{Call, Node, Run, Tree};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A model that is computed from the calls alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Model {
    /// No more than POSIX demands.
    Posix,
    /// ext4 with `data=ordered` and delayed allocation, as distributions mount it.
    Ext4Ordered,
    /// ext4 with `data=journal`.
    Ext4Journal,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// Each call is atomic, and durable when it returns: the promise of BPFS.
    AtReturn,
}

impl Model {
    /// All models.
    pub const ALL: [Self; 6] = [
        Self::Posix,
        Self::Ext4Ordered,
        Self::Ext4Journal,
        Self::Xfs,
        Self::Btrfs,
        Self::AtReturn,
    ];

    /// One line for a person.
    pub fn about(self) -> &'static str {
        match self {
            Self::Posix => "no more than POSIX demands",
            Self::Ext4Ordered => "the kernel's ext4, data=ordered with delayed allocation",
            Self::Ext4Journal => "the kernel's ext4, data=journal",
            Self::Xfs => "the kernel's XFS",
            Self::Btrfs => "the kernel's Btrfs",
            Self::AtReturn => "each call is atomic, and durable when it returns: BPFS",
        }
    }

    fn rules(self) -> Rules {
        match self {
            Self::Posix => Rules::POSIX,
            Self::Ext4Ordered => Rules::EXT4_ORDERED,
            Self::Ext4Journal => Rules::EXT4_JOURNAL,
            Self::Xfs => Rules::XFS,
            Self::Btrfs => Rules::BTRFS,
            Self::AtReturn => Rules::AT_RETURN,
        }
    }
}

impl Display for Model {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Posix => "posix",
            Self::Ext4Ordered => "ext4-ordered",
            Self::Ext4Journal => "ext4-journal",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::AtReturn => "at-return",
        })
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|model| model.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is not a model"))
    }
}

/// A run under a model: its effects, and what each request of durability forces.
pub struct Modelled<'a> {
    /// The run.
    pub run: &'a Run,
    /// The tree in which the program started, durably.
    pub start: Tree,
    /// The effects, in order of calls.
    pub effects: Vec<Effect>,
    /// By entry of the run: the number of effects before it, and at the end that of all.
    pub before: Vec<usize>,
    /// By entry of the run: the effects that it forces before it returns.
    forced_by: Vec<Vec<usize>>,
}

impl<'a> Modelled<'a> {
    /// A run under a model.
    ///
    /// # Errors
    /// A call of the run does not fit those before it.
    pub fn new(run: &'a Run, model: Model) -> Result<Self, String> {
        let start = run.start()?;
        let rules = model.rules();
        let (effects, before) = effects::split(run, &start, &rules)?;
        let mut modelled = Self {
            run,
            start,
            effects,
            before,
            forced_by: Vec::new(),
        };
        modelled.forced_by = rules::forced(&modelled, &rules);
        Ok(modelled)
    }

    /// The effects that are durable when the entries before `entry` have returned.
    pub fn forced_before(&self, entry: usize) -> Vec<bool> {
        let mut forced = vec![false; self.effects.len()];
        for by in &self.forced_by[..entry] {
            for &effect in by {
                forced[effect] = true;
            }
        }
        forced
    }

    /// The moments that are explored: right before each request of durability returns, after each
    /// output, and the end. All states of other moments are among those of these; the effects that a
    /// request forces are there together, or not, before it returns.
    pub fn moments(&self) -> Vec<usize> {
        let entries = &self.run.entries;
        let first = self.run.header.setup;
        let mut moments: Vec<usize> = (first..entries.len())
            .filter_map(|n| match entries[n].call {
                Call::Output { .. } => Some(n + 1),
                _ if !self.forced_by[n].is_empty() => Some(n),
                _ => None,
            })
            .chain([entries.len()])
            .collect();
        moments.dedup();
        moments
    }

    /// The tree that a set of effects leaves.
    pub fn tree(&self, present: &[bool]) -> Tree {
        let mut tree = self.start.clone();
        for (effect, _) in self.effects.iter().zip(present).filter(|(_, is)| **is) {
            effect.apply(&mut tree, &self.run.data);
        }
        tree
    }

    /// Effects before `end` that touch an inode.
    fn touching(&self, node: Node, end: usize) -> impl Iterator<Item = usize> {
        (0..end).filter(move |n| self.effects[*n].touches.contains(&node))
    }
}

#[cfg(test)]
pub(crate) mod tests;
