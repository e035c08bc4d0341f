//! Changes of storage objects that become durable together.
//!
//! A transaction keeps the words that it changes in memory, by their offsets. Pages that it takes are
//! not reachable, so that their words are stored at once. `commit` makes the changes durable.
//!
//! Several transactions of a store may be open at a time, if they change different objects
//! ([`Store::begin_beside`](crate::Store::begin_beside)). Each has a redo log of its own, and claims the objects
//! that it changes (`claims`). It sees the words of the others when these are durable. Pages of headers belong to
//! no transaction: others may take headers of a page that a transaction has added and then rolls back.
//!
//! The transaction of a speculation stores all words at once, and keeps the old ones to undo it.
//! Meanwhile the version of each changed object is odd.

use crate::error::{Error, Result};
use crate::layout::{PAGE, header};
use crate::load::Load;
use crate::log::Log;
use crate::protection::Protection;
use crate::reading::object::generation;
use crate::reserve::NewObject;
use crate::seeded::{Bug, hit};
use crate::slots::{Company, Slot};
use crate::space::Space;
use crate::superblock::Superblock;
use crate::words::Words;
use crate::{Kind, ObjectId, Readers};
use hashbrown::{HashMap, HashSet};
use medium::{Pmem, Rule};
use std::sync::atomic::{Ordering, fence};
use vfs::sync::Mutex;

/// The second own word, on which the readers of an object may depend, besides the first.
const OWNER: u64 = header::OWN + 1;

/// One step, as it is undone.
#[derive(Debug)]
pub(crate) enum Step {
    /// The word at this offset had this value here, if any.
    Word(u64, Option<u64>),
    /// The word at this offset had this value, and was stored at once.
    Stored(u64, u64),
    TookPage(u64),
    TookReserved(u64),
    GavePage(u64),
    TookHeader(NewObject),
    /// The header of an object, and its first word before.
    GaveHeader(u64, u64),
    /// The object was changed, and before that at this step, if ever.
    Changed(ObjectId, Option<usize>),
}

/// A point of a transaction to which it can be rolled back.
#[derive(Debug, Clone, Copy)]
pub struct Mark(pub(crate) usize);

/// The changes of a transaction.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) words: Words,
    /// Pages that nothing reaches yet, with the number of steps before each.
    pub(crate) fresh: HashMap<u64, usize>,
    /// The changed objects, each with the number of steps before its last change that was noted.
    pub(crate) changed: HashMap<ObjectId, usize>,
    /// The headers of the objects that the transaction has claimed.
    pub(crate) claimed: HashSet<u64>,
    pub(crate) steps: Vec<Step>,
}

impl Buffers {
    /// Empties them, for the next transaction.
    fn clear(mut self) -> Self {
        const KEPT: usize = 1 << 10;
        if self.words.capacity().max(self.steps.capacity()) > KEPT {
            return Self::default();
        }
        self.words.clear();
        self.fresh.clear();
        self.changed.clear();
        self.claimed.clear();
        self.steps.clear();
        self
    }
}

/// A log and buffers, which one transaction at a time uses.
pub(crate) struct Changes<P> {
    /// The redo log. A speculation has none.
    pub(crate) log: Option<Log<P>>,
    /// Those of the last transaction, empty.
    pub(crate) buffers: Buffers,
}

/// The objects of a transaction whose readers may change.
#[derive(Default)]
pub(crate) struct Reclassed {
    /// The readers of the object that was last looked at.
    known: Option<(ObjectId, Readers)>,
    /// Objects that were changed since their pages were narrowed.
    wide: Vec<ObjectId>,
    /// Those that were narrowed, each with whether objects below it change their readers, too.
    pub(crate) narrow: HashMap<ObjectId, bool>,
    /// Steps before the last time.
    steps: usize,
}

/// Changes that are not durable yet. To drop it undoes them.
pub struct Transaction<'a, P: Pmem> {
    pub(crate) memory: &'a P,
    pub(crate) superblock: &'a Superblock,
    pub(crate) space: &'a Mutex<Space>,
    pub(crate) protection: Option<&'a Protection>,
    pub(crate) reclassed: Reclassed,
    pub(crate) slot: Slot<'a, Changes<P>>,
    company: Company,
    pub(crate) changes: Buffers,
    /// Free pages that only this transaction takes.
    stock: Vec<u64>,
    /// Whether contents were stored that must be durable before the commit.
    pub(crate) has_contents: bool,
    /// Steps before the last mark.
    marked: usize,
}

