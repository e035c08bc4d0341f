//! The files and directories at one moment, as a value.
//!
//! A tree is cheap to copy: inodes and pages are shared until they change. It may contain inodes
//! without a name, since a later call may name or write them. They have no part in the
//! [hash](Tree::hash) and are not [written out](Tree::write_to).

mod difference;
mod disk;
mod live;

pub use difference::Difference;

use crate::{Bytes, Call, Kind, Node, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// A page and its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    bytes: Arc<[u8]>,
    hash: u64,
}

impl Page {
    fn new(bytes: &[u8]) -> Self {
        Self {
            hash: xxh3_64(bytes),
            bytes: bytes.into(),
        }
    }
}

/// The data of a regular file. Pages that are not there are zeros.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

impl Contents {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes `data` at `off`. The length grows if they end past it.
    pub fn write(&mut self, off: u64, data: &[u8]) {
        self.store(off, data);
        self.size = self.size.max(off.saturating_add(data.len() as u64));
    }

    /// Stores bytes and leaves the length as it is.
    fn store(&mut self, off: u64, data: &[u8]) {
        let (mut at, mut rest) = (off, data);
        while !rest.is_empty() {
            let within = (at % PAGE_BYTES) as usize;
            let (part, more) = rest.split_at(rest.len().min(PAGE_BYTES as usize - within));
            let page = at / PAGE_BYTES;
            let new = if part.len() == PAGE_BYTES as usize {
                Page::new(part)
            } else {
                let mut bytes = self.page(page);
                bytes[within..within + part.len()].copy_from_slice(part);
                Page::new(&bytes)
            };
            self.put(page, new);
            at += part.len() as u64;
            rest = more;
        }
    }

    /// Stores bytes as far as the file is long.
    pub(crate) fn store_within(&mut self, off: u64, data: &[u8]) {
        let len = self.size.saturating_sub(off).min(data.len() as u64);
        self.store(off, &data[..len as usize]);
    }

    fn put(&mut self, number: u64, page: Page) {
        match page.bytes.iter().all(|byte| *byte == 0) {
            true => self.pages.remove(&number),
            false => self.pages.insert(number, page),
        };
    }

    /// The bytes of a page, zeros past the end included.
    fn page(&self, number: u64) -> Vec<u8> {
        let page = self.pages.get(&number);
        page.map_or_else(|| vec![0; PAGE_BYTES as usize], |page| page.bytes.to_vec())
    }

    /// Sets the length. Bytes that are cut off read as zeros if the file grows again.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Zeros in a range; the length stays.
    pub fn zero(&mut self, off: u64, len: u64) {
        let end = off.saturating_add(len);
        let (first, last) = (off / PAGE_BYTES, end / PAGE_BYTES);
        let whole: Vec<u64> = match off.is_multiple_of(PAGE_BYTES) {
            true => self.pages.range(first..last),
            false => self.pages.range((Excluded(first), Unbounded)),
        }
        .map(|(number, _)| *number)
        .take_while(|number| *number < last)
        .collect();
        for number in whole {
            self.pages.remove(&number);
        }
        for (number, from, to) in [
            (
                first,
                off % PAGE_BYTES,
                PAGE_BYTES.min(end - first * PAGE_BYTES),
            ),
            (last, 0, end % PAGE_BYTES),
        ] {
            if self.pages.contains_key(&number) && (number == first || first != last) {
                let from = if number == first {
                    off % PAGE_BYTES
                } else {
                    from
                };
                let mut bytes = self.page(number);
                bytes[from as usize..to as usize].fill(0);
                self.put(number, Page::new(&bytes));
            }
        }
    }

    /// All bytes; `None` if there are more than `most`.
    pub fn bytes(&self, most: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(self.size.min(most.saturating_add(1))).ok()?;
        if self.size > most {
            return None;
        }
        let mut bytes = vec![0; len];
        for (number, page) in &self.pages {
            let at = (number * PAGE_BYTES) as usize;
            let part = len.saturating_sub(at).min(PAGE_BYTES as usize);
            bytes[at.min(len)..][..part].copy_from_slice(&page.bytes[..part]);
        }
        Some(bytes)
    }

