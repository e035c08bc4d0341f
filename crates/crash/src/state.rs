//! A persistent memory in a crash state that is decided only where it is looked at.
//!
//! # What is guaranteed
//!
//! A [`StatePmem`] holds the durable content of a region and, per *cell* (a word or a
//! line, by [`Model`]), the stores that were issued but are not durable yet. A crash
//! leaves each cell with some prefix of those stores, cells independent of each other.
//! The choice for a cell is made when it is first read after the crash, so a depth-first
//! walk over the choices ([`StatePmem::next_path`]) meets every crash state that the
//! reader can tell apart, and no two that it cannot: S1. two states that agree on all
//! cells a (deterministic) reader has read make it behave alike; S2. the walk branches
//! on exactly those cells.
//!
//! Every change that an evaluation makes goes to an undo log; a state costs what it
//! touches, never a copy of the image.

use crate::choice::{Choices, Policy, mix};
use crate::walk::CrashState;
use hashbrown::HashMap;
pub use medium::PersistModel as Model;
use medium::recording::Event;
use medium::{LINE_BYTES, MediumError, Pmem, Rule, Unit, WORD_BYTES, units};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What a cell may hold: the words that differ from its durable content, in order.
type Content = Vec<(usize, u64)>;

/// What is not known of one cell, or not durable.
#[derive(Debug, Clone, Default)]
struct Pending {
    /// A crash left one of these in the cell, unknown which, the durable content first.
    /// Empty: the durable content.
    left: Vec<Content>,
    stores: Vec<Store>,
    /// Which of them the next fence of a thread makes durable: all up to a number.
    flushed: Vec<(u32, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Store {
    /// Of all stores.
    number: u64,
    /// Word within the cell.
    slot: u32,
    /// The whole word after the store.
    word: u64,
}

impl Pending {
    fn is_settled(&self) -> bool {
        self.stores.is_empty() && self.left.len() <= 1
    }

    /// `word` was made durable: whatever a crash left in it is gone.
    fn overwrite(&mut self, word: usize) {
        for content in std::mem::take(&mut self.left) {
            let without = content.into_iter().filter(|(w, _)| *w != word).collect();
            push_new(&mut self.left, without);
        }
    }
}

fn push_new(all: &mut Vec<Content>, content: Content) {
    if !all.contains(&content) {
        all.push(content);
    }
}

enum Undo {
    /// The word held this before. `hashed`: the change went into the hash.
    Word { word: u32, old: u64, hashed: bool },
    /// The cell was undecided.
    Open(u32),
    /// The cell had nothing to decide.
    Closed(u32),
}

#[derive(Default)]
struct Inner {
    pending: HashMap<u32, Pending>,
    /// Threads and cells with a `flushed` of theirs.
    in_flight: Vec<(u32, u32)>,
    /// Whose events these are.
    thread: u32,
    /// How many stores there were.
    stores: u64,
    choices: Choices,
    /// Decides from here on, outside the path.
    tail: Option<Policy>,
    /// Whether `tail` decided anything.
    tail_chose: bool,
    undo: Vec<Undo>,
    /// Where an evaluation's part of the undo log begins.
    floor: usize,
    /// Hash of durable content and choices, without what recovery stored.
    hash: u64,
    record: Option<Vec<Event>>,
    failed: Option<MediumError>,
}

/// Persistent memory in an undecided crash state; see the module.
pub(crate) struct StatePmem {
    model: Model,
    words: Box<[AtomicU64]>,
    /// One bit per cell: it has pending stores and is not decided.
    open: Box<[AtomicU64]>,
    /// One bit per word: it was read. Kept only while `track` is set.
    seen: Box<[AtomicU64]>,
    track: AtomicBool,
    inner: Mutex<Inner>,
}

/// What [`StatePmem::enter`] saved.
pub(crate) struct Level {
    pending: HashMap<u32, Pending>,
    in_flight: Vec<(u32, u32)>,
    choices: Choices,
    floor: usize,
}

/// The last choice is that of all stores.
fn pick(policy: Policy, cell: u32, choices: u32) -> u32 {
    policy.pick(cell, choices - 1, choices, &[])
}

fn zeroed(len: usize) -> Box<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

/// The bits `first..=last` of a bit set, as one mask for each of its words.
fn masks(first: usize, last: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..=last / 64).map(move |group| {
        let low = first.max(group * 64) % 64;
        let high = last.min(group * 64 + 63) % 64;
        (group, (u64::MAX >> (63 - high)) & (u64::MAX << low))
    })
}

/// The word once `unit` is stored over `old`.
fn stored(unit: &Unit, old: u64) -> u64 {
    match u64::from(unit.len) {
        WORD_BYTES => u64::from_le_bytes(unit.bytes), // by far the most frequent
        _ => unit.apply(old),
    }
}

impl StatePmem {
    /// A region that holds `image` durably. A partial last word is dropped.
    pub(crate) fn new(model: Model, image: &[u64]) -> Self {
        let cells = image.len() as u64 * WORD_BYTES / model.cell_bytes();
        Self {
            model,
            words: image.iter().map(|w| AtomicU64::new(*w)).collect(),
            open: zeroed((cells as usize).div_ceil(64)),
            seen: zeroed(image.len().div_ceil(64)),
            track: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    pub(crate) fn model(&self) -> Model {
        self.model
    }

    /// The durable content, or what is decided.
    pub(crate) fn words(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Relaxed)).collect()
    }

