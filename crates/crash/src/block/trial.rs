//! One script on one system and schedule: run, recorded, compared with the model, crashed.

use super::Schedule;
use super::device::StateDevice;
use super::judge::{BlockJudge, Data, Past, Promise, audit};
use super::soft::{Floors, Known};
use crate::choice::mix;
use crate::handles::{FileId, Handles};
use crate::id::Spot;
use crate::life::SECOND_LIFE;
use crate::oracle::{Demand, Expected, panic_text, resolve, same_without_links};
use crate::report::Options;
use crate::sabotage::{Sabotage, hit};
use crate::system::{BlockSystem, Failure, Subject};
use crate::trial::time_of;
use crate::walk::{CrashState, Limits, Tally, Walk, revisit};
use crate::world::{Inode, World, model_of};
use hashbrown::HashMap;
use medium::block::{BlockEvent, EventId, Geometry, MemoryDevice, RecordingDevice};
use oracle::script::{Op, Script, State, run_op};
use oracle::{ModelFs, Snapshot};
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{Errno, FileSystem, ManualClock, RenameFlags, Still, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

/// What scripts start from: an image, and the model in the same state.
pub(crate) struct Start {
    live: Arc<StateDevice>,
    crashed: Arc<StateDevice>,
    /// What a killed server did to `crashed`.
    pub(super) before: Vec<BlockEvent>,
    pub(super) model: ModelFs,
    clock: Arc<ManualClock>,
    /// When it is opened.
    opened_at: Timestamp,
    pub(super) scratch: Vec<u64>,
    /// A crash came before: leaks and link counts that are too high may be there.
    recovered: bool,
}

impl Start {
    fn new(system: &BlockSystem, setup: &Script) -> Result<Self, String> {
        let block_bytes = system.block_bytes();
        let device = Arc::new(MemoryDevice::new(Geometry {
            block_bytes,
            blocks: system.image_bytes() / u64::from(block_bytes),
        }));
        system.format(&*device)?;
        let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
        let still = system.open_still(device.clone(), clock.clone(), 1024)?;
        let model = model_of(system.times(), &*still.fs, clock.clone());
        let model = model.map_err(|e| format!("the new file system: {e}"))?;
        for op in &setup.ops {
            let ours = run_op(&*still.fs, &mut State::default(), op);
            let theirs = run_op(&model, &mut State::default(), op);
            if (ours, theirs) != (Ok(()), Ok(())) {
                return Err(format!("setup: {op}: gives {ours:?}, the model {theirs:?}"));
            }
        }
        still.fs.sync().map_err(|e| format!("setup: sync: {e}"))?;
        drop(still);
        let scratch = system.scratch(device.clone())?;
        let state = || Arc::new(state_of(system, &device.bytes(), &scratch));
        Ok(Self {
            live: state(),
            crashed: state(),
            before: Vec::new(),
            model,
            clock,
            // Not at the moment at which the setup was: no two mounts are at the same one.
            opened_at: Timestamp(1_000_000_000),
            scratch,
            recovered: false,
        })
    }

    /// What the end of a life has left: `image` for who opens it now, and for who opens it
    /// after a power cut some state of `durable` after `before`. `None`: recovered, it is what
    /// the model cannot be.
    pub(super) fn of_end(
        system: &BlockSystem,
        image: &[u8],
        (durable, before): (&[u8], Vec<BlockEvent>),
        scratch: &[u64],
    ) -> Result<Option<Self>, String> {
        let clock = Arc::new(ManualClock::new(SECOND_LIFE, 0));
        let device = Arc::new(MemoryDevice::from_bytes(
            system.block_bytes(),
            image.to_vec(),
        ));
        let still = system.open_still(device, clock.clone(), 1024)?;
        let Ok(model) = model_of(system.times(), &*still.fs, clock.clone()) else {
            return Ok(None);
        };
        let state = |image| Arc::new(state_of(system, image, scratch));
        Ok(Some(Self {
            live: state(image),
            crashed: state(durable),
            before,
            model,
            clock,
            opened_at: SECOND_LIFE,
            scratch: scratch.to_vec(),
            recovered: true,
        }))
    }

    fn time_of(&self, op: usize) -> Timestamp {
        Timestamp(self.opened_at.0 + time_of(op).0)
    }
}

fn state_of(system: &BlockSystem, image: &[u8], scratch: &[u64]) -> StateDevice {
    StateDevice::new(image, system.block_bytes(), system.atomic_bytes(), scratch)
}

/// An operation with the write-back that followed it; the last is the sync at the end.
pub(super) struct Phase {
    /// Where in the trace it ends.
    end: usize,
    /// The newest state that it can have brought about.
    newest: usize,
    /// What was durable before it, and after its return.
    before: Floors,
    after: Floors,
}

/// Draws blocks to write back.
struct Drawn(fastrand::Rng);

impl Drawn {
    fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Each script has its own order.
    fn of(schedule: Schedule, script: &Script) -> Option<Self> {
        match schedule {
            Schedule::Any(seed) => {
                let text = xxh3_64(script.to_string().as_bytes());
                Some(Self::new(mix(seed.into(), text)))
            }
            _ => None,
        }
    }

    fn write(&mut self, still: &Still) -> Result<usize, String> {
        (still.write_drawn)(&mut |below| self.0.usize(..below))
    }

    fn write_a_few(&mut self, still: &Still) -> Result<(), String> {
        for _ in 0..self.0.usize(..3) {
            self.write(still)?;
        }
        Ok(())
    }

    fn write_all(&mut self, still: &Still) -> Result<(), String> {
        while self.write(still)? > 0 {}
        Ok(())
    }
}

/// A script as it ran.
pub(super) struct Run<'a> {
    pub(super) system: &'a BlockSystem,
    pub(super) start: &'a Start,
    promise: Promise,
    pub(super) trace: Vec<BlockEvent>,
    /// Where in the trace the opening ends, which is judged by itself after the end of another
    /// life; else 0.
    pub(super) opened: usize,
    pub(super) phases: Vec<Phase>,
    /// `past[i]` is the state before operation `i`.
    past: Vec<Past>,
    pub(super) full: u64,
    /// Whose handles callers had.
    pub(super) handles: Handles,
}

