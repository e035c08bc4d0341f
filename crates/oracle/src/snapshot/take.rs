//! Takes snapshots.

use super::{Content, KEPT_MAX, Name, Node, Snapshot, Times};
use hashbrown::HashMap;
use hashbrown::hash_map;
use std::ops::Range;
use vfs::{Attr, Cookie, Ctx, Errno, FileSystem, FileType, Ino, SeekKind};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a piece in which contents are hashed, and zeros skipped.
const PIECE: u64 = 4096;

/// Bytes of a long file that are read at once.
const CHUNK: u64 = 64 * PIECE;

/// Most entries of a directory whose names are looked up one by one, to check that `lookup`
/// agrees with the listing. In large directories that may be slow.
const LOOKED_UP: usize = 64;

/// The limits of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Most paths of a snapshot.
    pub(super) names: usize,
    /// Most bytes of data, paths and extended attributes.
    pub(super) bytes: u64,
}

impl Default for Limits {
    /// 4 million paths, 4 GiB.
    fn default() -> Self {
        Self {
            names: 4 << 20,
            bytes: 4 << 30,
        }
    }
}

/// The reason why there is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A call failed.
    #[error("{call} of {path}: {errno}")]
    Call {
        /// Path of the inode.
        path: String,
        /// The call.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// Results of calls contradict each other.
    #[error("{path}: {what}")]
    Contradiction {
        /// Path of the inode.
        path: String,
        /// The contradiction.
        what: &'static str,
    },
    /// The file system exceeds the limits of a snapshot.
    #[error("the file system holds more than a snapshot may: {0}")]
    TooLarge(&'static str),
}

type Result<T> = std::result::Result<T, SnapshotError>;

pub(super) fn take(fs: &dyn FileSystem, limits: &Limits) -> Result<Snapshot> {
    let mut walk = Walk {
        fs,
        cx: Ctx::root(),
        held: Held {
            fs,
            inos: Vec::new(),
        },
        names_left: limits.names,
        bytes_left: limits.bytes,
        seen: HashMap::new(),
        snapshot: Snapshot {
            names: Vec::new(),
            nodes: Vec::new(),
            times: Vec::new(),
        },
        directories: Vec::new(),
        listing: Listing::default(),
    };
    walk.all()?;
    walk.snapshot.names.sort_unstable();
    Ok(walk.snapshot)
}

/// The references taken so far, which are given back at the end on every path.
struct Held<'a> {
    fs: &'a dyn FileSystem,
    inos: Vec<Ino>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for &ino in &self.inos {
            self.fs.forget(ino, 1);
        }
    }
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
    cx: Ctx,
    held: Held<'a>,
    names_left: usize,
    bytes_left: u64,
    /// Index of the node of each inode.
    seen: HashMap<Ino, usize>,
    snapshot: Snapshot,
    /// Directories found, with the index of their name and their parent.
    directories: Vec<(usize, Ino, Ino)>,
    listing: Listing,
}

/// The names of one directory, in one buffer.
#[derive(Default)]
struct Listing {
    names: Vec<u8>,
    entries: Vec<(Range<usize>, Attr)>,
    dots: usize,
}

