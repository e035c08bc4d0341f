//! A store that is open for changes.

use crate::check::walk;
use crate::error::{Error, Result};
use crate::layout::PAGE;
use crate::load::Load;
use crate::log::{Log, Replayed, replay};
use crate::overlay::{Overlay, lines_of};
use crate::protection::Protection;
use crate::reading::object::generation;
use crate::reading::tree::Root;
use crate::reserve::Reserve;
use crate::seeded::{Bug, hit};
use crate::slots::{Company, Slots};
use crate::space::{Freed, Part, Space};
use crate::superblock::Superblock;
use crate::transaction::{Buffers, Changes, Transaction, clear_header_pages};
use crate::whole::Whole;
use crate::{Kind, ObjectId, Readers};
use hashbrown::HashSet;
use medium::Pmem;
use vfs::check::Report;
use vfs::sync::Mutex;

/// Replays the logs of a store, for a look at it without [`Store::open`]. Returns whether it had records.
///
/// # Errors
/// As [`Store::open`], but for [`Error::Damaged`].
pub fn recover<P: Pmem + Clone>(memory: &P) -> Result<bool> {
    let superblock = Superblock::load(memory)?;
    Ok(replay(memory, &superblock)?.had_records)
}

/// A store of objects, open for changes. Only one may be open on a memory, but for speculations.
pub struct Store<P> {
    memory: P,
    superblock: Superblock,
    slots: Slots<Changes<P>>,
    space: Mutex<Space>,
    protection: Option<Protection>,
    is_speculation: bool,
}

impl<P: Pmem + Clone> Store<P> {
    /// Opens the store on `memory`: replays the log, and finds what is free.
    ///
    /// # Errors
    /// [`Error::NotAStore`], [`Error::Damaged`] with the first violation of the format, errors of the
    /// log and of the memory.
    pub fn open(memory: P) -> Result<Self> {
        Self::open_with(memory, None)
    }

    /// [`open`](Self::open) on a memory whose pages are protected, if `protection` is given. Pages with other
    /// readers than their objects' get those.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of the protection.
    pub fn open_with(memory: P, protection: Option<Protection>) -> Result<Self> {
        let superblock = Superblock::load(&memory)?;
        let Replayed {
            mut logs,
            generation,
            ..
        } = replay(&memory, &superblock)?;
        let mut report = Report::default();
        let walk = walk(&memory, &superblock, &mut report);
        if let Some(found) = report.findings.first() {
            let why = found.to_string();
            let (structure, at) = ("store", 0);
            return Err(Error::Damaged { structure, at, why });
        }
        if let Some(protection) = &protection {
            let headers = walk.headers.keys().copied();
            protection.repair(&memory, &superblock, headers)?;
        }
        if protection.is_some() {
            // The readers of pages are changed for one transaction at a time.
            logs.truncate(1);
        }
        let guard = protection
            .as_ref()
            .map(|protection| protection.guard.clone());
        let pages = superblock.first_page()..superblock.bytes / PAGE;
        let space = Whole::new(pages, &walk.pages, walk.headers, generation, guard);
        let space = Space::Whole(Box::new(space));
        Ok(Self {
            protection,
            ..Self::new(memory, superblock, logs.into_iter().map(Some), space)
        })
    }
}

impl<P: Pmem> Store<Overlay<P>> {
    /// A speculation on the store that another process has open: its transactions change the overlay
    /// only, and need no log. It has no reserve yet.
    ///
    /// # Errors
    /// [`Error::NotAStore`], and errors of the memory.
    pub fn speculate(memory: Overlay<P>) -> Result<Self> {
        let superblock = Superblock::load(&memory)?;
        let part = Part::new(&Reserve::default(), memory.private_pages());
        let space = Space::Part(Box::new(part));
        Ok(Self {
            is_speculation: true,
            ..Self::new(memory, superblock, [None], space)
        })
    }

    /// Drops all changes of the speculation. It can use again the pages and headers that it had taken, if
    /// they are in `reserve`; the others belong to the service.
    pub fn restart(&self, reserve: &Reserve) {
        let mut space = self.space.lock();
        self.memory.clear();
        if let Space::Part(part) = &mut *space {
            part.restart(reserve);
        }
    }