type Recorded = Arc<RecordingDevice<Arc<StateDevice>>>;

impl<'a> Run<'a> {
    pub(super) fn record(
        system: &'a BlockSystem,
        start: &'a Start,
        schedule: Schedule,
        script: &Script,
    ) -> Result<Self, Failure> {
        let done = Cell::new(0);
        let run = || Self::side_by_side(system, start, schedule, script, &done);
        let result = catch_unwind(AssertUnwindSafe(run));
        let result = result.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
        result.map_err(|what| Failure {
            op: done.get(),
            spot: Spot::Live,
            what,
        })
    }

    fn side_by_side(
        system: &'a BlockSystem,
        start: &'a Start,
        schedule: Schedule,
        script: &Script,
        done: &Cell<usize>,
    ) -> Result<Self, String> {
        start.live.reset();
        let device = Arc::new(RecordingDevice::new(start.live.clone()));
        start.clock.set(start.opened_at);
        let still = system.open_still(device.clone(), start.clock.clone(), schedule.wave())?;
        let model = start.model.fork();
        let (mut on_fs, mut on_model) = (State::default(), State::default());
        let mut run = Self {
            system,
            start,
            promise: Promise::of(&still.fs.guarantees()),
            trace: Vec::new(),
            opened: 0,
            phases: Vec::new(),
            past: Vec::new(),
            full: 0,
            handles: Handles::default(),
        };
        if start.recovered {
            run.take_trace(&device);
            run.opened = run.trace.len();
        }
        run.remember(&*still.fs, &model, &on_model, start.opened_at)?;
        let mut floors = Floors::default();
        let mut drawn = Drawn::of(schedule, script);
        for (i, op) in script.ops.iter().enumerate() {
            done.set(i);
            start.clock.set(start.time_of(i));
            let ours = run_op(&*still.fs, &mut on_fs, op);
            if refused(op, ours) {
                run.full += u64::from(ours == Err(Errno::NOSPC));
            } else {
                let theirs = run_op(&model, &mut on_model, op);
                if ours != theirs {
                    return Err(format!("{op}: gives {ours:?}, the model {theirs:?}"));
                }
            }
            match &mut drawn {
                Some(drawn) => drawn.write_a_few(&still)?,
                None if schedule == Schedule::Each => drop((still.write_some)()?),
                None => {}
            }
            run.remember(&*still.fs, &model, &on_model, start.time_of(i))?;
            let mut after = floors.clone();
            if ours.is_ok() {
                run.raise(&mut after, op, i + 1);
            }
            run.close(
                &device,
                i + 1,
                std::mem::replace(&mut floors, after.clone()),
                after,
            );
        }
        done.set(script.ops.len());
        run.finish(&still, schedule, &device, floors, &mut on_fs)?;
        Ok(run)
    }

