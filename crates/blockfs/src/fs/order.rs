//! The order of names: the befores of making and removing them. Calls that give an inode a further
//! name, or remove one, take the befores from here.
//!
//! - **N1** A further name of a file comes after the befores of the first name: all that
//!   initialises the inode (U1).
//! - **N2** A further name of a directory comes after its present name, and after the removal
//!   of any name before that. Its names change serially, so that there are at most two.
//! - **N3** The removal of a name comes after the file's other names (U4), and after the names
//!   of the directories that lead to these from the root.
//! - **N4** The removal of a directory's name comes after the removal of its previous name, since
//!   `..` does not lead there any more.
//! - **N5** The removal of a directory's name comes after the befores of all removals from that
//!   directory (N3, N4). An entry may still be on the medium, and its file has another name by
//!   then. The entry of a directory that moved away is removed: a directory is freed with its last
//!   reachable name.
//! - **N6** A directory moves below others after the removal of their previous names. One of these
//!   may be in the moved directory or below it. Otherwise the two would be above each other.
//!
//! # No directory has a wrong `..`
//! Let a directory D have a name on the medium, in P. When D was made, `..` led to P before the
//! name. A move from P to Q has four steps, each after the one before (N2, N4):
//!
//! 1. the name in Q;
//! 2. `..` to Q;
//! 3. the removal from P;
//! 4. the next change of D's names.
//!
//! So D has a name where `..` leads, at each step. P is not freed in between: its own name is
//! removed after the third step (N5), and P is cleared after that. Q's count includes the link for
//! `..` before the first step, and P's count excludes it after the third.
//!
//! The `..` of a directory without a name may lead to an inode that is free or in use again. No
//! path leads to the directory, and no call gives it a name.

use super::{BlockFs, Refusal};
use crate::seeded::{Bug, hit};
use crate::{Befores, Format, FormatError, after};
use patch::{PatchId, Rule};
use vfs::{Attr, FileType, Ino};

impl<F: Format> BlockFs<F> {
    fn still_pending(&self, patches: &[PatchId]) -> impl Iterator<Item = PatchId> {
        let store = self.format.store();
        patches
            .iter()
            .copied()
            .filter(|patch| store.is_pending(*patch))
    }

    /// Notes the befores of further names of an inode: the name of a directory (N2), or the befores
    /// of another file's first name (N1).
    pub(super) fn found_on(&self, ino: Ino, patches: &[PatchId]) {
        let mut known = self.known.lock();
        known.entry(ino).or_default().foundation = patches.into();
    }

    /// The befores of a further name, besides the raised link count (N1, N2).
    pub(super) fn before_name(&self, attr: &Attr) -> Befores {
        let directory = attr.kind == FileType::Directory;
        let bug = match directory {
            true => Bug::NamesAtOnce,
            false => Bug::SecondNameBeforeInode,
        };
        let known = self.known.lock();
        let Some(known) = known.get(&attr.ino).filter(|_| !hit(bug)) else {
            return Befores::new();
        };
        let founded = self.still_pending(&known.foundation);
        let mut befores = after(Rule::InitialiseBeforePoint, founded);
        if directory {
            let lowered = self.still_pending(known.lowered.as_slice());
            befores.extend(after(Rule::NullifyBeforeReuse, lowered));
        }
        befores
    }

    /// The names that lead from the root to a directory and are not durable (N3).
    pub(super) fn before_reached(&self, dir: Ino) -> std::result::Result<Befores, Refusal> {
        let mut befores = Befores::new();
        if hit(Bug::UnlinkBeforePath) {
            return Ok(befores);
        }
        for at in self.path_up(dir)? {
            if let Some(known) = self.known.lock().get(&at) {
                let named = self.still_pending(&known.foundation);
                befores.extend(after(Rule::LinkBeforeUnlink, named));
            }
        }
        Ok(befores)
    }

    /// The befores of moving a directory into `dir`: the removals of the previous names of `dir`
    /// and of all directories above it (N6).
    pub(super) fn before_moved_below(&self, dir: Ino) -> std::result::Result<Befores, Refusal> {
        let path = self.path_up(dir)?;
        let lowered = path.iter().filter_map(|at| self.lowered(*at));
        let lowered = lowered.filter(|_| !hit(Bug::RingOfNames));
        Ok(after(Rule::NullifyBeforeReuse, lowered))
    }

    /// A directory and those above it, up to the root or to one that has been removed.
    pub(super) fn path_up(&self, dir: Ino) -> std::result::Result<Vec<Ino>, Refusal> {
        let mut path = vec![dir];
        let mut at = dir;
        // No path is longer than the number of inodes. A damaged image may have a ring.
        let most = self.format.statfs()?.inodes;
        while at != self.format.root() {
            at = match self.format.inode(at)? {
                Some(attr) if attr.nlink > 0 => self.format.parent(at)?,
                _ => return Ok(path),
            };
            if path.len() as u64 > most {
                let what = format!("directory {dir}: it is below itself");
                return Err(FormatError::Corrupt(what).into());
            }
            path.push(at);
        }
        Ok(path)
    }

    /// The befores of the removal or the replacement of a name.
    pub(super) fn before_removal(&self, victim: &Attr) -> Befores {
        if victim.kind != FileType::Directory {
            return self.other_names_of(victim);
        }
        let mut befores = self.left_behind(victim.ino);
        let lowered = self.lowered(victim.ino);
        let lowered = lowered.filter(|_| !hit(Bug::RemoveBeforeOldName));
        befores.extend(after(Rule::NullifyBeforeReuse, lowered));
        befores
    }

    /// The befores of the removal of one of a file's names (N3): all patches that fsync waits for,
    /// the other names included, or patches after them.
    fn other_names_of(&self, victim: &Attr) -> Befores {
        let known = self.known.lock();
        let before_unlink = match known.get(&victim.ino) {
            Some(known) if victim.nlink > 1 => known.before_unlink.patches(),
            _ => return Befores::new(),
        };
        let open = self.still_pending(before_unlink);
        let open = open.filter(|_| !hit(Bug::UnlinkBeforeLink));
        after(Rule::LinkBeforeUnlink, open)
    }

    /// Notes the befores of a removal of a name from a directory, for N5.
    pub(super) fn leave_behind(&self, dir: Ino, befores: &Befores) {
        if befores.is_empty() {
            return;
        }
        let store = self.format.store();
        let mut known = self.known.lock();
        let left = &mut known.entry(dir).or_default().left;
        for before in befores {
            left.push(before.patch, |patch| store.is_pending(patch));
        }
    }

    /// The befores of all removals of names from a directory (N5).
    pub(super) fn left_behind(&self, dir: Ino) -> Befores {
        let known = self.known.lock();
        let left = known
            .get(&dir)
            .map_or(&[][..], |known| known.left.patches());
        let left = self.still_pending(left);
        after(
            Rule::LinkBeforeUnlink,
            left.filter(|_| !hit(Bug::DirectoryBeforeContents)),
        )
    }

    /// The patch that last lowered an inode's link count, unless it is durable.
    pub(super) fn lowered(&self, ino: Ino) -> Option<PatchId> {
        let lowered = self.known.lock().get(&ino).and_then(|known| known.lowered);
        lowered.filter(|patch| self.format.store().is_pending(*patch))
    }
}
