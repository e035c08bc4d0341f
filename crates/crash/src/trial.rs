//! One script on one system: run, recorded, compared with the model, and crashed.

mod life;

use crate::handles::{FileId, Handles};
use crate::id::Spot;
use crate::life::SECOND_LIFE;
use crate::oracle::{
    Demand, Expected, FsJudge, handles_of, oldest_allowed, panic_text, same_content, sound,
};
use crate::report::Options;
use crate::sabotage::{Sabotage, hit};
use crate::state::{Model, StatePmem};
use crate::system::{Failure, PmemSystem, Subject};
use crate::walk::{Found, Limits, Tally, Walk, revisit};
use crate::world::model_of;
use medium::recording::Event;
use medium::{MemoryPmem, Pmem, Recording, Unit, WORD_BYTES};
use oracle::script::{Script, State, run_op};
use oracle::{ModelFs, ModelOptions, Snapshot};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vfs::{Atime, Errno, FileSystem, Guarantees, ManualClock, Timestamp};

/// What scripts start from: an image, and the model in the same state. One thread's own:
/// its regions and its clock are used by one run at a time.
pub(crate) struct Start {
    /// Where scripts run, and where their crash states are visited. Each run begins by
    /// undoing what the one before it did.
    live: Arc<StatePmem>,
    crashed: Arc<StatePmem>,
    /// What a killed server did to `crashed`.
    before: Vec<Event>,
    model: ModelFs,
    clock: Arc<ManualClock>,
    /// When it is opened.
    opened_at: Timestamp,
}

impl Start {
    /// A file system on which `setup` was run.
    pub(crate) fn new(
        system: &PmemSystem,
        persistence: Model,
        setup: &Script,
    ) -> Result<Self, String> {
        let pm = Arc::new(MemoryPmem::new(system.image_bytes()));
        system.format(&*pm)?;
        let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
        let model = ModelFs::new(ModelOptions {
            clock: clock.clone(),
            atime: Atime::Never,
            times: system.times(),
            ..ModelOptions::default()
        });
        let fs = system.open(pm.clone(), clock.clone())?;
        for op in &setup.ops {
            let ours = run_op(&*fs, &mut State::default(), op);
            let theirs = run_op(&model, &mut State::default(), op);
            if (ours, theirs) != (Ok(()), Ok(())) {
                return Err(format!("setup: {op}: gives {ours:?}, the model {theirs:?}"));
            }
        }
        drop(fs);
        let words = words_of(&*pm)?;
        Ok(Self {
            live: Arc::new(StatePmem::new(persistence, &words)),
            crashed: Arc::new(StatePmem::new(persistence, &words)),
            before: Vec::new(),
            model,
            clock,
            opened_at: Timestamp(0),
        })
    }

    /// What the end of a life leaves: `words` for who opens it now, and for who opens it after a
    /// power cut some state of `durable` after `before`.
    pub(crate) fn of_end(
        system: &PmemSystem,
        persistence: Model,
        words: &[u64],
        durable: &[u64],
        before: Vec<Event>,
    ) -> Result<Self, String> {
        let clock = Arc::new(ManualClock::new(SECOND_LIFE, 0));
        let live = Arc::new(StatePmem::new(persistence, words));
        let fs = system.open(live.clone(), clock.clone())?;
        let model = model_of(system.times(), &*fs, clock.clone())?;
        Ok(Self {
            live,
            crashed: Arc::new(StatePmem::new(persistence, durable)),
            before,
            model,
            clock,
            opened_at: SECOND_LIFE,
        })
    }

    fn time_of(&self, op: usize) -> Timestamp {
        Timestamp(self.opened_at.0 + time_of(op).0)
    }
}

impl Subject for PmemSystem {
    type Setting = Model;
    type Start = Start;

    fn name(&self) -> String {
        self.id()
    }

    fn settings(options: &Options) -> Vec<Model> {
        vec![options.model]
    }

    fn start(&self, model: Model, setup: &Script) -> Result<Start, String> {
        Start::new(self, model, setup)
    }

    fn trial(
        &self,
        start: &Start,
        _: Model,
        script: &Script,
        ops: Range<usize>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let run = Run::record(self, start, script)?;
        tally.full += run.full;
        let moments = ops.len();
        for op in ops.clone().filter(|op| limits.takes(*op, moments)) {
            tally.looked += run.switches_once(op)?;
        }
        run.crash(ops.clone(), limits, tally)?;
        run.live_again(ops, limits, tally)
    }

