//! Homes: the new directories that lead to an inode, for fsync.
//!
//! An fsync waits for the names of new directories above as well. Otherwise the synced file could
//! be unreachable after a crash. Directories that are reachable on the medium stay so (U4), and
//! need no wait. The *home* of an inode is the directory of its newest name, unless that directory
//! was reachable on the medium when the name was made. An fsync follows the homes at its start,
//! since directories may have moved. Homes are forgotten once they are reachable.
//!
//! A further name needs no home. The patches that make its directory reachable are noted for the
//! file itself when the name is made.

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
    // A reused inode number leaves at worst a wrong home, and the bound ends a ring of them.
    successors(above(&ino), above).take(known.len()).collect()
}

impl<F: Format> BlockFs<F> {
    /// Notes that an inode was given a name in `dir`, for which no patch of the inode waits.
    pub(super) fn live_in(&self, ino: Ino, dir: Ino) {
        let mut known = self.known.lock();
        let is_new = |dir: &Known| dir.home.is_some() || self.has_new_name(dir);
        let home = known.get(&dir).is_some_and(is_new).then_some(dir);
        known.entry(ino).or_default().home = home;
    }

    /// Whether the name of a directory is not durable yet.
    fn has_new_name(&self, dir: &Known) -> bool {
        let mut named = dir.foundation.iter();
        named.any(|patch| self.format.store().is_pending(*patch))
    }

    /// The names of the new directories that lead to an inode.
    pub(super) fn before_found(&self, known: &Inodes, ino: Ino) -> Vec<PatchId> {
        if hit(Bug::FsyncWithoutPath) {
            return Vec::new();
        }
        let above = homes(known, ino);
        let above = above.iter().filter_map(|home| known.get(home));
        above.flat_map(|home| home.foundation.to_vec()).collect()
    }

    /// Forgets the homes above an inode that are reachable on the medium.
    pub(super) fn forget_homes(&self, known: &mut Inodes, ino: Ino) {
        let above = homes(known, ino);
        // From the root down, since each is reached through the one before.
        for at in above.iter().rev().chain([&ino]) {
            let Some(at) = known.get_mut(at) else {
                continue; // forgotten, since all its patches were durable
            };
            at.home = None;
            if self.has_new_name(at) {
                break;
            }
        }
    }
}
