//! A partition as a client uses it: by offsets, through windows on its classes.
//!
//! A window is a mapping of the file of a class, at an address of the client's own. An object is
//! named by its offset in the partition, which is the same in all windows. A window is made when
//! an extent of its class is first used, and page faults fill it.
//!
//! Guarantees:
//!
//! 1. No access leaves the partition. Loads are atomic: other processes change the memory at any
//!    time.
//! 2. [`Space::read`] returns bytes of extents that had their identities during the whole read. A
//!    concurrent change of protection makes it read again.
//! 3. A page that is lost, because a client with the right to write has cut the file, is an error.
//!    The window is made again at the next use.

use crate::error::ScmError;
use crate::files::{Part, Run, Share};
use crate::format::{PAGE_BYTES, changes_off};
use crate::identity::Identity;
use crate::piece::Piece;
use crate::table;
use medium::{MapOptions, MappedPmem, Pmem};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Most pages that are read at once.
const MOST_PAGES: u64 = 16;

/// The place from which a space gets its descriptors: a connection, or a partition of this process.
pub trait Source: Send + Sync {
    /// A descriptor of a part, and whether it is open for writing, too.
    ///
    /// # Errors
    /// [`ScmError`], also if the client has no right to the part.
    fn share(&self, part: Part) -> Result<(Share, bool), ScmError>;
}

/// A mapping of the file of a class, by offsets of the partition.
pub struct Window {
    memory: Piece<MappedPmem>,
    is_writable: bool,
}

impl Window {
    /// Maps a part; for reading only if the source or `options` say so.
    pub(crate) fn new(
        source: &dyn Source,
        part: Part,
        options: &MapOptions,
    ) -> Result<Self, ScmError> {
        let (share, is_writable) = source.share(part)?;
        let mut options = *options;
        options.read_only |= !is_writable;
        let mapped = MappedPmem::map_descriptor(share.descriptor, "a window", &options)?;
        let memory = Piece::new(mapped, share.base, share.bytes);
        let short = || ScmError::Refused("the file is shorter than the partition".to_owned());
        let memory = memory.ok_or_else(short)?;
        Ok(Self {
            memory,
            is_writable: !options.read_only,
        })
    }

    /// Maps the identity table of a partition with this many pages.
    pub(crate) fn identities(
        source: &dyn Source,
        pages: u64,
        options: &MapOptions,
    ) -> Result<Self, ScmError> {
        let table = Self::new(source, Part::Identities, options)?;
        match table.memory.len() >= changes_off(pages) + 8 {
            true => Ok(table),
            false => Err(ScmError::Refused(
                "the identity table is shorter than the partition".to_owned(),
            )),
        }
    }

    /// The bytes of the partition, of which those of other classes are zeros.
    pub fn memory(&self) -> &impl Pmem {
        &self.memory
    }

    /// Whether it can be stored to.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }
}

/// A partition that is mapped.
pub struct Space {
    source: Box<dyn Source>,
    options: MapOptions,
    identities: Window,
    windows: RwLock<HashMap<Identity, Arc<Window>>>,
    pages: u64,
}

impl Space {
    /// Maps the identity table of a partition of `bytes` bytes; the rest is mapped when it is used.
    ///
    /// # Errors
    /// [`ScmError`] of the source, or of the mapping.
    pub fn new(
        source: Box<dyn Source>,
        bytes: u64,
        options: &MapOptions,
    ) -> Result<Self, ScmError> {
        let pages = bytes / PAGE_BYTES;
        Ok(Self {
            identities: Window::identities(&*source, pages, options)?,
            source,
            options: *options,
            windows: RwLock::default(),
            pages,
        })
    }

    /// The size of the partition in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The identity of a page at this moment.
    ///
    /// # Errors
    /// [`ScmError::Invalid`] if the partition does not have the page.
    pub fn identity(&self, page: u64) -> Result<Identity, ScmError> {
        if page >= self.pages {
            let what = format!("page {page} is not in the partition");
            return Err(ScmError::Invalid(what));
        }
        Ok(table::identity(&self.identities.memory, page)?)
    }

    /// The window on a class.
    ///
    /// # Errors
    /// [`ScmError::Denied`] if the client may not read extents with the identity.
    pub fn window(&self, identity: Identity) -> Result<Arc<Window>, ScmError> {
        if let Some(window) = self.windows.read().get(&identity) {
            return Ok(window.clone());
        }
        let mut windows = self.windows.write();
        if let Some(window) = windows.get(&identity) {
            return Ok(window.clone());
        }
        let part = Part::Class(identity);
        let window = Arc::new(Window::new(&*self.source, part, &self.options)?);
        windows.insert(identity, window.clone());
        Ok(window)
    }

