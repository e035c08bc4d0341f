//! A store: its partitions and its access lists.
//!
//! Guarantees:
//!
//! 1. A crash during a call leaves the state before it or the state after it, and the call is
//!    durable when it returns. [`Store::open`] finishes or undoes what was begun.
//! 2. Partitions do not overlap. A new one is at the first gap that is large enough.
//! 3. Changes are serial. Look-ups for clients do not wait for a change of extents.

use crate::change::Change;
use crate::check;
use crate::error::{Finding, ScmError};
use crate::files::{Class, Files, Part, Place, Share};
use crate::format::{Geometry, Key, PartitionRecord, Record, changes_off, is_name};
use crate::identity::{AccessList, Credentials, Identity, Rights};
use crate::intent::{Intent, Phase};
use crate::records::Records;
use crate::seeded::{Bug, hit};
use crate::table;
use medium::{Pmem, Rule};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A store that is open. One process has it open at a time.
pub struct Store<F: Files> {
    pub(crate) files: F,
    geometry: Geometry,
    /// Held during each change, before `tables`.
    changes: Mutex<Changes>,
    tables: RwLock<Tables<F::Memory>>,
}

/// The change of extents that is recorded on the medium: the latest, if it failed in the middle.
pub(crate) struct Changes {
    pub(crate) unfinished: Option<(Phase, Intent)>,
}

struct Tables<M> {
    records: Records,
    /// By number.
    open: BTreeMap<u32, Arc<OpenPartition<M>>>,
}

/// A partition, and the rights of a client to it.
type Found<F> = (Arc<OpenPartition<<F as Files>::Memory>>, Rights);

/// The place of a partition, and its identity table.
pub(crate) struct OpenPartition<M> {
    pub(crate) place: Place,
    pub(crate) identities: M,
}

impl<M: Pmem> Tables<M> {
    fn partitions(&self) -> impl Iterator<Item = (u32, &PartitionRecord)> {
        self.records
            .iter()
            .filter_map(|(key, record)| match (key, record) {
                (Key::Partition(number), Record::Partition(partition)) => Some((number, partition)),
                _ => None,
            })
    }

    fn named(&self, name: &str) -> Option<(u32, &PartitionRecord)> {
        self.partitions()
            .find(|(_, partition)| partition.name == name)
    }

    fn numbered(&self, number: u32) -> Option<&PartitionRecord> {
        match self.records.get(Key::Partition(number)) {
            Some(Record::Partition(partition)) => Some(partition),
            _ => None,
        }
    }

    fn list(&self, group: u32) -> Option<&AccessList> {
        match self.records.get(Key::List(group)) {
            Some(Record::List(list)) => Some(list),
            _ => None,
        }
    }

    /// The rights of a client to a partition: to map it, to change its extents.
    fn rights(&self, partition: &PartitionRecord, who: &Credentials) -> Rights {
        if who.uid == partition.owner || who.uid == 0 {
            return Rights::BOTH;
        }
        let list = self.list(partition.group);
        list.map_or(Rights::NONE, |list| list.rights(who))
    }

    /// The first gap of that many pages.
    fn first_fit(&self, pages: u64, end: u64) -> Option<u64> {
        let mut taken: Vec<_> = self
            .partitions()
            .map(|(_, p)| (p.first_page, p.pages))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (first, count) in taken {
            if first - at >= pages {
                return Some(at);
            }
            at = first + count;
        }
        (end - at >= pages).then_some(at)
    }
}

fn place(number: u32, partition: &PartitionRecord) -> Place {
    Place {
        number,
        first_page: partition.first_page,
        pages: partition.pages,
    }
}

impl<F: Files> Store<F> {
    /// Opens a store, and finishes or undoes the change that a crash interrupted.
    ///
    /// # Errors
    /// [`ScmError::Damaged`] if the table violates its format; errors of the files.
    pub fn open(files: F) -> Result<Arc<Self>, ScmError> {
        let geometry = table::geometry(files.table())?;
        let (mut records, mut findings) = Records::load(files.table(), &geometry)?;
        findings.extend(check::relations(&records, &geometry));
        if let Some(first) = findings.into_iter().next() {
            return Err(first.into());
        }
        records.tidy(files.table())?;
        let mut tables = Tables {
            records,
            open: BTreeMap::new(),
        };
        let places: Vec<_> = tables.partitions().map(|(n, p)| place(n, p)).collect();
        files.keep(&places)?;
        for place in places {
            let identities = files.identities(place)?;
            if identities.len() < changes_off(place.pages) + 8 {
                let what = format!(
                    "the identity table of partition {} is too short",
                    place.number
                );
                return Err(Finding::new("S7", what).into());
            }
            let open = OpenPartition { place, identities };
            tables.open.insert(place.number, Arc::new(open));
        }
        let unfinished = Intent::load(files.table())??;
        let store = Arc::new(Self {
            files,
            geometry,
            changes: Mutex::new(Changes { unfinished }),
            tables: RwLock::new(tables),
        });
        drop(store.changes()?);
        Ok(store)
    }

