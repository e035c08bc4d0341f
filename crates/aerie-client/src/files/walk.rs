//! Resolution of paths. The root of the store is that of each path, as after `chroot`: a symbolic link to an
//! absolute path leads there, and `..` in the root is the root.

use crate::client::Client;
use vfs::{Attr, Errno, FileSystem, FileType, Ino, Name, Paths, Result};

/// Most symbolic links of a path.
const LINKS_MAX: usize = 40;
/// Most bytes of a path, with those of its symbolic links.
const PATH_MAX: usize = 4096;

/// An inode, with a reference.
pub(super) struct Node<'c> {
    client: &'c Client,
    pub(super) attr: Attr,
}

impl<'c> Node<'c> {
    /// An inode to which the last call took a reference.
    pub(super) fn counted(client: &'c Client, attr: Attr) -> Self {
        Self { client, attr }
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.attr.ino != Ino::ROOT {
            self.client.forget(self.attr.ino, 1);
        }
    }
}

/// The end of a path.
pub(super) struct Found<'c> {
    /// References to the directories of the path.
    _dirs: Vec<Node<'c>>,
    /// The directory of the name, without a reference of its own.
    dir: Ino,
    /// The last component. Empty if the path ends with a directory itself: `.`, `..`, the root.
    name: Vec<u8>,
    /// The inode, if the name exists.
    node: Option<Node<'c>>,
    /// A slash follows the name.
    has_slash: bool,
    /// The path has a name at its end, and no symbolic link was followed.
    is_direct: bool,
}

impl<'c> Found<'c> {
    /// The inode.
    pub(super) fn into_node(self) -> Result<Node<'c>> {
        self.node.ok_or(Errno::NOENT)
    }

    pub(super) fn ends_with_slash(&self) -> bool {
        self.has_slash
    }

    /// The attributes of the inode.
    pub(super) fn attr(&self) -> Result<Attr> {
        match &self.node {
            Some(node) => Ok(node.attr),
            None => Err(Errno::NOENT),
        }
    }

    /// The name, whether it exists or not.
    pub(super) fn name(&self) -> Result<Name<'_>> {
        match self.name.is_empty() {
            true => Err(Errno::BUSY),
            false => Ok(Name::new(self.dir, &self.name)),
        }
    }

    /// The name, for a node that is made there.
    pub(super) fn new_name(&self, is_directory: bool) -> Result<Name<'_>> {
        match self.node.is_some() || self.name.is_empty() {
            true => Err(Errno::EXIST),
            false if self.has_slash && !is_directory => Err(Errno::NOENT),
            false => self.name(),
        }
    }
}

/// The name at the end of a path, if its directory is known, and the version at which it is. The directory may have no
/// reference: at another version its number may be that of another one.
pub(super) fn known<'p>(client: &Client, path: &'p [u8]) -> Option<(Name<'p>, Option<u64>)> {
    let (version, cx) = (client.paths_version(), client.own());
    let name = client.paths.name(version, cx, (Ino::ROOT, path))?;
    Some((name, version))
}

/// Resolves a path, for calls on its inode. `follow`: a symbolic link at the end, too. The directory of the name may have no
/// reference.
pub(super) fn walk_quickly<'c>(client: &'c Client, path: &[u8], follow: bool) -> Result<Found<'c>> {
    let version = client.paths_version();
    if let Some(end) = Paths::end_of_directory(path)
        && let place = (Ino::ROOT, &path[..end])
        && let Some(dir) = client.paths.get(version, client.own(), place)
    {
        match found_in(client, dir, &path[end + 1..], follow) {
            _ if client.paths_version() != version => {}
            Ok(None) | Err(Errno::STALE) => {}
            Ok(Some(found)) => return Ok(found),
            Err(errno) => return Err(errno),
        }
    }
    walk(client, path, follow)
}