    /// Reads bytes of extents.
    ///
    /// # Errors
    /// [`ScmError::Denied`] without the right to read; [`ScmError::Invalid`] for free pages, and
    /// outside of the partition.
    pub fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), ScmError> {
        let mut at = off;
        let mut rest = buf;
        while !rest.is_empty() {
            let changes = table::changes(&self.identities.memory, self.pages)?;
            fence(Ordering::Acquire);
            let last = at.saturating_add(rest.len() as u64 - 1);
            let (run, identity) = self.run_at(at / PAGE_BYTES, last)?;
            let bytes = (run.end() * PAGE_BYTES - at).min(rest.len() as u64) as usize;
            self.read_class(at, &mut rest[..bytes], identity)?;
            if self.is_unchanged(run, identity, changes)? {
                at += bytes as u64;
                rest = &mut rest[bytes..];
            }
        }
        Ok(())
    }

    /// The pages from `first` on with the same identity, up to that of the byte `last`, and at most
    /// [`MOST_PAGES`], so that few reads see a change.
    fn run_at(&self, first: u64, last: u64) -> Result<(Run, Identity), ScmError> {
        let identity = self.identity(first)?;
        if identity == Identity::FREE {
            let what = format!("page {first} is in no extent");
            return Err(ScmError::Invalid(what));
        }
        let mut pages = 1;
        let most = (last / PAGE_BYTES - first + 1).min(MOST_PAGES);
        while pages < most && self.identity(first + pages)? == identity {
            pages += 1;
        }
        Ok((Run { first, pages }, identity))
    }

    /// Reads bytes of one class.
    fn read_class(&self, at: u64, buf: &mut [u8], identity: Identity) -> Result<(), ScmError> {
        let window = self.window(identity)?;
        window.memory.read(at, buf).map_err(|e| {
            self.windows.write().remove(&identity);
            e.into()
        })
    }

    /// Whether pages have kept their identity since there were `changes` changes. A new identity is
    /// visible before the old place is empty. Without another change since then, it was not
    /// replaced and restored in between.
    fn is_unchanged(&self, run: Run, identity: Identity, changes: u64) -> Result<bool, ScmError> {
        fence(Ordering::Acquire);
        for page in run.first..run.end() {
            if self.identity(page)? != identity {
                return Ok(false);
            }
        }
        fence(Ordering::Acquire);
        Ok(table::changes(&self.identities.memory, self.pages)? == changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessList, Credentials, Directory, Geometry, Rights, Store};

    #[test]
    fn a_change_and_its_reversal_during_a_read_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            pages: 8,
            slots: 8,
            only: None,
        };
        let options = MapOptions::default();
        let files = Directory::create(dir.path().join("store"), &geometry, &options).unwrap();
        let store = Store::open(files).unwrap();
        let own = Credentials::own();
        let [a, b] = [1, 2].map(|group| {
            store.set_list(group, AccessList::default()).unwrap();
            Identity::new(group, Rights::BOTH).unwrap()
        });
        store.create_partition("p", 8, own.uid, 0).unwrap();
        let pages = store.partition("p", &own).unwrap();
        let moved = Run { first: 1, pages: 1 };
        pages.create_extent(moved, a).unwrap();
        let source = Box::new(store.partition("p", &own).unwrap());
        let space = Space::new(source, 8 * PAGE_BYTES, &options).unwrap();
        space.window(a).unwrap().memory().store_word(PAGE_BYTES, 7);

        // The steps of a read, with changes in between.
        let changes = table::changes(&space.identities.memory, 8).unwrap();
        let (run, identity) = space.run_at(1, PAGE_BYTES).unwrap();
        assert_eq!((run, identity), (moved, a));
        assert!(space.is_unchanged(run, identity, changes).unwrap());
        pages.protect(moved, b).unwrap();
        let mut found = [1; 8];
        space.read_class(PAGE_BYTES, &mut found, identity).unwrap();
        assert_eq!(found, [0; 8], "the hole");
        assert!(!space.is_unchanged(run, identity, changes).unwrap());
        pages.protect(moved, a).unwrap();
        assert!(!space.is_unchanged(run, identity, changes).unwrap());
        space.read(PAGE_BYTES, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), 7);
    }
}
