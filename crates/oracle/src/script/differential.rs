//! The model against the kernel: the same scripts run on [`ModelFs`] and, by real system calls,
//! on a directory of this machine. Every result and the whole visible state are compared.

use super::{Op, Script, State, generate, run, run_op, shrink};
use crate::{ModelFs, ModelOptions, Snapshot};
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::{
    Atime, Attr, Cookie, Ctx, DirEntry, Errno, Fallocate, FileFlags, FileSystem, FileType,
    Guarantees, Ino, ManualClock, Name, NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind,
    SetAttr, SetTime, StatFs, Timestamp, XattrMode,
};

/// A directory of this machine as a file system. Inodes are kept open, so that their numbers
/// are not reused. Calls that scripts and snapshots do not make are refused.
struct HostFs {
    nodes: Mutex<HashMap<Ino, Arc<OwnedFd>>>,
    root: u64,
}

const HERE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl HostFs {
    fn new(dir: &Path) -> Self {
        let fd = fs::open(dir, HERE, Mode::empty()).unwrap();
        let root = fs::fstat(&fd).unwrap().st_ino;
        Self {
            nodes: Mutex::new(HashMap::from([(Ino::ROOT, Arc::new(fd))])),
            root,
        }
    }

    fn fd(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        self.nodes.lock().get(&ino).cloned().ok_or(Errno::STALE)
    }

    /// A path that leads to the inode itself, even if it is a symbolic link.
    fn path(&self, ino: Ino) -> Result<PathBuf> {
        use std::os::fd::AsRawFd;
        Ok(format!("/proc/self/fd/{}", self.fd(ino)?.as_raw_fd()).into())
    }

    fn keep(&self, fd: OwnedFd) -> Result<Attr> {
        let attr = self.attr(&fd)?;
        self.nodes.lock().entry(attr.ino).or_insert(Arc::new(fd));
        Ok(attr)
    }

    fn attr(&self, fd: impl AsFd) -> Result<Attr> {
        let stat = fs::fstat(fd)?;
        let time = |secs: i64, nanos| Timestamp::from_parts(secs, nanos as u32);
        Ok(Attr {
            ino: if stat.st_ino == self.root {
                Ino::ROOT
            } else {
                Ino(stat.st_ino)
            },
            generation: 0,
            kind: FileType::from_mode(stat.st_mode).ok_or(Errno::IO)?,
            perm: stat.st_mode & 0o7777,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev as u32,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            blksize: stat.st_blksize as u32,
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            flags: FileFlags::empty(),
        })
    }

    /// Opens a regular file for data calls. The error for other types except directories is
    /// `other`, as the trait requires.
    fn data(&self, ino: Ino, other: Errno) -> Result<OwnedFd> {
        match self.attr(self.fd(ino)?)?.kind {
            FileType::Regular => fs::open(self.path(ino)?, OFlags::RDWR, Mode::empty()),
            FileType::Directory => Err(Errno::ISDIR),
            _ => Err(other),
        }
    }

    fn child(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.keep(fs::openat(self.fd(dir)?, name, HERE, Mode::empty())?)
    }

    fn names(&self, dir: Ino) -> Result<Vec<Vec<u8>>> {
        let fd = fs::openat(self.fd(dir)?, ".", OFlags::DIRECTORY, Mode::empty())?;
        let entries = fs::Dir::read_from(fd)?;
        entries
            .map(|entry| Ok(entry?.file_name().to_bytes().to_vec()))
            .collect()
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, fs::UTIME_OMIT),
        Some(SetTime::Now) => (0, fs::UTIME_NOW),
        Some(SetTime::At(at)) => {
            let (secs, nanos) = at.parts();
            (secs, nanos.into())
        }
    };
    Timespec { tv_sec, tv_nsec }
}

