//! Bounds the memory for indexes of directories.
//!
//! Guarantee: all indexes together take at most the limit. While the largest is used, they take
//! at most its size and half of the limit. Indexes under a lock are not dropped, and each
//! counts as much as it took at its last use.
//!
//! While all take more than the limit, each index that grows causes two looks at the next
//! indexes in a circle. More looks follow if the bound is exceeded. An index stays if it was
//! used since the last look at it. Any index may be dropped at any time, since it is read from
//! its directory again when it is needed.
//!
//! The order of locks holds, since this module never waits for the lock of an inode.

use crate::dir::DirIndex;
use crate::table::Table;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use vfs::Ino;

/// Memory for the indexes of one mount, enough for some four million names.
pub(crate) const LIMIT_BYTES: u64 = 64 << 20;

/// Looks for each index that grows: more than one, since the circle may grow by that index.
const LOOKS: usize = 2;

/// The directories that have an index, and the memory that all of them take.
pub(crate) struct Indexes {
    limit: u64,
    kept: Mutex<Kept>,
}

/// Bytes that an index takes, and its directory.
type Share = (u64, Ino);

/// The indexes in memory.
struct Kept {
    /// All indexes, the largest last.
    by_size: BTreeSet<Share>,
    /// Bytes that all indexes take.
    bytes: u64,
    /// The last candidate to be dropped. The next one follows in `by_size`, in a circle.
    hand: Share,
}

impl Kept {
    fn remove(&mut self, index: Share) {
        if self.by_size.remove(&index) {
            self.bytes -= index.0;
        }
    }

    fn insert(&mut self, index: Share) {
        if self.by_size.insert(index) {
            self.bytes += index.0;
        }
    }

    /// Whether all take too much, even while the largest is used.
    fn is_over(&self, limit: u64) -> bool {
        let largest = self.by_size.last().map_or(0, |index| index.0);
        self.bytes > limit.max(largest + limit / 2)
    }

    /// Moves the hand to the next candidate.
    fn advance(&mut self) -> Option<Share> {
        let next = (self.hand.0, Ino(self.hand.1.0 + 1));
        let all = &self.by_size;
        self.hand = *all.range(next..).next().or_else(|| all.first())?;
        Some(self.hand)
    }
}

impl Indexes {
    pub(crate) fn new(limit: u64) -> Self {
        let kept = Kept {
            by_size: BTreeSet::new(),
            bytes: 0,
            hand: (0, Ino(0)),
        };
        Self {
            limit,
            kept: Mutex::new(kept),
        }
    }

    /// Records a use of the index of `dir`, whose lock is held. Counts its present size, and
    /// drops others if all take too much.
    pub(crate) fn used(&self, dir: Ino, index: &mut DirIndex, table: &Table) {
        index.touch();
        let now = index.bytes();
        let before = std::mem::replace(&mut index.counted, now);
        if now == before {
            return;
        }
        let mut kept = self.kept.lock();
        kept.remove((before, dir));
        kept.insert((now, dir));
        self.shrink(&mut kept, table);
    }

    /// Records that the index of `dir`, whose lock is held, was dropped.
    pub(crate) fn dropped(&self, dir: Ino, index: &DirIndex) {
        self.kept.lock().remove((index.counted, dir));
    }