    /// Pages that are not all zeros, in order, each cut at the end of the file.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().filter_map(|(number, page)| {
            let left = self.size.checked_sub(number * PAGE_BYTES)?;
            let len = left.min(PAGE_BYTES) as usize;
            (len > 0).then(|| (number * PAGE_BYTES, &page.bytes[..len]))
        })
    }

    fn hash(&self, into: &mut Xxh3) {
        into.update(&self.size.to_le_bytes());
        for (number, page) in &self.pages {
            into.update(&number.to_le_bytes());
            into.update(&page.hash.to_le_bytes());
        }
    }
}

/// An inode of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type.
    pub kind: Kind,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Data of a regular file.
    pub contents: Contents,
    /// Names in a directory.
    pub names: BTreeMap<Bytes, Node>,
}

impl Inode {
    /// A new inode without data, names or attributes. The mode of a symbolic link is fixed.
    pub fn new(kind: Kind, perm: u32, uid: u32, gid: u32) -> Self {
        let is_link = matches!(kind, Kind::Symlink(_));
        Self {
            kind,
            perm: if is_link { 0o777 } else { perm },
            uid,
            gid,
            xattrs: BTreeMap::new(),
            contents: Contents::default(),
            names: BTreeMap::new(),
        }
    }
}

/// The files and directories at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    inodes: BTreeMap<Node, Arc<Inode>>,
}

impl Default for Tree {
    /// An empty root directory of the super-user.
    fn default() -> Self {
        let root = Inode::new(Kind::Directory, 0o755, 0, 0);
        Self {
            inodes: BTreeMap::from([(Node::ROOT, Arc::new(root))]),
        }
    }
}

impl Tree {
    /// An inode, also one without a name.
    pub fn get(&self, node: Node) -> Option<&Inode> {
        self.inodes.get(&node).map(|inode| &**inode)
    }