impl FileSystem for HostFs {
    fn guarantees(&self) -> Guarantees {
        ModelFs::default().guarantees()
    }
    fn lookup(&self, _: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.child(dir, name)
    }
    fn by_number(&self, ino: Ino) -> Result<Attr> {
        self.attr(self.fd(ino)?)
    }
    fn forget(&self, _: Ino, _: u64) {}
    fn getattr(&self, _: &Ctx, ino: Ino) -> Result<Attr> {
        self.attr(self.fd(ino)?)
    }
    fn setattr(&self, _: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let (fd, path) = (self.fd(ino)?, self.path(ino)?);
        if let Some(size) = set.size {
            let fd = self.data(ino, Errno::INVAL)?;
            fs::ftruncate(fd, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(fs::Uid::from_raw);
            let gid = set.gid.map(fs::Gid::from_raw);
            fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(perm) = set.perm {
            fs::chmod(&path, Mode::from_raw_mode(perm))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            fs::utimensat(&fd, "", &times, AtFlags::EMPTY_PATH)?;
        }
        self.attr(fd)
    }
    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.readdirplus(cx, dir, after, &mut |entry, _| sink(entry))
    }
    fn readdirplus(
        &self,
        _: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        assert_eq!(after, Cookie(0));
        for name in self.names(dir)? {
            // The parent of the root is outside the tree.
            let attr = match (dir, &*name) {
                (Ino::ROOT, b"..") => self.attr(self.fd(dir)?)?,
                _ => self.child(dir, &name)?,
            };
            let entry = DirEntry {
                ino: attr.ino,
                kind: attr.kind,
                name: &name,
                cookie: Cookie(1),
            };
            if !sink(&entry, Some(&attr)) {
                break;
            }
        }
        Ok(())
    }
    fn make(&self, _: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let (fd, name) = (self.fd(at.dir)?, at.name);
        let mode = Mode::from_raw_mode(new.mode());
        match new.kind() {
            FileType::Regular => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                return self.keep(fs::openat(fd, name, flags, mode)?);
            }
            FileType::Directory => fs::mkdirat(fd, name, mode)?,
            FileType::Symlink => fs::symlinkat(new.target(), fd, name)?,
            FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
                let kind = fs::FileType::from_raw_mode(new.kind().mode_bits());
                fs::mknodat(fd, name, kind, mode, new.rdev().into())?;
            }
        }
        self.child(at.dir, name)
    }
    fn readlink(&self, _: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        Ok(fs::readlinkat(self.fd(ino)?, "", Vec::new())?.into_bytes())
    }
    fn link(&self, _: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let (path, dir_fd) = (self.path(ino)?, self.fd(dir)?);
        fs::linkat(CWD, path, dir_fd, name, AtFlags::SYMLINK_FOLLOW)?;
        self.child(dir, name)
    }
    fn remove(&self, _: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let flags = match which {
            Removal::Unlink => AtFlags::empty(),
            Removal::Rmdir => AtFlags::REMOVEDIR,
        };
        fs::unlinkat(self.fd(at.dir)?, at.name, flags)
    }
    fn rename(&self, _: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        let flags = fs::RenameFlags::from_bits_retain(flags.bits());
        let (old, new) = (self.fd(from.dir)?, self.fd(to.dir)?);
        fs::renameat_with(old, from.name, new, to.name, flags)
    }
    fn tmpfile(&self, _: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        self.keep(fs::open(self.path(dir)?, flags, Mode::from_raw_mode(mode))?)
    }
    fn open(&self, _: &Ctx, _: Ino, _: OpenFlags) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        rustix::io::pread(self.data(ino, Errno::INVAL)?, buf, off)
    }
    fn write(&self, _: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        rustix::io::pwrite(self.data(ino, Errno::INVAL)?, data, off)
    }
    fn fallocate(&self, _: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        use fs::FallocateFlags as F;
        let keep = |keep: bool| if keep { F::KEEP_SIZE } else { F::empty() };
        let flags = match kind {
            Fallocate::Allocate { keep_size } => keep(keep_size),
            Fallocate::PunchHole => F::PUNCH_HOLE | F::KEEP_SIZE,
            Fallocate::ZeroRange { keep_size } => F::ZERO_RANGE | keep(keep_size),
        };
        fs::fallocate(self.data(ino, Errno::NODEV)?, flags, off, len)
    }
    fn seek(&self, _: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        let from = match kind {
            SeekKind::Data => fs::SeekFrom::Data(off),
            SeekKind::Hole => fs::SeekFrom::Hole(off),
        };
        fs::seek(self.data(ino, Errno::INVAL)?, from)
    }
    fn fsync(&self, _: &Ctx, ino: Ino, _: bool) -> Result<()> {
        self.fd(ino).map(drop)
    }
    fn fsyncdir(&self, _: &Ctx, ino: Ino, _: bool) -> Result<()> {
        match self.attr(self.fd(ino)?)?.kind {
            FileType::Directory => Ok(()),
            _ => Err(Errno::NOTDIR),
        }
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn statfs(&self) -> Result<StatFs> {
        Err(Errno::NOSYS)
    }
    fn getxattr(&self, _: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0; 65536];
        let len = fs::getxattr(self.path(ino)?, name, &mut value[..])?;
        value.truncate(len);
        Ok(value)
    }
    fn setxattr(
        &self,
        _: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let flags = match mode {
            XattrMode::Set => fs::XattrFlags::empty(),
            XattrMode::Create => fs::XattrFlags::CREATE,
            XattrMode::Replace => fs::XattrFlags::REPLACE,
        };
        fs::setxattr(self.path(ino)?, name, value, flags)
    }
    fn listxattr(&self, _: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut list = vec![0; 65536];
        let len = fs::listxattr(self.path(ino)?, &mut list[..])?;
        let names = list[..len].split(|&byte| byte == 0);
        // Labels of a security module are ignored.
        let ours = names.filter(|name| name.starts_with(b"user."));
        Ok(ours.map(<[u8]>::to_vec).collect())
    }
    fn removexattr(&self, _: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        fs::removexattr(self.path(ino)?, name)
    }
}

