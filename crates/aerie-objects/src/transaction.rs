//! Changes of storage objects that become durable together.
//!
//! A transaction keeps the words that it changes in memory, by their offsets. Pages that it takes are
//! not reachable, so that their words are stored at once. [`Transaction::commit`] proceeds in four steps:
//!
//! 1. New pages and contents are durable before the record that may point to them (initialise-before-point).
//! 2. The record with all words is durable in the redo log: this is the commit.
//! 3. The words are stored at home and durable (home-before-reclaim). Meanwhile the version of each
//!    changed object is odd.
//! 4. The log is truncated. Memory that the transaction has freed can be used from here on.
//!
//! The transaction of a speculation stores all words at once, and keeps the old ones to undo it.
//! Meanwhile the version of each changed object is odd.

use crate::error::{Error, Result};
use crate::layout::{PAGE, header};
use crate::load::Load;
use crate::log::Log;
use crate::protection::Protection;
use crate::reading::object::generation;
use crate::record;
use crate::reserve::NewObject;
use crate::seeded::{Bug, hit};
use crate::space::Space;
use crate::superblock::Superblock;
use crate::{Kind, ObjectId, Readers};
use hashbrown::{HashMap, HashSet};
use medium::{LINE_BYTES, Pmem, Rule};
use std::sync::atomic::{Ordering, fence};
use vfs::sync::{Mutex, MutexGuard};

/// The second own word, on which the readers of an object may depend, besides the first.
const OWNER: u64 = header::OWN + 1;

/// One step, as it is undone.
#[derive(Debug)]
enum Step {
    /// The word at this offset had this value here, if any.
    Word(u64, Option<u64>),
    /// The word at this offset had this value, and was stored at once.
    Stored(u64, u64),
    TookPage(u64),
    TookReserved(u64),
    GavePage(u64),
    TookHeader(NewObject),
    GaveHeader(u64),
    NewHeaders(u64),
    /// The object was changed, and before that at this step, if ever.
    Changed(ObjectId, Option<usize>),
}

/// A point of a transaction to which it can be rolled back.
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

/// The changes of a transaction.
#[derive(Default)]
pub(crate) struct Buffers {
    words: HashMap<u64, u64>,
    /// Pages that nothing reaches yet, with the number of steps before each.
    fresh: HashMap<u64, usize>,
    /// The changed objects, each with the number of steps before its last change that was noted.
    changed: HashMap<ObjectId, usize>,
    steps: Vec<Step>,
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
        self.steps.clear();
        self
    }
}

/// The log and the buffers, which one transaction at a time uses.
pub(crate) struct Changes<P> {
    /// The redo log. A speculation has none.
    pub(crate) log: Option<Log<P>>,
    /// Those of the last transaction, empty.
    pub(crate) buffers: Buffers,
}

/// The objects of a transaction whose readers may change.
#[derive(Default)]
struct Reclassed {
    /// The readers of the object that was last looked at.
    known: Option<(ObjectId, Readers)>,
    /// Objects that were changed since their pages were narrowed.
    wide: Vec<ObjectId>,
    /// Those that were narrowed, each with whether objects below it change their readers, too.
    narrow: HashMap<ObjectId, bool>,
    /// Steps before the last time.
    steps: usize,
}

/// Changes that are not durable yet. To drop it undoes them.
pub struct Transaction<'a, P: Pmem> {
    memory: &'a P,
    superblock: &'a Superblock,
    space: &'a Mutex<Space>,
    protection: Option<&'a Protection>,
    reclassed: Reclassed,
    shared: MutexGuard<'a, Changes<P>>,
    changes: Buffers,
    /// Whether contents were stored that must be durable before the commit.
    has_contents: bool,
    /// Steps before the last mark.
    marked: usize,
}

