//! Transactions of one thread: their reads and writes, and the locks of these.
//!
//! The module `filled` has stores to blocks of the transaction itself. `waiting` waits for the
//! turn, locks and readers. `commit` ends a transaction.

mod commit;
mod filled;
mod waiting;

use super::locks::{LockIndex, State};
use super::map::Map;
use super::mask::{self, WHOLE};
use super::running::Under;
use super::{Core, Space};
use crate::error::{Interrupted, Stop, TxError, Uncommitted};
use crate::seeded::{Bug, hit};
use filled::Filled;
use medium::{LINE_BYTES, MediumError, WORD_BYTES};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use waiting::FIRST_PATIENCE;
use wordlog::LogError;

/// Runs transactions of one thread, one at a time.
pub struct TxSession<S: Space> {
    core: Arc<Core<S>>,
    owner: u64,
    /// The stamp at which all reads are valid.
    time: u64,
    /// Locks under which words were read, and their versions then; some more than once.
    pub(super) reads: Vec<(LockIndex, u64)>,
    /// The number of reads at which to remove repeated ones.
    most_reads: usize,
    /// Locks that were taken, and their versions before.
    taken: Map<u64>,
    writes: Map<Written>,
    /// Whether words under these locks were changed in place.
    is_changed: bool,
    /// Stores to blocks that the transaction allocated.
    filled: Filled,
    record: Vec<u64>,
    /// The state that commits of other sessions see, if they wait for readers.
    under: Option<Arc<Under>>,
    /// Whether the session has the turn.
    has_turn: bool,
    /// Whether the session keeps the turn when the transaction is rolled back.
    keeps_turn: bool,
    /// Time that the session waits for a lock with the turn.
    pub(super) patience: Duration,
    /// Whether such a wait was in vain.
    gave_up: bool,
}

/// The number of reads that may be recorded more than once.
const FEW_READS: usize = 1024;

/// The writes of a transaction at some point, to return to.
#[derive(Debug)]
pub struct Savepoint(Vec<(u64, Written)>);

/// A word that was written.
#[derive(Debug, Clone, Copy)]
struct Written {
    word: u64,
    /// The bytes that were written. The others are left alone: they may belong to a variable that
    /// another thread changes without transactions.
    mask: u8,
}

impl Written {
    /// The written bytes, and those of `under` elsewhere.
    #[inline]
    fn over(self, under: u64) -> u64 {
        let bits = mask::bits(self.mask);
        self.word & bits | under & !bits
    }
}

/// A transaction under way. If it is dropped without a commit, also by a panic of its body, it has
/// no effect.
pub struct Transaction<'a, S: Space>(&'a mut TxSession<S>);

impl<S: Space> Drop for Transaction<'_, S> {
    fn drop(&mut self) {
        self.0.roll_back();
    }
}

impl<S: Space> Transaction<'_, S> {
    /// Loads the aligned word at `at`.
    ///
    /// # Errors
    /// [`Interrupted`], which the body passes on.
    #[inline]
    pub fn load(&mut self, at: u64) -> Result<u64, Interrupted> {
        self.0.load(at)
    }

    /// Stores the aligned word at `at`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[inline]
    pub fn store(&mut self, at: u64, word: u64) -> Result<(), Interrupted> {
        self.0.store(at, word)
    }

    /// Copies `buf.len()` bytes from `at` on.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Interrupted> {
        self.0.read(at, buf)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        self.0.write(at, bytes)
    }
}

impl<S: Space> TxSession<S> {
    pub(super) fn new(core: Arc<Core<S>>, owner: u64) -> Self {
        let under = core.options.privatise;
        let under = under.then(|| core.running.join(core.locks.len()));
        Self {
            core,
            owner,
            time: 0,
            reads: Vec::new(),
            most_reads: FEW_READS,
            taken: Map::new(),
            writes: Map::new(),
            is_changed: false,
            filled: Filled::default(),
            record: Vec::new(),
            under,
            has_turn: false,
            keeps_turn: false,
            patience: FIRST_PATIENCE,
            gave_up: false,
        }
    }

