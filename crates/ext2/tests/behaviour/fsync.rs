//! Counts of the work of an fsync. It depends only on the file's changes since the last one.

use super::fixture::mke2fs;
use blockfs::mount::{Devices, MountOptions, mount};
use ext2::Mounted;
use medium::block::{BlockDevice, MemoryDevice};
use patch::stack::{CacheLayer, Mode, Stack};
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino, Name, OpenFlags, RenameFlags};

pub const BLOCK: u64 = 4096;
/// Blocks of the file that is synced, and of one that stays dirty.
const FILE_BLOCKS: u64 = 500;

/// An empty file system that writes nothing back by itself.
pub fn mounted(mode: Mode) -> Mounted {
    let image = mke2fs(&["-b", "4096"], "32M");
    mount_on(
        Arc::new(MemoryDevice::from_bytes(BLOCK as u32, image)),
        mode,
    )
}

/// Mounts the image on a device.
pub fn mount_on(disk: Arc<dyn BlockDevice>, mode: Mode) -> Mounted {
    let stack = Stack::new("ext2", mode).with_cache(CacheLayer {
        interval: None,
        ..CacheLayer::default()
    });
    mount(
        &stack,
        Devices { disk, log: None },
        &MountOptions::default(),
    )
    .unwrap()
}

/// A file full of data, open for writing.
fn full_file(mounted: &Mounted, name: &[u8]) -> Ino {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let ino = fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
    fs.open(&cx, ino, OpenFlags::WRITE).unwrap();
    let block = [1; BLOCK as usize];
    for index in 0..FILE_BLOCKS {
        fs.write(&cx, ino, index * BLOCK, &block).unwrap();
    }
    ino
}

/// Overwrites random blocks, each with an fsync. Returns the most patches that one fsync has
/// visited, and the number of waves of all of them.
fn cost(mounted: &Mounted, ino: Ino, writes: u64) -> (u64, u64) {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let mut random = fastrand::Rng::with_seed(7);
    let (mut most, start) = (0, mounted.cache().stats().waves);
    for round in 0..writes {
        let block = [round as u8; BLOCK as usize];
        let at = random.u64(0..FILE_BLOCKS) * BLOCK;
        fs.write(&cx, ino, at, &block).unwrap();
        let before = mounted.cache().stats().graph.visited;
        fs.fsync(&cx, ino, false).unwrap();
        most = most.max(mounted.cache().stats().graph.visited - before);
    }
    (most, mounted.cache().stats().waves - start)
}

#[test]
fn an_fsync_does_not_visit_durable_patches() {
    // In a journal, the data and the log are one level and the commit block is the next.
    for (mode, waves) in [
        (Mode::SoftUpdates, 1),
        (Mode::JournalOrdered, 2),
        (Mode::JournalMetadata, 2),
    ] {
        let mounted = mounted(mode);
        let ino = full_file(&mounted, b"file");
        mounted
            .file_system()
            .fsync(&Ctx::root(), ino, false)
            .unwrap();
        let few = cost(&mounted, ino, 20);
        let many = cost(&mounted, ino, 1000);
        assert!(
            many.0 <= few.0 + 4 && many.0 < 60,
            "{mode}: {few:?}, {many:?}"
        );
        // Sometimes the log's tail has to move first.
        assert!(many.1 <= 1000 * waves + 20, "{mode}: {many:?}");
    }
}

#[test]
fn an_fsync_does_not_look_at_other_files() {
    let mounted = mounted(Mode::SoftUpdates);
    let synced = full_file(&mounted, b"synced");
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    // Inodes of one block are written together.
    for n in 0..32 {
        let name = format!("between{n}");
        fs.create(&cx, Ino::ROOT, name.as_bytes(), 0o644).unwrap();
    }
    fs.sync().unwrap();
    let alone = cost(&mounted, synced, 20);
    full_file(&mounted, b"dirty");
    let dirty = mounted.cache().dirty();
    let beside = cost(&mounted, synced, 20);
    assert!(dirty as u64 >= FILE_BLOCKS, "{dirty}");
    assert_eq!(beside.1, alone.1);
    assert!(beside.0 <= alone.0 + 8, "{alone:?}, {beside:?}");
}

