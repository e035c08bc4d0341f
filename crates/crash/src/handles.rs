//! Inode numbers with their generations. A client may keep one for longer than the server lives,
//! as NFS does. It must never reach another file by it, whatever crashes came between.

use std::collections::BTreeMap;
use vfs::Ino;

/// Inode number and generation.
pub(crate) type Handle = (Ino, u64);

/// A file, by its inode number in the model, which no other file of a run ever has. The tested
/// file system reuses its own inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(pub Ino);

impl FileId {
    /// Stands for every file of an earlier life.
    const GONE: Self = Self(Ino(u64::MAX));
}

impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The file that each handle has named since some state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handles(BTreeMap<Handle, (FileId, usize)>);

impl Handles {
    /// Notes that `handle` names `file` in state number `state`.
    ///
    /// # Errors
    /// It has named another file.
    pub(crate) fn note(
        &mut self,
        handle: Handle,
        file: FileId,
        state: usize,
    ) -> Result<(), String> {
        let (named, _) = *self.0.entry(handle).or_insert((file, state));
        if named == file {
            Ok(())
        } else {
            Err(reused(handle))
        }
    }

    /// Demands that `handle`, of a file made after a crash, differs from all handles that
    /// callers had up to state number `newest`.
    pub(crate) fn refuse(&self, handle: Handle, newest: usize) -> Result<(), String> {
        match self.0.get(&handle) {
            Some((_, since)) if *since <= newest => Err(reused(handle)),
            _ => Ok(()),
        }
    }

    /// Adds the handles that callers had in an earlier life, up to its state number `newest`.
    ///
    /// # Errors
    /// A file that was made later has one of them.
    pub(crate) fn after(mut self, earlier: &Self, newest: usize) -> Result<Self, String> {
        for (handle, (_, since)) in &earlier.0 {
            if *since <= newest {
                let (_, again) = *self.0.entry(*handle).or_insert((FileId::GONE, 0));
                if again > 0 {
                    return Err(reused(*handle));
                }
            }
        }
        Ok(self)
    }
}

fn reused((ino, generation): Handle) -> String {
    format!("inode {ino} has the generation {generation} of a file that is gone")
}
