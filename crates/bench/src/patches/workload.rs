//! The workloads of Figure 2.10 as calls of a file system: the same in every run.

use crate::postmark::Config;
use fastrand::Rng;
use vfs::{Attr, Cookie, Ctx, FileSystem, FileType, Ino, OpenFlags, Result, SetAttr, SetTime};

/// Files in one directory of a source tree, and in a compiled one's.
const PER_DIRECTORY: u32 = 20;
/// Mean bytes of a source file: that of a kernel source tree.
const MEAN_BYTES: f64 = 10_500.0;
const MAX_BYTES: usize = 1 << 20;
/// Bytes that tar writes at once.
const TAR_RECORD: usize = 10_240;
/// Bytes that the C library reads and writes at once.
const STREAM: usize = 4096;

/// A file system, and its caller.
pub(super) struct Worker<'a> {
    fs: &'a dyn FileSystem,
    cx: Ctx,
}

/// A source tree: exponentially distributed sizes, directories three deep.
pub(super) struct Tree {
    /// Bytes of each file, and where in the noise they begin.
    files: Vec<(usize, usize)>,
    noise: Vec<u8>,
}

impl Tree {
    pub(super) fn new(files: u32) -> Self {
        let mut random = Rng::with_seed(17);
        let noise = (0..2 * MAX_BYTES).map(|_| random.u8(b' '..=b'~')).collect();
        let file = |_| {
            let len = (-MEAN_BYTES * (1.0 - random.f64()).ln()) as usize;
            (len.min(MAX_BYTES), random.usize(..MAX_BYTES))
        };
        Self {
            files: (0..files).map(file).collect(),
            noise,
        }
    }

    /// Room that an image needs for it, inodes included.
    pub(super) fn image_bytes(&self) -> u64 {
        let blocks = |len: usize| (len as u64).next_multiple_of(4096) + 4096;
        let data: u64 = self.files.iter().map(|(len, _)| blocks(*len)).sum();
        data * 5 / 4 + (64 << 20)
    }

    /// Inodes that it takes, with its directories and some to spare.
    pub(super) fn inodes(&self) -> u32 {
        self.files.len() as u32 * 5 / 4 + 1000
    }

    fn bytes(&self, file: usize) -> &[u8] {
        let (len, start) = self.files[file];
        &self.noise[start..start + len]
    }

    /// Unpacks it, as tar does.
    pub(super) fn unpack(&self, fs: &dyn FileSystem) -> Result<()> {
        let worker = Worker::new(fs);
        let mut dirs = Vec::new();
        for i in 0..self.files.len() {
            if (i as u32).is_multiple_of(PER_DIRECTORY) {
                let leaf = i as u32 / PER_DIRECTORY;
                worker.enter(&mut dirs, leaf)?;
            }
            let dir = dirs.last().map_or(Ino::ROOT, |(_, ino)| *ino);
            let name = format!("source{i}.c");
            let file = fs.create(&worker.cx, dir, name.as_bytes(), 0o600)?.ino;
            worker.write(file, 0, self.bytes(i), TAR_RECORD)?;
            let seal = SetAttr {
                perm: Some(0o644),
                mtime: Some(SetTime::At(vfs::Timestamp(900_000_000_000_000_000))),
                ..SetAttr::default()
            };
            fs.setattr(&worker.cx, file, &seal)?;
            fs.forget(file, 1);
        }
        dirs.iter().for_each(|(_, ino)| fs.forget(*ino, 1));
        Ok(())
    }

    /// The phases of the Andrew benchmark: directories, copy, stat, read, build.
    pub(super) fn develop(&self, fs: &dyn FileSystem) -> Result<()> {
        let worker = Worker::new(fs);
        let count = self.files.len().div_ceil(PER_DIRECTORY as usize);
        let make = |i| worker.mkdir(Ino::ROOT, &format!("dir{i}"));
        let dirs: Vec<Ino> = (0..count).map(make).collect::<Result<_>>()?;
        let place = |i: usize| (dirs[i / PER_DIRECTORY as usize], i);
        let source = |i| format!("source{i}.c");
        for (dir, i) in (0..self.files.len()).map(place) {
            worker.make_file(dir, &source(i), self.bytes(i))?;
        }
        for (dir, i) in (0..self.files.len()).map(place) {
            let ino = worker.find(dir, &source(i))?.ino;
            fs.getattr(&worker.cx, ino)?;
            fs.forget(ino, 1);
        }
        for (dir, i) in (0..self.files.len()).map(place) {
            worker.read(dir, &source(i))?;
        }
        let mut linked = 0;
        for (dir, i) in (0..self.files.len()).map(place) {
            worker.read(dir, &source(i))?;
            // An object file has about half its source's bytes.
            let object = &self.bytes(i)[..self.files[i].0 / 2];
            worker.make_file(dir, &format!("source{i}.o"), object)?;
            linked += object.len();
        }
        for (dir, i) in (0..self.files.len()).map(place) {
            worker.read(dir, &format!("source{i}.o"))?;
        }
        worker.make_file(
            Ino::ROOT,
            "program",
            &self.noise[..linked.min(self.noise.len())],
        )?;
        dirs.iter().for_each(|ino| fs.forget(*ino, 1));
        Ok(())
    }
}