impl Walk<'_> {
    /// Visits the tree level by level, names in order, so that the order of the nodes depends
    /// on nothing else.
    fn all(&mut self) -> Result<()> {
        let root = self.fs.getattr(&self.cx, Ino::ROOT);
        let root = root.map_err(|errno| failed(b"/", "getattr", errno))?;
        self.add(b"/".to_vec(), &root, Ino::ROOT)?;
        let mut next = 0;
        while let Some(&(name, ino, parent)) = self.directories.get(next) {
            self.directory(name, ino, parent)?;
            next += 1;
        }
        Ok(())
    }

    fn directory(&mut self, name: usize, ino: Ino, parent: Ino) -> Result<()> {
        let path = self.snapshot.names[name].path.clone();
        let mut listing = std::mem::take(&mut self.listing);
        self.list(&path, ino, parent, &mut listing)?;
        let Listing { names, entries, .. } = &mut listing;
        entries.sort_unstable_by(|(a, _), (b, _)| names[a.clone()].cmp(&names[b.clone()]));
        let doubled =
            |pair: &[(Range<usize>, Attr)]| names[pair[0].0.clone()] == names[pair[1].0.clone()];
        if entries.windows(2).any(doubled) {
            return Err(contradiction(&path, "a name is listed twice"));
        }
        let look_up = entries.len() <= LOOKED_UP;
        for (range, attr) in &*entries {
            let name = &names[range.clone()];
            let mut child = Vec::with_capacity(path.len() + 1 + name.len());
            child.extend_from_slice(if path == b"/" { b"" } else { &path });
            child.push(b'/');
            child.extend_from_slice(name);
            if look_up {
                self.look_up(&child, ino, name, attr)?;
            }
            self.add(child, attr, ino)?;
        }
        self.listing = listing;
        Ok(())
    }

    fn list(&mut self, path: &[u8], ino: Ino, parent: Ino, into: &mut Listing) -> Result<()> {
        into.names.clear();
        into.entries.clear();
        into.dots = 0;
        let (mut names_left, mut bytes_left) = (self.names_left, self.bytes_left);
        let held = &mut self.held.inos;
        let (mut full, mut unread) = (false, false);
        let mut sink = |entry: &vfs::DirEntry<'_>, attr: Option<&Attr>| {
            let dots = [(b".".as_slice(), ino), (b"..", parent)];
            if dots.contains(&(entry.name, entry.ino)) {
                into.dots += 1;
                return into.dots <= 2;
            }
            if names_left == 0 || bytes_left < entry.name.len() as u64 {
                full = true;
                return false;
            }
            let Some(attr) = attr else {
                unread = true;
                return false;
            };
            names_left -= 1;
            bytes_left -= entry.name.len() as u64;
            held.push(attr.ino);
            let start = into.names.len();
            into.names.extend_from_slice(entry.name);
            // A listing that disagrees with the inode is treated as a missing inode.
            let agrees = attr.ino == entry.ino && attr.kind == entry.kind;
            let attr = if agrees {
                *attr
            } else {
                Attr { nlink: 0, ..*attr }
            };
            into.entries.push((start..into.names.len(), attr));
            true
        };
        let listed = self.fs.readdirplus(&self.cx, ino, Cookie(0), &mut sink);
        listed.map_err(|errno| failed(path, "readdirplus", errno))?;
        if full {
            return Err(SnapshotError::TooLarge("names"));
        }
        if unread {
            return Err(contradiction(path, "an inode in it cannot be read"));
        }
        if into.dots != 2 {
            return Err(contradiction(
                path,
                "`.` and `..` are not listed, or lead astray",
            ));
        }
        Ok(())
    }

    fn look_up(&mut self, path: &[u8], dir: Ino, name: &[u8], listed: &Attr) -> Result<()> {
        let found = self.fs.lookup(&self.cx, dir, name);
        let found = found.map_err(|errno| failed(path, "lookup", errno))?;
        self.held.inos.push(found.ino);
        if found.ino != listed.ino || found.kind != listed.kind {
            return Err(contradiction(path, "lookup and listing differ"));
        }
        Ok(())
    }

    /// Adds a path, and its inode if it is new.
    fn add(&mut self, path: Vec<u8>, attr: &Attr, parent: Ino) -> Result<()> {
        if attr.nlink == 0 {
            return Err(contradiction(&path, "the name of an inode without links"));
        }
        if self.names_left == 0 {
            return Err(SnapshotError::TooLarge("names"));
        }
        self.names_left -= 1;
        self.charge(path.len() as u64)?;
        let new = self.snapshot.nodes.len();
        let node = match self.seen.entry(attr.ino) {
            hash_map::Entry::Vacant(entry) => *entry.insert(new),
            hash_map::Entry::Occupied(_) if attr.kind == FileType::Directory => {
                return Err(contradiction(&path, "a directory with two names"));
            }
            hash_map::Entry::Occupied(entry) => *entry.get(),
        };
        if node == new {
            if attr.kind == FileType::Directory {
                let name = self.snapshot.names.len();
                self.directories.push((name, attr.ino, parent));
            }
            let record = self.node(&path, attr)?;
            self.snapshot.nodes.push(record);
            self.snapshot.times.push(Times {
                atime: attr.atime,
                mtime: attr.mtime,
                ctime: attr.ctime,
            });
        }
        self.snapshot.names.push(Name { path, node });
        Ok(())
    }

    fn node(&mut self, path: &[u8], attr: &Attr) -> Result<Node> {
        let content = match attr.kind {
            FileType::Regular if attr.size <= KEPT_MAX => self.bytes(path, attr)?,
            FileType::Regular => self.hash(path, attr)?,
            FileType::Symlink => self.target(path, attr)?,
            FileType::Directory
            | FileType::CharDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket => Content::None,
        };
        Ok(Node {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            nlink: attr.nlink,
            size: match attr.kind {
                FileType::Directory => 0,
                FileType::Regular
                | FileType::Symlink
                | FileType::CharDevice
                | FileType::BlockDevice
                | FileType::Fifo
                | FileType::Socket => attr.size,
            },
            content,
            xattrs: self.xattrs(path, attr.ino)?,
        })
    }

    fn bytes(&mut self, path: &[u8], attr: &Attr) -> Result<Content> {
        self.charge(attr.size)?;
        let mut data = vec![0; attr.size as usize];
        if !data.is_empty() {
            self.read(path, attr.ino, 0, &mut data)?;
        }
        Ok(Content::Bytes(data))
    }

    fn read(&self, path: &[u8], ino: Ino, off: u64, buf: &mut [u8]) -> Result<()> {
        match self.fs.read(&self.cx, ino, off, buf) {
            Ok(len) if len == buf.len() => Ok(()),
            Ok(_) => Err(contradiction(path, "a read within the size is short")),
            Err(errno) => Err(failed(path, "read", errno)),
        }
    }

    fn target(&mut self, path: &[u8], attr: &Attr) -> Result<Content> {
        let target = self.fs.readlink(&self.cx, attr.ino);
        let target = target.map_err(|errno| failed(path, "readlink", errno))?;
        self.charge(target.len() as u64)?;
        if target.len() as u64 != attr.size {
            return Err(contradiction(path, "the size is not the target's length"));
        }
        Ok(Content::Target(target))
    }

    /// Hashes the data only, without holes, so that the bytes read are bounded by those
    /// present.
    fn hash(&mut self, path: &[u8], attr: &Attr) -> Result<Content> {
        let mut hasher = Xxh3::new();
        let mut buf = vec![0; CHUNK as usize];
        let mut at = 0;
        while at < attr.size {
            let Some(data) = self.seek(path, attr, at, SeekKind::Data)? else {
                break;
            };
            let hole = self.seek(path, attr, data, SeekKind::Hole)?;
            let hole = hole.unwrap_or(attr.size);
            if data < at || hole <= data {
                return Err(contradiction(path, "seeking does not move on"));
            }
            at = data - data % PIECE;
            let end = hole.checked_next_multiple_of(PIECE);
            let end = end.unwrap_or(attr.size).min(attr.size);
            while at < end {
                let len = CHUNK.min(end - at);
                self.charge(len)?;
                let chunk = &mut buf[..len as usize];
                self.read(path, attr.ino, at, chunk)?;
                for (index, piece) in (at / PIECE..).zip(chunk.chunks(PIECE as usize)) {
                    if piece.iter().any(|&byte| byte != 0) {
                        hasher.update(&index.to_le_bytes());
                        hasher.update(piece);
                    }
                }
                at += len;
            }
        }
        Ok(Content::Hash(hasher.digest128()))
    }

    fn seek(&self, path: &[u8], attr: &Attr, off: u64, kind: SeekKind) -> Result<Option<u64>> {
        match self.fs.seek(&self.cx, attr.ino, off, kind) {
            Ok(at) => Ok(Some(at).filter(|&at| at < attr.size)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(failed(path, "seek", errno)),
        }
    }

    fn xattrs(&mut self, path: &[u8], ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = self.fs.listxattr(&self.cx, ino);
        let mut names = names.map_err(|errno| failed(path, "listxattr", errno))?;
        names.sort_unstable();
        let mut xattrs = Vec::with_capacity(names.len());
        for name in names {
            let value = self.fs.getxattr(&self.cx, ino, &name);
            let value = value.map_err(|errno| failed(path, "getxattr", errno))?;
            self.charge((name.len() + value.len()) as u64)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or(SnapshotError::TooLarge("bytes"))?;
        Ok(())
    }
}

fn failed(path: &[u8], call: &'static str, errno: Errno) -> SnapshotError {
    let path = path.escape_ascii().to_string();
    SnapshotError::Call { path, call, errno }
}

fn contradiction(path: &[u8], what: &'static str) -> SnapshotError {
    let path = path.escape_ascii().to_string();
    SnapshotError::Contradiction { path, what }
}
