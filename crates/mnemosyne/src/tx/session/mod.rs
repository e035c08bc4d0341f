//! Transactions of one thread: what they read and write, under which locks.
//!
//! `filled` has stores in place to blocks of the transaction itself, `waiting` what a session waits
//! for, `commit` the end of a transaction.

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

/// One thread's way to run transactions, one at a time.
pub struct Session<S: Space> {
    core: Arc<Core<S>>,
    owner: u64,
    /// What was read is of this time.
    time: u64,
    /// Locks that were read, and their versions then; some more than once.
    pub(super) reads: Vec<(LockIndex, u64)>,
    /// How many of them to put in order then.
    most_reads: usize,
    /// Locks that were taken, and their versions before.
    taken: Map<u64>,
    writes: Map<Written>,
    /// Whether something was changed in place, which locks vouch for.
    is_changed: bool,
    /// What was stored to blocks that the transaction allocated.
    filled: Filled,
    record: Vec<u64>,
    /// What others see of it, if they wait for it.
    under: Option<Arc<Under>>,
    /// Whether it has the turn, and keeps it when the transaction is rolled back.
    has_turn: bool,
    keeps_turn: bool,
    /// How long it waits for a lock then, and whether it has waited in vain.
    pub(super) patience: Duration,
    gave_up: bool,
}

/// Reads that may be noted more than once.
const FEW_READS: usize = 1024;

/// What a transaction has written so far, to come back to.
#[derive(Debug)]
pub struct Savepoint(Vec<(u64, Written)>);

/// A word that was written.
#[derive(Debug, Clone, Copy)]
struct Written {
    word: u64,
    /// Which of its bytes were written. The others are left alone: they may belong to a
    /// variable that another thread changes without transactions.
    mask: u8,
}

impl Written {
    /// The word, with those of `under` where nothing was written.
    #[inline]
    fn over(self, under: u64) -> u64 {
        let bits = mask::bits(self.mask);
        self.word & bits | under & !bits
    }
}

/// A transaction under way. Dropped without a commit, it leaves nothing, not even if its
/// body panicked.
pub struct Transaction<'a, S: Space>(&'a mut Session<S>);

impl<S: Space> Drop for Transaction<'_, S> {
    fn drop(&mut self) {
        self.0.roll_back();
    }
}

impl<S: Space> Transaction<'_, S> {
    /// Loads the aligned word at `at`.
    ///
    /// # Errors
    /// [`Interrupted`]; the body is to pass it on.
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

impl<S: Space> Session<S> {
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

    /// Runs a transaction: `body`, again as long as others get in its way, and durably once
    /// it returns `Ok`. `body` must not do what cannot be done again.
    ///
    /// After several conflicts, transactions of other threads wait for this one. So `body` must not
    /// wait for another thread's transaction, nor lock a mutex that another thread holds while it
    /// runs one: both threads would wait for ever. Lock such a mutex before the call.
    ///
    /// # Errors
    /// [`TxError`]; then nothing of it happened, unless the memory failed in the commit.
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

    /// The state of a lock that is free or ours.
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
    /// If nothing can be committed any more.
    pub fn begin(&mut self) -> Result<(), Arc<LogError>> {
        let checked = self.core.check();
        // The caller does not roll back what never began.
        checked.inspect_err(|_| self.give_turn_back())?;
        self.set_time(self.core.clock.load(Ordering::Acquire));
        Ok(())
    }

    /// What was read, and will be, is of this time.
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

    /// The word at `at`, whose lock is ours.
    #[inline(never)]
    fn own_word(&self, at: u64) -> Result<u64, Interrupted> {
        match self.writes.get(at) {
            Some(written) if written.mask == WHOLE => Ok(written.word),
            Some(written) => Ok(written.over(self.core.space.load_at(at)?)),
            None => Ok(self.core.space.load_at(at)?),
        }
    }

    /// Notes a read that began when the lock was as `seen`, unless somebody was in between.
    #[inline]
    fn was_read(&mut self, lock: LockIndex, seen: State, version: u64) -> Result<(), Interrupted> {
        // A second read of another version is later than this one's time, and not valid then.
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
        // What was loaded and noted, then how the lock is now.
        fence(Ordering::Acquire);
        if self.core.locks.state(lock) != seen {
            return Err(Interrupted::Conflict);
        }
        if version > self.time {
            self.extend()?;
        }
        Ok(())
    }

    /// Keeps the memory that they need in proportion to what is read, not to how often.
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

    /// Notes what is to be stored in some bytes of a word whose lock is ours. `is_first`: no
    /// word of its line was written before.
    #[inline]
    fn put(&mut self, at: u64, mut new: Written, is_first: bool) -> Result<(), Interrupted> {
        if !is_first && let Some(old) = self.writes.get_mut(at) {
            new.word = new.over(old.word);
            new.mask |= old.mask;
            *old = new;
            return Ok(());
        }
        // Now, and not when it is too late to refuse.
        let under = self.check_place(at)?;
        if new.mask != WHOLE && hit(Bug::WholeWords) {
            (new.word, new.mask) = (new.over(under), WHOLE);
        }
        self.writes.insert(at, new);
        Ok(())
    }

    /// Whether a word can be stored here: it is there, and not in the logs. Returns it.
    fn check_place(&self, at: u64) -> Result<u64, Interrupted> {
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

    /// Keeps others away from the aligned word at `at`, which the caller changes in place, and
    /// changes back should the transaction fail. It must not be persistent.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn lock(&mut self, at: u64) -> Result<(), Interrupted> {
        self.own(at)?;
        self.is_changed = true;
        Ok(())
    }

    /// Takes the lock of a word. `true`: only now.
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
        if !self.core.locks.take(lock, seen, self.owner) {
            return Err(Interrupted::Conflict);
        }
        self.taken.insert(lock.into(), version);
        if version > self.time {
            self.extend()?;
        }
        Ok(true)
    }

    /// Does not store what was written to volatile bytes of `at..at + len`: they are gone.
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

    /// What was written so far.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.writes.snapshot())
    }

    /// Comes back to a savepoint of this transaction, and to none that was left by an earlier
    /// return. What was read since then counts as read.
    pub fn return_to(&mut self, savepoint: &Savepoint) {
        self.writes.restore(&savepoint.0);
    }

    /// Moves the time of what was read to now, if it is all still so.
    #[cold]
    fn extend(&mut self) -> Result<(), Interrupted> {
        let now = self.core.clock.load(Ordering::Acquire);
        if !self.is_valid() {
            return Err(Interrupted::Conflict);
        }
        self.set_time(now);
        Ok(())
    }

    /// Whether nobody changed what was read.
    pub fn is_valid(&self) -> bool {
        self.reads.iter().all(|(lock, version)| {
            let state = self.core.locks.state(*lock);
            let ours = state == State::taken(self.owner);
            state == State::free(*version)
                || ours && self.taken.get((*lock).into()) == Some(*version)
        })
    }
}

impl<S: Space> Drop for Session<S> {
    fn drop(&mut self) {
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

/// Cuts `at..at + len` at words: for each its address, which part of the range lies in it,
/// and where in it.
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
