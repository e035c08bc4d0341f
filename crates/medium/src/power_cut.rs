//! A region whose power can be cut at any moment.
//!
//! Guarantees:
//!
//! 1. [`PowerCut::cut`] leaves the region below in a state that a power failure at that moment
//!    could leave under the chosen [`PersistModel`]. The seed picks the state: the same calls
//!    and the same seed give the same one.
//! 2. The state contains all stores that were flushed (or streamed) and fenced before. A flush
//!    covers the earlier stores to its line, for the fence of its own thread.
//! 3. The cut waits for calls in progress. Later calls change nothing and fail with
//!    [`MediumError::PowerCut`].
//!
//! For each line with stores that are not durable, it records the words before each of these
//! stores, oldest first. A store that is never flushed stays in that list.

use crate::units::{lines, unit_count, units};
use crate::{LINE_BYTES, MediumError, PersistModel, Pmem, Rule, WORD_BYTES};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::{self, ThreadId};

/// The moment of an armed cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutAfter {
    /// At the end of the call that makes the `n`-th atomic store from now (`n` at least 1).
    Stores(u64),
    /// At the start of the `n`-th fence from now (`n` at least 1), which fails.
    Fences(u64),
}

/// The effects of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutReport {
    /// The seed that picked the state.
    pub seed: u64,
    /// The model by which it was picked.
    pub model: PersistModel,
    /// Lines with stores in flight.
    pub lines: u64,
    /// Stores in flight.
    pub stores: u64,
    /// The number of them that were lost.
    pub lost: u64,
}

impl fmt::Display for CutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "power cut with seed {} under the model '{}': of {} stores in flight to {} lines, {} were lost",
            self.seed, self.model, self.stores, self.lines, self.lost
        )
    }
}

/// One store that is not durable.
#[derive(Clone, Copy)]
struct Pending {
    /// Number of the store, ascending within the shard.
    id: u64,
    /// Index of the word in its line.
    word: u8,
    /// The word before the store.
    old: u64,
    /// Whether the store is durable under `Lines`, because a later store to the line is.
    line_durable: bool,
}

/// The lines whose number maps to one shard.
#[derive(Default)]
struct Shard {
    last_id: u64,
    /// By offset of the line; the oldest store first.
    lines: HashMap<u64, Vec<Pending>>,
}

/// The stores that the next fence of a thread makes durable.
enum Claim {
    /// All stores to `line` up to `last`.
    Flushed { line: u64, last: u64 },
    /// The stores with `ids` to `line`, and those to the same words before them.
    Streamed { line: u64, ids: Range<u64> },
}

enum Power {
    On,
    Off(Result<CutReport, MediumError>),
}

type Claims = HashMap<ThreadId, Vec<Claim>>;

/// Number of shards of each kind: enough that a few threads seldom contend.
const SHARDS: usize = 64;
/// Forwards everything to `P` until the power is cut.
pub struct PowerCut<P> {
    inner: P,
    /// Read-locked by every call while it runs, write-locked by the cut.
    power: RwLock<Power>,
    shards: Box<[Mutex<Shard>]>,
    claims: Box<[Mutex<Claims>]>,
    thread_hash: RandomState,
    stores_left: Countdown,
    fences_left: Countdown,
    /// Seed and model of the armed cut.
    armed: Mutex<(u64, PersistModel)>,
}