    // ---- the trace: time before the crash -------------------------------------

    /// Issues one event of the trace. Before a fence is the place to explore: it is
    /// what makes states impossible.
    pub(crate) fn apply(&self, event: &Event) {
        let mut inner = self.inner.lock();
        match event {
            Event::Store(unit) => self.issue(&mut inner, unit, false),
            Event::StoreNt(unit) => self.issue(&mut inner, unit, true),
            Event::Flush { line } => self.start_write_back(&mut inner, *line),
            Event::Fence(_) => self.make_durable(&mut inner),
            Event::Mark(_) => {}
            Event::Thread(number) => inner.thread = *number,
        }
    }

    fn issue(&self, inner: &mut Inner, unit: &Unit, nt: bool) {
        let word = (unit.off / WORD_BYTES) as usize;
        let (cell, slot) = self.cell_of(word);
        inner.stores += 1;
        let number = inner.stores;
        let pending = inner.pending.entry(cell).or_default();
        let last = pending.stores.iter().rev().find(|store| store.slot == slot);
        let old = last.map_or_else(|| self.words[word].load(Relaxed), |store| store.word);
        let word = stored(unit, old);
        // Where a crash left the word undecided, `old` may not be what it holds.
        if word != old || !pending.left.is_empty() {
            pending.stores.push(Store { number, slot, word });
            if self.set_open(cell, true) {
                inner.undo.push(Undo::Closed(cell));
            }
        }
        if nt {
            Self::in_flight(&mut inner.in_flight, inner.thread, cell, pending);
        }
        if pending.is_settled() {
            inner.pending.remove(&cell);
        }
    }

    fn in_flight(list: &mut Vec<(u32, u32)>, thread: u32, cell: u32, pending: &mut Pending) {
        let Some(Store { number, .. }) = pending.stores.last() else {
            return;
        };
        match pending.flushed.iter_mut().find(|(of, _)| *of == thread) {
            Some((_, up_to)) => *up_to = *number,
            None => {
                list.push((thread, cell));
                pending.flushed.push((thread, *number));
            }
        }
    }

    /// A flush covers a whole line, whatever the model.
    fn start_write_back(&self, inner: &mut Inner, line: u64) {
        let (first, _) = self.cell_of((line / WORD_BYTES) as usize);
        let cells = (LINE_BYTES / self.model.cell_bytes()) as u32;
        for cell in first..first + cells {
            if let Some(p) = inner.pending.get_mut(&cell) {
                Self::in_flight(&mut inner.in_flight, inner.thread, cell, p);
            }
        }
    }

