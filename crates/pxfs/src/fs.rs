//! The file system, as the trusted service and its clients run it.

use crate::error::{Fault, Res};
use crate::inode::{self, Inode};
use crate::references::References;
use aerie_objects::{Guard, Load, ObjectId, Overlay, Protection, Store, Superblock, Transaction};
use hashbrown::HashMap;
use medium::Pmem;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vfs::sync::{BigReaderLock, Mutex, ReadGuard, RwLock, RwLockWriteGuard, WriteGuard};
use vfs::xattrs::Xattrs;
use vfs::{Atime, Clock, Ctx, Errno, Ino, Timestamp};

/// A file system on a store. The calls are in the modules of their kinds.
pub struct Pxfs<P> {
    pub(crate) store: Store<P>,
    /// Batches at the service that run beside each other share it. All other changes have it alone, and all
    /// that takes references once there were batches. It is taken before the gate.
    pub(crate) turns: RwLock<()>,
    /// Readers and operations share it. A commit has it alone for its stores at home.
    pub(crate) gate: BigReaderLock,
    /// Batches were applied, perhaps beside each other. It is set by a holder of the gate.
    has_batches: AtomicBool,
    refs: References,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) atime: Atime,
    side: Side,
}

/// The side that runs the file system.
enum Side {
    /// The service. Objects without a name, and extended attributes, are in collections of the store.
    Service,
    /// A client, as a speculation. These collections belong to all clients: it changes neither, and
    /// keeps here the extended attributes that it has changed.
    Client(Mutex<HashMap<ObjectId, Xattrs>>),
}

/// The caller of a change, and its time.
#[derive(Clone, Copy)]
pub(crate) struct By<'a> {
    pub(crate) cx: &'a Ctx,
    pub(crate) moment: &'a Moment<'a>,
}

impl By<'_> {
    pub(crate) fn now(self) -> Timestamp {
        *self.moment.at.get_or_init(|| self.moment.clock.now())
    }
}

/// The time of a call: that of the clock when it is first needed, so that a call which fails before does
/// not use it.
pub(crate) struct Moment<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) at: OnceCell<Timestamp>,
}

impl Moment<'_> {
    pub(crate) fn by<'a>(&'a self, cx: &'a Ctx) -> By<'a> {
        By { cx, moment: self }
    }
}

/// The locks of a call that nothing else runs beside.
pub(crate) struct Alone<'a> {
    _gate: WriteGuard<'a>,
    _turn: RwLockWriteGuard<'a, ()>,
}

/// The locks of a call that takes references.
pub(crate) struct Referring<'a> {
    _gate: ReadGuard<'a>,
    _turn: Option<RwLockWriteGuard<'a, ()>>,
}

impl<P: Pmem + Clone> Pxfs<P> {
    /// Opens the file system on a store, recovery included: files that were open at a crash, and had no
    /// name, are removed.
    ///
    /// # Errors
    /// The first damage, or an error of the memory.
    pub fn open(memory: P, clock: Arc<dyn Clock>, atime: Atime) -> aerie_objects::Result<Self> {
        Self::recovered(Store::open(memory)?, clock, atime)
    }

    /// [`open`](Self::open) on a memory whose pages `guard` protects: users can map those whose contents, names
    /// and attributes the calls would give them. All pages get the right readers first.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of the guard.
    pub fn open_protected(
        memory: P,
        guard: Arc<dyn Guard>,
        clock: Arc<dyn Clock>,
        atime: Atime,
    ) -> aerie_objects::Result<Self> {
        let policy = crate::protect::readers;
        let protection = Protection { guard, policy };
        let store = Store::open_with(memory, Some(protection))?;
        Self::recovered(store, clock, atime)
    }