/// Overwrites 1,000 random blocks, each with an `fdatasync`. Returns the number of written blocks,
/// and of the waves that were made durable.
fn overwritten(mode: Mode) -> (u64, u64) {
    let mounted = mounted(mode);
    let ino = full_file(&mounted, b"file");
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    fs.sync().unwrap();
    let start = mounted.cache().stats();
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..1000 {
        let block = [round as u8; BLOCK as usize];
        fs.write(&cx, ino, random.u64(0..FILE_BLOCKS) * BLOCK, &block)
            .unwrap();
        fs.fsync(&cx, ino, true).unwrap();
    }
    let end = mounted.cache().stats();
    (end.writes - start.writes, end.waves - start.waves)
}

/// `fdatasync` of an overwritten file does not wait for its new times. Where data are logged, it
/// waits for the log in any case.
#[test]
fn an_fdatasync_does_not_wait_for_times() {
    for mode in [
        Mode::SoftUpdates,
        Mode::JournalMetadata,
        Mode::JournalOrdered,
    ] {
        assert_eq!(overwritten(mode), (1000, 1000), "{mode}");
    }
    let (_, waves) = overwritten(Mode::Journal);
    assert!(waves >= 2000, "{waves}");
}

/// The number of waves of an fsync of a file after this work.
fn waves_after(work: impl Fn(&Mounted, Ino)) -> u64 {
    let mounted = mounted(Mode::SoftUpdates);
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let dir = |name| fs.mkdir(&cx, Ino::ROOT, name, 0o755).unwrap().ino;
    let dirs = [dir(b"A"), dir(b"B")];
    let file = fs.create(&cx, dirs[0], b"file", 0o644).unwrap().ino;
    fs.mkdir(&cx, dirs[0], b"dir", 0o755).unwrap();
    fs.sync().unwrap();
    work(&mounted, file);
    let before = mounted.cache().stats().waves;
    fs.fsync(&cx, file, false).unwrap();
    for dir in dirs {
        fs.fsyncdir(&cx, dir, false).unwrap();
    }
    mounted.cache().stats().waves - before
}

fn directories(mounted: &Mounted) -> [Ino; 2] {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    [b"A", b"B"].map(|name| fs.lookup(&cx, Ino::ROOT, name).unwrap().ino)
}

/// Moves a name of `A` to `B` and back.
fn moves(mounted: &Mounted, name: &[u8], times: usize) {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let dirs = directories(mounted);
    for n in 0..times {
        let (from, to) = (dirs[n % 2], dirs[(n + 1) % 2]);
        fs.rename(
            &cx,
            Name::new(from, name),
            Name::new(to, name),
            RenameFlags::empty(),
        )
        .unwrap();
    }
}

/// Makes locks as mail programs do: a file with its own name, and a link to it.
fn locks(mounted: &Mounted, times: usize) {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let [a, b] = directories(mounted);
    for _ in 0..times {
        let own = fs.create(&cx, a, b"own", 0o644).unwrap().ino;
        fs.link(&cx, own, b, b"lock").unwrap();
        fs.unlink(&cx, a, b"own").unwrap();
        fs.unlink(&cx, b, b"lock").unwrap();
        fs.forget(own, 2);
    }
}

/// Each call does the work for the order that it adds.
#[test]
fn an_fsync_does_not_wait_for_all_renames_before_it() {
    let few = waves_after(|mounted, _| moves(mounted, b"file", 4));
    assert!((5..=64).contains(&few), "{few}");
    let most = [
        waves_after(|mounted, _| moves(mounted, b"file", 401)),
        waves_after(|mounted, _| moves(mounted, b"dir", 401)),
        waves_after(|mounted, _| locks(mounted, 400)),
    ];
    println!("{most:?}");
    assert!(most.iter().all(|waves| *waves <= 100), "{most:?}");
}
