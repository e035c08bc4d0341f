//! A persistent memory in a crash state whose cells are decided when they are first read.
//!
//! # Guarantees
//!
//! A [`StatePmem`] holds the durable content of a region. For each *cell* (a word or a line, by
//! [`PersistModel`]) it holds the stores that were issued but are not durable yet. A crash leaves
//! each cell with some prefix of those stores, cells independent of each other.
//! The choice for a cell is made when it is first read after the crash. A depth-first walk over
//! the choices ([`StatePmem::next_path`]) thus visits every crash state that a reader can
//! distinguish, and no two that it cannot:
//!
//! - S1. A deterministic reader behaves alike in two states that agree on all cells it has read.
//! - S2. The walk branches on exactly those cells.
//!
//! Every change of an evaluation is appended to an undo log. A state costs what it touches,
//! never a copy of the image.

mod access;
mod switch;

use super::{Medium, Order, Replay};
use crate::choice::{Choices, Policy, mix};
use crate::report::Options;
use crate::setting::Setting;
use crate::system::PmemSystem;
use crate::walk::CrashState;
use access::{stored, zeroed};
use hashbrown::HashMap;
use medium::recording::Event;
use medium::{LINE_BYTES, MediumError, MemoryPmem, PersistModel, Pmem, Rule, Unit, WORD_BYTES};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A possible content of a cell: the words that differ from its durable content, in order.
type Content = Vec<(usize, u64)>;

/// The undecided part of one cell, and its stores that are not durable.
#[derive(Debug, Clone, Default)]
struct Pending {
    /// The contents of which an earlier crash left one, the durable content first. Empty: the
    /// durable content.
    left: Vec<Content>,
    stores: Vec<PendingStore>,
    /// By thread: the last store that its next fence makes durable, with all before it.
    flushed: Vec<(u32, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct PendingStore {
    /// Number among all stores.
    number: u64,
    /// Word within the cell.
    slot: u32,
    /// The whole word after the store.
    word: u64,
}

impl Pending {
    fn is_decided(&self) -> bool {
        self.stores.is_empty() && self.left.len() <= 1
    }

    /// Removes `word`, which was made durable, from what a crash left.
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
    /// The word held `old` before. `hashed`: the change is part of the hash.
    Word { word: u32, old: u64, hashed: bool },
    /// The cell was undecided.
    Open(u32),
    /// The cell had nothing to decide.
    Closed(u32),
}

#[derive(Default)]
struct Inner {
    pending: HashMap<u32, Pending>,
    /// Pairs of a thread and a cell with an entry of it in `flushed`.
    in_flight: Vec<(u32, u32)>,
    /// The thread of the current events.
    thread: u32,
    /// Number of stores so far.
    stores: u64,
    choices: Choices,
    /// The policy of the tail of an evaluation, outside the path.
    tail: Option<Policy>,
    /// Whether `tail` decided a cell.
    tail_chose: bool,
    undo: Vec<Undo>,
    /// Begin of an evaluation's part of the undo log.
    floor: usize,
    /// Hash of durable content and choices, without stores of recovery.
    hash: u64,
    record: Option<Vec<Event>>,
    failed: Option<MediumError>,
}

/// Persistent memory in an undecided crash state.
pub(crate) struct StatePmem {
    model: PersistModel,
    words: Box<[AtomicU64]>,
    /// One bit per cell: whether it has pending stores and is undecided.
    open: Box<[AtomicU64]>,
    /// One bit per word: whether it was read. Maintained only while `track` is set.
    seen: Box<[AtomicU64]>,
    track: AtomicBool,
    inner: Mutex<Inner>,
}

/// The state that [`StatePmem::enter`] saved.
pub(crate) struct Level {
    pending: HashMap<u32, Pending>,
    in_flight: Vec<(u32, u32)>,
    choices: Choices,
    floor: usize,
}

/// The choice of `policy`. The last choice takes all stores.
fn pick(policy: Policy, cell: u32, choices: u32) -> u32 {
    policy.pick(cell, choices - 1, choices, &[])
}

impl StatePmem {
    /// A region that holds `image` durably. A partial last word is dropped.
    pub(crate) fn new(model: PersistModel, image: &[u64]) -> Self {
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

    // ---- the trace: time before the crash -------------------------------------

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
            pending.stores.push(PendingStore { number, slot, word });
            if self.set_open(cell, true) {
                inner.undo.push(Undo::Closed(cell));
            }
        }
        if nt {
            Self::in_flight(&mut inner.in_flight, inner.thread, cell, pending);
        }
        if pending.is_decided() {
            inner.pending.remove(&cell);
        }
    }

    fn in_flight(list: &mut Vec<(u32, u32)>, thread: u32, cell: u32, pending: &mut Pending) {
        let Some(PendingStore { number, .. }) = pending.stores.last() else {
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
            for PendingStore { slot, word, .. } in p.stores.drain(..flushed).collect::<Vec<_>>() {
                let at = self.word_of(cell, slot);
                self.put(inner, at, word, true);
                p.overwrite(at);
            }
            if !p.is_decided() {
                inner.pending.insert(cell, p);
            } else if self.set_open(cell, false) {
                inner.undo.push(Undo::Open(cell));
            }
        }
    }

    /// Issues a store and makes it durable at once, as a running program sees memory.
    /// Returns whether that changed the memory.
    pub(crate) fn apply_now(&self, unit: &Unit) -> bool {
        let word = (unit.off / WORD_BYTES) as usize;
        let old = self.words[word].load(Relaxed);
        let new = stored(unit, old);
        self.put(&mut self.inner.lock(), word, new, true);
        new != old
    }

    /// Cells with pending stores, in ascending order.
    pub(crate) fn pending_cells(&self) -> Vec<u32> {
        let inner = self.inner.lock();
        let mut cells: Vec<u32> = inner.pending.keys().copied().collect();
        cells.sort_unstable();
        cells
    }

    // ---- evaluations: time after the crash ------------------------------------

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

    /// Starts recording what is stored through [`Pmem`].
    pub(crate) fn start_record(&self) {
        self.inner.lock().record = Some(Vec::new());
    }

    /// Ends recording.
    pub(crate) fn recorded(&self) -> Vec<Event> {
        self.inner.lock().record.take().unwrap_or_default()
    }

    // ---- reads that are tracked -----------------------------------------------

    /// Clears the set of read words and tracks reads from now on (`true`), or stops (`false`).
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
}

impl CrashState for StatePmem {
    type Event = Event;
    type Level = Level;