/// Resolves a single name, unless it leads on: `.`, `..`, a symbolic link to follow.
fn found_in<'c>(
    client: &'c Client,
    dir: Ino,
    path: &[u8],
    follow: bool,
) -> Result<Option<Found<'c>>> {
    let end = path.iter().position(|byte| *byte == b'/');
    let (name, after) = path.split_at(end.unwrap_or(path.len()));
    if matches!(name, b"" | b"." | b"..") {
        return Ok(None);
    }
    let node = match client.lookup(client.own(), dir, name) {
        Ok(attr) => Some(Node::counted(client, attr)),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno),
    };
    let has_slash = !after.is_empty();
    match node.as_ref().map(|node| node.attr.kind) {
        Some(FileType::Symlink) if follow || has_slash => return Ok(None),
        Some(FileType::Directory) | None => {}
        Some(_) if has_slash => return Err(Errno::NOTDIR),
        Some(_) => {}
    }
    Ok(Some(Found {
        _dirs: Vec::new(),
        dir,
        name: name.to_vec(),
        node,
        has_slash,
        is_direct: true,
    }))
}

/// Resolves a path, with references to its directories. `follow`: a symbolic link at the end, too.
pub(super) fn walk<'c>(client: &'c Client, path: &[u8], follow: bool) -> Result<Found<'c>> {
    let version = client.paths_version();
    let found = walk_steps(client, path, follow)?;
    if let Some(end) = Paths::end_of_directory(path).filter(|_| found.is_direct) {
        let place = (Ino::ROOT, &path[..end]);
        client.paths.put(version, client.own(), place, found.dir);
    }
    Ok(found)
}

fn walk_steps<'c>(client: &'c Client, path: &[u8], follow: bool) -> Result<Found<'c>> {
    let mut dirs: Vec<Node<'c>> = Vec::new();
    let mut rest = path.to_vec();
    let mut links = 0;
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    loop {
        if rest.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if rest.first() == Some(&b'/') {
            dirs.clear();
        }
        let is_slash = |byte: &u8| *byte == b'/';
        let start = rest.iter().take_while(|byte| is_slash(byte)).count();
        let end = rest.iter().skip(start).position(is_slash);
        let end = end.map_or(rest.len(), |len| start + len);
        let (name, after) = (rest[start..end].to_vec(), rest[end..].to_vec());
        let is_last = after.iter().all(is_slash);
        match &name[..] {
            b"" | b"." | b".." => {
                if name == b".." {
                    dirs.pop();
                }
                if is_last {
                    return itself(client, dirs);
                }
            }
            _ => {
                let node = match look(client, &dirs, &name) {
                    Err(Errno::NOENT) if is_last => None,
                    found => Some(found?),
                };
                let kind = node.as_ref().map(|node| node.attr.kind);
                let has_slash = !after.is_empty();
                match (node, kind) {
                    (Some(node), Some(FileType::Symlink)) if follow || has_slash => {
                        links += 1;
                        if links > LINKS_MAX {
                            return Err(Errno::LOOP);
                        }
                        let target = client.readlink(client.own(), node.attr.ino)?;
                        rest = [&target[..], &after].concat();
                        continue;
                    }
                    (Some(node), Some(FileType::Directory)) if !is_last => dirs.push(node),
                    (Some(_), kind) if has_slash && kind != Some(FileType::Directory) => {
                        return Err(Errno::NOTDIR);
                    }
                    (node, _) => {
                        return Ok(Found {
                            dir: last(&dirs),
                            _dirs: dirs,
                            name,
                            node,
                            has_slash,
                            is_direct: links == 0,
                        });
                    }
                }
            }
        }
        let slashes = after.iter().take_while(|byte| is_slash(byte)).count();
        rest = after[slashes..].to_vec();
    }
}

fn look<'c>(client: &'c Client, dirs: &[Node<'c>], name: &[u8]) -> Result<Node<'c>> {
    let attr = client.lookup(client.own(), last(dirs), name)?;
    Ok(Node::counted(client, attr))
}

fn last(dirs: &[Node<'_>]) -> Ino {
    dirs.last().map_or(Ino::ROOT, |dir| dir.attr.ino)
}

/// The directory in which a path ends without a name.
fn itself<'c>(client: &'c Client, mut dirs: Vec<Node<'c>>) -> Result<Found<'c>> {
    let node = match dirs.pop() {
        Some(dir) => dir,
        None => Node::counted(client, client.getattr(client.own(), Ino::ROOT)?),
    };
    Ok(Found {
        dir: last(&dirs),
        _dirs: dirs,
        name: Vec::new(),
        node: Some(node),
        has_slash: false,
        is_direct: false,
    })
}