    fn again(
        &self,
        start: &Start,
        _: Model,
        script: &Script,
        op: usize,
        spot: &Spot,
    ) -> Result<Option<Failure>, String> {
        let run = match Run::record(self, start, script) {
            Err(failure) => return Ok(Some(failure)),
            Ok(run) => run,
        };
        let what = match spot {
            Spot::Again(again) => run.life_again(op, again)?,
            _ => run.again(op, spot)?,
        };
        let spot = spot.clone();
        Ok(what.map(|what| Failure { op, spot, what }))
    }
}

fn words_of(pm: &dyn Pmem) -> Result<Vec<u64>, String> {
    let words = (0..pm.len() / WORD_BYTES).map(|i| pm.load(i * WORD_BYTES));
    words.collect::<Result<_, _>>().map_err(|e| e.to_string())
}

/// A script as it ran.
pub(crate) struct Run<'a> {
    system: &'a PmemSystem,
    start: &'a Start,
    guarantees: Guarantees,
    pub trace: Vec<Event>,
    /// Where in the trace the opening ends.
    opened: usize,
    /// Where in the trace each operation ends.
    ends: Vec<usize>,
    /// `expected[i]` is the state before operation `i`.
    pub expected: Vec<Expected>,
    /// Whose handles callers had.
    pub handles: Handles,
    /// Operations that found no space.
    pub full: u64,
}

/// The clock stands still during an operation.
pub(crate) fn time_of(op: usize) -> Timestamp {
    Timestamp(1_000_000_000_000 + op as i64 * 1_000_000_000)
}

impl<'a> Run<'a> {
    /// Runs `script` on the system and on the model, side by side.
    pub(crate) fn record(
        system: &'a PmemSystem,
        start: &'a Start,
        script: &Script,
    ) -> Result<Self, Failure> {
        let done = std::cell::Cell::new(0);
        let run = || Self::side_by_side(system, start, script, &done);
        let result = catch_unwind(AssertUnwindSafe(run));
        let result = result.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
        result.map_err(|what| Failure {
            op: done.get(),
            spot: Spot::Live,
            what,
        })
    }

    fn side_by_side(
        system: &'a PmemSystem,
        start: &'a Start,
        script: &Script,
        done: &std::cell::Cell<usize>,
    ) -> Result<Self, String> {
        start.live.reset();
        let pm = Arc::new(Recording::new(start.live.clone()));
        let clock = &start.clock;
        clock.set(start.opened_at);
        let fs = system.open(pm.clone(), clock.clone())?;
        let model = start.model.fork();
        let (mut on_fs, mut on_model) = (State::default(), State::default());
        let mut run = Self {
            system,
            start,
            guarantees: fs.guarantees(),
            trace: pm.take(),
            opened: 0,
            ends: Vec::new(),
            expected: Vec::new(),
            handles: Handles::default(),
            full: 0,
        };
        run.opened = run.trace.len();
        run.compare((&*fs, &on_fs), (&model, &on_model), &pm)?;
        for (i, op) in script.ops.iter().enumerate() {
            done.set(i);
            clock.set(start.time_of(i));
            let ours = run_op(&*fs, &mut on_fs, op);
            run.trace.append(&mut pm.take());
            run.ends.push(run.trace.len());
            if ours == Err(Errno::NOSPC) {
                // The test image is small; the model has room and must not do it.
                run.full += 1;
            } else {
                let theirs = run_op(&model, &mut on_model, op);
                if ours != theirs {
                    return Err(format!("{op}: gives {ours:?}, the model {theirs:?}"));
                }
            }
            run.compare((&*fs, &on_fs), (&model, &on_model), &pm)?;
        }
        Ok(run)
    }