impl<'a, P: Pmem> Transaction<'a, P> {
    pub(crate) fn new(
        memory: &'a P,
        superblock: &'a Superblock,
        space: &'a Mutex<Space>,
        protection: Option<&'a Protection>,
        mut slot: Slot<'a, Changes<P>>,
        company: Company,
    ) -> Self {
        Self {
            memory,
            superblock,
            space,
            protection,
            reclassed: Reclassed::default(),
            changes: std::mem::take(&mut slot.buffers),
            slot,
            company,
            stock: Vec::new(),
            has_contents: false,
            marked: 0,
        }
    }

    /// Whether the log can take all changes up to now as one record.
    pub fn fits(&self) -> bool {
        let Buffers { words, changed, .. } = &self.changes;
        // A word takes two at most; each changed object has a new version.
        let most = 2 * (words.len() + changed.len()) as u64;
        self.slot.log.as_ref().is_none_or(|log| most <= log.longest)
    }

    pub(crate) fn is_speculative(&self) -> bool {
        self.slot.log.is_none()
    }

    /// Whether no other transaction is open.
    pub fn is_alone(&self) -> bool {
        self.company == Company::Alone
    }

    /// Has no other transaction change the object until the end of this one, although this one may not change
    /// it either. A change does so by itself.
    ///
    /// # Errors
    /// [`Error::Claimed`] if another open transaction has done so.
    pub fn claim(&mut self, object: ObjectId) -> Result<()> {
        let (slot, claimed) = (&self.slot, &mut self.changes.claimed);
        if self.company == Company::Alone || claimed.contains(&object.header()) {
            return Ok(());
        }
        slot.slots.claims.claim(object.header(), slot.number)?;
        claimed.insert(object.header());
        Ok(())
    }

