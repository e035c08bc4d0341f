//! Transactions of one thread: what they read, what they wrote, and their commit.

use super::locks::{LockIndex, State};
use super::map::Map;
use super::mask::{self, WHOLE};
use super::record::{Overflow, Word};
use super::running::Under;
use super::{Core, IDLE, Space, Truncation, record};
use crate::error::{HeapError, Interrupted, Stop, TxError, Uncommitted};
use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, MediumError, Pmem, WORD_BYTES};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
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

/// Words of a record for which memory is kept after it.
const MANY_WORDS: usize = 1 << 20;

/// Attempts after which a transaction asks for the turn.
const FEW_ATTEMPTS: u32 = 10;
/// Time that one with the turn waits for a lock at first.
const FIRST_PATIENCE: Duration = Duration::from_millis(20);
/// At most.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes from which a store to a block of the transaction is streamed past the caches.
const STREAMED: usize = 512;

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

/// What a transaction has stored in place to blocks of its own, and has to write back.
#[derive(Default)]
struct Filled {
    /// Whether there is something, which may have been streamed.
    any: bool,
    /// Lines that were stored to, from the first byte of one to the end of one; some twice.
    lines: Vec<Range<u64>>,
    /// How many ranges to merge then.
    most: usize,
}

/// Where an overflow goes: so many bytes, in so many parts at most.
pub(crate) trait PlaceOverflow:
    FnOnce(u64, usize) -> Result<Vec<Range<u64>>, HeapError>
{
}

impl<F: FnOnce(u64, usize) -> Result<Vec<Range<u64>>, HeapError>> PlaceOverflow for F {}

/// Ranges that may overlap.
const FEW_RANGES: usize = 256;

impl Filled {
    #[inline]
    fn add(&mut self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        let new = off / LINE_BYTES * LINE_BYTES..(off + len).next_multiple_of(LINE_BYTES);
        match self.lines.last_mut() {
            // As a rule the next store is to the same line, or to the one after it.
            Some(last) if last.start <= new.start && new.start <= last.end => {
                last.end = last.end.max(new.end);
            }
            _ => self.push(new),
        }
    }

    fn push(&mut self, new: Range<u64>) {
        self.lines.push(new);
        if self.lines.len() > self.most {
            self.merge();
            self.most = FEW_RANGES.max(2 * self.lines.len());
        }
    }

    /// Leaves no two ranges that touch.
    fn merge(&mut self) {
        self.lines.sort_unstable_by_key(|lines| lines.start);
        self.lines.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
    }

    /// All lines, each once.
    fn lines(&mut self) -> &[Range<u64>] {
        self.merge();
        &self.lines
    }

