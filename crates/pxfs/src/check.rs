//! The checker of files: a walk over the objects of a store, which has no violation of its own format.
//!
//! It reads one object at a time, and keeps a few words for each.

use crate::fs::key;
use crate::inode::Inode;
use aerie_objects::{Kind, ObjectId, Superblock, list, lookup, page};
use hashbrown::{HashMap, HashSet};
use medium::Pmem;
use vfs::check::{Report, Severity};
use vfs::xattr_block::decode;
use vfs::{FileType, SYMLINK_MAX, check_name};

/// Checks a file system whose log was replayed: first the store, then the files if the store is whole. It
/// changes nothing.
pub fn check<P: Pmem>(memory: &P) -> Report {
    let mut report = aerie_objects::check(memory);
    if report.is_clean()
        && let Ok(superblock) = Superblock::load(memory)
    {
        let mut walk = Walk {
            memory,
            superblock: &superblock,
            report: &mut report,
            names: HashMap::new(),
            waiting: vec![superblock.root],
            with_xattrs: HashSet::new(),
        };
        walk.files();
        walk.attributes();
    }
    report
}

/// The state of a walk.
struct Walk<'a, P> {
    memory: &'a P,
    superblock: &'a Superblock,
    report: &'a mut Report,
    /// Names of each object that is no directory.
    names: HashMap<ObjectId, u32>,
    /// Directories that were found and not visited.
    waiting: Vec<ObjectId>,
    with_xattrs: HashSet<ObjectId>,
}

impl<P: Pmem> Walk<'_, P> {
    fn found(&mut self, invariant: &str, what: impl Into<String>) {
        self.report.add(invariant, Severity::Corrupt, what);
    }

    fn files(&mut self) {
        while let Some(dir) = self.waiting.pop() {
            let dirs = self.list(dir, |walk, name, object| walk.name(dir, name, object));
            if let Some(inode) = self.inode(dir) {
                self.links(&inode, 2 + dirs);
            }
        }
        for (object, names) in std::mem::take(&mut self.names) {
            if let Some(inode) = self.inode(object) {
                self.links(&inode, names);
                self.contents(&inode);
            }
        }
        self.list(self.superblock.open, |walk, name, object| {
            walk.nameless(name, object)
        });
    }

    /// Visits the entries of a collection. Returns the number of collections among them.
    fn list(&mut self, collection: ObjectId, visit: impl Fn(&mut Self, &[u8], ObjectId)) -> u32 {
        let (mut at, mut dirs) = (0, 0);
        loop {
            let part = match list(self.memory, collection, self.superblock.seed, at) {
                Ok(part) => part,
                Err(error) => {
                    self.found("P1", format!("{collection}: {error}"));
                    return dirs;
                }
            };
            let Some(last) = part.last() else { return dirs };
            at = last.cookie;
            for entry in part {
                dirs += u32::from(entry.object.kind() == Kind::Collection);
                visit(self, &entry.key, entry.object);
            }
        }
    }

    fn name(&mut self, dir: ObjectId, name: &[u8], object: ObjectId) {
        if check_name(name).is_err() {
            let name = name.escape_ascii();
            self.found("P2", format!("{dir} has the name '{name}'"));
        }
        match object.kind() {
            Kind::Collection => self.waiting.push(object),
            Kind::MFile => *self.names.entry(object).or_default() += 1,
        }
    }

    fn nameless(&mut self, name: &[u8], object: ObjectId) {
        if name != key(object) {
            self.found(
                "P6",
                format!("{object} has another key in the collection of open objects"),
            );
        }
        let Some(inode) = self.inode(object) else {
            return;
        };
        self.links(&inode, 0);
        if inode.is_dir() && aerie_objects::entries(self.memory, object).is_ok_and(|n| n > 0) {
            self.found("P6", format!("{object} was removed, and has entries"));
        }
        self.contents(&inode);
    }

    fn inode(&mut self, object: ObjectId) -> Option<Inode> {
        let Ok(inode) = Inode::load(self.memory, self.superblock, object) else {
            let mode = aerie_objects::own(self.memory, object, 0).unwrap_or_default() as u32;
            self.found("P1", format!("{object} has the mode {mode:#o}"));
            return None;
        };
        if inode.has_xattrs {
            self.with_xattrs.insert(object);
        }
        Some(inode)
    }

    fn links(&mut self, inode: &Inode, names: u32) {
        let (found, object) = (inode.attr.nlink, inode.object);
        if found != names {
            self.found(
                "P3",
                format!("{object} has {found} links, and {names} are there"),
            );
        }
    }

    fn contents(&mut self, inode: &Inode) {
        let (size, object) = (inode.attr.size, inode.object);
        let is_possible = match inode.attr.kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => {
                let first = page(self.memory, object, 0);
                (1..=SYMLINK_MAX as u64).contains(&size) && matches!(first, Ok(Some(_)))
            }
            _ => size == 0,
        };
        if !is_possible {
            let kind = inode.attr.kind;
            self.found("P4", format!("{object}, a {kind:?}, has {size} bytes"));
        }
    }

    /// Compares the flags of inodes with the files of attributes.
    fn attributes(&mut self) {
        let (attributes, seed) = (self.superblock.attributes, self.superblock.seed);
        self.list(attributes, |walk, name, file| {
            let owner = name.try_into().map(u64::from_le_bytes);
            let owner = owner.ok().and_then(ObjectId::from_bits);
            if !owner.is_some_and(|owner| walk.with_xattrs.contains(&owner)) {
                let name = name.escape_ascii();
                walk.found("P5", format!("the attributes '{name}' belong to no object"));
            }
            let mut bytes = [0; aerie_objects::PAGE as usize];
            let first = page(walk.memory, file, 0).ok().flatten();
            let read = first.map(|first| walk.memory.read(first, &mut bytes));
            if !matches!(read, Some(Ok(()))) || decode(&bytes).is_none() {
                walk.found("P5", format!("the attributes in {file} cannot be read"));
            }
        });
        for object in std::mem::take(&mut self.with_xattrs) {
            if !matches!(
                lookup(self.memory, attributes, seed, &key(object)),
                Ok(Some(_))
            ) {
                self.found("P5", format!("{object} lacks its attributes"));
            }
        }
    }
}