    /// An inode, to change it.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn get_mut(&mut self, node: Node) -> Result<&mut Inode, String> {
        let inode = self.inodes.get_mut(&node);
        inode
            .map(Arc::make_mut)
            .ok_or_else(|| format!("there is no {node}"))
    }

    /// Adds an inode without a name.
    pub fn insert(&mut self, node: Node, inode: Inode) {
        self.inodes.insert(node, Arc::new(inode));
    }

    /// The pages of each file that are not all zeros.
    pub(crate) fn allocated_pages(
        &self,
    ) -> impl Iterator<Item = (Node, impl Iterator<Item = u64>)> {
        let inodes = self.inodes.iter();
        inodes.map(|(node, inode)| (*node, inode.contents.pages.keys().copied()))
    }

    /// The inode of a name.
    pub fn lookup(&self, at: &Place) -> Option<Node> {
        self.get(at.dir)?.names.get(&at.name).copied()
    }

    /// The inode of a path relative to the root.
    pub fn resolve(&self, path: &[u8]) -> Option<Node> {
        let parts = path.split(|byte| *byte == b'/');
        parts
            .filter(|part| !part.is_empty() && *part != b".")
            .try_fold(Node::ROOT, |dir, name| {
                self.get(dir)?.names.get(&Bytes::from(name)).copied()
            })
    }

    /// Sets or removes a name.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn set_name(&mut self, at: &Place, node: Option<Node>) -> Result<(), String> {
        let dir = self.get_mut(at.dir)?;
        if dir.kind != Kind::Directory {
            return Err(format!("{} is not a directory", at.dir));
        }
        match node {
            Some(node) => dir.names.insert(at.name.clone(), node),
            None => dir.names.remove(&at.name),
        };
        Ok(())
    }

    /// Removes an empty `lost+found` from the root: some file systems have it, others do not.
    pub fn forget_lost_found(&mut self) {
        let at = Place::new(Node::ROOT, b"lost+found");
        let inode = self.lookup(&at).and_then(|node| self.get(node));
        let is_empty = |inode: &Inode| inode.kind == Kind::Directory && inode.names.is_empty();
        if inode.is_some_and(is_empty)
            && let Ok(root) = self.get_mut(Node::ROOT)
        {
            root.names.remove(&at.name);
        }
    }

    /// Applies a call. `data`: of its run.
    ///
    /// # Errors
    /// The call does not fit, such as one on an inode that does not exist.
    pub fn apply(&mut self, call: &Call, data: &[u8]) -> Result<(), String> {
        match call {
            Call::Make {
                node,
                at,
                kind,
                perm,
                uid,
                gid,
            } => {
                self.insert(*node, Inode::new(kind.clone(), *perm, *uid, *gid));
                at.iter().try_for_each(|at| self.set_name(at, Some(*node)))
            }
            Call::Link { node, at } => {
                self.get_mut(*node)?;
                self.set_name(at, Some(*node))
            }
            Call::Remove { at } => self.set_name(at, None),
            Call::Rename { from, to, exchange } => self.rename(from, to, *exchange),
            Call::Write {
                node,
                off,
                data: blob,
            } => {
                let end = blob.at.saturating_add(blob.len);
                let bytes = data.get(blob.at as usize..end as usize);
                let bytes = bytes.ok_or("its data are not in the run")?;
                self.get_mut(*node)?.contents.write(*off, bytes);
                Ok(())
            }
            Call::SetSize { node, size } => {
                self.get_mut(*node)?.contents.set_size(*size);
                Ok(())
            }
            Call::Zero { node, off, len } => {
                self.get_mut(*node)?.contents.zero(*off, *len);
                Ok(())
            }
            Call::SetAttr {
                node,
                perm,
                uid,
                gid,
            } => {
                let inode = self.get_mut(*node)?;
                inode.perm = perm.unwrap_or(inode.perm);
                inode.uid = uid.unwrap_or(inode.uid);
                inode.gid = gid.unwrap_or(inode.gid);
                Ok(())
            }
            Call::SetXattr { node, name, value } => {
                let xattrs = &mut self.get_mut(*node)?.xattrs;
                match value {
                    Some(value) => xattrs.insert(name.clone(), value.clone()),
                    None => xattrs.remove(name),
                };
                Ok(())
            }
            Call::Sync { .. }
            | Call::SyncAll
            | Call::Barrier
            | Call::Close { .. }
            | Call::Output { .. } => Ok(()),
        }
    }

    fn rename(&mut self, from: &Place, to: &Place, exchange: bool) -> Result<(), String> {
        let missing = || format!("there is no name {:?} in {}", from.name, from.dir);
        let moved = self.lookup(from).ok_or_else(missing)?;
        let replaced = self.lookup(to);
        if replaced == Some(moved) {
            return Ok(()); // two names of one inode
        }
        self.set_name(to, Some(moved))?;
        self.set_name(from, replaced.filter(|_| exchange))
    }

    /// All names, in order of path, with their inodes. A directory that is its own ancestor is
    /// listed once.
    pub fn paths(&self) -> Vec<(Vec<u8>, Node)> {
        let mut found = Vec::new();
        let mut above = vec![Node::ROOT];
        self.below(Node::ROOT, &mut Vec::new(), &mut above, &mut found);
        found
    }

    fn below(
        &self,
        dir: Node,
        path: &mut Vec<u8>,
        above: &mut Vec<Node>,
        found: &mut Vec<(Vec<u8>, Node)>,
    ) {
        let Some(inode) = self.get(dir) else { return };
        for (name, &node) in &inode.names {
            let len = path.len();
            if len > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&name.0);
            found.push((path.clone(), node));
            if !above.contains(&node) {
                above.push(node);
                self.below(node, path, above, found);
                above.pop();
            }
            path.truncate(len);
        }
    }

    /// A path of an inode.
    pub fn path_of(&self, wanted: Node) -> Option<Vec<u8>> {
        if wanted == Node::ROOT {
            return Some(b".".to_vec());
        }
        let mut paths = self.paths().into_iter();
        paths.find_map(|(path, node)| (node == wanted).then_some(path))
    }

    /// The calls that make this tree from an empty root, each with its data.
    pub fn calls(&self) -> Vec<(Call, Vec<u8>)> {
        let mut calls = Vec::new();
        let mut made = BTreeSet::from([Node::ROOT]);
        if let Some(root) = self.get(Node::ROOT) {
            attribute_calls(Node::ROOT, root, true, &mut calls);
        }
        self.names_below(Node::ROOT, &mut made, &mut calls);
        calls
    }

    fn names_below(&self, dir: Node, made: &mut BTreeSet<Node>, calls: &mut Vec<(Call, Vec<u8>)>) {
        let Some(inode) = self.get(dir) else { return };
        for (name, &node) in &inode.names {
            let at = Place {
                dir,
                name: name.clone(),
            };
            let Some(inode) = self.get(node) else {
                continue;
            };
            if !made.insert(node) {
                calls.push((Call::Link { node, at }, Vec::new()));
                continue;
            }
            let make = Call::Make {
                node,
                at: Some(at),
                kind: inode.kind.clone(),
                perm: inode.perm,
                uid: inode.uid,
                gid: inode.gid,
            };
            calls.push((make, Vec::new()));
            attribute_calls(node, inode, false, calls);
            self.names_below(node, made, calls);
        }
    }

    /// Hash of all that a program can see: paths, types, attributes, contents, and which paths are
    /// one inode. Inode numbers have no part in it.
    pub fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut seen: BTreeMap<Node, u64> = BTreeMap::new();
        for (path, node) in self.paths() {
            hash.update(&(path.len() as u64).to_le_bytes());
            hash.update(&path);
            let next = seen.len() as u64;
            let number = *seen.entry(node).or_insert(next);
            hash.update(&number.to_le_bytes());
            if let (true, Some(inode)) = (number == next, self.get(node)) {
                hash_inode(inode, &mut hash);
            }
        }
        hash.digest()
    }
}