    fn make_durable(&self, inner: &mut Inner) {
        let me = inner.thread;
        let is_mine = |flushed: &mut (u32, u32)| flushed.0 == me;
        for (_, cell) in inner.in_flight.extract_if(.., is_mine).collect::<Vec<_>>() {
            let Some(mut p) = inner.pending.remove(&cell) else {
                continue;
            };
            let mine = p.flushed.iter().position(|(thread, _)| *thread == me);
            let up_to = mine.map_or(0, |n| p.flushed.swap_remove(n).1);
            let flushed = p.stores.partition_point(|store| store.number <= up_to);
            for Store { slot, word, .. } in p.stores.drain(..flushed).collect::<Vec<_>>() {
                let at = self.word_of(cell, slot);
                self.put(inner, at, word, true);
                p.overwrite(at);
            }
            if !p.is_settled() {
                inner.pending.insert(cell, p);
            } else if self.set_open(cell, false) {
                inner.undo.push(Undo::Open(cell));
            }
        }
    }

    /// Issues a store and makes it durable at once: memory as a running program sees it.
    /// Returns whether that changed the memory.
    pub(crate) fn apply_now(&self, unit: &Unit) -> bool {
        let word = (unit.off / WORD_BYTES) as usize;
        let old = self.words[word].load(Relaxed);
        let new = stored(unit, old);
        self.put(&mut self.inner.lock(), word, new, true);
        new != old
    }

    /// Makes what the trace did so far the state that evaluations start from.
    pub(crate) fn keep(&self) {
        let mut inner = self.inner.lock();
        inner.floor = inner.undo.len();
    }

    /// Back to the image at the very start, with nothing pending.
    pub(crate) fn reset(&self) {
        let mut inner = self.inner.lock();
        self.undo_to(&mut inner, 0);
        *inner = Inner {
            undo: std::mem::take(&mut inner.undo),
            ..Inner::default()
        };
    }

    /// Cells with pending stores, in ascending order.
    pub(crate) fn pending_cells(&self) -> Vec<u32> {
        let inner = self.inner.lock();
        let mut cells: Vec<u32> = inner.pending.keys().copied().collect();
        cells.sort_unstable();
        cells
    }

    /// Hash of the durable content and of all pending stores: two points in time with
    /// the same key have the same crash states.
    pub(crate) fn point_key(&self) -> u64 {
        let inner = self.inner.lock();
        let of_cell = |(cell, p): (&u32, &Pending)| {
            let flushed = |h, (thread, up_to): &(u32, u64)| {
                let count = p.stores.partition_point(|store| store.number <= *up_to);
                mix(h, mix(u64::from(*thread), count as u64))
            };
            let seed = p.flushed.iter().fold(u64::from(*cell), flushed);
            let of_word = |h, word: u64, value: u64| mix(h, mix(word, value));
            let left = p.left.iter().fold(seed, |h, content| {
                let words = content.iter();
                words.fold(mix(h, 0), |h, (w, v)| of_word(h, *w as u64, *v))
            });
            let stores = p.stores.iter();
            stores.fold(left, |h, store| of_word(h, store.slot.into(), store.word))
        };
        let pending = inner.pending.iter().map(of_cell);
        mix(
            inner.hash,
            pending.fold(0, |a: u64, h: u64| a.wrapping_add(h)),
        )
    }

    // ---- evaluations: time after the crash ------------------------------------

    /// Starts a new walk over the choices: the next evaluation takes `path`, and
    /// `policy` beyond it. Choices out of range are clamped.
    pub(crate) fn start(&self, path: &[u32], policy: Policy) {
        self.inner.lock().choices.start(path, policy);
    }

    /// Whether the path has further alternatives; if so the next evaluation takes the
    /// next one. Call after [`rollback`](Self::rollback).
    pub(crate) fn next_path(&self) -> bool {
        self.inner.lock().choices.next_path()
    }

