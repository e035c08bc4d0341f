//! The checker of operations on storage objects: a state machine whose state is the set of conditions
//! that are outstanding (paper section 4.2.4, Integrity). An operation of a file system is accepted if
//! none is outstanding at its end.

use super::refusal::{Invariant, Refusal, Stop, violation};
use super::seeded::{Bug, hit};
use aerie_objects::{NewObject, ObjectId, Reserve, Transaction, lookup, members, page};
use aerie_proto::batch::{Collection, File, Storage};
use medium::Pmem;
use std::collections::BTreeSet;

/// Most bytes of a file.
const SIZE_MAX: u64 = 1 << 48;

/// The rights of a client.
pub trait Authority {
    /// Checks that the client's locks cover changes of the object, and that it has the permission.
    ///
    /// # Errors
    /// The reason, as the client gets it.
    fn may_change(&self, object: ObjectId) -> Result<(), String>;
}

/// A condition on the rest of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    /// The extent was created: a file must get it.
    Map(u64),
    /// The extent was removed: it must be deleted.
    Free(u64),
    /// The object was created: a collection must get it.
    Link(ObjectId),
    /// The object has lost its last entry: it must be deleted, or a collection must get it.
    Settle(ObjectId),
}

/// A page or header that was taken from the reserve.
#[derive(Debug, Clone, Copy)]
enum Taken {
    Page(u64),
    Object(NewObject),
}

/// The checker of one operation of a file system.
pub(crate) struct Parts<'p, 'tx, P: Pmem> {
    tx: &'p mut Transaction<'tx, P>,
    reserve: &'p mut Reserve,
    authority: &'p dyn Authority,
    outstanding: BTreeSet<Condition>,
    taken: Vec<Taken>,
}

impl<'p, 'tx, P: Pmem> Parts<'p, 'tx, P> {
    pub(crate) fn new(
        tx: &'p mut Transaction<'tx, P>,
        reserve: &'p mut Reserve,
        authority: &'p dyn Authority,
    ) -> Self {
        Self {
            tx,
            reserve,
            authority,
            outstanding: BTreeSet::new(),
            taken: Vec::new(),
        }
    }

    /// Whether the log can take the transaction.
    pub(crate) fn fits(&self) -> bool {
        self.tx.fits()
    }

    /// Gives back all that was taken from the reserve, for an operation that is undone.
    pub(crate) fn put_back(self) {
        for taken in self.taken.into_iter().filter(|_| !hit(Bug::ReserveLost)) {
            match taken {
                Taken::Page(page) => self.reserve.put_page(page),
                Taken::Object(object) => self.reserve.put_object(object),
            }
        }
    }

    /// Checks that nothing is outstanding.
    pub(crate) fn end(&self) -> Result<(), Stop> {
        use Condition::{Free, Link, Map, Settle};
        let (invariant, what) = match self.outstanding.first() {
            Some(_) if hit(Bug::OutstandingAccepted) => return Ok(()),
            None => return Ok(()),
            Some(Map(extent)) => (
                Invariant::ExtentMapped,
                format!("no file gets extent {extent:#x}"),
            ),
            Some(Free(extent)) => (
                Invariant::ExtentMapped,
                format!("extent {extent:#x} is not deleted"),
            ),
            Some(Link(object)) => (
                Invariant::ObjectLinked,
                format!("no collection gets {object}"),
            ),
            Some(Settle(object)) => (
                Invariant::NoOrphans,
                format!("{object} has lost its last entry"),
            ),
        };
        Err(violation(invariant, what))
    }

    /// Checks and does one part.
    pub(crate) fn step(&mut self, op: Storage<'_>) -> Result<(), Stop> {
        match op {
            Storage::CreateExtent { extent } => self.create_extent(extent),
            Storage::DeleteExtent { extent } => self.discharge(Condition::Free(extent)),
            Storage::AddExtent {
                file,
                index,
                extent,
            } => self.add_extent(file, index, extent),
            Storage::RemoveExtent {
                file,
                index,
                extent,
            } => self.remove_extent(file, index, extent),
            Storage::CutExtents { file, from } => {
                self.may_change(file.0)?;
                Ok(self.tx.cut_pages(file.0, from)?)
            }
            Storage::SetSize { file, bytes } => self.set_size(file, bytes),
            Storage::CreateMFile { file: File(object) }
            | Storage::CreateCollection {
                collection: Collection(object),
            } => self.create(object),
            Storage::DeleteMFile { file: File(object) }
            | Storage::DeleteCollection {
                collection: Collection(object),
            } => self.delete(object),
            Storage::AddObject {
                collection,
                object,
                key,
            } => self.add_object(collection.0, key, object),
            Storage::RemoveObject {
                collection,
                object,
                key,
            } => self.remove_object(collection.0, key, object),
        }
    }