    /// Writes everything back; then closes what is still open, and writes that back too.
    fn finish(
        &mut self,
        still: &Still,
        schedule: Schedule,
        device: &Recorded,
        floors: Floors,
        on_fs: &mut State,
    ) -> Result<(), String> {
        let is_open = on_fs.open_inodes().next().is_some();
        let floors = self.write_back(still, schedule, device, floors)?;
        if is_open {
            // A file without a name that is open must not be gone yet.
            self.clean(device, Some(Severity::Leak), "after a sync with open files")?;
            on_fs.close_all(&*still.fs);
            self.write_back(still, schedule, device, floors)?;
        }
        let left = self.promise.worst().filter(|_| self.start.recovered);
        self.clean(device, left, "after a sync, without a crash")
    }

    /// Demands that the checker finds nothing worse than `worst`.
    fn clean(&self, device: &Recorded, worst: Option<Severity>, when: &str) -> Result<(), String> {
        let report = self.system.check(&**device);
        match report.findings.iter().find(|f| Some(f.severity) > worst) {
            Some(first) => Err(format!("checker {when}: {first}")),
            None => Ok(()),
        }
    }

    /// Writes everything back; returns what is durable then.
    fn write_back(
        &mut self,
        still: &Still,
        schedule: Schedule,
        device: &Recorded,
        floors: Floors,
    ) -> Result<Floors, String> {
        match schedule {
            Schedule::Sync | Schedule::Each => {}
            Schedule::Ones | Schedule::Twos | Schedule::Waves => while (still.write_some)()? > 0 {},
            Schedule::Any(seed) => Drawn::new(seed.into()).write_all(still)?,
        }
        still.fs.sync().map_err(|e| format!("sync: {e}"))?;
        let newest = self.past.len() - 1;
        let after = Floors {
            all: newest,
            data: newest,
            ..floors.clone()
        };
        self.close(device, newest, floors, after.clone());
        Ok(after)
    }

    fn close(&mut self, device: &Recorded, newest: usize, before: Floors, after: Floors) {
        self.take_trace(device);
        self.phases.push(Phase {
            end: self.trace.len(),
            newest,
            before,
            after,
        });
    }

    /// Takes what was recorded, numbered after the writes of a killed server.
    fn take_trace(&mut self, device: &Recorded) {
        let first = self.start.before.len() as EventId; // more than there are writes or flushes
        self.trace
            .extend(device.take().into_iter().map(|mut event| {
                match &mut event {
                    BlockEvent::Issued { id, .. }
                    | BlockEvent::Completed { id, .. }
                    | BlockEvent::FlushBegun { id, .. }
                    | BlockEvent::FlushEnded { id, .. } => *id += first,
                    BlockEvent::Discarded { .. } | BlockEvent::Mark(_) => {}
                }
                event
            }));
    }

    /// Notes the present state, after comparing it with the model's.
    fn remember(
        &mut self,
        fs: &dyn FileSystem,
        model: &ModelFs,
        on_model: &State,
        at: Timestamp,
    ) -> Result<(), String> {
        let expected = Expected::of(model, on_model)?;
        let seen = Snapshot::take(fs).map_err(|e| format!("cannot be read: {e}"))?;
        let demand = Demand {
            states: std::slice::from_ref(&expected),
            times_atomic: true,
            now: Timestamp(0),
        };
        let may_differ = self.start.recovered && self.promise == Promise::Soft;
        let is_same = may_differ && same_without_links(&seen, &expected.snapshot);
        if !is_same && let Some(wrong) = demand.violated_by(&seen) {
            return Err(format!("without a crash: {wrong}"));
        }
        audit(fs, "without a crash")?;
        let paths = expected.snapshot.iter().zip(&expected.inos);
        let files = paths.map(|((path, ..), file)| Ok((resolve(fs, path)?, FileId(*file))));
        let files: Result<_, Errno> = files.collect();
        let known = Known {
            world: World::read(fs)?,
            files: files.map_err(|e| format!("without a crash: {e}"))?,
            at,
        };
        for (ino, file) in &known.files {
            let handle = (*ino, known.world.nodes[ino].attr.generation);
            self.handles.note(handle, *file, self.past.len())?;
        }
        self.past.push(Past { expected, known });
        Ok(())
    }

