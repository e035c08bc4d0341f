//! The locks that a call needs.
//!
//! A call locks the objects that it reads for reading, and those that it changes for writing, with the
//! collections above them by intents. It finds them in the memory, which others may change meanwhile. So
//! it looks again under the locks ([`under`]).
//!
//! The path to an object is that of the parents: the header of an object with one name has the
//! collection of that name. All others have a path of their own and are locked explicitly, by every client.
//!
//! - A change of a directory's entries locks the directory for its members, too, so that hierarchical
//!   locks of other clients do not cover a new member at once.
//! - A write in place that changes nothing but contents and times needs the file for reading, and the
//!   exclusive lock of its *writer*, a name of its own: readers go on, and other writers wait.
//! - A call whose objects this process may not read gets no locks, and fails with `EREMOTE`.
//! - A directory that moves is locked with all that is in it: the paths of its descendants change, and
//!   two moves cannot make a loop. So is one of a protected store whose owner or mode changes: other clients
//!   report first which files below it they have open.

use crate::clerk::{Clerk, Guard, Host, LockError, Pass, Scope, Want};
use aerie_objects::{Kind, Load, ObjectId, Superblock, members, only_parent, own, parent};
use aerie_proto::locks::{Access, LockId};
use smallvec::SmallVec;
use std::cell::Cell;
use vfs::{Errno, Ino, Name};

use Access::{Exclusive, Shared};

/// Most objects on a path.
const PATH_MAX: usize = 4096;
/// Attempts of a call to find the objects under its locks that it found before.
const ATTEMPTS: usize = 256;
/// The word of an object with its link count, in the lower half.
const LINKS: u64 = 2;

