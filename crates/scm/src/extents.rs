//! Extents: create, change the protection, free.
//!
//! An extent is a run of pages with one identity. The caller chooses its place. Guarantees:
//!
//! 1. Contents and room of an extent are in the file of its class. In the files of all other
//!    classes the pages are holes, except for pages that a hostile client has stored to
//!    ([`Partition::scrub`]).
//! 2. A new extent is zeros, and a store to it cannot fail for lack of room.
//! 3. [`Partition::protect`] keeps the contents. A new identity is visible before the old place is
//!    punched, and the identity table counts changes. So a client can find out whether it has read
//!    the extent or a hole ([`Space::read`](crate::Space::read)).
//! 4. A crash leaves a change undone or done, for all its pages.

use crate::change::Change;
use crate::error::{Finding, ScmError};
use crate::files::{Files, Part, Run, Share};
use crate::format::PartitionRecord;
use crate::identity::{Credentials, Identity, Rights};
use crate::intent::Intent;
use crate::space::Source;
use crate::store::{Changes, OpenPartition, Store};
use crate::table;
use medium::Rule;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// A partition, with the rights that a client has to it.
pub struct Partition<F: Files> {
    store: Arc<Store<F>>,
    open: Arc<OpenPartition<F::Memory>>,
    rights: Rights,
}

impl<F: Files> Source for Partition<F> {
    fn share(&self, part: Part) -> Result<(Share, bool), ScmError> {
        let share = Partition::share(self, part)?;
        Ok((share, part != Part::Identities))
    }
}

/// The effects of [`Partition::scrub`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrubbed {
    /// Classes looked at.
    pub classes: u64,
    /// Bytes of room that became free.
    pub bytes: u64,
}

impl<F: Files> Store<F> {
    /// The partition with this name, for a client with these credentials.
    ///
    /// # Errors
    /// [`ScmError::NoPartition`] also if the client has no right to it.
    pub fn partition(
        self: &Arc<Self>,
        name: &str,
        who: &Credentials,
    ) -> Result<Partition<F>, ScmError> {
        let (open, rights) = self.find(name, who)?;
        let store = self.clone();
        Ok(Partition {
            store,
            open,
            rights,
        })
    }
}

impl<F: Files> Partition<F> {
    /// The partition as the store's table has it.
    ///
    /// # Errors
    /// [`ScmError::NoPartition`] if it was removed.
    pub fn record(&self) -> Result<PartitionRecord, ScmError> {
        self.store.record_of(&self.open)
    }

    /// Makes an extent of free pages.
    ///
    /// # Errors
    /// [`ScmError::NoRoom`] if the file system is full; [`ScmError::WrongIdentity`] if a page is
    /// not free; [`ScmError::Invalid`] for an identity or a run that is not possible.
    pub fn create_extent(&self, run: Run, identity: Identity) -> Result<(), ScmError> {
        self.store.allow(identity)?;
        self.change(run, Some(Identity::FREE), identity)
    }

    /// Changes the protection of an extent, or of a part of one, and keeps its contents.
    ///
    /// # Errors
    /// As for [`create_extent`](Self::create_extent); the pages must have one identity.
    pub fn protect(&self, run: Run, identity: Identity) -> Result<(), ScmError> {
        self.store.allow(identity)?;
        self.change(run, None, identity)
    }

    /// Frees an extent, or a part of one.
    ///
    /// # Errors
    /// [`ScmError::WrongIdentity`] if the pages do not have one identity.
    pub fn free(&self, run: Run) -> Result<(), ScmError> {
        self.change(run, None, Identity::FREE)
    }

    /// Changes the identity of a run from `from`, or from that of its first page.
    fn change(&self, run: Run, from: Option<Identity>, to: Identity) -> Result<(), ScmError> {
        let mut changes = self.start_change()?;
        let first = self.identity(run.first)?;
        let expected = from.unwrap_or(first);
        if from.is_none() && first == Identity::FREE {
            let what = format!("page {} is in no extent", run.first);
            return Err(ScmError::Invalid(what));
        }
        if !run.is_within(self.open.place.pages) {
            let Run { first, pages } = run;
            let what = format!("{pages} pages from page {first} on are not in the partition");
            return Err(ScmError::Invalid(what));
        }
        let mut runs = table::runs(&self.open.identities, run)?.into_iter();
        if let Some((other, found)) = runs.find(|(_, found)| *found != expected) {
            let page = other.first;
            return Err(ScmError::WrongIdentity {
                page,
                found,
                expected,
            });
        }
        if expected == to {
            return Ok(());
        }
        if expected != Identity::FREE && !expected.is_valid() {
            let what = format!("page {} has the identity {expected}", run.first);
            return Err(Finding::new("S7", what).into());
        }
        let intent = Intent {
            partition: self.open.place.number,
            run,
            from: expected,
            to,
        };
        let OpenPartition { place, identities } = &*self.open;
        let change = Change {
            files: &self.store.files,
            place: *place,
            identities,
        };
        change.make(&mut changes.unfinished, intent)
    }

    /// Checks the right to change, and starts a change.
    fn start_change(&self) -> Result<MutexGuard<'_, Changes>, ScmError> {
        if !self.rights.write {
            let what = "you have no right to change extents of the partition".to_owned();
            return Err(ScmError::Denied(what));
        }
        let changes = self.store.changes()?;
        self.record()?;
        Ok(changes)
    }

    /// The identity of a page.
    ///
    /// # Errors
    /// [`ScmError::Invalid`] if the partition does not have the page.
    pub fn identity(&self, page: u64) -> Result<Identity, ScmError> {
        if page >= self.open.place.pages {
            let what = format!("page {page} is not in the partition");
            return Err(ScmError::Invalid(what));
        }
        Ok(table::identity(&self.open.identities, page)?)
    }

    /// All runs of pages with one identity, also those of free pages, in order.
    ///
    /// # Errors
    /// [`ScmError::Memory`].
    pub fn runs(&self) -> Result<Vec<(Run, Identity)>, ScmError> {
        Ok(table::runs(&self.open.identities, self.open.place.all())?)
    }

    /// Opens a part of the partition for reading and writing: for the process of the manager.
    ///
    /// # Errors
    /// [`ScmError::Denied`] without the right to change the partition; errors of the files.
    pub fn share(&self, part: Part) -> Result<Share, ScmError> {
        drop(self.start_change()?);
        let writable = part != Part::Identities;
        self.store.files.share(self.open.place, part, writable)
    }

    /// Restores what hostile clients may have changed: punches pages of classes that do not have
    /// the class's identity, and restores sizes of files and the room of extents.
    ///
    /// # Errors
    /// Errors of the files.
    pub fn scrub(&self) -> Result<Scrubbed, ScmError> {
        let _change = self.start_change()?;
        let files = &self.store.files;
        let runs = self.runs()?;
        let mut scrubbed = Scrubbed {
            classes: 0,
            bytes: 0,
        };
        for identity in files.classes(self.open.place)? {
            let class = self.open.place.class(identity);
            let before = files.room_bytes(class)?;
            for foreign in table::foreign_runs(&runs, identity) {
                files.punch(class, foreign)?;
            }
            files.sync(class, Rule::DurableBeforeReturn)?;
            scrubbed.bytes += before.saturating_sub(files.room_bytes(class)?);
            scrubbed.classes += 1;
            let own = runs.iter().filter(|(_, found)| *found == identity);
            let own: Vec<Run> = own.map(|(run, _)| *run).collect();
            files.restore(class, &own)?;
        }
        Ok(scrubbed)
    }
}