    /// What a sync of one kind or the other has made durable.
    fn raise(&self, floors: &mut Floors, op: &Op, state: usize) {
        let (path, data_only) = match op {
            Op::Sync => {
                (floors.all, floors.data) = (state, state);
                return;
            }
            Op::Fsync { path, data_only } => (path, *data_only),
            Op::Fsyncdir { path } => (path, false),
            _ => return,
        };
        let past = &self.past[state].expected;
        let path = format!("/{}", path.trim_matches('/'));
        let at = past
            .snapshot
            .iter()
            .position(|(p, ..)| p == path.as_bytes());
        let Some(file) = at.map(|at| FileId(past.inos[at])) else {
            return;
        };
        floors.files.insert(file, state);
        if !data_only {
            floors.times.insert(file, state);
        }
        if self.promise != Promise::Soft {
            // Ordered: what came before the file's last change is there as well.
            let last = self.last_change(file, state, !data_only);
            floors.all = floors.all.max(last);
        }
    }

    /// The last state, of those up to `state`, that the file is not in as in the one before;
    /// without `times`, in more than its times. Data count where they are logged.
    fn last_change(&self, file: FileId, state: usize, times: bool) -> usize {
        let at = |state: usize| {
            let known = &self.past[state].known;
            let (ino, _) = known.files.iter().find(|(_, other)| **other == file)?;
            Some((known.world.nodes.get(ino)?, known.world.names.get(ino)))
        };
        let logged = self.promise == Promise::Journal(Data::Whole);
        let same = |now: &Inode, then: &Inode| match times {
            true => now == then,
            false => now.same_but_times(then) && (!logged || now.data == then.data),
        };
        let changed = |state: &usize| match (at(*state), at(*state - 1)) {
            (Some((now, names)), Some((then, names_then))) => {
                !same(now, then) || names != names_then
            }
            (now, then) => now.is_some() != then.is_some(),
        };
        (1..=state).rev().find(changed).unwrap_or(0)
    }

    pub(super) fn device(&self) -> &Arc<StateDevice> {
        let Start {
            crashed, before, ..
        } = self.start;
        crashed.reset();
        before.iter().for_each(|event| crashed.apply(event));
        crashed
    }

    fn events(&self, phase: usize) -> Range<usize> {
        let start = phase.checked_sub(1);
        let start = start.map_or(self.opened, |before| self.phases[before].end);
        start..self.phases[phase].end
    }

    /// Ends of flushes, and of writes that need none.
    pub(super) fn moments(&self) -> usize {
        let is_moment = |e: &&BlockEvent| {
            matches!(
                e,
                BlockEvent::FlushEnded { ok: true, .. } | BlockEvent::Issued { durable: true, .. }
            )
        };
        self.trace.iter().filter(is_moment).count()
    }

