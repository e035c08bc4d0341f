//! The file system as the trusted service runs it: each call is a transaction.

use crate::error::{Fault, Res};
use crate::inode::{self, Inode};
use aerie_objects::{ObjectId, Store, Transaction};
use hashbrown::{HashMap, HashSet};
use medium::Pmem;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use vfs::{Atime, Attr, Clock, Ctx, Errno, Ino, NewNode, Timestamp, perm};

/// A file system on a store. The calls are in the modules of their kinds.
pub struct Pxfs<P> {
    pub(crate) store: Store<P>,
    /// Calls that change something have it alone.
    pub(crate) gate: RwLock<()>,
    /// References of callers; see [`vfs::FileSystem`].
    refs: Mutex<HashMap<ObjectId, u64>>,
    /// Files without a name that may get one (`O_TMPFILE`).
    pub(crate) nameable: Mutex<HashSet<ObjectId>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) atime: Atime,
}

impl<P: Pmem + Clone> Pxfs<P> {
    /// Opens the file system on a store, recovery included: files that were open at a crash, and had no
    /// name, are removed.
    ///
    /// # Errors
    /// The first damage, or an error of the memory.
    pub fn open(memory: P, clock: Arc<dyn Clock>, atime: Atime) -> aerie_objects::Result<Self> {
        let fs = Self {
            store: Store::open(memory)?,
            gate: RwLock::new(()),
            refs: Mutex::new(HashMap::new()),
            nameable: Mutex::new(HashSet::new()),
            clock,
            atime,
        };
        let (open, seed) = (fs.store.superblock().open, fs.store.seed());
        for left in aerie_objects::list_all(fs.store.memory(), open, seed)? {
            fs.bury(left.object).map_err(|fault| match fault {
                Fault::Store(error) => error,
                Fault::Call(errno) => aerie_objects::Error::NotAStore(errno.to_string()),
            })?;
        }
        Ok(fs)
    }
}

impl<P: Pmem> Pxfs<P> {
    /// The object of an inode number, if it exists.
    pub(crate) fn object(&self, ino: Ino) -> Res<ObjectId> {
        let object = inode::object(self.store.superblock(), ino);
        Ok(object
            .filter(|object| self.store.has(*object))
            .ok_or(Errno::STALE)?)
    }

    /// The inode of this number.
    pub(crate) fn inode(&self, ino: Ino) -> Res<Inode> {
        self.load(self.object(ino)?)
    }

    pub(crate) fn load(&self, object: ObjectId) -> Res<Inode> {
        Inode::load(self.store.memory(), self.store.superblock(), object)
    }

    /// The object of a name.
    pub(crate) fn find(&self, dir: &Inode, name: &[u8]) -> Res<Option<ObjectId>> {
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let seed = self.store.seed();
        Ok(aerie_objects::lookup(
            self.store.memory(),
            dir.object,
            seed,
            name,
        )?)
    }

    /// Runs a change as one transaction, which is durable when this returns.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Transaction<'_, P>) -> Res<T>,
    ) -> Res<T> {
        let mut tx = self.store.begin()?;
        let result = change(&mut tx)?;
        tx.commit()?;
        Ok(result)
    }

    /// Takes a reference.
    pub(crate) fn refer(&self, object: ObjectId) {
        *self.refs.lock().entry(object).or_default() += 1;
    }

    pub(crate) fn is_referenced(&self, object: ObjectId) -> bool {
        self.refs.lock().contains_key(&object)
    }

    /// Gives back references. The gate is held for a change.
    pub(crate) fn unrefer(&self, object: ObjectId, count: u64) -> Res<()> {
        {
            let mut refs = self.refs.lock();
            match refs.get_mut(&object) {
                Some(left) if *left > count => *left -= count,
                _ => drop(refs.remove(&object)),
            }
            if refs.contains_key(&object) {
                return Ok(());
            }
        }
        match self.load(object)?.attr.nlink {
            0 => self.bury(object),
            _ => Ok(()),
        }
    }

    /// Objects without a name.
    pub(crate) fn nameless_objects(&self) -> Res<Vec<ObjectId>> {
        let (open, seed) = (self.store.superblock().open, self.store.seed());
        let all = aerie_objects::list_all(self.store.memory(), open, seed)?;
        Ok(all.into_iter().map(|entry| entry.object).collect())
    }

    /// Deletes an object that has no name and no reference.
    fn bury(&self, object: ObjectId) -> Res<()> {
        self.nameable.lock().remove(&object);
        self.change(|tx| {
            tx.remove(tx.superblock().open, &key(object))?;
            delete(tx, object)
        })
    }

    /// Attributes of a new inode.
    pub(crate) fn new_attr(
        &self,
        cx: &Ctx,
        dir: &Inode,
        new: &NewNode<'_>,
        now: Timestamp,
    ) -> Attr {
        let owner = perm::new_owner(cx, &dir.attr, new);
        Attr {
            kind: new.kind(),
            perm: owner.perm,
            uid: owner.uid,
            gid: owner.gid,
            nlink: if new.is_directory() { 2 } else { 1 },
            rdev: new.rdev(),
            atime: now,
            mtime: now,
            ctime: now,
            ..dir.attr
        }
    }
}

/// The key of an object in the collections that are not directories.
pub(crate) fn key(object: ObjectId) -> [u8; 8] {
    object.to_bits().to_le_bytes()
}

/// Deletes an object that no collection has, with its extended attributes.
pub(crate) fn delete<P: Pmem>(tx: &mut Transaction<'_, P>, object: ObjectId) -> Res<()> {
    let attributes = tx.superblock().attributes;
    if let Some((file, _)) = tx.remove(attributes, &key(object))? {
        tx.delete(file)?;
    }
    Ok(tx.delete(object)?)
}