    /// Runs `body` as a transaction, and repeats it after conflicts. It is durable once this
    /// returns `Ok`. `body` must not do anything that cannot be repeated.
    ///
    /// After several conflicts, transactions of other threads wait for this one. So `body` must not
    /// wait for another thread's transaction. Nor may it lock a mutex that another thread holds
    /// while it runs one: both threads would wait forever. Lock such a mutex before the call.
    ///
    /// # Errors
    /// [`TxError`]; then the transaction had no effect, unless the memory failed in the commit.
    pub fn run<T, E>(
        &mut self,
        mut body: impl FnMut(&mut Transaction<'_, S>) -> Result<T, Stop<E>>,
    ) -> Result<T, TxError<E>> {
        let mut attempts = 0;
        loop {
            self.begin().map_err(TxError::Failed)?;
            let mut tx = Transaction(self);
            let error = match body(&mut tx) {
                Ok(value) => match tx.0.commit() {
                    Ok(_) => return Ok(value),
                    Err(Uncommitted::Conflict) => None,
                    Err(Uncommitted::Heap(why)) => Some(why.into()),
                    Err(Uncommitted::Failed(why)) => Some(TxError::Failed(why)),
                },
                Err(Stop::Interrupted(Interrupted::Conflict)) => None,
                Err(Stop::Interrupted(Interrupted::Medium(error))) => Some(error.into()),
                Err(Stop::Interrupted(Interrupted::Heap(error))) => Some(error.into()),
                Err(Stop::Interrupted(Interrupted::NoValue { off, what })) => {
                    Some(TxError::NoValue { off, what })
                }
                Err(Stop::Cancel(why)) => Some(TxError::Cancelled(why)),
            };
            if error.is_none() {
                tx.0.keep_turn();
            }
            drop(tx);
            if let Some(error) = error {
                return Err(error);
            }
            self.pause(attempts);
            attempts += 1;
        }
    }

    /// The state of a lock that is free or that this session holds.
    #[inline]
    fn usable(&mut self, lock: LockIndex) -> Result<State, Interrupted> {
        let seen = self.core.locks.state(lock);
        match seen.version().is_some() || seen == State::taken(self.owner) {
            true => Ok(seen),
            false => self.wait_for(lock),
        }
    }

    /// Begins a transaction. [`run`](Self::run) begins, commits and retries by itself.
    ///
    /// # Errors
    /// [`LogError`]: no further transaction can commit.
    pub fn begin(&mut self) -> Result<(), Arc<LogError>> {
        let checked = self.core.check();
        // The caller does not roll back a transaction that did not begin.
        checked.inspect_err(|_| self.give_turn_back())?;
        self.set_time(self.core.clock.load(Ordering::Acquire));
        Ok(())
    }

    /// Sets the stamp at which all reads are valid.
    #[inline]
    fn set_time(&mut self, time: u64) {
        self.time = time;
        if let Some(under) = &self.under {
            under.set(time);
        }
    }

    /// [`Space::offset`].
    #[inline]
    pub fn offset(&self, at: u64) -> Option<u64> {
        self.core.space.offset(at)
    }

    /// [`Space::address`].
    #[inline]
    pub fn address(&self, off: u64) -> u64 {
        self.core.space.address(off)
    }

    // --- reading --------------------------------------------------------------------

    /// [`Transaction::load`].
    ///
    /// # Errors
    /// [`Interrupted`].
    #[inline]
    pub fn load(&mut self, at: u64) -> Result<u64, Interrupted> {
        let lock = self.core.locks.of(at);
        let seen = self.usable(lock)?;
        if seen == State::taken(self.owner) {
            return self.own_word(at);
        }
        let version = seen.version().ok_or(Interrupted::Conflict)?;
        let word = self.core.space.load_at(at)?;
        self.was_read(lock, seen, version)?;
        Ok(word)
    }

    /// Loads the word at `at`, whose lock this session holds.
    #[inline(never)]
    fn own_word(&self, at: u64) -> Result<u64, Interrupted> {
        match self.writes.get(at) {
            Some(written) if written.mask == WHOLE => Ok(written.word),
            Some(written) => Ok(written.over(self.core.space.load_at(at)?)),
            None => Ok(self.core.space.load_at(at)?),
        }
    }

    /// Records a read that began when the lock was in state `seen`. Fails if the state has changed.
    #[inline]
    fn was_read(&mut self, lock: LockIndex, seen: State, version: u64) -> Result<(), Interrupted> {
        // If this lock was read before in another version, that read is now found to be invalid.
        let is_new = match &self.under {
            Some(under) => under.note_read(lock),
            None => self.reads.last() != Some(&(lock, version)),
        };
        if is_new {
            self.reads.push((lock, version));
            if self.under.is_none() && self.reads.len() >= self.most_reads {
                self.forget_repeated_reads();
            }
        }
        // The load and its record come before this check of the lock.
        fence(Ordering::Acquire);
        if self.core.locks.state(lock) != seen {
            return Err(Interrupted::Conflict);
        }
        if version > self.time {
            self.extend()?;
        }
        Ok(())
    }

    /// Removes repeated reads, so that memory is in proportion to the words read, not to the reads.
    #[cold]
    fn forget_repeated_reads(&mut self) {
        self.reads.sort_unstable();
        self.reads.dedup();
        self.most_reads = FEW_READS.max(2 * self.reads.len());
    }

    /// [`Transaction::read`].
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Interrupted> {
        let mut rest = buf;
        let mut at = at;
        while !rest.is_empty() {
            let len = rest.len().min(left_in_line(at));
            let (part, more) = rest.split_at_mut(len);
            self.read_in_line(at, part)?;
            at += len as u64;
            rest = more;
        }
        Ok(())
    }

    fn read_in_line(&mut self, at: u64, part: &mut [u8]) -> Result<(), Interrupted> {
        let lock = self.core.locks.of(at);
        let seen = self.usable(lock)?;
        if seen == State::taken(self.owner) {
            return words_of(at, part.len(), |word_at, range, in_word| {
                let word = self.own_word(word_at)?.to_le_bytes();
                part[range].copy_from_slice(&word[in_word]);
                Ok(())
            });
        }
        let version = seen.version().ok_or(Interrupted::Conflict)?;
        self.core.space.read_at(at, part)?;
        self.was_read(lock, seen, version)
    }

    // --- writing --------------------------------------------------------------------

    /// [`Transaction::store`].
    ///
    /// # Errors
    /// [`Interrupted`].
    #[inline]
    pub fn store(&mut self, at: u64, word: u64) -> Result<(), Interrupted> {
        let is_first = self.own(at)?;
        self.put(at, Written { word, mask: WHOLE }, is_first)
    }

    /// [`Transaction::write`].
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        let (mut rest, mut at) = (bytes, at);
        while !rest.is_empty() {
            let (part, more) = rest.split_at(rest.len().min(left_in_line(at)));
            let is_first = self.own(at)?;
            words_of(at, part.len(), |word_at, range, in_word| {
                let mask = mask::of(in_word.clone());
                let mut word = [0; WORD_BYTES as usize];
                word[in_word].copy_from_slice(&part[range]);
                let word = u64::from_le_bytes(word);
                self.put(word_at, Written { word, mask }, is_first)
            })?;
            at += part.len() as u64;
            rest = more;
        }
        Ok(())
    }