    /// The memory. Contents of pages are there, changed words are not.
    pub fn memory(&self) -> &'a P {
        self.memory
    }

    /// The superblock of the store.
    pub fn superblock(&self) -> &'a Superblock {
        self.superblock
    }

    /// Whether the object exists or is being made by this transaction. Its header is then not
    /// anything else that looks like one.
    ///
    /// # Errors
    /// Errors of the memory.
    pub fn has(&self, object: ObjectId) -> Result<bool> {
        let is_header = self.space.lock().has_header(object.header());
        Ok(is_header && generation(self, object).is_ok())
    }

    /// Stores contents of a file in one of its pages. This is not undone. They are durable before the
    /// commit.
    pub fn store_contents(&mut self, off: u64, bytes: &[u8]) {
        self.memory.store_nt(off, bytes);
        self.has_contents = true;
    }

    /// Changes a word.
    pub(crate) fn set(&mut self, off: u64, value: u64) -> Result<()> {
        let memory = self.memory;
        if self.is_speculative() {
            self.changes
                .steps
                .push(Step::Stored(off, memory.load(off)?));
            memory.store_word(off, value);
            return Ok(());
        }
        match self.changes.fresh.get(&(off / PAGE * PAGE)) {
            Some(taken) => {
                // A roll-back to before the page needs no words of it.
                if *taken < self.marked {
                    self.changes
                        .steps
                        .push(Step::Stored(off, memory.load(off)?));
                }
                memory.store_word(off, value);
            }
            None => {
                let old = self.changes.words.insert(off, value);
                self.changes.steps.push(Step::Word(off, old));
            }
        }
        Ok(())
    }

    /// Changes bytes that begin at a word; the last word is filled up with zeros.
    pub(crate) fn set_bytes(&mut self, off: u64, bytes: &[u8]) -> Result<()> {
        for (n, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.set(off + n as u64 * 8, u64::from_le_bytes(word))?;
        }
        Ok(())
    }

    /// Changes a word of an object's header.
    pub(crate) fn set_header(&mut self, object: ObjectId, word: u64, value: u64) -> Result<()> {
        self.change(object)?;
        if matches!(word, header::KIND | header::PARENT | header::OWN | OWNER) {
            self.note_readers(object);
        }
        self.set(object.header() + word * 8, value)
    }

    /// Notes that the readers of an object may change.
    pub(crate) fn note_readers(&mut self, object: ObjectId) {
        if self.protection.is_some() {
            self.reclassed.known = None;
            self.reclassed.wide.push(object);
        }
    }

    /// The readers that new pages of an object must have.
    pub(crate) fn readers(&mut self, object: ObjectId) -> Result<Readers> {
        let Some(protection) = self.protection else {
            return Ok(Readers::NOBODY);
        };
        match self.reclassed.known {
            Some((known, readers)) if known == object => Ok(readers),
            _ => {
                let readers = (protection.policy)(&*self, self.superblock, object)?;
                self.reclassed.known = Some((object, readers));
                Ok(readers)
            }
        }
    }

    /// Takes readers from pages whose objects have lost these since the last time. A change that is rolled
    /// back later leaves too few, which [`commit`](Self::commit) or the next opening restores.
    ///
    /// # Errors
    /// Errors of the memory and of the protection. The transaction should then be rolled back.
    pub fn narrow(&mut self) -> Result<()> {
        let Some(protection) = self.protection else {
            return Ok(());
        };
        let mut objects = std::mem::take(&mut self.reclassed.wide);
        objects.sort_unstable();
        objects.dedup();
        for object in objects {
            let is_deep = self.is_deep(protection, object)?;
            *self.reclassed.narrow.entry(object).or_default() |= is_deep;
            if generation(self, object).is_ok() {
                protection.narrow(&*self, self.superblock, object, is_deep)?;
            }
        }
        self.reclassed.steps = self.changes.steps.len();
        Ok(())
    }

    /// Whether objects below this one may have other readers than before.
    fn is_deep(&self, protection: &Protection, object: ObjectId) -> Result<bool> {
        let before = self.before(Mark(self.reclassed.steps));
        let existed = generation(&before, object).is_ok() && generation(self, object).is_ok();
        if object.kind() != Kind::Collection || !existed {
            return Ok(false);
        }
        let old = (protection.policy)(&before, self.superblock, object)?;
        Ok(old != (protection.policy)(self, self.superblock, object)?)
    }

    /// Notes that readers of the object have to look again.
    pub(crate) fn change(&mut self, object: ObjectId) -> Result<()> {
        let last = self.changes.changed.get(&object).copied();
        if last.is_some_and(|last| last >= self.marked) {
            return Ok(());
        }
        self.claim(object)?;
        if last.is_none() && self.is_speculative() {
            self.set_version(object, |version| version | 1)?;
            // Readers that see a new word also see the odd version.
            fence(Ordering::Release);
        }
        let steps = &mut self.changes.steps;
        self.changes.changed.insert(object, steps.len());
        steps.push(Step::Changed(object, last));
        Ok(())
    }

    /// Changes the version of an object in place.
    fn set_version(&self, object: ObjectId, change: impl FnOnce(u64) -> u64) -> Result<()> {
        let at = object.header() + header::VERSION * 8;
        self.memory.store_word(at, change(self.memory.load(at)?));
        Ok(())
    }

    /// The objects that were changed since `mark`, the last one.
    pub fn changed_since(&self, mark: Mark) -> impl Iterator<Item = ObjectId> {
        let steps = self.changes.steps.get(mark.0..).unwrap_or_default();
        steps.iter().filter_map(|step| match step {
            Step::Changed(object, _) => Some(*object),
            _ => None,
        })
    }

    /// Whether an object was changed since `mark`, the last one.
    pub fn has_changed(&self, object: ObjectId, mark: Mark) -> bool {
        let last = self.changes.changed.get(&object);
        last.is_some_and(|last| *last >= mark.0)
    }

    /// The objects as they were at `mark`, the last one, for readers of headers.
    pub fn before(&self, mark: Mark) -> Before<'_, 'a, P> {
        Before { tx: self, mark }
    }

    /// Takes a page of zeros.
    pub(crate) fn take_page(&mut self, readers: Readers) -> Result<u64> {
        let steps = self.changes.steps.len();
        let page = self.take_unfilled(readers)?;
        if !self.is_speculative() {
            self.changes.fresh.insert(page, steps);
        }
        self.memory.store_nt(page, &[0; PAGE as usize]);
        Ok(page)
    }

    /// Takes a page with the contents of its last use, in place of which the caller
    /// [stores](Self::store_contents) others.
    pub(crate) fn take_unfilled(&mut self, readers: Readers) -> Result<u64> {
        let page = match self.reused().or_else(|| self.stock.pop()) {
            Some(page) => page,
            None => self.space.lock().take_page(readers)?,
        };
        self.changes.steps.push(Step::TookPage(page));
        Ok(page)
    }

    /// A page that this transaction has freed, if that bug is armed.
    fn reused(&mut self) -> Option<u64> {
        if !hit(Bug::ReuseAtOnce) {
            return None;
        }
        let is_given = |step: &Step| matches!(step, Step::GavePage(_));
        let at = self.changes.steps.iter().position(is_given)?;
        match self.changes.steps.remove(at) {
            Step::GavePage(page) => Some(page),
            _ => None,
        }
    }

    /// Takes a page of the reserve of a speculation, with its contents.
    pub(crate) fn take_reserved(&mut self) -> Result<u64> {
        let page = self.space.lock().take_reserved().ok_or(Error::Full)?;
        self.changes.steps.push(Step::TookReserved(page));
        Ok(page)
    }

    /// Frees a page after the commit.
    pub(crate) fn give_page(&mut self, page: u64) {
        self.changes.steps.push(Step::GavePage(page));
    }

    /// Takes a free header, in a page with these readers.
    pub(crate) fn take_header(&mut self, kind: Kind, readers: Readers) -> Result<NewObject> {
        let found = self.space.lock().take_header(kind, readers)?;
        let new = match found {
            Some(new) => new,
            None => self.take_new_header(kind, readers)?,
        };
        self.changes.steps.push(Step::TookHeader(new));
        Ok(new)
    }

    /// Takes a header of a new page. The page does not belong to the transaction: others can take headers there,
    /// and the words of all headers are in records.
    fn take_new_header(&mut self, kind: Kind, readers: Readers) -> Result<NewObject> {
        let page = match self.stock.pop() {
            Some(page) => page,
            None => self.space.lock().take_page(readers)?,
        };
        let cleared = clear_header_pages(self.memory, &[page]);
        let mut space = self.space.lock();
        match cleared {
            Ok(()) => space.add_headers(page, kind).ok_or(Error::Full),
            Err(error) => {
                space.give_page(page);
                Err(error)
            }
        }
    }

    /// Has the transaction take these pages before others. They are free, and nobody else takes them: what it
    /// leaves is free for all after its end. In a store with protection they are free for all at once.
    pub fn stock(&mut self, pages: impl IntoIterator<Item = u64>) {
        match self.protection {
            None => self.stock.extend(pages),
            Some(_) => {
                let mut space = self.space.lock();
                pages.into_iter().for_each(|page| space.give_page(page));
            }
        }
    }

    /// Takes back what the transaction has left of [`stock`](Self::stock), for another transaction.
    pub fn take_stock(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.stock)
    }

    /// Frees a header, whose first word was `was`, after the commit.
    pub(crate) fn give_header(&mut self, header: u64, was: u64) {
        self.changes.steps.push(Step::GaveHeader(header, was));
    }

    /// The present point.
    pub fn mark(&mut self) -> Mark {
        self.marked = self.changes.steps.len();
        Mark(self.marked)
    }

    /// Undoes everything since `mark`.
    pub fn roll_back(&mut self, mark: Mark) {
        while self.changes.steps.len() > mark.0 {
            let Some(step) = self.changes.steps.pop() else {
                break;
            };
            self.undo(step);
        }
        self.marked = mark.0;
        self.reclassed.known = None;
        self.reclassed.steps = self.reclassed.steps.min(mark.0);
    }

    fn undo(&mut self, step: Step) {
        let words = &mut self.changes.words;
        match step {
            Step::Word(..) if hit(Bug::RollBackForgotten) => {}
            Step::Stored(off, old) => self.memory.store_word(off, old),
            Step::Word(off, Some(old)) => drop(words.insert(off, old)),
            Step::Word(off, None) => words.remove(off),
            Step::TookPage(page) => {
                self.changes.fresh.remove(&page);
                self.keep_page(page);
            }
            Step::TookReserved(page) => self.space.lock().give_reserved(page),
            Step::TookHeader(new) => {
                let page = self.space.lock().give_new(new);
                page.into_iter().for_each(|page| self.keep_page(page));
            }
            Step::Changed(object, Some(last)) => drop(self.changes.changed.insert(object, last)),
            Step::Changed(object, None) => {
                self.changes.changed.remove(&object);
                if self.is_speculative() {
                    self.show(object);
                }
            }
            Step::GavePage(_) | Step::GaveHeader(..) => {}
        }
    }

    /// Keeps a page that was taken and is not needed, since the changes may be tried again.
    fn keep_page(&mut self, page: u64) {
        match self.is_speculative() || self.protection.is_some() {
            true => self.space.lock().untake_page(page),
            false => self.stock.push(page),
        }
    }

    /// Gives an object of a speculation its next even version, for readers.
    pub(crate) fn show(&self, object: ObjectId) {
        // Readers that see this version also see all words.
        fence(Ordering::Release);
        // The memory could be read when the version became odd; its next fence reports a failure.
        let _ = self.set_version(object, |version| (version | 1).wrapping_add(1));
    }
}

