//! The mount scan (3.3.2): marks blocks and inodes in use, and counts links.
//!
//! One thread reads every directory first, and marks the blocks of directories. Several threads
//! then mark all other blocks; each takes a share of the inode numbers at a time. Marks and
//! counts are the same in any order, so with any number of threads.
//!
//! Bounded on any image: a block that is used twice ends the scan.
//!
//! The scan writes back all that it reads and that later calls trust, before any call relies on
//! it. A killed server may have left a commit in the caches. Once it was visible, a power
//! failure must not undo it. *Rule: durable before use.*

use crate::alloc::Bitmap;
use crate::dir;
use crate::error::{Fault, Res};
use crate::format::{BLOCK, BlockNo, Inode};
use crate::fs::Bpfs;
use crate::seeded::{Bug, hit};
use medium::{Pmem, Rule};
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use vfs::{FileType, Ino};

/// Inode numbers that a thread takes at a time; a multiple of 64.
const SHARE: u64 = 1024;

/// Threads for an inode file with `numbers` numbers: at most one for each CPU and for each
/// share. Small images are not worth a thread. With one thread the order of reads repeats
/// exactly, which the crash explorer relies on.
pub(crate) fn workers(numbers: u64) -> u64 {
    match numbers / SHARE {
        0 | 1 => 1,
        shares => shares.min(thread::available_parallelism().map_or(1, NonZero::get) as u64),
    }
}

/// Fills the maps of `fs`, which are empty except for super blocks and log.
pub(crate) fn run<P: Pmem>(fs: &Bpfs<P>, workers: u64) -> Res<()> {
    let mut names = Names {
        fs,
        marks: Marks::new(&fs.vol.map),
        dirs: Vec::new(),
    };
    names.run()?;
    let contents = Contents {
        fs,
        next: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, || contents.run());
        // If no thread can be started, this one does all the work.
        let others: Vec<_> = (1..workers).map_while(|n| start(n).ok()).collect();
        let mut done = contents.run();
        for other in others {
            done = done.and(
                other
                    .join()
                    .unwrap_or_else(|e| std::panic::resume_unwind(e)),
            );
        }
        done
    })
}

/// Blocks to mark; consecutive ones are marked together.
struct Marks<'f> {
    map: &'f Bitmap,
    run: Range<u64>,
}

impl<'f> Marks<'f> {
    fn new(map: &'f Bitmap) -> Self {
        Self { map, run: 0..0 }
    }

    /// Adds a block within the file system. A block that is used twice may be reported only
    /// later: when a block that does not follow it is added, or at the end.
    fn add(&mut self, block: BlockNo) -> Res<()> {
        if block.0 != self.run.end {
            self.finish()?;
            self.run.start = block.0;
        }
        self.run.end = block.0 + 1;
        Ok(())
    }

    /// Marks the blocks that are not marked yet.
    fn finish(&mut self) -> Res<()> {
        let run = std::mem::take(&mut self.run);
        let twice = |block| Fault::Corrupt(format!("block {block} is used twice"));
        self.map.mark_run(run).map_err(twice)
    }
}

/// Starts to write back bytes that were read.
fn start_write_back<P: Pmem>(fs: &Bpfs<P>, addr: u64, len: u64) {
    if !fs.read_only && !hit(Bug::MountUnflushed) {
        fs.vol.pm.flush(addr, len);
    }
}

/// Waits for the write-backs that this thread has started.
fn wait_for_write_back<P: Pmem>(fs: &Bpfs<P>) -> Res<()> {
    if !fs.read_only {
        fs.vol.pm.fence(Rule::DurableBeforeUse)?;
    }
    Ok(())
}

/// Marks the blocks of an inode, and counts them.
fn take_blocks<P: Pmem>(
    fs: &Bpfs<P>,
    marks: &mut Marks<'_>,
    ino: Ino,
    addr: u64,
    inode: &Inode,
) -> Res<()> {
    let tree = fs.vol.tree(addr)?;
    let is_dir = FileType::from_mode(inode.mode.get()) == Some(FileType::Directory);
    if is_dir && !tree.size.is_multiple_of(BLOCK) {
        let why = format!("inode {ino} is a directory of {} bytes", tree.size);
        return Err(Fault::Corrupt(why));
    }
    let mut blocks = 0;
    fs.vol.walk(&tree, &mut |block, height| {
        blocks += 1;
        if height > 0 || is_dir {
            start_write_back(fs, block.addr(), BLOCK);
        }
        marks.add(block).map(|()| true)
    })?;
    let xattr = fs.vol.pointer(inode.xattr.get())?;
    if !xattr.is_null() {
        blocks += 1;
        marks.add(xattr)?;
    }
    fs.table.node(ino).blocks.store(blocks, Relaxed);
    marks.finish()
}

/// The first part, by one thread: the inode file and the directories.
struct Names<'f, P: Pmem> {
    fs: &'f Bpfs<P>,
    marks: Marks<'f>,
    /// Directories still to be read.
    dirs: Vec<Ino>,
}