    /// The file system on a store, without the files that a crash has left without a name.
    fn recovered(
        store: Store<P>,
        clock: Arc<dyn Clock>,
        atime: Atime,
    ) -> aerie_objects::Result<Self> {
        let fs = Self::new(store, clock, atime, Side::Service);
        let (open, seed) = (fs.store.superblock().open, fs.store.seed());
        for left in aerie_objects::list_all(fs.store.memory(), open, seed)? {
            fs.change(|tx| fs.bury(tx, left.object))
                .map_err(|fault| match fault {
                    Fault::Store(error) => error,
                    Fault::Call(errno) => aerie_objects::Error::NotAStore(errno.to_string()),
                })?;
        }
        Ok(fs)
    }
}

impl<P: Pmem> Pxfs<Overlay<P>> {
    /// A file system that a client runs on a speculation.
    pub(crate) fn speculate(
        memory: P,
        clock: Arc<dyn Clock>,
        atime: Atime,
    ) -> aerie_objects::Result<Self> {
        let store = Store::speculate(Overlay::new(memory))?;
        Ok(Self::new(
            store,
            clock,
            atime,
            Side::Client(Mutex::default()),
        ))
    }
}

impl<P> Pxfs<P> {
    fn new(store: Store<P>, clock: Arc<dyn Clock>, atime: Atime, side: Side) -> Self {
        Self {
            store,
            turns: RwLock::new(()),
            gate: BigReaderLock::default(),
            has_batches: AtomicBool::new(false),
            refs: References::default(),
            clock,
            atime,
            side,
        }
    }
}

impl<P: Pmem> Pxfs<P> {
    /// The memory, for readers.
    pub fn memory(&self) -> &P {
        self.store.memory()
    }

    /// The superblock of the store.
    pub fn superblock(&self) -> &Superblock {
        self.store.superblock()
    }

    /// Pages that are free.
    pub fn free_pages(&self) -> u64 {
        self.store.free_pages()
    }

