//! Inodes that have neither a name nor a reference, while their blocks are freed.
//!
//! That takes several operations if there are many blocks. Meanwhile the inode's blocks
//! count as free, and an operation that finds no room waits for them.

use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use vfs::Ino;

/// The inodes that are being freed.
#[derive(Debug, Default)]
pub(super) struct Dying {
    inodes: Mutex<Inodes>,
    /// An inode has been freed, or could not be.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Inodes {
    now: HashSet<Ino>,
    /// How many were freed so far.
    ended: u64,
}

impl Dying {
    /// Adds an inode for as long as the result lives. `None` if it is there already.
    pub fn enter(&self, ino: Ino) -> Option<Death<'_>> {
        let is_new = self.inodes.lock().now.insert(ino);
        is_new.then_some(Death { all: self, ino })
    }

    /// How many have been freed so far, for [`wait`](Self::wait).
    pub fn ended(&self) -> u64 {
        self.inodes.lock().ended
    }

    /// Waits until one has been freed since there were `ended`. Returns false if none is
    /// being freed.
    pub fn wait(&self, ended: u64) -> bool {
        let mut inodes = self.inodes.lock();
        while inodes.ended == ended {
            if inodes.now.is_empty() {
                return false;
            }
            self.ended.wait(&mut inodes);
        }
        true
    }
}

/// An inode among those that are being freed.
pub(super) struct Death<'a> {
    all: &'a Dying,
    ino: Ino,
}

impl Drop for Death<'_> {
    fn drop(&mut self) {
        let mut inodes = self.all.inodes.lock();
        inodes.now.remove(&self.ino);
        inodes.ended += 1;
        drop(inodes);
        self.all.ended.notify_all();
    }
}
