//! Crash states of calls on a file system, for a caller that judges them itself.
//!
//! The calls run once, over a recorded medium. Then the states are visited that a power cut could
//! leave, at the same points in time as those of a script. The file system recovers from each
//! state, and the caller sees it. Crashes inside a recovery are not visited: the promise of the
//! engine covers them.

use crate::BlockSystem;
use crate::choice::{Policy, mix};
use crate::life::SECOND_LIFE;
use crate::media::Medium;
use crate::media::blocks::StateDevice;
use crate::panics::caught;
use crate::schedule::Schedule;
use crate::setting::Setting;
use crate::trial::Drawn;
use crate::walk::{
    CrashAt, CrashPath, CrashState, Judge, Limits, Tail, Tally, Verdict, Walk, revisit,
};
use std::cell::Cell;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use vfs::{FileSystem, ManualClock, Timestamp};

/// Calls that can be made again and again, always in the same way.
pub trait Calls {
    /// Makes the tree in which the calls start.
    ///
    /// # Errors
    /// The call that failed, in one line.
    fn prepare(&mut self, fs: &dyn FileSystem) -> Result<(), String>;
    /// Begins: the file system was opened again since [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// The call that failed, in one line.
    fn begin(&mut self, fs: &dyn FileSystem) -> Result<(), String>;
    /// Number of calls.
    fn len(&self) -> usize;
    /// Whether there is no call.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Makes call number `n`.
    ///
    /// # Errors
    /// The call that failed, in one line.
    fn call(&mut self, fs: &dyn FileSystem, n: usize) -> Result<(), String>;
    /// Whether the return of call number `n` is a promise: states before and after it are visited
    /// apart.
    fn is_promise(&self, n: usize) -> bool;
}

/// A crash state that can be visited again: the schedule of write-back, the event of the trace
/// after the crash, and the choices for the blocks that were not durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The schedule.
    pub schedule: Schedule,
    event: usize,
    choices: Vec<u32>,
}

/// `each/12/0.1.0`; choices of 0 at the end are left out.
impl Display for Spot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/", self.schedule, self.event)?;
        let last = self.choices.iter().rposition(|choice| *choice > 0);
        let chosen = last.map_or(&[][..], |last| &self.choices[..=last]);
        let chosen: Vec<String> = chosen.iter().map(u32::to_string).collect();
        f.write_str(&chosen.join("."))
    }
}

impl FromStr for Spot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let [schedule, event, choices] = parts[..] else {
            return Err(format!("`{text}` does not name a crash state"));
        };
        let number = |text: &str| text.parse::<u32>().map_err(|e| format!("`{text}`: {e}"));
        let choices = choices.split('.').filter(|text| !text.is_empty());
        Ok(Self {
            schedule: schedule.parse()?,
            event: number(event)? as usize,
            choices: choices.map(number).collect::<Result<_, _>>()?,
        })
    }
}

/// A recovered crash state.
pub struct Seen<'a> {
    /// The file system, after recovery; or the reason why it cannot be opened.
    pub fs: Result<&'a dyn FileSystem, &'a str>,
    /// Number of calls that had returned.
    pub returned: usize,
    /// The place of the state.
    pub spot: &'a Spot,
}

/// Bounds of an observation.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// States of a point in time up to which all are visited.
    pub states_per_point: usize,
    /// Random subsets, and single blocks, tried at a point with more states.
    pub samples: usize,
    /// Most points in time. About that many of a longer trace are drawn.
    pub points: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// The part that is visited, and the number of parts. Each part has random points of the whole
    /// trace, and each point is in one part.
    pub part: (usize, usize),
}

impl Bounds {
    fn is_in_part(&self, event: usize) -> bool {
        let (part, of) = self.part;
        of <= 1 || mix(!self.seed, event as u64) % of as u64 == part as u64
    }
}