    /// Looks at a few indexes, and at more until all take little enough. Drops those whose lock
    /// is free. Each used index gets a second chance. The largest stays if it was used, since
    /// it suffices to drop others.
    fn shrink(&self, kept: &mut Kept, table: &Table) {
        let mut spared = None;
        for look in 0..2 * kept.by_size.len() {
            if kept.bytes <= self.limit || (look >= LOOKS && !kept.is_over(self.limit)) {
                break;
            }
            let Some(candidate) = kept.advance() else {
                break;
            };
            let Some(mut held) = table.node(candidate.1).lock.try_write() else {
                continue;
            };
            let touched = held.as_deref().is_some_and(DirIndex::was_touched);
            if touched && kept.by_size.last() == Some(&candidate) {
                spared = Some(candidate);
            }
            if !touched && spared != Some(candidate) {
                *held = None;
                kept.remove(candidate);
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

    /// A file system whose indexes have a limit, and calls on it.
    struct Bench<'p> {
        fs: Bpfs<&'p MemoryPmem>,
        cx: Ctx,
    }

    fn name(n: u32) -> Vec<u8> {
        format!("name {n}").into_bytes()
    }

    impl<'p> Bench<'p> {
        fn new(pm: &'p MemoryPmem, limit: u64) -> Self {
            mkfs(pm, &MkfsOptions::default()).unwrap();
            let mut fs = Bpfs::open(pm, MountOptions::default()).unwrap();
            fs.indexes = Indexes::new(limit);
            let cx = Ctx::root();
            Self { fs, cx }
        }

        fn mkdir(&self, n: u32) -> Ino {
            let made = self.fs.mkdir(&self.cx, Ino::ROOT, &name(n), 0o755);
            made.unwrap().ino
        }

        fn create(&self, dir: Ino, n: u32) {
            let made = self.fs.create(&self.cx, dir, &name(n), 0o644).unwrap();
            self.fs.forget(made.ino, 1);
        }

        /// A directory whose index exceeds the limit, and the bytes of its index.
        fn large(&self) -> (Ino, u64) {
            let dir = self.mkdir(0);
            (0..2000).for_each(|n| self.create(dir, n));
            let size = self.fs.indexes.kept.lock().by_size.last().unwrap().0;
            assert!(size > self.fs.indexes.limit, "{size}");
            (dir, size)
        }

        fn is_kept(&self, dir: Ino) -> bool {
            self.fs.table.node(dir).lock.read().is_some()
        }

        /// Bytes of all indexes.
        fn bytes(&self) -> u64 {
            self.fs.indexes.kept.lock().bytes
        }
    }

    #[test]
    fn removed_directories_leave_nothing() {
        let pm = MemoryPmem::new(4 << 20);
        let Bench { fs, cx } = Bench::new(&pm, LIMIT_BYTES);
        let root = Ino::ROOT;
        for _ in 0..100 {
            let dir = fs.mkdir(&cx, root, b"dir", 0o755).unwrap().ino;
            let file = fs.create(&cx, dir, b"file", 0o644).unwrap().ino;
            fs.forget(file, 1);
            fs.unlink(&cx, dir, b"file").unwrap();
            fs.rmdir(&cx, root, b"dir").unwrap();
            fs.forget(dir, 1);
        }
        let kept = fs.indexes.kept.lock();
        let dirs: Vec<_> = kept.by_size.iter().map(|index| index.1).collect();
        assert_eq!(dirs, [root]);
        assert_eq!(kept.bytes, kept.by_size.first().unwrap().0);
    }

    #[test]
    fn the_largest_index_stays_while_it_is_used() {
        let pm = MemoryPmem::new(16 << 20);
        let limit = 16 << 10;
        let bench = Bench::new(&pm, limit);
        let (large, size) = bench.large();
        let use_large = || {
            let found = bench.fs.lookup(&bench.cx, large, &name(7)).unwrap();
            bench.fs.forget(found.ino, 1);
        };
        let others = (1..30).map(|n| {
            use_large();
            bench.mkdir(n)
        });
        let others: Vec<Ino> = others.collect();
        let grow = |from, used| {
            for n in from..from + 20 {
                for dir in &others {
                    bench.create(*dir, n);
                    assert!(bench.bytes() <= size + limit / 2);
                    if used {
                        assert!(bench.is_kept(large), "name {n} of {dir:?}");
                        use_large();
                    }
                }
            }
        };
        grow(0, true);
        assert!(others.iter().filter(|dir| bench.is_kept(**dir)).count() > 1);
        grow(20, false);
        assert!(!bench.is_kept(large));
        assert!(bench.bytes() <= limit);
    }

    #[test]
    fn an_unused_index_above_the_limit_is_dropped() {
        let pm = MemoryPmem::new(16 << 20);
        let limit = 16 << 10;
        let bench = Bench::new(&pm, limit);
        let (large, _) = bench.large();
        // The other indexes together stay below half of the limit.
        for n in 1..12 {
            bench.create(bench.mkdir(n), 0);
        }
        assert!(!bench.is_kept(large));
        assert!(bench.bytes() <= limit / 2);
        // The index is read again when it is needed.
        let again = bench.fs.create(&bench.cx, large, &name(7), 0o644);
        assert_eq!(again.err(), Some(Errno::EXIST));
    }

    #[test]
    fn many_directories_take_no_more_than_the_limit() {
        let pm = MemoryPmem::new(16 << 20);
        let limit = 8 << 10;
        let bench = Bench::new(&pm, limit);
        let dirs: Vec<Ino> = (0..40).map(|n| bench.mkdir(n)).collect();
        for n in 0..50 {
            for dir in &dirs {
                bench.create(*dir, n);
                assert!(bench.bytes() <= limit);
            }
        }
        let kept = dirs.iter().filter(|dir| bench.is_kept(**dir)).count();
        assert!((1..20).contains(&kept));
        let Bench { fs, cx } = &bench;
        for (n, dir) in dirs.iter().enumerate() {
            let again = fs.create(cx, *dir, &name(7), 0o644);
            assert_eq!(again.err(), Some(Errno::EXIST));
            let not_empty = fs.rmdir(cx, Ino::ROOT, &name(n as u32));
            assert_eq!(not_empty, Err(Errno::NOTEMPTY));
            for n in 0..50 {
                fs.unlink(cx, *dir, &name(n)).unwrap();
            }
            fs.rmdir(cx, Ino::ROOT, &name(n as u32)).unwrap();
            fs.forget(*dir, 1);
        }
        assert_eq!(fs.audit(), []);
        let root = fs.table.node(Ino::ROOT).lock.read();
        let left = root.as_deref().map_or(0, |index| index.counted);
        assert_eq!(bench.bytes(), left);
    }
}