    /// Compares the state after an operation, and sees that looking stored nothing.
    fn compare(
        &mut self,
        (fs, on_fs): (&dyn FileSystem, &State),
        (model, on_model): (&ModelFs, &State),
        pm: &Recording<Arc<StatePmem>>,
    ) -> Result<(), String> {
        let mut expected = Expected::of(model, on_model)?;
        let seen = Snapshot::take(fs).map_err(|e| format!("cannot be read: {e}"))?;
        let states = std::slice::from_ref(&expected);
        let demand = Demand {
            states,
            times_atomic: true,
            now: Timestamp(0),
        };
        if let Some(wrong) = demand.violated_by(&seen) {
            return Err(format!("without a crash: {wrong}"));
        }
        sound(self.system, fs, pm, "without a crash")?;
        if let Some(event) = pm.take().first() {
            return Err(format!("reading alone changed the medium: {event:?}"));
        }
        expected.handles = handles_of(fs, &seen)?;
        let named = expected.handles.iter().copied().zip(expected.inos.clone());
        let open = on_fs.open_inodes().zip(on_model.open_inodes());
        let open = open.map(|(ours, theirs)| {
            let attr = fs.getattr(&on_fs.cx, ours);
            let attr = attr.map_err(|e| format!("stat of an open file: {e}"))?;
            Ok(((ours, attr.generation), theirs))
        });
        let open: Vec<_> = open.collect::<Result<_, String>>()?;
        for (handle, file) in named.chain(open) {
            self.handles
                .note(handle, FileId(file), self.expected.len())?;
        }
        self.expected.push(expected);
        Ok(())
    }

    /// The region for crash states, as it was before the script.
    fn memory(&self) -> &Arc<StatePmem> {
        let Start {
            crashed, before, ..
        } = self.start;
        crashed.reset();
        before.iter().for_each(|event| crashed.apply(event));
        crashed
    }

    /// The events of an operation.
    fn events(&self, op: usize) -> Range<usize> {
        let start = op.checked_sub(1).map_or(self.opened, |op| self.ends[op]);
        start..self.ends[op]
    }

