//! A file system as a graph of inodes: names, attributes and data, by inode number. It accepts a
//! directory with two names, which a [`Snapshot`](oracle::Snapshot) refuses.

use oracle::{ModelFs, ModelOptions};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use vfs::{
    Atime, Attr, Cookie, Ctx, Errno, FileSystem, FileType, Ino, ManualClock, Name, SeekKind,
    SetAttr, SetTime, Timestamp, XattrMode,
};

/// Bytes in a piece of data.
pub(crate) const PIECE: u64 = 1024;

/// Pieces of a file that are not all zeros, by number.
pub(crate) type Pieces = BTreeMap<u64, Vec<u8>>;

/// An inode.
#[derive(PartialEq)]
pub(crate) struct Inode {
    pub attr: Attr,
    pub data: Pieces,
    pub target: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Inode {
    /// Whether another state of the inode differs only in times and data.
    pub(crate) fn same_but_times(&self, other: &Self) -> bool {
        let attr = Attr {
            atime: self.attr.atime,
            mtime: self.attr.mtime,
            ctime: self.attr.ctime,
            ..other.attr
        };
        self.attr == attr && self.target == other.target && self.xattrs == other.xattrs
    }
}

/// All inodes that can be reached from the root.
#[derive(Default)]
pub(crate) struct World {
    pub nodes: BTreeMap<Ino, Inode>,
    /// The names in each directory, without `.` and `..`.
    pub names: BTreeMap<Ino, BTreeMap<Vec<u8>, Ino>>,
    /// The inode of `..` in each directory.
    pub above: BTreeMap<Ino, Ino>,
}

impl World {
    /// Reads all of a file system.
    ///
    /// # Errors
    /// It cannot be read, or contradicts itself.
    pub(crate) fn read(fs: &dyn FileSystem) -> Result<Self, String> {
        let mut unreadable = Vec::new();
        let world = Self::read_rest(fs, &mut unreadable)?;
        unreadable.into_iter().next().map_or(Ok(world), Err)
    }

    /// Reads the part of a file system that can be read. Adds the errors of the other parts to
    /// `unreadable`.
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub(crate) fn read_rest(
        fs: &dyn FileSystem,
        unreadable: &mut Vec<String>,
    ) -> Result<Self, String> {
        let mut world = Self::default();
        let root = fs.getattr(&Ctx::root(), Ino::ROOT);
        let root = root.map_err(|e| format!("the root directory: {e}"))?;
        world.nodes.insert(Ino::ROOT, inode(fs, root)?);
        let mut left = vec![Ino::ROOT];
        while let Some(dir) = left.pop() {
            let names = world.directory(fs, dir, (&mut left, unreadable));
            match names {
                Ok(names) => drop(world.names.insert(dir, names)),
                Err(e) => unreadable.push(format!("directory {dir}: {e}")),
            }
        }
        Ok(world)
    }

    fn directory(
        &mut self,
        fs: &dyn FileSystem,
        dir: Ino,
        (left, unreadable): (&mut Vec<Ino>, &mut Vec<String>),
    ) -> Result<BTreeMap<Vec<u8>, Ino>, String> {
        let cx = Ctx::root();
        let mut names = BTreeMap::new();
        let (mut twice, mut above) = (false, None);
        let listed = fs.readdir(&cx, dir, Cookie(0), &mut |entry| {
            if entry.name == b".." {
                above = Some(entry.ino);
            } else if entry.name != b"." {
                let before = names.insert(entry.name.to_vec(), (entry.ino, entry.kind));
                twice |= before.is_some();
            }
            true
        });
        listed.map_err(|e| format!("readdir: {e}"))?;
        self.above.insert(dir, above.ok_or("`..` is not listed")?);
        if twice {
            return Err("a name is listed twice".to_string());
        }
        for (name, entry) in &names {
            match self.entry(fs, (dir, name), *entry) {
                Ok(true) => left.push(entry.0),
                Ok(false) => {}
                Err(e) => unreadable.push(format!("directory {dir}: {e}")),
            }
        }
        let names = names.into_iter().map(|(name, (ino, _))| (name, ino));
        Ok(names.collect())
    }

    /// Reads the inode of a name. Returns whether it is a directory that was not read before.
    fn entry(
        &mut self,
        fs: &dyn FileSystem,
        (dir, name): (Ino, &[u8]),
        (ino, kind): (Ino, FileType),
    ) -> Result<bool, String> {
        let at = name.escape_ascii();
        let attr = fs.lookup(&Ctx::root(), dir, name);
        let attr = attr.map_err(|e| format!("lookup of {at}: {e}"))?;
        let node = (!self.nodes.contains_key(&ino)).then(|| inode(fs, attr));
        fs.forget(attr.ino, 1);
        if attr.ino != ino || attr.kind != kind {
            return Err(format!("{at} is listed as another inode than it is"));
        }
        if attr.nlink == 0 {
            return Err(format!("{at} is a name of inode {ino}, which has no links"));
        }
        let Some(node) = node else {
            return Ok(false);
        };
        let node = node.map_err(|e| format!("{at}: {e}"))?;
        let is_directory = node.attr.kind == FileType::Directory;
        self.nodes.insert(ino, node);
        Ok(is_directory)
    }

