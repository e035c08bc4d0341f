//! A run of calls over a recorded medium, and its crash states.

use super::{Bounds, Calls, Seen, Spot};
use crate::choice::Policy;
use crate::life::SECOND_LIFE;
use crate::media::Medium;
use crate::panics::caught;
use crate::schedule::Schedule;
use crate::setting::Setting;
use crate::trial::Drawn;
use crate::walk::{CrashAt, CrashPath, Judge, Limits, Tail, Tally, Verdict, Walk, revisit};
use std::cell::Cell;
use std::sync::Arc;
use vfs::{ManualClock, System, Timestamp};

/// The calls, run over a recorded medium.
pub(super) struct Recording<'a, M: Medium> {
    system: &'a M::System,
    schedule: Schedule,
    medium: Arc<M>,
    trace: Vec<M::Event>,
    /// By call: the number of events before its return. The last one is the write-back at the end.
    ends: Vec<usize>,
    /// The calls whose return is a promise.
    promises: Vec<bool>,
}

/// Most blocks of a wave.
const WAVE: usize = 1024;

/// Boots of the machine: for the preparation, for the calls, and after the power cut.
const BOOTS: [u128; 3] = [1, 2, 3];

impl<'a, M: Medium> Recording<'a, M> {
    /// Runs calls in a setting, which has `schedule`.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn new(
        system: &'a M::System,
        calls: &mut dyn Calls,
        schedule: Schedule,
        setting: Setting,
    ) -> Result<Self, String> {
        let clock = Arc::new(ManualClock::new(Timestamp(0), 1000));
        let image = M::made(system, &mut |door| {
            system.format(&door)?;
            let still = system.open_in_boot(door, clock.clone(), WAVE, BOOTS[0])?;
            calls.prepare(&*still.fs)?;
            still.fs.sync().map_err(|e| format!("sync: {e}"))
        })?;
        let live = Arc::new(M::of_image(&image, setting)?);
        let recorder = live.record();
        let door = M::door(&recorder);
        let still = system.open_in_boot(door, clock, schedule.wave(), BOOTS[1])?;
        calls.begin(&*still.fs)?;
        let mut drawn = Drawn::of_seed(schedule);
        let (mut trace, mut ends) = (Vec::new(), Vec::new());
        for n in 0..calls.len() {
            calls.call(&*still.fs, n)?;
            match &mut drawn {
                Some(drawn) => drawn.write_a_few(&still)?,
                None if schedule.writes_after(n) => drop((still.write_some)()?),
                None => {}
            }
            trace.append(&mut M::take(&recorder));
            ends.push(trace.len());
        }
        if matches!(schedule, Schedule::Ones | Schedule::Twos | Schedule::Waves) {
            while (still.write_some)()? > 0 {}
        }
        still.fs.sync().map_err(|e| format!("sync: {e}"))?;
        trace.append(&mut M::take(&recorder));
        ends.push(trace.len());
        trace.shrink_to_fit();
        Ok(Self {
            system,
            schedule,
            medium: Arc::new(M::of_image(&image, setting)?),
            trace,
            promises: (0..calls.len()).map(|n| calls.is_promise(n)).collect(),
            ends,
        })
    }

    /// Bytes of the trace and of the medium.
    pub(super) fn memory_bytes(&self) -> u64 {
        let trace = self.trace.len() * size_of::<M::Event>();
        trace as u64 + self.system.image_bytes()
    }

    /// Number of points in time.
    pub(super) fn points(&self) -> usize {
        let moments = self.trace.iter().filter(|e| M::is_moment(e));
        moments.count() + self.promises.iter().filter(|is| **is).count()
    }

    /// Visits the crash states, in the order of the trace, until `see` returns false. Returns
    /// whether all points in time of the part were visited with all their states.
    ///
    /// # Errors
    /// `see` panicked.
    pub(super) fn visit(
        &self,
        bounds: &Bounds,
        see: &mut dyn FnMut(&Seen<'_>) -> bool,
    ) -> Result<bool, String> {
        let limits = Limits {
            leaves: bounds.states_per_point,
            recovery_depth: 0,
            samples: bounds.samples,
            tails: 0,
            moments: bounds.points,
            lives: 0,
            seed: bounds.seed,
        };
        let mut tally = Tally::default();
        self.medium.reset();
        let points = self.points();
        let mut visitor = Visitor {
            recording: self,
            see,
            event: 0,
            returned: 0,
            promises: 0,
            is_over: false,
        };
        let mut is_all = points <= bounds.points;
        let mut from = 0;
        for (n, &end) in self.ends.iter().enumerate() {
            for event in from..=end {
                let is_end = event == end && self.promises.get(n) == Some(&true);
                let narrows = event < end && self.medium.narrows(&self.trace[event]);
                if is_end {
                    visitor.returned = n + 1;
                    visitor.promises += 1;
                }
                let is_point = is_end || narrows || event == self.trace.len();
                if is_point && bounds.is_in_part(event) && limits.takes(event, points) {
                    visitor.event = event;
                    let mut walk = Walk {
                        medium: &self.medium,
                        judge: &mut visitor,
                        limits,
                        tally: &mut tally,
                        crashes: Vec::new(),
                    };
                    if let Err(found) = walk.point(event) {
                        return match visitor.is_over {
                            true => Ok(false),
                            false => Err(found.what),
                        };
                    }
                }
                if event < end {
                    self.medium.apply(&self.trace[event]);
                }
            }
            visitor.returned = n + 1;
            from = end;
        }
        is_all &= tally.capped_points == 0;
        Ok(is_all)
    }

    /// Visits one state again.
    ///
    /// # Errors
    /// There is no such state.
    pub(super) fn again(
        &self,
        spot: &Spot,
        see: &mut dyn FnMut(&Seen<'_>) -> bool,
    ) -> Result<(), String> {
        if spot.event > self.trace.len() {
            return Err(format!("the trace has no event {}", spot.event));
        }
        self.medium.reset();
        let returned = self.ends.iter().filter(|end| **end <= spot.event).count();
        let mut visitor = Visitor {
            recording: self,
            see,
            event: spot.event,
            returned: returned.min(self.promises.len()),
            promises: 0,
            is_over: false,
        };
        let place = CrashPath {
            crashes: vec![CrashAt {
                event: spot.event,
                choices: spot.choices.clone(),
            }],
            tail: Tail::None,
        };
        revisit(&self.medium, &self.trace, &place, &mut visitor).map(drop)
    }
}

/// Shows each state to the caller.
struct Visitor<'a, 'o, M: Medium> {
    recording: &'a Recording<'o, M>,
    see: &'a mut dyn FnMut(&Seen<'_>) -> bool,
    event: usize,
    returned: usize,
    /// Promises so far.
    promises: u64,
    is_over: bool,
}