    fn judge(&self, op: usize, returned: bool) -> Result<FsJudge<'_>, String> {
        let oldest = oldest_allowed(&self.guarantees, op, returned)?;
        Ok(FsJudge {
            system: self.system,
            demand: Demand {
                states: &self.expected[oldest..op + 2],
                // What returned has its own times, however they got there.
                times_atomic: self.guarantees.times_atomic || returned,
                now: self.start.time_of(op),
            },
            known: (&self.handles, op + usize::from(returned)),
        })
    }

    /// Visits the crash states of the operations in `ops`.
    pub(crate) fn crash(
        &self,
        ops: Range<usize>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let pm = self.memory();
        self.trace[..self.opened].iter().for_each(|e| pm.apply(e));
        let moments = ops.len();
        for op in 0..ops.end {
            if ops.contains(&op) && limits.takes(op, moments) {
                self.crash_in(op, pm, limits, tally)?;
            } else {
                self.trace[self.events(op)].iter().for_each(|e| pm.apply(e));
            }
        }
        Ok(())
    }

    fn crash_in(
        &self,
        op: usize,
        pm: &Arc<StatePmem>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let cannot = |what| Failure {
            op,
            spot: Spot::Live,
            what,
        };
        let mut walk = Walk {
            medium: pm,
            judge: &mut self.judge(op, false).map_err(cannot)?,
            limits,
            tally,
            crashes: Vec::new(),
        };
        let in_op = self.walk_through(op, &mut walk);
        in_op.map_err(|found| Failure {
            op,
            spot: Spot::In(found.place),
            what: found.what,
        })?;
        if hit(Sabotage::FinalStateSkipped) {
            return Ok(());
        }
        let mut judge = self.judge(op, true).map_err(cannot)?;
        walk.judge = &mut judge;
        let after = walk.point(self.events(op).end);
        after.map_err(|found| Failure {
            op,
            spot: Spot::End(found.place),
            what: found.what,
        })
    }

    fn walk_through(&self, op: usize, walk: &mut Walk<'_, StatePmem>) -> Result<(), Found> {
        let is_store = |i: &usize| matches!(self.trace[*i], Event::Store(_) | Event::StoreNt(_));
        let last_store = self.events(op).rev().find(is_store);
        for i in self.events(op) {
            if matches!(self.trace[i], Event::Fence(_)) {
                walk.point(i)?;
            }
            let dropped = last_store == Some(i) && hit(Sabotage::LastStoreDropped);
            if !dropped {
                walk.medium.apply(&self.trace[i]);
            }
        }
        Ok(())
    }

    /// Replays each store of `op` in program order; what callers would see must go from
    /// old to new in one step (the "bpfsatomic" check of the BPFS paper, 3.6.5). It is
    /// looked at again only when a store changes what was last read (a store of what is
    /// there already shows nothing new). Returns how often it was looked at.
    pub(crate) fn switches_once(&self, op: usize) -> Result<u64, Failure> {
        let fail = |event: usize| {
            move |what: String| Failure {
                op,
                spot: Spot::Store(event),
                what: format!("in program order: {what}"),
            }
        };
        let pm = self.memory();
        let events = self.events(op);
        for (_, unit) in self.stores(0..events.start) {
            pm.apply_now(&unit);
        }
        let mut switch = Switch {
            old: &self.expected[op].snapshot,
            new: &self.expected[op + 1].snapshot,
            done: false,
        };
        let mut looked = 1;
        let first = self.look(pm).and_then(|seen| switch.starts(&seen));
        first.map_err(fail(events.start))?;
        for (i, unit) in self.stores(events.clone()) {
            let changed = pm.apply_now(&unit);
            if changed && pm.was_read(unit.off) {
                looked += 1;
                let step = self.look(pm).and_then(|seen| switch.step(&seen));
                step.map_err(fail(i))?;
            }
        }
        switch.ends().map_err(fail(events.end))?;
        Ok(looked)
    }

    fn stores(&self, events: Range<usize>) -> impl Iterator<Item = (usize, Unit)> {
        let numbered = events.clone().zip(&self.trace[events]);
        numbered.filter_map(|(i, event)| match event {
            Event::Store(unit) | Event::StoreNt(unit) => Some((i, *unit)),
            _ => None,
        })
    }

    /// What one sees who opens the memory as it is, noting what is read.
    fn look(&self, pm: &Arc<StatePmem>) -> Result<Snapshot, String> {
        pm.keep();
        pm.track_reads(true);
        let read = || {
            let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
            let fs = self.system.open(pm.clone(), clock);
            let fs = fs.map_err(|e| format!("does not open: {e}"))?;
            Snapshot::take(&*fs).map_err(|e| format!("cannot be read: {e}"))
        };
        let seen = catch_unwind(AssertUnwindSafe(read));
        pm.track_reads(false);
        pm.rollback();
        seen.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))))
    }

    /// Visits one failure again; returns what is wrong there now.
    pub(crate) fn again(&self, op: usize, spot: &Spot) -> Result<Option<String>, String> {
        if op >= self.ends.len() {
            return Err(format!("the script has no operation {op}"));
        }
        let (place, returned) = match spot {
            Spot::Live | Spot::Again(_) => return Ok(None),
            Spot::Store(_) => return Ok(self.switches_once(op).err().map(|f| f.what)),
            Spot::In(place) => (place, false),
            Spot::End(place) => (place, true),
        };
        let events = self.events(op);
        let mut place = place.clone();
        let first = place.crashes.first_mut().ok_or("the id names no crash")?;
        if returned {
            // The end of the operation, wherever changed code has moved it.
            first.event = events.end;
        }
        if !(events.start..=events.end).contains(&first.event) {
            let event = first.event;
            return Err(format!("event {event} is not in operation {op} any more"));
        }
        let mut judge = self.judge(op, returned)?;
        revisit(self.memory(), &self.trace, &place, &mut judge).map(|verdict| verdict.wrong)
    }
}

/// The one step from old to new. Times apart.
struct Switch<'a> {
    old: &'a Snapshot,
    new: &'a Snapshot,
    done: bool,
}

impl Switch<'_> {
    fn starts(&mut self, seen: &Snapshot) -> Result<(), String> {
        match same_content(seen, self.old) {
            true => Ok(()),
            false => Err(format!("differs: {}", self.old.diff(seen).join("; "))),
        }
    }

    fn step(&mut self, seen: &Snapshot) -> Result<(), String> {
        let now = if self.done { self.new } else { self.old };
        if same_content(seen, now) {
            return Ok(());
        }
        if !self.done && same_content(seen, self.new) {
            self.done = true;
            return Ok(());
        }
        if same_content(seen, self.old) {
            return Err("old again after it was new".to_string());
        }
        let (old, new) = (self.old.diff(seen), self.new.diff(seen));
        let (old, new) = (old.join("; "), new.join("; "));
        Err(format!(
            "neither old nor new: from old: {old}; from new: {new}"
        ))
    }

    fn ends(&self) -> Result<(), String> {
        match self.done || same_content(self.old, self.new) {
            true => Ok(()),
            false => Err("the new state never shows".to_string()),
        }
    }
}