    /// Drops all changes of the speculation. From here on it uses `reserve` only.
    pub fn reset(&self, reserve: &Reserve) {
        let mut space = self.space.lock();
        self.memory.clear();
        *space = Space::Part(Box::new(Part::new(reserve, self.memory.private_pages())));
    }

    /// Notes that the service is given all changes up to now, and runs them while the speculation goes on. It has run
    /// those before. Returns the numbers of pages and of headers of its reserve that the changes have taken.
    pub fn send(&self) -> (usize, usize) {
        match &mut *self.space.lock() {
            Space::Part(part) => part.send(),
            Space::Whole(_) => (0, 0),
        }
    }

    /// Notes that the service has run what was [sent](Self::send), but for changes that had taken the pages `left`.
    /// Files that were not changed since are read from the shared memory, if they are short. Other changes stay private.
    /// No thread with locks reads meanwhile. Returns all objects that were not changed since.
    pub fn receive(&self, left: &HashSet<u64>) -> Vec<ObjectId> {
        let mut space = self.space.lock();
        let Space::Part(part) = &mut *space else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        let settled = part.receive(left);
        for object in settled.iter().copied() {
            let root = match object.kind() {
                // The header in the shared memory may be that of another object.
                _ if self.memory.is_grave(object.header()) => Ok(None),
                Kind::MFile => Root::load(&self.memory, object),
                // Its buckets refer to each other.
                Kind::Collection => continue,
            };
            match root {
                Ok(None) => {}
                Ok(Some(root)) if root.height <= 1 => {
                    let is_private = self.memory.private_pages().contains(&(root.page / PAGE));
                    if root.height == 1 || is_private {
                        lines.push((root.page, u64::MAX));
                    }
                    part.free_private(root.page);
                }
                _ => continue,
            }
            lines.push(lines_of(object.header()));
        }
        if hit(Bug::ChangedDropped) {
            lines.extend(part.changed().map(|object| lines_of(object.header())));
        }
        self.memory.drop_lines(lines);
        settled
    }

    /// Drops the private lines of memory that the last transaction has freed: the service runs the transaction while
    /// the speculation goes on, and others may use that memory then. A deleted object stays deleted. The caller holds
    /// off all calls.
    pub fn drop_freed(&self) {
        let Space::Part(part) = &mut *self.space.lock() else {
            return;
        };
        let Freed { pages, headers } = part.take_freed();
        if !hit(Bug::FreedKept) {
            self.memory.drop_freed(&pages, &headers);
        }
    }

    /// Numbers of pages and of headers that the speculation can still use.
    pub fn reserved(&self) -> (usize, usize) {
        self.space.lock().reserved()
    }

    /// Number of free pages that the changes of the speculation will take of the store, besides those that it
    /// has chosen.
    pub fn taken_private(&self) -> usize {
        self.space.lock().taken_private()
    }

    /// Number of those pages that are not reserved.
    pub fn missing(&self) -> u64 {
        let space = self.space.lock();
        space.taken_private().saturating_sub(space.reserved().0) as u64
    }

    /// Takes pages that the speculation could still use.
    pub fn take_reserved(&self, pages: usize) -> Vec<u64> {
        let mut space = self.space.lock();
        (0..pages).map_while(|_| space.take_reserved()).collect()
    }

    /// Takes that many pages which the speculation could still use, or none, if the others are too few for its changes.
    /// A [restart](Self::restart) does not give them back. No transaction is open.
    pub fn take_apart(&self, pages: usize) -> Option<Vec<u64>> {
        match &mut *self.space.lock() {
            Space::Part(part) => part.take_apart(pages),
            Space::Whole(_) => None,
        }
    }

    /// Puts pages back that were [taken apart](Self::take_apart).
    pub fn put_back(&self, pages: Vec<u64>) {
        if let Space::Part(part) = &mut *self.space.lock() {
            part.put_back(pages);
        }
    }

    /// Notes that the last transaction has used pages which were [taken apart](Self::take_apart).
    pub fn used_apart(&self, pages: &[u64]) {
        if let Space::Part(part) = &mut *self.space.lock() {
            part.used_apart(pages);
        }
    }

    /// Adds to what the speculation can use.
    pub fn extend(&self, more: &Reserve) {
        self.space.lock().extend(more);
    }
}

