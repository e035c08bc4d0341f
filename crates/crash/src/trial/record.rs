//! Runs a script on the system and on the model, side by side, and keeps the trace.

use super::judge::{WAVE, audit};
use super::{Phase, Run, Start};
use crate::choice::mix;
use crate::handles::{FileId, Handles};
use crate::id::Spot;
use crate::life::SECOND_LIFE;
use crate::media::Medium;
use crate::panics::caught;
use crate::past::{Expected, Known, Past, handles_of, same_without_links};
use crate::promise::{Floors, Kind, Ordered, Promise};
use crate::schedule::Schedule;
use crate::setting::Setting;
use crate::system::Failure;
use crate::world::{World, model_of};
use oracle::ModelFs;
use oracle::script::{Op, Order, Script, State, run_op};
use oracle::snapshot::Snapshot;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{Errno, ManualClock, RenameFlags, Sets, Still, System, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

/// Number of the boot in which a new file system is set up.
const SETUP_BOOT: u128 = 1;

impl<M: Medium> Start<M> {
    /// A new file system on which `setup` has run.
    pub(crate) fn new(
        system: &M::System,
        setting: Setting,
        setup: &Script,
    ) -> Result<Self, String> {
        let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
        let mut made = None;
        let image = M::made(system, &mut |door| {
            system.format(&door)?;
            let still = system.open_in_boot(door, clock.clone(), WAVE, SETUP_BOOT)?;
            let model = model_of(system.times(), &*still.fs, clock.clone());
            let model = model.map_err(|e| format!("the new file system: {e}"))?;
            for op in &setup.ops {
                let ours = run_op(&*still.fs, &mut State::default(), op);
                let theirs = run_op(&model, &mut State::default(), op);
                if (ours, theirs) != (Ok(()), Ok(())) {
                    return Err(format!("setup: {op}: gives {ours:?}, the model {theirs:?}"));
                }
            }
            if setting.schedule.is_some() {
                still.fs.sync().map_err(|e| format!("setup: sync: {e}"))?;
            }
            made = Some(model);
            Ok(())
        })?;
        let model = made.ok_or("the medium made no file system")?;
        let state = || M::of_image(&image, setting).map(Arc::new);
        Ok(Self {
            live: state()?,
            crashed: state()?,
            setting,
            before: Vec::new(),
            model,
            clock,
            // Later than the setup: no two mounts have the same time.
            opened_at: Timestamp(1_000_000_000),
            boot: SETUP_BOOT + 1,
            recovered: false,
        })
    }

    /// The state that the end of a life leaves: `image` if it is opened now; after a power cut,
    /// some state of `durable` after `before`. It is opened in `boot`. `None`: the model cannot take
    /// the recovered state.
    pub(super) fn of_end(
        system: &M::System,
        (setting, boot): (Setting, u128),
        image: &M::Image,
        (durable, before): (&M::Image, Vec<M::Event>),
    ) -> Result<Option<Self>, String> {
        let clock = Arc::new(ManualClock::new(SECOND_LIFE, 0));
        let live = Arc::new(M::of_image(image, setting)?);
        let recorder = live.record();
        let still = system.open_in_boot(M::door(&recorder), clock.clone(), WAVE, boot)?;
        let promise = Promise::of(&still.fs.guarantees());
        let model = match model_of(system.times(), &*still.fs, clock.clone()) {
            Ok(model) => model,
            Err(_) if promise.kind == Kind::Soft => return Ok(None),
            Err(e) => return Err(e),
        };
        drop(still);
        Ok(Some(Self {
            live,
            crashed: Arc::new(M::of_image(durable, setting)?),
            setting,
            before,
            model,
            clock,
            opened_at: SECOND_LIFE,
            boot,
            recovered: true,
        }))
    }
}

/// Random choice of blocks to write back.
pub(crate) struct Drawn(fastrand::Rng);

impl Drawn {
    fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// The choice for a schedule, by its seed alone.
    pub(crate) fn of_seed(schedule: Schedule) -> Option<Self> {
        match schedule {
            Schedule::Any(seed) => Some(Self::new(seed.into())),
            Schedule::Sync
            | Schedule::Each
            | Schedule::Ones
            | Schedule::Twos
            | Schedule::Waves
            | Schedule::Every { .. } => None,
        }
    }

    /// The choice for a schedule. Each script has its own order.
    fn of(schedule: Option<Schedule>, script: &Script) -> Option<Self> {
        match schedule {
            Some(Schedule::Any(seed)) => {
                let text = xxh3_64(script.to_string().as_bytes());
                Some(Self::new(mix(seed.into(), text)))
            }
            _ => None,
        }
    }

    fn write(&mut self, still: &Still) -> Result<usize, String> {
        (still.write_drawn)(&mut |below| self.0.usize(..below))
    }

    pub(crate) fn write_a_few(&mut self, still: &Still) -> Result<(), String> {
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

/// The file system and the model while a script runs on both.
struct Live<M: Medium> {
    recorder: Arc<M::Recorder>,
    still: Still,
    on_fs: State,
    model: ModelFs,
    on_model: State,
    drawn: Option<Drawn>,
    /// Whether the script has groups or barriers.
    is_ordered: bool,
    /// Whether barriers concern the whole script.
    has_epochs: bool,
}

impl<'a, M: Medium> Run<'a, M> {
    pub(super) fn record(
        system: &'a M::System,
        start: &'a Start<M>,
        script: &Script,
    ) -> Result<Self, Failure> {
        let done = Cell::new(0);
        let run = caught(|| Self::side_by_side(system, start, script, &done));
        run.map_err(|what| Failure {
            op: done.get(),
            spot: Spot::Live,
            what,
        })
    }

    fn side_by_side(
        system: &'a M::System,
        start: &'a Start<M>,
        script: &Script,
        done: &Cell<usize>,
    ) -> Result<Self, String> {
        start.live.reset();
        let recorder = start.live.record();
        start.clock.set(start.opened_at);
        let schedule = start.setting.schedule;
        let wave = schedule.map_or(WAVE, Schedule::wave);
        let door = M::door(&recorder);
        let still = system.open_in_boot(door, start.clock.clone(), wave, start.boot)?;
        let mut run = Self {
            system,
            start,
            promise: Promise::of(&still.fs.guarantees()),
            trace: Vec::new(),
            opened: 0,
            phases: Vec::new(),
            past: Vec::new(),
            written: BTreeSet::new(),
            barriers: Vec::new(),
            ordered: None,
            full: 0,
            handles: Handles::default(),
        };
        let mut live = Live {
            recorder,
            still,
            on_fs: State::default(),
            model: start.model.fork(),
            on_model: State::default(),
            drawn: Drawn::of(schedule, script),
            is_ordered: false,
            has_epochs: false,
        };
        if start.recovered || !run.has_cache() {
            run.take_trace(&live);
            run.opened = run.trace.len();
        }
        let order = Order::of(script);
        live.is_ordered = order.is_some();
        run.remember(&live, start.opened_at)?;
        run.join_a_set(&mut live, script)?;
        let mut floors = Floors::default();
        for (i, op) in script.ops.iter().enumerate() {
            done.set(i);
            start.clock.set(start.time_of(i));
            let before = floors.clone();
            run.call(&mut live, i, op, &mut floors)?;
            if let Some(order) = &order {
                floors.ops.extend(order.synced(i));
            }
            run.close(&live, i + 1, before, floors.clone());
        }
        if schedule.is_some() {
            done.set(script.ops.len());
            run.finish(&mut live, floors)?;
        }
        run.ordered = Ordered::new(script, order, &run.past);
        Ok(run)
    }

    /// Has the calls of a script with barriers and without groups join one set.
    fn join_a_set(&mut self, live: &mut Live<M>, script: &Script) -> Result<(), String> {
        if !live.is_ordered {
            return Ok(());
        }
        let has_groups = script.ops.iter().any(Op::is_of_groups);
        live.has_epochs = !has_groups;
        match live.still.fs.change_order() {
            Some(order) if !has_groups => live.on_fs.cx.sets = Sets::new([order.create()]),
            Some(_) => {}
            None if self.promise.is_atomic_at_return() => {}
            None => return Err("groups, barrier: this file system keeps no order".into()),
        }
        Ok(())
    }

    /// Runs a call on both, and the write-back after it.
    fn call(
        &mut self,
        live: &mut Live<M>,
        i: usize,
        op: &Op,
        floors: &mut Floors,
    ) -> Result<(), String> {
        let ours = run_op(&*live.still.fs, &mut live.on_fs, op);
        if self.is_refusal(op, ours) {
            self.full += u64::from(ours == Err(Errno::NOSPC));
        } else {
            let theirs = run_op(&live.model, &mut live.on_model, op);
            if ours != theirs {
                return Err(format!("{op}: gives {ours:?}, the model {theirs:?}"));
            }
        }
        let writes = match (&mut live.drawn, self.start.setting.schedule) {
            (Some(drawn), _) => drawn.write_a_few(&live.still).map(|()| true)?,
            (None, Some(schedule)) if schedule.writes_after(i) => {
                (live.still.write_some)().map(|_| true)?
            }
            (None, _) => op.synced().is_some(),
        };
        if writes || self.promise.at_return {
            self.written.insert(i + 1);
        }
        if *op == Op::Barrier && live.has_epochs {
            self.barriers.push(i + 1);
        }
        self.remember(live, self.start.time_of(i))?;
        if ours.is_ok() || self.promise.at_return {
            self.promise.raise(floors, op, &self.past, i + 1);
        }
        Ok(())
    }

    /// Whether an operation was refused that the model accepts: the test image is small, and names
    /// are exchanged only where operations are atomic.
    fn is_refusal(&self, op: &Op, result: vfs::Result<()>) -> bool {
        let exchange = matches!(op, Op::Rename { flags, .. } if *flags == RenameFlags::EXCHANGE);
        let may_refuse = exchange && self.promise.kind == Kind::Soft;
        result == Err(Errno::NOSPC) || (may_refuse && result == Err(Errno::INVAL))
    }

    /// Writes everything back; then closes the open files, and writes that back too.
    fn finish(&mut self, live: &mut Live<M>, floors: Floors) -> Result<(), String> {
        let is_open = live.on_fs.open_inodes().next().is_some();
        let floors = self.write_back(live, floors)?;
        if is_open {
            // An open file without a name must not be freed yet.
            self.clean(live, Some(Severity::Leak), "after a sync with open files")?;
            live.on_fs.close_all(&*live.still.fs);
            self.write_back(live, floors)?;
        }
        // The cache may have dropped what it wrote, so that this reads the medium.
        let expected = Expected::of(&live.model, &live.on_model)?;
        self.look(live, &expected)?;
        let left = self.promise.worst().filter(|_| self.start.recovered);
        self.clean(live, left, "after a sync, without a crash")
    }

    /// Demands that callers see the expected state. Returns what they see.
    fn look(&self, live: &Live<M>, expected: &Expected) -> Result<Snapshot, String> {
        let seen = Snapshot::take(&*live.still.fs).map_err(|e| format!("cannot be read: {e}"))?;
        match self.differs(&seen, expected) {
            Some(wrong) => Err(format!("without a crash: {wrong}")),
            None => Ok(seen),
        }
    }

    /// Demands that the checker finds nothing worse than `worst`.
    fn clean(&self, live: &Live<M>, worst: Option<Severity>, when: &str) -> Result<(), String> {
        let report = self.system.check(&M::door(&live.recorder));
        match report.findings.iter().find(|f| Some(f.severity) > worst) {
            Some(first) => Err(format!("checker {when}: {first}")),
            None => Ok(()),
        }
    }

    /// Writes everything back. Returns the floors after that.
    fn write_back(&mut self, live: &Live<M>, floors: Floors) -> Result<Floors, String> {
        let still = &live.still;
        match self.start.setting.schedule {
            None | Some(Schedule::Sync | Schedule::Each | Schedule::Every { .. }) => {}
            Some(Schedule::Ones | Schedule::Twos | Schedule::Waves) => {
                while (still.write_some)()? > 0 {}
            }
            Some(Schedule::Any(seed)) => Drawn::new(seed.into()).write_all(still)?,
        }
        still.fs.sync().map_err(|e| format!("sync: {e}"))?;
        let newest = self.past.len() - 1;
        self.written.insert(newest);
        let after = Floors {
            all: newest,
            data: newest,
            ..floors.clone()
        };
        self.close(live, newest, floors, after.clone());
        Ok(after)
    }

    fn close(&mut self, live: &Live<M>, newest: usize, before: Floors, after: Floors) {
        self.take_trace(live);
        self.phases.push(Phase {
            end: self.trace.len(),
            newest,
            before,
            after,
        });
    }

    /// Takes the recorded events, numbered after those of a killed server.
    fn take_trace(&mut self, live: &Live<M>) {
        let mut events = M::take(&live.recorder);
        M::renumber(&mut events, &self.start.before);
        self.trace.append(&mut events);
    }

    /// Compares the present state with the model's, and keeps it.
    fn remember(&mut self, live: &Live<M>, at: Timestamp) -> Result<(), String> {
        let fs = &*live.still.fs;
        self.take_trace(live);
        let before = self.trace.len();
        let mut expected = Expected::of(&live.model, &live.on_model)?;
        let seen = self.look(live, &expected)?;
        audit(fs, "without a crash")?;
        if !self.has_cache() {
            self.clean(live, None, "without a crash")?;
            self.take_trace(live);
            if self.trace.len() > before {
                return Err("reading alone changed the medium".to_string());
            }
        }
        expected.handles = handles_of(fs, &seen)?;
        let mut known = Known {
            at,
            ..Known::default()
        };
        if self.promise.needs_inodes() || live.is_ordered {
            known.world = World::read(fs)?;
        }
        for (handle, file) in expected.handles.iter().zip(&expected.inos) {
            known.files.insert(handle.0, FileId(*file));
            self.handles.note(*handle, FileId(*file), self.past.len())?;
        }
        let open = live.on_fs.open_inodes().zip(live.on_model.open_inodes());
        for (ours, theirs) in open {
            let attr = fs.getattr(&live.on_fs.cx, ours);
            let attr = attr.map_err(|e| format!("stat of an open file: {e}"))?;
            let handle = (ours, attr.generation);
            self.handles.note(handle, FileId(theirs), self.past.len())?;
        }
        self.past.push(Past { expected, known });
        Ok(())
    }

    /// The differences of the state that callers see from the model. After a crash, soft updates
    /// may have left link counts that are too high.
    fn differs(&self, seen: &Snapshot, expected: &Expected) -> Option<String> {
        let may_differ = self.start.recovered && self.promise.kind == Kind::Soft;
        if may_differ && same_without_links(seen, &expected.snapshot) {
            return None;
        }
        expected.compared_with(seen)
    }
}