/// Directories on file systems that support all operations of scripts (overlays do not). Empty,
/// and recorded, unless the super-user runs the test, as scripts need.
fn hosts() -> Vec<tempfile::TempDir> {
    if !rustix::process::getuid().is_root() {
        skip::test("needs root: nothing is compared with the kernel");
        return Vec::new();
    }
    const TMPFS: i64 = 0x0102_1994;
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    let candidates = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let usable = candidates.into_iter().filter(|dir| {
        let stat = fs::statfs(dir);
        stat.is_ok_and(|stat| [TMPFS, EXT4, XFS].contains(&stat.f_type))
    });
    let hosts: Vec<_> = usable
        .filter_map(|dir| tempfile::tempdir_in(dir).ok())
        .collect();
    if hosts.is_empty() {
        skip::test("no file system here does all that scripts ask");
    }
    hosts
}

/// Whether this kernel lacks the operation, so that there is nothing to compare: zeroed ranges
/// on tmpfs, attributes and modes of symbolic links.
fn is_beyond_host(op: &Op, result: &Result<()>) -> bool {
    match op {
        Op::SetXattr { .. } | Op::RemoveXattr { .. } if *result == Err(Errno::PERM) => true,
        _ => *result == Err(Errno::OPNOTSUPP),
    }
}

/// Runs a script on both and describes the first difference.
fn difference(dir: &Path, script: &Script) -> Option<String> {
    let work = tempfile::tempdir_in(dir).unwrap();
    let mode = Mode::from_raw_mode(0o755);
    fs::chmod(work.path(), mode).unwrap();
    let host = HostFs::new(work.path());
    let model = ModelFs::default();
    let (mut host_state, mut state) = (State::default(), State::default());
    for (index, op) in script.ops.iter().enumerate() {
        let expected = run_op(&host, &mut host_state, op);
        if is_beyond_host(op, &expected) {
            continue;
        }
        let got = run_op(&model, &mut state, op);
        if got != expected {
            return Some(format!("{index}: {op}: {got:?}, kernel {expected:?}"));
        }
    }
    let (got, expected) = (Snapshot::take(&model), Snapshot::take(&host));
    let (got, expected) = (got.unwrap(), expected.unwrap());
    let diff = got.diff(&expected);
    assert_eq!(diff.is_empty(), got.is_same_except_times(&expected));
    assert_eq!(diff.is_empty(), got.hash() == expected.hash());
    (!diff.is_empty()).then(|| diff.join("\n"))
}

fn compare(dir: &Path, script: &Script) {
    let script = generate::setup().then(script);
    if difference(dir, &script).is_some() {
        let shrunk = shrink(&script, &mut |script| difference(dir, script).is_some());
        let difference = difference(dir, &shrunk).unwrap_or_default();
        panic!("in {}:\n{shrunk}{difference}", dir.display());
    }
}

#[test]
fn the_model_agrees_with_the_kernel() {
    rustix::process::umask(Mode::empty());
    for dir in hosts() {
        generate::sequences(1).for_each(|script| compare(dir.path(), &script));
        for seed in 0..150 {
            compare(dir.path(), &generate::random(seed, 150));
        }
    }
}

/// The times that each operation moves, on a fresh tree.
#[test]
fn the_model_moves_the_times_that_the_kernel_moves() {
    rustix::process::umask(Mode::empty());
    for dir in hosts() {
        for op in generate::all_ops() {
            let work = tempfile::tempdir_in(dir.path()).unwrap();
            let host = HostFs::new(work.path());
            let clock = Arc::new(ManualClock::new(Timestamp(0), 1));
            let model = ModelFs::new(ModelOptions {
                clock,
                atime: Atime::Never,
                ..ModelOptions::default()
            });
            let (result, expected) = moved(&host, op);
            if !is_beyond_host(op, &result) {
                assert_eq!(moved(&model, op), (result, expected), "{op}");
            }
        }
    }
}

/// The result of the operation, and the times that differ after it, except those of reads.
fn moved(fs: &dyn FileSystem, op: &Op) -> (Result<()>, Vec<String>) {
    let mut state = State::default();
    run(fs, &mut state, &generate::setup());
    let before = Snapshot::take(fs).unwrap();
    wait_for_a_tick();
    let result = run_op(fs, &mut state, op);
    let after = Snapshot::take(fs).unwrap();
    let lines = before.diff_times(&after);
    let what = lines.iter().filter_map(|line| line.split_once(": "));
    let what = what.map(|(path, what)| format!("{path} {}", &what[..5]));
    let moved = what.filter(|line| !line.ends_with("atime"));
    (result, moved.collect())
}

/// Waits until the coarse clock of the kernel, which stamps files, is past the present.
fn wait_for_a_tick() {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| {
        let now = clock_gettime(clock);
        (now.tv_sec, now.tv_nsec)
    };
    let present = read(ClockId::Realtime);
    while read(ClockId::RealtimeCoarse) <= present {
        std::thread::yield_now();
    }
}