impl<'a, P: Pmem> Transaction<'a, P> {
    pub(crate) fn new(
        memory: &'a P,
        superblock: &'a Superblock,
        space: &'a Mutex<Space>,
        protection: Option<&'a Protection>,
        mut shared: MutexGuard<'a, Changes<P>>,
    ) -> Self {
        Self {
            memory,
            superblock,
            space,
            protection,
            reclassed: Reclassed::default(),
            changes: std::mem::take(&mut shared.buffers),
            shared,
            has_contents: false,
            marked: 0,
        }
    }

    /// Whether the log can take all changes up to now as one record.
    pub fn fits(&self) -> bool {
        let Buffers { words, changed, .. } = &self.changes;
        // A word takes two at most; each changed object has a new version.
        let most = 2 * (words.len() + changed.len()) as u64;
        self.shared
            .log
            .as_ref()
            .is_none_or(|log| most <= log.longest)
    }

    fn is_speculative(&self) -> bool {
        self.shared.log.is_none()
    }

    /// The memory. Contents of pages are there, changed words are not.
    pub fn memory(&self) -> &'a P {
        self.memory
    }

    /// The superblock of the store.
    pub fn superblock(&self) -> &'a Superblock {
        self.superblock
    }

    fn is_fresh(&self, off: u64) -> bool {
        self.changes.fresh.contains_key(&(off / PAGE * PAGE))
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
        let page = match self.reused() {
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
            None => {
                let page = self.take_page(readers)?;
                let mut space = self.space.lock();
                space.add_headers(page);
                self.changes.steps.push(Step::NewHeaders(page));
                space.take_header(kind, readers)?.ok_or(Error::Full)?
            }
        };
        self.changes.steps.push(Step::TookHeader(new));
        Ok(new)
    }

    /// Frees a header after the commit.
    pub(crate) fn give_header(&mut self, header: u64) {
        self.changes.steps.push(Step::GaveHeader(header));
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
            Step::Word(off, None) => drop(words.remove(&off)),
            Step::TookPage(page) => {
                self.changes.fresh.remove(&page);
                self.space.lock().untake_page(page);
            }
            Step::TookReserved(page) => self.space.lock().give_reserved(page),
            Step::TookHeader(new) => self.space.lock().give_new(new),
            Step::NewHeaders(page) => self.space.lock().remove_headers(page),
            Step::Changed(object, Some(last)) => drop(self.changes.changed.insert(object, last)),
            Step::Changed(object, None) => {
                self.changes.changed.remove(&object);
                if self.is_speculative() {
                    self.show(object);
                }
            }
            Step::GavePage(_) | Step::GaveHeader(_) => {}
        }
    }

    /// Gives an object of a speculation its next even version, for readers.
    fn show(&self, object: ObjectId) {
        // Readers that see this version also see all words.
        fence(Ordering::Release);
        // The memory could be read when the version became odd; its next fence reports a failure.
        let _ = self.set_version(object, |version| (version | 1).wrapping_add(1));
    }

    /// Makes all changes durable. Those of a speculation are complete.
    ///
    /// # Errors
    /// [`Error::TooLarge`]: nothing has changed. Errors of the memory or of the log: the changes may
    /// or may not be durable, and the store accepts no more transactions.
    pub fn commit(mut self) -> Result<()> {
        if self.is_speculative() {
            self.changes
                .changed
                .keys()
                .for_each(|object| self.show(*object));
            self.give();
            return Ok(self.memory.fence(Rule::DurableBeforeUse)?);
        }
        self.narrow()?;
        let mut words: Vec<_> = self.changes.words.drain().collect();
        let versions = self.versions()?;
        words.extend(&versions);
        words.sort_unstable();
        let record = record::encode(&words);
        if !record.is_empty() {
            self.append_and_store(&words, &versions, &record)?;
        }
        self.give();
        if let Some(protection) = self.protection {
            let changed = self.reclassed.narrow.drain();
            // A page with too few readers does no harm: the service reads it for the others.
            let _ = protection.settle(self.memory, self.superblock, changed);
        }
        Ok(())
    }

    fn append_and_store(
        &mut self,
        words: &[(u64, u64)],
        versions: &[(u64, u64)],
        record: &[u64],
    ) -> Result<()> {
        let flushed = self.fresh_pages();
        let (memory, has_contents) = (self.memory, self.has_contents);
        let Some(log) = &mut self.shared.log else {
            return Ok(());
        };
        if record.len() as u64 > log.longest {
            let (words, most) = (record.len() as u64, log.longest);
            return Err(Error::TooLarge { words, most });
        }
        log.is_failed = true;
        flush_fresh(memory, &flushed, has_contents)?;
        let end = log.appender.append(record)?;
        if !hit(Bug::HomeBeforeLog) {
            log.appender.flush()?;
        }
        store_home(memory, words, versions)?;
        if hit(Bug::HomeBeforeLog) {
            log.appender.flush()?;
        }
        log.consumer.truncate(end)?;
        log.is_failed = false;
        Ok(())
    }

    fn fresh_pages(&self) -> Vec<u64> {
        self.changes.fresh.keys().copied().collect()
    }

    /// The next version of each changed object that readers may know, with its place.
    fn versions(&self) -> Result<Vec<(u64, u64)>> {
        let is_known = |object: &&ObjectId| !self.is_fresh(object.header());
        let next = |object: &ObjectId| {
            let at = object.header() + header::VERSION * 8;
            let version = self.memory.load(at)?;
            Ok((at, (version | 1).wrapping_add(1)))
        };
        self.changes
            .changed
            .keys()
            .filter(is_known)
            .map(next)
            .collect()
    }

    /// Frees what the transaction has given back.
    fn give(&mut self) {
        let mut space = self.space.lock();
        for step in self.changes.steps.drain(..) {
            match step {
                Step::GavePage(page) => space.give_page(page),
                Step::GaveHeader(header) => space.give_header_and_page(header),
                _ => {}
            }
        }
    }
}