impl<P: Pmem> Drop for Transaction<'_, P> {
    fn drop(&mut self) {
        if self.slot.slots.must_work().is_err() {
            // Nobody takes pages of which a record may be found when the store is opened again. The claims
            // matter no more.
            return;
        }
        self.roll_back(Mark(0));
        self.release_claims();
        if !self.stock.is_empty() {
            let mut space = self.space.lock();
            self.stock.drain(..).for_each(|page| space.give_page(page));
        }
        self.slot.buffers = std::mem::take(&mut self.changes).clear();
    }
}

/// Makes pages zeros, in which others may look for headers from here on. A page may have had contents of users:
/// after a crash, too, they must not be taken for objects.
pub(crate) fn clear_header_pages<P: Pmem>(memory: &P, pages: &[u64]) -> Result<()> {
    if hit(Bug::HeadersNotCleared) {
        return Ok(());
    }
    for page in pages {
        memory.store_nt(*page, &[0; PAGE as usize]);
    }
    match hit(Bug::HeadersNotFenced) {
        true => Ok(()),
        false => Ok(memory.fence(Rule::InitialiseBeforePoint)?),
    }
}

impl<P: Pmem> Load for Transaction<'_, P> {
    fn len_bytes(&self) -> u64 {
        self.memory.len()
    }

    fn load(&self, off: u64) -> Result<u64> {
        match self.changes.words.get(off) {
            Some(word) => Ok(word),
            None => Ok(self.memory.load(off)?),
        }
    }

    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<()> {
        self.memory.load_words(off, words)?;
        self.changes.words.replace(off, words);
        Ok(())
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        if self.changes.words.is_empty() {
            return Ok(self.memory.read(off, buf)?);
        }
        read_words(self, off, buf)
    }
}