    pub(super) fn judge(&self, phase: usize, returned: bool) -> BlockJudge<'_> {
        let Phase {
            newest,
            before,
            after,
            ..
        } = &self.phases[phase];
        BlockJudge {
            system: self.system,
            promise: self.promise,
            past: &self.past,
            floors: if returned { after } else { before },
            newest: *newest,
            known: (&self.handles, phase + usize::from(returned)),
            judged: HashMap::new(),
        }
    }

    pub(super) fn crash(&self, limits: Limits, tally: &mut Tally) -> Result<(), Failure> {
        let device = self.device();
        self.trace[..self.opened]
            .iter()
            .for_each(|e| device.apply(e));
        (0..self.phases.len()).try_for_each(|phase| self.crash_in(phase, device, limits, tally))
    }

    fn crash_in(
        &self,
        phase: usize,
        device: &Arc<StateDevice>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let is_write = |e: &BlockEvent| matches!(e, BlockEvent::Issued { .. });
        let last_write = self.trace.iter().rposition(is_write);
        let moments = self.moments();
        let mut walk = Walk {
            medium: device,
            judge: &mut self.judge(phase, false),
            limits,
            tally,
            crashes: Vec::new(),
        };
        for i in self.events(phase) {
            let event = &self.trace[i];
            if device.narrows(event) && limits.takes(i, moments) {
                walk.point(i).map_err(|found| Failure {
                    op: phase,
                    spot: Spot::In(found.place),
                    what: found.what,
                })?;
            }
            if last_write != Some(i) || !hit(Sabotage::LastWriteDropped) {
                device.apply(event);
            }
        }
        let Phase { before, after, .. } = &self.phases[phase];
        let skipped = !limits.takes(self.events(phase).end, moments);
        if before == after || skipped || hit(Sabotage::FinalStateSkipped) {
            return Ok(()); // nothing more is demanded than before the next event
        }
        let mut judge = self.judge(phase, true);
        walk.judge = &mut judge;
        walk.point(self.events(phase).end).map_err(|found| Failure {
            op: phase,
            spot: Spot::End(found.place),
            what: found.what,
        })
    }

    /// The operation in which an event is.
    pub(super) fn phase_of(&self, event: usize) -> usize {
        let is_later = |phase: &Phase| event < phase.end;
        let last = self.phases.len().saturating_sub(1);
        self.phases.iter().position(is_later).unwrap_or(last)
    }

    /// Visits one failure again; returns what is wrong there now.
    pub(super) fn again(&self, phase: usize, spot: &Spot) -> Result<Option<String>, String> {
        if phase >= self.phases.len() {
            return Err(format!("the script has no operation {phase}"));
        }
        let (place, returned) = match spot {
            Spot::Live | Spot::Store(_) | Spot::Again(_) => return Ok(None),
            Spot::In(place) => (place, false),
            Spot::End(place) => (place, true),
        };
        let events = self.events(phase);
        let mut place = place.clone();
        let first = place.crashes.first_mut().ok_or("the id names no crash")?;
        if returned {
            // The end of the operation, wherever changed code has moved it.
            first.event = events.end;
        }
        if !(events.start..=events.end).contains(&first.event) {
            let event = first.event;
            return Err(format!(
                "event {event} is not in operation {phase} any more"
            ));
        }
        let mut judge = self.judge(phase, returned);
        revisit(self.device(), &self.trace, &place, &mut judge).map(|verdict| verdict.wrong)
    }
}

/// Whether an operation was refused as the model would not: the test image is small, and
/// names are exchanged only where operations are atomic.
fn refused(op: &Op, result: vfs::Result<()>) -> bool {
    let exchange = matches!(op, Op::Rename { flags, .. } if *flags == RenameFlags::EXCHANGE);
    result == Err(Errno::NOSPC) || (exchange && result == Err(Errno::INVAL))
}

impl Subject for BlockSystem {
    type Setting = Schedule;
    type Start = Start;

    fn name(&self) -> String {
        self.id()
    }

    fn settings(options: &Options) -> Vec<Schedule> {
        options.schedules.clone()
    }

    fn start(&self, _: Schedule, setup: &Script) -> Result<Start, String> {
        Start::new(self, setup)
    }

    /// Visits the crash states of the whole script: what an operation does comes at the end.
    fn trial(
        &self,
        start: &Start,
        schedule: Schedule,
        script: &Script,
        _: Range<usize>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let run = Run::record(self, start, schedule, script)?;
        tally.full += run.full;
        run.crash(limits, tally)?;
        run.live_again(schedule, limits, tally)
    }

    fn again(
        &self,
        start: &Start,
        schedule: Schedule,
        script: &Script,
        op: usize,
        spot: &Spot,
    ) -> Result<Option<Failure>, String> {
        let run = match Run::record(self, start, schedule, script) {
            Err(failure) => return Ok(Some(failure)),
            Ok(run) => run,
        };
        let what = match spot {
            Spot::Again(again) => run.life_again(schedule, again)?,
            _ => run.again(op, spot)?,
        };
        let spot = spot.clone();
        Ok(what.map(|what| Failure { op, spot, what }))
    }
}