    fn narrows(&self, event: &Event) -> bool {
        matches!(event, Event::Fence(_))
    }

    /// Issues one event of the trace. Crashes are explored before fences, since a fence makes
    /// states impossible.
    fn apply(&self, event: &Event) {
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

    /// Makes the present state the one that evaluations start from.
    fn keep(&self) {
        let mut inner = self.inner.lock();
        inner.floor = inner.undo.len();
    }

    /// Hash of the durable content and of all pending stores: two points in time with
    /// the same key have the same crash states.
    fn point_key(&self) -> u64 {
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

    /// Starts a new walk over the choices. The next evaluation takes `path`, and
    /// `policy` beyond it. Choices out of range are clamped.
    fn start(&self, path: &[u32], policy: Policy) {
        self.inner.lock().choices.start(path, policy);
    }

    /// Moves on to the next path, which the next evaluation takes. Returns whether there is one.
    /// Call after [`rollback`](Self::rollback).
    fn next_path(&self) -> bool {
        self.inner.lock().choices.next_path()
    }

    /// Ends an evaluation: undoes all changes since [`keep`](Self::keep). The path stays.
    fn rollback(&self) {
        let mut inner = self.inner.lock();
        let floor = inner.floor;
        self.undo_to(&mut inner, floor);
        inner.choices.end();
        inner.tail = None;
        inner.tail_chose = false;
        inner.failed = None;
        inner.record = None;
    }

    /// The decisions taken since the evaluation began: cell and choice.
    fn decisions(&self) -> Vec<(u32, u32)> {
        self.inner.lock().choices.decisions()
    }

    /// Whether the tail of this evaluation read undecided cells.
    fn tail_chose(&self) -> bool {
        self.inner.lock().tail_chose
    }

    /// Decides every cell at once by `policy`, outside the path: the crash state without lazy
    /// choice.
    fn decide_all(&self, policy: Policy) {
        let cells = self.pending_cells();
        let mut inner = self.inner.lock();
        for cell in cells {
            let choices = self.contents_now(&inner, cell);
            let pick = pick(policy, cell, choices.len() as u32) as usize;
            self.decide_as(&mut inner, cell, &choices[pick]);
        }
    }

    /// Hash of the decided part of the crash state.
    fn hash(&self) -> u64 {
        self.inner.lock().hash
    }

    /// Makes a crash permanent up to [`leave`](Self::leave). The cells of `decisions` hold their
    /// choice durably. The other cells stay undecided, even where a part of them is overwritten
    /// later.
    fn enter(&self, decisions: &[(u32, u32)]) -> Level {
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
            self.decide_as(&mut inner, *cell, &content);
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
    fn leave(&self, level: Level) {
        let mut inner = self.inner.lock();
        self.undo_to(&mut inner, level.floor);
        inner.pending = level.pending;
        inner.in_flight = level.in_flight;
        inner.choices = level.choices;
        inner.floor = level.floor;
    }

    /// All cells applied, each cell alone applied, each cell alone dropped, random subsets.
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

/// The thread of the events after a kill. Fences of the next server do not cover flushes of the
/// killed one.
const NEXT_SERVER: Event = Event::Thread(1);

impl Medium for StatePmem {
    type Door = dyn Pmem;
    type System = PmemSystem;
    /// Words of the memory.
    type Image = Vec<u64>;
    type Recorder = Self;

    fn settings(system: &PmemSystem, options: &Options) -> Vec<Setting> {
        let model = Some(options.model);
        if !system.has_cache() {
            let schedule = None;
            return vec![Setting { model, schedule }];
        }
        let schedules = options.schedules.iter().copied().map(Some);
        schedules
            .map(|schedule| Setting { model, schedule })
            .collect()
    }

    fn made(
        system: &PmemSystem,
        make: &mut dyn FnMut(Arc<dyn Pmem>) -> Result<(), String>,
    ) -> Result<Vec<u64>, String> {
        let pm = Arc::new(MemoryPmem::new(system.image_bytes()));
        make(pm.clone())?;
        let words = (0..pm.len() / WORD_BYTES).map(|n| pm.load(n * WORD_BYTES));
        words.collect::<Result<_, _>>().map_err(|e| e.to_string())
    }

    fn image(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Relaxed)).collect()
    }

    fn of_image(image: &Vec<u64>, setting: Setting) -> Result<Self, String> {
        let model = setting.model;
        let model = model.ok_or_else(|| format!("`{setting}` names no persistence model"))?;
        Ok(Self::new(model, image))
    }

    fn reset(&self) {
        let mut inner = self.inner.lock();
        self.undo_to(&mut inner, 0);
        *inner = Inner {
            undo: std::mem::take(&mut inner.undo),
            ..Inner::default()
        };
    }

    fn cut(&self, policy: Policy) {
        self.decide_all(policy);
    }

    fn record(self: &Arc<Self>) -> Arc<Self> {
        self.start_record();
        self.clone()
    }

    fn door(recorder: &Arc<Self>) -> Arc<dyn Pmem> {
        recorder.clone()
    }

    fn take(recorder: &Self) -> Vec<Event> {
        let trace = recorder.recorded();
        recorder.start_record();
        trace
    }

    fn stop(recorder: &Self) -> Vec<Event> {
        recorder.recorded()
    }

    fn is_change(event: &Event) -> bool {
        matches!(event, Event::Store(_) | Event::StoreNt(_))
    }

    fn is_moment(event: &Event) -> bool {
        matches!(event, Event::Fence(_))
    }

    fn order(trace: &[Event], at: usize) -> Option<Order> {
        match &trace[at] {
            Event::Fence(rule) => Some(Order {
                call: "fence",
                rule: *rule,
            }),
            Event::Store(_)
            | Event::StoreNt(_)
            | Event::Flush { .. }
            | Event::Mark(_)
            | Event::Thread(_) => None,
        }
    }

    /// A mount does not read the contents of files. The medium makes visible but not yet
    /// durable data durable when it opens the file.
    fn after_kill(trace: &[Event], only_data: bool) -> Vec<Event> {
        let mut events = vec![NEXT_SERVER];
        if only_data {
            let lines = trace.iter().filter_map(|event| match event {
                Event::Store(unit) | Event::StoreNt(unit) => Some(unit.off / LINE_BYTES),
                Event::Flush { .. } | Event::Fence(_) | Event::Mark(_) | Event::Thread(_) => None,
            });
            let flush = |line| Event::Flush {
                line: line * LINE_BYTES,
            };
            events.extend(lines.map(flush));
            events.push(Event::Fence(Rule::DurableBeforeUse));
        }
        events
    }

    fn start_tail(&self, policy: Policy) {
        self.inner.lock().tail = Some(policy);
    }

    fn switches_once(self: &Arc<Self>, replay: &Replay<'_, Self>) -> Result<u64, (usize, String)> {
        replay.in_program_order(self)
    }
}
