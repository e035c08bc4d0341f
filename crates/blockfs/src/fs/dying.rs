//! Inodes that have neither a name nor a reference, while their blocks are freed.
//!
//! Many blocks take several operations. Meanwhile `statfs` counts the inode's blocks as free, and
//! an operation that finds no room waits for them.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
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
    /// Number of deaths whose inode number is free again, while their last operation ends.
    ending: usize,
    /// Number of inodes freed so far.
    ended: u64,
}

impl Inodes {
    /// Whether one is being freed, and none was since `ended` had been.
    fn must_wait(&self, ended: u64) -> bool {
        self.ended == ended && (!self.now.is_empty() || self.ending > 0)
    }
}

impl Dying {
    /// Adds an inode until the result is dropped. `None` if it is there already.
    pub(super) fn enter(&self, ino: Ino) -> Option<Death<'_>> {
        let is_new = self.inodes.lock().now.insert(ino);
        is_new.then_some(Death {
            all: self,
            ino,
            is_number_free: Cell::new(false),
        })
    }

    /// Number of inodes freed so far, for [`wait`](Self::wait).
    pub(super) fn ended(&self) -> u64 {
        self.inodes.lock().ended
    }

    /// Waits until more than `ended` inodes have been freed. Returns false if none is being freed.
    pub(super) fn wait(&self, ended: u64) -> bool {
        let mut inodes = self.inodes.lock();
        if inodes.must_wait(ended) {
            MutexGuard::unlocked(&mut inodes, || {
                tracing::debug!("a call without room waits for inodes that are being freed");
            });
        }
        while inodes.must_wait(ended) {
            self.ended.wait(&mut inodes);
        }
        inodes.ended != ended
    }
}

/// An inode among those that are being freed.
pub(super) struct Death<'a> {
    all: &'a Dying,
    ino: Ino,
    is_number_free: Cell<bool>,
}

impl Death<'_> {
    /// The inode.
    pub(super) fn ino(&self) -> Ino {
        self.ino
    }

    /// Lets the next inode with this number enter. Called with the tree locked, in the operation
    /// that frees the number: before this death ends, a new inode may have the number and die.
    pub(super) fn free_number(&self) {
        let mut inodes = self.all.inodes.lock();
        if !self.is_number_free.replace(true) {
            inodes.now.remove(&self.ino);
            inodes.ending += 1;
        }
    }
}

impl Drop for Death<'_> {
    fn drop(&mut self) {
        let mut inodes = self.all.inodes.lock();
        match self.is_number_free.get() {
            true => inodes.ending -= 1,
            false => drop(inodes.now.remove(&self.ino)),
        }
        inodes.ended += 1;
        drop(inodes);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_freed_by_one_thread_at_a_time() {
        let dying = Dying::default();
        let first = dying.enter(Ino(7));
        assert!(first.is_some());
        assert!(dying.enter(Ino(7)).is_none());
        assert!(dying.enter(Ino(8)).is_some());
        drop(first);
        assert!(dying.enter(Ino(7)).is_some());
    }

    #[test]
    fn a_number_is_free_before_the_operation_that_frees_it_ends() {
        let dying = Dying::default();
        let first = dying.enter(Ino(7)).unwrap();
        first.free_number();
        first.free_number();
        let second = dying.enter(Ino(7));
        assert!(second.is_some());
        drop(first);
        assert!(dying.enter(Ino(7)).is_none(), "the second one is there");
        drop(second);
        assert!(!dying.wait(dying.ended()));
    }

    #[test]
    fn a_wait_includes_operations_that_end() {
        let dying = Dying::default();
        let ended = dying.ended();
        let death = dying.enter(Ino(7)).unwrap();
        death.free_number();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| dying.wait(ended));
            drop(death);
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn a_wait_ends_when_an_inode_has_been_freed() {
        let dying = Dying::default();
        let ended = dying.ended();
        assert!(!dying.wait(ended), "nothing is being freed");
        let death = dying.enter(Ino(7));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| dying.wait(ended));
            drop(death);
            assert!(waiter.join().unwrap());
        });
        assert!(dying.wait(ended), "one was freed since");
        assert!(!dying.wait(dying.ended()), "none was freed since");
    }
}