    /// The time of a call that begins.
    pub(crate) fn moment(&self) -> Moment<'_> {
        Moment {
            clock: &*self.clock,
            at: OnceCell::new(),
        }
    }

    /// The object of an inode number, if it exists in `memory`: that of the store, or a transaction.
    pub(crate) fn object<M: Load>(&self, memory: &M, ino: Ino) -> Res<ObjectId> {
        let object = inode::object(self.store.superblock(), ino);
        match object {
            Some(object) if self.store.has(memory, object)? => Ok(object),
            _ => Err(Errno::STALE.into()),
        }
    }

    /// The inode of this number, if it exists in `memory`.
    pub(crate) fn inode<M: Load>(&self, memory: &M, ino: Ino) -> Res<Inode> {
        match inode::object(self.store.superblock(), ino) {
            // A load finds that it exists.
            Some(object) if self.is_speculation() => self.load(memory, object),
            _ => self.load(memory, self.object(memory, ino)?),
        }
    }

    pub(crate) fn load<M: Load>(&self, memory: &M, object: ObjectId) -> Res<Inode> {
        Inode::load(memory, self.store.superblock(), object)
    }

    /// The object of a name.
    pub(crate) fn find<M: Load>(
        &self,
        memory: &M,
        dir: &Inode,
        name: &[u8],
    ) -> Res<Option<ObjectId>> {
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let seed = self.store.seed();
        Ok(aerie_objects::lookup(memory, dir.object, seed, name)?)
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

    /// Holds off all other calls and batches.
    pub(crate) fn alone(&self) -> Alone<'_> {
        let turn = self.turns.write();
        let gate = self.gate.write();
        Alone {
            _gate: gate,
            _turn: turn,
        }
    }

    /// Notes that there are batches, before the first one.
    pub(crate) fn expect_batches(&self) {
        if !self.has_batches.load(Ordering::Acquire) {
            let _gate = self.gate.write();
            self.has_batches.store(true, Ordering::Release);
        }
    }

    /// Holds off changes for a call that takes references. The operation of a batch that is not committed yet may
    /// have deleted an object because it had none.
    pub(crate) fn referring(&self) -> Referring<'_> {
        let gate = self.gate.read();
        if !self.has_batches.load(Ordering::Acquire) {
            return Referring {
                _gate: gate,
                _turn: None,
            };
        }
        drop(gate);
        let turn = self.turns.write();
        Referring {
            _gate: self.gate.read(),
            _turn: Some(turn),
        }
    }

    /// Takes a reference.
    pub(crate) fn refer(&self, object: ObjectId) {
        self.refs.add(object);
    }

    pub(crate) fn is_referenced(&self, object: ObjectId) -> bool {
        self.refs.count(object) > 0
    }

    /// The objects with references.
    pub(crate) fn referenced(&self) -> Vec<ObjectId> {
        self.refs.objects()
    }

    /// Gives back references. Returns whether they were the last ones.
    pub(crate) fn unrefer(&self, object: ObjectId, count: u64) -> bool {
        self.refs.give_back(object, count)
    }

    /// Whether there are no references but `count`.
    pub(crate) fn has_only(&self, object: ObjectId, count: u64) -> bool {
        self.refs.count(object) <= count
    }

    /// Objects without a name.
    pub(crate) fn nameless_objects(&self) -> Res<Vec<ObjectId>> {
        let (open, seed) = (self.store.superblock().open, self.store.seed());
        let all = aerie_objects::list_all(self.store.memory(), open, seed)?;
        Ok(all.into_iter().map(|entry| entry.object).collect())
    }

    /// Deletes an object that has no name and no reference.
    pub(crate) fn bury(&self, tx: &mut Transaction<'_, P>, object: ObjectId) -> Res<()> {
        self.strike(tx, object)?;
        self.delete(tx, object)
    }

    pub(crate) fn is_speculation(&self) -> bool {
        matches!(self.side, Side::Client(_))
    }

    /// Keeps an object that has no name.
    pub(crate) fn enlist(&self, tx: &mut Transaction<'_, P>, object: ObjectId) -> Res<()> {
        match self.side {
            Side::Service => Ok(tx.add(tx.superblock().open, &key(object), object)?),
            Side::Client(_) => Ok(()),
        }
    }

    /// Undoes [`enlist`](Self::enlist).
    pub(crate) fn strike(&self, tx: &mut Transaction<'_, P>, object: ObjectId) -> Res<()> {
        if let Side::Service = self.side {
            tx.remove(tx.superblock().open, &key(object))?;
        }
        Ok(())
    }

    /// Deletes an object that no collection has, with its extended attributes.
    pub(crate) fn delete(&self, tx: &mut Transaction<'_, P>, object: ObjectId) -> Res<()> {
        match &self.side {
            Side::Service => {
                let attributes = tx.superblock().attributes;
                if let Some((file, _)) = tx.remove(attributes, &key(object))? {
                    tx.delete(file)?;
                }
            }
            Side::Client(xattrs) => drop(xattrs.lock().remove(&object)),
        }
        Ok(tx.delete(object)?)
    }

    /// The extended attributes of an object, if a speculation has changed them.
    pub(crate) fn changed_xattrs(&self, object: ObjectId) -> Option<Xattrs> {
        match &self.side {
            Side::Service => None,
            Side::Client(xattrs) => xattrs.lock().get(&object).cloned(),
        }
    }

    /// Keeps extended attributes that a speculation has changed.
    pub(crate) fn keep_xattrs(&self, object: ObjectId, changed: Xattrs) {
        if let Side::Client(xattrs) = &self.side {
            xattrs.lock().insert(object, changed);
        }
    }

    /// Drops those of some objects.
    pub(crate) fn forget_xattrs_of(&self, objects: &[ObjectId]) {
        if let Side::Client(xattrs) = &self.side {
            let mut xattrs = xattrs.lock();
            objects
                .iter()
                .for_each(|object| drop(xattrs.remove(object)));
        }
    }

    /// Drops all of them.
    pub(crate) fn forget_xattrs(&self) {
        if let Side::Client(xattrs) = &self.side {
            xattrs.lock().clear();
        }
    }
}

/// The key of an object in the collections that are not directories.
pub(crate) fn key(object: ObjectId) -> [u8; 8] {
    object.to_bits().to_le_bytes()
}