/// The names and inodes that a call reads and changes.
#[derive(Debug, Clone, Copy)]
pub enum Need<'a> {
    /// All of an inode: attributes, contents, the entries of a directory.
    Inode(Ino, Access),
    /// A name and the attributes of its inode.
    Lookup(Name<'a>),
    /// The contents of a file with this name, or its absence. A name is removed under the lock of its
    /// file, too, so that the one of the directory is not needed if there is a file.
    Value(Name<'a>),
    /// The contents of a file with this name, which is made if it is missing.
    Put(Name<'a>),
    /// As [`Value`](Self::Value), and nobody overwrites the contents meanwhile: with the lock of the file for
    /// writing, or with those of the file and its writer for reading.
    Borrow(Name<'a>, Access),
    /// A new name of a new inode.
    Make(Name<'a>),
    /// A new name of an inode.
    Link(Ino, Name<'a>),
    /// A name that is removed.
    Remove(Name<'a>),
    /// A name that moves.
    Rename(Name<'a>, Name<'a>),
    /// An inode that loses a reference.
    Unrefer(Ino),
    /// A file whose contents are changed in place, beside readers.
    Overwrite(Ino),
    /// An inode whose owner or mode changes in a protected store: other clients may not read any more what is
    /// below it.
    Protect(Ino),
}

/// An object to lock.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    path: SmallVec<[LockId; 6]>,
    access: Access,
    scope: Scope,
}

/// The objects to lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Plan(SmallVec<[Place; 2]>);

/// The lock of the client that overwrites contents of a file in place. It is not the name of an object.
fn writer(file: ObjectId) -> LockId {
    const WRITER: u64 = 0x20;
    LockId(file.to_bits() | WRITER)
}

/// The objects of a store, as a client sees them.
pub struct Tree<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// Its superblock.
    pub superblock: &'a Superblock,
    /// Finds a name in a collection that others may change meanwhile.
    find: &'a Find<'a>,
    /// Whether a page could not be read that this process may not read.
    is_denied: Cell<bool>,
}

type Find<'a> = dyn Fn(ObjectId, &[u8]) -> aerie_objects::Result<Option<ObjectId>> + 'a;

impl<'a, M: Load> Tree<'a, M> {
    /// The objects in `memory`. `find` finds a name in a collection that others may change meanwhile.
    pub fn new(memory: &'a M, superblock: &'a Superblock, find: &'a Find<'a>) -> Self {
        Self {
            memory,
            superblock,
            find,
            is_denied: Cell::new(false),
        }
    }

    /// The result of a look, if there is one. A page that was denied leaves the locks of the call unknown.
    fn known<T>(&self, looked: aerie_objects::Result<Option<T>>) -> Option<T> {
        looked.unwrap_or_else(|error| {
            self.is_denied.set(self.is_denied.get() | error.is_denied());
            None
        })
    }

    fn object(&self, ino: Ino) -> Option<ObjectId> {
        match ino {
            Ino::ROOT => Some(self.superblock.root),
            Ino(bits) => ObjectId::from_bits(bits),
        }
    }

    /// The parent, if it is known. That of an object without a name does not count.
    fn parent(&self, object: ObjectId) -> Option<ObjectId> {
        let parent = self.known(parent(self.memory, object));
        parent.filter(|parent| *parent != self.superblock.open)
    }

    fn find(&self, name: Name<'_>) -> Option<ObjectId> {
        let dir = self.object(name.dir)?;
        let is_dir = dir.kind() == Kind::Collection;
        let found = is_dir.then(|| (self.find)(dir, name.name))?;
        self.known(found)
    }

    /// Whether a pass is enough for a call. The answer stays the same while the pass lasts.
    fn is_permitted<H: Host>(&self, pass: &Pass<'_, H>, need: &Need<'_>) -> bool {
        self.has_locks(pass, need) && !self.is_denied.get()
    }

    fn has_locks<H: Host>(&self, pass: &Pass<'_, H>, need: &Need<'_>) -> bool {
        let above = |lock: LockId| {
            let object = ObjectId::from_bits(lock.0)?;
            let parent = self.known(only_parent(self.memory, object))?;
            (parent != self.superblock.open).then(|| LockId(parent.to_bits()))
        };
        let permits = |object: ObjectId, access| {
            let is_collection = object.kind() == Kind::Collection;
            pass.permits(LockId(object.to_bits()), access, is_collection, above)
        };
        // Without an object there is nothing to lock.
        let inode = |ino, access| {
            self.object(ino)
                .is_none_or(|object| permits(object, access))
        };
        let found = |name, access| self.find(name).is_none_or(|object| permits(object, access));
        let value = |name: Name<'_>, access| match self.find(name) {
            Some(object) => permits(object, access),
            None => inode(name.dir, access),
        };
        match *need {
            Need::Inode(ino, access) => inode(ino, access),
            Need::Lookup(name) => inode(name.dir, Shared) && found(name, Shared),
            Need::Value(name) => value(name, Shared),
            Need::Put(name) => value(name, Exclusive),
            // Passes do not exclude writers of this client.
            Need::Borrow(..) => false,
            Need::Protect(ino) => match self.object(ino) {
                Some(object) if object.kind() == Kind::MFile => permits(object, Exclusive),
                _ => false,
            },
            Need::Make(name) => inode(name.dir, Exclusive),
            Need::Link(ino, name) => inode(name.dir, Exclusive) && inode(ino, Exclusive),
            Need::Remove(name) => inode(name.dir, Exclusive) && found(name, Exclusive),
            Need::Rename(from, to) => {
                let mut names = [from, to].into_iter();
                names.all(|name| inode(name.dir, Exclusive) && found(name, Exclusive))
            }
            // It has no collection, so that its lock is explicit.
            Need::Unrefer(ino) => inode(ino, Exclusive),
            Need::Overwrite(ino) => self.object(ino).is_none_or(|file| {
                let is_writer = || pass.permits(writer(file), Exclusive, false, |_| None);
                permits(file, Exclusive) || permits(file, Shared) && is_writer()
            }),
        }
    }

    fn plan(&self, need: &Need<'_>) -> Plan {
        let mut plan = Plan::default();
        match *need {
            Need::Inode(ino, access) => self.inode(&mut plan, ino, access),
            Need::Lookup(name) => {
                self.inode(&mut plan, name.dir, Shared);
                if let Some(found) = self.find(name) {
                    self.add(&mut plan, found, Shared);
                }
            }
            Need::Value(name) => self.value(&mut plan, name, Shared),
            Need::Borrow(name, access) => match (self.find(name), access) {
                (None, _) => self.inode(&mut plan, name.dir, Shared),
                (Some(file), Exclusive) => self.add(&mut plan, file, Exclusive),
                (Some(file), Shared) => {
                    self.add(&mut plan, file, Shared);
                    self.writer(&mut plan, file, Shared);
                }
            },
            Need::Put(name) => self.value(&mut plan, name, Exclusive),
            Need::Protect(ino) => {
                if let Some(object) = self.object(ino) {
                    self.tree(&mut plan, object);
                }
            }
            Need::Make(name) => self.inode(&mut plan, name.dir, Exclusive),
            Need::Link(ino, name) => {
                self.inode(&mut plan, name.dir, Exclusive);
                self.inode(&mut plan, ino, Exclusive);
            }
            Need::Remove(name) => {
                self.inode(&mut plan, name.dir, Exclusive);
                if let Some(found) = self.find(name) {
                    self.add(&mut plan, found, Exclusive);
                }
            }
            Need::Rename(from, to) => self.rename(&mut plan, from, to),
            Need::Unrefer(ino) if self.is_nameless_inode(ino) => {
                self.inode(&mut plan, ino, Exclusive);
            }
            Need::Unrefer(_) => {}
            Need::Overwrite(ino) => {
                self.inode(&mut plan, ino, Shared);
                if let Some(file) = self.object(ino) {
                    self.writer(&mut plan, file, Exclusive);
                }
            }
        }
        plan
    }

    fn value(&self, plan: &mut Plan, name: Name<'_>, access: Access) {
        match self.find(name) {
            Some(found) => self.add(plan, found, access),
            None => self.inode(plan, name.dir, access),
        }
    }

    fn writer(&self, plan: &mut Plan, file: ObjectId, access: Access) {
        plan.0.push(Place {
            path: SmallVec::from_slice(&[writer(file)]),
            access,
            scope: Scope::Object,
        });
    }

    fn rename(&self, plan: &mut Plan, from: Name<'_>, to: Name<'_>) {
        self.inode(plan, from.dir, Exclusive);
        if from.dir != to.dir {
            self.inode(plan, to.dir, Exclusive);
        }
        let moved = [self.find(from), self.find(to)];
        for node in moved.into_iter().flatten() {
            self.tree(plan, node);
        }
    }

    /// An object with all that is in it.
    fn tree(&self, plan: &mut Plan, object: ObjectId) {
        match object.kind() {
            Kind::Collection => self.add_scope(plan, object, Exclusive, Scope::Tree),
            Kind::MFile => self.add(plan, object, Exclusive),
        }
    }

    fn inode(&self, plan: &mut Plan, ino: Ino, access: Access) {
        if let Some(object) = self.object(ino) {
            self.add(plan, object, access);
        }
    }

    /// Whether an inode has no name, so that its last reference keeps it.
    pub fn is_nameless_inode(&self, ino: Ino) -> bool {
        self.object(ino).is_some_and(|node| self.is_nameless(node))
    }

    fn is_nameless(&self, object: ObjectId) -> bool {
        own(self.memory, object, LINKS).is_ok_and(|word| word as u32 == 0)
    }

    fn add(&self, plan: &mut Plan, object: ObjectId, access: Access) {
        let scope = match (object.kind(), access) {
            (Kind::Collection, Exclusive) => Scope::Members,
            _ => Scope::Object,
        };
        self.add_scope(plan, object, access, scope);
    }

    fn add_scope(&self, plan: &mut Plan, object: ObjectId, access: Access, scope: Scope) {
        let mut path = SmallVec::new();
        let mut next = Some(object);
        while let Some(at) = next.filter(|_| path.len() < PATH_MAX) {
            path.push(LockId(at.to_bits()));
            next = self.parent(at);
        }
        path.reverse();
        plan.0.push(Place {
            path,
            access,
            scope,
        });
    }
}

impl Plan {
    fn lock<'a, H: Host>(
        &self,
        clerk: &'a Clerk<H>,
        is_brief: bool,
    ) -> Result<Guard<'a, H>, LockError> {
        let wants = self.0.iter().map(|place| Want {
            path: &place.path,
            access: place.access,
            scope: place.scope,
        });
        let wants: SmallVec<[Want<'_>; 4]> = wants.collect();
        match is_brief {
            true => clerk.lock_briefly(&wants),
            false => clerk.lock_all(&wants),
        }
    }
}

/// The number of collections with an object, for the clerk; the maximum if it cannot be read.
pub fn membership_count<M: Load>(memory: &M, object: LockId) -> u64 {
    let object = ObjectId::from_bits(object.0);
    let members = object.and_then(|object| members(memory, object).ok());
    members.unwrap_or(u64::MAX)
}

/// Runs a call under the locks that it needs. They exclude other calls of this client that need them.
///
/// # Errors
/// Those of the clerk: the session has ended, and the result of the call is void.
pub fn under<H: Host, M: Load, T>(
    clerk: &Clerk<H>,
    tree: &Tree<'_, M>,
    need: &Need<'_>,
    call: impl FnOnce() -> vfs::Result<T>,
) -> Result<vfs::Result<T>, LockError> {
    under_guard(clerk, tree, need, false, call)
}

fn under_guard<H: Host, M: Load, T>(
    clerk: &Clerk<H>,
    tree: &Tree<'_, M>,
    need: &Need<'_>,
    is_brief: bool,
    call: impl FnOnce() -> vfs::Result<T>,
) -> Result<vfs::Result<T>, LockError> {
    for _ in 0..ATTEMPTS {
        let plan = tree.plan(need);
        if tree.is_denied.get() {
            return Ok(Err(Errno::REMOTE));
        }
        if plan.0.is_empty() {
            return Ok(call());
        }
        let guard = plan.lock(clerk, is_brief)?;
        if tree.plan(need) == plan && !tree.is_denied.get() {
            let result = call();
            return guard.release().map(|()| result);
        }
    }
    Ok(Err(Errno::BUSY))
}

/// Runs a call as [`under`] does, or under a pass, beside other calls of this client. The call must be
/// atomic itself, and must not ship.
///
/// # Errors
/// As [`under`].
pub fn with_pass<H: Host, M: Load, T>(
    clerk: &Clerk<H>,
    tree: &Tree<'_, M>,
    need: &Need<'_>,
    call: impl FnOnce() -> vfs::Result<T>,
) -> Result<vfs::Result<T>, LockError> {
    if let Some(pass) = clerk.pass_soon()
        && tree.is_permitted(&pass, need)
    {
        let result = call();
        return pass.release().map(|()| result);
    }
    under_guard(clerk, tree, need, true, call)
}

/// Whether a call that needs this needs no message to the service now.
pub fn is_held<H: Host, M: Load>(clerk: &Clerk<H>, tree: &Tree<'_, M>, need: &Need<'_>) -> bool {
    let pass = clerk.pass();
    pass.is_some_and(|pass| tree.is_permitted(&pass, need))
}

/// Looks up a name under a pass, and reads its inode. `look` asks for the lock of the inode when it has found
/// it, and fails without it, so that the name is looked up once. `None` if the locks are not there.
pub fn look_up_with_pass<H: Host, M: Load, T>(
    clerk: &Clerk<H>,
    tree: &Tree<'_, M>,
    dir: Ino,
    look: impl FnOnce(&dyn Fn(Ino) -> bool) -> vfs::Result<T>,
) -> Option<Result<vfs::Result<T>, LockError>> {
    let pass = clerk.pass_soon()?;
    let may_read = |ino| tree.is_permitted(&pass, &Need::Inode(ino, Shared));
    if !may_read(dir) {
        return None;
    }
    match look(&may_read) {
        Ok(found) => Some(pass.release().map(|()| Ok(found))),
        Err(Errno::NOENT) => Some(pass.release().map(|()| Err(Errno::NOENT))),
        // Perhaps of an inode that others change meanwhile.
        Err(_) => None,
    }
}