impl<P: Pmem> PowerCut<P> {
    /// The power is on, and the contents of `inner` count as durable.
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            power: RwLock::new(Power::On),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            claims: (0..SHARDS).map(|_| Mutex::default()).collect(),
            thread_hash: RandomState::new(),
            stores_left: Countdown::default(),
            fences_left: Countdown::default(),
            armed: Mutex::default(),
        }
    }

    /// The region below. After a cut it has the crash state; before, it must not be stored to.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Ends the use of the region.
    pub fn into_inner(self) -> P {
        self.inner
    }

    /// Cuts the power now. After an earlier cut nothing happens, and the result of that cut is
    /// returned.
    ///
    /// # Errors
    /// [`MediumError`] if the region below cannot take the crash state.
    pub fn cut(&self, seed: u64, model: PersistModel) -> Result<CutReport, MediumError> {
        let mut power = self.power.write().unwrap_or_else(PoisonError::into_inner);
        match *power {
            Power::Off(result) => result,
            Power::On => {
                let result = self.crash(seed, model);
                *power = Power::Off(result);
                result
            }
        }
    }

    /// Arms a cut, and replaces one that was armed before.
    pub fn cut_after(&self, when: CutAfter, seed: u64, model: PersistModel) {
        *locked(&self.armed) = (seed, model);
        let (stores, fences) = match when {
            CutAfter::Stores(n) => (Some(n), None),
            CutAfter::Fences(n) => (None, Some(n)),
        };
        self.stores_left.set(stores);
        self.fences_left.set(fences);
    }

    /// Disarms the cut.
    pub fn disarm(&self) {
        self.stores_left.set(None);
        self.fences_left.set(None);
    }

    /// The result of the cut, if there was one.
    pub fn outcome(&self) -> Option<Result<CutReport, MediumError>> {
        match *self.power.read().unwrap_or_else(PoisonError::into_inner) {
            Power::On => None,
            Power::Off(result) => Some(result),
        }
    }

    /// Keeps the power on while the result lives; fails if it is off.
    fn powered(&self) -> Result<RwLockReadGuard<'_, Power>, MediumError> {
        let power = self.power.read().unwrap_or_else(PoisonError::into_inner);
        match *power {
            Power::On => Ok(power),
            Power::Off(_) => Err(MediumError::PowerCut),
        }
    }

    fn shard(&self, line: u64) -> MutexGuard<'_, Shard> {
        locked(&self.shards[(line / LINE_BYTES) as usize % SHARDS])
    }

    fn claims(&self) -> (ThreadId, MutexGuard<'_, Claims>) {
        let me = thread::current().id();
        let shard = self.thread_hash.hash_one(me) as usize % SHARDS;
        (me, locked(&self.claims[shard]))
    }

    fn claim(&self, new: Vec<Claim>) {
        let (me, mut claims) = self.claims();
        claims.entry(me).or_default().extend(new);
    }

    fn is_in_range(&self, off: u64, len: u64) -> bool {
        off.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Stores `part`, all of it in `line`, and returns the ids of its stores.
    fn store_in_line(&self, line: u64, off: u64, part: &[u8], stream: bool) -> Range<u64> {
        let mut guard = self.shard(line);
        let shard = &mut *guard;
        let log = shard.lines.entry(line).or_default();
        let first = shard.last_id + 1;
        // Several units of one call may share a word: the old value of a later unit includes
        // the earlier ones.
        let mut previous = None;
        for unit in units(off, part) {
            let word_off = unit.word_off();
            let old = match previous {
                Some((same, value)) if same == word_off => Ok(value),
                _ => self.inner.load(word_off),
            };
            // A word that cannot be read cannot be restored.
            let Ok(old) = old else { continue };
            previous = Some((word_off, unit.apply(old)));
            shard.last_id += 1;
            log.push(Pending {
                id: shard.last_id,
                word: ((word_off - line) / WORD_BYTES) as u8,
                old,
                line_durable: false,
            });
        }
        if stream {
            self.inner.store_nt(off, part);
        } else {
            self.inner.store(off, part);
        }
        first..shard.last_id + 1
    }

    fn store_any(&self, off: u64, bytes: &[u8], stream: bool) {
        let Ok(power) = self.powered() else { return };
        if !self.is_in_range(off, bytes.len() as u64) {
            // The region below reports it at the next fence.
            return self.inner.store(off, bytes);
        }
        let mut streamed = Vec::new();
        let mut rest = bytes;
        for line in lines(off, bytes.len() as u64) {
            let at = line.max(off);
            let (part, tail) = rest.split_at(rest.len().min((line + LINE_BYTES - at) as usize));
            let ids = self.store_in_line(line, at, part, stream);
            if stream {
                streamed.push(Claim::Streamed { line, ids });
            }
            rest = tail;
        }
        if stream {
            self.claim(streamed);
        }
        drop(power);
        if self.stores_left.count(unit_count(off, bytes.len() as u64)) {
            self.cut_as_armed();
        }
    }

    fn cut_as_armed(&self) {
        let (seed, model) = *locked(&self.armed);
        // The caller finds the result in `outcome`.
        let _ = self.cut(seed, model);
    }

    /// Drops the stores that the claims of this thread make durable.
    fn drop_claimed(&self) {
        let (me, mut claims) = self.claims();
        let mine = claims.remove(&me);
        drop(claims);
        for claim in mine.into_iter().flatten() {
            let (Claim::Flushed { line, .. } | Claim::Streamed { line, .. }) = claim;
            let mut shard = self.shard(line);
            let Some(log) = shard.lines.get_mut(&line) else {
                continue;
            };
            match claim {
                Claim::Flushed { last, .. } => log.retain(|p| p.id > last),
                Claim::Streamed { ids, .. } => drop_streamed(log, &ids),
            }
            if log.is_empty() {
                shard.lines.remove(&line);
            }
        }
    }

    /// Rolls the region below back to a crash state. The caller holds the power.
    fn crash(&self, seed: u64, model: PersistModel) -> Result<CutReport, MediumError> {
        let mut logs: Vec<(u64, Vec<Pending>)> = Vec::new();
        for shard in &self.shards {
            logs.extend(locked(shard).lines.drain());
        }
        // Sorted, so that the choices depend on the seed alone.
        logs.sort_unstable_by_key(|(line, _)| *line);
        let mut choose = Choice::new(seed);
        let mut report = CutReport {
            seed,
            model,
            lines: logs.len() as u64,
            stores: 0,
            lost: 0,
        };
        for (line, log) in logs {
            report.stores += log.len() as u64;
            report.lost += match model {
                PersistModel::Words => self.crash_words(line, &log, &mut choose),
                PersistModel::Lines => self.crash_line(line, &log, &mut choose),
            };
            self.inner.flush(line, LINE_BYTES);
        }
        self.inner.fence(Rule::DurableBeforeReturn)?;
        Ok(report)
    }

    /// Undoes the newest stores to each word of a line, as many as are chosen.
    fn crash_words(&self, line: u64, log: &[Pending], choose: &mut Choice) -> u64 {
        let mut lost = 0;
        for word in 0..(LINE_BYTES / WORD_BYTES) as u8 {
            let stores: Vec<_> = log.iter().filter(|p| p.word == word).collect();
            let keep = choose.up_to(stores.len());
            if let Some(first_lost) = stores.get(keep) {
                self.undo(line, first_lost);
            }
            lost += stores.len() - keep;
        }
        lost as u64
    }

    /// Undoes the newest stores to a line, as many as are chosen.
    fn crash_line(&self, line: u64, log: &[Pending], choose: &mut Choice) -> u64 {
        let durable = log
            .iter()
            .rposition(|p| p.line_durable)
            .map_or(0, |i| i + 1);
        let keep = durable + choose.up_to(log.len() - durable);
        let lost = &log[keep..];
        lost.iter().rev().for_each(|p| self.undo(line, p));
        lost.len() as u64
    }

    fn undo(&self, line: u64, store: &Pending) {
        let off = line + u64::from(store.word) * WORD_BYTES;
        self.inner.store_word(off, store.old);
    }
}

