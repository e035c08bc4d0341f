//! The state of inodes in memory: references, and patches that later calls wait for.
//!
//! `fsync` waits for all patches that were noted for an inode. `fdatasync` leaves out the patches
//! that change only times. After either call the data, the size, the pointers, the permissions, the
//! attributes and the names are durable. A change of times that was merged into one of these
//! patches is durable as well.

use super::past_end::PastEnd;
use super::unstored::Unstored;
use super::{BlockFs, not_stored, report};
use crate::seeded::{Bug, hit};
use crate::{Format, FormatError, Heads, InodeChange};
use parking_lot::MutexGuard;
use patch::PatchId;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Ino, Result};

/// The state of an inode that is referenced or has pending changes.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub refs: u64,
    /// It has no name, and is freed with its last reference.
    pub nameless: bool,
    /// Made by `tmpfile`, and may still be given a name.
    pub nameable: bool,
    /// Patches that fsync and fdatasync wait for.
    pub recent: Unstored,
    /// Patches that change only times. Only fsync waits for them.
    pub times: Unstored,
    /// Patches that fsync waits for, and that no removal of one of its names waits for yet.
    pub before_unlink: Unstored,
    /// The patch that last lowered the link count. After it, that many names are removed.
    pub lowered: Option<PatchId>,
    /// The befores of a further name; see `order`.
    pub foundation: Heads,
    /// A new directory that leads to it; see `homes`.
    pub home: Option<Ino>,
    /// In a directory, the befores of removals of names from it; see `order`.
    pub left: Unstored,
    /// It has no name, and none of its names was ever on the medium.
    pub never_named: bool,
    /// The patch that zeroed the rest of the last block in the last cut. Growth comes after it.
    pub cleared: Option<PatchId>,
    /// The blocks past the end of a file; see `past_end`.
    pub past_end: PastEnd,
}

impl Known {
    /// Drops patches that are durable.
    pub(super) fn prune(&mut self, is_pending: impl Fn(PatchId) -> bool) {
        let lists = [
            &mut self.recent,
            &mut self.times,
            &mut self.before_unlink,
            &mut self.left,
        ];
        for patches in lists {
            patches.prune(&is_pending);
        }
        self.foundation.retain(|patch| is_pending(*patch));
    }

    /// Whether this state can be forgotten.
    pub(super) fn can_be_forgotten(&self) -> bool {
        let lists = [&self.recent, &self.times, &self.left];
        let listed = lists.iter().any(|list| !list.patches().is_empty());
        !listed && self.foundation.is_empty() && self.home.is_none()
    }
}

/// Number of known inodes above which unreferenced, durable ones are forgotten.
pub(super) const MIN_KNOWN: usize = 4096;

/// The part of an inode that a sync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    All,
    AllButTimes,
}

pub(super) type Inodes = hashbrown::HashMap<Ino, Known>;

impl<F: Format> BlockFs<F> {
    /// Notes patches that fsync and fdatasync of this inode wait for.
    pub(super) fn note(&self, ino: Ino, patches: &[PatchId]) {
        self.note_in(ino, patches, |known| &mut known.recent);
    }

    /// Notes patches that only fsync of this inode waits for.
    pub(super) fn note_times(&self, ino: Ino, patches: &[PatchId]) {
        self.note_in(ino, patches, |known| &mut known.times);
    }

    /// Notes the patch that made this change of the inode.
    pub(super) fn note_inode(&self, ino: Ino, change: &InodeChange, patch: PatchId) {
        let mut change = *change;
        if change.size.is_some() && hit(Bug::FdatasyncWithoutSize) {
            change.size = None;
        }
        match change.is_times() {
            true => self.note_times(ino, &[patch]),
            false => self.note(ino, &[patch]),
        }
    }

    fn note_in(&self, ino: Ino, patches: &[PatchId], list: fn(&mut Known) -> &mut Unstored) {
        let is_pending = |patch| self.format.store().is_pending(patch);
        let mut inodes = self.known_with_room();
        let known = inodes.entry(ino).or_default();
        for patch in patches {
            list(known).push(*patch, is_pending);
            known.before_unlink.push(*patch, is_pending);
        }
    }

    /// Locks the known inodes. Forgets some first if there are too many.
    fn known_with_room(&self) -> MutexGuard<'_, Inodes> {
        let mut known = self.known.lock();
        if known.len() >= self.most_known.load(Relaxed) {
            let all: Vec<Ino> = known.keys().copied().collect();
            for ino in all {
                self.forget_homes(&mut known, ino);
            }
            known.retain(|_, k| {
                k.prune(|patch| self.format.store().is_pending(patch));
                k.refs > 0 || !k.can_be_forgotten()
            });
            let most = (known.len() * 2).max(MIN_KNOWN);
            self.most_known.store(most, Relaxed);
        }
        known
    }

    /// Notes that a removal of a name waits for all patches noted for this inode.
    pub(super) fn note_unlink(&self, ino: Ino) {
        if let Some(known) = self.known.lock().get_mut(&ino) {
            known.before_unlink.clear();
        }
    }

    /// `fsync` or `fdatasync` of an inode, by the callers' number.
    pub(super) fn sync_inode(&self, ino: Ino, wanted: Synced) -> Result<()> {
        let ino = self.down(ino);
        self.look(|| self.attr(ino))?;
        self.sync_recent(ino, wanted)
    }

    /// Makes the recent changes of an inode durable.
    pub(super) fn sync_recent(&self, ino: Ino, wanted: Synced) -> Result<()> {
        let mut recent = Vec::new();
        let mut inodes = self.known.lock();
        recent.extend(self.before_found(&inodes, ino));
        if let Some(known) = inodes.get_mut(&ino) {
            recent.extend_from_slice(known.recent.patches());
            if wanted == Synced::All {
                recent.extend_from_slice(known.times.patches());
            }
            if known.cleared.is_some() && hit(Bug::ClearedCountsAsSynced) {
                let cleared = known.cleared.take();
                recent.retain(|patch| Some(*patch) != cleared);
            }
        }
        drop(inodes);
        let result = self.format.store().sync(&recent).map_err(FormatError::from);
        result.map_err(|e| not_stored(report(&e)))?;
        // The next fsync does not need to look at them again.
        let mut known = self.known.lock();
        self.forget_homes(&mut known, ino);
        if let Some(known) = known.get_mut(&ino) {
            known.prune(|patch| self.format.store().is_pending(patch));
        }
        Ok(())
    }
}
