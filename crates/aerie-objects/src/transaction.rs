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

use crate::ObjectId;
use crate::error::{Error, Result};
use crate::layout::{PAGE, header};
use crate::load::Load;
use crate::log::Log;
use crate::reading::object::generation;
use crate::record;
use crate::seeded::{Bug, hit};
use crate::space::Space;
use crate::superblock::Superblock;
use hashbrown::{HashMap, HashSet};
use medium::{Pmem, Rule};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{Ordering, fence};

/// One step, as it is undone.
#[derive(Debug)]
enum Step {
    /// The word at this offset had this value here, if any.
    Word(u64, Option<u64>),
    /// The word of a new page at this offset had this value.
    Stored(u64, u64),
    TookPage(u64),
    GavePage(u64),
    TookHeader(u64),
    GaveHeader(u64),
    NewHeaders(u64),
    Changed(ObjectId),
}

/// A point of a transaction to which it can be rolled back.
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

/// Changes that are not durable yet. To drop it undoes them.
pub struct Transaction<'a, P: Pmem> {
    memory: &'a P,
    superblock: &'a Superblock,
    space: &'a Mutex<Space>,
    log: MutexGuard<'a, Log<P>>,
    words: HashMap<u64, u64>,
    /// Pages that nothing reaches yet, with the number of steps before each.
    fresh: HashMap<u64, usize>,
    /// Whether contents were stored that must be durable before the commit.
    has_contents: bool,
    /// Steps before the last mark.
    marked: usize,
    changed: HashSet<ObjectId>,
    steps: Vec<Step>,
}

impl<'a, P: Pmem> Transaction<'a, P> {
    pub(crate) fn new(
        memory: &'a P,
        superblock: &'a Superblock,
        space: &'a Mutex<Space>,
        log: MutexGuard<'a, Log<P>>,
    ) -> Self {
        Self {
            memory,
            superblock,
            space,
            log,
            words: HashMap::new(),
            fresh: HashMap::new(),
            has_contents: false,
            marked: 0,
            changed: HashSet::new(),
            steps: Vec::new(),
        }
    }

    /// Whether the log can take all changes up to now as one record.
    pub fn fits(&self) -> bool {
        // A word takes two at most; each changed object has a new version.
        2 * (self.words.len() + self.changed.len()) as u64 <= self.log.longest
    }

