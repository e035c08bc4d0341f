//! The pages of a protected store in files of classes, for the crash explorer: the manager of storage-class memory
//! on one recorded memory, and the store on it. A class is a part of the memory with room for all pages.

use crate::layout::PAGE;
use crate::{Contents, Error, Guard, Readers, Result};
use crash::program::Memory;
use medium::{MediumError, Pmem, Rule};
use scm::files::{Class, Files, Part, Place, Share};
use scm::{AccessList, Credentials, Geometry, Identity, Partition, Rights, Run, ScmError, Store};
use std::sync::Arc;

/// Pages of the store.
pub(super) const PAGES: u64 = 48;
/// A user without rights to some objects, whose name is the number of the user and its class.
pub(super) const HOSTILE: u32 = 2;
/// The readers of each class. Groups are their places, from 1 on.
pub(super) const CLASSES: [Readers; 4] = [
    Readers::NOBODY,
    Readers::Everyone,
    Readers::These {
        user: Some(1),
        group: None,
    },
    Readers::These {
        user: Some(HOSTILE),
        group: None,
    },
];
const GEOMETRY: Geometry = Geometry {
    pages: PAGES,
    slots: 8,
    only: None,
};
const TABLE_BYTES: u64 = 2 * PAGE;
const CLASSES_OFF: u64 = TABLE_BYTES + PAGE;
const CLASS_BYTES: u64 = PAGES * PAGE;
pub(super) const BYTES: u64 = CLASSES_OFF + CLASSES.len() as u64 * CLASS_BYTES;
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
const ROOT: Credentials = Credentials {
    uid: 0,
    gid: 0,
    groups: Vec::new(),
};

/// A part of the memory.
pub(super) struct Piece {
    all: Memory,
    off: u64,
    bytes: u64,
}

