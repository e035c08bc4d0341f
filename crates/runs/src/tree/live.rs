//! Trees of file systems that are open in this process.

use super::{Inode, Tree};
use crate::{Bytes, Kind, Node};
use std::collections::HashMap;
use vfs::{Attr, Cookie, Ctx, Errno, FileSystem, FileType, Ino, SeekKind};

/// Most paths of a tree that is read.
const PATHS_MAX: usize = 1 << 20;

/// Bytes read at once.
const CHUNK: u64 = 256 << 10;

impl Tree {
    /// Reads all of a file system. `number` gives each inode its number, the root excepted.
    ///
    /// # Errors
    /// It cannot be read, or contradicts itself, or has more than a million paths.
    pub fn read(
        fs: &dyn FileSystem,
        number: &mut dyn FnMut(&Attr) -> Node,
    ) -> Result<Self, String> {
        let mut tree = Self::default();
        let mut seen = HashMap::from([(Ino::ROOT, Node::ROOT)]);
        let root = fs.getattr(&Ctx::root(), Ino::ROOT).map_err(at("/"))?;
        tree.insert(Node::ROOT, inode_of(fs, &root).map_err(at("/"))?);
        let mut left = vec![(Ino::ROOT, Node::ROOT)];
        let mut paths = 0;
        while let Some((ino, dir)) = left.pop() {
            for name in names_of(fs, ino).map_err(at("a directory"))? {
                paths += 1;
                if paths > PATHS_MAX {
                    return Err(format!("there are more than {PATHS_MAX} paths"));
                }
                let bytes = Bytes(name);
                let text = bytes.to_string();
                let attr = fs.lookup(&Ctx::root(), ino, &bytes.0).map_err(at(&text))?;
                let known = seen.get(&attr.ino).copied();
                let node = known.unwrap_or_else(|| number(&attr));
                let inode = known.is_none().then(|| inode_of(fs, &attr));
                fs.forget(attr.ino, 1);
                if let Some(inode) = inode.transpose().map_err(at(&text))? {
                    if inode.kind == Kind::Directory {
                        left.push((attr.ino, node));
                    }
                    seen.insert(attr.ino, node);
                    tree.insert(node, inode);
                }
                tree.get_mut(dir)?.names.insert(bytes, node);
            }
        }
        Ok(tree)
    }
}

fn at(path: &str) -> impl Fn(Errno) -> String + '_ {
    move |e| format!("{path}: {e}")
}

fn names_of(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    fs.readdir(&Ctx::root(), dir, Cookie(0), &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    Ok(names)
}

/// The inode with these attributes, its names left out.
fn inode_of(fs: &dyn FileSystem, attr: &Attr) -> Result<Inode, Errno> {
    let cx = Ctx::root();
    let target = match attr.kind {
        FileType::Symlink => fs.readlink(&cx, attr.ino)?,
        _ => Vec::new(),
    };
    let kind = Kind::of(attr.kind, &target, attr.rdev);
    let mut inode = Inode::new(kind, attr.perm, attr.uid, attr.gid);
    for name in fs.listxattr(&cx, attr.ino)? {
        let value = fs.getxattr(&cx, attr.ino, &name)?;
        inode.xattrs.insert(Bytes(name), Bytes(value));
    }
    if attr.kind == FileType::Regular {
        read_data(fs, attr, &mut inode)?;
    }
    Ok(inode)
}

fn read_data(fs: &dyn FileSystem, attr: &Attr, inode: &mut Inode) -> Result<(), Errno> {
    let cx = Ctx::root();
    inode.contents.set_size(attr.size);
    let mut off = 0;
    let mut buf = Vec::new();
    while off < attr.size {
        let data = match fs.seek(&cx, attr.ino, off, SeekKind::Data) {
            Err(Errno::NXIO) => break,
            found => found?.max(off),
        };
        let end = fs.seek(&cx, attr.ino, data, SeekKind::Hole)?.min(attr.size);
        if end <= data {
            return Err(Errno::IO); // seeking does not move on
        }
        off = data;
        while off < end {
            buf.resize((end - off).min(CHUNK) as usize, 0);
            if fs.read(&cx, attr.ino, off, &mut buf)? != buf.len() {
                return Err(Errno::IO); // short
            }
            inode.contents.write(off, &buf);
            off += buf.len() as u64;
        }
    }
    Ok(())
}
