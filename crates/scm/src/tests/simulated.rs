//! The files of a store in one piece of memory, for the crash explorer.
//!
//! A page of a class is two words: whether it has room, and its contents. Each may become durable
//! by itself, as after `fallocate(2)`. A fence of one file does not cover flushes of another.

use crate::error::ScmError;
use crate::files::{Class, Files, Part, Place, Run, Share};
use crate::format::Geometry;
use crate::identity::{Identity, Rights};
use crash::program::Memory;
use medium::{MediumError, Pmem, Rule};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const GEOMETRY: Geometry = Geometry {
    pages: 16,
    slots: 8,
    only: None,
};
/// Partitions that have an identity table.
const PARTITIONS: u64 = 3;
const TABLE_BYTES: u64 = 8192;
/// Bytes of an identity table. Those of real files have whole pages.
const IDENTITY_BYTES: u64 = 128;
const CLASSES_OFF: u64 = TABLE_BYTES + PARTITIONS * IDENTITY_BYTES;
const PAGE_BYTES: u64 = 16;
const CLASS_BYTES: u64 = GEOMETRY.pages * PAGE_BYTES;
pub(super) const BYTES: u64 = CLASSES_OFF + 3 * CLASS_BYTES;

/// The identities that have classes.
pub(super) fn identities() -> [Identity; 3] {
    let identity = |group, rights| Identity::new(group, rights).unwrap();
    [
        identity(1, Rights::READ),
        identity(2, Rights::BOTH),
        identity(3, Rights::NONE),
    ]
}

/// A file: a part of the memory.
pub(super) struct Piece {
    all: Memory,
    off: u64,
    bytes: u64,
    /// The flushes that the next fence of the file covers.
    flushed: Mutex<Vec<(u64, u64)>>,
}

impl Piece {
    fn new(all: &Memory, off: u64, bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            all: all.clone(),
            off,
            bytes,
            flushed: Mutex::default(),
        })
    }

    fn at(&self, off: u64, len: usize) -> u64 {
        assert!(off + len as u64 <= self.bytes, "access outside a file");
        self.off + off
    }
}

impl Pmem for Piece {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.all.load(self.at(off, 8))
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.all.read(self.at(off, buf.len()), buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.all.store(self.at(off, bytes.len()), bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store(off, bytes);
        self.flush(off, bytes.len() as u64);
    }

    fn flush(&self, off: u64, len: u64) {
        self.flushed.lock().push((self.at(off, len as usize), len));
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        for (off, len) in self.flushed.lock().drain(..) {
            self.all.flush(off, len);
        }
        self.all.fence(rule)
    }
}

/// The files of a store.
pub(super) struct Simulated {
    pub(super) table: Arc<Piece>,
    tables: [Arc<Piece>; PARTITIONS as usize],
    classes: BTreeMap<Identity, Arc<Piece>>,
}

impl Simulated {
    pub(super) fn new(all: &Memory) -> Self {
        let table = |n: usize| TABLE_BYTES + n as u64 * IDENTITY_BYTES;
        let class = |n: usize| CLASSES_OFF + n as u64 * CLASS_BYTES;
        let classes = identities().into_iter().enumerate();
        let classes = classes.map(|(n, one)| (one, Piece::new(all, class(n), CLASS_BYTES)));
        Self {
            table: Piece::new(all, 0, TABLE_BYTES),
            tables: std::array::from_fn(|n| Piece::new(all, table(n), IDENTITY_BYTES)),
            classes: classes.collect(),
        }
    }

    /// The file of a class, and the offset of a page in it.
    fn page(&self, class: Class, page: u64) -> (&Piece, u64) {
        let file = &self.classes[&class.identity];
        (file, (class.place.first_page + page) * PAGE_BYTES)
    }

    fn set(&self, class: Class, run: Run, room: u64, contents: impl Fn(u64) -> u64) {
        for page in run.first..run.end() {
            let (file, off) = self.page(class, page);
            file.store_word(off, room);
            file.store_word(off + 8, contents(page));
            file.flush(off, PAGE_BYTES);
        }
    }

    /// Room and contents of a page.
    pub(super) fn get(&self, class: Class, page: u64) -> (u64, u64) {
        let (file, off) = self.page(class, page);
        (file.load(off).unwrap(), file.load(off + 8).unwrap())
    }

    /// Stores to a page, as a client does.
    pub(super) fn store(&self, class: Class, page: u64, contents: u64) {
        let (file, off) = self.page(class, page);
        file.store_word(off + 8, contents);
        file.flush(off + 8, 8);
        file.fence(Rule::DurableBeforeReturn).unwrap();
    }
}

impl Files for Simulated {
    type Memory = Arc<Piece>;

    fn table(&self) -> &Arc<Piece> {
        &self.table
    }

    fn allow(&self, _: Identity) -> Result<(), ScmError> {
        Ok(())
    }

    fn make(&self, place: Place) -> Result<(), ScmError> {
        let table = &self.tables[place.number as usize];
        table.store(0, &[0; IDENTITY_BYTES as usize]);
        table.flush(0, IDENTITY_BYTES);
        Ok(())
    }

    fn remove(&self, place: Place) -> Result<(), ScmError> {
        for identity in identities() {
            let class = place.class(identity);
            self.punch(class, place.all())?;
            self.sync(class, Rule::NullifyBeforeReuse)?;
        }
        Ok(())
    }

    fn keep(&self, places: &[Place]) -> Result<(), ScmError> {
        for page in 0..GEOMETRY.pages {
            let has =
                |place: &Place| (place.first_page..place.first_page + place.pages).contains(&page);
            if !places.iter().any(has) {
                self.remove(Place {
                    number: 0,
                    first_page: page,
                    pages: 1,
                })?;
            }
        }
        Ok(())
    }

    fn identities(&self, place: Place) -> Result<Arc<Piece>, ScmError> {
        let table = self.tables.get(place.number as usize).cloned();
        table.ok_or_else(|| ScmError::NoPartition(place.number.to_string()))
    }

    fn classes(&self, _: Place) -> Result<Vec<Identity>, ScmError> {
        Ok(identities().into())
    }

    fn allocate(&self, class: Class, run: Run) -> Result<(), ScmError> {
        self.set(class, run, 1, |_| 0);
        Ok(())
    }

    fn copy(&self, from: Class, to: Class, run: Run) -> Result<(), ScmError> {
        self.set(to, run, 1, |page| self.get(from, page).1);
        Ok(())
    }

    fn punch(&self, class: Class, run: Run) -> Result<(), ScmError> {
        self.set(class, run, 0, |_| 0);
        Ok(())
    }

    fn sync(&self, class: Class, rule: Rule) -> Result<(), ScmError> {
        Ok(self.classes[&class.identity].fence(rule)?)
    }

    fn restore(&self, _: Class, _: &[Run]) -> Result<(), ScmError> {
        Ok(())
    }

    fn room_bytes(&self, _: Class) -> Result<u64, ScmError> {
        Ok(0)
    }

    fn contents(&self, class: Class, run: Run) -> Result<Option<u64>, ScmError> {
        let mut pages = run.first..run.end();
        Ok(pages.find(|page| self.get(class, *page) != (0, 0)))
    }

    fn share(&self, _: Place, _: Part, _: bool) -> Result<Share, ScmError> {
        Err(ScmError::Denied(
            "simulated files have no descriptors".to_owned(),
        ))
    }
}