    /// Ends an evaluation: takes back everything since [`keep`](Self::keep). The path
    /// stays.
    pub(crate) fn rollback(&self) {
        let mut inner = self.inner.lock();
        let floor = inner.floor;
        self.undo_to(&mut inner, floor);
        inner.choices.end();
        inner.tail = None;
        inner.tail_chose = false;
        inner.failed = None;
        inner.record = None;
    }

    fn undo_to(&self, inner: &mut Inner, to: usize) {
        while inner.undo.len() > to {
            match inner.undo.pop() {
                Some(Undo::Word { word, old, hashed }) => {
                    let new = self.words[word as usize].swap(old, Relaxed);
                    if hashed {
                        inner.hash ^= mix(u64::from(word), old) ^ mix(u64::from(word), new);
                    }
                }
                Some(Undo::Open(cell)) => drop(self.set_open(cell, true)),
                Some(Undo::Closed(cell)) => drop(self.set_open(cell, false)),
                None => {}
            }
        }
    }

    /// The decisions taken since the evaluation began: cell and choice.
    pub(crate) fn decisions(&self) -> Vec<(u32, u32)> {
        self.inner.lock().choices.decisions()
    }

    /// From here to the end of the evaluation, `policy` decides, and what it decides is
    /// not part of the path: the walk does not branch on it.
    pub(crate) fn start_tail(&self, policy: Policy) {
        self.inner.lock().tail = Some(policy);
    }

    /// Whether the tail of this evaluation met undecided cells.
    pub(crate) fn tail_chose(&self) -> bool {
        self.inner.lock().tail_chose
    }

    /// Hash of the crash state as far as it is decided.
    pub(crate) fn hash(&self) -> u64 {
        self.inner.lock().hash
    }

    /// Starts recording what is stored through [`Pmem`].
    pub(crate) fn record(&self) {
        self.inner.lock().record = Some(Vec::new());
    }

    /// Ends recording.
    pub(crate) fn recorded(&self) -> Vec<Event> {
        self.inner.lock().record.take().unwrap_or_default()
    }

    /// Decides every cell at once by `policy`, without entering it in a path: the crash
    /// state as it would be without lazy choice.
    pub(crate) fn decide_all(&self, policy: Policy) {
        let cells = self.pending_cells();
        let mut inner = self.inner.lock();
        for cell in cells {
            let choices = self.contents_now(&inner, cell);
            let pick = pick(policy, cell, choices.len() as u32) as usize;
            self.settle(&mut inner, cell, &choices[pick]);
        }
    }

    /// Makes a crash permanent up to [`leave`](Self::leave): the cells of `decisions`
    /// hold their choice durably; the others hold what that crash left, still undecided
    /// whatever is stored over a part of it later.
    pub(crate) fn enter(&self, decisions: &[(u32, u32)]) -> Level {
        let mut inner = self.inner.lock();
        let level = Level {
            pending: inner.pending.clone(),
            in_flight: std::mem::take(&mut inner.in_flight),
            choices: std::mem::take(&mut inner.choices),
            floor: inner.floor,
        };
        for (cell, choice) in decisions {
            let mut contents = self.contents_now(&inner, *cell);
            let pick = (*choice as usize).min(contents.len() - 1);
            let content = contents.swap_remove(pick);
            self.settle(&mut inner, *cell, &content);
            inner.pending.remove(cell);
        }
        for (cell, p) in std::mem::take(&mut inner.pending) {
            let left = self.contents(&p, cell);
            let undecided = Pending {
                left,
                ..Pending::default()
            };
            inner.pending.insert(cell, undecided);
        }
        inner.floor = inner.undo.len();
        level
    }

    /// Undoes [`enter`](Self::enter) and everything since.
    pub(crate) fn leave(&self, level: Level) {
        let mut inner = self.inner.lock();
        self.undo_to(&mut inner, level.floor);
        inner.pending = level.pending;
        inner.in_flight = level.in_flight;
        inner.choices = level.choices;
        inner.floor = level.floor;
    }

