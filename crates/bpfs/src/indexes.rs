//! Bounds the memory that indexes of directories take.
//!
//! Guarantees: all indexes together take at most the limit, those under a lock apart; an index
//! that was used since the last look at it stays longer than one that was not. An index is
//! read from its directory again when it is needed, so any may go at any time.
//!
//! The order of locks holds, since no lock of an inode is waited for here.

use crate::dir::DirIndex;
use crate::table::Table;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::Ino;

/// Memory for the indexes of one mount: some four million names.
pub(crate) const LIMIT_BYTES: u64 = 64 << 20;

/// Which directories have an index, and what all of them take.
pub(crate) struct Indexes {
    limit: u64,
    bytes: AtomicU64,
    /// Directories with an index, and some that had one: the next candidate first.
    clock: Mutex<VecDeque<Ino>>,
}

impl Indexes {
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            bytes: AtomicU64::new(0),
            clock: Mutex::default(),
        }
    }

    /// The index of `dir`, whose lock is held, is used. Counts what it takes by now, and
    /// drops others if all take too much.
    pub fn used(&self, dir: Ino, index: &mut DirIndex, table: &Table) {
        index.touch();
        let now = index.bytes();
        let before = std::mem::replace(&mut index.counted, now);
        if now == before {
            return;
        }
        let grown = now.wrapping_sub(before);
        let all = self.bytes.fetch_add(grown, Relaxed).wrapping_add(grown);
        if before == 0 {
            self.clock.lock().push_back(dir);
        }
        if all > self.limit {
            self.shrink(table);
        }
    }

    /// An index is no longer there.
    pub fn dropped(&self, index: &DirIndex) {
        self.bytes.fetch_sub(index.counted, Relaxed);
    }

    /// Drops indexes that nobody holds until all take little enough. Each that was used
    /// gets a second chance.
    fn shrink(&self, table: &Table) {
        let mut clock = self.clock.lock();
        for _ in 0..2 * clock.len() {
            if self.bytes.load(Relaxed) <= self.limit {
                break;
            }
            let Some(dir) = clock.pop_front() else { break };
            let Some(mut held) = table.node(dir).lock.try_write() else {
                clock.push_back(dir);
                continue;
            };
            match held.as_deref() {
                None => {} // the directory was removed
                Some(index) if index.was_touched() => clock.push_back(dir),
                Some(index) => {
                    self.dropped(index);
                    *held = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bpfs, MkfsOptions, MountOptions, mkfs};
    use medium::MemoryPmem;
    use vfs::{Ctx, Errno, FileSystem};

    #[test]
    fn many_directories_take_no_more_than_the_limit() {
        let pm = MemoryPmem::new(16 << 20);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let mut fs = Bpfs::open(&pm, MountOptions::default()).unwrap();
        let limit = 8 << 10;
        fs.indexes = Indexes::new(limit);
        let cx = Ctx::root();
        let name = |n: u32| format!("name {n}").into_bytes();
        let dirs: Vec<Ino> = (0..40)
            .map(|n| fs.mkdir(&cx, Ino::ROOT, &name(n), 0o755).unwrap().ino)
            .collect();
        for n in 0..50 {
            for dir in &dirs {
                let ino = fs.create(&cx, *dir, &name(n), 0o644).unwrap().ino;
                fs.forget(ino, 1);
                assert!(fs.indexes.bytes.load(Relaxed) <= limit);
            }
        }
        let kept = |dir: &&Ino| fs.table.node(**dir).lock.read().is_some();
        assert!((1..20).contains(&dirs.iter().filter(kept).count()));
        for (n, dir) in dirs.iter().enumerate() {
            let again = fs.create(&cx, *dir, &name(7), 0o644);
            assert_eq!(again.err(), Some(Errno::EXIST));
            let not_empty = fs.rmdir(&cx, Ino::ROOT, &name(n as u32));
            assert_eq!(not_empty, Err(Errno::NOTEMPTY));
            for n in 0..50 {
                fs.unlink(&cx, *dir, &name(n)).unwrap();
            }
            fs.rmdir(&cx, Ino::ROOT, &name(n as u32)).unwrap();
            fs.forget(*dir, 1);
        }
        assert_eq!(fs.audit(), []);
        let root = fs.table.node(Ino::ROOT).lock.read();
        let left = root.as_deref().map_or(0, |index| index.counted);
        assert_eq!(fs.indexes.bytes.load(Relaxed), left);
    }
}