    /// Number of names of each inode, with `.` and `..`.
    pub(crate) fn links(&self) -> BTreeMap<Ino, u32> {
        let mut links = BTreeMap::new();
        for (dir, above) in &self.above {
            *links.entry(*dir).or_default() += 1; // `.`
            *links.entry(*above).or_default() += 1;
        }
        for ino in self.names.values().flat_map(BTreeMap::values) {
            *links.entry(*ino).or_default() += 1;
        }
        links
    }
}

/// A model in the state of `fs`.
///
/// # Errors
/// `fs` cannot be read, or has a directory with two names, which the model refuses.
pub(crate) fn model_of(
    times: RangeInclusive<Timestamp>,
    fs: &dyn FileSystem,
    clock: Arc<ManualClock>,
) -> Result<ModelFs, String> {
    let model = ModelFs::new(ModelOptions {
        clock,
        atime: Atime::Never,
        times,
        ..ModelOptions::default()
    });
    let world = World::read(fs)?;
    let mut made = BTreeMap::from([(Ino::ROOT, Ino::ROOT)]);
    let mut left = vec![Ino::ROOT];
    while let Some(dir) = left.pop() {
        for (name, ino) in world.names.get(&dir).into_iter().flatten() {
            let fail = |e| format!("a model of {}: {e}", name.escape_ascii());
            let node = &world.nodes[ino];
            if node.attr.kind == FileType::Directory {
                left.push(*ino);
            }
            // The model refuses a second name of a directory.
            let attr = match made.get(ino) {
                Some(there) => model.link(&Ctx::root(), *there, made[&dir], name),
                None => node.make(&model, made[&dir], name),
            };
            let attr = attr.map_err(fail)?;
            model.forget(attr.ino, 1);
            made.insert(*ino, attr.ino);
        }
    }
    for (ino, there) in &made {
        let set = world.nodes[ino].set_all(&model, *there);
        set.map_err(|e| format!("a model of inode {ino}: {e}"))?;
    }
    Ok(model)
}

impl Inode {
    fn make(&self, model: &ModelFs, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let cx = Ctx::root();
        let Attr {
            kind, perm, rdev, ..
        } = self.attr;
        let made = match kind {
            FileType::Regular => model.create(&cx, dir, name, perm)?,
            FileType::Directory => model.mkdir(&cx, dir, name, perm)?,
            FileType::Symlink => model.symlink(&cx, dir, name, &self.target)?,
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                model.mknod(&cx, Name::new(dir, name), kind, perm, rdev)?
            }
        };
        for (piece, bytes) in &self.data {
            model.write(&cx, made.ino, piece * PIECE, bytes)?;
        }
        if kind == FileType::Regular {
            model.truncate(&cx, made.ino, self.attr.size)?;
        }
        for (name, value) in &self.xattrs {
            model.setxattr(&cx, made.ino, name, value, XattrMode::Set)?;
        }
        Ok(made)
    }

    /// Sets owners, mode, and at the end the times, which the other calls change.
    fn set_all(&self, model: &ModelFs, ino: Ino) -> Result<(), Errno> {
        let Attr {
            uid,
            gid,
            perm,
            atime,
            mtime,
            ctime,
            ..
        } = self.attr;
        let owners = SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        let mode = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        let times = SetAttr {
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ctime: Some(ctime),
            ..SetAttr::default()
        };
        for set in [owners, mode, times] {
            model.setattr(&Ctx::root(), ino, &set)?;
        }
        Ok(())
    }
}

fn inode(fs: &dyn FileSystem, attr: Attr) -> Result<Inode, String> {
    let cx = Ctx::root();
    let of = |what| move |e: Errno| format!("{what}: {e}");
    let mut xattrs = Vec::new();
    for name in fs.listxattr(&cx, attr.ino).map_err(of("listxattr"))? {
        let value = fs.getxattr(&cx, attr.ino, &name).map_err(of("getxattr"))?;
        xattrs.push((name, value));
    }
    xattrs.sort_unstable();
    let (mut data, mut target) = (Pieces::new(), Vec::new());
    match attr.kind {
        FileType::Regular => data = pieces(fs, &attr).map_err(of("read"))?,
        FileType::Symlink => target = fs.readlink(&cx, attr.ino).map_err(of("readlink"))?,
        FileType::Directory
        | FileType::CharDevice
        | FileType::BlockDevice
        | FileType::Fifo
        | FileType::Socket => {}
    }
    Ok(Inode {
        attr,
        data,
        target,
        xattrs,
    })
}

fn pieces(fs: &dyn FileSystem, attr: &Attr) -> Result<Pieces, Errno> {
    let cx = Ctx::root();
    let mut pieces = Pieces::new();
    let mut at = 0;
    while at < attr.size {
        let data = match fs.seek(&cx, attr.ino, at, SeekKind::Data) {
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let end = fs.seek(&cx, attr.ino, data, SeekKind::Hole)?;
        if data < at || end <= data {
            return Err(Errno::IO); // seeking does not move on
        }
        for piece in data / PIECE..end.div_ceil(PIECE) {
            let mut bytes = vec![0; PIECE as usize];
            let len = fs.read(&cx, attr.ino, piece * PIECE, &mut bytes)?;
            if len as u64 != (attr.size - piece * PIECE).min(PIECE) {
                return Err(Errno::IO); // short
            }
            if bytes.iter().any(|b| *b != 0) {
                pieces.insert(piece, bytes);
            }
        }
        at = end;
    }
    Ok(pieces)
}