    /// The superblock of the store.
    pub fn superblock(&self) -> &'a Superblock {
        self.superblock
    }

    fn is_fresh(&self, off: u64) -> bool {
        self.fresh.contains_key(&(off / PAGE * PAGE))
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

    /// The generation of the next object.
    pub(crate) fn next_generation(&mut self) -> u64 {
        self.log.generation += 1;
        self.log.generation
    }

    /// Stores contents of a file in one of its pages. This is not undone. They are durable before the
    /// commit.
    pub fn store_contents(&mut self, off: u64, bytes: &[u8]) {
        self.memory.store_nt(off, bytes);
        self.has_contents = true;
    }

    /// Changes a word.
    pub(crate) fn set(&mut self, off: u64, value: u64) -> Result<()> {
        match self.fresh.get(&(off / PAGE * PAGE)) {
            Some(taken) => {
                let memory = self.memory;
                // A roll-back to before the page needs no words of it.
                if *taken < self.marked {
                    self.steps.push(Step::Stored(off, memory.load(off)?));
                }
                memory.store_word(off, value);
            }
            None => {
                let old = self.words.insert(off, value);
                self.steps.push(Step::Word(off, old));
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
        self.change(object);
        self.set(object.header() + word * 8, value)
    }

    /// Notes that readers of the object have to look again.
    pub(crate) fn change(&mut self, object: ObjectId) {
        if self.changed.insert(object) {
            self.steps.push(Step::Changed(object));
        }
    }

    /// Takes a page of zeros.
    pub(crate) fn take_page(&mut self) -> Result<u64> {
        let page = self.reused().or_else(|| self.space.lock().take_page());
        let page = page.ok_or(Error::Full)?;
        self.fresh.insert(page, self.steps.len());
        self.steps.push(Step::TookPage(page));
        self.memory.store_nt(page, &[0; PAGE as usize]);
        Ok(page)
    }

    /// A page that this transaction has freed, if that bug is armed.
    fn reused(&mut self) -> Option<u64> {
        let is_given = |step: &Step| matches!(step, Step::GavePage(_));
        let at = self.steps.iter().position(is_given)?;
        match hit(Bug::ReuseAtOnce).then(|| self.steps.remove(at)) {
            Some(Step::GavePage(page)) => Some(page),
            _ => None,
        }
    }

    /// Frees a page after the commit.
    pub(crate) fn give_page(&mut self, page: u64) {
        self.steps.push(Step::GavePage(page));
    }

    /// Takes a free header.
    pub(crate) fn take_header(&mut self) -> Result<u64> {
        let found = self.space.lock().take_header();
        let header = match found {
            Some(header) => header,
            None => {
                let page = self.take_page()?;
                let mut space = self.space.lock();
                space.add_headers(page);
                self.steps.push(Step::NewHeaders(page));
                space.take_header().ok_or(Error::Full)?
            }
        };
        self.steps.push(Step::TookHeader(header));
        Ok(header)
    }

    /// Frees a header after the commit.
    pub(crate) fn give_header(&mut self, header: u64) {
        self.steps.push(Step::GaveHeader(header));
    }

    /// The present point.
    pub fn mark(&mut self) -> Mark {
        self.marked = self.steps.len();
        Mark(self.marked)
    }

    /// Undoes everything since `mark`.
    pub fn roll_back(&mut self, mark: Mark) {
        while self.steps.len() > mark.0 {
            match self.steps.pop() {
                Some(Step::Word(..)) if hit(Bug::RollBackForgotten) => {}
                Some(Step::Stored(off, old)) => self.memory.store_word(off, old),
                Some(Step::Word(off, Some(old))) => drop(self.words.insert(off, old)),
                Some(Step::Word(off, None)) => drop(self.words.remove(&off)),
                Some(Step::TookPage(page)) => {
                    self.fresh.remove(&page);
                    self.space.lock().give_page(page);
                }
                Some(Step::TookHeader(header)) => self.space.lock().give_header(header),
                Some(Step::NewHeaders(page)) => self.space.lock().remove_headers(page),
                Some(Step::Changed(object)) => drop(self.changed.remove(&object)),
                Some(Step::GavePage(_) | Step::GaveHeader(_)) | None => {}
            }
        }
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// [`Error::TooLarge`]: nothing has changed. Errors of the memory or of the log: the changes may
    /// or may not be durable, and the store accepts no more transactions.
    pub fn commit(mut self) -> Result<()> {
        let mut words: Vec<_> = self.words.drain().collect();
        let versions = self.versions()?;
        words.extend(&versions);
        words.sort_unstable();
        let record = record::encode(&words);
        let most = self.log.longest;
        if record.len() as u64 > most {
            let words = record.len() as u64;
            return Err(Error::TooLarge { words, most });
        }
        if !record.is_empty() {
            self.log.is_failed = true;
            self.flush_fresh()?;
            let end = self.log.appender.append(&record)?;
            if !hit(Bug::HomeBeforeLog) {
                self.log.appender.flush()?;
            }
            self.store_home(&words, &versions)?;
            if hit(Bug::HomeBeforeLog) {
                self.log.appender.flush()?;
            }
            self.log.consumer.truncate(end)?;
            self.log.is_failed = false;
        }
        self.give();
        Ok(())
    }

    /// The next version of each changed object that readers may know, with its place.
    fn versions(&self) -> Result<Vec<(u64, u64)>> {
        let is_known = |object: &&ObjectId| !self.is_fresh(object.header());
        let next = |object: &ObjectId| {
            let at = object.header() + header::VERSION * 8;
            let version = self.memory.load(at)?;
            Ok((at, (version | 1).wrapping_add(1)))
        };
        self.changed.iter().filter(is_known).map(next).collect()
    }

    fn flush_fresh(&self) -> Result<()> {
        for page in self.fresh.keys() {
            self.memory.flush(*page, PAGE);
        }
        let has_contents = self.has_contents && !hit(Bug::ContentsNotFenced);
        let is_needed = !self.fresh.is_empty() || has_contents;
        if is_needed && !hit(Bug::NoInitFence) {
            self.memory.fence(Rule::InitialiseBeforePoint)?;
        }
        Ok(())
    }

    fn store_home(&self, words: &[(u64, u64)], versions: &[(u64, u64)]) -> Result<()> {
        let memory = self.memory;
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
        for (off, _) in words {
            memory.flush(*off, 8);
        }
        if !hit(Bug::ReclaimBeforeHome) {
            memory.fence(Rule::HomeBeforeReclaim)?;
        }
        Ok(())
    }

    /// Frees what the transaction has given back.
    fn give(&mut self) {
        let mut space = self.space.lock();
        for step in self.steps.drain(..) {
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
    }
}

impl<P: Pmem> Load for Transaction<'_, P> {
    fn len_bytes(&self) -> u64 {
        self.memory.len()
    }

    fn load(&self, off: u64) -> Result<u64> {
        match self.words.get(&off) {
            Some(word) => Ok(*word),
            None => Ok(self.memory.load(off)?),
        }
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = off;
        let mut left = buf;
        while !left.is_empty() {
            let skip = (at % 8) as usize;
            let word = self.load(at - skip as u64)?.to_le_bytes();
            let (now, later) = left.split_at_mut(left.len().min(8 - skip));
            now.copy_from_slice(&word[skip..skip + now.len()]);
            at += now.len() as u64;
            left = later;
        }
        Ok(())
    }
}