    // ---- reads that are remembered --------------------------------------------

    /// Forgets what was read and remembers reads from now on (`true`), or stops.
    pub(crate) fn track_reads(&self, on: bool) {
        self.track.store(on, Relaxed);
        if on {
            self.seen.iter().for_each(|bits| bits.store(0, Relaxed));
        }
    }

    /// Whether the word at `off` was read since [`track_reads`](Self::track_reads).
    pub(crate) fn was_read(&self, off: u64) -> bool {
        let word = (off / WORD_BYTES) as usize;
        self.seen[word / 64].load(Relaxed) >> (word % 64) & 1 == 1
    }

    // ---- cells ------------------------------------------------------------------

    fn cell_of(&self, word: usize) -> (u32, u32) {
        let words = (self.model.cell_bytes() / WORD_BYTES) as usize;
        ((word / words) as u32, (word % words) as u32)
    }

    fn word_of(&self, cell: u32, slot: u32) -> usize {
        let words = (self.model.cell_bytes() / WORD_BYTES) as usize;
        cell as usize * words + slot as usize
    }

    fn is_open(&self, cell: u32) -> bool {
        self.open[cell as usize / 64].load(Relaxed) >> (cell % 64) & 1 == 1
    }

    /// Returns whether the bit changed.
    fn set_open(&self, cell: u32, open: bool) -> bool {
        let bits = &self.open[cell as usize / 64];
        let mask = 1 << (cell % 64);
        let old = if open {
            bits.fetch_or(mask, Relaxed)
        } else {
            bits.fetch_and(!mask, Relaxed)
        };
        (old & mask != 0) != open
    }

    /// Writes a word with undo. `hashed`: it belongs to the crash state, not to what
    /// recovery does to it.
    fn put(&self, inner: &mut Inner, word: usize, value: u64, hashed: bool) {
        let old = self.words[word].load(Relaxed);
        if old != value {
            self.words[word].store(value, Relaxed); // only the lock's holder stores
            let at = word as u32;
            inner.undo.push(Undo::Word {
                word: at,
                old,
                hashed,
            });
            if hashed {
                inner.hash ^= mix(word as u64, old) ^ mix(word as u64, value);
            }
        }
    }

    /// The distinct contents that a crash may leave in `cell`: for each, the words that
    /// differ from the durable content. The first is the durable content itself.
    fn contents(&self, pending: &Pending, cell: u32) -> Vec<Content> {
        let mut all = Vec::new();
        let durable = [Content::new()];
        let left = match &pending.left[..] {
            [] => &durable,
            left => left,
        };
        for content in left {
            let mut now = content.clone();
            push_new(&mut all, now.clone());
            for store in &pending.stores {
                let word = self.word_of(cell, store.slot);
                now.retain(|(w, _)| *w != word);
                if store.word != self.words[word].load(Relaxed) {
                    now.push((word, store.word));
                    now.sort_unstable();
                }
                push_new(&mut all, now.clone());
            }
        }
        all
    }

    /// [`contents`](Self::contents) of a cell that may have nothing to decide.
    fn contents_now(&self, inner: &Inner, cell: u32) -> Vec<Content> {
        let pending = inner.pending.get(&cell);
        pending.map_or_else(|| vec![Content::new()], |p| self.contents(p, cell))
    }

    fn settle(&self, inner: &mut Inner, cell: u32, content: &[(usize, u64)]) {
        for (word, value) in content {
            self.put(inner, *word, *value, true);
        }
        if self.set_open(cell, false) {
            inner.undo.push(Undo::Open(cell));
        }
    }

