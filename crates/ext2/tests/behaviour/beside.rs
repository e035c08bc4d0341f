//! Concurrent calls on a small image that is nearly full, in every mode. No call fails for another
//! thread's reason, and the image is as the mode promises.

use super::fixture::{device, mke2fs};
use blockfs::mount::{Devices, MountOptions, mount, recover};
use ext2::{Ext2, Mounted};
use medium::Rule;
use medium::block::{BlockDevice, BlockError, MemoryDevice};
use medium::block::{Persistence, Write};
use patch::stack::{CacheLayer, Mode, Stack};
use std::sync::Arc;
use vfs::check::{Report, Severity};
use vfs::{Ctx, Errno, Fallocate, FileSystem, Ino, Name, RenameFlags, Result};

const BLOCK: u64 = 1024;
/// Blocks that are free when the threads begin.
const FREE: u64 = 300;
const ROUNDS: usize = 80;

/// Memory with a cache, which yields to other threads at each write.
struct Yielding(Arc<MemoryDevice>);

impl medium::block::layer::DeviceLayer for Yielding {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.0
    }

    fn name(&self) -> &str {
        "yielding"
    }
    fn persistence(&self) -> Persistence {
        Persistence {
            volatile_cache: true,
            ..self.below().persistence()
        }
    }
    fn submit(&self, writes: Vec<Write>) {
        self.below().submit(writes);
        std::thread::yield_now();
    }
    fn flush(&self, rule: Rule) -> std::result::Result<(), BlockError> {
        std::thread::yield_now();
        self.below().flush(rule)
    }
}

fn mounted(disk: Arc<dyn BlockDevice>, mode: Mode) -> Mounted {
    let stack = Stack::new("ext2", mode).with_cache(CacheLayer {
        interval: None,
        // A sync of a file takes several waves, between which other calls run.
        wave: 64,
        ..CacheLayer::default()
    });
    let options = MountOptions {
        journal_blocks: Some(1024),
        ..MountOptions::default()
    };
    mount(&stack, Devices { disk, log: None }, &options).unwrap()
}

/// A mounted file system, and the directory of a thread.
struct ThreadDirectory<'a> {
    fs: &'a dyn FileSystem,
    cx: Ctx,
    dir: Ino,
}

/// Whether a call succeeded. It may find no room.
fn has_room<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(errno) => {
            assert_eq!(errno, Errno::NOSPC);
            false
        }
    }
}

impl ThreadDirectory<'_> {
    /// Makes a file, if there is room. The caller keeps no reference.
    fn make(&self, name: &[u8]) -> bool {
        let made = self.fs.create(&self.cx, self.dir, name, 0o644);
        if let Ok(attr) = &made {
            self.fs.forget(attr.ino, 1);
        }
        has_room(made)
    }

    fn write_and_sync(&self, file: Ino, random: &mut fastrand::Rng) {
        let data = vec![7; 64 * BLOCK as usize];
        for _ in 0..4 {
            has_room(
                self.fs
                    .write(&self.cx, file, random.u64(..4) * 64 * BLOCK, &data),
            );
        }
        self.fs.fsync(&self.cx, file, random.bool()).unwrap();
    }

    /// Frees the blocks of the file, which directories then take.
    fn cut_and_make_directories(&self, file: Ino) {
        self.fs.truncate(&self.cx, file, 0).unwrap();
        let names: Vec<Vec<u8>> = (0..40).map(|n| format!("d{n}").into_bytes()).collect();
        let mut made = Vec::new();
        for name in &names {
            let attr = self.fs.mkdir(&self.cx, self.dir, name, 0o755);
            if let Ok(attr) = &attr {
                self.fs.forget(attr.ino, 1);
                made.push(name);
            }
            has_room(attr);
        }
        for name in made {
            self.fs.rmdir(&self.cx, self.dir, name).unwrap();
        }
    }

    fn change_names(&self) {
        let (fs, cx, dir) = (self.fs, &self.cx, self.dir);
        if !self.make(b"first") {
            return;
        }
        let file = fs.lookup(cx, dir, b"first").unwrap().ino;
        let linked = fs.link(cx, file, dir, b"second");
        if linked.is_ok() {
            fs.forget(file, 1);
        }
        fs.forget(file, 1);
        let last = if has_room(linked) {
            let flags = RenameFlags::default();
            let renamed = fs.rename(
                cx,
                Name::new(dir, b"second"),
                Name::new(dir, b"third"),
                flags,
            );
            Some(if has_room(renamed) {
                b"third"
            } else {
                &b"second"[..]
            })
        } else {
            None
        };
        fs.unlink(cx, dir, b"first").unwrap();
        fs.fsyncdir(cx, dir, false).unwrap();
        if let Some(last) = last {
            fs.unlink(cx, dir, last).unwrap();
        }
    }

    fn allocate_and_punch(&self, file: Ino, random: &mut fastrand::Rng) {
        let (from, len) = (random.u64(..64) * BLOCK, random.u64(1..48) * BLOCK);
        let whole = Fallocate::Allocate { keep_size: false };
        has_room(self.fs.fallocate(&self.cx, file, whole, from, len));
        has_room(self.fs.write(&self.cx, file, from, &[9; 3000]));
        let punched = (self.fs).fallocate(&self.cx, file, Fallocate::PunchHole, from, len / 2);
        has_room(punched);
        self.fs.fsync(&self.cx, file, true).unwrap();
    }
}