    /// Starts a change, after the one that is unfinished, if there is one.
    pub(crate) fn changes(&self) -> Result<MutexGuard<'_, Changes>, ScmError> {
        let mut changes = self.changes.lock();
        if let Some((phase, intent)) = changes.unfinished {
            let open = self.opened(intent.partition);
            let open = open.filter(|open| intent.run.is_within(open.place.pages));
            let open = open.ok_or_else(|| intent.no_such_run())?;
            let change = Change {
                files: &self.files,
                place: open.place,
                identities: &open.identities,
            };
            change.settle(phase, &intent)?;
            changes.unfinished = None;
        }
        Ok(changes)
    }

    fn opened(&self, number: u32) -> Option<Arc<OpenPartition<F::Memory>>> {
        self.tables.read().open.get(&number).cloned()
    }

    /// The record of a partition, if it was not removed since it was opened.
    pub(crate) fn record_of(
        &self,
        open: &Arc<OpenPartition<F::Memory>>,
    ) -> Result<PartitionRecord, ScmError> {
        let number = open.place.number;
        let tables = self.tables.read();
        let current = tables.open.get(&number);
        let is_current = current.is_some_and(|current| Arc::ptr_eq(current, open));
        let record = tables.numbered(number).filter(|_| is_current).cloned();
        record.ok_or_else(|| ScmError::NoPartition(number.to_string()))
    }

    /// All partitions, by number: the store's mount table.
    pub fn partitions(&self) -> Vec<PartitionRecord> {
        let tables = self.tables.read();
        tables
            .partitions()
            .map(|(_, partition)| partition.clone())
            .collect()
    }

    /// The sizes of the store.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Allocates a partition of `pages` pages, in which all pages are free.
    ///
    /// # Errors
    /// [`ScmError::Exists`], [`ScmError::Full`], [`ScmError::TableFull`]; errors of the files.
    pub fn create_partition(
        &self,
        name: &str,
        pages: u64,
        owner: u32,
        group: u32,
    ) -> Result<(), ScmError> {
        check_name(name)?;
        check_group(group)?;
        let _change = self.changes()?;
        let mut tables = self.tables.write();
        if tables.named(name).is_some() {
            return Err(ScmError::Exists(name.to_owned()));
        }
        let fit = tables.first_fit(pages, self.geometry.pages);
        let first_page = fit.filter(|_| pages > 0).ok_or(ScmError::Full { pages })?;
        let mut numbers = 0..;
        let number = numbers.find(|number| tables.numbered(*number).is_none());
        let number = number.ok_or(ScmError::TableFull)?;
        let record = PartitionRecord {
            name: name.to_owned(),
            first_page,
            pages,
            owner,
            group,
        };
        let place = place(number, &record);
        self.files.make(place)?;
        let identities = self.files.identities(place)?;
        if !hit(Bug::PartitionBeforeTable) {
            identities.fence(Rule::InitialiseBeforePoint)?;
        }
        let record = Record::Partition(record);
        tables
            .records
            .put(self.files.table(), Key::Partition(number), record)?;
        let open = OpenPartition { place, identities };
        tables.open.insert(number, Arc::new(open));
        Ok(())
    }

    /// Removes a partition with all its extents. Mappings that clients have of it remain, but
    /// no one else sees their contents.
    ///
    /// # Errors
    /// [`ScmError::NoPartition`]; errors of the files.
    pub fn remove_partition(&self, name: &str) -> Result<(), ScmError> {
        let _change = self.changes()?;
        let mut tables = self.tables.write();
        let found = tables
            .named(name)
            .map(|(number, record)| place(number, record));
        let place = found.ok_or_else(|| ScmError::NoPartition(name.to_owned()))?;
        let key = Key::Partition(place.number);
        tables.records.remove(self.files.table(), key)?;
        tables.open.remove(&place.number);
        self.files.remove(place)
    }

    /// Changes the owner of a partition, and the group whose access list applies to others.
    ///
    /// # Errors
    /// [`ScmError::NoPartition`]; errors of the table.
    pub fn set_access(&self, name: &str, owner: u32, group: u32) -> Result<(), ScmError> {
        check_group(group)?;
        let _change = self.changes()?;
        let mut tables = self.tables.write();
        let found = tables.named(name);
        let (number, record) = found.ok_or_else(|| ScmError::NoPartition(name.to_owned()))?;
        let record = PartitionRecord {
            owner,
            group,
            ..record.clone()
        };
        let record = Record::Partition(record);
        tables
            .records
            .put(self.files.table(), Key::Partition(number), record)
    }

    /// The access list of a group.
    pub fn list(&self, group: u32) -> Option<AccessList> {
        self.tables.read().list(group).cloned()
    }

    /// Makes or replaces the access list of a group. Descriptors that clients have remain: to take
    /// a right from a client that uses it, change the protection of the extents.
    ///
    /// # Errors
    /// [`ScmError::Invalid`], [`ScmError::TableFull`]; errors of the table.
    pub fn set_list(&self, group: u32, list: AccessList) -> Result<(), ScmError> {
        check_group(group)?;
        if group == 0 {
            return Err(ScmError::Invalid("group 0 has no access list".to_owned()));
        }
        let _change = self.changes()?;
        let mut tables = self.tables.write();
        let record = Record::List(list);
        tables
            .records
            .put(self.files.table(), Key::List(group), record)
    }

    /// Removes the access list of a group that no extent and no partition has.
    ///
    /// # Errors
    /// [`ScmError::Invalid`] if one has it; errors of the table.
    pub fn remove_list(&self, group: u32) -> Result<(), ScmError> {
        let _change = self.changes()?;
        let mut tables = self.tables.write();
        let by_partition = tables
            .partitions()
            .any(|(_, partition)| partition.group == group);
        if by_partition || self.has_extents(&tables, group)? {
            let what = format!("the access list of group {group} is in use");
            return Err(ScmError::Invalid(what));
        }
        tables.records.remove(self.files.table(), Key::List(group))
    }

    fn has_extents(&self, tables: &Tables<F::Memory>, group: u32) -> Result<bool, ScmError> {
        for open in tables.open.values() {
            let runs = table::runs(&open.identities, open.place.all())?;
            if runs.iter().any(|(_, identity)| identity.group() == group) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether extents can have the identity. The error is the reason.
    pub(crate) fn allow(&self, identity: Identity) -> Result<(), ScmError> {
        let group = identity.group();
        if !identity.is_valid() {
            let what = format!("{} is not an identity of an extent", identity.raw());
            return Err(ScmError::Invalid(what));
        }
        if identity.rights() != Rights::NONE && self.tables.read().list(group).is_none() {
            let what = format!("group {group} has no access list: set one first");
            return Err(ScmError::Invalid(what));
        }
        self.files.allow(identity)
    }

    /// The partition with this name, and the rights of a client to it.
    pub(crate) fn find(&self, name: &str, who: &Credentials) -> Result<Found<F>, ScmError> {
        let tables = self.tables.read();
        let none = || ScmError::NoPartition(name.to_owned());
        let (number, record) = tables.named(name).ok_or_else(none)?;
        let rights = tables.rights(record, who);
        let open = tables.open.get(&number).filter(|_| rights != Rights::NONE);
        Ok((open.cloned().ok_or_else(none)?, rights))
    }

    /// The first partition with this number or a higher one that the client may map.
    pub(crate) fn next_mappable(
        &self,
        from: u32,
        who: &Credentials,
    ) -> Option<(u32, PartitionRecord)> {
        let tables = self.tables.read();
        let mut later = tables.partitions().filter(|(number, _)| *number >= from);
        let found = later.find(|(_, partition)| tables.rights(partition, who).read);
        found.map(|(number, partition)| (number, partition.clone()))
    }

    /// Opens a part of a partition for a client, with the rights that it has.
    pub(crate) fn share(
        &self,
        number: u32,
        part: Part,
        who: &Credentials,
    ) -> Result<(Share, bool), ScmError> {
        let (place, writable) = {
            let tables = self.tables.read();
            let record = tables.numbered(number);
            let record = record.filter(|record| tables.rights(record, who).read);
            let record = record.ok_or_else(|| ScmError::NoPartition(number.to_string()))?;
            let writable = match part {
                Part::Identities => false,
                Part::Class(identity) => {
                    let list = tables.list(identity.group());
                    let rights = list.map_or(Rights::NONE, |list| list.rights(who));
                    let rights = rights.and(identity.rights());
                    if !rights.read {
                        let what = format!("you have no right to read extents of {identity}");
                        return Err(ScmError::Denied(what));
                    }
                    rights.write
                }
            };
            (place(number, record), writable)
        };
        let share = self.files.share(place, part, writable)?;
        Ok((share, writable))
    }
}

impl Place {
    /// All pages of the partition.
    pub(crate) fn all(&self) -> crate::files::Run {
        crate::files::Run {
            first: 0,
            pages: self.pages,
        }
    }

    /// The class of an identity.
    pub(crate) fn class(self, identity: Identity) -> Class {
        let place = self;
        Class { place, identity }
    }
}

fn check_name(name: &str) -> Result<(), ScmError> {
    match is_name(name) {
        true => Ok(()),
        false => Err(ScmError::Invalid(format!(
            "a partition cannot have the name '{}': it needs 1 to 64 bytes without control characters",
            name.escape_debug()
        ))),
    }
}

fn check_group(group: u32) -> Result<(), ScmError> {
    match group <= Identity::LAST_GROUP {
        true => Ok(()),
        false => Err(ScmError::Invalid(format!(
            "group {group} has more than 30 bits"
        ))),
    }
}
