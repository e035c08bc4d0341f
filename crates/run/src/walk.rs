//! Resolution of paths, as the kernel does it.
//!
//! Guarantees:
//!
//! 1. Each component is looked up with the permissions of the caller. Symbolic links are followed, at most
//!    40 of them.
//! 2. A path that leaves the store, by `..` at its root or by a symbolic link to an absolute path, continues
//!    in the kernel at the right place ([`Place::Outside`]).
//! 3. The directory of a name is not looked up again while the file system says that the path to it leads
//!    there ([`vfs::Paths`]).

use crate::kernel::Result;
use crate::process::Process;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ffi::CString;
use vfs::{Attr, Ctx, Errno, FileSystem, FileType, Ino, Paths};

/// Most symbolic links of a path.
const LINKS_MAX: usize = 40;
/// Attempts to find the directory above one that others move.
const ATTEMPTS: usize = 100;

/// A reference to an inode.
pub(crate) struct Node<'f> {
    fs: &'f dyn FileSystem,
    ino: Ino,
    is_counted: bool,
}

impl<'f> Node<'f> {
    /// An inode that somebody else refers to during the call.
    pub(crate) fn borrowed(fs: &'f dyn FileSystem, ino: Ino) -> Self {
        Self {
            fs,
            ino,
            is_counted: false,
        }
    }

    /// An inode to which the last call took a reference.
    pub(crate) fn counted(fs: &'f dyn FileSystem, ino: Ino) -> Self {
        Self {
            fs,
            ino,
            is_counted: true,
        }
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            self.fs.forget(self.ino, 1);
        }
    }
}

/// The end of a path.
#[allow(clippy::large_enum_variant)] // it stays on the stack, and most are of the large variant
pub(crate) enum Place<'f> {
    /// In the store.
    Inside(Found<'f>),
    /// Elsewhere: the path from the kernel's root.
    Outside(CString),
}

/// The last component of a path. Most need no allocation.
pub(crate) type LastName = SmallVec<[u8; 64]>;

/// A place in the store.
pub(crate) struct Found<'f> {
    /// The directory of the name.
    pub(crate) dir: Node<'f>,
    /// The last component; empty if it is `.` or `..` or the root.
    pub(crate) name: LastName,
    /// The inode, if the name exists.
    pub(crate) node: Option<(Node<'f>, Attr)>,
    /// Whether a slash follows the name.
    pub(crate) has_slash: bool,
}

impl<'f> Found<'f> {
    /// An inode without a name, to which somebody else refers during the call.
    pub(crate) fn open(fs: &'f dyn FileSystem, cx: &Ctx, ino: Ino) -> Result<Self> {
        let attr = fs.getattr(cx, ino)?;
        Ok(Self {
            dir: Node::borrowed(fs, ino),
            name: LastName::new(),
            node: Some((Node::borrowed(fs, ino), attr)),
            has_slash: false,
        })
    }

    /// The attributes of the inode.
    pub(crate) fn attr(&self) -> Result<Attr> {
        self.node
            .as_ref()
            .map(|(_, attr)| *attr)
            .ok_or(Errno::NOENT)
    }

    /// The number of the inode.
    pub(crate) fn ino(&self) -> Result<Ino> {
        self.attr().map(|attr| attr.ino)
    }

    /// The name, for a call that makes a node there.
    pub(crate) fn new_name(&self) -> Result<&[u8]> {
        match self.node.is_some() || self.name.is_empty() {
            true => Err(Errno::EXIST),
            false => Ok(&self.name),
        }
    }
}