impl<P: Pmem> Names<'_, P> {
    fn run(&mut self) -> Res<()> {
        let fs = self.fs;
        let log_end = fs.info.log_start + fs.info.log_blocks;
        start_write_back(fs, 0, log_end * BLOCK);
        let record = BlockNo(fs.vol.root_record()? / BLOCK);
        self.marks.add(record)?;
        start_write_back(fs, record.addr(), BLOCK);
        self.inode_file()?;
        fs.inodes.mark(0); // there is no inode 0
        self.name(Ino::ROOT, FileType::Directory, Ino::ROOT)?;
        while let Some(dir) = self.dirs.pop() {
            self.directory(dir)?;
        }
        wait_for_write_back(fs)
    }

    fn inode_file(&mut self) -> Res<()> {
        let file = self.fs.vol.inode_file()?;
        let mut leaves = 0;
        self.fs.vol.walk(&file, &mut |block, height| {
            leaves += u64::from(height == 0);
            start_write_back(self.fs, block.addr(), BLOCK);
            self.marks.add(block).map(|()| true)
        })?;
        if leaves != file.valid_leaves() {
            return Err(Fault::Corrupt("the inode file has holes".into()));
        }
        self.marks.finish()
    }

    fn directory(&mut self, dir: Ino) -> Res<()> {
        let fs = self.fs;
        let tree = fs.vol.tree(fs.vol.inode_addr(dir)?)?;
        dir::for_blocks(&fs.vol, &tree, 0, &mut |base, bytes| {
            dir::parse(bytes, base, &mut |entry| {
                if entry.ino == 0 {
                    return Ok(());
                }
                let kind = FileType::from_code(entry.kind).ok_or_else(|| {
                    Fault::Corrupt(format!("directory {dir}, entry at {}: type", entry.pos))
                })?;
                self.name(Ino(entry.ino), kind, dir)
            })?;
            Ok(true)
        })
    }

    /// Counts an entry that names `ino`. The first time, marks the inode; a directory is put on
    /// the list of those to read.
    fn name(&mut self, ino: Ino, kind: FileType, parent: Ino) -> Res<()> {
        let fs = self.fs;
        let bad = |why: String| {
            Err(Fault::Corrupt(format!(
                "directory {parent} names inode {ino}{why}"
            )))
        };
        if ino.0 >= fs.inodes.len() || ino.0 == 0 {
            return bad(", which is outside the inode file".into());
        }
        let first = fs.inodes.mark(ino.0);
        let node = fs.table.node(ino);
        node.life.names.fetch_add(1, Relaxed);
        node.life.live.store(true, Relaxed);
        let addr = fs.vol.inode_addr(ino)?;
        let inode = fs.vol.inode(addr)?;
        let mode = inode.mode.get();
        if FileType::from_mode(mode) != Some(kind) {
            return bad(format!(", whose mode is {mode:o}, as a {kind:?}"));
        }
        if kind != FileType::Directory {
            return Ok(());
        }
        if !first {
            return bad(", a directory that has a name".into());
        }
        node.parent.store(parent.0, Relaxed);
        if ino != Ino::ROOT {
            fs.table.node(parent).subdirs.fetch_add(1, Relaxed);
        }
        self.dirs.push(ino);
        take_blocks(fs, &mut self.marks, ino, addr, &inode)
    }
}

/// The second part, by all threads: every inode that is not a directory.
struct Contents<'f, P: Pmem> {
    fs: &'f Bpfs<P>,
    /// The first inode number that no thread has taken.
    next: AtomicU64,
}