    fn decide(&self, inner: &mut Inner, cell: u32) {
        if !self.is_open(cell) {
            return;
        }
        let contents = self.contents_now(inner, cell);
        let choices = contents.len() as u32;
        let mut choice = 0;
        if let (Some(policy), true) = (inner.tail, choices > 1) {
            choice = pick(policy, cell, choices) as usize;
            inner.tail_chose = true;
        } else if choices > 1 {
            let by = |policy| pick(policy, cell, choices);
            choice = inner.choices.take(cell, choices, by);
        }
        self.settle(inner, cell, &contents[choice]);
    }

    /// Decides the undecided cells of the words `first..=last`.
    fn look_at(&self, first: usize, last: usize) {
        let (from, _) = self.cell_of(first);
        let (to, _) = self.cell_of(last);
        for (group, mask) in masks(from as usize, to as usize) {
            let mut open = self.open[group].load(Relaxed) & mask;
            while open != 0 {
                let cell = group as u32 * 64 + open.trailing_zeros();
                self.decide(&mut self.inner.lock(), cell);
                open &= open - 1;
            }
        }
        if self.track.load(Relaxed) {
            for (group, mask) in masks(first, last) {
                self.seen[group].fetch_or(mask, Relaxed);
            }
        }
    }

    fn in_range(&self, off: u64, len: u64) -> Result<(), MediumError> {
        match off.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(MediumError::OutOfRange { off, len }),
        }
    }

    /// Whether a cell that these bytes touch is undecided.
    fn has_open(&self, off: u64, len: usize) -> bool {
        let last = off + (len as u64).max(1) - 1;
        let [from, to] = [off, last].map(|at| self.cell_of((at / WORD_BYTES) as usize).0 as usize);
        masks(from, to).any(|(group, mask)| self.open[group].load(Relaxed) & mask != 0)
    }

    /// A store where all is decided and nothing is recorded: by far the most frequent, of
    /// whole blocks in engines that copy them.
    fn overwrite(&self, inner: &mut Inner, off: u64, bytes: &[u8]) {
        let head = bytes
            .len()
            .min(((WORD_BYTES - off % WORD_BYTES) % WORD_BYTES) as usize);
        let (head, rest) = bytes.split_at(head);
        let first = (off + head.len() as u64) / WORD_BYTES;
        let (whole, tail) = rest.as_chunks::<{ WORD_BYTES as usize }>();
        for (word, bytes) in (first as usize..).zip(whole) {
            self.put(inner, word, u64::from_le_bytes(*bytes), false);
        }
        let ends = [(off, head), (off + (bytes.len() - tail.len()) as u64, tail)];
        for unit in ends.into_iter().flat_map(|(off, bytes)| units(off, bytes)) {
            let word = (unit.off / WORD_BYTES) as usize;
            let old = self.words[word].load(Relaxed);
            self.put(inner, word, stored(&unit, old), false);
        }
    }

    /// A store by recovery or by what runs after it. An undecided cell that it covers
    /// wholly needs no choice: what a crash left there is not seen any more. (A second
    /// crash before the store is durable may still bring it back: [`Pending::left`].)
    /// Of one that it covers in part the rest is chosen here, so such stores branch.
    fn store_now(&self, off: u64, bytes: &[u8], nt: bool) {
        let mut inner = self.inner.lock();
        if let Err(e) = self.in_range(off, bytes.len() as u64) {
            inner.failed.get_or_insert(e);
            return;
        }
        if inner.record.is_none() && !self.has_open(off, bytes.len()) {
            return self.overwrite(&mut inner, off, bytes);
        }
        let end = off + bytes.len() as u64;
        for unit in units(off, bytes) {
            let word = (unit.off / WORD_BYTES) as usize;
            let (cell, _) = self.cell_of(word);
            if self.is_open(cell) {
                let start = u64::from(cell) * self.model.cell_bytes();
                let covered = off <= start && start + self.model.cell_bytes() <= end;
                if covered {
                    self.settle(&mut inner, cell, &[]);
                } else {
                    self.decide(&mut inner, cell);
                }
            }
            let old = self.words[word].load(Relaxed);
            self.put(&mut inner, word, stored(&unit, old), false);
            if let Some(trace) = &mut inner.record {
                let event = if nt { Event::StoreNt } else { Event::Store };
                trace.push(event(unit));
            }
        }
    }
}

