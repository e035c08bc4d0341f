//! The orphans of a mounted image in memory (see `orphan`).

use hashbrown::HashMap;
use patch::PatchId;
use std::collections::BTreeSet;

/// The orphans. 0 is the end of the list.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// Orphans that are not on the list.
    pub unlisted: BTreeSet<u32>,
    /// The first inode of the list.
    pub head: u32,
    /// The inodes before and after each listed one. 0 stands for the superblock, or for the end.
    pub known: HashMap<u32, (u32, u32)>,
    /// The last change of the superblock's pointer.
    pub head_set: PatchId,
}

impl Default for Orphans {
    fn default() -> Self {
        Self {
            unlisted: BTreeSet::new(),
            head: 0,
            known: HashMap::new(),
            head_set: PatchId::DURABLE,
        }
    }
}

impl Orphans {
    /// Whether an inode is an orphan, on the list or not.
    pub(crate) fn contains(&self, ino: u32) -> bool {
        self.unlisted.contains(&ino) || self.known.contains_key(&ino)
    }

    /// Puts an inode in front of the list.
    pub(crate) fn push(&mut self, ino: u32) {
        let next = std::mem::replace(&mut self.head, ino);
        if let Some((before, _)) = self.known.get_mut(&next) {
            *before = ino;
        }
        self.known.insert(ino, (0, next));
    }

    /// Removes an inode from the list. Returns the ones before and after it.
    pub(crate) fn take(&mut self, ino: u32) -> Option<(u32, u32)> {
        let (before, after) = self.known.remove(&ino)?;
        match self.known.get_mut(&before) {
            Some((_, next)) => *next = after,
            None => self.head = after,
        }
        if let Some((previous, _)) = self.known.get_mut(&after) {
            *previous = before;
        }
        Some((before, after))
    }
}