    #[inline]
    fn clear(&mut self) {
        self.any = false;
        self.lines.clear();
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

    /// To be called before [`roll_back`](Self::roll_back) if the transaction met a conflict and is
    /// to be run again: after many attempts it has the turn, and would give it back.
    pub fn keep_turn(&mut self) {
        self.keeps_turn = true;
    }

    /// Waits for others after that many attempts, longer and longer, and each session
    /// differently. After a few it waits for the turn: then the others wait.
    pub fn pause(&mut self, attempts: u32) {
        if attempts >= FEW_ATTEMPTS {
            if std::mem::take(&mut self.gave_up) {
                // Somebody may need a commit first, to give back what is needed here.
                std::thread::sleep(self.patience);
            }
            self.has_turn = self.has_turn || self.core.turn.take();
            return;
        }
        let longest = 1_u64 << attempts.min(10);
        let spins = (self.owner + u64::from(attempts)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        for _ in 0..spins % (longest * 16) {
            std::hint::spin_loop();
        }
        if attempts > 2 {
            std::thread::yield_now();
        }
        self.core.turn.wait();
    }

    fn give_turn_back(&mut self) {
        if std::mem::take(&mut self.has_turn) {
            self.core.turn.give_back();
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

    /// Waits for a lock of another one, which gives it back since this one has the turn. Not
    /// for ever: it may belong to a transaction that waits for another of its thread.
    #[cold]
    fn wait_for(&mut self, lock: LockIndex) -> Result<State, Interrupted> {
        let begun = Instant::now();
        while self.has_turn && begun.elapsed() < self.patience {
            let seen = self.core.locks.state(lock);
            if seen.version().is_some() {
                return Ok(seen);
            }
            if seen == State::BLOCKED {
                // A reader may keep the owner for long, and all others meanwhile.
                self.give_turn_back();
                self.gave_up = true;
                return Err(Interrupted::Conflict);
            }
            // The owner may be waiting for the end of this one, which has read what it changed.
            if !self.is_valid() {
                return Err(Interrupted::Conflict);
            }
            std::thread::yield_now();
        }
        if self.has_turn {
            self.give_turn_back();
            self.gave_up = true;
            self.patience = LAST_PATIENCE.min(2 * self.patience);
        }
        Err(Interrupted::Conflict)
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

    /// Copies `bytes` to offset `off` at once, without a log: to memory that nobody can reach
    /// before this transaction commits, and that no recovery writes to. The commit makes them
    /// durable before it; if it fails, anything may be there. No return to a savepoint undoes
    /// it, but of words that were stored before it.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub(crate) fn fill(&mut self, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        let end = off + bytes.len() as u64;
        // Whoever still reads there, of the block's former life, is to notice.
        for line in (off / LINE_BYTES * LINE_BYTES..end).step_by(LINE_BYTES as usize) {
            let is_first = self.own(self.address(line))?;
            if !is_first {
                let (from, to) = (line.max(off), end.min(line + LINE_BYTES));
                let part = &bytes[(from - off) as usize..(to - off) as usize];
                self.write_again(self.address(from), part)?;
            }
        }
        self.is_changed = true;
        self.may_fill()?;
        let pm = self.core.space.pmem();
        let head = (off.wrapping_neg() % LINE_BYTES).min(bytes.len() as u64) as usize;
        let (head, rest) = bytes.split_at(head);
        let (lines, tail) = rest.split_at(rest.len() - rest.len() % LINE_BYTES as usize);
        pm.store_nt(off + head.len() as u64, lines);
        self.filled.any = true;
        for (at, part) in [(off, head), (end - tail.len() as u64, tail)] {
            pm.store(at, part);
            self.filled.add(at, part.len() as u64);
        }
        Ok(())
    }

    /// Stores `bytes` at offset `off` at once, in a block that this transaction allocated, whose
    /// conditions are those of [`may_fill`](Self::may_fill). The commit makes them durable before
    /// it, or what the caller has put back over them by plain stores if they `may_be_undone`.
    #[inline]
    pub(crate) fn store_in_own(&mut self, off: u64, bytes: &[u8], may_be_undone: bool) {
        let pm = self.core.space.pmem();
        let is_streamed = bytes.len() >= STREAMED;
        match is_streamed {
            true => pm.store_nt(off, bytes),
            false => pm.store(off, bytes),
        }
        let is_durable = is_streamed && (!may_be_undone || hit(Bug::UndoneUnflushed));
        let len = if is_durable { 0 } else { bytes.len() };
        self.note_filled(off, len as u64);
    }

    /// Makes what the caller has stored at `off..off + len`, or streamed anywhere if `len` is 0,
    /// durable before the commit: for stores to blocks that this transaction allocated, whose
    /// conditions are those of [`may_fill`](Self::may_fill).
    #[inline]
    pub(crate) fn note_filled(&mut self, off: u64, len: u64) {
        self.filled.any = true;
        self.filled.add(off, len);
    }

    /// Refuses once a commit failed: a fresh block may be one that it gave back, and that a
    /// log still has.
    ///
    /// # Errors
    /// [`Interrupted::Conflict`]: the next [`begin`](Self::begin) fails.
    pub(crate) fn may_fill(&self) -> Result<(), Interrupted> {
        self.core.check().map_err(|_| Interrupted::Conflict)
    }

    /// Changes those words from `at` on that are to be stored by the commit.
    fn write_again(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        words_of(at, bytes.len(), |word_at, range, in_word| {
            if let Some(written) = self.writes.get_mut(word_at) {
                let mut word = written.word.to_le_bytes();
                word[in_word].copy_from_slice(&bytes[range]);
                written.word = u64::from_le_bytes(word);
            }
            Ok(())
        })
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

    // --- ending ---------------------------------------------------------------------

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

    /// Commits the transaction, durably. Returns its stamp: those that wrote have one each, in
    /// their order, and one that only read has that of the last one it saw. If it cannot,
    /// [`roll_back`](Self::roll_back) is to follow. What is longer than a log is refused.
    ///
    /// # Errors
    /// [`Uncommitted`].
    pub fn commit(&mut self) -> Result<u64, Uncommitted> {
        self.commit_with(|bytes, _| Err(HeapError::NoSpace { bytes }))
    }

    /// As [`commit`](Self::commit). If the record is longer than a log, `overflow` gives the
    /// offsets of that many bytes, or of more, in whole lines. Nobody else must store there
    /// before the [low water](super::Memory::low_water) has reached the stamp that is returned,
    /// and nothing that recovery replays.
    ///
    /// # Errors
    /// [`Uncommitted`].
    pub(crate) fn commit_with(&mut self, overflow: impl PlaceOverflow) -> Result<u64, Uncommitted> {
        // Who failed gave back words and blocks that are not durable, or that a log may still
        // have: whoever saw them sees that, too.
        self.core.check().map_err(Uncommitted::Failed)?;
        if self.writes.is_empty() && !self.is_changed {
            self.release(None);
            self.had_turn();
            return Ok(self.time); // what was read is of one time
        }
        if self.core.turn.is_others() {
            return Err(Uncommitted::Conflict);
        }
        let space = &self.core.space;
        let persistent = self.writes.iter().filter_map(|(at, new)| {
            let off = space.offset(at)?;
            let Written { word, mask } = new;
            Some(Word { off, word, mask })
        });
        let stamp = match record::encode(&mut self.record, persistent) {
            0 => self.commit_volatile(),
            1 if self.is_one_store() && self.is_unlogged() => self.commit_word(),
            _ => self.commit_durably(overflow),
        }?;
        self.had_turn();
        Ok(stamp)
    }

    /// It has committed.
    #[inline]
    fn had_turn(&mut self) {
        self.give_turn_back();
        (self.patience, self.gave_up) = (FIRST_PATIENCE, false);
    }

    /// Waits until nobody uses what the commit replaced, before anybody sees that it did.
    #[inline]
    fn wait_for_readers(&self, stamp: u64) {
        if let Some(under) = &self.under {
            let taken = || self.taken.iter().map(|(lock, _)| lock as LockIndex);
            let block = || taken().for_each(|lock| self.core.locks.block(lock));
            self.core.running.wait(stamp, under, taken, block);
        }
    }

    /// Commits what no crash needs to know of.
    fn commit_volatile(&mut self) -> Result<u64, Uncommitted> {
        let stamp = self.core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            return Err(Uncommitted::Conflict);
        }
        self.store_home();
        self.wait_for_readers(stamp);
        self.release(Some(stamp));
        Ok(stamp)
    }

    /// Whether one store brings all persistent words that were written in place: there is one.
    fn is_one_store(&self) -> bool {
        let mut runs = record::runs(&self.record);
        !self.filled.any && runs.all(|run| mask::is_one_store(run.mask))
    }

    /// Whether no log has anything for the words that were written.
    fn is_unlogged(&self) -> bool {
        let low_water = self.core.low_water.load(Ordering::Acquire);
        let logged = self.core.logged.load(Ordering::Acquire);
        let unlogged = logged <= low_water || self.taken.iter().all(|(_, v)| v <= low_water);
        unlogged || hit(Bug::WordInLog)
    }

    /// Commits one persistent word, or an aligned part of it, by one store: it needs no log.
    fn commit_word(&mut self) -> Result<u64, Uncommitted> {
        let stamp = self.core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            return Err(Uncommitted::Conflict);
        }
        self.store_home();
        let core = &self.core;
        for run in record::runs(&self.record) {
            core.space.pmem().flush(run.off, WORD_BYTES);
        }
        // Durable before anybody sees it.
        if !hit(Bug::UnfencedWord) {
            let fenced = core.space.pmem().fence();
            fenced.map_err(|error| Uncommitted::Failed(core.fail(error.into())))?;
        }
        self.wait_for_readers(stamp);
        self.release(Some(stamp));
        Ok(stamp)
    }

    fn commit_durably(&mut self, overflow: impl PlaceOverflow) -> Result<u64, Uncommitted> {
        let is_long = self.record.len() as u64 > self.core.area.longest();
        let overflow = is_long.then(|| self.store_overflow(overflow)).transpose()?;
        let core = &*self.core;
        let (slot, mut appender) = core.slot(self.owner);
        let names = |one: &Overflow| one.encode(0).len();
        let words = overflow.as_ref().map_or(self.record.len(), names);
        core.make_room(&mut appender, words as u64)?;
        Self::fence_filled(core, &mut self.filled)?;

        // Before the stamp is drawn, lest the low water pass it by.
        slot.active.store(self.time + 1, Ordering::SeqCst);
        let stamp = core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            slot.active.store(IDLE, Ordering::Release);
            return Err(Uncommitted::Conflict);
        }
        core.note_logged(stamp);
        record::set_stamp(&mut self.record, stamp);
        if hit(Bug::HomeBeforeLog) {
            self.store_home();
        }
        let appended = match &overflow {
            Some(overflow) => appender.append(&overflow.encode(stamp)),
            None => appender.append(&self.record),
        };
        let logged = appended.and_then(|end| appender.flush().map(|()| end));
        let end = match logged {
            Ok(end) => end,
            // It stays active: what became of it, only a recovery can tell.
            Err(error) => return Err(Uncommitted::Failed(core.fail(error))),
        };
        self.store_home();
        slot.home.lock().add(stamp, end, &self.record);
        slot.active.store(IDLE, Ordering::SeqCst);
        let is_half_full = is_long || appender.room().unwrap_or(0) < core.area.longest() / 2;
        drop(appender);
        self.wait_for_readers(stamp);
        self.release(Some(stamp));
        let core = &*self.core;
        if core.options.truncation == Truncation::Eager || is_half_full && !core.helper.call() {
            // This one is durable; if truncating fails, the next transaction fails.
            let _ = core.truncate();
        }
        Ok(stamp)
    }

    /// Stores the runs of the record where `place` says. They are durable after the next
    /// [`fence_filled`](Self::fence_filled).
    #[cold]
    fn store_overflow(&mut self, place: impl PlaceOverflow) -> Result<Overflow, Uncommitted> {
        let bytes = Overflow::bytes_for(&self.record);
        let most = Overflow::most_parts(self.core.area.longest());
        let places = place(bytes, most).map_err(Uncommitted::Heap)?;
        // Take the line locks so that concurrent readers of the freed block conflict. With
        // privatisation no such reader exists: the commit that freed the block waited for it.
        if !self.core.options.privatise {
            let lines = places.iter().cloned();
            for line in lines.flat_map(|place| place.step_by(LINE_BYTES as usize)) {
                let owned = self.own(self.address(line));
                owned.map_err(|_| Uncommitted::Conflict)?;
            }
        }
        self.is_changed = true;
        // A failed commit may have given these pages back, and its record may be in a log.
        self.core.check().map_err(Uncommitted::Failed)?;
        self.filled.any |= !hit(Bug::OverflowAfterLog);
        Ok(Overflow::store(
            self.core.space.pmem(),
            &places,
            &mut self.record,
        ))
    }

    /// Makes durable what the transaction stored in place before its record.
    fn fence_filled(core: &Core<S>, filled: &mut Filled) -> Result<(), Uncommitted> {
        if !filled.any {
            return Ok(());
        }
        let pm = core.space.pmem();
        if !hit(Bug::FillUnflushed) {
            for lines in filled.lines() {
                pm.flush(lines.start, lines.end - lines.start);
            }
        }
        if hit(Bug::FillAfterLog) {
            return Ok(());
        }
        // Data before commit.
        let fenced = pm.fence();
        fenced.map_err(|error| Uncommitted::Failed(core.fail(error.into())))
    }

    /// Stores what was written: what is persistent as the record has it.
    fn store_home(&self) {
        // Readers that see a new word see that its lock is taken.
        fence(Ordering::Release);
        let space = &self.core.space;
        for run in record::runs(&self.record) {
            run.store(space.pmem());
        }
        for (at, new) in self.writes.iter() {
            if space.offset(at).is_none() {
                space.store_at(at, new.word, new.mask);
            }
        }
    }

    /// Ends the transaction and leaves nothing of it.
    pub fn roll_back(&mut self) {
        // Who has read what was in place for a while is to notice.
        let is_changed = self.is_changed;
        let stamp = is_changed.then(|| self.core.clock.fetch_add(1, Ordering::SeqCst) + 1);
        self.release(stamp);
        if !std::mem::take(&mut self.keeps_turn) {
            self.give_turn_back();
        }
    }

    /// Gives all locks back, with a new version or as they were.
    fn release(&mut self, stamp: Option<u64>) {
        for (lock, version) in self.taken.iter() {
            let version = stamp.unwrap_or(version);
            self.core.locks.release(lock as LockIndex, version);
        }
        if let Some(under) = &self.under {
            under.end(self.reads.iter().map(|(lock, _)| *lock));
        }
        self.reads.clear();
        self.most_reads = FEW_READS;
        self.taken.clear();
        self.writes.clear();
        self.record.shrink_to(MANY_WORDS);
        self.is_changed = false;
        self.filled.clear();
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
