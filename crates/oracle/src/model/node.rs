//! Inodes and directories of the model.

use super::pages::{BLOCK, Pages};
use hashbrown::HashMap;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::perm::NewOwner;
use vfs::{Attr, Cookie, Errno, FileFlags, FileType, Ino, NewNode, Result, Timestamp};

/// An inode. Constant fields are outside the lock.
pub(super) struct Node {
    pub(super) ino: Ino,
    pub(super) kind: FileType,
    pub(super) rdev: u32,
    /// References that callers hold; see [`vfs::FileSystem`].
    pub(super) refs: AtomicU64,
    pub(super) body: RwLock<Body>,
}

/// The fields of an inode that change.
#[derive(Clone)]
pub(super) struct Body {
    pub(super) perm: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The inode was made without a name, and may still get one.
    pub(super) nameable: bool,
    pub(super) content: Content,
}

#[derive(Clone)]
pub(super) enum Content {
    None,
    Data(Pages),
    Directory(Directory),
    Target(Box<[u8]>),
}

impl Content {
    /// The initial contents of an inode that is made in the directory `parent`.
    fn new(new: &NewNode<'_>, parent: Ino) -> Self {
        match new.kind() {
            FileType::Regular => Self::Data(Pages::default()),
            FileType::Directory => Self::Directory(Directory::new(parent)),
            FileType::Symlink => Self::Target(new.target().into()),
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                Self::None
            }
        }
    }
}

impl Node {
    /// A new inode in the directory `parent`.
    pub(super) fn new(
        ino: Ino,
        parent: Ino,
        owner: NewOwner,
        now: Timestamp,
        new: &NewNode<'_>,
    ) -> Self {
        Self {
            ino,
            kind: new.kind(),
            rdev: new.rdev(),
            refs: AtomicU64::new(0),
            body: RwLock::new(Body {
                perm: owner.perm,
                nlink: 1 + u32::from(new.is_directory()),
                uid: owner.uid,
                gid: owner.gid,
                size: new.target().len() as u64,
                atime: now,
                mtime: now,
                ctime: now,
                xattrs: Default::default(),
                nameable: false,
                content: Content::new(new, parent),
            }),
        }
    }

    pub(super) fn attr(&self) -> Attr {
        self.attr_of(&self.body.read())
    }

    /// The attributes, for a caller that holds the lock.
    pub(super) fn attr_of(&self, body: &Body) -> Attr {
        Attr {
            ino: self.ino,
            generation: 1, // numbers are never reused
            kind: self.kind,
            perm: body.perm,
            nlink: body.nlink,
            uid: body.uid,
            gid: body.gid,
            rdev: self.rdev,
            size: body.size,
            blocks: body.blocks() * (BLOCK / 512),
            blksize: BLOCK as u32,
            atime: body.atime,
            mtime: body.mtime,
            ctime: body.ctime,
            flags: FileFlags::empty(),
        }
    }

    /// Runs `f` on the entries of this directory.
    ///
    /// # Errors
    /// `ENOTDIR`.
    pub(super) fn with_dir<T>(&self, f: impl FnOnce(&Directory) -> T) -> Result<T> {
        match &self.body.read().content {
            Content::Directory(dir) => Ok(f(dir)),
            Content::None | Content::Data(_) | Content::Target(_) => Err(Errno::NOTDIR),
        }
    }

    /// Changes a directory: runs `f` on its body and its entries, and sets its times. Callers
    /// have checked the type.
    pub(super) fn change_dir(&self, now: Timestamp, f: impl FnOnce(&mut u32, &mut Directory)) {
        let body = &mut *self.body.write();
        if let Content::Directory(dir) = &mut body.content {
            f(&mut body.nlink, dir);
            (body.mtime, body.ctime) = (now, now);
        }
    }

    pub(super) fn entry(&self, name: &[u8]) -> Result<Option<Entry>> {
        self.with_dir(|dir| dir.get(name))
    }

    pub(super) fn add_ref(&self) {
        self.refs.fetch_add(1, SeqCst);
    }

    /// Gives back references, at most those that there are. Returns how many remain.
    pub(super) fn drop_refs(&self, count: u64) -> u64 {
        let drop = |refs: u64| Some(refs.saturating_sub(count));
        match self.refs.fetch_update(SeqCst, SeqCst, drop) {
            Ok(before) | Err(before) => before.saturating_sub(count),
        }
    }

    /// An independent copy, references included.
    pub(super) fn fork(&self) -> Self {
        Self {
            ino: self.ino,
            kind: self.kind,
            rdev: self.rdev,
            refs: AtomicU64::new(self.refs.load(SeqCst)),
            body: RwLock::new(self.body.read().clone()),
        }
    }
}

impl Body {
    /// Blocks taken: the data, and one for extended attributes.
    pub(super) fn blocks(&self) -> u64 {
        let data = match &self.content {
            Content::Data(pages) => pages.count(),
            Content::None | Content::Directory(_) | Content::Target(_) => 0,
        };
        data + u64::from(!self.xattrs.is_empty())
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) ino: Ino,
    pub(super) kind: FileType,
    cookie: u64,
}

/// Names, which are found by name, and by cookie in the order of their creation.
#[derive(Clone)]
pub(super) struct Directory {
    pub(super) parent: Ino,
    names: HashMap<Arc<[u8]>, Entry>,
    order: BTreeMap<u64, Arc<[u8]>>,
    next_cookie: u64,
}

/// The cookies of `.` and `..`; names follow.
pub(super) const DOT: Cookie = Cookie(1);
pub(super) const DOT_DOT: Cookie = Cookie(2);

impl Directory {
    pub(super) fn new(parent: Ino) -> Self {
        Self {
            parent,
            names: HashMap::new(),
            order: BTreeMap::new(),
            next_cookie: DOT_DOT.0 + 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Entry> {
        self.names.get(name).copied()
    }

    /// Points `name` at an inode. An existing name keeps its place.
    pub(super) fn set(&mut self, name: &[u8], ino: Ino, kind: FileType) {
        if let Some(entry) = self.names.get_mut(name) {
            (entry.ino, entry.kind) = (ino, kind);
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let name: Arc<[u8]> = name.into();
        self.order.insert(cookie, name.clone());
        self.names.insert(name, Entry { ino, kind, cookie });
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(entry) = self.names.remove(name) {
            self.order.remove(&entry.cookie);
        }
    }

    /// The names after `after`, in cookie order.
    pub(super) fn list(&self, after: Cookie) -> impl Iterator<Item = (Cookie, &[u8], Entry)> {
        let start = after.0.saturating_add(1);
        self.order
            .range(start..)
            .filter_map(|(&cookie, name)| Some((Cookie(cookie), &**name, self.get(name)?)))
    }
}