impl Pmem for Piece {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn load(&self, off: u64) -> std::result::Result<u64, MediumError> {
        self.all.load(self.off + off)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> std::result::Result<(), MediumError> {
        self.all.read(self.off + off, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.all.store(self.off + off, bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.all.store_nt(self.off + off, bytes);
    }

    fn flush(&self, off: u64, len: u64) {
        self.all.flush(self.off + off, len);
    }

    fn fence(&self, rule: Rule) -> std::result::Result<(), MediumError> {
        self.all.fence(rule)
    }
}

/// The files of the manager.
struct Pieces {
    all: Memory,
    table: Piece,
}

fn identity(number: usize) -> Identity {
    let rights = match CLASSES[number] {
        Readers::NOBODY => Rights::NONE,
        _ => Rights::READ,
    };
    Identity::new(number as u32 + 1, rights).expect("a group and rights")
}

/// The place of a page in the class with this number.
fn place(number: usize, page: u64) -> u64 {
    CLASSES_OFF + number as u64 * CLASS_BYTES + page * PAGE
}

fn number(class: Class) -> usize {
    class.identity.group() as usize - 1
}

/// The pages of a class, as its users map it.
pub(super) fn class(all: &Memory, number: usize) -> Piece {
    Piece {
        all: all.clone(),
        off: place(number, 0),
        bytes: CLASS_BYTES,
    }
}

impl Pieces {
    fn new(all: &Memory) -> Self {
        let table = Piece {
            all: all.clone(),
            off: 0,
            bytes: TABLE_BYTES,
        };
        let all = all.clone();
        Self { all, table }
    }

    /// Makes pages zeros that are not.
    fn clear(&self, class: Class, run: Run) {
        for page in run.first..run.first + run.pages {
            let mut found = [0; PAGE as usize];
            let at = place(number(class), page);
            if self.all.read(at, &mut found) != Ok(()) || found != ZEROS {
                self.all.store_nt(at, &ZEROS);
            }
        }
    }
}

impl Files for Pieces {
    type Memory = Piece;

    fn table(&self) -> &Piece {
        &self.table
    }

    fn allow(&self, _: Identity) -> std::result::Result<(), ScmError> {
        Ok(())
    }

    fn make(&self, place: Place) -> std::result::Result<(), ScmError> {
        self.identities(place)?.store_nt(0, &ZEROS);
        Ok(())
    }

    fn remove(&self, _: Place) -> std::result::Result<(), ScmError> {
        Ok(())
    }

    fn keep(&self, _: &[Place]) -> std::result::Result<(), ScmError> {
        Ok(())
    }

    fn identities(&self, _: Place) -> std::result::Result<Piece, ScmError> {
        Ok(Piece {
            all: self.all.clone(),
            off: TABLE_BYTES,
            bytes: PAGE,
        })
    }

    fn classes(&self, _: Place) -> std::result::Result<Vec<Identity>, ScmError> {
        Ok((0..CLASSES.len()).map(identity).collect())
    }

    fn allocate(&self, class: Class, run: Run) -> std::result::Result<(), ScmError> {
        self.clear(class, run);
        Ok(())
    }

    fn copy(&self, from: Class, to: Class, run: Run) -> std::result::Result<(), ScmError> {
        for page in run.first..run.first + run.pages {
            let mut contents = [0; PAGE as usize];
            self.all.read(place(number(from), page), &mut contents)?;
            self.all.store_nt(place(number(to), page), &contents);
        }
        Ok(())
    }

    fn punch(&self, class: Class, run: Run) -> std::result::Result<(), ScmError> {
        self.clear(class, run);
        Ok(())
    }

    fn sync(&self, _: Class, rule: Rule) -> std::result::Result<(), ScmError> {
        Ok(self.all.fence(rule)?)
    }

    fn restore(&self, _: Class, _: &[Run]) -> std::result::Result<(), ScmError> {
        Ok(())
    }

    fn room_bytes(&self, _: Class) -> std::result::Result<u64, ScmError> {
        Ok(0)
    }

    fn contents(&self, class: Class, run: Run) -> std::result::Result<Option<u64>, ScmError> {
        let has_contents = |page: &u64| {
            let mut found = [0; PAGE as usize];
            self.all.read(place(number(class), *page), &mut found) != Ok(()) || found != ZEROS
        };
        Ok((run.first..run.first + run.pages).find(has_contents))
    }

    fn share(&self, _: Place, _: Part, _: bool) -> std::result::Result<Share, ScmError> {
        let what = "the memory of a test has no descriptors".to_owned();
        Err(ScmError::Denied(what))
    }
}

/// All pages of the store as one memory, and its guard.
pub(super) struct Classes {
    all: Memory,
    pages: Partition<Pieces>,
}

fn text(e: impl ToString) -> String {
    e.to_string()
}

impl Classes {
    /// Makes the files. Nobody may read a page.
    pub(super) fn format(all: &Memory) -> std::result::Result<Arc<Self>, String> {
        let pieces = Pieces::new(all);
        scm::format(&pieces.table, &GEOMETRY).map_err(text)?;
        let store = Store::open(pieces).map_err(text)?;
        // The memory has no clients, whose rights the lists would say.
        for group in 1..=CLASSES.len() as u32 {
            let list = AccessList::default();
            store.set_list(group, list).map_err(text)?;
        }
        store.create_partition("p", PAGES, 0, 1).map_err(text)?;
        let partition = store.partition("p", &ROOT).map_err(text)?;
        let every = Run {
            first: 0,
            pages: PAGES,
        };
        partition.create_extent(every, identity(0)).map_err(text)?;
        Self::open(all)
    }

    /// Opens the files, and finishes a change that a crash has interrupted.
    pub(super) fn open(all: &Memory) -> std::result::Result<Arc<Self>, String> {
        let store = Store::open(Pieces::new(all)).map_err(text)?;
        let pages = store.partition("p", &ROOT).map_err(text)?;
        let all = all.clone();
        Ok(Arc::new(Self { all, pages }))
    }

    /// Calls `access` with the parts of a range and their places in the memory.
    fn each(
        &self,
        off: u64,
        len: u64,
        access: &mut dyn FnMut(u64, std::ops::Range<usize>) -> std::result::Result<(), MediumError>,
    ) -> std::result::Result<(), MediumError> {
        let end = off.saturating_add(len);
        let mut at = off;
        while at < end {
            let next = end.min((at / PAGE + 1) * PAGE);
            let identity = self.pages.identity(at / PAGE);
            let number = identity.map_err(|_| MediumError::OutOfRange { off, len })?;
            let place = place(number.group() as usize - 1, at / PAGE) + at % PAGE;
            access(place, (at - off) as usize..(next - off) as usize)?;
            at = next;
        }
        Ok(())
    }
}

impl Pmem for Classes {
    fn len(&self) -> u64 {
        CLASS_BYTES
    }

    fn load(&self, off: u64) -> std::result::Result<u64, MediumError> {
        let mut word = 0;
        self.each(off, 8, &mut |at, _| {
            word = self.all.load(at)?;
            Ok(())
        })?;
        Ok(word)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> std::result::Result<(), MediumError> {
        let len = buf.len() as u64;
        self.each(off, len, &mut |at, part| self.all.read(at, &mut buf[part]))
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        let stored = self.each(off, bytes.len() as u64, &mut |at, part| {
            self.all.store(at, &bytes[part]);
            Ok(())
        });
        assert_eq!(stored, Ok(()));
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        let stored = self.each(off, bytes.len() as u64, &mut |at, part| {
            self.all.store_nt(at, &bytes[part]);
            Ok(())
        });
        assert_eq!(stored, Ok(()));
    }

    fn flush(&self, off: u64, len: u64) {
        let flushed = self.each(off, len, &mut |at, part| {
            self.all.flush(at, part.len() as u64);
            Ok(())
        });
        assert_eq!(flushed, Ok(()));
    }

    fn fence(&self, rule: Rule) -> std::result::Result<(), MediumError> {
        self.all.fence(rule)
    }
}

impl Guard for Classes {
    fn readers(&self, page: u64) -> Result<Readers> {
        let identity = self.pages.identity(page / PAGE);
        let identity = identity.map_err(|e| Error::Protection(e.to_string()))?;
        Ok(CLASSES[identity.group() as usize - 1])
    }

    /// As the service of Aerie does it.
    fn protect(&self, page: u64, pages: u64, readers: Readers, contents: Contents) -> Result<()> {
        if contents == Contents::Dropped {
            let all = (page..page + pages * PAGE).step_by(PAGE as usize);
            all.for_each(|page| self.store_nt(page, &ZEROS));
            self.fence(Rule::NullifyBeforeReuse)?;
        }
        let number = CLASSES.iter().position(|class| *class == readers);
        let identity = identity(number.ok_or(Error::Full)?);
        let run = Run {
            first: page / PAGE,
            pages,
        };
        let done = self.pages.protect(run, identity);
        done.map_err(|e| Error::Protection(e.to_string()))
    }
}
