//! Children of `vfork`, as `posix_spawn` makes them: the memory is the parent's, all else is a copy.
//!
//! Guarantees:
//!
//! 1. The parent's other threads see nothing of what the child does with its descriptors, its working
//!    directory, its umask and its user.
//! 2. The child does not connect to the store: the connection would be the parent's as well, but its
//!    descriptors and threads would end with the child.

use super::{LOCAL, Process, REFERS, table};
use crate::abi::{FD_LIMIT, OWN, thread};
use crate::kernel::{self, Result};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};

/// Bytes of a table.
const TABLE: u64 = size_of::<[AtomicU32; FD_LIMIT]>() as u64;

/// A zeroed table of descriptors that no thread uses, or 0. So threads that end leave none.
static SPARE: AtomicU64 = AtomicU64::new(0);

/// The address of a zeroed table.
fn take_table() -> Result<u64> {
    match SPARE.swap(0, AcqRel) {
        0 => {
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            // SAFETY: a new mapping at an address of the kernel's choice.
            kernel::result(unsafe {
                crate::raw::syscall(libc::SYS_mmap, [0, TABLE, 3, flags, u64::MAX, 0])
            })
        }
        spare => Ok(spare),
    }
}

fn give_back_table(table: u64) {
    if SPARE.compare_exchange(0, table, AcqRel, Relaxed).is_err() {
        // SAFETY: the mapping of `take_table`, which nobody uses any more.
        let _ = unsafe { crate::raw::syscall(libc::SYS_munmap, [table, TABLE, 0, 0, 0, 0]) };
    }
}

impl Process {
    /// Prepares a table of descriptors for a child of `vfork`.
    pub(crate) fn before_vfork(&self) -> Result<()> {
        kernel::thread_id(); // in this memory, before the child looks there
        let thread = thread();
        let spare = take_table()?;
        if self.files().next().is_some() {
            let _ = self.fs(); // the child needs it for descriptors; its paths lead to the mount as well
        }
        // SAFETY: the mapping has this size and is zeroed; it stays until the end of the child.
        let copy = unsafe { &*(spare as *const [AtomicU32; FD_LIMIT]) };
        // Other threads may close descriptors later, before the kernel copies them: see `is_placeholder`.
        let unchanged = self.changes_descriptors();
        for (fd, number) in self.files() {
            let more = |users: u32| (users & !REFERS != 0).then_some(users + 1);
            let users = &LOCAL[number as usize];
            if users.fetch_update(AcqRel, Relaxed, more).is_ok() {
                copy[fd as usize].store(number + 1, Relaxed);
            }
        }
        drop(unchanged);
        for fd in crate::own::all() {
            copy[fd as usize].store(OWN, Relaxed);
        }
        thread.surroundings.copy(&self.own_surroundings);
        thread.attempts.store(0, Relaxed); // a child whose program has started leaves its number
        thread.fds.store(spare, Release);
        Ok(())
    }

    /// Ends the work for a child of `vfork`, if this thread had one and continues.
    pub(crate) fn after_vfork(&self) {
        let thread = thread();
        let used = thread.fds.load(Relaxed);
        if used == 0 || self.is_vfork_child() {
            return;
        }
        let left: Vec<(u32, u32)> = self.files().collect();
        for (fd, number) in left {
            table()[fd as usize].store(0, Relaxed);
            self.drop_user(number);
        }
        for fd in crate::own::all() {
            table()[fd as usize].store(0, Relaxed);
        }
        if let Some(cwd) = self.cwd_number() {
            thread.surroundings.cwd.store(0, Relaxed);
            self.drop_user(cwd);
        }
        thread.fds.store(0, Release);
        give_back_table(used);
    }

    /// Whether a child can share the memory: it could neither connect nor use the mount otherwise.
    pub(crate) fn can_share_memory(&self) -> bool {
        self.connected().is_some() || self.mounted().is_some()
    }

    /// Whether the thread runs as a child of `vfork`.
    pub(crate) fn is_vfork_child(&self) -> bool {
        thread().fds.load(Relaxed) != 0 && kernel::process_id() != self.id()
    }

    /// Whether the kernel executes calls on paths: this is a child of `vfork`, and its parent has not used the
    /// store.
    pub(crate) fn leaves_paths_to_mount(&self) -> bool {
        self.is_vfork_child() && self.connected().is_none()
    }

    /// Whether the kernel has a descriptor of the store at this number.
    pub(crate) fn is_placeholder(&self, fd: u32) -> bool {
        let of = kernel::device_and_inode;
        let Ok(found) = of(fd) else { return false };
        Some(found.0) == self.mounted() || Ok(found) == of(self.placeholder)
    }
}