    /// Adds a write of some bytes of a word whose lock this session holds. `is_first`: no word of
    /// its line was written before.
    #[inline]
    fn put(&mut self, at: u64, mut new: Written, is_first: bool) -> Result<(), Interrupted> {
        if !is_first && let Some(old) = self.writes.get_mut(at) {
            new.word = new.over(old.word);
            new.mask |= old.mask;
            *old = new;
            return Ok(());
        }
        // Check now: the commit cannot reject it.
        let under = self.check_word(at)?;
        if new.mask != WHOLE && hit(Bug::WholeWords) {
            (new.word, new.mask) = (new.over(under), WHOLE);
        }
        self.writes.insert(at, new);
        Ok(())
    }

    /// Loads the word at `at`. Fails if it does not exist or is part of the logs.
    fn check_word(&self, at: u64) -> Result<u64, Interrupted> {
        let core = &self.core;
        let logs = core.area.start..core.area.start + core.area.bytes();
        if let Some(off) = core.space.offset(at)
            && logs.contains(&off)
        {
            let len = WORD_BYTES;
            return Err(Interrupted::Medium(MediumError::OutOfRange { off, len }));
        }
        Ok(core.space.load_at(at)?)
    }

    /// Locks the aligned word at `at`, which is not persistent. The caller changes it in place, and
    /// restores it if the transaction fails.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn lock(&mut self, at: u64) -> Result<(), Interrupted> {
        self.own(at)?;
        self.is_changed = true;
        Ok(())
    }

    /// Takes the lock of a word. Returns false if the session had it.
    #[inline]
    fn own(&mut self, at: u64) -> Result<bool, Interrupted> {
        let lock = self.core.locks.of(at);
        let seen = self.usable(lock)?;
        if seen == State::taken(self.owner) {
            return Ok(false);
        }
        if self.core.turn.is_others() {
            return Err(Interrupted::Conflict);
        }
        let version = seen.version().ok_or(Interrupted::Conflict)?;
        if !self.core.locks.try_take(lock, seen, self.owner) {
            return Err(Interrupted::Conflict);
        }
        self.taken.insert(lock.into(), version);
        if version > self.time {
            self.extend()?;
        }
        Ok(true)
    }

    /// Drops writes to the volatile bytes `at..at + len`, which do not exist any more.
    pub fn forget(&mut self, at: u64, len: u64) {
        let (first, end) = (at - at % WORD_BYTES, at + len);
        for word_at in (first..end).step_by(WORD_BYTES as usize) {
            let from = at.saturating_sub(word_at) as usize;
            let to = (end - word_at).min(WORD_BYTES) as usize;
            if self.core.space.offset(word_at).is_none()
                && let Some(written) = self.writes.get_mut(word_at)
            {
                written.mask &= !mask::of(from..to);
            }
        }
    }

    /// The writes so far.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.writes.snapshot())
    }

    /// Returns to a savepoint of this transaction that no earlier return has undone. Reads since
    /// then still count.
    pub fn return_to(&mut self, savepoint: &Savepoint) {
        self.writes.restore(&savepoint.0);
    }

    /// Moves the stamp of the reads to now, if all are still valid.
    #[cold]
    fn extend(&mut self) -> Result<(), Interrupted> {
        let now = self.core.clock.load(Ordering::Acquire);
        if !self.is_valid() {
            return Err(Interrupted::Conflict);
        }
        self.set_time(now);
        Ok(())
    }

    /// Whether no other thread has changed a word that was read.
    pub fn is_valid(&self) -> bool {
        self.reads.iter().all(|(lock, version)| {
            let state = self.core.locks.state(*lock);
            let ours = state == State::taken(self.owner);
            state == State::free(*version)
                || ours && self.taken.get((*lock).into()) == Some(*version)
        })
    }
}

impl<S: Space> Drop for TxSession<S> {
    fn drop(&mut self) {
        // A transaction that was neither committed nor rolled back has no effect, and no locks.
        self.roll_back();
        self.give_turn_back();
        if let Some(under) = &self.under {
            self.core.running.leave(under);
        }
    }
}

/// Bytes from `at` to the end of its line.
fn left_in_line(at: u64) -> usize {
    (LINE_BYTES - at % LINE_BYTES) as usize
}

/// Splits `at..at + len` at words. Calls `each` for each word, with its address, the part of the
/// range in it, and the bytes of the word that this part covers.
fn words_of(
    at: u64,
    len: usize,
    mut each: impl FnMut(u64, Range<usize>, Range<usize>) -> Result<(), Interrupted>,
) -> Result<(), Interrupted> {
    let mut done = 0;
    while done < len {
        let here = at + done as u64;
        let skip = (here % WORD_BYTES) as usize;
        let part = (WORD_BYTES as usize - skip).min(len - done);
        each(here - skip as u64, done..done + part, skip..skip + part)?;
        done += part;
    }
    Ok(())
}