/// The calls that set attributes, attributes of the root included, and contents.
fn attribute_calls(node: Node, inode: &Inode, is_root: bool, calls: &mut Vec<(Call, Vec<u8>)>) {
    let mut call = |call| calls.push((call, Vec::new()));
    if is_root {
        call(Call::SetAttr {
            node,
            perm: Some(inode.perm),
            uid: Some(inode.uid),
            gid: Some(inode.gid),
        });
    }
    for (name, value) in &inode.xattrs {
        call(Call::SetXattr {
            node,
            name: name.clone(),
            value: Some(value.clone()),
        });
    }
    if inode.contents.size() > 0 {
        let size = inode.contents.size();
        call(Call::SetSize { node, size });
    }
    for (off, bytes) in inode.contents.pages() {
        let data = crate::Blob { at: 0, len: 0 };
        calls.push((Call::Write { node, off, data }, bytes.to_vec()));
    }
}

fn hash_inode(inode: &Inode, hash: &mut Xxh3) {
    let (target, rdev): (&[u8], u32) = match &inode.kind {
        Kind::Symlink(target) => (&target.0, 0),
        Kind::CharDevice(rdev) | Kind::BlockDevice(rdev) => (&[], *rdev),
        Kind::File | Kind::Directory | Kind::Fifo | Kind::Socket => (&[], 0),
    };
    let kind = inode.kind.file_type() as u32;
    for number in [kind, inode.perm, inode.uid, inode.gid, rdev] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(&(target.len() as u64).to_le_bytes());
    hash.update(target);
    for part in inode.xattrs.iter().flat_map(|(name, value)| [name, value]) {
        hash.update(&(part.0.len() as u64).to_le_bytes());
        hash.update(&part.0);
    }
    inode.contents.hash(hash);
}

#[cfg(test)]
mod tests;
