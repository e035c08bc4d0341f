//! Many threads on one file system: no deadlock, and no lost or double release. At the end the
//! maps, the tree, the checker and a new mount agree on one state.

use crate::fixture::*;
use bpfs::{Atime, Bpfs, Mode, MountOptions};
use fastrand::Rng;
use medium::{MediumError, Pmem, Rule};
use oracle::script::fill;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;
use vfs::{
    Attr, Cookie, Ctx, Errno, FileSystem, Ino, Name, OpenFlags, RenameFlags, SetAttr, SystemClock,
    XattrMode,
};

/// A time that only a deadlock exceeds, on the slowest machine too.
const PATIENCE: Duration = Duration::from_secs(300);

fn mounted(mode: Mode, bytes: u64) -> Arc<Fs> {
    let o = MountOptions {
        atime: Atime::Strict,
        clock: Arc::new(SystemClock),
        ..options(mode)
    };
    Arc::new(Bpfs::open(formatted(mode, bytes), o).unwrap())
}

/// Runs `work` on `threads` threads at once. Fails if one panics or they never end.
fn together(fs: &Arc<Fs>, threads: u64, work: impl Fn(&Fs, u64) + Send + Sync + Clone + 'static) {
    let (done, ended) = mpsc::channel();
    let start = Arc::new(Barrier::new(threads as usize));
    let workers: Vec<_> = (0..threads)
        .map(|n| {
            let (fs, start, work, done) = (fs.clone(), start.clone(), work.clone(), done.clone());
            thread::spawn(move || {
                start.wait();
                work(&fs, n);
                drop(done);
            })
        })
        .collect();
    drop(done);
    let waited: Result<(), _> = ended.recv_timeout(PATIENCE);
    assert_ne!(waited, Err(RecvTimeoutError::Timeout), "deadlock");
    for worker in workers {
        worker.join().unwrap();
    }
}

/// A reference that a thread holds, given back when dropped.
struct Held<'f> {
    fs: &'f Fs,
    attr: Attr,
}

impl<'f> Held<'f> {
    fn new(fs: &'f Fs, got: Result<Attr, Errno>) -> Result<Self, Errno> {
        got.map(|attr| Self { fs, attr })
    }

    fn ino(&self) -> Ino {
        self.attr.ino
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.attr.ino, 1);
    }
}

/// Whether concurrent changes may make a call fail with `errno`. `EIO` and `ESTALE` are
/// failures, since every thread holds references to the inodes that it uses.
fn is_expected(errno: Errno) -> bool {
    const ALL: [Errno; 11] = [
        Errno::NODEV,
        Errno::NOENT,
        Errno::EXIST,
        Errno::NOTEMPTY,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::INVAL,
        Errno::NOSPC,
        Errno::NODATA,
        Errno::PERM,
        Errno::NXIO,
    ];
    ALL.contains(&errno)
}

/// The random calls of one thread, on names that all threads share.
struct Chaos<'f> {
    fs: &'f Fs,
    cx: Ctx,
    rng: Rng,
    dirs: Vec<Held<'f>>,
    open: Vec<Ino>,
}

impl<'f> Chaos<'f> {
    fn new(fs: &'f Fs, seed: u64, dirs: &[&str]) -> Self {
        let cx = root();
        let dirs = dirs
            .iter()
            .map(|name| Held::new(fs, fs.lookup(&cx, Ino::ROOT, name.as_bytes())).unwrap());
        Self {
            dirs: dirs.collect(),
            rng: Rng::with_seed(seed),
            open: Vec::new(),
            cx,
            fs,
        }
    }

    fn dir(&mut self) -> Ino {
        let n = self.rng.usize(..self.dirs.len());
        self.dirs[n].ino()
    }

    fn name(&mut self) -> Vec<u8> {
        let long = if self.rng.u8(..8) == 0 { 200 } else { 1 };
        vec![b'a' + self.rng.u8(..6); long]
    }

