//! Trees as directories of the kernel.

use super::{Contents, Inode, Tree};
use crate::{Bytes, Kind, Node};
use rustix::fs::{self as sys, AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

fn at(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |e| format!("{}: {e}", path.display())
}

impl Tree {
    /// Writes the tree into a directory, which must be empty.
    ///
    /// Owners and device nodes are left out unless the caller is root, and extended attributes where
    /// the file system has none.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn write_to(&self, root: &Path) -> Result<(), String> {
        let mut made = HashMap::new();
        let mut directories = vec![(root.to_owned(), Node::ROOT)];
        let is_root = rustix::process::geteuid().is_root();
        for (path, node) in self.paths() {
            let Some(inode) = self.get(node) else {
                continue;
            };
            let path = root.join(OsStr::from_bytes(&path));
            if let Some(first) = made.get(&node) {
                // A directory with two names is shown once: the kernel has no such thing.
                if inode.kind != Kind::Directory {
                    fs::hard_link(first, &path).map_err(at(&path))?;
                }
                continue;
            }
            if make(inode, &path).map_err(at(&path))? {
                if inode.kind == Kind::Directory {
                    directories.push((path.clone(), node));
                }
                attributes(inode, &path, is_root).map_err(at(&path))?;
            }
            made.insert(node, path);
        }
        // Modes of directories last: one may forbid to write into it.
        for (path, node) in directories.iter().rev() {
            let Some(inode) = self.get(*node) else {
                continue;
            };
            let mode = fs::Permissions::from_mode(inode.perm);
            fs::set_permissions(path, mode).map_err(at(path))?;
        }
        Ok(())
    }

    /// Reads a directory of the kernel. Numbers of inodes begin at `next`, which moves on.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read_dir(root: &Path, next: &mut u64) -> Result<Self, String> {
        let mut tree = Self::default();
        let found = fs::metadata(root).map_err(at(root))?;
        tree.insert(Node::ROOT, inode_of(root, &found)?);
        let mut seen = HashMap::new();
        let mut left: Vec<(PathBuf, Node)> = vec![(root.to_owned(), Node::ROOT)];
        while let Some((dir, parent)) = left.pop() {
            for entry in fs::read_dir(&dir).map_err(at(&dir))? {
                let entry = entry.map_err(at(&dir))?;
                let path = entry.path();
                let found = fs::symlink_metadata(&path).map_err(at(&path))?;
                let key = (found.dev(), found.ino());
                let node = *seen.entry(key).or_insert_with(|| {
                    *next += 1;
                    Node(*next - 1)
                });
                if tree.get(node).is_none() {
                    let inode = inode_of(&path, &found)?;
                    if inode.kind == Kind::Directory {
                        left.push((path, node));
                    }
                    tree.insert(node, inode);
                }
                let name = Bytes(entry.file_name().into_vec());
                tree.get_mut(parent)?.names.insert(name, node);
            }
        }
        Ok(tree)
    }
}

/// Makes an inode with a name. Returns false if the caller may not make its type.
fn make(inode: &Inode, path: &Path) -> io::Result<bool> {
    let special = |kind, device| match sys::mknodat(CWD, path, kind, Mode::RUSR, device) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => Ok(false),
        Err(e) => Err(io::Error::from(e)),
    };
    match &inode.kind {
        Kind::File => write_file(&inode.contents, path).map(|()| true),
        Kind::Directory => fs::create_dir(path).map(|()| true),
        Kind::Symlink(target) => {
            std::os::unix::fs::symlink(OsStr::from_bytes(&target.0), path).map(|()| true)
        }
        Kind::Fifo => special(FileType::Fifo, 0),
        Kind::Socket => special(FileType::Socket, 0),
        Kind::CharDevice(device) => special(FileType::CharacterDevice, (*device).into()),
        Kind::BlockDevice(device) => special(FileType::BlockDevice, (*device).into()),
    }
}

fn write_file(contents: &Contents, path: &Path) -> io::Result<()> {
    let file = File::create_new(path)?;
    for (off, bytes) in contents.pages() {
        file.write_all_at(bytes, off)?;
    }
    file.set_len(contents.size())
}

fn attributes(inode: &Inode, path: &Path, is_root: bool) -> io::Result<()> {
    let is_link = matches!(inode.kind, Kind::Symlink(_));
    if is_root && (inode.uid, inode.gid) != (0, 0) {
        let owner = (Uid::from_raw(inode.uid), Gid::from_raw(inode.gid));
        sys::chownat(
            CWD,
            path,
            Some(owner.0),
            Some(owner.1),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    if !is_link && inode.kind != Kind::Directory {
        fs::set_permissions(path, fs::Permissions::from_mode(inode.perm))?;
    }
    for (name, value) in &inode.xattrs {
        match sys::lsetxattr(path, &name.0[..], &value.0, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn inode_of(path: &Path, found: &fs::Metadata) -> Result<Inode, String> {
    let kind = vfs::FileType::from_mode(found.mode());
    let kind = kind.ok_or_else(|| format!("{}: unknown type", path.display()))?;
    let target = match kind {
        vfs::FileType::Symlink => fs::read_link(path).map_err(at(path))?.into_os_string(),
        _ => Default::default(),
    };
    let kind = Kind::of(kind, target.as_bytes(), found.rdev() as u32);
    let mut inode = Inode::new(kind, found.mode() & 0o7777, found.uid(), found.gid());
    if found.is_file() {
        read_file(path, &mut inode.contents).map_err(at(path))?;
    }
    Ok(inode)
}

fn read_file(path: &Path, contents: &mut Contents) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(sys::open(path, flags, Mode::empty())?);
    let size = file.metadata()?.len();
    let mut off = 0;
    let mut buf = vec![0; 256 << 10];
    while off < size {
        match sys::seek(&file, sys::SeekFrom::Data(off)) {
            Ok(data) => off = data,
            Err(Errno::NXIO) => break,
            Err(_) => {} // without holes
        }
        let len = file.read_at(&mut buf, off)?;
        if len == 0 {
            break;
        }
        contents.write(off, &buf[..len]);
        off += len as u64;
    }
    contents.set_size(size);
    Ok(())
}