/// The place to which a name of a path leads.
enum Step<'f> {
    /// The path ends here.
    End(Option<(Node<'f>, Attr)>),
    /// The rest of the path starts in this directory.
    Down(Node<'f>),
    /// This path continues in place of the rest.
    Link(Vec<u8>),
}

/// A resolution under way.
pub(crate) struct Walk<'f> {
    pub(crate) process: &'f Process,
    pub(crate) fs: &'f dyn FileSystem,
    pub(crate) cx: &'f Ctx,
    /// Whether a symbolic link at the end is followed.
    pub(crate) follow: bool,
}

impl<'f> Walk<'f> {
    /// Resolves `path`, which starts in `start` unless it is absolute.
    pub(crate) fn resolve(&self, start: Ino, path: &[u8]) -> Result<Place<'f>> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let version = self.fs.paths_version();
        let is_inside = |dir: &[u8]| !dir.starts_with(b"/") || self.below_mount(dir).is_some();
        let split = Paths::end_of_directory(path).filter(|end| is_inside(&path[..*end]));
        let known = split.and_then(|at| {
            let paths = &self.process.paths;
            paths.hold(self.fs, version, self.cx, (start, &path[..at]))
        });
        let (mut dir, mut at) = match (known, split) {
            (Some(dir), Some(at)) => (Node::counted(self.fs, dir), at + 1),
            _ => (Node::borrowed(self.fs, start), 0),
        };
        let mut text = Cow::Borrowed(path);
        let mut links = 0;
        let mut is_new = known.is_none();
        loop {
            if at == 0 && text.starts_with(b"/") {
                let Some(below) = self.below_mount(&text) else {
                    return outside(text.into_owned());
                };
                (dir, at) = (Node::borrowed(self.fs, Ino::ROOT), below);
            }
            // The rest from `at` on is relative to `dir` now.
            let from = at + slashes(&text[at..]);
            let len = text[from..].iter().position(|byte| *byte == b'/');
            let end = len.map_or(text.len(), |len| from + len);
            let (name, after) = (&text[from..end], &text[end..]);
            at = end + slashes(after);
            let is_last = at == text.len();
            if let Some(at) = split.filter(|_| is_last && is_new) {
                let paths = &self.process.paths;
                paths.put(version, self.cx, (start, &path[..at]), dir.ino());
            }
            match name {
                b"" | b"." if is_last => return self.directory_itself(dir),
                b"." => {}
                b".." if dir.ino() == Ino::ROOT => {
                    text = Cow::Owned([self.above_mount(), b"/", &text[at..]].concat());
                    (at, is_new) = (0, false);
                }
                b".." => {
                    dir = self.above(&dir)?;
                    if is_last {
                        return self.directory_itself(dir);
                    }
                }
                _ => match self.step(&dir, name, after)? {
                    Step::End(node) => {
                        let (name, has_slash) = (LastName::from_slice(name), !after.is_empty());
                        return Ok(Place::Inside(Found {
                            dir,
                            name,
                            node,
                            has_slash,
                        }));
                    }
                    Step::Down(node) => dir = node,
                    Step::Link(path) => {
                        links += 1;
                        if links > LINKS_MAX {
                            return Err(Errno::LOOP);
                        }
                        (text, at, is_new) = (Cow::Owned(path), 0, false);
                    }
                },
            }
        }
    }

    /// Looks up a name; `after` follows it in the path.
    fn step(&self, dir: &Node<'f>, name: &[u8], after: &[u8]) -> Result<Step<'f>> {
        let is_last = after.iter().all(|byte| *byte == b'/');
        let attr = match self.fs.lookup(self.cx, dir.ino(), name) {
            Ok(attr) => attr,
            Err(Errno::NOENT) if is_last => return Ok(Step::End(None)),
            Err(errno) => return Err(errno),
        };
        let node = Node::counted(self.fs, attr.ino);
        match attr.kind {
            FileType::Symlink if !after.is_empty() || self.follow => {
                let target = self.fs.readlink(self.cx, node.ino())?;
                Ok(Step::Link([&target, after].concat()))
            }
            FileType::Directory if !is_last => Ok(Step::Down(node)),
            FileType::Directory => Ok(Step::End(Some((node, attr)))),
            _ if after.is_empty() => Ok(Step::End(Some((node, attr)))),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The attributes of a directory. A descriptor of any file may be where the path starts.
    fn directory(&self, dir: &Node<'f>) -> Result<Attr> {
        let attr = self.fs.getattr(self.cx, dir.ino())?;
        match attr.kind {
            FileType::Directory => Ok(attr),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The directory that a path ends in without a name.
    fn directory_itself(&self, dir: Node<'f>) -> Result<Place<'f>> {
        let attr = self.directory(&dir)?;
        let node = Node::borrowed(self.fs, dir.ino());
        Ok(Place::Inside(Found {
            dir,
            name: LastName::new(),
            node: Some((node, attr)),
            has_slash: false,
        }))
    }

    /// Where the part of an absolute path below the mount point begins.
    fn below_mount(&self, path: &[u8]) -> Option<usize> {
        let below = path.strip_prefix(&self.process.at[..])?;
        (below.is_empty() || below[0] == b'/').then(|| self.process.at.len() + slashes(below))
    }

    /// The path of the directory with the mount point, without `/` at its end.
    fn above_mount(&self) -> &[u8] {
        let at = &self.process.at[..];
        let end = at.iter().rposition(|byte| *byte == b'/');
        &at[..end.unwrap_or(0)]
    }

    /// The directory above `dir`, which is not the root.
    fn above(&self, dir: &Node<'f>) -> Result<Node<'f>> {
        vfs::perm::may_search(self.cx, &self.directory(dir)?)?;
        for _ in 0..ATTEMPTS {
            let above = parent(self.process, self.fs, dir.ino())?;
            self.fs.by_number(above)?;
            let node = Node::counted(self.fs, above);
            // Before it had a reference, it may have been removed, and its number may be another one's.
            if parent(self.process, self.fs, dir.ino())? == above {
                return Ok(node);
            }
        }
        Err(Errno::STALE)
    }
}

/// The slashes at the start of a path.
fn slashes(path: &[u8]) -> usize {
    path.iter().take_while(|byte| **byte == b'/').count()
}

fn outside(path: Vec<u8>) -> Result<Place<'static>> {
    Ok(Place::Outside(
        CString::new(path).map_err(|_| Errno::INVAL)?,
    ))
}

/// The directory above a directory.
fn parent(process: &Process, fs: &dyn FileSystem, dir: Ino) -> Result<Ino> {
    let mut above = None;
    fs.readdir(&process.permitted()?, dir, vfs::Cookie(0), &mut |entry| {
        if entry.name == b".." {
            above = Some(entry.ino);
        }
        above.is_none()
    })?;
    above.filter(|above| *above != dir).ok_or(Errno::NOENT)
}

/// The path of a directory, from the root of the store: empty, or `/` and names.
pub(crate) fn path_of(process: &Process, fs: &dyn FileSystem, dir: Ino) -> Result<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = dir;
    while at != Ino::ROOT {
        let above = parent(process, fs, at)?;
        let mut name = None;
        fs.readdir(&process.permitted()?, above, vfs::Cookie(0), &mut |entry| {
            let is_dot = entry.name == b"." || entry.name == b"..";
            if entry.ino == at && !is_dot {
                name = Some(entry.name.to_vec());
            }
            name.is_none()
        })?;
        names.push(name.ok_or(Errno::NOENT)?);
        at = above;
    }
    let with_slash = |name: &Vec<u8>| [b"/", &name[..]].concat();
    Ok(names.iter().rev().flat_map(with_slash).collect())
}
