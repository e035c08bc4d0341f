//! Homes: the new directories that lead to an inode, for fsync.
//!
//! An fsync waits for the names of the directories above as well, or what it covers could not
//! be found after a crash. Not for all of them: what can be reached on the medium stays so
//! (U4). The *home* of an inode is the directory with the name that it was given last, unless
//! that directory could be reached on the medium by then. Homes are followed when an fsync
//! comes, since directories may have been moved. They are forgotten once they can be reached.
//!
//! A further name needs no home: what its directory is reached after is noted of the file
//! itself when the name is made.

use super::BlockFs;
use super::known::{Inodes, Known};
use crate::Format;
use crate::seeded::{Bug, hit};
use patch::PatchId;
use std::iter::successors;
use vfs::Ino;

/// The homes above an inode, the nearest first.
fn homes(known: &Inodes, ino: Ino) -> Vec<Ino> {
    let above = |at: &Ino| known.get(at).and_then(|known| known.home);
    // A number that is used again leaves a wrong home at worst, never more of them than this.
    successors(above(&ino), above).take(known.len()).collect()
}

impl<F: Format> BlockFs<F> {
    /// Notes that an inode was given a name in `dir`, which no patch of its own waits for.
    pub(super) fn live_in(&self, ino: Ino, dir: Ino) {
        let mut known = self.known.lock();
        let is_new = |dir: &Known| dir.home.is_some() || self.has_new_name(dir);
        let home = known.get(&dir).is_some_and(is_new).then_some(dir);
        known.entry(ino).or_default().home = home;
    }

    /// Whether the name of a directory is not durable.
    fn has_new_name(&self, dir: &Known) -> bool {
        let mut named = dir.foundation.iter();
        named.any(|patch| self.format.store().is_pending(*patch))
    }

    /// What an inode can be found after: the names of the new directories that lead to it.
    pub(super) fn before_found(&self, known: &Inodes, ino: Ino) -> Vec<PatchId> {
        if hit(Bug::FsyncWithoutPath) {
            return Vec::new();
        }
        let above = homes(known, ino);
        let above = above.iter().filter_map(|home| known.get(home));
        above.flat_map(|home| home.foundation.to_vec()).collect()
    }

    /// Forgets those homes above an inode that can be reached on the medium.
    pub(super) fn forget_homes(&self, known: &mut Inodes, ino: Ino) {
        let above = homes(known, ino);
        // From the root down, since each must be reached through the one before.
        for at in above.iter().rev().chain([&ino]) {
            let Some(at) = known.get_mut(at) else {
                continue; // forgotten, since nothing of it was left to wait for
            };
            at.home = None;
            if self.has_new_name(at) {
                break;
            }
        }
    }
}