impl<P: Pmem> Contents<'_, P> {
    fn run(&self) -> Res<()> {
        let len = self.fs.inodes.len();
        let shares = || Some(self.next.fetch_add(SHARE, Relaxed)).filter(|first| *first < len);
        while let Some(first) = shares() {
            let done = self.share(first..len.min(first + SHARE));
            if done.is_err() {
                self.next.store(len, Relaxed); // the other threads stop
                return done;
            }
        }
        wait_for_write_back(self.fs)
    }

    fn share(&self, numbers: Range<u64>) -> Res<()> {
        let mut marks = Marks::new(&self.fs.vol.map);
        for first in numbers.clone().step_by(64) {
            let mut used = self.fs.inodes.used_64(first);
            while used != 0 {
                let ino = first + u64::from(used.trailing_zeros());
                used &= used - 1;
                if ino != 0 && ino < numbers.end {
                    self.inode(&mut marks, Ino(ino))?;
                }
            }
        }
        Ok(())
    }

    fn inode(&self, marks: &mut Marks<'_>, ino: Ino) -> Res<()> {
        let addr = self.fs.vol.inode_addr(ino)?;
        let inode = self.fs.vol.inode(addr)?;
        match FileType::from_mode(inode.mode.get()) {
            Some(FileType::Directory) => Ok(()),
            _ => take_blocks(self.fs, marks, ino, addr, &inode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MkfsOptions, MountOptions, mkfs};
    use medium::{MediumError, MemoryPmem};
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};
    use std::thread::ThreadId;
    use vfs::{Ctx, FileSystem, XattrMode};

    /// Several shares of inodes of every kind.
    fn crowded() -> Arc<MemoryPmem> {
        let pm = Arc::new(MemoryPmem::new(64 << 20));
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let fs = Bpfs::open(pm.clone(), MountOptions::default()).unwrap();
        let cx = Ctx::root();
        let mut dir = Ino::ROOT;
        for i in 0..4 * SHARE {
            let name = format!("{i}").into_bytes();
            if i % 500 == 0 {
                dir = fs.mkdir(&cx, dir, &name, 0o755).unwrap().ino;
                continue;
            }
            let ino = fs.create(&cx, dir, &name, 0o644).unwrap().ino;
            let off = (i % 7) << (3 * (i % 8));
            fs.write(&cx, ino, off, &vec![1; (i % 5000) as usize])
                .unwrap();
            match i % 9 {
                0 => drop(fs.link(&cx, ino, Ino::ROOT, &name).unwrap()),
                1 => fs.unlink(&cx, dir, &name).unwrap(),
                2 => {
                    let fresh = XattrMode::Create;
                    fs.setxattr(&cx, ino, b"user.a", b"b", fresh).unwrap();
                }
                _ => fs
                    .symlink(&cx, dir, &[&name[..], b"s"].concat(), b"x")
                    .map(drop)
                    .unwrap(),
            }
            fs.forget(ino, 1);
        }
        pm
    }

    /// All maps and counts that a scan fills.
    fn found(fs: &Bpfs<Arc<MemoryPmem>>) -> Vec<String> {
        let words = |map: &Bitmap| {
            let words = (0..map.len()).step_by(64).map(|first| map.used_64(first));
            format!("{} free, used {:x?}", map.free(), words.collect::<Vec<_>>())
        };
        let node = |n| {
            let node = fs.table.node(Ino(n));
            let counts = (&node.life.names, &node.subdirs, &node.blocks, &node.parent);
            format!("{n}: {:?} {counts:?}", node.life.live)
        };
        let maps = [words(&fs.vol.map), words(&fs.inodes)];
        maps.into_iter()
            .chain((0..fs.inodes.len()).map(node))
            .collect()
    }

    #[test]
    fn the_result_is_independent_of_the_number_of_threads() {
        let pm = crowded();
        let scanned = |workers| {
            let fs = Bpfs::unscanned(pm.clone(), MountOptions::default()).unwrap();
            run(&fs, workers).unwrap();
            fs
        };
        let alone = scanned(1);
        assert_eq!(alone.audit(), []);
        for workers in [2, 3, 8] {
            assert!(
                found(&scanned(workers)) == found(&alone),
                "{workers} threads"
            );
        }
    }

    #[test]
    fn a_block_that_is_used_twice_fails_the_scan() {
        let pm = crowded();
        let fs = Bpfs::unscanned(pm.clone(), MountOptions::default()).unwrap();
        run(&fs, 1).unwrap();
        // The last file of two blocks or more points to the root record, too.
        let last = (1..fs.inodes.len()).rev().find(|n| {
            let node = fs.table.node(Ino(*n));
            node.life.names.load(Relaxed) == 1
                && node.blocks.load(Relaxed) > 1
                && node.parent.load(Relaxed) == 0
        });
        let addr = fs.vol.inode_addr(Ino(last.unwrap())).unwrap();
        let slot = fs.vol.tree(addr).unwrap().ha.block().addr();
        pm.store_word(slot, fs.vol.root_record().unwrap() / BLOCK);
        for workers in [1, 3] {
            let fs = Bpfs::unscanned(pm.clone(), MountOptions::default()).unwrap();
            assert!(matches!(run(&fs, workers), Err(Fault::Corrupt(_))));
        }
    }

    /// Records the threads that have flushed and not fenced. A fence covers the flushes of its
    /// own thread only.
    struct Unfenced {
        inner: Arc<MemoryPmem>,
        flushed: Mutex<HashSet<ThreadId>>,
    }

    impl medium::layer::PmemLayer for Unfenced {
        type Below = MemoryPmem;

        fn below(&self) -> &MemoryPmem {
            &self.inner
        }

        fn flush(&self, off: u64, len: u64) {
            let me = thread::current().id();
            self.flushed.lock().unwrap().insert(me);
            self.inner.flush(off, len);
        }
        fn fence(&self, rule: Rule) -> Result<(), MediumError> {
            self.flushed.lock().unwrap().remove(&thread::current().id());
            self.inner.fence(rule)
        }
    }

    #[test]
    fn every_thread_fences_what_it_flushed() {
        let pm = Unfenced {
            inner: crowded(),
            flushed: Mutex::default(),
        };
        let fs = Bpfs::unscanned(&pm, MountOptions::default()).unwrap();
        run(&fs, 4).unwrap();
        assert_eq!(*pm.flushed.lock().unwrap(), HashSet::new());
    }
}