impl<M: Medium> Judge<M> for Visitor<'_, '_, M> {
    fn judge(&mut self, medium: &Arc<M>, _: Policy, _: usize) -> Verdict<M::Event> {
        let spot = || Spot {
            schedule: self.recording.schedule,
            event: self.event,
            choices: medium
                .decisions()
                .iter()
                .map(|(_, choice)| *choice)
                .collect(),
        };
        let is_over = Cell::new(false);
        let result = caught(|| {
            let clock = Arc::new(ManualClock::new(SECOND_LIFE, 1000));
            let recorder = medium.record();
            let (system, door) = (self.recording.system, M::door(&recorder));
            let opened = system.open_in_boot(door, clock, WAVE, BOOTS[2]);
            let seen = Seen {
                fs: opened.as_ref().map(|still| &*still.fs).map_err(|e| &**e),
                returned: self.returned,
                spot: &spot,
            };
            is_over.set(!(self.see)(&seen));
            Ok(())
        });
        self.is_over |= is_over.get();
        Verdict {
            wrong: result.err().or_else(|| self.is_over.then(String::new)),
            outcome: 0,
            recovery: None,
        }
    }

    fn demands(&self) -> u64 {
        self.promises
    }

    /// An audit decides words in another order than a visit, so its states have no place.
    fn is_audited(&self) -> bool {
        false
    }
}