/// Reads bytes word by word.
fn read_words<M: Load>(memory: &M, off: u64, buf: &mut [u8]) -> Result<()> {
    let mut at = off;
    let mut left = buf;
    while !left.is_empty() {
        let skip = (at % 8) as usize;
        let word = memory.load(at - skip as u64)?.to_le_bytes();
        let (now, later) = left.split_at_mut(left.len().min(8 - skip));
        now.copy_from_slice(&word[skip..skip + now.len()]);
        at += now.len() as u64;
        left = later;
    }
    Ok(())
}

/// A transaction as it was at a mark.
pub struct Before<'t, 'a, P: Pmem> {
    tx: &'t Transaction<'a, P>,
    mark: Mark,
}

impl<P: Pmem> Load for Before<'_, '_, P> {
    fn len_bytes(&self) -> u64 {
        self.tx.len_bytes()
    }

    fn load(&self, off: u64) -> Result<u64> {
        let taken = self.tx.changes.fresh.get(&(off / PAGE * PAGE));
        if taken.is_some_and(|taken| *taken >= self.mark.0) {
            return Ok(0);
        }
        let steps = self.tx.changes.steps.get(self.mark.0..).unwrap_or_default();
        let first = steps.iter().find_map(|step| match step {
            Step::Word(at, old) if *at == off => Some(*old),
            Step::Stored(at, old) if *at == off => Some(Some(*old)),
            _ => None,
        });
        match first {
            Some(Some(old)) => Ok(old),
            Some(None) => Ok(self.tx.memory.load(off)?),
            None => self.tx.load(off),
        }
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        read_words(self, off, buf)
    }
}