impl<P> Store<P> {
    fn new(
        memory: P,
        superblock: Superblock,
        logs: impl IntoIterator<Item = Option<Log<P>>>,
        space: Space,
    ) -> Self {
        let changes = |log| Changes {
            log,
            buffers: Buffers::default(),
        };
        Self {
            memory,
            superblock,
            protection: None,
            is_speculation: false,
            slots: Slots::new(logs.into_iter().map(changes)),
            space: Mutex::new(space),
        }
    }
}

impl<P: Pmem> Store<P> {
    /// Begins a transaction that runs alone. It waits for the end of all others.
    ///
    /// # Errors
    /// [`Error::NotAStore`] after a failed commit: the store must be opened again.
    pub fn begin(&self) -> Result<Transaction<'_, P>> {
        self.begin_in(Company::Alone)
    }

    /// Begins a transaction beside [others](Self::most_open) of this kind. It waits until one that runs alone has
    /// ended, and while too many are open.
    ///
    /// Its steps return [`Error::Claimed`] for an object that another open transaction changes, and for a
    /// collection that moves, since two moves could make a cycle. The caller then rolls back, commits, and repeats
    /// the changes in a transaction that runs alone. Each sees what the others have committed. The caller makes
    /// sure that they do so between two of its changes, each of which takes several steps: changes run under a
    /// lock for readers, and [`Transaction::commit_beside`] gets this lock.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_beside(&self) -> Result<Transaction<'_, P>> {
        self.begin_in(Company::Beside)
    }

    /// Most transactions that are open at a time: the number of redo logs, but 1 in a store with protection.
    pub fn most_open(&self) -> usize {
        self.slots.count()
    }

    fn begin_in(&self, company: Company) -> Result<Transaction<'_, P>> {
        Ok(Transaction::new(
            &self.memory,
            &self.superblock,
            &self.space,
            self.protection.as_ref(),
            self.slots.take(company)?,
            company,
        ))
    }

    /// The memory, for readers.
    pub fn memory(&self) -> &P {
        &self.memory
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Seed of the hash of keys.
    pub fn seed(&self) -> u64 {
        self.superblock.seed
    }

    /// The root collection.
    pub fn root(&self) -> ObjectId {
        self.superblock.root
    }

    /// Whether the object exists in `memory`: that of the store, or a transaction. Its header is then not
    /// anything else that looks like one, unless this is a speculation.
    ///
    /// # Errors
    /// The process may not read the header.
    pub fn has<M: Load + ?Sized>(&self, memory: &M, object: ObjectId) -> Result<bool> {
        let is_header = self.is_speculation || self.space.lock().has_header(object.header());
        match generation(memory, object) {
            Err(error) if error.is_denied() => Err(error),
            found => Ok(is_header && found.is_ok()),
        }
    }

    /// Reserves pages and headers, as many as there are of the wanted ones.
    pub fn reserve(&self, pages: usize, headers: usize) -> Reserve {
        self.reserve_for(Readers::NOBODY, pages, headers)
    }

    /// [`reserve`](Self::reserve) for `readers`. In a store with protection, they may read the headers, and
    /// nobody may read the pages.
    pub fn reserve_for(&self, readers: Readers, pages: usize, headers: usize) -> Reserve {
        let clear = |pages: &[u64]| clear_header_pages(&self.memory, pages);
        self.space.lock().reserve(pages, headers, readers, clear)
    }

    /// Frees what is reserved.
    pub fn release(&self, reserve: Reserve) {
        let mut space = self.space.lock();
        reserve
            .pages
            .into_iter()
            .for_each(|page| space.give_page(page));
        for header in reserve.headers.into_keys() {
            space.give_header_and_page(header, 0);
        }
    }

    /// Pages that are free.
    pub fn free_pages(&self) -> u64 {
        self.space.lock().free_pages()
    }

    /// Pages that are freed from now on stay unused: somebody may still store to them who does not know that they are
    /// free.
    pub fn keep_freed(&self) {
        if let Space::Whole(whole) = &mut *self.space.lock() {
            whole.keep_freed();
        }
    }

    /// Undoes one [`keep_freed`](Self::keep_freed). The last one makes the pages free.
    pub fn give_kept(&self) {
        if let Space::Whole(whole) = &mut *self.space.lock() {
            whole.give_kept();
        }
    }
}
