//! The order of names: what must be durable before one is made or removed. Calls that give an
//! inode a further name, or take one away, take the befores from here.
//!
//! - **N1** A further name of a file comes after what the first name came after: all that
//!   initialises the inode (U1).
//! - **N2** A further name of a directory comes after its present name, and after the removal
//!   of any name before that. Its names change serially, so that there are at most two.
//! - **N3** The removal of a name comes after the file's other names (U4), and after the names
//!   of the directories that lead to these from the root.
//! - **N4** The removal of a directory's name comes after the removal of its previous one,
//!   since `..` does not lead there any more.
//! - **N5** The removal of a directory's name comes after whatever removals from that
//!   directory waited for (N3, N4). An entry may still be on the medium, and its file has
//!   another name by then. An entry of a directory that was moved is gone: the directory is
//!   freed with the last name that can be reached.
//! - **N6** A directory comes to a place below others after the removal of their previous
//!   names. One of these may be in the directory that moves, or below it: the two would be
//!   above each other.
//!
//! # No directory has a wrong `..`
//! Let a directory D have a name on the medium, in P. When it was made, `..` led to P before
//! the name. Every move, from P to Q, goes in four steps, each after the one before: the name
//! in Q, `..` to Q, the removal from P, the next change of D's names (N2, N4). So D has a name
//! where `..` leads, at each step. P is not freed in between: its own name is removed after the
//! third step (N5), and it is cleared after that. The link for `..` is counted in Q before the
//! first step, and taken off P after the third.
//!
//! A directory without a name promises nothing of `..`: it may lead to an inode that has been
//! freed, or used again. No path leads there, and no call gives it a name.

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

    /// Notes what further names of an inode come after: the name of a directory (N2), or what
    /// the first name of another file came after (N1).
    pub(super) fn found_on(&self, ino: Ino, patches: &[PatchId]) {
        let mut known = self.known.lock();
        known.entry(ino).or_default().foundation = patches.into();
    }

    /// What a further name comes after, besides the link that it takes (N1, N2).
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

    /// The names that lead from the root to a directory, as far as they are not durable (N3).
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

    /// What the arrival of a directory in `dir` comes after: the removals of the previous names
    /// of `dir` and of all above it (N6).
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
        // No path is longer than there are inodes; a damaged image may have a ring.
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

    /// What the removal or the replacement of a name comes after.
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

    /// What the removal of one of a file's names comes after (N3): all that fsync waits for,
    /// the other names among it, or what waits for it.
    fn other_names_of(&self, victim: &Attr) -> Befores {
        let known = self.known.lock();
        let unsettled = match known.get(&victim.ino) {
            Some(known) if victim.nlink > 1 => known.unsettled.patches(),
            _ => return Befores::new(),
        };
        let open = self.still_pending(unsettled);
        let open = open.filter(|_| !hit(Bug::UnlinkBeforeLink));
        after(Rule::LinkBeforeUnlink, open)
    }

    /// Notes what the removal of a name from a directory waits for, for N5.
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

    /// What removals of names from a directory wait for (N5).
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

    /// What last lowered an inode's link count, unless that is durable.
    pub(super) fn lowered(&self, ino: Ino) -> Option<PatchId> {
        let lowered = self.known.lock().get(&ino).and_then(|known| known.lowered);
        lowered.filter(|patch| self.format.store().is_pending(*patch))
    }
}