/// Drops the stores from a line's log that a fenced streaming store makes durable: itself, and
/// the older stores to the same words. Under `Lines` it includes all older stores.
fn drop_streamed(log: &mut Vec<Pending>, ids: &Range<u64>) {
    let mut newest = [0; (LINE_BYTES / WORD_BYTES) as usize];
    let mut last = 0;
    for p in log.iter().filter(|p| ids.contains(&p.id)) {
        newest[p.word as usize] = p.id;
        last = p.id;
    }
    for p in log.iter_mut().filter(|p| p.id < last) {
        p.line_durable = true;
    }
    log.retain(|p| p.id > newest[p.word as usize]);
}

/// The choices of a seed. One cut in eight loses all that it may, and one keeps all: with many
/// stores in flight, chance alone would never do either.
pub(crate) struct Choice {
    rng: fastrand::Rng,
    bias: u8,
}

impl Choice {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bias = rng.u8(..8);
        Self { rng, bias }
    }

    /// Returns the number of `n` stores to keep: 0 to `n`.
    pub(crate) fn up_to(&mut self, n: usize) -> usize {
        match self.bias {
            0 => 0,
            1 => n,
            _ => self.rng.usize(..=n),
        }
    }
}

/// Counts down to an armed moment.
pub(crate) struct Countdown(AtomicU64);

/// The value while no cut is armed.
const NEVER: u64 = u64::MAX;

impl Default for Countdown {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Countdown {
    /// Starts at `left`, at least 1; `None`: does not count.
    pub(crate) fn set(&self, left: Option<u64>) {
        self.0.store(left.map_or(NEVER, |n| n.max(1)), SeqCst);
    }

    /// Subtracts `n`; true for the call that reaches zero.
    pub(crate) fn count(&self, n: u64) -> bool {
        let armed = |now| (now != NEVER).then(|| u64::saturating_sub(now, n));
        let before = self.0.fetch_update(SeqCst, SeqCst, armed);
        before.is_ok_and(|before| before > 0 && before <= n)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Pmem> crate::layer::PmemLayer for PowerCut<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let _power = self.powered()?;
        self.inner.load(off)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let _power = self.powered()?;
        self.inner.read(off, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.store_any(off, bytes, false);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store_any(off, bytes, true);
    }

    fn flush(&self, off: u64, len: u64) {
        let Ok(_power) = self.powered() else { return };
        self.inner.flush(off, len);
        if !self.is_in_range(off, len) {
            return;
        }
        let claims = lines(off, len).filter_map(|line| {
            let shard = self.shard(line);
            let last = shard.lines.get(&line)?.last()?.id;
            Some(Claim::Flushed { line, last })
        });
        self.claim(claims.collect());
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        if self.fences_left.count(1) {
            self.cut_as_armed();
        }
        let _power = self.powered()?;
        self.inner.fence(rule)?;
        self.drop_claimed();
        Ok(())
    }
}