/// The calls, run over a recorded block device.
pub struct Observation<'a> {
    system: &'a BlockSystem,
    schedule: Schedule,
    medium: Arc<StateDevice>,
    trace: Vec<<StateDevice as CrashState>::Event>,
    /// By call: the number of events before its return. The last one is the write-back at the end.
    ends: Vec<usize>,
    /// The calls whose return is a promise.
    promises: Vec<bool>,
}

/// Most blocks of a wave.
const WAVE: usize = 1024;

impl<'a> Observation<'a> {
    /// Runs calls under a schedule of write-back.
    ///
    /// # Errors
    /// A call fails.
    pub fn new(
        system: &'a BlockSystem,
        calls: &mut dyn Calls,
        schedule: Schedule,
    ) -> Result<Self, String> {
        let setting = Setting {
            model: None,
            schedule: Some(schedule),
        };
        let clock = Arc::new(ManualClock::new(Timestamp(0), 1000));
        let image = StateDevice::made(system, &mut |door| {
            system.format(&*door)?;
            let still = system.open_still(door, clock.clone(), WAVE)?;
            calls.prepare(&*still.fs)?;
            still.fs.sync().map_err(|e| format!("sync: {e}"))
        })?;
        let live = Arc::new(StateDevice::of_image(&image, setting)?);
        let recorder = live.record();
        let door = StateDevice::door(&recorder);
        let still = system.open_still(door, clock, schedule.wave())?;
        calls.begin(&*still.fs)?;
        let mut drawn = Drawn::of_seed(schedule);
        let (mut trace, mut ends) = (Vec::new(), Vec::new());
        for n in 0..calls.len() {
            calls.call(&*still.fs, n)?;
            match &mut drawn {
                Some(drawn) => drawn.write_a_few(&still)?,
                None if schedule == Schedule::Each => drop((still.write_some)()?),
                None => {}
            }
            trace.append(&mut StateDevice::take(&recorder));
            ends.push(trace.len());
        }
        if !matches!(schedule, Schedule::Sync | Schedule::Each | Schedule::Any(_)) {
            while (still.write_some)()? > 0 {}
        }
        still.fs.sync().map_err(|e| format!("sync: {e}"))?;
        trace.append(&mut StateDevice::take(&recorder));
        ends.push(trace.len());
        Ok(Self {
            system,
            schedule,
            medium: Arc::new(StateDevice::of_image(&image, setting)?),
            trace,
            promises: (0..calls.len()).map(|n| calls.is_promise(n)).collect(),
            ends,
        })
    }

    /// Number of points in time.
    pub fn points(&self) -> usize {
        let moments = self.trace.iter().filter(|e| StateDevice::is_moment(e));
        moments.count() + self.promises.iter().filter(|is| **is).count()
    }

    /// Visits the crash states, in the order of the trace, until `see` returns false. Returns
    /// whether all points in time of the part were visited with all their states.
    ///
    /// # Errors
    /// `see` panicked.
    pub fn visit(
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
            observation: self,
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
    pub fn again(&self, spot: &Spot, see: &mut dyn FnMut(&Seen<'_>) -> bool) -> Result<(), String> {
        if spot.event > self.trace.len() {
            return Err(format!("the trace has no event {}", spot.event));
        }
        self.medium.reset();
        let returned = self.ends.iter().filter(|end| **end <= spot.event).count();
        let mut visitor = Visitor {
            observation: self,
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
struct Visitor<'a, 'o> {
    observation: &'a Observation<'o>,
    see: &'a mut dyn FnMut(&Seen<'_>) -> bool,
    event: usize,
    returned: usize,
    /// Promises so far.
    promises: u64,
    is_over: bool,
}

impl Judge<StateDevice> for Visitor<'_, '_> {
    fn judge(
        &mut self,
        medium: &Arc<StateDevice>,
        _: Policy,
        _: usize,
    ) -> Verdict<<StateDevice as CrashState>::Event> {
        let spot = Spot {
            schedule: self.observation.schedule,
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
            let opened = self.observation.system.open(medium.clone(), clock);
            let seen = Seen {
                fs: opened.as_deref().map_err(|e| &**e),
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
}