    /// Notes that a condition is met. It must be outstanding.
    fn discharge(&mut self, condition: Condition) -> Result<(), Stop> {
        if self.outstanding.remove(&condition) {
            return Ok(());
        }
        let (invariant, what) = match condition {
            Condition::Map(extent) => (
                Invariant::ExtentMapped,
                format!("extent {extent:#x} was not created"),
            ),
            Condition::Free(extent) => (
                Invariant::ExtentMapped,
                format!("extent {extent:#x} was not removed"),
            ),
            Condition::Link(object) | Condition::Settle(object) => (
                Invariant::NoOrphans,
                format!("{object} has not lost its last entry"),
            ),
        };
        Err(violation(invariant, what))
    }

    fn may_change(&self, object: ObjectId) -> Result<(), Stop> {
        if !self.tx.has(object)? && !hit(Bug::ForgedHeader) {
            return Err(Refusal::NoObject(object).into());
        }
        // No other client has a way to a new object.
        if self.outstanding.contains(&Condition::Link(object)) || hit(Bug::AuthorityNotAsked) {
            return Ok(());
        }
        let allowed = self.authority.may_change(object);
        allowed.map_err(|why| violation(Invariant::Covered, format!("{object}: {why}")))
    }

    fn create_extent(&mut self, extent: u64) -> Result<(), Stop> {
        if !self.reserve.take_page(extent) && !hit(Bug::ForeignExtent) {
            let what = format!("the client has not reserved extent {extent:#x}");
            return Err(violation(Invariant::ExtentMapped, what));
        }
        self.taken.push(Taken::Page(extent));
        self.outstanding.insert(Condition::Map(extent));
        Ok(())
    }

    fn add_extent(&mut self, File(file): File, index: u64, extent: u64) -> Result<(), Stop> {
        self.may_change(file)?;
        if !hit(Bug::ExtentAddedTwice) {
            self.discharge(Condition::Map(extent))?;
        } else {
            self.outstanding.remove(&Condition::Map(extent));
        }
        if page(self.tx, file, index)?.is_some() {
            let what = format!("{file} has an extent at index {index}");
            return Err(violation(Invariant::Covered, what));
        }
        Ok(self.tx.add_page_at(file, index, extent)?)
    }

    fn remove_extent(&mut self, File(file): File, index: u64, extent: u64) -> Result<(), Stop> {
        self.may_change(file)?;
        if page(self.tx, file, index)? != Some(extent) {
            let what = format!("{file} does not have extent {extent:#x} at index {index}");
            return Err(violation(Invariant::ExtentMapped, what));
        }
        self.tx.remove_page(file, index)?;
        self.outstanding.insert(Condition::Free(extent));
        Ok(())
    }

    fn set_size(&mut self, File(file): File, bytes: u64) -> Result<(), Stop> {
        self.may_change(file)?;
        if bytes > SIZE_MAX {
            let what = format!("{file} cannot have {bytes} bytes");
            return Err(violation(Invariant::Covered, what));
        }
        Ok(self.tx.set_size(file, bytes)?)
    }

    fn create(&mut self, object: ObjectId) -> Result<(), Stop> {
        let Some(new) = self.reserve.take_object(object) else {
            let what = format!("the client has not reserved {object}");
            return Err(violation(Invariant::ObjectLinked, what));
        };
        self.taken.push(Taken::Object(new));
        self.tx.create_at(new)?;
        self.outstanding.insert(Condition::Link(object));
        Ok(())
    }

    /// The object has lost its last entry in this operation. Only then nobody can have it.
    fn delete(&mut self, object: ObjectId) -> Result<(), Stop> {
        if !hit(Bug::DeletedWithEntries) {
            self.discharge(Condition::Settle(object))?;
        }
        Ok(self.tx.delete(object)?)
    }

    fn add_object(
        &mut self,
        collection: ObjectId,
        key: &[u8],
        object: ObjectId,
    ) -> Result<(), Stop> {
        self.may_change(collection)?;
        self.may_change(object)?;
        let settle = Condition::Settle(object);
        let is_new = self.outstanding.remove(&Condition::Link(object));
        if !is_new && !self.outstanding.remove(&settle) && members(self.tx, object)? == 0 {
            return Err(Refusal::NoObject(object).into());
        }
        Ok(self.tx.add(collection, key, object)?)
    }

    fn remove_object(
        &mut self,
        collection: ObjectId,
        key: &[u8],
        object: ObjectId,
    ) -> Result<(), Stop> {
        self.may_change(collection)?;
        self.may_change(object)?;
        let seed = self.tx.superblock().seed;
        let found = lookup(self.tx, collection, seed, key)?;
        if found != Some(object) && !(found.is_some() && hit(Bug::OtherObjectRemoved)) {
            let name = key.escape_ascii();
            let what = format!("{collection} does not have {object} under the key '{name}'");
            return Err(violation(Invariant::Covered, what));
        }
        if let Some((_, 0)) = self.tx.remove(collection, key)? {
            self.outstanding.insert(Condition::Settle(object));
        }
        Ok(())
    }
}