    fn any(&mut self) -> Result<Held<'f>, Errno> {
        let (dir, name) = (self.dir(), self.name());
        Held::new(self.fs, self.fs.lookup(&self.cx, dir, &name))
    }

    fn names(&mut self) -> Result<(), Errno> {
        let (fs, cx) = (self.fs, self.cx.clone());
        let (dir, name) = (self.dir(), self.name());
        match self.rng.u8(..9) {
            0 | 1 => Held::new(fs, fs.create(&cx, dir, &name, 0o644)).map(drop),
            2 => Held::new(fs, fs.mkdir(&cx, dir, &name, 0o755)).map(drop),
            3 => Held::new(fs, fs.symlink(&cx, dir, &name, &[b'x'; 300])).map(drop),
            4 => {
                let from = self.any()?;
                Held::new(fs, fs.link(&cx, from.ino(), dir, &name)).map(drop)
            }
            5 | 6 => fs.unlink(&cx, dir, &name),
            7 => fs.rmdir(&cx, dir, &name),
            _ => {
                let (to, new_name) = (self.dir(), self.name());
                let flags = match self.rng.u8(..4) {
                    0 => RenameFlags::NO_REPLACE,
                    1 => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                fs.rename(&cx, Name::new(dir, &name), Name::new(to, &new_name), flags)
            }
        }
    }

    fn contents(&mut self) -> Result<(), Errno> {
        let (fs, cx) = (self.fs, self.cx.clone());
        let file = self.any()?;
        let ino = file.ino();
        let off = self.rng.u64(..100_000);
        match self.rng.u8(..10) {
            0 | 1 => {
                let data = vec![7; self.rng.usize(1..10_000)];
                fs.write(&cx, ino, off, &data).map(drop)
            }
            2 => fs.truncate(&cx, ino, off),
            3 | 4 => fs.read(&cx, ino, off, &mut [0; 5000]).map(drop),
            5 => fs.setxattr(&cx, ino, b"user.x", &[1; 50], XattrMode::Set),
            6 => fs.removexattr(&cx, ino, b"user.x"),
            7 => {
                let set = SetAttr {
                    perm: Some(self.rng.u32(..0o1000)),
                    mtime: Some(vfs::SetTime::Now),
                    ..SetAttr::default()
                };
                fs.setattr(&cx, ino, &set).map(drop)
            }
            8 => fs.fallocate(&cx, ino, vfs::Fallocate::PunchHole, off / 2, 9000),
            _ => {
                let got = fs.getattr(&cx, ino)?;
                assert_eq!((got.ino, got.kind), (ino, file.attr.kind));
                assert_eq!(got.generation, file.attr.generation);
                fs.readlink(&cx, ino).map(drop)
            }
        }
    }

    /// Opens files that lose their names, and makes files without one.
    fn lives(&mut self) -> Result<(), Errno> {
        let (fs, cx) = (self.fs, self.cx.clone());
        match self.rng.u8(..5) {
            0 if self.open.len() < 8 => {
                let file = self.any()?;
                fs.open(&cx, file.ino(), OpenFlags::READ)?;
                self.open.push(file.ino());
            }
            1 => {
                let dir = self.dir();
                let file = Held::new(fs, fs.tmpfile(&cx, dir, 0o600))?;
                fs.write(&cx, file.ino(), 0, &[3; 5000])?;
                if self.rng.bool() {
                    let name = self.name();
                    Held::new(fs, fs.link(&cx, file.ino(), dir, &name))?;
                }
            }
            2 => {
                if let Some(ino) = self.open.pop() {
                    fs.getattr(&cx, ino)?;
                    fs.release(ino);
                }
            }
            3 => {
                let dir = self.dir();
                let mut seen = Vec::new();
                fs.readdirplus(&cx, dir, Cookie(0), &mut |e, attr| {
                    assert_eq!(Some(e.ino), attr.map(|attr| attr.ino));
                    let dots = matches!(e.name, b"." | b"..");
                    if !dots {
                        seen.push(e.ino);
                    }
                    true
                })?;
                for ino in seen {
                    let alive = fs.getattr(&cx, ino).map(drop);
                    fs.forget(ino, 1);
                    alive?;
                }
            }
            _ => {
                let dir = self.dir();
                fs.readdir(&cx, dir, Cookie(0), &mut |_| true)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, calls: u64) {
        for _ in 0..calls {
            let done = match self.rng.u8(..10) {
                0..5 => self.names(),
                5..8 => self.contents(),
                _ => self.lives(),
            };
            if let Err(e) = done {
                assert!(is_expected(e), "{e:?}");
            }
        }
        for ino in std::mem::take(&mut self.open) {
            self.fs.release(ino);
        }
    }
}

fn chaos(mode: Mode, threads: u64, calls: u64, bytes: u64) {
    let fs = mounted(mode, bytes);
    let dirs = ["d0", "d1", "d2"];
    for name in dirs {
        dir_in(&*fs, Ino::ROOT, name);
    }
    together(&fs, threads, move |fs, n| {
        Chaos::new(fs, n + 1, &dirs).run(calls);
    });
    must_be_healthy_after_threads(&fs);
    // Once all names are removed, only the inode file and the root directory are left.
    for name in dirs {
        remove_all(&fs, ino(&*fs, name));
    }
    must_be_healthy_after_threads(&fs);
}

/// As [`must_be_healthy`], without a comparison of times.
fn must_be_healthy_after_threads(fs: &Fs) {
    assert_eq!(fs.audit(), [], "mode {}", fs.info().mode);
    assert_eq!(bpfs::check(&**fs.pmem()).findings, []);
    let (live, again) = (snapshot(fs), snapshot(&remounted(fs)));
    assert!(
        live.is_same_except_times(&again),
        "{:#?}",
        live.diff(&again)
    );
}

fn remove_all(fs: &Fs, dir: Ino) {
    for (name, child, _) in list(fs, dir, Cookie(0)) {
        if name == "." || name == ".." {
            continue;
        }
        if fs.unlink(&root(), dir, name.as_bytes()) == Err(Errno::ISDIR) {
            remove_all(fs, child);
            fs.rmdir(&root(), dir, name.as_bytes()).unwrap();
        }
    }
}

#[test]
fn concurrent_calls_leave_one_state_in_mode_log() {
    chaos(Mode::Log, 8, 20_000, 16 * MIB);
}

#[test]
fn concurrent_calls_leave_one_state_in_mode_other() {
    chaos(Mode::Other, 8, 20_000, 16 * MIB);
}

#[test]
fn concurrent_calls_leave_one_state_in_mode_sp() {
    chaos(Mode::Sp, 4, 3_000, 16 * MIB);
}

/// The image is full most of the time, so that calls fail half-way.
#[test]
fn concurrent_calls_leave_one_state_on_a_full_image() {
    chaos(Mode::Log, 6, 15_000, MIB);
    chaos(Mode::Other, 6, 10_000, MIB);
}

/// The files of a thread hold the bytes that it wrote last, whatever the other threads do.
#[test]
fn files_of_a_thread_hold_its_last_writes() {
    for mode in [Mode::Log, Mode::Other] {
        let fs = mounted(mode, 64 * MIB);
        let shared = dir_in(&*fs, Ino::ROOT, "shared");
        together(&fs, 6, move |fs, n| own_files(fs, shared, n));
        must_be_healthy_after_threads(&fs);
    }
}

fn own_files(fs: &Fs, dir: Ino, thread: u64) {
    let mut rng = Rng::with_seed(thread + 100);
    let mut mine: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let name = |n: u64| format!("{thread} has {n}").into_bytes();
    for step in 0..4000u32 {
        let n = rng.u64(..10);
        let Some(data) = mine.get_mut(&n) else {
            fs.forget(fs.create(&root(), dir, &name(n), 0o600).unwrap().ino, 1);
            mine.insert(n, Vec::new());
            continue;
        };
        let file = Held::new(fs, fs.lookup(&root(), dir, &name(n))).unwrap();
        match rng.u8(..8) {
            0..4 => {
                let off = rng.usize(..40_000);
                let mut new = vec![0; rng.usize(1..9000)];
                fill(step, off as u64, &mut new);
                write(fs, file.ino(), off as u64, &new);
                data.resize(data.len().max(off + new.len()), 0);
                data[off..off + new.len()].copy_from_slice(&new);
            }
            4 => {
                let size = rng.usize(..50_000);
                fs.truncate(&root(), file.ino(), size as u64).unwrap();
                data.resize(size, 0);
            }
            5 => {
                // Rename to a new name or over another file of this thread.
                let to = rng.u64(..10);
                let over = RenameFlags::empty();
                fs.rename(
                    &root(),
                    Name::new(dir, &name(n)),
                    Name::new(dir, &name(to)),
                    over,
                )
                .unwrap();
                let moved = mine.remove(&n).unwrap();
                mine.insert(to, moved);
            }
            6 => {
                fs.unlink(&root(), dir, &name(n)).unwrap();
                let gone = mine.remove(&n).unwrap();
                // The reference keeps the contents, although other threads take blocks now.
                assert!(read(fs, file.ino(), 0, 60_000) == gone, "{thread}: {n}");
            }
            _ => assert!(read(fs, file.ino(), 0, 60_000) == *data, "{thread}: {n}"),
        }
    }
    for (n, data) in mine {
        let file = Held::new(fs, fs.lookup(&root(), dir, &name(n))).unwrap();
        assert!(read(fs, file.ino(), 0, 60_000) == data, "{thread}: {n}");
    }
}

/// Removes the last name and the last reference of a file at the same time. Other threads make
/// files that get its number and its blocks.
#[test]
fn the_last_name_and_the_last_reference_may_be_removed_at_once() {
    let fs = mounted(Mode::Other, 4 * MIB);
    let before = free(&*fs);
    let meet = Arc::new(Barrier::new(2));
    let turn = Arc::new(Mutex::new(Ino::ROOT));
    together(&fs, 4, move |fs, n| match n {
        0 => {
            for _ in 0..20_000 {
                let made = fs.create(&root(), Ino::ROOT, b"brief", 0o644).unwrap().ino;
                write(fs, made, 0, &[1; 100]);
                *turn.lock().unwrap() = made;
                meet.wait();
                fs.unlink(&root(), Ino::ROOT, b"brief").unwrap();
                meet.wait();
            }
        }
        1 => {
            for _ in 0..20_000 {
                meet.wait();
                let made = *turn.lock().unwrap();
                fs.forget(made, 1);
                meet.wait();
            }
        }
        _ => {
            let name = format!("other {n}").into_bytes();
            for step in 0..20_000 {
                let made = fs.create(&root(), Ino::ROOT, &name, 0o644).unwrap().ino;
                let mut data = [0; 200];
                fill(step, n * 1000, &mut data);
                write(fs, made, 0, &data);
                assert_eq!(read(fs, made, 0, 300), data);
                fs.unlink(&root(), Ino::ROOT, &name).unwrap();
                fs.forget(made, 1);
            }
        }
    });
    must_be_healthy_after_threads(&fs);
    assert!(before - free(&*fs) <= 2, "{} of {before}", free(&*fs));
}

/// Callers without references get `ESTALE`, or another file at worst.
#[test]
fn calls_without_a_reference_do_no_harm() {
    let fs = mounted(Mode::Log, 4 * MIB);
    let d = dir_in(&*fs, Ino::ROOT, "d");
    together(&fs, 4, move |fs, n| {
        let mut rng = Rng::with_seed(n);
        for _ in 0..15_000 {
            let guess = Ino(rng.u64(3..20));
            let name = [b'a' + rng.u8(..4)];
            let done = match rng.u8(..9) {
                0 | 1 => fs
                    .create(&root(), d, &name, 0o644)
                    .map(|a| fs.forget(a.ino, 1)),
                2 => fs
                    .mkdir(&root(), d, &name, 0o755)
                    .map(|a| fs.forget(a.ino, 1)),
                3 => fs.unlink(&root(), d, &name),
                4 => fs.rmdir(&root(), d, &name),
                5 => fs.write(&root(), guess, 0, &[5; 5000]).map(drop),
                6 => fs.truncate(&root(), guess, rng.u64(..9000)),
                7 => fs.lookup(&root(), guess, b"x").map(|a| fs.forget(a.ino, 1)),
                _ => fs.setxattr(&root(), guess, b"user.x", b"1", XattrMode::Set),
            };
            if let Err(e) = done {
                assert!(is_expected(e) || e == Errno::STALE, "{e:?}");
            }
        }
    });
    must_be_healthy_after_threads(&fs);
}

/// Refused calls must keep the order of locks too: a link to the directory above, while that
/// directory is asked to remove the one below.
#[test]
fn refused_links_to_directories_do_not_deadlock() {
    let fs = mounted(Mode::Log, MIB);
    let outer = dir_in(&*fs, Ino::ROOT, "outer");
    let inner = fs.mkdir(&root(), outer, b"inner", 0o755).unwrap().ino;
    together(&fs, 2, move |fs, n| {
        for _ in 0..20_000 {
            if n == 0 {
                let refused = fs.link(&root(), outer, inner, b"x").err();
                assert!(
                    matches!(refused, Some(Errno::PERM | Errno::NOENT)),
                    "{refused:?}"
                );
            } else {
                let refused = fs.unlink(&root(), outer, b"inner").err();
                assert_eq!(refused, Some(Errno::ISDIR));
            }
        }
    });
    must_be_healthy_after_threads(&fs);
}

/// A file is exchanged with a directory that has another name of it, and the file has the lower
/// number. The directory must still be locked first.
#[test]
fn a_directory_is_locked_before_the_file_it_is_exchanged_with() {
    let fs = mounted(Mode::Log, MIB);
    let file = file(&*fs, "a");
    let dir = dir_in(&*fs, Ino::ROOT, "b");
    assert!(file < dir);
    fs.link(&root(), file, dir, b"inside").unwrap();
    together(&fs, 2, move |fs, n| {
        for _ in 0..20_000 {
            if n == 0 {
                let swap = RenameFlags::EXCHANGE;
                rename(fs, (Ino::ROOT, "a"), (Ino::ROOT, "b"), swap).unwrap();
            } else {
                fs.unlink(&root(), dir, b"inside").unwrap();
                fs.link(&root(), file, dir, b"inside").unwrap();
            }
        }
    });
    must_be_healthy_after_threads(&fs);
}

type Look = Box<dyn Fn(u64) + Send>;

/// Memory that calls `look` in every fence, if set, with the number of fences before.
struct LooksInFence {
    inner: Memory,
    fenced: AtomicU64,
    look: Mutex<Option<Look>>,
}

impl medium::layer::PmemLayer for LooksInFence {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.inner
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        if let Some(look) = &*self.look.lock().unwrap() {
            look(self.fenced.load(SeqCst));
        }
        self.inner.fence(rule)?;
        self.fenced.fetch_add(1, SeqCst);
        Ok(())
    }
}

/// A lookup returns only durable state: it waits for a change in progress. Each fence gives it
/// time to return something else; correct code passes with any time.
#[test]
fn lookups_return_only_durable_state() {
    let pm = Arc::new(LooksInFence {
        inner: formatted(Mode::Log, MIB),
        fenced: AtomicU64::new(0),
        look: Mutex::default(),
    });
    let fs = Arc::new(Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(Mode::Log)).unwrap());
    let f = file(&*fs, "f");
    let (sender, seen) = mpsc::channel();
    let looker = (fs.clone(), pm.clone());
    *pm.look.lock().unwrap() = Some(Box::new(move |fence| {
        let ((fs, pm), sender) = (looker.clone(), sender.clone());
        let (done, moment) = mpsc::channel::<()>();
        thread::spawn(move || {
            let attr = fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
            let within = pm.fenced.load(SeqCst) == fence;
            drop(done);
            fs.forget(attr.ino, 1);
            sender.send((attr.size, within)).unwrap();
        });
        let _ = moment.recv_timeout(Duration::from_millis(100));
    }));
    let before = pm.fenced.load(SeqCst);
    fs.truncate(&root(), f, 5000).unwrap();
    *pm.look.lock().unwrap() = None;
    let all: Vec<_> = seen.iter().collect();
    assert_eq!(all.len() as u64, pm.fenced.load(SeqCst) - before);
    for seen in all {
        assert!([(5000, false), (0, false), (0, true)].contains(&seen));
    }
}