impl<P: Pmem> Drop for Transaction<'_, P> {
    fn drop(&mut self) {
        self.roll_back(Mark(0));
        self.shared.buffers = std::mem::take(&mut self.changes).clear();
    }
}

fn flush_fresh<P: Pmem>(memory: &P, fresh: &[u64], has_contents: bool) -> Result<()> {
    for page in fresh {
        memory.flush(*page, PAGE);
    }
    let has_contents = has_contents && !hit(Bug::ContentsNotFenced);
    let is_needed = !fresh.is_empty() || has_contents;
    if is_needed && !hit(Bug::NoInitFence) {
        memory.fence(Rule::InitialiseBeforePoint)?;
    }
    Ok(())
}

fn store_home<P: Pmem>(memory: &P, words: &[(u64, u64)], versions: &[(u64, u64)]) -> Result<()> {
    for (at, next) in versions {
        memory.store_word(*at, next - 1);
    }
    // Readers that see a new word also see the odd version, and those that see the next even
    // version also see all words.
    fence(Ordering::Release);
    let later: HashSet<u64> = versions.iter().map(|(at, _)| *at).collect();
    for (off, value) in words.iter().filter(|(off, _)| !later.contains(off)) {
        memory.store_word(*off, *value);
    }
    fence(Ordering::Release);
    for (at, next) in versions {
        memory.store_word(*at, *next);
    }
    let mut flushed = None;
    for line in words.iter().map(|(off, _)| off / LINE_BYTES) {
        // The words are in order.
        if flushed.replace(line) != Some(line) {
            memory.flush(line * LINE_BYTES, LINE_BYTES);
        }
    }
    if !hit(Bug::ReclaimBeforeHome) {
        memory.fence(Rule::HomeBeforeReclaim)?;
    }
    Ok(())
}

impl<P: Pmem> Load for Transaction<'_, P> {
    fn len_bytes(&self) -> u64 {
        self.memory.len()
    }

    fn load(&self, off: u64) -> Result<u64> {
        match self.changes.words.get(&off) {
            Some(word) => Ok(*word),
            None => Ok(self.memory.load(off)?),
        }
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