/// Makes a file system with little room, and runs all threads on it.
fn run(mode: Mode, memory: &Arc<MemoryDevice>, seed: u64) -> Mounted {
    let mounted = mounted(Arc::new(Yielding(memory.clone())), mode);
    let (fs, cx) = (&**mounted.file_system(), Ctx::root());
    let mkdir = |name: &[u8]| fs.mkdir(&cx, Ino::ROOT, name, 0o755).unwrap().ino;
    let create = |name: &[u8]| fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
    let (cut, names, directories) = (create(b"cut"), mkdir(b"names"), mkdir(b"directories"));
    let (punched, ballast) = (create(b"punched"), create(b"ballast"));
    let room = fs.statfs().unwrap().blocks_free - FREE;
    let filled = fs.write(&cx, ballast, 0, &vec![1; (room * BLOCK) as usize]);
    assert_eq!(filled, Ok((room * BLOCK) as usize));
    fs.sync().unwrap();
    let own = |dir| ThreadDirectory {
        fs,
        cx: Ctx::root(),
        dir,
    };
    std::thread::scope(|scope| {
        let start = |number: u64,
                     f: &'static (dyn Fn(&ThreadDirectory<'_>, Ino, &mut fastrand::Rng) + Sync),
                     dir,
                     file| {
            let own = own(dir);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed + number);
                (0..ROUNDS).for_each(|_| f(&own, file, &mut random));
            });
        };
        start(
            1,
            &|own, file, random| own.write_and_sync(file, random),
            names,
            cut,
        );
        start(
            2,
            &|own, file, _| own.cut_and_make_directories(file),
            directories,
            cut,
        );
        start(3, &|own, _, _| own.change_names(), names, cut);
        start(
            4,
            &|own, file, random| own.allocate_and_punch(file, random),
            names,
            punched,
        );
        start(5, &|own, _, _| own.fs.sync().unwrap(), names, cut);
    });
    mounted
}

/// The checker's report on an image that was mounted again after a crash.
fn after_crash(bytes: Vec<u8>, mode: Mode) -> Report {
    let disk: Arc<dyn BlockDevice> = device(bytes);
    let again = mounted(disk.clone(), mode);
    again.close().unwrap();
    ext2::check(&*disk)
}

fn calls_beside_each_other(mode: Mode) {
    let image = mke2fs(&["-b", "1024", "-N", "256"], "4M");
    for seed in [0, 100, 200, 300] {
        let memory = device(image.clone());
        let mounted = run(mode, &memory, seed);
        mounted.cache().verify().unwrap();
        assert_eq!(mounted.file_system().audit(), []);
        if mode != Mode::Async {
            let found = after_crash(memory.bytes(), mode);
            let worst = match mode {
                Mode::SoftUpdates => Some(Severity::Leak),
                _ => None,
            };
            assert!(found.worst() <= worst, "{mode}: {found:#?}");
        }
        mounted.close().unwrap();
        let disk: Arc<dyn BlockDevice> = memory;
        let disk = recover::<Ext2>(&disk, None, false).unwrap();
        let found = ext2::check(&*disk);
        assert!(found.is_clean(), "{mode}: {found:#?}");
    }
}

#[test]
fn calls_beside_each_other_without_order() {
    calls_beside_each_other(Mode::Async);
}

#[test]
fn calls_beside_each_other_with_soft_updates() {
    calls_beside_each_other(Mode::SoftUpdates);
}

#[test]
fn calls_beside_each_other_with_a_metadata_journal() {
    calls_beside_each_other(Mode::JournalMetadata);
}

#[test]
fn calls_beside_each_other_with_an_ordered_journal() {
    calls_beside_each_other(Mode::JournalOrdered);
}

#[test]
fn calls_beside_each_other_with_a_full_journal() {
    calls_beside_each_other(Mode::Journal);
}