/// Removes everything, as `rm -r` does.
pub(super) fn delete_all(fs: &dyn FileSystem) -> Result<()> {
    Worker::new(fs).empty(Ino::ROOT)
}

/// Room that an image needs for PostMark.
pub(super) fn postmark_bytes(config: &Config) -> u64 {
    let files = u64::from(config.files + config.transactions);
    files * (config.max_bytes as u64 + 16_384) + (64 << 20)
}

/// Upper bound of the inodes that PostMark uses, with some to spare.
pub(super) fn postmark_inodes(config: &Config) -> u32 {
    config.files + config.transactions + 100
}

impl<'a> Worker<'a> {
    fn new(fs: &'a dyn FileSystem) -> Self {
        let cx = Ctx::root();
        Self { fs, cx }
    }

    /// A directory; with a reference.
    fn mkdir(&self, dir: Ino, name: &str) -> Result<Ino> {
        let made = self.fs.mkdir(&self.cx, dir, name.as_bytes(), 0o755)?;
        Ok(made.ino)
    }

    /// With a reference.
    fn find(&self, dir: Ino, name: &str) -> Result<Attr> {
        self.fs.lookup(&self.cx, dir, name.as_bytes())
    }

    /// Goes to a leaf of the tree, making directories that are not there yet.
    fn enter(&self, dirs: &mut Vec<(String, Ino)>, leaf: u32) -> Result<()> {
        let path = [
            format!("top{}", leaf / 100),
            format!("mid{}", leaf / 10),
            format!("leaf{leaf}"),
        ];
        let same = dirs.iter().zip(&path).take_while(|((at, _), to)| at == *to);
        let same = same.count();
        for (_, left) in dirs.split_off(same) {
            self.fs.forget(left, 1);
        }
        for name in &path[dirs.len()..] {
            let above = dirs.last().map_or(Ino::ROOT, |(_, ino)| *ino);
            dirs.push((name.clone(), self.mkdir(above, name)?));
        }
        Ok(())
    }

    fn make_file(&self, dir: Ino, name: &str, bytes: &[u8]) -> Result<()> {
        let ino = self.fs.create(&self.cx, dir, name.as_bytes(), 0o644)?.ino;
        self.write(ino, 0, bytes, STREAM)?;
        self.fs.forget(ino, 1);
        Ok(())
    }

    fn write(&self, ino: Ino, at: u64, bytes: &[u8], record: usize) -> Result<()> {
        self.fs.open(&self.cx, ino, OpenFlags::WRITE)?;
        for (i, part) in bytes.chunks(record).enumerate() {
            self.fs
                .write(&self.cx, ino, at + (i * record) as u64, part)?;
        }
        self.fs.release(ino);
        Ok(())
    }

    fn read(&self, dir: Ino, name: &str) -> Result<()> {
        let ino = self.find(dir, name)?.ino;
        self.fs.open(&self.cx, ino, OpenFlags::READ)?;
        let mut buf = [0; STREAM];
        let mut at = 0;
        loop {
            match self.fs.read(&self.cx, ino, at, &mut buf)? {
                0 => break,
                len => at += len as u64,
            }
        }
        self.fs.release(ino);
        self.fs.forget(ino, 1);
        Ok(())
    }

    /// Removes all that is in a directory.
    fn empty(&self, dir: Ino) -> Result<()> {
        let mut entries = Vec::new();
        self.fs
            .readdir(&self.cx, dir, Cookie::default(), &mut |entry| {
                if !matches!(entry.name, b"." | b".." | b"lost+found") {
                    entries.push((entry.name.to_vec(), entry.kind));
                }
                true
            })?;
        for (name, kind) in entries {
            if kind == FileType::Directory {
                let ino = self.fs.lookup(&self.cx, dir, &name)?.ino;
                self.empty(ino)?;
                self.fs.forget(ino, 1);
                self.fs.rmdir(&self.cx, dir, &name)?;
            } else {
                self.fs.unlink(&self.cx, dir, &name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oracle::{ModelFs, Snapshot};

    fn entries(fs: &dyn FileSystem) -> usize {
        Snapshot::take(fs).unwrap().len()
    }

    #[test]
    fn a_tree_is_unpacked_and_removed_whole() {
        let (fs, tree) = (ModelFs::default(), Tree::new(1010));
        let empty = entries(&fs);
        tree.unpack(&fs).unwrap();
        // 51 leaves, 6 directories above them, 1 above those.
        assert_eq!(entries(&fs) - empty, 1010 + 51 + 6 + 1);
        let bytes: usize = (0..1010).map(|i| tree.bytes(i).len()).sum();
        assert!((8_000_000..14_000_000).contains(&bytes), "{bytes}");
        delete_all(&fs).unwrap();
        assert_eq!(entries(&fs), empty);
        assert!(fs.audit().is_empty());
    }

    #[test]
    fn a_build_leaves_sources_objects_and_a_program() {
        let (fs, tree) = (ModelFs::default(), Tree::new(50));
        let empty = entries(&fs);
        tree.develop(&fs).unwrap();
        assert_eq!(entries(&fs) - empty, 3 + 50 + 50 + 1);
        assert!(fs.audit().is_empty());
    }
}
