//! File systems to test, and the checks of a healthy one.

use bpfs::{Atime, Bpfs, MkfsOptions, Mode, MountOptions, check, mkfs};
use medium::{MemoryPmem, Pmem};
use oracle::snapshot::Snapshot;
use std::sync::Arc;
use vfs::{
    Attr, Cookie, Ctx, Errno, FileSystem, Ino, ManualClock, Name, RenameFlags, SetAttr, Timestamp,
};

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;
/// A rename that may replace a file.
pub const PLAIN: RenameFlags = RenameFlags::empty();

pub type Memory = Arc<MemoryPmem>;
pub type Fs = Bpfs<Memory>;

/// Mount options that repeat exactly: each reading of the clock is a microsecond later, and
/// reads change no access time.
pub fn options(mode: Mode) -> MountOptions {
    MountOptions {
        read_only: false,
        mode: Some(mode),
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000)),
    }
}

pub fn formatted(mode: Mode, bytes: u64) -> Memory {
    let pm = Arc::new(MemoryPmem::new(bytes));
    let o = MkfsOptions {
        mode,
        ..MkfsOptions::default()
    };
    mkfs(&*pm, &o).unwrap();
    pm
}

pub fn fresh(mode: Mode, bytes: u64) -> Fs {
    Bpfs::open(formatted(mode, bytes), options(mode)).unwrap()
}

/// A new mount of the same medium. The old one must not be used for changes any more.
pub fn remounted(fs: &Fs) -> Fs {
    Bpfs::open(fs.pmem().clone(), options(fs.info().mode)).unwrap()
}

/// A medium with the same bytes.
pub fn copy_of(pm: &dyn Pmem) -> Memory {
    let mut bytes = vec![0; pm.len() as usize];
    pm.read(0, &mut bytes).unwrap();
    let copy = MemoryPmem::new(pm.len());
    copy.store_nt(0, &bytes);
    Arc::new(copy)
}

/// Asserts that the volatile maps agree with the tree, that the checker finds nothing, and that
/// a new mount shows the same.
pub fn must_be_healthy(fs: &Fs) {
    assert_eq!(fs.audit(), [], "mode {}", fs.info().mode);
    assert_eq!(check(&**fs.pmem()).findings, [], "mode {}", fs.info().mode);
    let (live, again) = (snapshot(fs), snapshot(&remounted(fs)));
    assert!(
        live.is_same_except_times(&again),
        "{:#?}",
        live.diff(&again)
    );
    assert!(
        live.has_same_times(&again),
        "times: {:#?}",
        live.diff(&again)
    );
}

pub fn snapshot(fs: &dyn FileSystem) -> Snapshot {
    Snapshot::take(fs).unwrap()
}

pub fn root() -> Ctx {
    Ctx::root()
}

/// Free blocks.
pub fn free(fs: &dyn FileSystem) -> u64 {
    fs.statfs().unwrap().blocks_free
}

/// Follows a path from the root; keeps no reference.
pub fn stat(fs: &dyn FileSystem, path: &str) -> Result<Attr, Errno> {
    let mut attr = fs.getattr(&root(), Ino::ROOT)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        attr = fs.lookup(&root(), attr.ino, name.as_bytes())?;
        fs.forget(attr.ino, 1);
    }
    Ok(attr)
}

pub fn ino(fs: &dyn FileSystem, path: &str) -> Ino {
    stat(fs, path).unwrap().ino
}

/// Makes an empty file in the root directory; keeps no reference.
pub fn file(fs: &dyn FileSystem, name: &str) -> Ino {
    file_in(fs, Ino::ROOT, name)
}

pub fn file_in(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    let made = fs.create(&root(), dir, name.as_bytes(), 0o644).unwrap().ino;
    fs.forget(made, 1);
    made
}

pub fn dir_in(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    let made = fs.mkdir(&root(), dir, name.as_bytes(), 0o755).unwrap().ino;
    fs.forget(made, 1);
    made
}

pub fn set(fs: &dyn FileSystem, ino: Ino, set: SetAttr) {
    fs.setattr(&root(), ino, &set).unwrap();
}

pub fn write(fs: &dyn FileSystem, ino: Ino, off: u64, data: &[u8]) {
    assert_eq!(fs.write(&root(), ino, off, data), Ok(data.len()));
}

pub fn read(fs: &dyn FileSystem, ino: Ino, off: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    let got = fs.read(&root(), ino, off, &mut buf).unwrap();
    buf.truncate(got);
    buf
}

pub fn rename(
    fs: &dyn FileSystem,
    (dir, name): (Ino, &str),
    (new_dir, new_name): (Ino, &str),
    flags: RenameFlags,
) -> Result<(), Errno> {
    let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
    fs.rename(
        &root(),
        Name::new(dir, name),
        Name::new(new_dir, new_name),
        flags,
    )
}

/// Names, inode numbers and cookies of a listing, `.` and `..` included.
pub fn list(fs: &dyn FileSystem, dir: Ino, after: Cookie) -> Vec<(String, Ino, Cookie)> {
    let mut entries = Vec::new();
    let mut sink = |e: &vfs::DirEntry<'_>| {
        let name = String::from_utf8(e.name.to_vec()).unwrap();
        entries.push((name, e.ino, e.cookie));
        true
    };
    fs.readdir(&root(), dir, after, &mut sink).unwrap();
    entries
}

/// Names in a directory without `.` and `..`, sorted.
pub fn names(fs: &dyn FileSystem, dir: Ino) -> Vec<String> {
    let all = list(fs, dir, Cookie(0)).into_iter().map(|e| e.0);
    let mut names: Vec<_> = all.filter(|n| n != "." && n != "..").collect();
    names.sort();
    names
}