impl CrashState for StatePmem {
    type Event = Event;
    type Level = Level;

    fn narrows(&self, event: &Event) -> bool {
        matches!(event, Event::Fence(_))
    }
    fn apply(&self, event: &Event) {
        self.apply(event);
    }
    fn keep(&self) {
        self.keep();
    }
    fn point_key(&self) -> u64 {
        self.point_key()
    }
    fn start(&self, path: &[u32], policy: Policy) {
        self.start(path, policy);
    }
    fn next_path(&self) -> bool {
        self.next_path()
    }
    fn rollback(&self) {
        self.rollback();
    }
    fn decisions(&self) -> Vec<(u32, u32)> {
        self.decisions()
    }
    fn tail_chose(&self) -> bool {
        self.tail_chose()
    }
    fn decide_all(&self, policy: Policy) {
        self.decide_all(policy);
    }
    fn hash(&self) -> u64 {
        self.hash()
    }
    fn enter(&self, decisions: &[(u32, u32)]) -> Level {
        self.enter(decisions)
    }
    fn leave(&self, level: Level) {
        self.leave(level);
    }

    /// All cells applied, every single one, every single one dropped, random ones.
    fn samples(&self, most: usize, _depth: usize, seed: u64) -> Vec<Policy> {
        let mut cells = self.pending_cells();
        // Keep a seeded choice of the cells, spread over all of them.
        cells.sort_by_key(|cell| mix(seed, u64::from(*cell)));
        cells.truncate(most);
        let single = cells
            .iter()
            .flat_map(|cell| [Policy::Only(*cell, *cell), Policy::AllBut(*cell, *cell)]);
        let random = (0..most as u64).map(|i| Policy::Random(mix(seed, i)));
        [Policy::All]
            .into_iter()
            .chain(single)
            .chain(random)
            .collect()
    }
}

impl Pmem for StatePmem {
    fn len(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let word = (off / WORD_BYTES) as usize;
        if word >= self.words.len() || !off.is_multiple_of(WORD_BYTES) {
            let len = WORD_BYTES;
            return Err(MediumError::OutOfRange { off, len });
        }
        self.look_at(word, word);
        Ok(self.words[word].load(Relaxed))
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.in_range(off, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        let mut word = (off / WORD_BYTES) as usize;
        let last = (off + buf.len() as u64 - 1) / WORD_BYTES;
        self.look_at(word, last as usize);
        let skip = (off % WORD_BYTES) as usize;
        let head = if skip == 0 {
            0
        } else {
            buf.len().min(8 - skip)
        };
        let (head, whole) = buf.split_at_mut(head);
        if !head.is_empty() {
            let bytes = self.words[word].load(Relaxed).to_le_bytes();
            head.copy_from_slice(&bytes[skip..skip + head.len()]);
            word += 1;
        }
        let mut chunks = whole.chunks_exact_mut(WORD_BYTES as usize);
        for (chunk, value) in chunks.by_ref().zip(&self.words[word..]) {
            chunk.copy_from_slice(&value.load(Relaxed).to_le_bytes());
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            let bytes = self.words[last as usize].load(Relaxed).to_le_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
        Ok(())
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.store_now(off, bytes, false);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store_now(off, bytes, true);
    }

    fn flush(&self, off: u64, len: u64) {
        if let Some(trace) = &mut self.inner.lock().record {
            let first = off / LINE_BYTES * LINE_BYTES;
            let end = off.saturating_add(len).min(self.len());
            let lines = (first..end).step_by(LINE_BYTES as usize);
            trace.extend(lines.map(|line| Event::Flush { line }));
        }
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let mut inner = self.inner.lock();
        if let Some(trace) = &mut inner.record {
            trace.push(Event::Fence(rule));
        }
        inner.failed.map_or(Ok(()), Err)
    }
}
