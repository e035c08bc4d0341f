//! Calls that each are one step for other threads.

use fastrand::Rng;
use vfs::{Attr, Cookie, Ctx, FileSystem, Ino, Name, RenameFlags, Result};

/// The inodes that calls are on. They are there from the start, and referenced.
pub(crate) struct Places {
    dirs: [Ino; 3],
    files: [Ino; 2],
}

impl Places {
    /// Makes two directories beside the root, a directory to move, and two files.
    pub(crate) fn make(fs: &dyn FileSystem) -> Result<Self> {
        let cx = Ctx::root();
        let a = fs.mkdir(&cx, Ino::ROOT, b"A", 0o755)?.ino;
        let b = fs.mkdir(&cx, Ino::ROOT, b"B", 0o755)?.ino;
        fs.forget(fs.mkdir(&cx, a, b"d", 0o755)?.ino, 1);
        let files = [
            fs.create(&cx, a, b"f", 0o644)?.ino,
            fs.create(&cx, b, b"g", 0o644)?.ino,
        ];
        for file in files {
            fs.write(&cx, file, 0, &[1; 5000])?;
        }
        let dirs = [Ino::ROOT, a, b];
        Ok(Self { dirs, files })
    }

    /// Makes a file or a directory of a call persistent.
    pub(crate) fn fsync(&self, fs: &dyn FileSystem, call: Call) -> Result<()> {
        let ([dir, _], cx) = (call.dirs, Ctx::root());
        match call.off % 2 {
            0 => fs.fsync(&cx, self.files[call.file], false),
            _ => fs.fsyncdir(&cx, self.dirs[dir], false),
        }
    }

    /// Gives back the references.
    pub(crate) fn forget(self, fs: &dyn FileSystem) {
        let dirs = self.dirs.into_iter().skip(1);
        dirs.chain(self.files).for_each(|ino| fs.forget(ino, 1));
    }
}

/// A call, with the numbers of its places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    kind: u32,
    dirs: [usize; 2],
    names: [&'static str; 2],
    file: usize,
    off: u64,
}

impl Call {
    pub(crate) fn drawn(rng: &mut Rng) -> Self {
        let name = |rng: &mut Rng| ["f", "g", "n", "d"][rng.usize(..4)];
        Self {
            kind: rng.u32(..13),
            dirs: [rng.usize(..3), rng.usize(..3)],
            names: [name(rng), name(rng)],
            file: rng.usize(..2),
            off: rng.u64(..10_000),
        }
    }

    /// Makes the call. Returns what the caller sees.
    pub(crate) fn run(self, fs: &dyn FileSystem, places: &Places) -> String {
        format!("{:?}", self.result(fs, places))
    }

    fn result(self, fs: &dyn FileSystem, places: &Places) -> Result<String> {
        let cx = Ctx::root();
        let [dir, other] = self.dirs.map(|n| places.dirs[n]);
        let [name, new] = self.names.map(str::as_bytes);
        let file = places.files[self.file];
        let seen = |attr: Attr| format!("{:?} {:o} {}", attr.kind, attr.perm, attr.nlink);
        let taken = |attr: Attr| {
            fs.forget(attr.ino, 1);
            seen(attr)
        };
        let nothing = |()| String::new();
        match self.kind {
            0 => fs.create(&cx, dir, name, 0o600).map(taken),
            1 => fs.mkdir(&cx, dir, name, 0o700).map(taken),
            2 => fs.unlink(&cx, dir, name).map(nothing),
            3 => fs.rmdir(&cx, dir, name).map(nothing),
            4..=6 => {
                let (from, to) = (Name::new(dir, name), Name::new(other, new));
                let renamed = fs.rename(&cx, from, to, RenameFlags::empty());
                renamed.map(nothing)
            }
            7 => fs.link(&cx, file, dir, name).map(taken),
            8 => fs.lookup(&cx, dir, name).map(taken),
            9 => {
                let mut names = Vec::new();
                let mut take = |entry: &vfs::DirEntry<'_>| {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                    true
                };
                fs.readdir(&cx, dir, Cookie(0), &mut take)?;
                names.sort_unstable();
                Ok(names.join(" "))
            }
            10 => {
                let written = fs.write(&cx, file, self.off, &[self.off as u8; 6000]);
                written.map(|_| String::new())
            }
            11 => fs.truncate(&cx, file, self.off).map(nothing),
            _ => {
                let mut bytes = vec![0; 20_000];
                let read = fs.read(&cx, file, 0, &mut bytes)?;
                Ok(format!("{:?}", crc32fast::hash(&bytes[..read])))
            }
        }
    }
}
